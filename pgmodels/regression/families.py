"""Likelihoods of regression formulas by name."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpyro.distributions as dist

from pgmodels.likelihoods.counts import Poisson
from pgmodels.likelihoods.likelihood import Likelihood, LikelihoodFamily
from pgmodels.likelihoods.named import (
    Bernoulli,
    Binomial,
    Gaussian,
    Laplace,
    NegativeBinomial,
    Probit,
    StudentT,
)
from pgmodels.parameters.parameter import Fixed, Parameter


class Family(NamedTuple):
    """A likelihood made of the scale of y and priors, and whether f has the units of y."""

    make: Callable[[float, dict[str, Any]], Likelihood]
    is_identity: bool


def _noise(scale: float, priors: dict[str, Any]) -> Any:
    return _declared("scale", 0.5 * scale, priors)


def _declared(name: str, start: float, priors: dict[str, Any]) -> Any:
    """A positive parameter of a family: as in the priors, or log-normal about a start value."""
    chosen = priors.pop(name, dist.LogNormal(math.log(start), 1.0))
    return Parameter(start, positive=True, prior=chosen) if isinstance(chosen, dist.Distribution) else chosen


_FAMILIES: dict[str, dict[str, Family]] = {
    "gaussian": {"identity": Family(lambda scale, priors: Gaussian(_noise(scale, priors)), True)},
    "student": {"identity": Family(lambda scale, priors: StudentT(Fixed(4.0), _noise(scale, priors)), True)},
    "laplace": {"identity": Family(lambda scale, priors: Laplace(_noise(scale, priors)), True)},
    "bernoulli": {
        "logit": Family(lambda *_: Bernoulli(), False),
        "probit": Family(lambda *_: Probit(), False),
    },
    "binomial": {"logit": Family(lambda *_: Binomial(), False)},
    "negbinomial": {"log": Family(lambda _, priors: NegativeBinomial(_declared("dispersion", 1.0, priors)), False)},
    "poisson": {"log": Family(lambda *_: Poisson(), False)},
}


def family_of(choice: Any, link: str | None) -> Family:
    """The family of a name, a likelihood or a likelihood family; ValueError for others."""
    if isinstance(choice, LikelihoodFamily):
        choice = choice()
    if isinstance(choice, Likelihood):
        if link is not None:
            raise ValueError("link is for families by name: the link of a likelihood is in its formula.")
        return Family(lambda *_: choice, choice.is_gaussian(choice.num_latents or 1))
    if choice not in _FAMILIES:
        raise ValueError(
            f"family must be one of {', '.join(map(repr, _FAMILIES))}, or a pgmodels likelihood; got {choice!r}."
        )
    links = _FAMILIES[choice]
    if link is not None and link not in links:
        raise ValueError(f"link of {choice} must be one of {', '.join(map(repr, links))}; got {link!r}.")
    return links[link or next(iter(links))]
