"""Mean and variance of the Pólya-Gamma distribution."""

from math import pi
from typing import Any

import numpy as np
from jax import Array
from jaxtyping import ArrayLike
from scipy.special import zeta

from pgmodels.polya_gamma.namespace import namespace
from pgmodels.runtime.x64 import as_array

# tanh(u)/u = Σ_k t_k u^(2k), radius of convergence π/2; at |u| < 1/2 the term after these is below 1e-17.
_ORDER = np.arange(1, 19)
_TANH = -2 * (-1.0) ** _ORDER * (2 / pi) ** (2 * _ORDER) * (1 - 4.0**-_ORDER) * zeta(2 * _ORDER)
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
    # tanh(u)/u - sech²(u) = Σ_k -2k t_k u^(2k); sech² from tanh cannot overflow.
    series = _polynomial((-2 * (_ORDER - 1) * _TANH)[1:], inner**2)
    tanh = xp.tanh(outer)
    return xp.where(near, series, (tanh / outer - (1 - tanh) * (1 + tanh)) / outer**2)


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
