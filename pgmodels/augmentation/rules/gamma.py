"""Sums of sigmoids to a negative power: Gamma."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import jax.scipy.special as jsp

from pgmodels.augmentation.averages import Thinning
from pgmodels.augmentation.laws import Gamma
from pgmodels.augmentation.normal_form import Factor, Term, expand
from pgmodels.augmentation.predictor import Predictor
from pgmodels.augmentation.rules.rule import ONE, ZERO, Rule
from pgmodels.augmentation.symbols import Auxiliary, Logarithm, WeightedSum, over_latents
from pgmodels.likelihoods.algebra import add, multiply, power
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.functions import exp, sigmoid
from pgmodels.likelihoods.functions import gamma as gamma_function
from pgmodels.likelihoods.notation import Tree, integral, line, words
from pgmodels.likelihoods.operations import Call, Power, Reduction, Sum
from pgmodels.likelihoods.symbols import Constant

if TYPE_CHECKING:
    from pgmodels.augmentation.derive import Deriver

# The weight, the predictor and whether the term is a sum over the latents.
Weighted = tuple[Expression, Predictor, bool]


class GammaRule(Rule):
    """S^-p, S = c + Σ_j w_j σ(z_j), with λ ~ Gamma(p, rate S) (Galy-Fajou et al. 2019, section 3.1, augmentation 1)."""

    title = "Gamma"
    rank = 2
    auxiliary: Auxiliary
    law: Gamma

    def __init__(
        self,
        name: str,
        base: Expression,
        exponent: Expression,
        constant: Expression,
        terms: tuple[Weighted, ...],
        parent: Auxiliary | None,
    ):
        self.base, self.exponent, self.constant, self.terms, self.parent = base, exponent, constant, terms, parent
        self.positions = tuple(sorted({p for _, predictor, _ in terms for p in predictor.positions}))
        self.factor = power(base, multiply(-1.0, exponent))
        self.auxiliary = Auxiliary(name, base.is_vector or exponent.is_vector)
        links = [sigmoid(predictor.expression) for _, predictor, _ in terms]
        self.law = Gamma(exponent, WeightedSum(base, constant, self._terms(links)))
        self.remaining_factor = exp(multiply(-1.0, self.auxiliary, self._sum(links)))

    def _terms(self, links: Sequence[Expression]) -> list[tuple[Expression, Expression, bool]]:
        """(weight, link, whether summed over the latents) of each term."""
        return [(weight, link, reduced) for (weight, _, reduced), link in zip(self.terms, links, strict=True)]

    def _sum(self, links: Sequence[Expression]) -> Expression:
        """Σ_j w_j link_j."""
        products = ((multiply(weight, link), reduced) for weight, link, reduced in self._terms(links))
        return add(*(over_latents(product) if reduced else product for product, reduced in products))

    @classmethod
    def match(cls, factor: Factor, deriver: Deriver) -> tuple[Factor, ...] | None:
        base, formula = factor.base, factor.expression
        if factor.exponent.sign != -1:
            return None
        if isinstance(base, Call):
            if base.name != "sigmoid":
                return None
            terms = [Term(ONE, (base,))]
        elif isinstance(base, (Sum, Reduction, Power)):
            terms = expand(base, deriver.size)
        else:
            return None
        links = [term for term in terms if _is_link(term)]
        if not links:
            return None
        constant = add(*(term.coefficient for term in terms if not term.atoms))
        if len(links) + sum(not term.atoms for term in terms) != len(terms):
            raise deriver.no_rule(formula, "a sum whose terms are constants and w σ(z), w >= 0")
        weighted = []
        for term in links:
            predictor = deriver.predictor(term.atoms[0].argument, formula)  # type: ignore[attr-defined]
            reason = (words("the weight of"), term.atoms[0], words("in"), formula)
            deriver.require(term.coefficient, "nonnegative", *reason)
            weighted.append((term.coefficient, predictor, term.reduced))
        if any(expression.sign == -1 for expression in (constant, *(weight for weight, _, _ in weighted))):
            raise deriver.no_rule(formula, "a sum of w σ(z) and a constant, all >= 0, to a negative power")
        deriver.check_plates(base, factor.exponent, any(reduced for _, _, reduced in weighted), formula)
        deriver.require(constant, "nonnegative", words("the constant in"), formula)
        p = multiply(-1.0, factor.exponent)
        deriver.require(p, "nonnegative", words("minus the exponent of"), base)
        rule = cls(deriver.name("λ"), base, p, constant, tuple(weighted), factor.parent)
        deriver.rules.append(rule)
        return tuple(
            Factor(exp(multiply(-1.0, rule.auxiliary, weight, sigmoid(predictor.expression))), ONE, rule.auxiliary)
            for weight, predictor, _ in weighted
        )

    @cached_property
    def mean_base(self) -> WeightedSum:
        """S at the moments of q, with σ̃(z) for each σ(z)."""
        links = [Thinning(predictor) for _, predictor, _ in self.terms]
        written = add(self.constant, self._sum([link.written for link in links]))
        return WeightedSum(written, self.constant, self._terms(links))

    @cached_property
    def total_rate(self) -> Expression:
        """The largest value of S, c + Σ_j w_j."""
        weights = []
        for weight, predictor, reduced in self.terms:
            if reduced and not weight.is_vector:
                weights.append(multiply(float(len(predictor.positions)), weight))
            else:
                weights.append(over_latents(weight) if reduced else weight)
        return add(self.constant, *weights)

    def share(self) -> Expression:
        return over_latents(multiply(-1.0, self.exponent, Logarithm(self.mean_base)))

    def log_joint(self, env: Environment) -> Any:
        p, value = self.exponent.evaluate(env), self.auxiliary.evaluate(env)
        log_density = jsp.xlogy(p - 1, value) - jsp.gammaln(p) - value * self.constant.evaluate(env)
        return jnp.where(p > 0, log_density, 0.0)

    def complete(self, children: Sequence[Auxiliary]) -> Gamma:
        """λ | k ~ Gamma(p + Σ k, rate c + Σ w) given the counts of its Poisson rules."""
        counts = children if self.auxiliary.is_vector else map(over_latents, children)
        return Gamma(add(self.exponent, *counts), self.total_rate)

    def identity(self) -> Tree:
        mixed = gamma_mixed(self.auxiliary, self.exponent, self.base)
        return line(self.factor, "=", integral(mixed, self.auxiliary))

    def augmented(self) -> Expression:
        return gamma_mixed(self.auxiliary, self.exponent, self.constant)

    def prior(self) -> tuple[Expression, ...]:
        return (self.exponent,)

    def averaged(self) -> Gamma:
        return Gamma(self.exponent, self.mean_base)


def _is_link(term: Term) -> bool:
    return len(term.atoms) == 1 and isinstance(term.atoms[0], Call) and term.atoms[0].name == "sigmoid"


def gamma_mixed(auxiliary: Auxiliary, exponent: Expression, rate: Expression) -> Expression:
    """ω^(p - 1) / Γ(p) exp(-ω rate)."""
    trivial = isinstance(exponent, Constant) and exponent.value in (1.0, 2.0)
    scale = ONE if trivial else power(gamma_function(exponent), -1.0)
    powers = power(auxiliary, add(exponent, -1.0))
    exponential = exp(multiply(-1.0, auxiliary, rate)) if rate.key != ZERO.key else ONE
    return multiply(powers, exponential, scale)
