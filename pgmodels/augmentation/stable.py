"""log σ̃ without cancellation or overflow, differentiable everywhere."""

from typing import Any

import jax
import jax.numpy as jnp

from pgmodels.polya_gamma.moments import relative_variance_at_square
from pgmodels.runtime.jit import compiled


@jax.custom_jvp
@compiled
def log_sigmoid_tilde(mean: Any, variance: Any) -> Any:
    """log σ̃+(z) = E z / 2 - log(2 cosh(√(E z^2) / 2)) for z with the given mean and variance."""
    root = jnp.sqrt(variance + mean**2)
    positive = mean > 0
    # For positive means (E z - c) / 2 cancels: it is -variance / (2 (c + E z)).
    shifted = jnp.where(positive, -0.5 * variance / (root + jnp.where(positive, mean, 1.0)), 0.5 * (mean - root))
    return shifted - jnp.log1p(jnp.exp(-root))


@log_sigmoid_tilde.defjvp
def _log_sigmoid_tilde_jvp(primals: Any, tangents: Any) -> Any:
    (mean, variance), (by_mean, by_variance) = primals, tangents
    slope = _half_precision(variance + mean**2)
    return log_sigmoid_tilde(mean, variance), (0.5 - 2.0 * mean * slope) * by_mean - slope * by_variance


@jax.custom_jvp
@compiled
def _half_precision(s: Any) -> Any:
    """The derivative tanh(√s / 2) / (4 √s) of log(2 cosh(√s / 2)): half the mean of Pólya-Gamma's PG(1, √s)."""
    # The smallest root only has to differ from 0: the ratio does not cancel.
    half = 0.5 * jnp.sqrt(jnp.maximum(s, jnp.finfo(s.dtype).tiny))
    return jnp.tanh(half) / (8.0 * half)


@_half_precision.defjvp
@compiled
def _half_precision_jvp(primals: Any, tangents: Any) -> Any:
    (s,), (by_s,) = primals, tangents
    return _half_precision(s), -relative_variance_at_square(0.25 * s) / 64.0 * by_s
