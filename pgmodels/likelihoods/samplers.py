"""Exact samplers of the named likelihoods with NumPy's generators; arguments as in ``pgm.likelihood``."""

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


def bernoulli(rng: Generator, y: Any, f: np.ndarray) -> np.ndarray:
    """See Bernoulli."""
    return rng.random(f.shape) < scipy.special.expit(f)


def probit(rng: Generator, y: Any, f: np.ndarray) -> np.ndarray:
    """See Probit."""
    return rng.random(f.shape) < scipy.special.ndtr(f)


def binomial(rng: Generator, y: np.ndarray, f: np.ndarray) -> np.ndarray:
    """See Binomial."""
    return rng.binomial(y[1].astype(np.int64), scipy.special.expit(f))


def negative_binomial(rng: Generator, y: Any, f: np.ndarray, dispersion: np.ndarray) -> np.ndarray:
    """See NegativeBinomial: a Poisson count whose rate is drawn from a gamma distribution."""
    with np.errstate(over="ignore"):
        return poisson(rng, rng.standard_gamma(dispersion) * np.exp(f))


def sigmoid_poisson(rng: Generator, y: Any, f: np.ndarray, rate: np.ndarray) -> np.ndarray:
    """See SigmoidPoisson."""
    return poisson(rng, rate * scipy.special.expit(f))


def logistic_softmax(rng: Generator, y: Any, f: np.ndarray) -> np.ndarray:
    """See LogisticSoftmax: the class whose log σ(f) plus Gumbel noise is largest."""
    return np.argmax(scipy.special.log_expit(f) + rng.gumbel(size=f.shape), axis=0)


def softmax(rng: Generator, y: Any, f: np.ndarray) -> np.ndarray:
    """See Softmax: the class whose latent plus Gumbel noise is largest."""
    return np.argmax(f + rng.gumbel(size=f.shape), axis=0)


def robust_max(rng: Generator, y: Any, f: np.ndarray, error: np.ndarray) -> np.ndarray:
    """See RobustMax: the class of the largest latent, or one of the others, equally likely."""
    others = rng.integers(1, len(f), f.shape[1])
    return (np.argmax(f, axis=0) + np.where(rng.random(f.shape[1]) < error, others, 0)) % len(f)


def multinomial_probit(rng: Generator, y: Any, f: np.ndarray) -> np.ndarray:
    """See MultinomialProbit."""
    return np.argmax(f + rng.standard_normal(f.shape), axis=0)


def stick_breaking(rng: Generator, y: Any, f: np.ndarray) -> np.ndarray:
    """See StickBreaking: the first class at which the stick breaks, else the last."""
    breaks = rng.random(f.shape) < scipy.special.expit(f)
    return np.where(breaks.any(axis=0), breaks.argmax(axis=0), len(f))


def student_t(rng: Generator, y: Any, f: np.ndarray, df: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """See StudentT."""
    return f + scale * rng.standard_t(df)


def laplace(rng: Generator, y: Any, f: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """See Laplace."""
    return rng.laplace(f, scale)
