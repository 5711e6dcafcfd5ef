"""Predictions of a Gaussian posterior of functions."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike

from pgmodels.data.labels import Labels
from pgmodels.data.options import check_whole_number
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.model import Model
from pgmodels.numerics.quadrature import chunk_length, equal_chunks
from pgmodels.priors.drawing import draw_deviations, draw_gaussian
from pgmodels.priors.padding import pad_rows, padded_size
from pgmodels.priors.posterior import Posterior
from pgmodels.results.covariates import check_covariates
from pgmodels.results.nodes import DrawNodes, GaussianNodes, IndependentNodes, PredictorNodes
from pgmodels.results.predictive import Predictive
from pgmodels.runtime.formatting import shorten
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.memory import require_draws
from pgmodels.runtime.seeds import Seed, as_generator, as_seed
from pgmodels.runtime.x64 import DoublePrecision, as_array, double_precision


class GaussianPredictions(DoublePrecision, ABC):
    """Predictions at new inputs from a model and a Gaussian posterior of its latents."""

    if TYPE_CHECKING:

        @property
        def model(self) -> Model:
            """The model."""

        @property
        def posterior(self) -> Posterior:
            """The posterior of the latents that predictions are by."""

        @property
        def labels(self) -> Labels | None:
            """The labels of y in the order of their codes; None if y was numbers."""

    @property
    @abstractmethod
    def likelihood(self) -> Likelihood:
        """The likelihood of one row without its weight; predictions use it."""

    @abstractmethod
    def check_inputs(self, X_new: ArrayLike, name: str = "X_new") -> np.ndarray:
        """New inputs as a float64 array (m, d); raises ValueError if their columns do not match X."""

    @abstractmethod
    def _inputs_at(self, X_new: ArrayLike, jointly: bool = False) -> np.ndarray:
        """Checked new inputs, standardised if the model's are."""

    def predict_latent(self, X_new: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latents at new inputs.

        Parameters
        ----------
        X_new : array_like, shape (m, d)
            New inputs, with the columns of X.

        Returns
        -------
        mean, variance : ndarray, shape (m, latents)
            Moments of each latent.
        """
        mean, variance = self._marginals_at(X_new)
        return mean, variance if variance.ndim == 2 else np.diagonal(variance, axis1=1, axis2=2)

    def predict(self, X_new: ArrayLike, covariates: ArrayLike | None = None) -> Predictive:
        """The predictive distribution of y at new inputs.

        Parameters
        ----------
        X_new : array_like, shape (m, d)
            New inputs, with the columns of X.
        covariates : array_like, shape (m, columns - 1), optional
            The columns of y after the first, such as trials or an exposure.

        Returns
        -------
        Predictive
            Computes means, variances, probabilities, densities and draws on request; they raise ValueError if they
            depend on covariates that are missing.
        """
        mean, variance = self._marginals_at(X_new)
        covariates = check_covariates(self.likelihood, self.model.num_latents, covariates, len(mean))
        nodes = nodes_at(self.model, mean, variance, covariates)
        return Predictive(self.likelihood, nodes, covariates, self.labels)

    @double_precision
    def _marginals_at(self, X_new: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Means (m, latents) at X_new, with variances or, for coupled latents, covariances of each row."""
        inputs, width = self._inputs_at(X_new), self._num_across * self.model.num_latents
        # In chunks that fit into memory, the last one padded.
        chunks = equal_chunks(np.arange(len(inputs)), min(padded_size(len(inputs)), chunk_length(width)))
        moments = zip(*(self._moments_at(as_array(inputs[rows])) for rows in chunks), strict=True)
        mean, variance = (np.concatenate([np.asarray(part) for part in both])[: len(inputs)] for both in moments)
        bad = ~np.isfinite(variance.reshape(len(inputs), -1)).all(axis=1)
        if bad.any():
            row = int(np.argmax(bad))
            raise ValueError(
                f"X_new: the variance of a latent overflows double precision in row {row}, "
                f"{shorten(inputs[row].tolist())}. Check the scale of X_new, or leave such rows out."
            )
        return mean, variance

    @property
    def _num_across(self) -> int:
        """The number of values per latent and new input in memory."""
        return max(group.num_across for group in self.posterior.prior.groups)

    def _moments_at(self, inputs: Array) -> tuple[Any, Any]:
        """``_marginals_at`` for a chunk of rows."""
        return _marginals(self.posterior, inputs)

    def draw_latents(self, X_new: ArrayLike, num_draws: int = 1000, seed: Seed = 0) -> np.ndarray:
        """Joint draws of the latents at new inputs.

        Parameters
        ----------
        X_new : array_like, shape (m, d)
            New inputs, with the columns of X.
        num_draws : int
            Number of draws.
        seed : int or jax.Array
            An int or a JAX key.

        Returns
        -------
        ndarray, shape (num_draws, m, latents)
            Draws of functions: joint over rows and latents.

        Raises
        ------
        ValueError
            For a GP whose form has no factor.
        MemoryError
            If the covariances between the rows do not fit into memory.

        Notes
        -----
        O(m^3) time; O(n + m) for each draw with ``pgm.Markov()``.
        """
        check_whole_number(num_draws, "num_draws", 1)
        seed = as_seed(seed)
        return self._drawn_at(X_new, num_draws, seed)

    def _drawn_at(self, X_new: ArrayLike, num_draws: int, seed: int) -> np.ndarray:
        """See ``draw_latents``."""
        count, size = len(self.check_inputs(X_new)), self.model.num_latents
        if self.posterior.extends:
            require_draws(num_draws, count, size)
            inputs, keys = self._inputs_at(X_new, jointly=True), jax.random.split(jax.random.key(seed), num_draws)
            padded = as_array(pad_rows(inputs, padded_size(len(inputs))))
            return np.asarray(_drawn_at(self.posterior, padded, keys))[:, : len(inputs)]
        # Three copies of the covariance of each latent, or five of all together.
        entries = 3.0 * size * count**2 if not self.posterior.is_coupled else 5.0 * (size * count) ** 2
        require_draws(num_draws, count, size, 8.0 * entries)
        mean, _ = self._marginals_at(X_new)
        covariance = self._covariance_at(as_array(self._inputs_at(X_new, jointly=True)))
        return draw_gaussian(mean, covariance, num_draws, np.random.default_rng(seed))

    def joint_nodes(self, X_new: ArrayLike, num_draws: int, seed: Seed = 0) -> DrawNodes:
        """``draw_latents``, with the likelihood parameters that are drawn with them: none here."""
        return DrawNodes(self.draw_latents(X_new, num_draws, seed))

    def marginal_nodes(self, X_new: ArrayLike, num_draws: int, seed: Seed = 0) -> DrawNodes:
        """Draws of the latents of each row, and the likelihood parameters that are drawn with them: none here.

        All rows are drawn by the same standard normals, so that tables over rows are smooth: O(m), for rows one by one.
        """
        check_whole_number(num_draws, "num_draws", 1)
        mean, spread = self._marginals_at(X_new)
        require_draws(num_draws, *mean.shape)
        return DrawNodes(mean + draw_deviations(spread, num_draws, as_generator(seed)))

    def _covariance_at(self, X_new: Array) -> np.ndarray:
        """The covariance of each latent at X_new (latents, m, m), or of all of them (latents, m, latents, m)."""
        return np.asarray(_covariance_at(self.posterior, X_new))


@double_precision
def nodes_at(model: Model, mean: np.ndarray, variance: np.ndarray, covariates: np.ndarray | None) -> GaussianNodes:
    """Quadrature nodes over the latents of each row, from variances (m, latents) or covariances."""
    if variance.ndim == 2:
        return IndependentNodes(mean, variance)
    Phi = mixing_at(model, len(mean), covariates)
    return PredictorNodes(mean, variance, each_latent(variance) if Phi is None else Phi)


def mixing_at(model: Model, num_rows: int, covariates: np.ndarray | None) -> np.ndarray | None:
    """The Φ of predictors at new inputs (m, P, L); None if there are none, or they read columns that are not known."""
    predictors, support = model.predictors, model.likelihood.support(model.num_latents)
    if predictors is None:
        return None
    observed = set(range(support.num_columns - support.num_covariates))
    columns = np.empty((num_rows, 0)) if covariates is None else covariates
    read = set(predictors.columns_read)
    if read & observed or (read and columns.shape[1] < support.num_covariates):
        return None
    y = np.column_stack([np.zeros(num_rows), support.others(columns)]) if read else np.zeros(num_rows)
    return np.asarray(predictors.matrix(y, model.parameters))


@compiled
def _marginals(posterior: Posterior, X_new: Array) -> tuple[Any, Any]:
    return posterior.marginals_at(X_new) if posterior.is_coupled else posterior.predict(X_new)


@compiled
def _drawn_at(posterior: Any, X_new: Array, keys: Any) -> Array:
    return posterior.drawn_at(X_new, keys)


@compiled
def _covariance_at(posterior: Posterior, X_new: Array) -> Array:
    return posterior.covariance_at(X_new)


def each_latent(covariance: np.ndarray) -> np.ndarray:
    """The Φ whose predictors are the latents."""
    return np.broadcast_to(np.eye(covariance.shape[-1]), covariance.shape)
