"""Corrections to second order in what q neglects (Opper et al. 2015; Wenzel et al. 2019, A.6)."""

import time
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.inference.objectives import objective_of_result
from pgmodels.priors.padding import pad_rows, weighted
from pgmodels.priors.posterior import Posterior
from pgmodels.results.approximation import Approximation, PerturbativeApproximation
from pgmodels.results.correction import correct_blocks, correct_marginals, mixing, warn_invalid
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import as_array


@partial(compiled, static_argnames="augmentation")
def expansion(augmentation: Augmentation, m: Any, v: Any, residual: Any, y: Any, parameters: Any) -> tuple[Any, Any]:
    """E[∂Q_i/∂f] and E[∂²Q_i/∂f²] of Q_i = (T - T̄)ᵀ H_i (T - T̄), T = (f, f²), under q, each (n, latents).

    Products with another latent's T have mean zero under q, so each latent's own 2 x 2 block of H is enough.
    ``residual`` is the part of the variance v that does not depend on the sites; the likelihood is averaged over it.
    """
    H = augmentation.local_hessian(m, v, y, parameters)
    v = v - residual
    h_mm, h_ms, h_ss = H[..., 0, 0], H[..., 0, 1], H[..., 1, 1]
    shift = 4.0 * h_ms * v + 8.0 * h_ss * m * v
    curvature = 2.0 * h_mm + 8.0 * h_ms * m + 8.0 * h_ss * (m**2 + v)
    return shift, curvature


@partial(compiled, static_argnames="augmentation")
def joint_expansion(
    augmentation: Augmentation, m: Any, V: Any, residual: Any, y: Any, parameters: Any
) -> tuple[Any, Any]:
    """E[∂Q_i/∂z] (n, P) and E[∂²Q_i/∂z∂z'] (n, P, P) for predictors z ~ N(m, V) of a datum that are correlated.

    ``residual`` is as in ``expansion``, (n, P, P).
    """
    H = augmentation.hessian_of_datum(m, jnp.diagonal(V, axis1=1, axis2=2), y, parameters)
    V = V - residual
    h_mm, h_ms, h_ss = H[:, :, 0, :, 0], H[:, :, 0, :, 1], H[:, :, 1, :, 1]
    h_sm = jnp.swapaxes(h_ms, 1, 2)
    mean, other = m[:, :, None], m[:, None, :]
    shift = jnp.sum(4.0 * h_sm * V + 8.0 * h_ss * other * V, axis=-1)
    curvature = 2.0 * (h_mm + 2.0 * other * h_ms + 2.0 * mean * h_sm + 4.0 * h_ss * (mean * other + V))
    return shift, curvature


def correct_perturbatively(approximation: Approximation) -> PerturbativeApproximation:
    """Correct a result of the augmented bound to second order (Opper et al. 2015; Wenzel et al. 2019, A.6).

    Raises ValueError if two latents of one datum multiply, since B does not generate their joint moments.
    """
    start = time.perf_counter()
    model = approximation.model
    if not objective_of_result(approximation).has_auxiliaries:
        raise ValueError(
            "correct: the perturbative correction expands about the optimum of the augmented bound, of cavi or "
            f"fit(..., objective='augmented'); got the objective {approximation.objective!r}. Use the default, "
            "method='linear_response'."
        )
    augmentation = model.augmentation
    if len(augmentation.blocks) > 1:
        raise ValueError(
            f"correct: in {model.likelihood.name} two latents of one datum multiply, so the local bound generates the "
            "moments of one block only and the second-order formula does not hold. Use the default, "
            "method='linear_response', or gibbs."
        )
    posterior, n = approximation.posterior, len(approximation.y)
    size = posterior.prior.num_rows
    y, row_weights = approximation.data.padded(size)
    Phi = mixing(model, y)
    expanded = _expansion(approximation, posterior, y, Phi)
    shift, curvature = (np.asarray(weighted(row_weights, part)) for part in expanded)
    if posterior.is_coupled:
        f, V = _marginals(posterior)
        mean, covariance = correct_blocks(f, V, _covariance(posterior, *Phi), shift, curvature)
        variance = np.diagonal(covariance, axis1=1, axis2=2)
    else:
        m, v = (pad_rows(part, size) for part in (approximation.mean, approximation.variance))
        mean, variance = correct_marginals(m, v, _covariance(posterior), shift, curvature)
    return PerturbativeApproximation(
        uncorrected=approximation,
        seconds=approximation.seconds + time.perf_counter() - start,
        mean=mean[:n],
        variance=variance[:n],
        shift=np.asarray(shift)[:n],
        curvature=np.asarray(curvature)[:n],
        num_nonpositive=warn_invalid(variance[:n], "the data"),
    )


def _expansion(approximation: Approximation, posterior: Posterior, y: Array, Phi: tuple[Any, ...]) -> tuple[Any, Any]:
    """E[∂Q/∂z] and E[∂²Q/∂z²] of a result of the augmented bound, without weights, at the posterior's rows."""
    model = approximation.model
    m, v = (pad_rows(part, len(y)) for part in (approximation.mean, approximation.variance))
    residual_variance = posterior.prior.residual_variances()
    residual = as_array(np.zeros(m.shape)) if residual_variance is None else residual_variance
    if posterior.is_coupled:
        f, V = _marginals(posterior)
        z, S = jnp.einsum("ipl,il->ip", *Phi, f), jnp.einsum("ipl,ilk,iqk->ipq", *Phi, V, *Phi)
        beside = jnp.einsum("ipl,il,iql->ipq", *Phi, residual, *Phi)
        return joint_expansion(model.augmentation, z, S, beside, y, model.parameters)
    return expansion(model.augmentation, m, v, residual, y, model.parameters)


@compiled
def _marginals(posterior: Posterior) -> Any:
    return posterior.marginals()


@compiled
def _covariance(posterior: Posterior, *Phi: Any) -> Any:
    """Cov_q(f, f) (latents, n, n), or Cov_q(f, z) (latents, n, n, P) where Φ couples the latents."""
    covariance = posterior.covariance()
    return jnp.einsum("amkn,npk->amnp", covariance, *Phi) if Phi else covariance
