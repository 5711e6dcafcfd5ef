"""Exact draws of truncated normal and inverse Gaussian distributions."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
from jax.scipy.stats import norm

from pgmodels.numerics.largest import EQUAL_NEWTON, mode_of_largest
from pgmodels.polya_gamma.tangent_hat import tangent_hat


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


def normals_of_largest(key: Any, mean: Any, chosen: Any) -> Any:
    """Draws of independent N(mean, 1), (..., C), given that the one ``chosen``, (..., C), is the largest.

    Exact for means of any size, nan where they are not finite: first the largest, then the others truncated below it.
    """
    largest_key, others_key = jax.random.split(key)
    largest = _largest(largest_key, mean, chosen)
    others = interval_normal(others_key, jnp.full_like(mean, -jnp.inf), largest - mean)
    return jnp.where(chosen, largest, mean + others)


def _largest(key: Any, mean: Any, chosen: Any) -> Any:
    """The largest x + mean_k of the above, (..., 1), of density φ(x) Π_c Φ(x + mean_k - mean_c) over c ≠ k.

    By rejection from a hat of three tangents, which lies above it since it is log-concave. More than 4 of 5 proposals
    are accepted.
    """
    centre = jnp.sum(jnp.where(chosen, mean, 0.0), axis=-1, keepdims=True)
    gap = centre - mean

    def log_density(x: Any) -> Any:
        return -0.5 * x**2 + jnp.sum(jnp.where(chosen, 0.0, jsp.log_ndtr(gap + x)), axis=-1, keepdims=True)

    mode, curvature = mode_of_largest(gap, 1.0, chosen, EQUAL_NEWTON)
    # Tangents of a normal density at ±√2 deviations and at its mode have the least mass.
    reach = jnp.sqrt(2.0 / curvature)
    top, slope = jax.jvp(log_density, (mode,), (jnp.ones_like(mode),))
    # The slope falls by at least 1 per unit: it is negative at the last point also where Newton's method is not done.
    points = jnp.stack([mode - reach, mode, mode + jnp.maximum(slope, 0.0) + reach])
    heights, slopes = jax.jvp(log_density, (points,), (jnp.ones_like(points),))
    hat = tangent_hat(points, heights - top, slopes)

    def propose(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        i, active, drawn = state
        uniforms = jax.random.uniform(jax.random.fold_in(key, i), (2, *mode.shape), mode.dtype)
        x, log_hat = hat.propose(uniforms[0])
        accepted = active & (jnp.log1p(-uniforms[1]) + log_hat < log_density(x) - top)
        return i + 1, active & ~accepted, jnp.where(accepted, x, drawn)

    # A hat without a finite mass would never be accepted.
    active = jnp.isfinite(hat.masses.sum(0))
    start = 0, active, jnp.full_like(mode, jnp.nan)
    return centre + jax.lax.while_loop(lambda state: jnp.any(state[1]), propose, start)[2]


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
