"""Exponentials of -R σ(z): Poisson."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgmodels.augmentation.averages import Thinning, Tilde, mean_quadratic
from pgmodels.augmentation.laws import Poisson
from pgmodels.augmentation.normal_form import Factor, Term, exponent_of
from pgmodels.augmentation.predictor import Predictor
from pgmodels.augmentation.quadratic import Quadratic, read_completed
from pgmodels.augmentation.rules.rule import ONE, Rule, quadratic_sites
from pgmodels.augmentation.symbols import Auxiliary, SiteTerm, over_latents
from pgmodels.likelihoods.algebra import add, multiply, power
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.functions import exp, sigmoid
from pgmodels.likelihoods.notation import Tree, density, factors, line, over, words
from pgmodels.likelihoods.operations import Call

if TYPE_CHECKING:
    from pgmodels.augmentation.derive import Deriver


class PoissonRule(Rule):
    """exp(-R σ(z)), R >= 0, with k ~ Poisson(R σ(-z)) (Galy-Fajou et al. 2019, section 3.1, augmentation 2).

    R is a coefficient, an auxiliary of an earlier rule, or a non-negative quadratic in other latents.
    """

    title = "Poisson"
    rank = 4
    auxiliary: Auxiliary
    law: Poisson

    def __init__(self, name: str, predictor: Predictor, rate: Quadratic, parent: Auxiliary | None):
        self.predictor, self.rate, self.parent = predictor, rate, parent
        self.positions, self.coupled = predictor.positions, rate.positions
        self.up, self.down = sigmoid(predictor.expression), sigmoid(multiply(-1.0, predictor.expression))
        self.factor = exp(multiply(-1.0, rate.expression, self.up))
        self.auxiliary = Auxiliary(name, predictor.is_vector or rate.expression.is_vector)
        self.law = Poisson(multiply(rate.expression, self.down))
        self.remaining_factor = power(self.down, self.auxiliary)

    @classmethod
    def match(cls, factor: Factor, deriver: Deriver) -> tuple[Factor, ...] | None:
        terms = exponent_of(factor, deriver.size)
        rates: dict[tuple, tuple[Call, list[Term]]] = {}
        rest: list[Expression] = []
        for term in terms or ():
            links = [atom for atom in term.atoms if isinstance(atom, Call) and atom.name == "sigmoid"]
            if len(links) == 1:
                others = tuple(atom for atom in term.atoms if atom is not links[0])
                rates.setdefault(links[0].key, (links[0], []))[1].append(Term(term.coefficient, others, term.reduced))
            else:
                rest.append(term.expression)
        if not rates:
            return None
        counts = []
        for link, rate_terms in rates.values():
            rule, constant = cls._of_rate(link, rate_terms, factor.parent, deriver)
            deriver.rules.append(rule)
            rest.append(constant)
            counts.append(Factor(rule.down, rule.auxiliary, rule.auxiliary))
        return *counts, Factor(exp(add(*rest)), ONE, factor.parent)

    @classmethod
    def _of_rate(
        cls, link: Call, terms: list[Term], parent: Auxiliary | None, deriver: Deriver
    ) -> tuple[PoissonRule, Expression]:
        """The rule for exp(-R σ(z)), and the constant that remains in the exponent."""
        formula = exp(add(*(multiply(t.coefficient, *t.atoms, link) for t in terms)))
        predictor = deriver.predictor(link.argument, formula)
        rate = read_completed([Term(multiply(-1.0, t.coefficient), t.atoms, False) for t in terms])
        if rate is None:
            raise deriver.no_rule(formula, "exp(-R σ(z)) with R >= 0 a coefficient or a quadratic in other latents")
        if set(rate.positions) & set(predictor.positions):
            raise deriver.no_rule(formula, "exp(-R σ(z)) with R free of the latent in z")
        if not rate.squares and rate.constant.sign == -1:
            # exp(R σ(z)) = exp(R) exp(-R σ(-z))
            constant = multiply(-1.0, rate.constant)
            deriver.require(constant, "nonnegative", words("the rate in"), formula)
            rule = cls(deriver.name("k"), predictor.negated(), Quadratic(constant, ()), parent)
            return rule, over_latents(constant)
        if rate.expression.is_vector and not predictor.is_vector and rate.squares:
            raise deriver.no_rule(formula, "a rate with one value a datum")
        deriver.require_quadratic(rate, formula)
        return cls(deriver.name("k"), predictor, rate, parent), add(0.0)

    def share(self) -> Expression:
        return over_latents(multiply(-1.0, mean_quadratic(self.rate), Thinning(self.predictor)))

    def log_joint(self, env: Environment) -> Any:
        return Poisson(self.rate.expression).log_density(self.auxiliary.evaluate(env), env)

    def identity(self) -> Tree:
        return line(self.factor, "=", over("Σ", self.auxiliary, factors(self.augmented(), self.remaining_factor)))

    def augmented(self) -> Tree:
        return density("Poisson", self.auxiliary, self.rate.expression)

    def prior(self) -> tuple[Expression, ...]:
        return (self.rate.expression,)

    def coupled_sites(self, averaged: bool = False) -> tuple[SiteTerm, ...]:
        return quadratic_sites(self.rate, Thinning(self.predictor) if averaged else self.up)

    def averaged(self) -> Poisson:
        return Poisson(multiply(mean_quadratic(self.rate), Tilde(self.predictor, -1)))
