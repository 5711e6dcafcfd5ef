"""Marginals with a correction: perturbative (math: section 5) or by linear response (5b)."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pgmodels.model import Model
from pgmodels.priors.padding import pad_rows, pad_zeros, padded_size
from pgmodels.priors.posterior import Posterior
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.warnings import PgmodelsWarning, warn
from pgmodels.runtime.x64 import as_array


class CorrectionWarning(PgmodelsWarning):
    """Variances need a correction, or a corrected variance is negative or larger than possible."""


def correct_marginals(
    mean: Any, variance: Any, cross: Any, shift: Any, curvature: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Corrected mean and variance (m, latents), from Cov_q(f_*, f) (latents, m, n) (math: section 5)."""
    cross, shift, curvature = (np.asarray(part) for part in (cross, shift, curvature))
    moved = 0.5 * np.einsum("lmn,nl->ml", cross, shift)
    quadratic = np.einsum("lmn,nl->ml", cross**2, curvature)
    return np.asarray(mean) + moved, np.asarray(variance) + 0.5 * quadratic - moved**2


def correct_blocks(mean: Any, covariance: Any, cross: Any, shift: Any, curvature: Any) -> tuple[np.ndarray, np.ndarray]:
    """Corrected mean (m, L) and covariance (m, L, L) of each row's latents, from Cov_q(f_*, z) (L, m, n, P)."""
    moved, quadratic = (np.asarray(part) for part in _coupled_terms(cross, shift, curvature))
    outer = moved[:, :, None] * moved[:, None, :]
    return np.asarray(mean) + moved, np.asarray(covariance) + 0.5 * quadratic - outer


@compiled
def _coupled_terms(cross: Any, shift: Any, curvature: Any) -> tuple[Any, Any]:
    moved = 0.5 * jnp.einsum("amnp,np->ma", cross, shift)
    return moved, jnp.einsum("amnp,npq,bmnq->mab", cross, curvature, cross)


def respond_at(
    posterior: Posterior,
    X_new: Any,
    moments: tuple[np.ndarray, np.ndarray],
    shift: np.ndarray,
    response: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Means at new inputs, and covariances of each row's latents by linear response (m, L, L), from q's moments.

    ``shift`` and ``response`` are added in the coordinates of the padded posterior.
    """
    mean, spread = moments
    V = spread if spread.ndim == 3 else np.einsum("ma,ab->mab", spread, np.eye(spread.shape[1]))
    m, inputs = len(mean), pad_rows(X_new, padded_size(len(X_new)))
    moved, added = _added(posterior, inputs, shift, response)
    return mean + np.asarray(moved)[:m], V + np.asarray(added)[:m]


@compiled
def _added(posterior: Posterior, X_new: Any, shift: Any, response: Any) -> tuple[Any, Any]:
    return added_moments(posterior.prior.factors_at(X_new), shift, response)


def added_moments(factors: Sequence[Array], shift: Any, response: Any) -> tuple[Any, Any]:
    """The terms that linear response adds to the mean (m, L) and the covariance (m, L, L) of each row's latents.

    ``factors`` are the A (rank, m) of each latent, f = mean + A^T v; ``shift`` (D,) and ``response`` (D, D) are added
    to the mean and the covariance of all v, concatenated.
    """
    ends = np.cumsum([len(A) for A in factors])[:-1]
    means = [A.T @ block for A, block in zip(factors, jnp.split(shift, ends), strict=True)]
    blocks = _blocks(factors, response)
    added = [[jnp.sum(A * (block @ B), axis=0) for B, block in zip(factors, row, strict=True)] for A, row in blocks]
    return jnp.stack(means, axis=-1), jnp.moveaxis(jnp.array(added), 2, 0)


def joint_covariance(posterior: Posterior, X_new: Any, response: Any) -> Any:
    """The covariance of the latents at new inputs by linear response, (L, m, L, m)."""
    V, factors = posterior.covariance_at(X_new), posterior.prior.factors_at(X_new)
    if not posterior.is_coupled:
        block, (size, rows, _) = jnp.arange(len(V)), V.shape
        V = jnp.zeros((size, rows, size, rows), V.dtype).at[block, :, block].set(V)
    blocks = _blocks(factors, response)
    added = [[A.T @ block @ B for B, block in zip(factors, row, strict=True)] for A, row in blocks]
    return V + jnp.moveaxis(jnp.array(added), 1, 2)


def _blocks(factors: Sequence[Array], response: Any) -> list[tuple[Array, list[Array]]]:
    """The factor of each latent, and the blocks of a matrix between its coordinates and those of each latent."""
    ends = np.cumsum([len(A) for A in factors])[:-1]
    rows = jnp.split(response, ends)
    return [(A, jnp.split(row, ends, axis=1)) for A, row in zip(factors, rows, strict=True)]


def correct_at(
    posterior: Posterior,
    X_new: Any,
    moments: tuple[np.ndarray, np.ndarray],
    expansion: tuple[np.ndarray, np.ndarray],
    Phi: tuple[Any, ...],
) -> tuple[np.ndarray, np.ndarray]:
    """The corrected moments at new inputs: means with variances or, for coupled latents, covariances.

    ``expansion`` has E[∂Q/∂f] and E[∂²Q/∂f²] at the data, and ``Phi`` is from ``mixing``.
    """
    m, size, inputs = len(moments[0]), posterior.prior.num_rows, pad_rows(X_new, padded_size(len(X_new)))
    cross = _cross_covariance(posterior, inputs, *(pad_rows(part, size) for part in Phi))
    corrected = correct_blocks if posterior.is_coupled else correct_marginals
    shift, curvature = (pad_zeros(part, size) for part in expansion)
    q_mean, q_spread = (pad_rows(part, len(inputs)) for part in moments)
    mean, spread = corrected(q_mean, q_spread, cross, shift, curvature)
    return mean[:m], spread[:m]


def mixing(model: Model, y: np.ndarray | Array) -> tuple[Any, ...]:
    """Φ at the data, empty if no factor combines latents."""
    predictors = model.predictors
    return () if predictors is None else (predictors.matrix(as_array(y), model.parameters),)


def is_invalid(variance: np.ndarray) -> np.ndarray:
    """Whether corrected variances are invalid, negative or NaN. 0 is valid: the prior variance is then 0 too."""
    return ~(variance >= 0)


def warn_invalid(variance: np.ndarray, where: str) -> int:
    """Warn of corrected variances that are not positive, nor 0 as the prior's; returns their number."""
    bad = is_invalid(variance)
    count = int(np.sum(bad))
    if count:
        row = int(np.argwhere(bad)[0][0])
        warn(
            f"{count} of {variance.size} corrected variances at {where} are not positive (first in row {row}, "
            f"{variance.min():.3g} at least): the correction is too large there to be reliable.",
            CorrectionWarning,
        )
    return count


@compiled
def _cross_covariance(posterior: Posterior, X_new: Any, *Phi: Any) -> Any:
    """Cov_q(f_*, f) (latents, m, n), or Cov_q(f_*, z) (latents, m, n, P) where Φ couples the latents."""
    covariance = posterior.cross_covariance(X_new)
    return jnp.einsum("amkn,npk->amnp", covariance, *Phi) if Phi else covariance
