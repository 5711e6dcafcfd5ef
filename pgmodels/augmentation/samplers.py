"""Exact draws of the truncated normal and the inverse Gaussian distribution."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
from jax.scipy.stats import norm


def truncated_normal(key: Any, mean: Any) -> Any:
    """Draws of N(mean, 1) truncated to positive values, exact for means of either sign and any size."""
    # u > 0 is ε > -mean. The upper tail probability is drawn in logs, so that Φ(mean) may underflow.
    log_tail = jsp.log_ndtr(mean) + jnp.log1p(-jax.random.uniform(key, mean.shape, mean.dtype))
    return jnp.maximum(mean - _normal_quantile(log_tail), jnp.finfo(mean.dtype).tiny)


def interval_normal(key: Any, low: Any, high: Any) -> Any:
    """Draws of N(0, 1) truncated to (low, high), either of which may be infinite; exact in both tails."""
    # Reflected so that most of the interval is below zero, where log Φ keeps all digits.
    reflected = low + high > 0
    below, above = jnp.where(reflected, -high, low), jnp.where(reflected, -low, high)
    log_above = jsp.log_ndtr(above)
    # Φ at the draw is Φ(above) - U (Φ(above) - Φ(below)).
    share = -jnp.expm1(jsp.log_ndtr(below) - log_above)
    log_cdf = log_above + jnp.log1p(-jax.random.uniform(key, low.shape, low.dtype) * share)
    drawn = jnp.clip(_normal_quantile(log_cdf), below, above)
    return jnp.where(reflected, -drawn, drawn)


def _normal_quantile(log_p: Any) -> Any:
    """Φ^-1(exp(log_p)): in the tail by Newton's method on log Φ, which is concave, hence monotone convergence."""
    near = jnp.clip(log_p, -30.0, None)
    start = jnp.where(log_p > -30.0, jsp.ndtri(jnp.exp(near)), -jnp.sqrt(-2.0 * log_p))

    def newton(_: int, x: Any) -> Any:
        log_cdf = jsp.log_ndtr(x)
        slope = jnp.exp(norm.logpdf(x) - log_cdf)
        return x - (log_cdf - log_p) / slope

    far = jax.lax.fori_loop(0, 6, newton, jnp.where(log_p > -30.0, -8.0, start))
    return jnp.where(log_p > -30.0, start, far)


def inverse_gaussian(key: Any, mean: Any, shape: Any) -> Any:
    """Draws of the inverse Gaussian distribution (Michael, Schucany and Haas 1976), without cancellation.

    The mean may be infinite, which makes it the Lévy distribution.
    """
    normal_key, uniform_key = jax.random.split(key)
    half = jax.random.normal(normal_key, mean.shape, mean.dtype) ** 2 / (2.0 * shape)
    inverse = 1.0 / mean
    # The smaller root of the quadratic.
    smaller = 1.0 / (inverse + half + jnp.sqrt(half * (half + 2.0 * inverse)))
    accept = jax.random.uniform(uniform_key, mean.shape, mean.dtype) * (1.0 + smaller * inverse) <= 1.0
    return jnp.where(accept, smaller, mean * (mean / smaller))
