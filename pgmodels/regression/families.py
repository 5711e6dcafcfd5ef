"""Likelihoods of regression formulas by name."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpyro.distributions as dist

from pgmodels.likelihoods import named
from pgmodels.likelihoods.bounded import Beta, Gamma, LogNormal
from pgmodels.likelihoods.censoring import Censored, IntervalCensored
from pgmodels.likelihoods.counts import (
    BetaBinomial,
    HurdleNegativeBinomial,
    HurdlePoisson,
    NegativeBinomial2,
    Poisson,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)
from pgmodels.likelihoods.functions import exp, positions, prod, sum_
from pgmodels.likelihoods.likelihood import Likelihood, LikelihoodFamily, likelihood, trace
from pgmodels.likelihoods.measurements import KnownNoise
from pgmodels.likelihoods.ordinal import Ordinal
from pgmodels.likelihoods.supports import Classes
from pgmodels.likelihoods.survival import LogLogistic, Weibull
from pgmodels.parameters.parameter import Fixed, Parameter
from pgmodels.regression.columns import moments
from pgmodels.regression.foreign import FAMILIES
from pgmodels.regression.response import Response
from pgmodels.regression.terms import half_student

# How the first latent relates to y: in its units, as the logarithm of its mean, of y itself, or neither.
_IDENTITY, _LOG_MEAN, _LOG, _OTHER = "identity", "log mean", "log", "other"
# By the mean of y.
_RELATIONS = {"f": _IDENTITY, "f[0]": _IDENTITY, "exp(f)": _LOG_MEAN, "exp(f[0])": _LOG_MEAN}
# The prior deviation of the logarithms of precisions, dispersions and shapes: 95 % within a factor of 350.
_WIDE = 3.0


class Settings(NamedTuple):
    """What a family is made of: the scale of its first latent, priors of parameters, and the response."""

    scale: float
    priors: dict[str, Any]
    response: Response
    num_levels: int

    def positive(self, name: str, start: float, prior: Any = None) -> Any:
        """A positive parameter: as in the priors, or with a prior, by default log-normal about the start value."""
        default = dist.LogNormal(math.log(start), _WIDE) if prior is None else prior
        chosen = self.priors.pop(name, default)
        return Parameter(start, positive=True, prior=chosen) if isinstance(chosen, dist.Distribution) else chosen

    def noise(self) -> Any:
        """The scale of noise, in units of the first latent, which summaries call sigma."""
        return self.positive(
            "sigma" if "sigma" in self.priors else "scale",
            0.5 * self.scale,
            dist.FoldedDistribution(half_student(self.scale)),
        )


class Family(NamedTuple):
    """A likelihood by its settings, how its first latent relates to y, and whether y has labels or levels.

    ``is_ordered``: without an intercept, which cutpoints have; ``classes``: those that have a latent of each term;
    ``kinds``: those of its responses, or None for any; ``is_censored``: whether y has times and their codes.
    """

    make: Callable[[Settings], Likelihood]
    relation: str = _OTHER
    is_ordered: bool = False
    classes: slice | None = None
    kinds: tuple[str, ...] | None = ("column",)
    is_censored: bool = False

    @property
    def has_levels(self) -> bool:
        """Whether y are labels or levels."""
        return self.is_ordered or self.classes is not None

    def start(self, y: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
        """The scale of the first latent and its prior mean, of rows that count as often as they have weight.

        The scale is the standard deviation of y or, where the latent is a logarithm, of that, and then at least 1.
        Censored rows count only where there are no others.
        """
        known = counts * (y[:, 1] == 1.0) if self.is_censored else counts
        counts, y = known if known.any() else counts, y[:, 0]
        mean, deviation = moments(y, counts)
        if self.relation == _IDENTITY:
            return float(deviation) or 1.0, float(mean)
        if self.relation == _OTHER or mean <= 0 or (self.relation == _LOG and not (y > 0).all()):
            return 1.0, 0.0
        # Counts of 0 have no logarithm.
        middle, deviation = moments(np.log(np.where(y > 0, y, 0.5)), counts)
        return max(1.0, float(deviation)), float(middle) if self.relation == _LOG else math.log(mean)


def _gaussian(settings: Settings) -> Likelihood:
    return KnownNoise() if settings.response.kind == "se" else named.Gaussian(settings.noise())


def _ordinal(link: str) -> Callable[[Settings], Likelihood]:
    def make(settings: Settings) -> Likelihood:
        cuts = settings.priors.pop("cuts", dist.StudentT(3.0, 0.0, 2.5))
        return Ordinal(settings.num_levels, link=link, cuts=cuts)

    return make


def _survival(constructor: Any) -> Family:
    def make(settings: Settings) -> Likelihood:
        assert settings.response.censoring is not None
        return constructor(settings.positive("shape", 1.0), censoring=settings.response.censoring)

    return Family(make, _LOG, kinds=("Surv",), is_censored=True)


def _with(
    constructor: Any, parameter: str, start: float, relation: str = _LOG_MEAN, kinds: tuple[str, ...] = ("column",)
) -> Family:
    """A family with one positive parameter."""
    return Family(lambda settings: constructor(settings.positive(parameter, start)), relation, kinds=kinds)


@likelihood
def multinomial_logit(y: Any, f: Any) -> Any:
    """A class y with log odds f[c - 1] of class c and class 0, the reference."""
    return prod(exp(f) ** (y == positions(f) + 1)) / (1 + sum_(exp(f)))


def _multinomial_logit(num_classes: int) -> Likelihood:
    return replace(multinomial_logit(), declared_support=Classes(num_classes), num_latents=num_classes - 1)


def _classes(constructor: Any, first: int | None = None, last: int | None = None) -> Family:
    return Family(lambda settings: constructor(settings.num_levels), classes=slice(first, last))


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
    "Surv": "Times need family='weibull' or 'loglogistic'.",
    "c": "Further columns are for a likelihood of your own.",
}
_FAMILIES: dict[str, dict[str, Family]] = {
    "gaussian": {"identity": Family(_gaussian, _IDENTITY, kinds=("column", "se"))},
    "student": {"identity": Family(lambda one: named.StudentT(Fixed(4.0), one.noise()), _IDENTITY)},
    "laplace": {"identity": Family(lambda one: named.Laplace(one.noise()), _IDENTITY)},
    "lognormal": {"identity": Family(lambda one: LogNormal(one.noise()), _LOG)},
    "gamma": {"log": _with(Gamma, "shape", 1.0)},
    "beta": {"logit": _with(Beta, "precision", 5.0, _OTHER)},
    "bernoulli": {"logit": Family(lambda _: named.Bernoulli()), "probit": Family(lambda _: named.Probit())},
    "binomial": {"logit": Family(lambda _: named.Binomial(), kinds=("p",))},
    "beta_binomial": {"logit": _with(BetaBinomial, "precision", 5.0, _OTHER, ("p",))},
    "poisson": {"log": Family(lambda _: Poisson(), _LOG_MEAN)},
    "negbinomial": {"log": _with(NegativeBinomial2, "dispersion", 1.0)},
    "zero_inflated_poisson": {"log": Family(lambda _: ZeroInflatedPoisson(), _LOG_MEAN)},
    "zero_inflated_negbinomial": {"log": _with(ZeroInflatedNegativeBinomial, "dispersion", 1.0)},
    "hurdle_poisson": {"log": Family(lambda _: HurdlePoisson(), _LOG_MEAN)},
    "hurdle_negbinomial": {"log": _with(HurdleNegativeBinomial, "dispersion", 1.0)},
    "categorical": {
        "softmax": _classes(_multinomial_logit, 1),
        "logistic_softmax": _classes(named.LogisticSoftmax),
        "stick_breaking": _classes(named.StickBreaking, None, -1),
    },
    "cumulative": {
        "logit": Family(_ordinal("logit"), is_ordered=True),
        "probit": Family(_ordinal("probit"), is_ordered=True),
    },
    "weibull": {"log": _survival(Weibull)},
    "loglogistic": {"log": _survival(LogLogistic)},
}


def family_of(choice: Any, link: str | None) -> Family:
    """The family of a name, a likelihood or a likelihood family; ValueError for others."""
    if isinstance(choice, LikelihoodFamily):
        choice = choice()
    if isinstance(choice, Likelihood):
        if link is not None:
            raise ValueError("link is for families by name: the link of a likelihood is in its formula.")
        size = choice.num_latents or 1
        mean = trace(choice.conditional_mean, size, choice.symbols).text() if choice.conditional_mean else ""
        relation = _RELATIONS.get(mean, _IDENTITY if choice.is_gaussian(size) else _OTHER)
        is_censored = isinstance(choice.support(size), Censored | IntervalCensored)
        return Family(lambda _: choice, relation, kinds=None, is_censored=is_censored)
    if not isinstance(choice, str) or choice not in _FAMILIES:
        low = str(choice).lower()
        name = low if low in _FAMILIES else FAMILIES.get(low)
        raise ValueError(
            f"family must be one of {', '.join(map(repr, _FAMILIES))}, or a pgmodels likelihood; got {choice!r}."
            + (f" Write family={name!r}." if name else "")
        )
    links = _FAMILIES[choice]
    if link is not None and link not in links:
        raise ValueError(f"link of {choice} must be one of {', '.join(map(repr, links))}; got {link!r}.")
    return links[link or next(iter(links))]


def check_response(family: Family, choice: Any, response: Response, y: np.ndarray) -> int:
    """The number of levels of a response, 0 if it has none; ValueError for a response that a family cannot have."""
    if family.kinds is not None and response.kind not in family.kinds:
        needed = " or ".join(_WRITTEN[kind] for kind in family.kinds)
        raise ValueError(
            f"formula: the response of family {choice!r} is {needed}; got {response.text}. {_REMEDIES[response.kind]}"
        )
    if not family.has_levels:
        is_of_labels = family.kinds is None or choice == "bernoulli"
        if len(response.levels) not in ((0, 2) if is_of_labels else (0,)):
            raise ValueError(
                f"formula: the response {response.text} must be numbers{' or have two levels' * is_of_labels} for "
                f"family {choice!r}; it has {list(response.levels)!r}. Use 'bernoulli' for two levels, 'categorical', "
                "or 'cumulative' for ordered ones."
            )
        return len(response.levels)
    num_levels = len(response.levels)
    if num_levels < 2:
        raise ValueError(f"formula: the response {response.text} has one level; family {choice!r} needs two or more.")
    return num_levels
