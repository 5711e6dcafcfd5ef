"""log σ̃ without cancellation or overflow, differentiable twice everywhere."""

import math
from typing import Any

import jax.numpy as jnp
from scipy.special import bernoulli

_TERMS = 14
_BERNOULLI = bernoulli(2 * _TERMS)
# log cosh(x) = Σ_k 2^(2k) (2^(2k) - 1) B_2k x^(2k) / (2k (2k)!), here in powers of s = (2x)^2.
_LOG_COSH = [
    (2.0 ** (2 * k) - 1.0) * float(_BERNOULLI[2 * k]) / (2 * k * math.factorial(2 * k)) for k in range(1, _TERMS + 1)
]
# Below this s = c^2 the series replaces the closed form: its 15th term is below 1e-18 there, relative to the first.
_SERIES_BELOW = 0.5


def log_two_cosh_half(s: Any) -> Any:
    """log(2 cosh(√s / 2)) for s >= 0."""
    small = s < _SERIES_BELOW
    near = jnp.where(small, s, 0.0)
    series = jnp.zeros_like(near)
    for coefficient in reversed(_LOG_COSH):
        series = near * (coefficient + series)
    root = jnp.sqrt(jnp.where(small, 1.0, s))
    return jnp.where(small, math.log(2.0) + series, 0.5 * root + jnp.log1p(jnp.exp(-root)))


def log_sigmoid_tilde(mean: Any, variance: Any) -> Any:
    """log σ̃+(z) = E z / 2 - log(2 cosh(√(E z^2) / 2)) for z with the given mean and variance."""
    s = variance + mean**2
    small = s < _SERIES_BELOW
    root = jnp.sqrt(jnp.where(small, 1.0, s))
    positive = mean > 0
    # For positive means (E z - c) / 2 cancels: it is -variance / (2 (c + E z)).
    shifted = jnp.where(positive, -0.5 * variance / (root + jnp.where(positive, mean, 0.0)), 0.5 * (mean - root))
    far = shifted - jnp.log1p(jnp.exp(-root))
    return jnp.where(small, 0.5 * mean - log_two_cosh_half(jnp.where(small, s, 0.0)), far)
