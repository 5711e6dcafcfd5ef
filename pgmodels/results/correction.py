"""Marginals with a correction: perturbative (math: section 5) or by linear response (5b)."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pgmodels.latent.coupled import CoupledPosterior
from pgmodels.latent.joint import JointPosterior
from pgmodels.latent.rows import filled_size, resize_rows, resize_square, resize_zeros
from pgmodels.latent.sequential import ASCENT_OPTIONS
from pgmodels.model import Model
from pgmodels.precision import as_array
from pgmodels.warning import warn


class CorrectionWarning(UserWarning):
    """A corrected variance is not positive: the expansion does not reach there."""


def correct_marginals(
    mean: Any, variance: Any, cross: Any, shift: Any, curvature: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Corrected mean and variance (m, latents), from Cov_q(f_*, f) (latents, m, n) (math: section 5)."""
    cross, shift, curvature = (np.asarray(part) for part in (cross, shift, curvature))
    moved = 0.5 * np.einsum("lmn,nl->ml", cross, shift)
    quadratic = np.einsum("lmn,nl->ml", cross**2, curvature)
    return np.asarray(mean) + moved, np.asarray(variance) + 0.5 * quadratic - moved**2


def correct_coupled(
    mean: Any, covariance: Any, cross: Any, shift: Any, curvature: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Corrected mean (m, L) and covariance (m, L, L) of each row's latents, from Cov_q(f_*, z) (L, m, n, P)."""
    moved, quadratic = (np.asarray(part) for part in _coupled_terms(cross, shift, curvature))
    outer = moved[:, :, None] * moved[:, None, :]
    return np.asarray(mean) + moved, np.asarray(covariance) + 0.5 * quadratic - outer


@partial(jax.jit, compiler_options=ASCENT_OPTIONS)
def _coupled_terms(cross: Any, shift: Any, curvature: Any) -> tuple[Any, Any]:
    moved = 0.5 * jnp.einsum("amnp,np->ma", cross, shift)
    return moved, jnp.einsum("amnp,npq,bmnq->mab", cross, curvature, cross)


def respond_at(
    posterior: JointPosterior | CoupledPosterior,
    X_new: Any,
    moments: tuple[np.ndarray, np.ndarray],
    shift: np.ndarray,
    T: np.ndarray,
    Phi: tuple[Any, ...],
) -> tuple[np.ndarray, np.ndarray]:
    """Means at new inputs, and covariances of each row's latents by linear response (m, L, L), from q's moments."""
    mean, spread = moments
    V = spread if spread.ndim == 3 else np.einsum("ma,ab->mab", spread, np.eye(spread.shape[1]))
    m, (filled, inputs, mixed) = len(mean), _filled(posterior, X_new, Phi)
    count = len(shift) // posterior.prior.num_rows * filled.prior.num_rows
    moved, added = _added(filled, inputs, resize_zeros(shift, count), resize_square(T, count, 0.0), *mixed)
    return mean + np.asarray(moved)[:m], V + np.asarray(added)[:m]


def _filled(
    posterior: JointPosterior | CoupledPosterior, X_new: Any, Phi: tuple[Any, ...]
) -> tuple[JointPosterior | CoupledPosterior, np.ndarray, list[np.ndarray]]:
    """A posterior, new inputs and Φ, each with its rows filled up."""
    filled = posterior.filled()
    mixed = [resize_rows(part, filled.prior.num_rows) for part in Phi]
    return filled, resize_rows(X_new, filled_size(len(X_new))), mixed


@partial(jax.jit, compiler_options=ASCENT_OPTIONS)
def _added(posterior: JointPosterior | CoupledPosterior, X_new: Any, shift: Any, T: Any, *Phi: Any) -> tuple[Any, Any]:
    return added_moments(posterior.cross_covariance(X_new), shift, T, *Phi)


def added_moments(cross: Any, shift: Any, T: Any, *Phi: Any) -> tuple[Any, Any]:
    """What linear response adds to the mean, ½ V_*z shift (m, L), and to the covariance, V_*z T V_z* (m, L, L).

    ``cross`` is Cov_q(f_*, f), (L, m, n) or (L, m, L, n); ``shift`` and T are over the predictors z at the data.
    """
    flat = _with_predictors(cross, *Phi)
    return 0.5 * (flat @ shift).T, jnp.einsum("amN,bmN->mab", flat @ T, flat)


def _with_predictors(cross: Any, *Phi: Any) -> Any:
    """V_*z (L, m, N) from Cov_q(f_*, f)."""
    size = len(cross)
    if cross.ndim == 3:
        full = jnp.zeros((*cross.shape, size), cross.dtype)
        own = jnp.arange(size)
        cross = full.at[own, :, :, own].set(cross)
    else:
        cross = jnp.einsum("amkn,npk->amnp", cross, *Phi) if Phi else jnp.moveaxis(cross, 2, 3)
    return cross.reshape(size, cross.shape[1], -1)


def joint_covariance(posterior: JointPosterior | CoupledPosterior, X_new: Any, T: Any, *Phi: Any) -> Any:
    """The covariance of the latents at new inputs by linear response, (L, m, L, m)."""
    V = posterior.covariance_at(X_new)
    if V.ndim == 3:
        own, (size, rows, _) = jnp.arange(len(V)), V.shape
        V = jnp.zeros((size, rows, size, rows), V.dtype).at[own, :, own].set(V)
    flat = _with_predictors(posterior.cross_covariance(X_new), *Phi)
    return V + jnp.einsum("amN,bkN->ambk", flat @ T, flat)


def correct_at(
    posterior: JointPosterior | CoupledPosterior,
    X_new: Any,
    moments: tuple[np.ndarray, np.ndarray],
    expansion: tuple[np.ndarray, np.ndarray],
    Phi: tuple[Any, ...],
) -> tuple[np.ndarray, np.ndarray]:
    """The correction of q's moments at new inputs, variances or, where latents are coupled, covariances.

    ``expansion`` holds E[∂Q/∂f] and E[∂²Q/∂f²] at the data, ``Phi`` what ``mixing`` gives.
    """
    m, (filled, inputs, mixed) = len(moments[0]), _filled(posterior, X_new, Phi)
    cross = _cross_covariance(filled, inputs, *mixed)
    corrected = correct_marginals if moments[1].ndim == 2 else correct_coupled
    shift, curvature = (resize_zeros(part, filled.prior.num_rows) for part in expansion)
    q_mean, q_spread = (resize_rows(part, len(inputs)) for part in moments)
    mean, spread = corrected(q_mean, q_spread, cross, shift, curvature)
    return mean[:m], spread[:m]


def mixing(model: Model, y: np.ndarray) -> tuple[Any, ...]:
    """Φ at the data, nothing where no factor combines latents."""
    predictors = model.predictors
    return () if predictors is None else (predictors.matrix(as_array(y), model.parameters),)


def warn_nonpositive(variance: np.ndarray, where: str) -> int:
    """Warn of non-positive corrected variances; returns how many there are."""
    count = int(np.sum(variance <= 0))
    if count:
        row = int(np.argwhere(variance <= 0)[0][0])
        warn(
            f"{count} of {variance.size} corrected variances at {where} are not positive (first in row {row}, "
            f"{variance.min():.3g} at least): the correction is too large there to be trusted.",
            CorrectionWarning,
        )
    return count


@partial(jax.jit, compiler_options=ASCENT_OPTIONS)
def _cross_covariance(posterior: JointPosterior | CoupledPosterior, X_new: Any, *Phi: Any) -> Any:
    """Cov_q(f_*, f) (latents, m, n), or Cov_q(f_*, z) (latents, m, n, P) where Φ couples the latents."""
    covariance = posterior.cross_covariance(X_new)
    return jnp.einsum("amkn,npk->amnp", covariance, *Phi) if Phi else covariance
