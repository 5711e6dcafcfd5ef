"""Gaussian approximations of the posterior."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from pgmodels.latent.coupled import CoupledPosterior
from pgmodels.latent.drawing import draw_latents
from pgmodels.latent.joint import JointPosterior, JointPrior
from pgmodels.precision import double_precision
from pgmodels.results.correction import correct_at, mixing, warn_nonpositive
from pgmodels.results.nodes import GaussianNodes, IndependentNodes, PredictorNodes
from pgmodels.results.predictive import Predictive
from pgmodels.results.result import Result


@dataclass(frozen=True, eq=False)
class FitReport:
    """How hyperparameters were learned.

    ``start`` names the start chosen and ``start_elbos`` the (penalised) ELBO at each; ``values`` holds what was learned
    by name, on the natural scale.
    """

    start: str
    start_elbos: dict[str, float]
    values: dict[str, np.ndarray]
    num_steps: int
    num_evaluations: int
    converged: bool
    message: str


@dataclass(eq=False, kw_only=True, repr=False)
class Approximation(Result):
    """A Gaussian approximation q(f) of the posterior: the prior times Gaussian factors of the data.

    ``posterior`` holds q with its factorisation; ``mean`` and ``variance`` are its marginals at the data, (n, latents).
    ``elbo_trace`` holds the ELBO at the start and after each iteration.
    """

    posterior: JointPosterior | CoupledPosterior
    mean: np.ndarray
    variance: np.ndarray
    elbo_trace: np.ndarray
    converged: bool
    tolerance: float
    fit: FitReport | None = None

    @property
    def prior(self) -> JointPrior:
        """See Result."""
        return self.posterior.prior

    @property
    def elbo(self) -> float:
        """The evidence lower bound reached."""
        return float(self.elbo_trace[-1])

    @property
    def num_iterations(self) -> int:
        """Iterations made."""
        return len(self.elbo_trace) - 1

    def predict_latent(self, X_new: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latents at X_new (m, d), (m, latents) each."""
        mean, variance = self._marginals_at(X_new)
        return mean, variance if variance.ndim == 2 else np.diagonal(variance, axis1=1, axis2=2)

    def predict(self, X_new: Any, covariates: Any = None) -> Predictive:
        """The predictive distribution of y at X_new (m, d).

        ``covariates`` (m, columns - 1) holds the columns of y after the first, such as trials or an exposure: what
        depends on them raises ValueError where they are left out.
        """
        return Predictive(self.model.likelihood, self._nodes(*self._marginals_at(X_new), covariates), covariates)

    @cached_property
    @double_precision
    def nodes(self) -> GaussianNodes:
        """What integrates over q's latents of each datum."""
        posterior, Phi = self.posterior, self.mixing
        if Phi is None or isinstance(posterior, JointPosterior):
            return IndependentNodes(self.mean, self.variance)
        mean, covariance = (np.asarray(part) for part in _marginals_at_data(posterior))
        return PredictorNodes(mean, covariance, Phi)

    @cached_property
    @double_precision
    def mixing(self) -> np.ndarray | None:
        """The Φ of predictors z = Φ f at the data, (n, predictors, latents); None where no factor combines latents."""
        predictors = self.model.augmentation.predictors
        return None if predictors is None else np.asarray(predictors.matrix(jnp.asarray(self.y), self.model.parameters))

    def predictor_moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances under q of what the likelihood's factors see: latents, or predictors."""
        if self.mixing is None or not isinstance(self.nodes, PredictorNodes):
            return self.mean, self.variance
        across = np.einsum("ipl,ilq->ipq", self.mixing, self.nodes.half)
        return np.einsum("ipl,il->ip", self.mixing, self.nodes.mean), np.sum(across**2, axis=-1)

    @double_precision
    def _marginals_at(self, X_new: Any) -> tuple[np.ndarray, np.ndarray]:
        """Means (m, latents) at X_new, and variances or, of latents that are coupled, covariances of each row's."""
        mean, variance = _marginals(self.posterior, jnp.asarray(self.check_inputs(X_new)))
        return np.asarray(mean), np.asarray(variance)

    @double_precision
    def _nodes(self, mean: np.ndarray, variance: np.ndarray, covariates: Any) -> GaussianNodes:
        """What integrates over the latents of each row."""
        predictors = self.model.augmentation.predictors
        if predictors is None:
            return IndependentNodes(mean, variance)
        rows = len(mean)
        if (covariates is None and predictors.columns_read) or 0 in predictors.columns_read:
            # What the predictors are at these rows is not known yet: every latent by itself.
            Phi = np.broadcast_to(np.eye(mean.shape[1]), (rows, mean.shape[1], mean.shape[1]))
        else:
            y = np.zeros(rows) if covariates is None else np.column_stack([np.zeros(rows), covariates])
            Phi = np.asarray(predictors.matrix(y, self.model.parameters))
        return PredictorNodes(mean, variance, Phi)

    @double_precision
    def draw_latents(self, num_draws: int, seed: int = 0) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """Joint draws from q at the data, (draws, n, latents), and their whitened coordinates by group."""
        return draw_latents(self.posterior, num_draws, seed)


@dataclass(eq=False, kw_only=True, repr=False)
class CorrectedApproximation(Approximation):
    """An approximation whose marginals carry the perturbative correction (math: section 5).

    The marginals are all there is: no joint density, and so no ELBO, stands behind them; ``posterior`` is
    what was corrected. ``shift`` and ``curvature``
    are E[∂Q/∂f] and E[∂²Q/∂f²] of the expansion's quadratic form, (n, latents). ``num_nonpositive`` counts the
    corrected variances at the data that came out non-positive, beyond the reach of the expansion.
    """

    shift: np.ndarray
    curvature: np.ndarray
    num_nonpositive: int

    def draw_latents(self, num_draws: int, seed: int = 0) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """Raises ValueError: the corrected marginals belong to no joint density."""
        raise ValueError(
            "a corrected result has marginals and no joint density to draw from: draw each marginal by itself from "
            "mean and variance, or draw jointly from the uncorrected result or with gibbs."
        )

    def predict_latent(self, X_new: Any) -> tuple[np.ndarray, np.ndarray]:
        """Corrected mean and variance of the latents at X_new (m, d), (m, latents) each.

        Warns with CorrectionWarning where a corrected variance is not positive; it is returned as it is.
        """
        mean, variance = super().predict_latent(X_new)
        warn_nonpositive(variance, "X_new")
        return mean, variance

    @double_precision
    def _marginals_at(self, X_new: Any) -> tuple[np.ndarray, np.ndarray]:
        inputs = jnp.asarray(self.check_inputs(X_new))
        moments, expansion = super()._marginals_at(X_new), (self.shift, self.curvature)
        return correct_at(self.posterior, inputs, moments, expansion, mixing(self.model, self.y))

    def predict(self, X_new: Any, covariates: Any = None) -> Predictive:
        """The predictive distribution of y at X_new (m, d), with the corrected marginals.

        Raises ValueError where a corrected variance is not positive: there is no predictive distribution there.
        """
        variance = self.predict_latent(X_new)[1]
        if not (variance > 0).all():
            row = int(np.argwhere(~(variance > 0))[0][0])
            raise ValueError(
                f"the corrected variance is {variance[row].min():.3g} in row {row} of X_new "
                f"({int((variance <= 0).sum())} in all): the correction does not reach there. Predict with the "
                "uncorrected result or with draws."
            )
        return super().predict(X_new, covariates)


@eqx.filter_jit
def _marginals(posterior: JointPosterior | CoupledPosterior, X_new: Any) -> tuple[Any, Any]:
    return posterior.marginals_at(X_new) if isinstance(posterior, CoupledPosterior) else posterior.predict(X_new)


@eqx.filter_jit
def _marginals_at_data(posterior: CoupledPosterior) -> tuple[Any, Any]:
    return posterior.marginals()
