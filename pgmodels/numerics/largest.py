"""The probability that one of several independent Gaussian variables is the largest."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr

# Nodes of the trapezoid rule, and of a sparser rule for variances that do not differ between variables.
NODES, EQUAL_NODES = 129, 49
# The rule reaches this many deviations beyond the mode of the integrand, and beyond each step of its factors.
_REACH, _STEP = 8.0, 7.0
# Newton steps to the mode: an integrand of sharp factors takes most of them, one of equal variances the fewer.
_NEWTON, EQUAL_NEWTON = 16, 8
# Variances are at least this share of the largest one, and at least _TINY.
_SHARE, _TINY = 1e-12, 1e-24
# Below this argument φ(z) / Φ(z) is -z to double precision, and the quotient of their logarithms is not accurate.
_FAR = -1e4


def log_probability_of_largest(mean: Any, variance: Any, chosen: Any, nodes: int = NODES) -> Any:
    """log P(g_k > g_c for all c ≠ k) of independent g ~ N(mean, variance), (..., 1).

    Two variables: in closed form. More: the integral of φ(x) Π_c Φ((m_k + s_k x - m_c) / s_c) by the trapezoid rule
    about its mode, which is accurate relative to the integral. A factor of a variance far below that of g_k is a steep
    step: nodes lie closer together towards the last step, below which the integrand vanishes. The nodes are constants
    for derivatives, which are integrals of the derivatives.

    Parameters
    ----------
    mean : array, shape (..., C)
    variance : array, broadcasts with ``mean``
    chosen : bool array, broadcasts with ``mean``
        True at k, and False elsewhere.
    nodes : int
    """
    # Before the broadcast: XLA would evaluate the maximum of a constant variance of many rows while it compiles.
    floor = jax.lax.stop_gradient(_SHARE * jnp.max(variance, axis=-1, keepdims=True) + _TINY)
    mean, variance, chosen = jnp.broadcast_arrays(mean, jnp.maximum(variance, floor), chosen)
    if mean.shape[-1] == 2:
        margin = jnp.sum(jnp.where(chosen, mean, -mean), axis=-1, keepdims=True)
        return log_ndtr(margin / jnp.sqrt(jnp.sum(variance, axis=-1, keepdims=True)))
    centre, spread = (jnp.sum(jnp.where(chosen, part, 0.0), axis=-1, keepdims=True) for part in (mean, variance))
    # The factors are Φ(gap + ratio x).
    gap, ratio = (centre - mean) / jnp.sqrt(variance), jnp.sqrt(spread / variance)

    def log_integrand(x: Any) -> Any:
        return -0.5 * x**2 + jnp.sum(jnp.where(chosen, 0.0, log_ndtr(gap + ratio * x)), axis=-1, keepdims=True)

    mode, begin, width = jax.lax.stop_gradient(_domain(*jax.lax.stop_gradient((gap, ratio)), chosen))
    # x = begin + width (exp(t) - 1)
    length = jnp.log1p((mode + _REACH - begin) / width)
    top = jax.lax.stop_gradient(log_integrand(mode))

    @jax.checkpoint
    def density(share: Any) -> Any:
        t = share * length
        return jnp.exp(log_integrand(begin + width * jnp.expm1(t)) - top + t)

    # A node at a time, since an array with an axis of nodes is large where this is evaluated at nodes itself.
    shares = jnp.linspace(0.0, 1.0, nodes)
    total, _ = jax.lax.scan(lambda total, share: (total + density(share), None), jnp.zeros_like(top), shares)
    return top + jnp.log(total * width * length / ((nodes - 1) * np.sqrt(2.0 * np.pi)))


def mode_of_largest(gap: Any, ratio: Any, chosen: Any, steps: int = _NEWTON) -> tuple[Any, Any]:
    """The mode of φ(x) Π_c Φ(gap + ratio x) over c ≠ k, up to ``steps`` of Newton's method, and minus the second
    derivative of its logarithm there, (..., 1) each.

    Short of convergence it is on the left of the mode.
    """

    def derivatives(x: Any) -> tuple[Any, Any]:
        z = gap + ratio * x
        near = jnp.maximum(z, _FAR)
        hazard = jnp.where(z < _FAR, -z, jnp.exp(-0.5 * near**2 - log_ndtr(near)) / np.sqrt(2.0 * np.pi))
        bend = jnp.clip(hazard * (hazard + z), 0.0, 1.0)
        slope = jnp.sum(jnp.where(chosen, 0.0, ratio * hazard), axis=-1, keepdims=True) - x
        return slope, 1.0 + jnp.sum(jnp.where(chosen, 0.0, ratio**2 * bend), axis=-1, keepdims=True)

    def newton(_: Any, x: Any) -> Any:
        slope, curvature = derivatives(x)
        # The slope is convex in x: Newton steps from the left of the mode stay on the left, up to rounding.
        return x + jnp.maximum(slope, 0.0) / curvature

    # The mode for one factor alone is on the right of this point, since φ(z) / Φ(z) > -z; and of 0.
    alone = jnp.where(chosen, 0.0, -gap * ratio / (1.0 + ratio**2))
    start = jnp.maximum(jnp.max(alone, axis=-1, keepdims=True), 0.0)
    mode = jax.lax.fori_loop(0, steps, newton, start)
    return mode, derivatives(mode)[1]


def _domain(gap: Any, ratio: Any, chosen: Any) -> tuple[Any, Any, Any]:
    """The mode of the integrand, the left end of its mass, and the width of the sharpest step there, (..., 1) each."""
    mode, _ = mode_of_largest(gap, ratio, chosen)
    ends = jnp.where(chosen, -jnp.inf, jnp.minimum(mode, -gap / ratio) - _STEP / ratio)
    begin = jnp.maximum(jnp.max(ends, axis=-1, keepdims=True), mode - _REACH)
    width = jnp.min(jnp.where(ends >= begin, 4.0 / ratio, 4.0), axis=-1, keepdims=True)
    return mode, begin, width
