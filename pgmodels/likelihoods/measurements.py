"""Likelihoods of measurements with Gaussian noise: of known size, and of values that may be censored."""

from typing import Any

import numpy as np

from pgmodels.likelihoods.censoring import IntervalCensored
from pgmodels.likelihoods.expression import Expression
from pgmodels.likelihoods.functions import normal_cdf, normal_pdf
from pgmodels.likelihoods.likelihood import likelihood
from pgmodels.likelihoods.supports import Given, Positive, Real
from pgmodels.parameters.parameter import Parameter

_POSITIVE = Parameter(None, positive=True)


@likelihood(support=Given(Real(), Positive()), num_latents=1, mean=lambda y, f: f, variance=lambda y, f: y[1] ** 2)
def KnownNoise(y: Any, f: Expression) -> Expression:
    """y = (value, noise): the value is f + Gaussian noise whose standard deviation is known for each datum.

    All engines take it.
    """
    return normal_pdf(y[0], f, y[1])


@likelihood(
    support=IntervalCensored(-np.inf),
    num_latents=1,
    mean=lambda y, f, scale: f,
    variance=lambda y, f, scale: scale**2,
    sampler=lambda rng, y, f, scale: rng.normal(f, scale),
)
def CensoredGaussian(y: Any, f: Expression, scale: Any = _POSITIVE) -> Expression:
    """y = (value, code, second value): f + Gaussian noise, which may be censored, see ``IntervalCensored``.

    All engines take it. Predictions are of the value itself, not of a record.

    Parameters
    ----------
    scale : float, Fixed, Parameter or NumPyro distribution
        Standard deviation of the noise, in units of y, positive.
    """
    above, event, below, between = ((y[1] == code) for code in range(4))
    z, end = (y[0] - f) / scale, (y[0] + between * (y[2] - y[0]) + (1 - between) - f) / scale
    beyond = normal_cdf(-z) ** above * normal_cdf(z) ** below
    return normal_pdf(y[0], f, scale) ** event * beyond * (normal_cdf(end) - normal_cdf(z)) ** between
