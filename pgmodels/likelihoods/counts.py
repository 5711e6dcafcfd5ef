"""Named likelihoods of counts, ordered categories and times."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit, logit, ndtri

from pgmodels.likelihoods import sampling
from pgmodels.likelihoods.expression import Expression, Latents, Observation, Operand, VectorSymbol
from pgmodels.likelihoods.likelihood import Likelihood, LikelihoodFamily, likelihood
from pgmodels.likelihoods.named import POSITIVE, NegativeBinomial, binomial_coefficient
from pgmodels.likelihoods.operations import cauchy_cdf, exp, gamma, log, normal_cdf, sigmoid, sum_
from pgmodels.likelihoods.supports import Censored, Classes, Counts, IntervalCensored, LeftTruncated, SuccessesOfTrials
from pgmodels.parameters.parameter import Hyperparameter, Parameter, as_declared

# Likelihoods of counts by their logarithmic mean, with excess zeros, and of overdispersed trials.


def no_zero(f: Expression, dispersion: Expression | None = None) -> Expression:
    """Return the probability that a count, Poisson or with a dispersion, is not 0."""
    return 1 - (exp(-exp(f)) if dispersion is None else sigmoid(log(dispersion) - f) ** dispersion)


@likelihood(
    support=Counts(),
    num_latents=1,
    mean=lambda y, f: exp(f),
    variance=lambda y, f: exp(f),
    sampler=sampling.log_poisson,
)
def Poisson(y: Expression, f: Expression) -> Expression:
    """A count y with mean exp(f).

    It has no augmentation: ``gaussian_vi``, ``fit``, ``svi``, ``nuts`` and ``integrate`` accept it.
    """
    return exp(y * f - exp(f)) / gamma(y + 1)


@likelihood(
    support=Counts(),
    num_latents=1,
    mean=lambda y, f, dispersion: exp(f),
    variance=lambda y, f, dispersion: exp(f) * (1 + exp(f) / dispersion),
    sampler=sampling.negative_binomial_2,
)
def NegativeBinomial2(y: Expression, f: Expression, dispersion: Expression = POSITIVE) -> Expression:
    """A count y with mean exp(f) and variance mean + mean² / dispersion. All engines accept it.

    It is ``NegativeBinomial`` with another latent, in the parametrisation of NumPyro's distribution of this name.

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
    return NegativeBinomial.function(y, f - log(dispersion), dispersion)


@likelihood(
    support=Counts(),
    num_latents=2,
    mean=lambda y, f: sigmoid(-f[1]) * exp(f[0]),
    variance=lambda y, f: sigmoid(-f[1]) * exp(f[0]) * (1 + sigmoid(f[1]) * exp(f[0])),
    sampler=lambda rng, y, f: np.where(rng.random(f[1].shape) < expit(f[1]), 0.0, sampling.log_poisson(rng, y, f[0])),
)
def ZeroInflatedPoisson(y: Expression, f: Latents) -> Expression:
    """A count y: 0 with probability σ(f[1]), otherwise Poisson with mean exp(f[0]).

    It has no augmentation: ``gaussian_vi``, ``fit``, ``svi``, ``nuts`` and ``integrate`` accept it.
    """
    return sigmoid(f[1]) * (y == 0) + sigmoid(-f[1]) * Poisson.function(y, f[0])


@likelihood(
    support=Counts(),
    num_latents=2,
    mean=lambda y, f, dispersion: sigmoid(-f[1]) * exp(f[0]),
    variance=lambda y, f, dispersion: (
        sigmoid(-f[1]) * exp(f[0]) * (1 + exp(f[0]) / dispersion + sigmoid(f[1]) * exp(f[0]))
    ),
    sampler=lambda rng, y, f, dispersion: np.where(
        rng.random(f[1].shape) < expit(f[1]), 0.0, sampling.negative_binomial_2(rng, y, f[0], dispersion)
    ),
)
def ZeroInflatedNegativeBinomial(y: Expression, f: Latents, dispersion: Expression = POSITIVE) -> Expression:
    """A count y: 0 with probability σ(f[1]), otherwise as ``NegativeBinomial2`` of f[0]. All engines accept it.

    Parameters
    ----------
    dispersion : float, Fixed, Parameter or NumPyro distribution
        Positive; smaller values give more variance.
    """
    return sigmoid(f[1]) * (y == 0) + sigmoid(-f[1]) * NegativeBinomial2.function(y, f[0], dispersion)


def hurdle(y: Expression, f: Latents, positive: Expression) -> Expression:
    """Return the density of y, which is 0 with probability σ(f[1]), otherwise with the density ``positive``."""
    return sigmoid(f[1]) ** (y == 0) * (sigmoid(-f[1]) * positive) ** (y > 0)


@likelihood(
    support=Counts(),
    num_latents=2,
    mean=lambda y, f: sigmoid(-f[1]) * exp(f[0]) / no_zero(f[0]),
    variance=lambda y, f: _hurdle_variance(f, 0.0, no_zero(f[0])),
    sampler=sampling.hurdle_poisson,
)
def HurdlePoisson(y: Expression, f: Latents) -> Expression:
    """A count y: 0 with probability σ(f[1]), otherwise Poisson of parameter exp(f[0]) without its zeros.

    It has no augmentation: ``gaussian_vi``, ``fit``, ``svi``, ``nuts`` and ``integrate`` accept it.
    """
    return hurdle(y, f, Poisson.function(y, f[0]) / no_zero(f[0]))


@likelihood(
    support=Counts(),
    num_latents=2,
    mean=lambda y, f, dispersion: sigmoid(-f[1]) * exp(f[0]) / no_zero(f[0], dispersion),
    variance=lambda y, f, dispersion: _hurdle_variance(f, 1 / dispersion, no_zero(f[0], dispersion)),
    sampler=sampling.hurdle_negative_binomial,
)
def HurdleNegativeBinomial(y: Expression, f: Latents, dispersion: Expression = POSITIVE) -> Expression:
    """A count y: 0 with probability σ(f[1]), otherwise as ``NegativeBinomial2`` of f[0] without its zeros.

    It has no augmentation: ``gaussian_vi``, ``fit``, ``svi``, ``nuts`` and ``integrate`` accept it.

    Parameters
    ----------
    dispersion : float, Fixed, Parameter or NumPyro distribution
        Positive; smaller values give more variance.
    """
    return hurdle(y, f, NegativeBinomial2.function(y, f[0], dispersion) / no_zero(f[0], dispersion))


def _hurdle_variance(f: Latents, excess: Operand, share: Expression) -> Expression:
    mean = exp(f[0])
    positive = mean / share
    return sigmoid(-f[1]) * positive * (1 + mean * (1 + excess) - sigmoid(-f[1]) * positive)


@likelihood(
    support=SuccessesOfTrials(),
    num_latents=1,
    mean=lambda y, f, precision: y[1] * sigmoid(f),
    variance=lambda y, f, precision: y[1] * sigmoid(f) * sigmoid(-f) * (y[1] + precision) / (1 + precision),
    sampler=sampling.beta_binomial,
)
def BetaBinomial(y: Observation, f: Expression, precision: Expression = POSITIVE) -> Expression:
    """y = (successes, trials), with a probability of a success from a beta distribution with mean σ(f).

    It has no augmentation: ``gaussian_vi``, ``fit``, ``svi``, ``nuts`` and ``integrate`` accept it.

    Parameters
    ----------
    precision : float, Fixed, Parameter or NumPyro distribution
        Sum of the beta distribution's parameters, precision · σ(f) and precision · σ(-f), positive. The limit of large
        values is ``Binomial``.
    """
    successes, trials = y[0], y[1]
    up, down = precision * sigmoid(f), precision * sigmoid(-f)
    rises = gamma(successes + up) / gamma(up) * gamma(trials - successes + down) / gamma(down)
    ways = binomial_coefficient(trials, successes)
    return ways * rises * gamma(precision) / gamma(trials + precision)


# The distribution function of the noise of the latent, its draws by their shape, and its quantile function.
_LINKS: dict[str, tuple[Callable[[Operand], Expression], Callable[..., np.ndarray], Callable[[np.ndarray], np.ndarray]]]
_LINKS = {
    "logit": (sigmoid, lambda rng, shape: rng.logistic(size=shape), logit),
    "probit": (normal_cdf, lambda rng, shape: rng.standard_normal(shape), ndtri),
    "cloglog": (
        lambda z: 1 - exp(-exp(z)),
        lambda rng, shape: -rng.gumbel(size=shape),
        lambda p: np.log(-np.log1p(-p)),
    ),
    "cauchit": (cauchy_cdf, lambda rng, shape: rng.standard_cauchy(shape), lambda p: np.tan(np.pi * (p - 0.5))),
}


@dataclass(frozen=True)
class _Cumulative:
    """The formula of ``Ordinal`` with a link; ``disc`` is None for 1."""

    link: str
    __name__: ClassVar[str] = "Ordinal"

    def __call__(self, y: Expression, f: Expression, cuts: VectorSymbol, disc: Expression | None = None) -> Expression:
        distribution = _LINKS[self.link][0]
        inner = [distribution(cut - f if disc is None else disc * (cut - f)) for cut in cuts]
        below: list[Any] = [0, *inner, 1]
        return sum_((below[k + 1] - below[k]) * (y == k) for k in range(len(below) - 1))


@dataclass(frozen=True)
class _CumulativeSampler:
    """The number of cut-points below the latent plus noise."""

    link: str

    def __call__(
        self, rng: np.random.Generator, y: np.ndarray, f: np.ndarray, cuts: np.ndarray, disc: np.ndarray | float = 1.0
    ) -> np.ndarray:
        return np.sum(f + _LINKS[self.link][1](rng, f.shape) / disc > cuts, axis=0)


def Ordinal(num_classes: int, link: str = "logit", cuts: Any = None, disc: Any = None) -> Likelihood:
    """An ordered category y: P(y <= k) = F(cuts[k] - f), with F = σ, Φ, 1 - exp(-exp(z)) or Cauchy's; one latent.

    All engines accept it, except with "cloglog" and "cauchit", which have no augmentation.

    The cut-points determine the level of f: give the GP the mean ``pgm.Fixed(0.0)``.

    Parameters
    ----------
    num_classes : int
        Number of categories, at least 2; y is 0 to num_classes - 1, in order.
    link : "logit", "probit", "cloglog" or "cauchit"
        Proportional odds, a category of f plus standard normal noise, proportional hazards, or Cauchy noise.
    cuts : array_like, Fixed, Parameter or NumPyro distribution, optional
        The num_classes - 1 cut-points, increasing, in units of f; learned by ``fit``. By default they start where all
        categories are equally likely at f = 0.
    disc : float, Fixed, Parameter or NumPyro distribution, optional
        A positive factor of the distances cuts[k] - f, by default 1.

    Returns
    -------
    Likelihood

    Raises
    ------
    ValueError
        If ``num_classes`` is not a whole number >= 2, ``link`` is another name, or ``cuts`` are not increasing or have
        another number.

    References
    ----------
    McCullagh 1980; Chu and Ghahramani 2005.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 3.0, 30)[:, None]
    >>> y = np.repeat([0, 1, 2], 10)
    >>> vi = pgm.cavi(pgm.Model(pgm.Ordinal(3, cuts=[-2.0, 2.0]), pgm.GP(pgm.RBF(9.0, 1.0))), X, y)
    >>> vi.predict([[0.0], [1.5], [3.0]]).probabilities.argmax(axis=1)
    array([0, 1, 2])
    """
    from numpyro.distributions.constraints import ordered_vector

    support = Classes(num_classes)
    if link not in _LINKS:
        raise ValueError(f"link of Ordinal must be one of {', '.join(map(repr, _LINKS))}; got {link!r}.")
    count = support.num_classes - 1
    start = _LINKS[link][2](np.arange(1, count + 1) / support.num_classes)
    declared = Parameter(start, constraint=ordered_vector)
    parameter = as_declared(start if cuts is None else cuts, declared, "cuts of Ordinal", positive=False)
    if parameter.value.shape != (count,):
        raise ValueError(
            f"cuts of Ordinal must be {count} increasing numbers, one less than num_classes; got an array of shape "
            f"{parameter.value.shape}."
        )
    parameters = {"cuts": parameter}
    if disc is not None:
        parameters["disc"] = as_declared(disc, POSITIVE, "disc of Ordinal", positive=False)
    return Likelihood(
        parameters, name="Ordinal", function=_Cumulative(link), declared_support=support, num_latents=1,
        sampler=_CumulativeSampler(link), options=(("num_classes", support.num_classes), ("link", link)),
    )  # fmt: skip


# Likelihoods of times to an event, which may be censored, or truncated by an entry.


def _width(between: Expression, low: Expression, high: Expression) -> Expression:
    """The width of the interval; 1 for observations that are none, so that the width has a logarithm."""
    # Positive for valid data, which the algebra sees from abs.
    return abs(between * (high - low) + (1 - between))


def _entered(y: Observation, shape: Expression) -> Expression:
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
def _weibull(y: Observation, f: Expression, shape: Expression = POSITIVE) -> Expression:
    z = shape * (log(y[0]) - f)
    return (shape / y[0] * exp(z)) ** y[1] * exp(-exp(z))


@likelihood(support=LeftTruncated(), **_WEIBULL)
def _truncated_weibull(y: Observation, f: Expression, shape: Expression = POSITIVE) -> Expression:
    z = shape * (log(y[0]) - f)
    return (shape / y[0] * exp(z)) ** y[1] * exp(-exp(z) * (1 - _entered(y, shape)))


@likelihood(support=IntervalCensored(), **_WEIBULL)
def _interval_weibull(y: Observation, f: Expression, shape: Expression = POSITIVE) -> Expression:
    event, before, between = y[1] == 1, y[1] == 2, y[1] == 3
    z = shape * (log(y[0]) - f)
    width = shape * _width(between, log(y[0]), log(y[2]))
    more = exp(z) * exp(width) * (1 - exp(-width))
    survived = exp(-exp(z)) ** (1 - before) * (1 - exp(-exp(z))) ** before
    return (shape / y[0] * exp(z)) ** event * survived * (1 - exp(-more)) ** between


@likelihood(support=Censored(), **_LOG_LOGISTIC)
def _log_logistic(y: Observation, f: Expression, shape: Expression = POSITIVE) -> Expression:
    z = shape * (log(y[0]) - f)
    return (shape / y[0] * sigmoid(z)) ** y[1] * sigmoid(-z)


@likelihood(support=LeftTruncated(), **_LOG_LOGISTIC)
def _truncated_log_logistic(y: Observation, f: Expression, shape: Expression = POSITIVE) -> Expression:
    z, entered = shape * (log(y[0]) - f), _entered(y, shape)
    # σ(-z) / σ(-a), with exp(a) = entered exp(z), is a mixture, whose augmentation is that of σ(-z).
    return (shape / y[0] * sigmoid(z)) ** y[1] * (entered + (1 - entered) * sigmoid(-z))


@likelihood(support=IntervalCensored(), **_LOG_LOGISTIC)
def _interval_log_logistic(y: Observation, f: Expression, shape: Expression = POSITIVE) -> Expression:
    event, before, between = y[1] == 1, y[1] == 2, y[1] == 3
    z = shape * (log(y[0]) - f)
    width = shape * _width(between, log(y[0]), log(y[2]))
    # A difference of sigmoids is σ(b) σ(-a) (1 - exp(a - b)).
    interval = (sigmoid(z + width) * (1 - exp(-width))) ** between
    return (shape / y[0]) ** event * sigmoid(z) ** (event + before) * sigmoid(-z) ** (1 - before) * interval


def Weibull(shape: Hyperparameter, censoring: str = "right") -> Likelihood:
    """y = (time, event): a Weibull time with P(y > t) = exp(-(t / exp(f))^shape), which may be censored.

    It has no augmentation: ``gaussian_vi``, ``fit``, ``svi``, ``nuts`` and ``integrate`` accept it.

    Parameters
    ----------
    shape : float, Fixed, Parameter or NumPyro distribution
        Positive; 1 is a constant hazard, the exponential distribution.
    censoring : "right", "counting" or "interval"
        Columns of y: (time, event) as in ``Censored``, (time, event, entry) as in ``LeftTruncated``, or
        (time, code, second time) as in ``IntervalCensored``. Truncated rows have a time above their entry.

    Returns
    -------
    Likelihood

    Raises
    ------
    ValueError
        If ``shape`` is not positive, or ``censoring`` is another name.
    """
    families = {"right": _weibull, "counting": _truncated_weibull, "interval": _interval_weibull}
    return _of_times("Weibull", families, shape, censoring)


def LogLogistic(shape: Hyperparameter, censoring: str = "right") -> Likelihood:
    """y = (time, event): a log-logistic time with P(y > t) = σ(-shape (log t - f)), which may be censored.

    exp(f) is the median. All engines accept it.

    Parameters
    ----------
    shape : float, Fixed, Parameter or NumPyro distribution
        Positive; times have a mean if it is above 1, and a variance if it is above 2.
    censoring : "right", "counting" or "interval"
        Columns of y, as in ``Weibull``.

    Returns
    -------
    Likelihood

    Raises
    ------
    ValueError
        If ``shape`` is not positive, or ``censoring`` is another name.

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


def _of_times(name: str, families: dict[str, LikelihoodFamily], shape: Hyperparameter, censoring: str) -> Likelihood:
    if censoring not in families:
        raise ValueError(f"censoring of {name} must be 'right', 'counting' or 'interval'; got {censoring!r}.")
    parameter = as_declared(shape, POSITIVE, f"shape of {name}", positive=False)
    return replace(families[censoring](parameter), name=name, options=(("censoring", censoring),))
