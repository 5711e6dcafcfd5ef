"""Gaussian approximations of the posterior."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pgmodels.latent.joint import JointPrior
from pgmodels.precision import double_precision
from pgmodels.results.predictive import GaussianNodes, Predictive
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
    """A Gaussian approximation q(f) of the posterior.

    ``mean`` and ``variance`` are its marginals at the data, (n, latents); ``potential`` and ``precision`` the sites
    (h, w) that make it. ``elbo_trace`` holds the ELBO at the start and after each iteration.
    """

    mean: np.ndarray
    variance: np.ndarray
    potential: np.ndarray
    precision: np.ndarray
    elbo_trace: np.ndarray
    converged: bool
    tolerance: float
    fit: FitReport | None = None

    @property
    def elbo(self) -> float:
        """The evidence lower bound reached."""
        return float(self.elbo_trace[-1])

    @property
    def num_iterations(self) -> int:
        """Iterations made."""
        return len(self.elbo_trace) - 1

    @double_precision
    def predict_latent(self, X_new: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latents at X_new (m, d), (m, latents) each."""
        X_new = jnp.asarray(self.check_inputs(X_new))
        h, w = jnp.asarray(self.potential), jnp.asarray(self.precision)
        mean, variance = _predict_latent(self.prior, X_new, h, w)
        return np.asarray(mean), np.asarray(variance)

    def predict(self, X_new: Any, covariates: Any = None) -> Predictive:
        """The predictive distribution of y at X_new (m, d).

        ``covariates`` (m, columns - 1) holds the columns of y after the first, such as trials or an exposure: what
        depends on them raises ValueError where they are left out.
        """
        mean, variance = self.predict_latent(X_new)
        return Predictive(self.model.likelihood, GaussianNodes(mean, variance), covariates)

    @double_precision
    def draw_latents(self, num_draws: int, seed: int = 0) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """Joint draws from q at the data, (draws, n, latents), and their whitened coordinates by group."""
        keys = jax.random.split(jax.random.key(seed), num_draws)
        f, whitened = _draw_latents(self.prior, keys, jnp.asarray(self.potential), jnp.asarray(self.precision))
        return np.asarray(f), tuple(np.asarray(v) for v in whitened)


@dataclass(eq=False, kw_only=True, repr=False)
class CorrectedApproximation(Approximation):
    """An approximation whose marginals carry the perturbative correction (math: section 5).

    The marginals are all there is: no joint density, and so no ELBO, stands behind them. ``shift`` and ``curvature``
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

    @double_precision
    def predict_latent(self, X_new: Any) -> tuple[np.ndarray, np.ndarray]:
        """Corrected mean and variance of the latents at X_new (m, d), (m, latents) each.

        Warns with CorrectionWarning where a corrected variance is not positive; it is returned as it is.
        """
        from pgmodels.inference.correction import correct_marginals, warn_nonpositive

        mean, variance = Approximation.predict_latent(self, X_new)
        X_new = jnp.asarray(self.check_inputs(X_new))
        h, w = jnp.asarray(self.potential), jnp.asarray(self.precision)
        cross = _cross_covariance(self.prior, X_new, h, w)
        mean, variance = correct_marginals(mean, variance, cross, self.shift, self.curvature)
        warn_nonpositive(variance, "X_new")
        return mean, variance

    def predict(self, X_new: Any, covariates: Any = None) -> Predictive:
        """The predictive distribution of y at X_new (m, d), with the corrected marginals.

        Raises ValueError where a corrected variance is not positive: there is no predictive distribution there.
        """
        mean, variance = self.predict_latent(X_new)
        if not (variance > 0).all():
            row = int(np.argwhere(~(variance > 0))[0][0])
            raise ValueError(
                f"the corrected variance is {variance[row].min():.3g} in row {row} of X_new "
                f"({int((variance <= 0).sum())} in all): the correction does not reach there. Predict with the "
                "uncorrected result or with draws."
            )
        return Predictive(self.model.likelihood, GaussianNodes(mean, variance), covariates)


@eqx.filter_jit
def _predict_latent(prior: JointPrior, X_new: Any, h: Any, w: Any) -> tuple[Any, Any]:
    return prior.predict(X_new, h, w)


@eqx.filter_jit
def _cross_covariance(prior: JointPrior, X_new: Any, h: Any, w: Any) -> Any:
    return prior.covariance_with_training(X_new, h, w)


@eqx.filter_jit
def _draw_latents(prior: JointPrior, keys: Any, h: Any, w: Any) -> Any:
    # The sites are not batched, so that their precision matrix is factorised once for all draws.
    return jax.vmap(lambda key: prior.draw(key, h, w))(keys)
