"""The exact law of PG(b, c) for tests of draws: cumulants, distribution functions, a check."""

from functools import cache

import jax
import numpy as np
from scipy.integrate import cumulative_simpson
from scipy.stats import kstat, kstest

from pgmodels import polya_gamma

SHAPES = (0.3, 1.0, 1.7, 2.0, 5.5, 30.0, 400.0, 1e5)
TILTS = (0.0, 0.8, -3.0, 12.0, 40.0, 300.0)


def draw_all(backend, size, seed):
    """Draws at every shape and tilt, keyed by both; one compilation."""
    b = np.repeat(np.array(SHAPES)[:, None], size, 1)
    keys = jax.random.split(jax.random.key(seed), len(TILTS))
    drawn = [np.asarray(polya_gamma.draw(key, b, c, backend)) for key, c in zip(keys, TILTS, strict=True)]
    return {(b, c): drawn[j][i] for i, b in enumerate(SHAPES) for j, c in enumerate(TILTS)}


@cache
def cumulants(b, c, count):
    """From PG(b, c) = Σ_k Gamma(b, 1) s_k, s_k = 1/(2π² (k - 1/2)² + c²/2): κ_n = b (n-1)! Σ_k s_k^n."""
    k = np.arange(1, 200_001) - 0.5
    s = 1 / (2 * np.pi**2 * k**2 + c**2 / 2)
    # The remainder of the sum of s is an integral, up to 1e-16.
    sums = [s.sum() + 1 / (2 * np.pi**2 * 200_000), *((s**n).sum() for n in range(2, count + 1))]
    return b * np.array([1, *np.cumprod(np.arange(1, count))]) * sums


def series_cdf(b, c):
    """Increasing points and the distribution function there, by integrating ``log_density``."""
    mean, variance = cumulants(b, c, 2)
    spread = np.sqrt(variance) / mean
    log_omega = np.log(mean) + np.linspace(-12 * spread, 8 * min(spread, 0.5), 20_001)
    density = np.nan_to_num(np.exp(polya_gamma.log_density(np.exp(log_omega), b, c) + log_omega))
    return np.exp(log_omega), cumulative_simpson(density, x=log_omega, initial=0)


def transform_cdf(b, c):
    """The same by inversion: complex arithmetic on E exp(it(ω - mean)), with a period of 60 standard deviations."""
    mean, variance = cumulants(b, c, 2)
    step = 2 * np.pi / (60 * np.sqrt(variance))
    t = step * np.arange(1, 600)
    logs = b * (_log_cosh(c / 2 + 0j) - _log_cosh(np.sqrt(c**2 / 4 - 0.5j * t))) - 1j * t * mean
    offsets = np.sqrt(variance) * np.linspace(-10, 14, 2401)
    waves = np.exp(logs - 1j * np.outer(offsets, t))
    # ∫ exp(-its) ds from the lower end of the period, which is 30 deviations below the mean.
    lower = np.exp(logs + 30j * t * np.sqrt(variance))
    values = (offsets + 30 * np.sqrt(variance)) + 2 * ((waves - lower) / (-1j * t)).real.sum(1)
    return mean + offsets, step / (2 * np.pi) * values


def _log_cosh(u):
    return u + np.log1p(np.exp(-2 * u)) - np.log(2)


@cache
def exact_cdf(b, c):
    """By inversion where the alternating series loses its digits, else by the series; the result is checked."""
    omega, cdf = (transform_cdf if b * np.exp(-abs(c)) > 1 and b > 20 else series_cdf)(b, c)
    # The part lost by the series at b = 5.5 has a mass of 3e-7.
    assert abs(cdf[0]) < 1e-9
    assert abs(cdf[-1] - 1) < 1e-6
    return omega, cdf


def check_law(draws, b, c):
    """Draws against exact cumulants and the exact distribution function.

    False alarms: 1e-5 for Kolmogorov and Smirnov, 7e-6 each for the mean and the variance at 4.5 standard errors. The
    third and the fourth cumulant have skew estimates: of 9,600 right samples of 10,000, none was 6 and one 10.8
    standard errors off.
    """
    kappa = cumulants(b, c, 8)
    scale = np.sqrt(kappa[1])
    # Standardised: the mean is 0, and sums of fourth powers keep their digits.
    standard, kappa = (draws - kappa[0]) / scale, np.array([0, *(kappa[1:] / scale ** np.arange(2, 9))])
    errors = np.sqrt(np.array([1, *_kstat_variances(kappa)]) / draws.size)
    for n, limit in ((1, 4.5), (2, 4.5), (3, 7), (4, 14)):
        error = abs(kstat(standard, n) - kappa[n - 1]) / errors[n - 1]
        assert error < limit, f"cumulant {n} is {error:.1f} standard errors off"
    omega, cdf = exact_cdf(b, c)
    result = kstest(draws, lambda x: np.interp(x, omega, cdf))
    assert result.pvalue > 1e-5, f"Kolmogorov-Smirnov p = {result.pvalue:.1e}"


def _kstat_variances(kappa):
    """The variances of k-statistics 2, 3 and 4, times the size of the sample (Kendall and Stuart, 12.16)."""
    _, k2, k3, k4, k5, k6, _, k8 = kappa
    third = k6 + 9 * k2 * k4 + 9 * k3**2 + 6 * k2**3
    fourth = k8 + 16 * k2 * k6 + 48 * k3 * k5 + 34 * k4**2 + 72 * k2**2 * k4 + 144 * k2 * k3**2 + 24 * k2**4
    return k4 + 2 * k2**2, third, fourth
