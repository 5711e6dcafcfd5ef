"""The response of a formula, its family and its predictors."""

import math
from collections.abc import Callable, Container, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np
import numpyro.distributions as dist
import pandas as pd
from numpyro.distributions import constraints
from scipy.special import expit

from pgmodels.data.arrays import DATE, LEVEL, ORDERED, ZONED, check_finite, kind_of_column
from pgmodels.likelihoods import counts as of_counts
from pgmodels.likelihoods import named, sampling, supports
from pgmodels.likelihoods.expression import Expression, Latents, Observation, VectorSymbol
from pgmodels.likelihoods.likelihood import Likelihood, LikelihoodFamily, likelihood, trace
from pgmodels.likelihoods.modified import modelled
from pgmodels.likelihoods.named import POSITIVE, binomial_coefficient
from pgmodels.likelihoods.operations import (
    as_expression,
    cauchy_cdf,
    exp,
    gamma,
    log,
    normal_cdf,
    normal_pdf,
    positions,
    prod,
    sigmoid,
    sqrt,
    sum_,
)
from pgmodels.parameters.parameter import Fixed, Parameter
from pgmodels.regression import terms as of_terms
from pgmodels.regression.expressions import FAMILIES, Computed
from pgmodels.regression.grammar import Observed, Parsed, parse


class FormulaResponse:
    """The observations of a formula.

    ``kind`` is "p" for successes of trials, "Surv" for times, "se" for known noise, "c" for other columns, or "column".
    ``censoring`` is the censoring of times, as in ``Weibull``.
    ``levels`` are the labels of a column of text or categories, coded in this order; () for numbers.
    """

    def __init__(self, observed: Observed, data: of_terms.TrainingData, has_levels: bool):
        frame = of_terms.with_plain_types(data.frame)
        data = data._replace(frame=frame)
        self.text, self.kind, self.has_sigma = observed.text, observed.kind, bool(observed.options.get("sigma"))
        self.levels: tuple[Any, ...] = ()
        self.censoring: str | None = None
        expressions = observed.arguments
        name = expressions[0]
        for expression in expressions:
            if expression in frame.columns and kind_of_column(frame[expression]) in (DATE, ZONED):
                raise ValueError(f"formula: the response {self.text} has dates in column {expression!r}: give numbers.")
        self.columns: of_terms.TermColumns
        if self.kind == "Surv":
            self.columns = times = _Times(observed, data.context)
            self.censoring = times.censoring
        elif self.kind == "column" and name in frame.columns and kind_of_column(frame[name]) in (LEVEL, ORDERED):
            self.columns = labels = _Labels(name, frame, observed.level)
            self.levels = labels.levels
        else:
            if observed.level is not None:
                raise ValueError(f"formula: {self.text} names a level of {name}, which is not a column of text.")
            self.columns = of_terms.Numbers(expressions, data, self.text)
            if self.kind == "column" and has_levels:
                self.columns = codes = _Codes(self.columns, frame)
                self.levels = codes.levels

    @property
    def has_covariates(self) -> bool:
        """Whether new data have columns of it."""
        return self.kind in ("c", "se")

    def read(self, frame: pd.DataFrame) -> np.ndarray:
        """Return the columns of y (n, k)."""
        return self.columns.read(of_terms.with_plain_types(frame))

    def covariates(self, frame: pd.DataFrame, count: int, name: str = "newdata") -> np.ndarray:
        """Return the last ``count`` columns of y for new data: 1 trial, and else the columns of the formula."""
        if not self.has_covariates or count == 0:
            return np.ones((len(frame), count))
        last = copy(self.columns)
        assert isinstance(last, of_terms.Numbers)
        last.names, last.readers = last.names[-count:], last.readers[-count:]
        return last.read(frame, name)


class _Labels(of_terms.TermColumns):
    """A column of labels: categories in their order, others sorted; the ``chosen`` one of two is the last."""

    def __init__(self, name: str, frame: pd.DataFrame, chosen: object):
        column, self.names = frame[name], (name,)
        levels = list(column.cat.categories) if hasattr(column, "cat") else sorted(column.dropna().unique())
        if chosen is not None:
            matches = [level for level in levels if str(level) == str(chosen)]
            if not matches or len(levels) > 2:
                raise ValueError(f"formula: {name}[{chosen!r}] must name one of two levels; {name} has {levels!r}.")
            levels = [level for level in levels if level not in matches] + matches
        self.levels = tuple(levels)

    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        codes = {level: float(code) for code, level in enumerate(self.levels)}
        return np.array([[codes.get(value, np.nan)] for value in frame[self.names[0]]])


class _Codes(of_terms.TermColumns):
    def __init__(self, numbers: of_terms.Numbers, frame: pd.DataFrame):
        self.numbers, self.names = numbers, numbers.names
        values = np.unique(numbers.read(frame))
        if (values != np.floor(values)).any():
            raise ValueError(
                f"formula: the response {self.names[0]} must have labels or whole numbers; got "
                f"{values[values != np.floor(values)][0]}."
            )
        self.levels = tuple(map(int, values))

    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        return np.searchsorted(self.levels, self.numbers.read(frame, name)).astype(np.float64)


# The arguments of Surv by its type, R's names, of which "counting" is (entry, exit, event).
_TYPES = {
    "right": ("time", "event"),
    "left": ("time", "event"),
    "counting": ("entry", "exit", "event"),
    "interval": ("time", "time2", "code"),
    "interval2": ("lower", "upper"),
}


def _type_of(observed: Observed) -> str:
    """The type of Surv: by default of two arguments "right" and of three "counting", as in R."""
    count = len(observed.arguments)
    kind = observed.options.get("type", "counting" if count == 3 else "right")
    if kind not in _TYPES or (count != len(_TYPES[kind]) and (kind, count) != ("right", 1)):
        there_are = "; ".join(f"Surv({', '.join(names)}, type={one!r})" for one, names in _TYPES.items())
        raise ValueError(f"formula: {observed.text} must be one of {there_are}.")
    return kind


def has_value(observed: Observed, frame: pd.DataFrame, context: Mapping[str, Any]) -> np.ndarray:
    """Return whether each row (n,) has a value of the response; a censored time has no other end."""
    holes = [
        frame[[name for name in one.names if name in frame.columns]].isna().any(axis=1).to_numpy()
        for one in observed.arguments
    ]
    kind = _type_of(observed) if observed.kind == "Surv" else None
    if kind == "interval2":
        return ~(holes[0] & holes[1])
    if kind == "interval":
        code = Computed(observed.arguments[2], context).column(frame)
        holes[1] = holes[1] & (code == 3)
    return ~np.any(holes, axis=0)


class _Times(of_terms.TermColumns):
    """Times with censoring, as (time, event), (time, event, entry), or (time, code, second time)."""

    def __init__(self, observed: Observed, context: Mapping[str, Any]):
        self.kind, self.text = _type_of(observed), observed.text
        self.arguments = [Computed(one, context) for one in observed.arguments]
        self.censoring = self.kind if self.kind in ("right", "counting") else "interval"
        self.names = {
            "right": ("time", "event"), "counting": ("time", "event", "entry"), "interval": ("time", "code", "time2")
        }[self.censoring]  # fmt: skip

    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        times = self._times(frame, name)
        check_finite(times, f"{name}, {self.text}")
        return times

    def _times(self, frame: pd.DataFrame, name: str) -> np.ndarray:
        values = [one.column(frame) for one in self.arguments]
        if self.kind == "interval2":
            return self._intervals(values[0], values[1], name)
        event = np.ones(len(frame)) if len(values) == 1 else values[-1]
        codes = (0.0, 1.0, 2.0, 3.0) if self.kind == "interval" else (0.0, 1.0)
        if (row := supports.first_row(~np.isin(event, codes))) is not None:
            one = self.arguments[-1].text
            raise ValueError(
                f"{name}: {one} in {self.text} must be {'0, 1, 2 or 3' if len(codes) == 4 else '0 or 1'}; got "
                f"{event[row]:g} in row {row}. Compute it, as in {one} == 2; codes of intervals need "
                "type='interval'."
            )
        if self.kind == "counting":
            if (row := supports.first_row((values[0] < 0) | (values[0] >= values[1]))) is not None:
                raise ValueError(
                    f"{name}: {self.text} must have an entry from 0 to below the exit; got {values[0][row]:g} and "
                    f"{values[1][row]:g} in row {row}. The order is Surv(entry, exit, event)."
                )
            return np.column_stack([values[1], event, values[0]])
        if self.kind == "interval":
            return np.column_stack([values[0], event, np.where(event == 3, values[1], values[0])])
        if self.kind == "left":
            return np.column_stack([values[0], np.where(event == 1, 1.0, 2.0), values[0]])
        return np.column_stack([values[0], event])

    def _intervals(self, lower: np.ndarray, upper: np.ndarray, name: str) -> np.ndarray:
        # Times are above 0.
        is_left, is_right = np.isnan(lower) | (lower == 0.0) | (lower == -np.inf), np.isnan(upper) | (upper == np.inf)
        if (row := supports.first_row((is_left & is_right) | (lower > upper))) is not None:
            raise ValueError(
                f"{name}: {self.text} must have a lower end that is not above the upper one; got {lower[row]:g} "
                f"and {upper[row]:g} in row {row}. An open end is NaN, or 0 below and inf above."
            )
        code = np.select([is_left, is_right, lower == upper], [2.0, 0.0, 1.0], default=3.0)
        time = np.where(is_left, upper, lower)
        return np.column_stack([time, code, np.where(code == 3, upper, time)])


# Likelihoods of regression formulas by name.

# How the first latent relates to y: in its units, as the logarithm of its mean, of y itself, of a rate, or otherwise.
_IDENTITY, _LOG_MEAN, _LOG, _LOG_RATE, _OTHER = "identity", "log mean", "log", "log rate", "other"
# By the mean of y.
_RELATIONS = {"f": _IDENTITY, "f[0]": _IDENTITY, "exp(f)": _LOG_MEAN, "exp(f[0])": _LOG_MEAN}


class FamilyArguments(NamedTuple):
    """What a family is made of: the scale of its first latent, priors of parameters, the response, named formulas.

    ``y`` (n, columns) are the observations, which count as often as ``counts`` (n,).
    """

    scale: float
    priors: dict[str, Any]
    response: FormulaResponse
    num_levels: int
    y: np.ndarray
    counts: np.ndarray
    has_precisions: bool
    named: Container[int | str] = ()

    def positive(self, name: str, start: float | np.ndarray, prior: dist.Distribution | None = None) -> Any:
        """Return a positive parameter, as in the priors, or with a prior, by default log-normal about its start."""
        # Of the logarithm 95 % are within a factor of 350.
        chosen = self.priors.pop(name, dist.LogNormal(np.log(start), 3.0) if prior is None else prior)
        return Parameter(start, positive=True, prior=chosen) if isinstance(chosen, dist.Distribution) else chosen

    def real(self, name: str, start: float, prior: dist.Distribution) -> Any:
        """Return a parameter of any sign: as in the priors, or with a prior."""
        chosen = self.priors.pop(name, prior)
        is_prior = isinstance(chosen, dist.Distribution)
        return Parameter(start, positive=False, prior=chosen) if is_prior else _fixed(chosen)

    def noise(self) -> Any:
        """Return the scale of noise, in units of the first latent, which summaries call sigma."""
        name = "sigma" if "sigma" in self.priors else "scale"
        return self.positive(name, 0.5 * self.scale, dist.FoldedDistribution(of_terms.half_student(self.scale)))


class Family(NamedTuple):
    """A likelihood by its settings, how its first latent relates to y, and whether y has labels or levels.

    ``is_ordered``: cutpoints replace the intercept. ``classes``: the classes with a latent of each term.
    ``kinds``: the kinds of its responses, or None for any. ``is_censored``: whether y has times and their codes.
    ``latents``: the names of its latents after the first.
    """

    make: Callable[[FamilyArguments], Likelihood]
    relation: str = _OTHER
    is_ordered: bool = False
    classes: slice | None = None
    kinds: tuple[str, ...] | None = ("column",)
    is_censored: bool = False
    latents: tuple[str, ...] = ()

    @property
    def has_levels(self) -> bool:
        """Whether y are labels or levels."""
        return self.is_ordered or self.classes is not None

    def start(self, y: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
        """Return the scale of the first latent and its prior mean, of rows that count as often as they have weight.

        The scale is the standard deviation of y or, where the latent is a logarithm, of that, and then at least 1.
        Censored rows count only where there are no others.
        """
        if self.relation == _LOG_RATE:
            return 1.0, math.log(max(float(counts @ y[:, 1]), 0.5) / float(counts @ y[:, 0]))
        known = counts * (y[:, 1] == 1.0) if self.is_censored and y.shape[1] > 1 else counts
        counts, y = known if known.any() else counts, y[:, 0]
        mean, deviation = of_terms.moments(y, counts)
        if self.relation == _IDENTITY:
            return float(deviation) or 1.0, float(mean)
        if self.relation == _OTHER or mean <= 0 or (self.relation == _LOG and not (y > 0).all()):
            return 1.0, 0.0
        # Counts of 0 have no logarithm.
        middle, deviation = of_terms.moments(np.log(np.where(y > 0, y, 0.5)), counts)
        return max(1.0, float(deviation)), float(middle) if self.relation == _LOG else math.log(mean)


def _fixed(value: Any) -> Fixed:
    return value if isinstance(value, Fixed) else Fixed(value)


def _lognormal(settings: FamilyArguments) -> Likelihood:
    times = {"right": censored_lognormal, "counting": truncated_lognormal, "interval": interval_lognormal}
    return times.get(settings.response.censoring or "", named.LogNormal)(settings.noise())


def _steps(constructor: LikelihoodFamily) -> Family:
    def make(settings: FamilyArguments) -> Likelihood:
        prior = settings.priors.pop("cuts", dist.StudentT(3.0, 0.0, 2.5))
        cuts = np.linspace(-1.0, 1.0, settings.num_levels - 1)
        made = constructor(
            Parameter(cuts, prior=prior, positive=False) if isinstance(prior, dist.Distribution) else prior
        )
        return replace(made, declared_support=supports.Classes(settings.num_levels))

    return Family(make, is_ordered=True)


def _gaussian(settings: FamilyArguments) -> Likelihood:
    if settings.has_precisions:
        return weighted_gaussian(settings.noise())
    if settings.response.kind == "se":
        return partly_known_noise(settings.noise()) if settings.response.has_sigma else named.KnownNoise()
    return named.Gaussian(settings.noise())


def _ordinal(link: str) -> Family:
    def make(settings: FamilyArguments) -> Likelihood:
        cuts = settings.priors.pop("cuts", dist.StudentT(3.0, 0.0, 2.5))
        return of_counts.Ordinal(
            settings.num_levels, link=link, cuts=cuts, disc=Fixed(1.0) if "disc" in settings.named else None
        )

    return Family(make, is_ordered=True)


def _skew_normal(settings: FamilyArguments) -> Likelihood:
    y, counts = settings.y[:, 0], settings.counts
    with np.errstate(over="ignore"):
        third = np.average((y - of_terms.moments(y, counts)[0]) ** 3, weights=counts)
    return skew_normal(settings.noise(), settings.real("alpha", -2.0 if third < 0.0 else 2.0, dist.Normal(0.0, 4.0)))


def _gaussian_log(settings: FamilyArguments) -> Likelihood:
    deviation = float(of_terms.moments(settings.y[:, 0], settings.counts)[1])
    return gaussian_log(settings._replace(scale=deviation or 1.0).noise())


def _cox(settings: FamilyArguments) -> Likelihood:
    """A hazard that is constant between quantiles of the times of events, with 5 or more in each of 2 to 10 pieces."""
    is_event = settings.y[:, 1] == 1.0
    time, counts = settings.y[is_event, 0], settings.counts[is_event]
    if settings.response.censoring == "interval" or not is_event.any():
        raise ValueError(
            "family='cox' needs Surv(time, event) or Surv(entry, exit, event) with an event, and no intervals; got "
            f"{settings.response.text} with {is_event.sum()} events."
        )
    num_pieces = int(np.clip(counts.sum() // 5, 2, 10))
    # A row of weight 2 counts as two rows.
    ends = np.unique(np.quantile(time, np.arange(1, num_pieces) / num_pieces, weights=counts, method="inverted_cdf"))
    hazards = settings.positive("hazards", np.ones(len(ends)), dist.LogNormal(0.0, 3.0))
    return (late_cox if settings.response.censoring == "counting" else cox)(hazards, Fixed(ends))


def _survival(constructor: Callable[..., Likelihood]) -> Family:
    make = lambda one: constructor(one.positive("shape", 1.0), censoring=one.response.censoring)  # noqa: E731
    return Family(make, _LOG, kinds=("Surv",), is_censored=True)


def _with(
    constructor: Callable[..., Likelihood], parameter: str, start: float, relation: str = _LOG_MEAN,
    kinds: tuple[str, ...] = ("column",), latents: tuple[str, ...] = (),
) -> Family:  # fmt: skip
    make = lambda settings: constructor(settings.positive(parameter, start))  # noqa: E731
    return Family(make, relation, kinds=kinds, latents=latents)


# The probabilities of a success and of a failure by link.
_CHANCES: dict[str, Callable[[Any], tuple[Expression, Expression]]] = {
    "probit": lambda f: (normal_cdf(f), normal_cdf(-f)),
    "cloglog": lambda f: (1 - exp(-exp(f)), exp(-exp(f))),
    "cauchit": lambda f: (cauchy_cdf(f), cauchy_cdf(-f)),
}


def _bernoulli(link: str) -> LikelihoodFamily:
    def formula(y: Expression, f: Expression) -> Expression:
        success, failure = _CHANCES[link](f)
        return success**y * failure ** (1 - y)

    formula.__name__ = formula.__qualname__ = f"bernoulli_{link}"
    return likelihood(formula, support=supports.Binary(), num_latents=1)


def _binomial(link: str) -> LikelihoodFamily:
    def formula(y: Observation, f: Expression) -> Expression:
        success, failure = _CHANCES[link](f)
        # Powers of Φ other than 0 and 1 have no augmentation.
        return binomial_coefficient(y[1], y[0]) * exp(y[0] * log(success) + (y[1] - y[0]) * log(failure))

    formula.__name__ = formula.__qualname__ = f"binomial_{link}"
    return likelihood(
        formula, support=supports.SuccessesOfTrials(), num_latents=1, mean=lambda y, f: y[1] * _CHANCES[link](f)[0],
        variance=lambda y, f: y[1] * prod(_CHANCES[link](f)),
    )  # fmt: skip


bernoulli_cloglog, bernoulli_cauchit = _bernoulli("cloglog"), _bernoulli("cauchit")
binomial_probit, binomial_cloglog, binomial_cauchit = (_binomial(link) for link in _CHANCES)


@likelihood(
    support=supports.SuccessesOfTrials(), num_latents=2, mean=lambda y, f: y[1] * sigmoid(-f[1]) * sigmoid(f[0]),
    variance=lambda y, f: (
        y[1] * sigmoid(-f[1]) * sigmoid(f[0]) * (sigmoid(-f[0]) + y[1] * sigmoid(f[0]) * sigmoid(f[1]))
    ),
)  # fmt: skip
def zero_inflated_binomial(y: Observation, f: Latents) -> Expression:
    """y = (successes, trials): no success with probability σ(f[1]), otherwise binomial with log odds f[0]."""
    return sigmoid(f[1]) * (y[0] == 0) + sigmoid(-f[1]) * named.Binomial.function(y, f[0])


def _always_above(f: np.ndarray) -> np.ndarray:
    """The latents of a hurdle family that never has a zero."""
    return np.stack([f, np.full_like(f, -np.inf)])


def _with_zeros(rng: np.random.Generator, f: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    return np.where(rng.random(drawn.shape) < expit(f[1]), 0.0, drawn)


@likelihood(
    support=supports.Counts(), num_latents=1, mean=lambda y, f, phi: exp(f),
    variance=lambda y, f, phi: exp(f) * (1 + phi),
    sampler=lambda rng, y, f, phi: sampling.poisson(rng, phi * rng.standard_gamma(np.exp(f) / phi)),
)  # fmt: skip
def nbinom1(y: Expression, f: Expression, phi: Expression = POSITIVE) -> Expression:
    """A count y with mean exp(f) and variance mean (1 + phi)."""
    size = exp(f) / phi
    return gamma(y + size) / (gamma(size) * gamma(y + 1)) * exp(y * log(phi) - (y + size) * log(1 + phi))


def _draw_progeny(rng: np.random.Generator, y: np.ndarray, f: np.ndarray, phi: np.ndarray) -> np.ndarray:
    """The size of a branching process: Poisson numbers of founders and of children of each."""
    born = total = sampling.poisson(rng, np.exp(f) / (1.0 + phi))
    while born.any():
        born = sampling.poisson(rng, born * phi / (1.0 + phi))
        total = total + born
    return total


@likelihood(
    support=supports.Counts(), num_latents=1, mean=lambda y, f, phi: exp(f),
    variance=lambda y, f, phi: exp(f) * (1 + phi) ** 2, sampler=_draw_progeny,
)  # fmt: skip
def genpois(y: Expression, f: Expression, phi: Expression = POSITIVE) -> Expression:
    """A count y with mean exp(f) and variance mean (1 + phi)², a generalised Poisson (Consul and Jain 1973)."""
    rate = exp(f) + phi * y
    return exp(f) * rate ** (y - 1) * exp(-y * log(1 + phi) - rate / (1 + phi)) / gamma(y + 1)


@likelihood(
    support=supports.PositiveCounts(), num_latents=1, mean=lambda y, f: exp(f) / of_counts.no_zero(f),
    variance=lambda y, f: exp(f) / of_counts.no_zero(f) * (1 + exp(f) - exp(f) / of_counts.no_zero(f)),
    sampler=lambda rng, y, f: sampling.hurdle_poisson(rng, y, _always_above(f)),
)  # fmt: skip
def truncated_poisson(y: Expression, f: Expression) -> Expression:
    """A count y of 1 or more, Poisson of parameter exp(f) without its zeros."""
    return of_counts.Poisson.function(y, f) / of_counts.no_zero(f)


@likelihood(
    support=supports.PositiveCounts(), num_latents=1,
    sampler=lambda rng, y, f, dispersion: sampling.hurdle_negative_binomial(rng, y, _always_above(f), dispersion),
)  # fmt: skip
def truncated_negbinomial(y: Expression, f: Expression, dispersion: Expression = POSITIVE) -> Expression:
    """A count y of 1 or more, ``NegativeBinomial2`` without its zeros."""
    return of_counts.NegativeBinomial2.function(y, f, dispersion) / of_counts.no_zero(f, dispersion)


@likelihood(
    support=supports.WithEnds(supports.Positive(), 0.0), num_latents=2,
    mean=lambda y, f, shape: sigmoid(-f[1]) * exp(f[0]),
    variance=lambda y, f, shape: sigmoid(-f[1]) * exp(2 * f[0]) * (1 + 1 / shape - sigmoid(-f[1])),
    sampler=lambda rng, y, f, shape: _with_zeros(rng, f, rng.standard_gamma(shape) / shape * np.exp(f[0])),
)  # fmt: skip
def hurdle_gamma(y: Expression, f: Latents, shape: Expression = POSITIVE) -> Expression:
    """A number y, 0 with probability σ(f[1]), otherwise gamma with mean exp(f[0]) and variance mean² / shape."""
    return of_counts.hurdle(y, f, named.Gamma.function(y + (y == 0), f[0], shape))


@likelihood(
    support=supports.WithEnds(supports.Positive(), 0.0), num_latents=2,
    mean=lambda y, f, scale: sigmoid(-f[1]) * exp(f[0] + scale**2 / 2),
    variance=lambda y, f, scale: sigmoid(-f[1]) * exp(2 * f[0] + scale**2) * (exp(scale**2) - sigmoid(-f[1])),
    sampler=lambda rng, y, f, scale: _with_zeros(rng, f, np.exp(rng.normal(f[0], scale))),
)  # fmt: skip
def hurdle_lognormal(y: Expression, f: Latents, scale: Expression = POSITIVE) -> Expression:
    """A number y, 0 with probability σ(f[1]), otherwise log-normal with the median exp(f[0])."""
    return of_counts.hurdle(y, f, named.LogNormal.function(y + (y == 0), f[0], scale))


@likelihood(
    support=supports.WithEnds(supports.UnitInterval(), 0.0, 1.0), num_latents=3,
    sampler=lambda rng, y, f, precision: np.where(
        rng.random(f[0].shape) < expit(f[1]), rng.random(f[0].shape) < expit(f[2]),
        sampling.beta(rng, y, f[0], precision),
    ),
)  # fmt: skip
def zero_one_inflated_beta(y: Expression, f: Latents, precision: Expression = POSITIVE) -> Expression:
    """A share y, with probability σ(f[1]) 0 or 1, of which 1 with σ(f[2]), otherwise beta with mean σ(f[0])."""
    end = (y == 0) + (y == 1)
    ends = sigmoid(f[1]) ** end * sigmoid(f[2]) ** (y == 1) * sigmoid(-f[2]) ** (y == 0)
    return ends * (sigmoid(-f[1]) * named.Beta.function((1 - end) * y + end / 2, f[0], precision)) ** (1 - end)


_SHARE: Any = Parameter(0.5, constraint=constraints.unit_interval)
_SLANT: Any = Parameter(0.0, positive=False)


@likelihood(
    support=supports.Real(), num_latents=1,
    mean=lambda y, f, scale, quantile: f + scale * (1 - 2 * quantile) / (quantile * (1 - quantile)),
    variance=lambda y, f, scale, quantile: (
        scale**2 * (1 - 2 * quantile + 2 * quantile**2) / (quantile * (1 - quantile)) ** 2
    ),
)  # fmt: skip
def asym_laplace(
    y: Expression, f: Expression, scale: Expression = POSITIVE, quantile: Expression = _SHARE
) -> Expression:
    """A number y, of which f is a quantile (Yu and Moyeed 2001)."""
    lost = abs(y - f) + (2 * quantile - 1) * (y - f)
    return quantile * (1 - quantile) / scale * exp(-lost / (2 * scale))


@likelihood(
    support=supports.Real(),
    num_latents=1,
    mean=lambda y, f, scale, alpha: f,
    variance=lambda y, f, scale, alpha: scale**2,
)
def skew_normal(y: Expression, f: Expression, scale: Expression = POSITIVE, alpha: Expression = _SLANT) -> Expression:
    """A number y, skew-normal with mean f, standard deviation ``scale`` and slant alpha (Azzalini 1985)."""
    delta = alpha / sqrt(1 + alpha**2)
    omega = scale / sqrt(1 - 2 / math.pi * delta**2)
    z = (y - f) / omega + math.sqrt(2 / math.pi) * delta
    return 2 / omega * normal_pdf(z, 0, 1) * normal_cdf(alpha * z)


@likelihood(
    support=supports.Given(supports.Real(), supports.Positive()), num_latents=1, mean=lambda y, f, scale: f,
    variance=lambda y, f, scale: scale**2 / y[1],
)  # fmt: skip
def weighted_gaussian(y: Observation, f: Expression, scale: Expression = POSITIVE) -> Expression:
    """y = (value, weight): f + Gaussian noise of variance scale² / weight."""
    return normal_pdf(y[0], f, scale / sqrt(y[1]))


@likelihood(
    support=supports.Given(supports.Real(), supports.Positive()), num_latents=1, mean=lambda y, f, scale: f,
    variance=lambda y, f, scale: y[1] ** 2 + scale**2,
)  # fmt: skip
def partly_known_noise(y: Observation, f: Expression, scale: Expression = POSITIVE) -> Expression:
    """y = (value, noise): f + Gaussian noise of variance noise² + scale²."""
    return normal_pdf(y[0], f, sqrt(y[1] ** 2 + scale**2))


@likelihood(
    support=supports.Real(), num_latents=1, mean=lambda y, f, scale: exp(f), variance=lambda y, f, scale: scale**2
)
def gaussian_log(y: Expression, f: Expression, scale: Expression = POSITIVE) -> Expression:
    """y = exp(f) + Gaussian noise."""
    return normal_pdf(y, exp(f), scale)


_CUTS: Any = Parameter(np.zeros(2), positive=False)


@likelihood(num_latents=1)
def sratio(y: Expression, f: Expression, cuts: VectorSymbol = _CUTS) -> Expression:
    """A level y that is reached step by step: P(y = k | y >= k) = σ(cuts[k] - f)."""
    return prod(sigmoid(cut - f) ** (y == k) * sigmoid(f - cut) ** (y > k) for k, cut in enumerate(cuts))


@likelihood(num_latents=1)
def acat(y: Expression, f: Expression, cuts: VectorSymbol = _CUTS) -> Expression:
    """A level y with log odds f - cuts[k] of level k + 1 and level k."""
    weights: list[Any] = [1]
    for cut in cuts:
        weights.append(weights[-1] * exp(f - cut))
    return sum_(weight * (y == k) for k, weight in enumerate(weights)) / sum_(weights)


def _cumulated(time: Expression, hazards: VectorSymbol, ends: VectorSymbol) -> Expression:
    """The integral from 0 to a time of a hazard that is 1 until the first end, then each of ``hazards``."""
    starts, ratios, total = [0.0, *ends], [1, *hazards], []
    for ratio, start, end in zip(ratios, starts, ends, strict=False):
        left = time > end
        total.append(ratio * (time > start) * ((1 - left) * (time - start) + left * (end - start)))
    return sum_([*total, ratios[-1] * (time > starts[-1]) * (time - starts[-1])])


def _moments_by_hazards(f: Expression, hazards: VectorSymbol, ends: VectorSymbol) -> tuple[Expression, Expression]:
    """Mean and variance by the integrals of S and 2 t S, with S = S(start) exp(-rate (t - start)) in each piece."""
    starts, survival, mean, square = [0.0, *ends], as_expression(1), [], []
    for k, (ratio, start) in enumerate(zip([1, *hazards], starts, strict=True)):
        rate, left, beyond = ratio * exp(f), as_expression(0), as_expression(0)
        if k + 1 < len(starts):
            width = starts[k + 1] - start
            left = exp(-rate * width)
            beyond = left * width / rate
        mean.append(survival * (1 - left) / rate)
        square.append(2 * survival * (start * (1 - left) / rate + (1 - left) / rate**2 - beyond))
        survival = survival * left
    return sum_(mean), sum_(square) - sum_(mean) ** 2


def _draw_by_hazards(
    rng: np.random.Generator, y: np.ndarray, f: np.ndarray, hazards: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """Times at which the cumulated hazard is exponential."""
    none = np.zeros_like(hazards[:1])
    starts, ratios = np.concatenate([none, ends]), np.concatenate([none + 1.0, hazards])
    before = np.concatenate([none, np.cumsum(ratios[:-1] * np.diff(starts, axis=0), axis=0)])
    level = rng.standard_exponential(f.shape) / np.exp(f)
    piece = np.sum(before <= level, axis=0) - 1
    each = np.broadcast_to(np.stack([starts, before, ratios]), (3, len(starts), *f.shape))
    start, reached, ratio = np.take_along_axis(each, piece[None, None], 1)[:, 0]
    return start + (level - reached) / ratio


_PIECES: Any = Parameter(np.ones(1), positive=True)
_OF_HAZARDS: Any = {
    "num_latents": 1,
    "mean": lambda y, f, hazards, ends: _moments_by_hazards(f, hazards, ends)[0],
    "variance": lambda y, f, hazards, ends: _moments_by_hazards(f, hazards, ends)[1],
    "sampler": _draw_by_hazards,
}


@likelihood(support=supports.Censored(), **_OF_HAZARDS)
def cox(y: Observation, f: Expression, hazards: VectorSymbol = _PIECES, ends: VectorSymbol = _PIECES) -> Expression:
    """y = (time, event), with hazard exp(f) until the first of ``ends``, then times each of the ratios ``hazards``."""
    after: list[Any] = [1, *(y[0] > end for end in ends), 0]
    ratio = prod(ratio ** (after[k] * (1 - after[k + 1])) for k, ratio in enumerate([1, *hazards]))
    return (exp(f) * ratio) ** y[1] * exp(-exp(f) * _cumulated(y[0], hazards, ends))


@likelihood(support=supports.LeftTruncated(), **_OF_HAZARDS)
def late_cox(
    y: Observation, f: Expression, hazards: VectorSymbol = _PIECES, ends: VectorSymbol = _PIECES
) -> Expression:
    """y = (time, event, entry), as ``cox``, of rows whose time is above the entry."""
    return cox.function(y, f, hazards, ends) * exp(exp(f) * _cumulated(y[2], hazards, ends))


def _draw_times(rng: np.random.Generator, y: np.ndarray, f: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.exp(rng.normal(f, scale))


@likelihood(support=supports.Censored(), num_latents=1, sampler=_draw_times)
def censored_lognormal(y: Observation, f: Expression, scale: Expression = POSITIVE) -> Expression:
    """y = (time, event): a log-normal time with median exp(f), which may be right-censored."""
    return named.LogNormal.function(y[0], f, scale) ** y[1] * normal_cdf((f - log(y[0])) / scale) ** (1 - y[1])


@likelihood(support=supports.LeftTruncated(), num_latents=1, sampler=_draw_times)
def truncated_lognormal(y: Observation, f: Expression, scale: Expression = POSITIVE) -> Expression:
    """y = (time, event, entry), as ``censored_lognormal``, of rows whose time is above the entry."""
    none = y[2] == 0
    return censored_lognormal.function(y, f, scale) / normal_cdf((f - log(y[2] + none)) / scale) ** (1 - none)


@likelihood(support=supports.IntervalCensored(), num_latents=1, sampler=_draw_times)
def interval_lognormal(y: Observation, f: Expression, scale: Expression = POSITIVE) -> Expression:
    """y = (time, code, second time), as ``censored_lognormal``, of intervals too."""
    return y[0] ** -(y[1] == 1) * named.CensoredGaussian.function((log(y[0]), y[1], log(y[2])), f, scale)


@likelihood
def multinomial_logit(y: Any, f: Any) -> Any:
    """A class y with log odds f[c - 1] of class c and class 0, the reference."""
    return prod(exp(f) ** (y == positions(f) + 1)) / (1 + sum_(exp(f)))


def _classes(constructor: Callable[..., Likelihood], first: int | None = None, last: int | None = None) -> Family:
    return Family(lambda settings: constructor(settings.num_levels), classes=slice(first, last))


# Parameters of families by the names that brms has for them.
_PARAMETERS: Mapping[Any, str] = {"sigma": "scale", "shape": "dispersion", "phi": "precision", "nu": "df"}
# How responses are written, and what to use for one of another family.
_WRITTEN = {
    "column": "a column or a function of one",
    "se": "y | se(sd)",
    "p": "p(successes, trials)",
    "Surv": "Surv(time, event), or Surv(time) if all are events",
}
_REMEDIES = {
    "column": "For labels of single trials use family='bernoulli'.",
    "se": "Known noise needs family='gaussian'.",
    "p": "Successes of trials need family='binomial' or 'beta_binomial'.",
    "Surv": "Times need family='weibull', 'loglogistic', 'lognormal' or 'cox'.",
    "c": "Further columns are for a likelihood of your own.",
}
_FAMILIES: dict[str, dict[str, Family]] = {
    "gaussian": {
        "identity": Family(_gaussian, _IDENTITY, kinds=("column", "se")),
        "log": Family(_gaussian_log, _LOG_MEAN),
    },
    "skew_normal": {"identity": Family(_skew_normal, _IDENTITY)},
    "asym_laplace": {
        "identity": Family(lambda one: asym_laplace(one.noise(), _fixed(one.priors.pop("quantile", 0.5))), _IDENTITY)
    },
    "student": {"identity": Family(lambda one: named.StudentT(Fixed(4.0), one.noise()), _IDENTITY)},
    "laplace": {"identity": Family(lambda one: named.Laplace(one.noise()), _IDENTITY)},
    "lognormal": {"identity": Family(_lognormal, _LOG, kinds=("column", "Surv"), is_censored=True)},
    "hurdle_lognormal": {"identity": Family(lambda one: hurdle_lognormal(one.noise()), _LOG, latents=("hu",))},
    "hurdle_gamma": {"log": _with(hurdle_gamma, "shape", 1.0, latents=("hu",))},
    "gamma": {"log": _with(named.Gamma, "shape", 1.0)},
    "beta": {"logit": _with(named.Beta, "precision", 5.0, _OTHER)},
    "zero_one_inflated_beta": {
        "logit": _with(zero_one_inflated_beta, "precision", 5.0, _OTHER, latents=("zoi", "coi"))
    },
    "bernoulli": {
        "logit": Family(lambda _: named.Bernoulli()),
        "probit": Family(lambda _: named.Probit()),
        "cloglog": Family(lambda _: bernoulli_cloglog()),
        "cauchit": Family(lambda _: bernoulli_cauchit()),
    },
    "binomial": {
        "logit": Family(lambda _: named.Binomial(), kinds=("p",)),
        "probit": Family(lambda _: binomial_probit(), kinds=("p",)),
        "cloglog": Family(lambda _: binomial_cloglog(), kinds=("p",)),
        "cauchit": Family(lambda _: binomial_cauchit(), kinds=("p",)),
    },
    "zero_inflated_binomial": {"logit": Family(lambda _: zero_inflated_binomial(), kinds=("p",), latents=("zi",))},
    "beta_binomial": {"logit": _with(of_counts.BetaBinomial, "precision", 5.0, _OTHER, ("p",))},
    "poisson": {"log": Family(lambda _: of_counts.Poisson(), _LOG_MEAN)},
    "negbinomial": {"log": _with(of_counts.NegativeBinomial2, "dispersion", 1.0)},
    "nbinom1": {"log": _with(nbinom1, "phi", 1.0)},
    "genpois": {"log": _with(genpois, "phi", 0.5)},
    "truncated_poisson": {"log": Family(lambda _: truncated_poisson(), _LOG_MEAN)},
    "truncated_negbinomial": {"log": _with(truncated_negbinomial, "dispersion", 1.0)},
    "zero_inflated_poisson": {"log": Family(lambda _: of_counts.ZeroInflatedPoisson(), _LOG_MEAN, latents=("zi",))},
    "zero_inflated_negbinomial": {
        "log": _with(of_counts.ZeroInflatedNegativeBinomial, "dispersion", 1.0, latents=("zi",))
    },
    "hurdle_poisson": {"log": Family(lambda _: of_counts.HurdlePoisson(), _LOG_MEAN, latents=("hu",))},
    "hurdle_negbinomial": {"log": _with(of_counts.HurdleNegativeBinomial, "dispersion", 1.0, latents=("hu",))},
    "categorical": {
        "softmax": _classes(lambda count: named.sized(multinomial_logit(), "multinomial_logit", count, fewer=1), 1),
        "logistic_softmax": _classes(named.LogisticSoftmax),
        "stick_breaking": _classes(named.StickBreaking, None, -1),
    },
    "cumulative": {link: _ordinal(link) for link in ("logit", "probit", "cloglog", "cauchit")},
    "sratio": {"logit": _steps(sratio)},
    "acat": {"logit": _steps(acat)},
    "weibull": {"log": _survival(of_counts.Weibull)},
    "loglogistic": {"log": _survival(of_counts.LogLogistic)},
    "cox": {"log": Family(_cox, _LOG_RATE, kinds=("Surv",))},
}


def family_of(choice: object, link: str | None) -> Family:
    """Return the family of a name, a likelihood or a likelihood family; ValueError for others."""
    if isinstance(choice, LikelihoodFamily):
        choice = choice()
    if isinstance(choice, Likelihood):
        if link is not None:
            raise ValueError("link is for families by name: the link of a likelihood is in its formula.")
        size = choice.num_latents or 1
        mean = trace(choice.conditional_mean, size, choice.symbols).text() if choice.conditional_mean else ""
        relation = _RELATIONS.get(mean, _IDENTITY if choice.is_gaussian(size) else _OTHER)
        is_censored = isinstance(choice.support(size), supports.Censored | supports.IntervalCensored)
        return Family(lambda _: choice, relation, kinds=None, is_censored=is_censored)
    if not isinstance(choice, str) or choice not in _FAMILIES:
        low = str(choice).lower()
        name = low if low in _FAMILIES else FAMILIES.get(low)
        raise ValueError(
            f"family must be one of {', '.join(_FAMILIES)}, or a pgmodels likelihood; got {choice!r}."
            + (f" Write family={name!r}." if name else "")
        )
    links = _FAMILIES[choice]
    if link is not None and link not in links:
        raise ValueError(f"link of {choice} must be one of {', '.join(map(repr, links))}; got {link!r}.")
    return links[link or next(iter(links))]


def check_response(family: Family, choice: object, response: FormulaResponse, y: np.ndarray) -> int:
    """Return the number of levels of a response, 0 without levels; ValueError if the family does not accept it."""
    if family.kinds is not None and response.kind not in family.kinds:
        needed = " or ".join(_WRITTEN[kind] for kind in family.kinds)
        raise ValueError(
            f"formula: the response of family {choice!r} is {needed}; got {response.text}. {_REMEDIES[response.kind]}"
        )
    num_levels = len(response.levels)
    if not family.has_levels:
        is_of_labels = family.kinds is None or choice == "bernoulli"
        if num_levels not in ((0, 2) if is_of_labels else (0,)):
            raise ValueError(
                f"formula: the response {response.text} must be numbers{' or have two levels' * is_of_labels} for "
                f"family {choice!r}; it has {list(response.levels)!r}. Use 'bernoulli' for two levels, 'categorical', "
                "or 'cumulative' for ordered ones."
            )
    elif num_levels < 2:
        raise ValueError(f"formula: the response {response.text} has one level; family {choice!r} needs two or more.")
    return num_levels


class AdditivePredictor(NamedTuple):
    """Terms, whose sum with the offsets is a latent of the likelihood."""

    terms: list[of_terms.FormulaTerm]
    offsets: list[of_terms.Numbers]

    @property
    def has_offset(self) -> bool:
        """Whether it has offsets, or coefficients whose prior means are a line that is one."""
        return bool(self.offsets) or any(
            term.coefficients is not None and term.coefficients.means.any() for term in self.terms
        )

    def offset(self, frame: pd.DataFrame, name: str) -> np.ndarray:
        """Return the sum of its offsets (n,)."""
        columns = [offset.read(frame, name)[:, 0] for offset in self.offsets]
        columns += [term.read(frame, name) @ term.coefficients.means for term in self.terms if term.coefficients]
        return np.sum(columns, axis=0)


class PredictorStart(NamedTuple):
    """The scale of a latent, its prior mean, and whether its linear terms have an intercept."""

    scale: float = 1.0
    level: float = 0.0
    has_intercept: bool = True


class NamedLatents(NamedTuple):
    """A likelihood with latents for parameters; formulas by the number of the latent; names and starts of latents."""

    likelihood: Likelihood
    parsed: dict[int, Parsed]
    names: list[str]
    starts: list[PredictorStart]

    @classmethod
    def of(
        cls, likelihood: Likelihood, family: Family, parsed: Mapping[int | str, Parsed], first: PredictorStart
    ) -> Self:
        """Return the latents of formulas; ValueError for a formula of neither a latent nor a positive parameter."""
        size = likelihood.num_latents or 1 + max(number for number in parsed if isinstance(number, int))
        names, starts = ["", *(f"f[{number}]" for number in range(1, size))], [first, *[PredictorStart()] * (size - 1)]
        is_positive = {name: bool(p.positive) and p.length is None for name, p in likelihood.parameters.items()}
        by_number: dict[int, Parsed] = {}
        lows: dict[str, float] = {}
        for key, one in parsed.items():
            number, name = key, _PARAMETERS.get(key, key) if key not in is_positive else key
            if key in family.latents:
                number = 1 + family.latents.index(str(key))
                names[number] = str(key)
            elif isinstance(name, str) and is_positive.get(name, False):
                number = size + len(lows)
                # The degrees of freedom of Student's t are above 1, as brms has them.
                lows[name] = 1.0 if name == "df" else 0.0
                start = float(likelihood.parameters[name].value) - lows[name]
                if start <= 0.0:
                    raise ValueError(f"family: {name} of {likelihood.name} must start above 1 if {key} has a formula.")
                names, starts = [*names, str(key)], [*starts, PredictorStart(1.0, math.log(start))]
            if not isinstance(number, int) or number >= size + len(lows) or number in by_number:
                others = [key for key, name in _PARAMETERS.items() if is_positive.get(name)]
                there_are = [f"f[{number}]" for number in range(size)] + [*family.latents, *is_positive, *others]
                raise ValueError(
                    f"formula: {f'f[{key}]' if key == number else key} is no latent and no positive parameter of "
                    f"{likelihood.name}, or has a formula already; there are {', '.join(dict.fromkeys(there_are))}."
                )
            by_number[number] = one
        return cls(modelled(likelihood, size, lows) if lows else likelihood, by_number, names, starts)


def read_predictor(
    parsed: Parsed, number: int, latent: str, start: PredictorStart, data: of_terms.TrainingData, priors: dict[str, Any]
) -> AdditivePredictor:
    """Return the predictor of a parsed formula of a latent; priors of its terms are taken out of ``priors``.

    Default priors are of data in which each row occurs as often as it counts.
    """
    prefix = f"{latent}: " if latent else ""
    for call in parsed.calls:
        of_terms.check_call(call)
    offsets = [of_terms.Numbers(call.arguments, data, call.text) for call in parsed.calls if call.name == "offset"]
    level = start.level - sum(float(data.moments(offset)[0][0]) for offset in offsets)
    lines = {call.text: of_terms.lines_of(call, data) for call in parsed.calls}
    design = of_terms.DesignMatrix(
        parsed.linear, data, start.has_intercept, [one for some in lines.values() for one in some]
    )
    texts = [*design.names, *(call.text for call in parsed.calls), *(group.text for group in parsed.groups)]
    keys: dict[str, str] = {}
    for name in priors:
        if name.startswith(prefix):
            text = _same_term(name.removeprefix(prefix), texts)
            if text in keys:
                raise ValueError(f"priors has {keys[text]!r} and {name!r}, which are the same.")
            keys[text] = name
    chosen = {text: priors[name] for text, name in keys.items()}
    terms = [of_terms.linear_term(design, data, start.scale, level, chosen)] if design.names else []
    for call in parsed.calls:
        if call.name != "offset":
            term = of_terms.process_term(call, data, start.scale, chosen)
            names = [name for line in lines[call.text] for name in line.names]
            terms.append(term._replace(lines=tuple(map(design.names.index, names))))
    terms += [of_terms.group_term(group, data, start.scale, chosen) for group in parsed.groups]
    for text in set(keys) - set(chosen):
        del priors[keys[text]]
    return AdditivePredictor([term._replace(predictor=number, latent=latent) for term in terms], offsets)


def _same_term(name: str, texts: Sequence[str]) -> str:
    """The text of the term or coefficient that a name is but for spaces and an implied 1; the name if there is none."""
    names = [name]
    if "|" in name:
        try:
            _, parsed = parse(f"y ~ {name if name.startswith('(') else f'({name})'}")
            names += [group.text for group in parsed.groups] if len(parsed.groups) == 1 else []
        except ValueError:
            pass
    plain = {text.replace(" ", ""): text for text in texts}
    return next((plain[one.replace(" ", "")] for one in names if one.replace(" ", "") in plain), name)
