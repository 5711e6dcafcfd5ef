"""The interface of an augmentation rule, and rules for selections and differences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, ClassVar

import jax.numpy as jnp
from jax import Array

from pgmodels.augmentation.laws import Expected, Law
from pgmodels.augmentation.normal_form import Factor, Quadratic, factorise
from pgmodels.augmentation.predictors import ONE, ZERO, Auxiliary, SiteTerm, auxiliaries_of
from pgmodels.likelihoods.expression import Constant, Environment, Expression
from pgmodels.likelihoods.operations import Comparison, Sum, add, exp, factors_of, multiply, power, sigmoid
from pgmodels.likelihoods.printing import Chain, Part, Tree, integral, line, listed, words

if TYPE_CHECKING:
    from pgmodels.augmentation.derive import Deriver


class Rule(ABC):
    """One identity of the derivation. ``auxiliary`` and ``law`` are None if the factor needs none.

    A rule represents one factor of the likelihood. It has, as formulas: the pattern that it matches (``match``), the
    law of its auxiliary given the latents, its term of the local bound, and the site of the factor given the auxiliary.
    Auxiliaries that are drawn earlier in the chain are coefficients, read from ``env.parameters`` by name. ``parent``
    is the auxiliary of the rule that returned the factor, or None for a factor of the likelihood itself. The term of a
    parent includes the terms of its factors. ``coupled`` are latents of the factor without a site here; they are
    updated in another block.
    """

    title: ClassVar[str]
    # Once all factors are matched, rules are sorted by rank: an auxiliary is drawn after the auxiliaries in its law.
    rank: ClassVar[int]

    auxiliary: Auxiliary | None = None
    law: Law | None = None
    parent: Auxiliary | None = None
    factor: Expression
    positions: tuple[int, ...]
    coupled: tuple[int, ...] = ()
    # The factor that is passed on to later rules, as a function of the auxiliary.
    remaining_factor: Expression = ONE
    # Whether y depends on the factor's latents only through the auxiliary.
    separates: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def match(cls, factor: Factor, deriver: Deriver) -> tuple[Factor, ...] | None:
        """Match a factor that depends on latents: append a rule to ``deriver.rules`` and return the remaining factors.

        Returns None if the factor has another form. Raises NoAugmentationError if it has the form but violates a
        condition. Factors exp(...) are merged, and the remaining exponent is passed to the next rule.
        """

    def finish(self, deriver: Deriver) -> None:  # noqa: B027
        """Complete the rule after all factors are matched."""

    @abstractmethod
    def share(self) -> Expression:
        """Return the factor's term of the local bound, one number per datum."""

    @abstractmethod
    def log_joint(self, env: Environment) -> Array:
        """Return the log of the augmented factor, without the factors that later rules augment."""

    def log_factor(self, env: Environment, known: Container[str] = ()) -> Array:
        """Return the log of the factor with its auxiliary integrated out, given parents with names in ``known``."""
        return self.factor.log_evaluate(env)

    def identity(self) -> Tree:
        """Return the identity as a formula; by default the factor is the integral of the augmented factor."""
        if self.auxiliary is None:
            raise NotImplementedError(f"{type(self).__name__} has no auxiliary, and must define its identity.")
        return line(self.factor, "=", integral(self.augmented(), self.auxiliary))

    @abstractmethod
    def augmented(self) -> Part:
        """Return the augmented factor, without factors of later rules: a formula, or a printed tree to keep."""

    def conditional(self) -> Chain | None:
        """Return the complete conditional of the auxiliary as a formula, or None if there is none."""
        if self.auxiliary is None or self.law is None:
            return None
        conditioning = listed(*auxiliaries_of(self.factor), "f", "y")
        return line(self.auxiliary, "|", conditioning, "~", self.law.notation(self.auxiliary))

    def complete(self, children: Sequence[Auxiliary]) -> Law | None:
        """Return the auxiliary's law with the auxiliaries of the ``children``, its factors, integrated out, or None."""
        del children
        return None

    def prior(self) -> tuple[Expression, ...]:
        """Return the arguments of the auxiliary's prior."""
        return ()

    def sites(self) -> tuple[SiteTerm, ...]:
        """Return the sites of the factor given the auxiliary, as formulas."""
        return ()

    def coupled_sites(self, averaged: bool = False) -> tuple[SiteTerm, ...]:
        """Return the sites of coupled latents with the auxiliary integrated out; ``averaged`` for the sites of CAVI."""
        return ()

    def averaged(self) -> Law | None:
        """Return the auxiliary's law under the optimal q, a function of q's moments and of earlier auxiliaries."""
        return None

    def expectations(self) -> tuple[tuple[Expected, Expression], ...]:
        """Return expectations under the optimal q for the sites, as functions of earlier auxiliaries' expectations."""
        law = self.averaged()
        return () if self.auxiliary is None or law is None else ((Expected(self.auxiliary), law.mean()),)

    def has_no_mean(self, env: Environment) -> bool:
        """Return whether the auxiliary's posterior mean is infinite: its conditional mean is not integrable."""
        return False


def evaluate_sites(terms: tuple[SiteTerm, ...], env: Environment) -> tuple[Array, Array]:
    """Return the sum of the sites at latent values and auxiliaries, (..., n, latents) each."""
    potential, precision = jnp.zeros_like(env.f), jnp.zeros_like(env.f)
    for term in terms:
        h, w = term.predictor.site(term.potential.evaluate(env), term.precision.evaluate(env), env)
        potential, precision = potential + h, precision + w
    return potential, precision


def quadratic_sites(quadratic: Quadratic, multiplier: Expression) -> tuple[SiteTerm, ...]:
    """Return the sites of exp(-multiplier * quadratic)."""
    return tuple(SiteTerm(s.predictor, ZERO, multiply(2.0, multiplier, s.weight)) for s in quadratic.squares)


class Rewriting(Rule):
    """An identity without an auxiliary, which only rewrites a factor as other factors."""

    rank = 0

    def __init__(self, factor: Factor, written: Expression):
        self.factor, self.written, self.parent = power(factor.base, factor.exponent), written, factor.parent
        self.positions = ()

    def share(self) -> Expression:
        return ZERO

    def log_joint(self, env: Environment) -> Array:
        return jnp.zeros((1, 1))

    def log_factor(self, env: Environment, known: Container[str] = ()) -> Array:
        return jnp.zeros((1, 1))

    def identity(self) -> Tree:
        return line(self.factor, "=", self.written)

    def augmented(self) -> Expression:
        return ONE


class SelectionRule(Rewriting):
    """Σ_k [y = k] p_k, a sum over values of y: Π_k p_k^[y = k]."""

    title = "Selection"

    @classmethod
    def match(cls, factor: Factor, deriver: Deriver) -> tuple[Factor, ...] | None:
        base = factor.base
        if not isinstance(base, Sum):
            return None
        # Each term is an indicator of a value, or 1, times the remaining factors.
        cases: list[tuple[Expression, Expression]] = []
        for child in base.children:
            factors = factors_of(child)
            indicator = next((factor for factor in factors if value_of(factor) is not None), ONE)
            cases.append((indicator, multiply(*(factor for factor in factors if factor is not indicator))))
        indicators = [indicator for indicator, _ in cases]
        if not exclusive(indicators):
            return None
        deriver.require(add(*indicators), "positive", words("the number of terms that y selects in"), base)
        chosen = multiply(*(power(part, indicator) for indicator, part in cases))
        deriver.rules.append(cls(factor, power(chosen, factor.exponent)))
        return tuple(
            Factor(inner.base, multiply(inner.exponent, indicator, factor.exponent), factor.parent)
            for indicator, part in cases
            for inner in factorise(part, deriver.size)
        )


def value_of(indicator: Expression) -> float | None:
    """Return the number that an indicator compares with, or None if it is not an indicator of a value."""
    if isinstance(indicator, Comparison) and indicator.operator == "==" and isinstance(indicator.rhs, Constant):
        return indicator.rhs.value
    return None


def exclusive(expressions: list[Expression]) -> bool:
    """Return whether all are indicators of different values of one coefficient, so that at most one holds."""
    coefficients = {part.lhs.key for part in expressions if isinstance(part, Comparison)}
    values = {value_of(part) for part in expressions}
    return None not in values and len(values) == len(expressions) and len(coefficients) == 1


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
