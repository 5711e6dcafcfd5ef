"""Likelihoods of times to an event, which may be censored, or truncated by an entry."""

from dataclasses import replace
from typing import Any

import numpy as np

from pgmodels.likelihoods.censoring import Censored, IntervalCensored, LeftTruncated
from pgmodels.likelihoods.expression import Expression
from pgmodels.likelihoods.functions import exp, gamma, log, sigmoid
from pgmodels.likelihoods.likelihood import Likelihood, LikelihoodFamily, likelihood
from pgmodels.parameters.parameter import Parameter, as_declared

_POSITIVE = Parameter(None, positive=True)


def _width(between: Expression, low: Any, high: Any) -> Expression:
    """The width of the interval; 1 for observations that are none, so that the width has a logarithm."""
    # Positive for valid data, which abs says to the algebra.
    return abs(between * (high - low) + (1 - between))


def _entered(y: Any, shape: Any) -> Expression:
    """(entry / time)^shape: the hazard, or the odds, cumulated until entry over that until the time."""
    none = y[2] == 0
    return (1 - none) * exp(shape * log((y[2] + none) / y[0]))


# Of uncensored times.
_WEIBULL: dict[str, Any] = {
    "num_latents": 1,
    "mean": lambda y, f, shape: exp(f) * gamma(1 + 1 / shape),
    "variance": lambda y, f, shape: exp(2 * f) * (gamma(1 + 2 / shape) - gamma(1 + 1 / shape) ** 2),
    "sampler": lambda rng, y, f, shape: np.exp(f + np.log(rng.standard_exponential(f.shape)) / shape),
}
_LOG_LOGISTIC: dict[str, Any] = {
    "num_latents": 1,
    "sampler": lambda rng, y, f, shape: np.exp(f + rng.logistic(size=f.shape) / shape),
}


@likelihood(support=Censored(), **_WEIBULL)
def _weibull(y: Any, f: Expression, shape: Any = _POSITIVE) -> Expression:
    z = shape * (log(y[0]) - f)
    return (shape / y[0] * exp(z)) ** y[1] * exp(-exp(z))


@likelihood(support=LeftTruncated(), **_WEIBULL)
def _truncated_weibull(y: Any, f: Expression, shape: Any = _POSITIVE) -> Expression:
    z = shape * (log(y[0]) - f)
    return (shape / y[0] * exp(z)) ** y[1] * exp(-exp(z) * (1 - _entered(y, shape)))


@likelihood(support=IntervalCensored(), **_WEIBULL)
def _interval_weibull(y: Any, f: Expression, shape: Any = _POSITIVE) -> Expression:
    event, before, between = y[1] == 1, y[1] == 2, y[1] == 3
    z = shape * (log(y[0]) - f)
    width = shape * _width(between, log(y[0]), log(y[2]))
    more = exp(z) * exp(width) * (1 - exp(-width))
    survived = exp(-exp(z)) ** (1 - before) * (1 - exp(-exp(z))) ** before
    return (shape / y[0] * exp(z)) ** event * survived * (1 - exp(-more)) ** between


@likelihood(support=Censored(), **_LOG_LOGISTIC)
def _log_logistic(y: Any, f: Expression, shape: Any = _POSITIVE) -> Expression:
    z = shape * (log(y[0]) - f)
    return (shape / y[0] * sigmoid(z)) ** y[1] * sigmoid(-z)


@likelihood(support=LeftTruncated(), **_LOG_LOGISTIC)
def _truncated_log_logistic(y: Any, f: Expression, shape: Any = _POSITIVE) -> Expression:
    z, entered = shape * (log(y[0]) - f), _entered(y, shape)
    # σ(-z) / σ(-a), with exp(a) = entered exp(z), is a mixture, whose augmentation is that of σ(-z).
    return (shape / y[0] * sigmoid(z)) ** y[1] * (entered + (1 - entered) * sigmoid(-z))


@likelihood(support=IntervalCensored(), **_LOG_LOGISTIC)
def _interval_log_logistic(y: Any, f: Expression, shape: Any = _POSITIVE) -> Expression:
    event, before, between = y[1] == 1, y[1] == 2, y[1] == 3
    z = shape * (log(y[0]) - f)
    width = shape * _width(between, log(y[0]), log(y[2]))
    # A difference of sigmoids is σ(b) σ(-a) (1 - exp(a - b)).
    interval = (sigmoid(z + width) * (1 - exp(-width))) ** between
    return (shape / y[0]) ** event * sigmoid(z) ** (event + before) * sigmoid(-z) ** (1 - before) * interval


def Weibull(shape: Any, censoring: str = "right") -> Likelihood:
    """y = (time, event): a Weibull time with P(y > t) = exp(-(t / exp(f))^shape), which may be censored.

    It has no augmentation: ``gaussian_vi``, ``fit``, ``svi``, ``nuts`` and ``integrate`` take it.

    Parameters
    ----------
    shape : float, Fixed, Parameter or NumPyro distribution
        Positive; 1 is a constant hazard, the exponential distribution.
    censoring : "right", "counting" or "interval"
        Columns of y: (time, event) as in ``Censored``; (time, event, entry) as in ``LeftTruncated``, for rows that are
        in the data since their time is above that of entry; or (time, code, second time) as in ``IntervalCensored``.

    Returns
    -------
    Likelihood

    Raises
    ------
    ValueError
        If ``shape`` is not positive, or ``censoring`` another.
    """
    families = {"right": _weibull, "counting": _truncated_weibull, "interval": _interval_weibull}
    return _of_times("Weibull", families, shape, censoring)


def LogLogistic(shape: Any, censoring: str = "right") -> Likelihood:
    """y = (time, event): a log-logistic time with P(y > t) = σ(-shape (log t - f)), which may be censored.

    exp(f) is the median. All engines take it.

    Parameters
    ----------
    shape : float, Fixed, Parameter or NumPyro distribution
        Positive; times have a mean if it is above 1, and a variance if it is above 2.
    censoring : "right", "counting" or "interval"
        Columns of y: (time, event) as in ``Censored``; (time, event, entry) as in ``LeftTruncated``, for rows that are
        in the data since their time is above that of entry; or (time, code, second time) as in ``IntervalCensored``.

    Returns
    -------
    Likelihood

    Raises
    ------
    ValueError
        If ``shape`` is not positive, or ``censoring`` another.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> model = pgm.Model(pgm.LogLogistic(2.0), pgm.GP(pgm.Constant(4.0)))
    >>> y = [[1.0, 1], [2.0, 1], [3.0, 0], [5.0, 1]]
    >>> vi = pgm.cavi(model, [[0.0], [1.0], [2.0], [3.0]], y)
    >>> bool(1.0 < np.exp(vi.mean[1, 0]) < 5.0)
    True
    """
    families = {"right": _log_logistic, "counting": _truncated_log_logistic, "interval": _interval_log_logistic}
    return _of_times("LogLogistic", families, shape, censoring)


def _of_times(name: str, families: dict[str, LikelihoodFamily], shape: Any, censoring: str) -> Likelihood:
    if censoring not in families:
        raise ValueError(f"censoring of {name} must be 'right', 'counting' or 'interval'; got {censoring!r}.")
    parameter = as_declared(shape, _POSITIVE, f"shape of {name}", positive=False)
    return replace(families[censoring](parameter), name=name, options=(("censoring", censoring),))
