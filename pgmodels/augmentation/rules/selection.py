"""Sums over the values of y, of which y selects one term."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgmodels.augmentation.normal_form import Factor, factorise
from pgmodels.augmentation.rules.rule import Rewriting
from pgmodels.likelihoods.algebra import add, multiply, power
from pgmodels.likelihoods.expression import Expression
from pgmodels.likelihoods.notation import words
from pgmodels.likelihoods.operations import Comparison, Product, Sum
from pgmodels.likelihoods.symbols import Constant

if TYPE_CHECKING:
    from pgmodels.augmentation.derive import Deriver


class SelectionRule(Rewriting):
    """Σ_k [y = k] p_k, a sum over values of y: Π_k p_k^[y = k]."""

    title = "Selection"

    @classmethod
    def match(cls, factor: Factor, deriver: Deriver) -> tuple[Factor, ...] | None:
        base = factor.base
        if not isinstance(base, Sum):
            return None
        cases = [_case(child) for child in base.children]
        indicators = [indicator for indicator, _ in cases if indicator is not None]
        if len(indicators) < len(cases) or not exclusive(indicators):
            return None
        deriver.require(add(*indicators), "positive", words("the number of terms that y selects in"), base)
        chosen = multiply(*(power(part, indicator) for indicator, part in cases if indicator is not None))
        deriver.rules.append(cls(factor, power(chosen, factor.exponent)))
        return tuple(
            Factor(inner.base, multiply(inner.exponent, indicator, factor.exponent), factor.parent)
            for indicator, part in cases
            if indicator is not None
            for inner in factorise(part, deriver.size)
        )


def _case(term: Expression) -> tuple[Comparison | None, Expression]:
    """Split a term into an indicator of a value and the remaining factors."""
    factors = term.children if isinstance(term, Product) else (term,)
    indicator = next((factor for factor in factors if value_of(factor) is not None), None)
    return indicator, multiply(*(factor for factor in factors if factor is not indicator))  # type: ignore[return-value]


def value_of(indicator: Expression) -> float | None:
    """The number that an indicator compares with; None if it is not an indicator of a value."""
    compares = isinstance(indicator, Comparison) and indicator.operator == "=="
    if compares and isinstance(indicator.rhs, Constant):  # type: ignore[attr-defined]
        return indicator.rhs.value  # type: ignore[attr-defined]
    return None


def exclusive(indicators: list[Comparison]) -> bool:
    """Whether indicators compare one coefficient with different numbers, so that at most one holds."""
    values = {value_of(indicator) for indicator in indicators}
    return len(values) == len(indicators) and len({indicator.lhs.key for indicator in indicators}) == 1
