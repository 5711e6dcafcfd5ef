"""The perturbative correction of a variational posterior: second order in what q leaves out."""

import time
import warnings
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pgmodels.augmentation.derive import Augmentation
from pgmodels.precision import double_precision
from pgmodels.results.approximation import Approximation, CorrectedApproximation


class CorrectionWarning(UserWarning):
    """A corrected variance is not positive: the expansion does not reach there."""


@partial(jax.jit, static_argnames="augmentation")
def expansion(augmentation: Augmentation, m: Any, v: Any, y: Any, parameters: Any) -> tuple[Any, Any]:
    """E[∂Q_i/∂f] and E[∂²Q_i/∂f²] of Q_i = (T - T̄)ᵀ H_i (T - T̄), T = (f, f²), under q, each (n, latents).

    Products with another latent's T have mean zero under q, so each latent's own 2 x 2 block of H is enough.
    """
    H = augmentation.local_hessian(m, v, y, parameters)
    h_mm, h_ms, h_ss = H[..., 0, 0], H[..., 0, 1], H[..., 1, 1]
    shift = 4.0 * h_ms * v + 8.0 * h_ss * m * v
    curvature = 2.0 * h_mm + 8.0 * h_ms * m + 8.0 * h_ss * (m**2 + v)
    return shift, curvature


def correct_marginals(
    mean: Any, variance: Any, cross: Any, shift: Any, curvature: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Corrected mean and variance (m, latents), from Cov_q(f_*, f) (latents, m, n) (math: section 5)."""
    linear = jnp.einsum("lmn,nl->ml", cross, shift)
    quadratic = jnp.einsum("lmn,nl->ml", cross**2, curvature)
    corrected = mean + 0.5 * linear
    second = variance + mean**2 + 0.5 * (2.0 * mean * linear + quadratic)
    return np.asarray(corrected), np.asarray(second - corrected**2)


def warn_nonpositive(variance: np.ndarray, where: str) -> int:
    """Warn of non-positive corrected variances; returns how many there are."""
    count = int(np.sum(variance <= 0))
    if count:
        row = int(np.argwhere(variance <= 0)[0][0])
        warnings.warn(
            f"{count} of {variance.size} corrected variances at {where} are not positive (first in row {row}, "
            f"{variance.min():.3g} at least): the correction is too large there to be trusted.",
            CorrectionWarning,
            stacklevel=4,
        )
    return count


@double_precision
def correct(approximation: Approximation) -> CorrectedApproximation:
    """Correct the mean and variance of a CAVI result to second order (Opper et al. 2015; Wenzel et al. 2019, A.6).

    Warns with CorrectionWarning where a corrected variance is not positive. Raises ValueError for a result that is
    corrected already, and where two latents of one datum multiply, since B generates no joint moments there.
    """
    if isinstance(approximation, CorrectedApproximation):
        raise ValueError("approximation is corrected already: correct takes the result of cavi or fit.")
    if not isinstance(approximation, Approximation):
        raise ValueError(f"approximation must be the result of cavi or fit; got {type(approximation).__name__}.")
    start = time.perf_counter()
    model = approximation.model
    augmentation = model.augmentation
    if len(augmentation.blocks) > 1:
        raise ValueError(
            f"correct: in {model.likelihood.name} two latents of one datum multiply, so the local bound generates the "
            "moments of one block only and the second-order formula does not hold. Use gibbs for this model."
        )
    m, v = jnp.asarray(approximation.mean), jnp.asarray(approximation.variance)
    shift, curvature = expansion(augmentation, m, v, jnp.asarray(approximation.y), model.parameters)
    h, w = jnp.asarray(approximation.potential), jnp.asarray(approximation.precision)
    mean, variance = correct_marginals(m, v, approximation.prior.covariance(h, w), shift, curvature)
    count = warn_nonpositive(variance, "the data")
    return CorrectedApproximation(
        model=model,
        X=approximation.X,
        y=approximation.y,
        columns=approximation.columns,
        prior=approximation.prior,
        seconds=approximation.seconds + time.perf_counter() - start,
        method="corrected",
        mean=mean,
        variance=variance,
        potential=approximation.potential,
        precision=approximation.precision,
        elbo_trace=approximation.elbo_trace,
        converged=approximation.converged,
        tolerance=approximation.tolerance,
        shift=np.asarray(shift),
        curvature=np.asarray(curvature),
        num_nonpositive=count,
    )
