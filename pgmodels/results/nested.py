"""Corrections by nested variational marginals: a density of its own for every latent."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from pgmodels.model import Model
from pgmodels.results.approximation import LinearResponse, NodesOf
from pgmodels.results.gaussian import each_latent, mixing_at
from pgmodels.results.grid_density import GridDensity
from pgmodels.results.nodes import CopulaNodes
from pgmodels.results.uncertainty import with_shifts
from pgmodels.runtime.seeds import Seed


@dataclass(eq=False, kw_only=True, repr=False)
class NestedApproximation(LinearResponse):
    """Marginals by a bound of log p(y, f_i = x) at each value x of a latent, normalised (math: section 5c).

    The density of a latent at the data is given by its unnormalised logarithm ``log_density`` (n, latents, grid), a
    bound of log p(y, f_i = x), at ``location + scale * GRID``. Joint distributions have the correlations of linear
    response, by a Gaussian copula; ``covariance`` has these correlations with the variances of the marginals.
    ``uncorrected`` is the variational Gaussian.
    """

    description: ClassVar[str] = "by nested variational marginals"
    # Measured against quadrature with three latents.
    relative_error: ClassVar[float] = 0.02

    location: Float[np.ndarray, "n l"]
    scale: Float[np.ndarray, "n l"]
    log_density: Float[np.ndarray, "n l grid"]

    @property
    def method(self) -> str:
        """The method of ``correct``."""
        return "nested"

    @property
    def has_density(self) -> bool:
        """See GaussianResult."""
        return False

    @cached_property
    def marginals(self) -> GridDensity:
        """The marginals of the latents at the data, (n, latents)."""
        return self._conditional_marginals.widened(np.sum(self.shifts**2, axis=0))

    @property
    def _conditional_marginals(self) -> GridDensity:
        return GridDensity(self.location, self.scale, self.log_density)

    @property
    def log_evidence_bounds(self) -> np.ndarray:
        """A lower bound of log p(y) for each latent (n, latents), between the ELBO and log p(y).

        The KL divergence of a latent's marginal from the posterior's is at most log p(y) less its bound. With more than
        256 rows, up to the error of an expansion (math: section 5c).
        """
        return self._conditional_marginals.log_masses

    @property
    def skewness(self) -> np.ndarray:
        """The skewness of the latents at the data, (n, latents)."""
        return self.marginals.skewness

    def quantiles(self, levels: ArrayLike, X_new: ArrayLike | None = None) -> np.ndarray:
        """Quantiles of the latents at levels between 0 and 1, at the data or at X_new (m, d), (levels, m, latents)."""
        marginals = self.marginals if X_new is None else self.marginals_at(X_new)
        return marginals.quantiles(levels)

    def marginals_at(self, X_new: ArrayLike) -> GridDensity:
        """The marginals of the latents at new inputs X_new (m, d): mean, variance, skewness, quantiles and pdf."""
        inputs = self._inputs_at(X_new)
        return self._marginals(inputs).widened(np.sum(self.shifts_at(inputs) ** 2, axis=0))

    def predict_latent(self, X_new: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latents at new inputs: see CorrectedApproximation."""
        marginals = self.marginals_at(X_new)
        return marginals.mean, marginals.variance

    def _marginals(self, inputs: np.ndarray, Phi: np.ndarray | None = None) -> GridDensity:
        """The marginals of the latents at inputs, or of predictors Φ f of them."""
        from pgmodels.inference.corrections.nested import nested_marginals

        return nested_marginals(self, inputs, Phi)

    @cached_property
    def nodes(self) -> CopulaNodes:
        """What integrates over the latents of each datum."""
        if self.mixing is None:
            return CopulaNodes(self.marginals, self.mean, self.covariance, each_latent(self.covariance))
        at_data = self._nodes_by(self._inputs_at(self.X), self.mixing)
        return at_data(self.model, np.zeros(self.mean.shape), self.shifts)

    def _nodes_of(self, X_new: ArrayLike, covariates: np.ndarray | None) -> NodesOf:
        inputs = self._inputs_at(X_new)
        return self._nodes_by(inputs, mixing_at(self.model, len(inputs), covariates))

    def _nodes_by(self, inputs: np.ndarray, Phi: np.ndarray | None) -> Callable[..., CopulaNodes]:
        """See NodesOf: the densities at the inputs are computed once."""
        mean, spread = self._conditional_marginals_at(inputs)
        covariance = spread if spread.ndim == 3 else spread[:, :, None] * np.eye(spread.shape[1])
        marginals, across = self._marginals(inputs, Phi), each_latent(covariance) if Phi is None else Phi

        def nodes(_: Model, moved: np.ndarray, shifts: np.ndarray) -> CopulaNodes:
            added = np.sum(np.einsum("mpl,kml->kmp", across, shifts) ** 2, axis=0)
            placed = marginals.widened(added).moved(np.einsum("mpl,ml->mp", across, moved))
            return CopulaNodes(placed, mean + moved, with_shifts(covariance, shifts), across)

        return nodes

    def draw_at_data(self, num_draws: int, seed: Seed = 0) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """Draws (draws, n, latents) of the copula at the data, without whitened coordinates: see GaussianResult."""
        f, _ = super().draw_at_data(num_draws, seed)
        return self._to_marginals(f, self.X, self._conditional_marginals), ()

    def _drawn_at(self, X_new: ArrayLike, num_draws: int, seed: int) -> np.ndarray:
        return self._transported(super()._drawn_at(X_new, num_draws, seed), X_new)

    def _transported(self, f: np.ndarray, X_new: ArrayLike) -> np.ndarray:
        return self._to_marginals(f, X_new, self._marginals(self._inputs_at(X_new)))

    def _to_marginals(self, f: np.ndarray, X_new: ArrayLike, marginals: GridDensity) -> np.ndarray:
        """Draws of the Gaussian of linear response as draws with these marginals."""
        mean, spread = self._conditional_marginals_at(X_new)
        variance = spread if spread.ndim == 2 else np.diagonal(spread, axis1=1, axis2=2)
        deviation = np.sqrt(np.where(variance > 0.0, variance, 1.0))
        return marginals.transport((f - mean) / deviation)
