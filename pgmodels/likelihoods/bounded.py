"""Likelihoods of numbers that are positive, or between 0 and 1."""

from typing import Any

import numpy as np

from pgmodels.likelihoods import samplers
from pgmodels.likelihoods.expression import Expression
from pgmodels.likelihoods.functions import exp, gamma, log, normal_pdf, sigmoid
from pgmodels.likelihoods.likelihood import likelihood
from pgmodels.likelihoods.supports import Positive, UnitInterval
from pgmodels.parameters.parameter import Parameter

_POSITIVE = Parameter(None, positive=True)


@likelihood(
    support=Positive(),
    num_latents=1,
    mean=lambda y, f, shape: exp(f),
    variance=lambda y, f, shape: exp(2 * f) / shape,
    sampler=lambda rng, y, f, shape: rng.standard_gamma(shape) / shape * np.exp(f),
)
def Gamma(y: Expression, f: Expression, shape: Any = _POSITIVE) -> Expression:
    """A positive number y from a gamma distribution with mean exp(f) and variance mean² / shape.

    It has no augmentation: ``gaussian_vi``, ``fit``, ``svi``, ``nuts`` and ``integrate`` take it.

    Parameters
    ----------
    shape : float, Fixed, Parameter or NumPyro distribution
        Positive; 1 is the exponential distribution.
    """
    return exp(shape * (log(shape) + log(y) - f) - shape * y * exp(-f)) / (y * gamma(shape))


@likelihood(
    support=Positive(),
    num_latents=1,
    mean=lambda y, f, scale: exp(f + scale**2 / 2),
    variance=lambda y, f, scale: exp(2 * f + 2 * scale**2) * (1 - exp(-(scale**2))),
    sampler=lambda rng, y, f, scale: np.exp(rng.normal(f, scale)),
)
def LogNormal(y: Expression, f: Expression, scale: Any = _POSITIVE) -> Expression:
    """log y = f + Gaussian noise, for positive y. All engines take it.

    Parameters
    ----------
    scale : float, Fixed, Parameter or NumPyro distribution
        Standard deviation of the noise of log y, positive.
    """
    return normal_pdf(log(y), f, scale) / y


@likelihood(
    support=UnitInterval(),
    num_latents=1,
    mean=lambda y, f, precision: sigmoid(f),
    variance=lambda y, f, precision: sigmoid(f) * sigmoid(-f) / (1 + precision),
    sampler=samplers.beta,
)
def Beta(y: Expression, f: Expression, precision: Any = _POSITIVE) -> Expression:
    """A number y between 0 and 1 from a beta distribution with mean σ(f).

    It has no augmentation: ``gaussian_vi``, ``fit``, ``svi``, ``nuts`` and ``integrate`` take it.

    Parameters
    ----------
    precision : float, Fixed, Parameter or NumPyro distribution
        Sum of the distribution's parameters, precision · σ(f) and precision · σ(-f), positive; larger values give less
        variance.

    References
    ----------
    Ferrari and Cribari-Neto 2004.
    """
    up, down = precision * sigmoid(f), precision * sigmoid(-f)
    constant = gamma(precision) / (gamma(up) * gamma(down))
    return constant * exp(up * log(y) + down * log(1 - y)) / (y * (1 - y))
