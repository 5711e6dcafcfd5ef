"""Mean and variance of the Pólya-Gamma distribution."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import ArrayLike

from pgmodels.polya_gamma.namespace import namespace
from pgmodels.runtime.x64 import as_array

# tanh(u)/u = Σ_k t_k u^(2k), radius of convergence π/2; at |u| < 1/2 the term after these is below 1e-17. By
# tanh' = 1 - tanh²: (2k + 1) t_k = -Σ_i t_i t_(k-1-i).
_TANH = np.ones(18)
for _k in range(1, len(_TANH)):
    _TANH[_k] = -(_TANH[:_k] @ _TANH[_k - 1 :: -1]) / (2 * _k + 1)
# tanh(u)/u - sech²(u) = u² Σ_k r_k u^(2k).
_VARIANCE = (-2 * np.arange(len(_TANH)) * _TANH)[1:]
_SWITCH = 0.5


def mean(b: ArrayLike, c: ArrayLike) -> Array:
    """The mean b tanh(c/2)/(2c), b/4 at c = 0; ``b`` and ``c`` broadcast."""
    return as_array(b) / 4 * relative_mean(as_array(c) / 2)


def variance(b: ArrayLike, c: ArrayLike) -> Array:
    """The variance b (tanh(c/2)/c - sech²(c/2)/2) / (2c²), b/24 at c = 0; ``b`` and ``c`` broadcast."""
    return as_array(b) / 16 * relative_variance(as_array(c) / 2)


def relative_mean(u: Any) -> Any:
    """tanh(u)/u, the mean of J*(1, u), in the array library of ``u``."""
    xp = namespace(u)
    near, inner, outer = _split(u)
    return xp.where(near, _polynomial(_TANH, inner**2), xp.tanh(outer) / outer)


def relative_variance(u: Any) -> Any:
    """(tanh(u)/u - sech²(u))/u², the variance of J*(1, u), in the array library of ``u``."""
    xp = namespace(u)
    near, inner, outer = _split(u)
    return xp.where(near, _polynomial(_VARIANCE, inner**2), _far_variance(outer, xp))


def relative_variance_at_square(s: Array) -> Array:
    """``relative_variance(√s)`` in JAX, differentiable at 0 too."""
    near = s < _SWITCH**2
    outer = jnp.sqrt(jnp.where(near, 1.0, s))
    return jnp.where(near, _polynomial(_VARIANCE, jnp.where(near, s, 0.0)), _far_variance(outer, jnp))


def _far_variance(u: Any, xp: Any) -> Any:
    """``relative_variance`` away from 0; sech² from tanh cannot overflow."""
    tanh = xp.tanh(u)
    return (tanh / u - (1 - tanh) * (1 + tanh)) / u**2


def _split(u: Any) -> tuple[Any, Any, Any]:
    """Whether to use the series, and arguments that are safe for either branch and its derivatives."""
    xp = namespace(u)
    near = xp.abs(u) < _SWITCH
    return near, xp.where(near, u, 0.0), xp.where(near, 1.0, u)


def _polynomial(coefficients: np.ndarray, x: Any) -> Any:
    total = namespace(x).full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient
    return total
