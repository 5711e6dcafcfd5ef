"""Likelihoods of counts by their logarithmic mean, with excess zeros, and of overdispersed trials."""

from typing import Any

from pgmodels.likelihoods import samplers
from pgmodels.likelihoods.expression import Expression
from pgmodels.likelihoods.functions import exp, gamma, log, sigmoid
from pgmodels.likelihoods.likelihood import likelihood
from pgmodels.likelihoods.named import NegativeBinomial
from pgmodels.likelihoods.supports import Counts, SuccessesOfTrials
from pgmodels.parameters.parameter import Parameter

_POSITIVE = Parameter(None, positive=True)


def _poisson(y: Any, f: Any) -> Expression:
    return exp(y * f - exp(f)) / gamma(y + 1)


def _negative_binomial(y: Any, f: Any, dispersion: Any) -> Expression:
    return NegativeBinomial.function(y, f - log(dispersion), dispersion)


def _no_zero(f: Any, dispersion: Any = None) -> Expression:
    """The probability that a count is not 0."""
    return 1 - (exp(-exp(f)) if dispersion is None else sigmoid(log(dispersion) - f) ** dispersion)


@likelihood(
    support=Counts(),
    num_latents=1,
    mean=lambda y, f: exp(f),
    variance=lambda y, f: exp(f),
    sampler=samplers.log_poisson,
)
def Poisson(y: Expression, f: Expression) -> Expression:
    """A count y with mean exp(f).

    It has no augmentation: ``gaussian_vi``, ``fit``, ``svi``, ``nuts`` and ``integrate`` take it.
    """
    return _poisson(y, f)


@likelihood(
    support=Counts(),
    num_latents=1,
    mean=lambda y, f, dispersion: exp(f),
    variance=lambda y, f, dispersion: exp(f) * (1 + exp(f) / dispersion),
    sampler=samplers.negative_binomial_2,
)
def NegativeBinomial2(y: Expression, f: Expression, dispersion: Any = _POSITIVE) -> Expression:
    """A count y with mean exp(f) and variance mean + mean² / dispersion. All engines take it.

    It is ``NegativeBinomial`` with another latent, that of NumPyro's distribution of this name.

    Parameters
    ----------
    dispersion : float, Fixed, Parameter or NumPyro distribution
        Positive; smaller values give more variance.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X, y = np.linspace(0.0, 3.0, 20)[:, None], np.tile([1, 2, 4, 9], 5)
    >>> vi = pgm.gaussian_vi(pgm.Model(pgm.NegativeBinomial2(dispersion=2.0), pgm.GP(pgm.Constant(4.0))), X, y)
    >>> vi.predict([[1.5]]).mean.round()
    array([4.])
    """
    return _negative_binomial(y, f, dispersion)


@likelihood(
    support=Counts(),
    num_latents=2,
    mean=lambda y, f: sigmoid(-f[1]) * exp(f[0]),
    variance=lambda y, f: sigmoid(-f[1]) * exp(f[0]) * (1 + sigmoid(f[1]) * exp(f[0])),
    sampler=samplers.zero_inflated_poisson,
)
def ZeroInflatedPoisson(y: Expression, f: Any) -> Expression:
    """A count y: 0 with probability σ(f[1]), otherwise Poisson with mean exp(f[0]).

    It has no augmentation: ``gaussian_vi``, ``fit``, ``svi``, ``nuts`` and ``integrate`` take it.
    """
    return sigmoid(f[1]) * (y == 0) + sigmoid(-f[1]) * _poisson(y, f[0])


@likelihood(
    support=Counts(),
    num_latents=2,
    mean=lambda y, f, dispersion: sigmoid(-f[1]) * exp(f[0]),
    variance=lambda y, f, dispersion: (
        sigmoid(-f[1]) * exp(f[0]) * (1 + exp(f[0]) / dispersion + sigmoid(f[1]) * exp(f[0]))
    ),
    sampler=samplers.zero_inflated_negative_binomial,
)
def ZeroInflatedNegativeBinomial(y: Expression, f: Any, dispersion: Any = _POSITIVE) -> Expression:
    """A count y: 0 with probability σ(f[1]), otherwise as ``NegativeBinomial2`` of f[0]. All engines take it.

    Parameters
    ----------
    dispersion : float, Fixed, Parameter or NumPyro distribution
        Positive; smaller values give more variance.
    """
    return sigmoid(f[1]) * (y == 0) + sigmoid(-f[1]) * _negative_binomial(y, f[0], dispersion)


def _hurdle(y: Any, f: Any, count: Expression, no_zero: Expression) -> Expression:
    return sigmoid(f[1]) ** (y == 0) * (sigmoid(-f[1]) * count / no_zero) ** (y > 0)


@likelihood(
    support=Counts(),
    num_latents=2,
    mean=lambda y, f: sigmoid(-f[1]) * exp(f[0]) / _no_zero(f[0]),
    variance=lambda y, f: _hurdle_variance(f, 0.0, _no_zero(f[0])),
    sampler=samplers.hurdle_poisson,
)
def HurdlePoisson(y: Expression, f: Any) -> Expression:
    """A count y: 0 with probability σ(f[1]), otherwise Poisson of parameter exp(f[0]) without its zeros.

    It has no augmentation: ``gaussian_vi``, ``fit``, ``svi``, ``nuts`` and ``integrate`` take it.
    """
    return _hurdle(y, f, _poisson(y, f[0]), _no_zero(f[0]))


@likelihood(
    support=Counts(),
    num_latents=2,
    mean=lambda y, f, dispersion: sigmoid(-f[1]) * exp(f[0]) / _no_zero(f[0], dispersion),
    variance=lambda y, f, dispersion: _hurdle_variance(f, 1 / dispersion, _no_zero(f[0], dispersion)),
    sampler=samplers.hurdle_negative_binomial,
)
def HurdleNegativeBinomial(y: Expression, f: Any, dispersion: Any = _POSITIVE) -> Expression:
    """A count y: 0 with probability σ(f[1]), otherwise as ``NegativeBinomial2`` of f[0] without its zeros.

    It has no augmentation: ``gaussian_vi``, ``fit``, ``svi``, ``nuts`` and ``integrate`` take it.

    Parameters
    ----------
    dispersion : float, Fixed, Parameter or NumPyro distribution
        Positive; smaller values give more variance.
    """
    return _hurdle(y, f, _negative_binomial(y, f[0], dispersion), _no_zero(f[0], dispersion))


def _hurdle_variance(f: Any, excess: Any, no_zero: Expression) -> Expression:
    mean = exp(f[0])
    positive = mean / no_zero
    return sigmoid(-f[1]) * positive * (1 + mean * (1 + excess) - sigmoid(-f[1]) * positive)


@likelihood(
    support=SuccessesOfTrials(),
    num_latents=1,
    mean=lambda y, f, precision: y[1] * sigmoid(f),
    variance=lambda y, f, precision: y[1] * sigmoid(f) * sigmoid(-f) * (y[1] + precision) / (1 + precision),
    sampler=samplers.beta_binomial,
)
def BetaBinomial(y: Any, f: Expression, precision: Any = _POSITIVE) -> Expression:
    """y = (successes, trials), with a probability of a success from a beta distribution with mean σ(f).

    It has no augmentation: ``gaussian_vi``, ``fit``, ``svi``, ``nuts`` and ``integrate`` take it.

    Parameters
    ----------
    precision : float, Fixed, Parameter or NumPyro distribution
        Sum of the beta distribution's parameters, precision · σ(f) and precision · σ(-f), positive; large values give
        ``Binomial``.
    """
    successes, trials = y[0], y[1]
    ways = gamma(trials + 1) / (gamma(successes + 1) * gamma(trials - successes + 1))
    up, down = precision * sigmoid(f), precision * sigmoid(-f)
    rises = gamma(successes + up) / gamma(up) * gamma(trials - successes + down) / gamma(down)
    return ways * rises * gamma(precision) / gamma(trials + precision)
