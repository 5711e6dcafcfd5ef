"""The density of the Pólya-Gamma distribution, by its alternating series, in NumPy."""

from math import pi

import numpy as np
from jaxtyping import ArrayLike, Float


def log_density(omega: ArrayLike | list, b: ArrayLike | list, c: ArrayLike | list) -> Float[np.ndarray, "..."]:
    """The log density of PG(b, c) at ``omega`` > 0, for real b > 0, in NumPy; -inf at omega <= 0.

    The alternating series of PG(b, 0) (Polson, Scott and Windle 2013, section 2.3) times exp(-c² omega/2) cosh(c/2)^b.
    Far in the right tail its terms cancel: nan where half the digits are lost (beyond 4.5 for b = 1 and 6.3 for b = 7).
    """
    omega, b, c = (np.asarray(a, dtype=np.float64) for a in np.broadcast_arrays(omega, b, c))
    x = np.where(omega > 0, 4 * omega, 1.0)
    total, largest = alternating_series(x, b)
    with np.errstate(divide="ignore", invalid="ignore"):
        series = np.where(total > 1e-8 * largest, np.log(total), np.nan)
    # PG(b, 0) = J*(b, 0)/4, whose series starts with 2^b times the density of Brownian motion's first passage at b.
    first = b * np.log(2) + np.log(b) - 0.5 * np.log(2 * pi * x**3) - b**2 / (2 * x)
    z = np.abs(c) / 2
    tilt = -(z**2) * x / 2 + b * (z + np.log1p(np.exp(-2 * z)) - np.log(2))
    return np.where(omega > 0, np.log(4) + first + series + tilt, -np.inf)


def alternating_series(x: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The density of J*(b, 0) over the first term of its series, and its largest term.

    Σ_n (-1)^n Γ(n+b)/(Γ(b) n!) (2n+b)/b exp(-2n(n+b)/x). The ratio of successive terms falls with n, so once a term
    is negligible all later ones are.
    """
    shape = np.shape(x)
    x, b = np.ravel(x), np.ravel(np.broadcast_to(b, shape))
    total, largest = np.ones_like(x), np.ones_like(x)
    lanes, n = np.arange(x.size), 0
    # log Γ(n+b)/(Γ(b) n!) recursively: a difference of log gammas loses all digits at b = 1e17.
    log_ratio = np.zeros_like(x)
    while lanes.size:
        n += 1
        h, previous = b[lanes], largest[lanes]
        log_ratio[lanes] += np.log((n - 1 + h) / n)
        log_term = log_ratio[lanes] + np.log1p(2 * n / h) - 2 * n * (n + h) / x[lanes]
        term = np.exp(log_term)
        total[lanes] += -term if n % 2 else term
        largest[lanes] = np.maximum(previous, term)
        lanes = lanes[term > 1e-17]
    return total.reshape(shape), largest.reshape(shape)
