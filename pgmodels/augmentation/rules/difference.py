"""Differences of sigmoids: interval probabilities of a logistic variable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgmodels.augmentation.normal_form import Factor
from pgmodels.augmentation.rules.rule import Rewriting
from pgmodels.likelihoods.algebra import add, multiply
from pgmodels.likelihoods.functions import exp, sigmoid
from pgmodels.likelihoods.notation import words
from pgmodels.likelihoods.operations import Sum

if TYPE_CHECKING:
    from pgmodels.augmentation.derive import Deriver


class DifferenceRule(Rewriting):
    """σ(a) - σ(b), a - b > 0 free of f: σ(a) σ(-b) (1 - exp(b - a)), as in ordered and interval-censored logit."""

    title = "Difference"

    @classmethod
    def match(cls, factor: Factor, deriver: Deriver) -> tuple[Factor, ...] | None:
        difference = factor.base.difference if isinstance(factor.base, Sum) else None
        if difference is None or difference.name != "sigmoid" or difference.upper is None or difference.gap is None:
            return None
        deriver.require(difference.gap, "positive", words("the width of the interval in"), factor.base)
        width = add(1.0, multiply(-1.0, exp(multiply(-1.0, difference.gap))))
        factors = (difference.weight, width, sigmoid(difference.upper), sigmoid(multiply(-1.0, difference.lower)))
        deriver.rules.append(cls(Factor(factor.base, add(1.0), factor.parent), multiply(*factors)))
        return tuple(Factor(base, factor.exponent, factor.parent) for base in factors)
