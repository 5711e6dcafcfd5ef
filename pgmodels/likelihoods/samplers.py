"""Exact samplers of named likelihoods in several steps, with NumPy's generators; arguments as in ``pgm.likelihood``."""

from typing import Any

import numpy as np
import scipy

# Above this rate the Poisson distribution is normal to 1e-8 of its deviation; NumPy's sampler fails above 9e18.
_LARGE_RATE = 1e15

Generator = np.random.Generator


def poisson(rng: Generator, rate: np.ndarray) -> np.ndarray:
    """Poisson counts of any rate."""
    count = rng.poisson(np.minimum(rate, _LARGE_RATE)).astype(np.float64)
    large = rate > _LARGE_RATE
    if large.any():
        count[large] = np.round(rate[large] + np.sqrt(rate[large]) * rng.standard_normal(int(large.sum())))
    return count


def negative_binomial(rng: Generator, y: Any, f: np.ndarray, dispersion: np.ndarray) -> np.ndarray:
    """Counts of ``NegativeBinomial``: a Poisson count whose rate is drawn from a gamma distribution."""
    with np.errstate(over="ignore"):
        return poisson(rng, rng.standard_gamma(dispersion) * np.exp(f))


def robust_max(rng: Generator, y: Any, f: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Classes of ``RobustMax``: the class of the largest latent, or one of the others, equally likely."""
    others = rng.integers(1, len(f), f.shape[1])
    return (np.argmax(f, axis=0) + np.where(rng.random(f.shape[1]) < error, others, 0)) % len(f)


def stick_breaking(rng: Generator, y: Any, f: np.ndarray) -> np.ndarray:
    """Classes of ``StickBreaking``: the first class at which the stick breaks, else the last."""
    breaks = rng.random(f.shape) < scipy.special.expit(f)
    return np.where(breaks.any(axis=0), breaks.argmax(axis=0), len(f))


def log_poisson(rng: Generator, y: Any, f: np.ndarray) -> np.ndarray:
    """Counts of ``Poisson``."""
    with np.errstate(over="ignore"):
        return poisson(rng, np.exp(f))


def negative_binomial_2(rng: Generator, y: Any, f: np.ndarray, dispersion: np.ndarray) -> np.ndarray:
    """Counts of ``NegativeBinomial2``."""
    return negative_binomial(rng, y, f - np.log(dispersion), dispersion)


def zero_inflated_poisson(rng: Generator, y: Any, f: np.ndarray) -> np.ndarray:
    """Counts of ``ZeroInflatedPoisson``."""
    return np.where(rng.random(f[1].shape) < scipy.special.expit(f[1]), 0.0, log_poisson(rng, y, f[0]))


def zero_inflated_negative_binomial(rng: Generator, y: Any, f: np.ndarray, dispersion: np.ndarray) -> np.ndarray:
    """Counts of ``ZeroInflatedNegativeBinomial``."""
    return np.where(
        rng.random(f[1].shape) < scipy.special.expit(f[1]), 0.0, negative_binomial_2(rng, y, f[0], dispersion)
    )


def hurdle_poisson(rng: Generator, y: Any, f: np.ndarray) -> np.ndarray:
    """Counts of ``HurdlePoisson``: the first event of a Poisson process, given that there is one, and later ones."""
    rate = np.exp(f[0])
    first = -np.log1p(rng.random(rate.shape) * np.expm1(-rate))
    count = 1.0 + poisson(rng, np.maximum(rate - first, 0.0))
    return np.where(rng.random(rate.shape) < scipy.special.expit(f[1]), 0.0, count)


def hurdle_negative_binomial(rng: Generator, y: Any, f: np.ndarray, dispersion: np.ndarray) -> np.ndarray:
    """Counts of ``HurdleNegativeBinomial``: ``hurdle_poisson`` with a gamma-distributed rate given the first event."""
    scale = np.exp(f[0]) / dispersion
    # The first event is later than t with probability (1 + scale t)^-dispersion.
    none = np.expm1(-dispersion * np.log1p(scale))
    first = np.expm1(-np.log1p(rng.random(scale.shape) * none) / dispersion)
    rest = rng.standard_gamma(dispersion + 1.0) * np.maximum(scale - first, 0.0) / (1.0 + first)
    return np.where(rng.random(scale.shape) < scipy.special.expit(f[1]), 0.0, 1.0 + poisson(rng, rest))


def beta_binomial(rng: Generator, y: np.ndarray, f: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """Successes of ``BetaBinomial``."""
    return rng.binomial(y[1].astype(np.int64), _beta(rng, f, precision))


def beta(rng: Generator, y: Any, f: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """Shares of ``Beta``; draws that round to 0 or 1 are the numbers next to these."""
    return np.clip(_beta(rng, f, precision), np.finfo(float).tiny, np.nextafter(1.0, 0.0))


def _beta(rng: Generator, f: np.ndarray, precision: np.ndarray) -> np.ndarray:
    smallest = np.finfo(float).tiny
    return rng.beta(
        np.maximum(precision * scipy.special.expit(f), smallest),
        np.maximum(precision * scipy.special.expit(-f), smallest),
    )
