"""The perturbative correction of a variational posterior: second order in what q leaves out."""

import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.latent.coupled import CoupledPosterior
from pgmodels.latent.joint import JointPosterior
from pgmodels.precision import double_precision
from pgmodels.results.approximation import Approximation, CorrectedApproximation
from pgmodels.results.correction import correct_coupled, correct_marginals, mixing, warn_nonpositive


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


@partial(jax.jit, static_argnames="augmentation")
def joint_expansion(augmentation: Augmentation, m: Any, V: Any, y: Any, parameters: Any) -> tuple[Any, Any]:
    """E[∂Q_i/∂z] (n, P) and E[∂²Q_i/∂z∂z'] (n, P, P) where predictors z ~ N(m, V) of a datum depend on each other."""
    H = augmentation.joint_hessian(m, jnp.diagonal(V, axis1=1, axis2=2), y, parameters)
    h_mm, h_ms, h_ss = H[:, :, 0, :, 0], H[:, :, 0, :, 1], H[:, :, 1, :, 1]
    h_sm = jnp.swapaxes(h_ms, 1, 2)
    mean, other = m[:, :, None], m[:, None, :]
    shift = jnp.sum(4.0 * h_sm * V + 8.0 * h_ss * other * V, axis=-1)
    curvature = 2.0 * (h_mm + 2.0 * other * h_ms + 2.0 * mean * h_sm + 4.0 * h_ss * (mean * other + V))
    return shift, curvature


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
    y, posterior, Phi = jnp.asarray(approximation.y), approximation.posterior, mixing(model, approximation.y)
    if isinstance(posterior, CoupledPosterior):
        f, V = _marginals(posterior)
        m, S = jnp.einsum("ipl,il->ip", *Phi, f), jnp.einsum("ipl,ilk,iqk->ipq", *Phi, V, *Phi)
        shift, curvature = joint_expansion(augmentation, m, S, y, model.parameters)
        mean, covariance = correct_coupled(f, V, _covariance(posterior, *Phi), shift, curvature)
        variance = np.diagonal(covariance, axis1=1, axis2=2)
    else:
        m, v = jnp.asarray(approximation.mean), jnp.asarray(approximation.variance)
        shift, curvature = expansion(augmentation, m, v, y, model.parameters)
        mean, variance = correct_marginals(m, v, _covariance(posterior), shift, curvature)
    count = warn_nonpositive(variance, "the data")
    return CorrectedApproximation(
        model=model,
        X=approximation.X,
        y=approximation.y,
        columns=approximation.columns,
        seconds=approximation.seconds + time.perf_counter() - start,
        method="corrected",
        posterior=approximation.posterior,
        mean=mean,
        variance=variance,
        elbo_trace=approximation.elbo_trace,
        converged=approximation.converged,
        tolerance=approximation.tolerance,
        shift=np.asarray(shift),
        curvature=np.asarray(curvature),
        num_nonpositive=count,
    )


@jax.jit
def _marginals(posterior: CoupledPosterior) -> Any:
    return posterior.marginals()


@jax.jit
def _covariance(posterior: JointPosterior | CoupledPosterior, *Phi: Any) -> Any:
    """Cov_q(f, f) (latents, n, n), or Cov_q(f, z) (latents, n, n, P) where Φ couples the latents."""
    covariance = posterior.covariance()
    return jnp.einsum("amkn,npk->amnp", covariance, *Phi) if Phi else covariance
