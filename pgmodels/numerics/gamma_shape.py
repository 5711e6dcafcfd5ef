"""The shape of a Gamma variable that is independent of its Poisson counts under q, and its share of a bound."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma, gammaln

# From this shape on, differences of nearly equal functions of it are replaced by their series, to 1e-14.
_LARGE = 16.0
# Newton steps for the shape; quadratic, and monotone from below (see ``gamma_shape``): 7 are needed at p = 0.01.
_STEPS = 8


@jax.custom_jvp
def factorised_share(p: Any, log_r: Any) -> Any:
    """G(p, t) = (α - p) (1 - ψ(α)) + log Γ(α) - log Γ(p) at α = ``gamma_shape``; t = 1 - r. Zero for p = 0.

    G is at most -p log r, its value for the joint law of the auxiliary variables.
    """
    positive = jnp.where(p > 0, p, 1.0)
    alpha = gamma_shape(positive, log_r)
    small = jnp.minimum(alpha, _LARGE)
    direct = (small - positive) * (1.0 - digamma(small)) + gammaln(small)
    # log α - ψ(α), and log Γ(α) less Stirling's formula, by their asymptotic series.
    x = 1.0 / jnp.maximum(alpha, _LARGE)
    excess = x * (1 / 2 + x * (1 / 12 + x**2 * (-1 / 120 + x**2 * (1 / 252 - x**2 / 240))))
    remainder = x * (1 / 12 + x**2 * (-1 / 360 + x**2 * (1 / 1260 - x**2 / 1680)))
    logarithm = -jnp.log(x)
    series = (positive - 0.5) * logarithm - positive + (1.0 / x - positive) * excess + 0.5 * np.log(2 * np.pi)
    value = jnp.where(alpha < _LARGE, direct, series + remainder) - gammaln(positive)
    return jnp.where(p > 0, value, 0.0)


@factorised_share.defjvp
def _(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    # G is a maximum over α: only its explicit dependence counts.
    (p, log_r), (dp, dlog_r) = primals, tangents
    positive = jnp.where(p > 0, p, 1.0)
    alpha = gamma_shape(positive, log_r)
    by_p = digamma(alpha) - digamma(positive)
    by_log_r = -jnp.exp(log_r) * _exp_digamma(alpha)
    return factorised_share(p, log_r), jnp.where(p > 0, by_p * dp + by_log_r * dlog_r, 0.0)


@jax.custom_jvp
def gamma_shape(p: Any, log_r: Any) -> Any:
    """The shape α of q(λ): the root of α = p + t exp ψ(α), t = 1 - r, for p > 0.

    α - p - t exp ψ(α) increases and is concave, so that Newton's method from below the root stays below it; and
    exp ψ(α) > α - 1/2, so that the root is at least (p - t / 2) / r.
    """
    r = jnp.exp(log_r)
    alpha = jnp.maximum(p, (p + 0.5 * jnp.expm1(log_r)) / r)

    def step(_: int, alpha: Any) -> Any:
        below, slope = _below(alpha)
        return alpha - (below + r * (alpha - below) - p) / (slope + r * (1.0 - slope))

    return jax.lax.fori_loop(0, _STEPS, step, alpha)


@gamma_shape.defjvp
def _(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    (p, log_r), (dp, dlog_r) = primals, tangents
    r, alpha = jnp.exp(log_r), gamma_shape(p, log_r)
    slope = _below(alpha)[1]
    return alpha, (dp - r * _exp_digamma(alpha) * dlog_r) / (slope + r * (1.0 - slope))


def _below(alpha: Any) -> tuple[Any, Any]:
    """α - exp ψ(α) and its derivative; tends to 1/2 and 0."""
    return jax.jvp(_difference, (alpha,), (jnp.ones_like(alpha),))


def _exp_digamma(alpha: Any) -> Any:
    return jnp.where(alpha < _LARGE, jnp.exp(digamma(jnp.minimum(alpha, _LARGE))), alpha - _difference(alpha))


def _difference(alpha: Any) -> Any:
    small = jnp.minimum(alpha, _LARGE)
    u = jnp.maximum(alpha, _LARGE) - 0.5
    x = 1.0 / u**2
    # ψ(u + 1/2) - log u.
    series = x * (1 / 24 + x * (-7 / 960 + x * (31 / 8064 - x * 127 / 30720)))
    return jnp.where(alpha < _LARGE, small - jnp.exp(digamma(small)), 0.5 - u * jnp.expm1(series))
