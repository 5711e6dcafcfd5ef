"""Rules with Pólya-Gamma, Poisson and Gamma variables, and rules of mixtures."""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np
from jax import Array

from pgmodels.augmentation.laws import (
    Categorical,
    Expected,
    Gamma,
    InverseGaussian,
    Poisson,
    PolyaGamma,
    PositivePoisson,
    Root,
    Thinning,
    Tilde,
    mean_quadratic,
    where,
)
from pgmodels.augmentation.normal_form import Factor, Quadratic, Term, expand, exponent_of, factorise, read_completed
from pgmodels.augmentation.predictors import (
    Allocated,
    Auxiliary,
    Logarithm,
    Predictor,
    SiteTerm,
    WeightedSum,
    group_by_component,
    over_latents,
    positions_of,
    split_latents,
    subexpressions,
)
from pgmodels.augmentation.rules.rule import ONE, ZERO, Rule, quadratic_sites
from pgmodels.likelihoods.expression import Constant, Environment, Expression, Latent, Observation
from pgmodels.likelihoods.operations import (
    Call,
    Power,
    Reduction,
    Sum,
    add,
    exp,
    factors_of,
    log,
    multiply,
    power,
    sigmoid,
    split_number,
    substitute,
)
from pgmodels.likelihoods.operations import gamma as gamma_function
from pgmodels.likelihoods.printing import Tree, call, density, factors, integral, inverse_power, line, over, words

if TYPE_CHECKING:
    from pgmodels.augmentation.derive import Deriver


class PolyaGammaRule(Rule):
    """σ(z)^a σ(-z)^b, with conditional ω | z ~ PG(a + b, z) (Polson, Scott and Windle 2013, theorem 1)."""

    title = "Pólya-Gamma"
    rank = 5
    auxiliary: Auxiliary
    law: PolyaGamma

    def __init__(self, predictor: Predictor):
        self.predictor = predictor
        self.positions = predictor.positions
        # (parent of the factor, exponent of σ(z), exponent of σ(-z)).
        self.exponents: list[tuple[Auxiliary | None, Expression, Expression]] = []

    @classmethod
    def match(cls, factor: Factor, deriver: Deriver) -> tuple[Factor, ...] | None:
        base, exponent = factor.base, factor.exponent
        if not (isinstance(base, Call) and base.name == "sigmoid") or exponent.sign == -1:
            return None
        predictor = deriver.predictor(base.argument, factor.expression)
        deriver.require(exponent, "nonnegative", words("the exponent of"), base)
        same = {rule.predictor.key: rule for rule in deriver.rules if isinstance(rule, cls)}
        if predictor.key in same:
            same[predictor.key].exponents.append((factor.parent, exponent, ZERO))
        elif predictor.negated().key in same:
            same[predictor.negated().key].exponents.append((factor.parent, ZERO, exponent))
        else:
            rule = cls(predictor)
            rule.exponents.append((factor.parent, exponent, ZERO))
            deriver.rules.append(rule)
        return ()

    def finish(self, deriver: Deriver) -> None:
        from_likelihood = [part for part in self.exponents if part[0] is None]
        from_rules = [part for part in self.exponents if part[0] is not None]
        self.a, self.b = add(*(a for _, a, _ in from_likelihood)), add(*(b for _, _, b in from_likelihood))
        self.up, self.down = add(self.a, *(a for _, a, _ in from_rules)), add(self.b, *(b for _, _, b in from_rules))
        self.total = group_by_component(add(self.up, self.down))
        self.difference = group_by_component(add(self.up, multiply(-1.0, self.down)))
        z = self.predictor.expression
        self.factor = multiply(power(sigmoid(z), self.up), power(sigmoid(multiply(-1.0, z)), self.down))
        self.auxiliary = Auxiliary(deriver.name("ω"), self.predictor.is_vector or self.total.is_vector)
        self.law = PolyaGamma(self.total, z)

    def share(self) -> Expression:
        # Factors that other rules returned are counted in the shares of those rules.
        up, down = (Tilde(self.predictor, side, logarithm=True) for side in (1, -1))
        return over_latents(add(multiply(self.a, up), multiply(self.b, down)))

    def log_factor(self, env: Environment, known: Container[str] = ()) -> Array:
        z = self.predictor.expression.evaluate(env)
        total = jnp.zeros_like(z)
        for parent, a, b in self.exponents:
            if parent is None or parent.name in known:
                total = total + a.evaluate(env) * jax.nn.log_sigmoid(z) + b.evaluate(env) * jax.nn.log_sigmoid(-z)
        return total

    def log_joint(self, env: Environment) -> Array:
        z, omega = self.predictor.expression.evaluate(env), self.auxiliary.evaluate(env)
        exponent = 0.5 * self.difference.evaluate(env) * z - 0.5 * omega * z**2
        untilted = PolyaGamma(self.total, ZERO).log_density(omega, env)
        return exponent - self.total.evaluate(env) * jnp.log(2.0) + untilted

    def identity(self) -> Tree:
        scale, tilted = self._scale_and_tilted()
        return line(self.factor, "=", factors(scale, integral(tilted, self.auxiliary)))

    def _scale_and_tilted(self) -> tuple[Tree, Tree]:
        z, omega = self.predictor.expression, self.auxiliary
        exponent = add(multiply(multiply(0.5, self.difference), z), multiply(-0.5, omega, power(z, 2.0)))
        return inverse_power(2, self.total), factors(exp(exponent), density("PG", omega, self.total, 0))

    def augmented(self) -> Tree:
        return factors(*self._scale_and_tilted())

    def prior(self) -> tuple[Expression, ...]:
        return (self.total,)

    def sites(self) -> tuple[SiteTerm, ...]:
        return (SiteTerm(self.predictor, multiply(0.5, self.difference), self.auxiliary),)

    def averaged(self) -> PolyaGamma:
        return PolyaGamma(self.total, Root(self.auxiliary.name.replace("ω", "ζ"), self.predictor))


class PoissonRule(Rule):
    """exp(-R σ(z)), R >= 0, with k ~ Poisson(R σ(-z)) (Galy-Fajou et al. 2019, section 3.1, augmentation 2)."""

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
        rates, others = _by_link(exponent_of(factor, deriver.size) or ())
        if not rates:
            return None
        counts, rest = [], [term.expression for term in others]
        for link, _, rate_terms in rates:
            rule, constant = cls._of_rate(link, rate_terms, factor.parent, deriver)
            deriver.rules.append(rule)
            rest.append(constant)
            counts.append(Factor(rule.down, rule.auxiliary, rule.auxiliary))
        return *counts, Factor(exp(add(*rest)), ONE, factor.parent)

    @classmethod
    def _of_rate(
        cls, link: Call, terms: list[Term], parent: Auxiliary | None, deriver: Deriver
    ) -> tuple[PoissonRule, Expression]:
        """Return the rule for exp(-R σ(z)), and the constant that remains in the exponent."""
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
            return cls(deriver.name("k"), predictor.negated(), Quadratic(constant, ()), parent), over_latents(constant)
        if rate.expression.is_vector and not predictor.is_vector and rate.squares:
            raise deriver.no_rule(formula, "a rate with one value a datum")
        deriver.require_quadratic(rate, formula)
        return cls(deriver.name("k"), predictor, rate, parent), add(0.0)

    def share(self) -> Expression:
        return over_latents(multiply(-1.0, mean_quadratic(self.rate), Thinning(self.predictor)))

    def log_joint(self, env: Environment) -> Array:
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


class PositivePoissonRule(Rule):
    """(1 - exp(-R σ(z)))^a, R >= 0, a in {0, 1}, with n ~ Poisson(R σ(z)) given n > 0."""

    title = "Positive Poisson"
    rank = 1
    auxiliary: Auxiliary
    law: PositivePoisson

    def __init__(self, name: str, predictor: Predictor, rate: Expression, factor: Factor):
        exponent, self.parent = factor.exponent, factor.parent
        self.predictor, self.rate, self.exponent = predictor, rate, exponent
        self.positions, self.up = predictor.positions, sigmoid(predictor.expression)
        self.auxiliary = Auxiliary(name, predictor.is_vector or rate.is_vector or exponent.is_vector)
        self.law = PositivePoisson(multiply(rate, self.up), exponent)
        self.remaining_factor = power(self.up, self.auxiliary)
        # Of the factor, exp(-a R σ(z)) is for the rule of Poisson variables.
        self.once = exp(multiply(-1.0, exponent, rate, self.up))
        self.factor = multiply(power(factor.base, exponent), power(self.once, -1.0))

    @classmethod
    def match(cls, factor: Factor, deriver: Deriver) -> tuple[Factor, ...] | None:
        complement = factor.base.complement if isinstance(factor.base, Sum) else None
        share, formula = None if complement is None else complement[1], factor.expression
        if not isinstance(share, Call) or share.name != "exp":
            return None
        products, rest = _by_link(expand(share.argument, deriver.size))
        if len(products) != 1 or rest:
            return None
        ((link, reduced, weights),) = products
        if reduced or any(term.atoms for term in weights):
            return None
        rate = multiply(-1.0, add(*(term.coefficient for term in weights)))
        deriver.require(rate, "nonnegative", words("the rate in"), formula)
        deriver.require(factor.exponent, "indicator", words("the exponent of"), factor.base)
        rule = cls(deriver.name("n"), deriver.predictor(link.argument, formula), rate, factor)
        deriver.rules.append(rule)
        return Factor(rule.up, rule.auxiliary, rule.auxiliary), Factor(rule.once, ONE, factor.parent)

    def share(self) -> Expression:
        rate = multiply(self.rate, Tilde(self.predictor, 1))
        # exp(R) - 1 without cancellation.
        one = add(1.0, multiply(-1.0, exp(multiply(-1.0, rate))))
        return over_latents(multiply(self.exponent, add(rate, log(one))))

    def log_joint(self, env: Environment) -> Array:
        value, rate = self.auxiliary.evaluate(env), self.rate.evaluate(env)
        return jsp.xlogy(value, rate) - jsp.gammaln(value + 1.0)

    def identity(self) -> Tree:
        augmented = over("Σ", self.auxiliary, factors(self.augmented(), self.remaining_factor))
        return line(self.factor, "=", augmented, *where(self.exponent))

    def augmented(self) -> Expression:
        return multiply(power(self.rate, self.auxiliary), power(gamma_function(add(self.auxiliary, 1.0)), -1.0))

    def prior(self) -> tuple[Expression, ...]:
        return (self.rate,)

    def averaged(self) -> PositivePoisson:
        return PositivePoisson(multiply(self.rate, Tilde(self.predictor, 1)), self.exponent)


class GammaRule(Rule):
    """S^-p, S = c + Σ_j w_j σ(z_j), with λ ~ Gamma(p, rate S) (Galy-Fajou et al. 2019, section 3.1, augmentation 1).

    A weight w_j >= 0 is a coefficient or a quadratic in other latents.
    """

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
        terms: tuple[tuple[Quadratic, Predictor, bool], ...],
        parent: Auxiliary | None,
    ):
        # The weight, the predictor and whether the term is a sum over the latents.
        self.terms = tuple((weight.expression, predictor, reduced) for weight, predictor, reduced in terms)
        self.mean_weights = [mean_quadratic(weight) for weight, _, _ in terms]
        self.base, self.exponent, self.constant, self.parent = base, exponent, constant, parent
        self.positions = tuple(sorted({p for pair in terms for part in pair[:2] for p in part.positions}))
        self.factor = power(base, multiply(-1.0, exponent))
        self.auxiliary = Auxiliary(name, base.is_vector or exponent.is_vector)
        links = [sigmoid(predictor.expression) for _, predictor, _ in terms]
        weighted = [(weight, link, reduced) for (weight, _, reduced), link in zip(self.terms, links, strict=True)]
        self.law = Gamma(exponent, WeightedSum(base, constant, weighted))
        self.remaining_factor = exp(multiply(-1.0, self.auxiliary, _total(weighted)))

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
        products, rest = _by_link(terms)
        if not products:
            return None
        constant = add(*(term.coefficient for term in rest))
        weighted = []
        for link, reduced, weights in products:
            predictor, weight = deriver.predictor(link.argument, formula), read_completed(weights)
            is_free = weight is not None and not set(weight.positions) & set(predictor.positions)
            if weight is None or not is_free or any(term.atoms for term in rest) or (reduced and weight.squares):
                raise deriver.no_rule(
                    formula, "a sum of constants and w σ(z), with w >= 0 a coefficient or a quadratic in other latents"
                )
            if weight.squares:
                deriver.require_quadratic(weight, formula)
            else:
                deriver.require(weight.constant, "nonnegative", words("the weight of"), link, words("in"), formula)
            weighted.append((weight, predictor, reduced))
        if any(part.sign == -1 for part in (constant, *(weight.constant for weight, _, _ in weighted))):
            raise deriver.no_rule(formula, "a sum of w σ(z) and a constant, all >= 0, to a negative power")
        deriver.check_plates(base, factor.exponent, any(reduced for _, _, reduced in weighted), formula)
        deriver.require(constant, "nonnegative", words("the constant in"), formula)
        p = multiply(-1.0, factor.exponent)
        deriver.require(p, "nonnegative", words("minus the exponent of"), base)
        rule = cls(deriver.name("λ"), base, p, constant, tuple(weighted), factor.parent)
        deriver.rules.append(rule)
        bases = (exp(multiply(-1.0, rule.auxiliary, weight, sigmoid(z.expression))) for weight, z, _ in rule.terms)
        return tuple(Factor(each, ONE, rule.auxiliary) for each in bases)

    @cached_property
    def mean_base(self) -> WeightedSum:
        """Return S at the moments of q, with σ̃(z) for each σ(z)."""
        pairs = zip(self.mean_weights, self.terms, strict=True)
        means = [(weight, Thinning(predictor), reduced) for weight, (_, predictor, reduced) in pairs]
        written = _total([(weight, link.written, reduced) for weight, link, reduced in means])
        return WeightedSum(add(self.constant, written), self.constant, means)

    @cached_property
    def total_rate(self) -> Expression:
        """Return the largest value of S, c + Σ_j w_j."""
        weights = []
        for weight, predictor, reduced in self.terms:
            if reduced and not weight.is_vector:
                weights.append(multiply(float(len(predictor.positions)), weight))
            else:
                weights.append(over_latents(weight) if reduced else weight)
        return add(self.constant, *weights)

    def share(self) -> Expression:
        return over_latents(multiply(-1.0, self.exponent, Logarithm(self.mean_base)))

    def log_joint(self, env: Environment) -> Array:
        return log_gamma_mixed(self.auxiliary, self.exponent, self.constant, env)

    def complete(self, children: Sequence[Auxiliary]) -> Gamma:
        """Return λ | k ~ Gamma(p + Σ k, rate c + Σ w) given the counts of its Poisson rules."""
        counts = children if self.auxiliary.is_vector else map(over_latents, children)
        return Gamma(add(self.exponent, *counts), self.total_rate)

    def identity(self) -> Tree:
        return line(self.factor, "=", integral(gamma_mixed(self.auxiliary, self.exponent, self.base), self.auxiliary))

    def augmented(self) -> Expression:
        return gamma_mixed(self.auxiliary, self.exponent, self.constant)

    def prior(self) -> tuple[Expression, ...]:
        return (self.exponent,)

    def averaged(self) -> Gamma:
        return Gamma(self.exponent, self.mean_base)


def _by_link(terms: Sequence[Term]) -> tuple[list[tuple[Call, bool, list[Term]]], list[Term]]:
    """Terms without one σ(z), and the others by σ(z): whether they are summed over the latents, and their weights."""
    products: dict[tuple, tuple[Call, bool, list[Term]]] = {}
    rest: list[Term] = []
    for term in terms:
        links = [atom for atom in term.atoms if isinstance(atom, Call) and atom.name == "sigmoid"]
        if len(links) != 1:
            rest.append(term)
            continue
        atoms = tuple(atom for atom in term.atoms if atom is not links[0])
        members = products.setdefault((links[0].key, term.reduced), (links[0], term.reduced, []))[2]
        members.append(Term(term.coefficient, atoms, term.reduced))
    return list(products.values()), rest


def _total(terms: Sequence[tuple[Expression, Expression, bool]]) -> Expression:
    """The sum of weights times links, of which some are sums over the latents."""
    products = [(multiply(weight, link), reduced) for weight, link, reduced in terms]
    return add(*(over_latents(product) if reduced else product for product, reduced in products))


def gamma_mixed(auxiliary: Auxiliary, exponent: Expression, rate: Expression) -> Expression:
    """Return ω^(p - 1) / Γ(p) exp(-ω rate)."""
    trivial = isinstance(exponent, Constant) and exponent.value in (1.0, 2.0)
    scale = ONE if trivial else power(gamma_function(exponent), -1.0)
    powers = power(auxiliary, add(exponent, -1.0))
    exponential = exp(multiply(-1.0, auxiliary, rate)) if rate.key != ZERO.key else ONE
    return multiply(powers, exponential, scale)


def log_gamma_mixed(auxiliary: Auxiliary, exponent: Expression, rate: Expression, env: Environment) -> Array:
    """Return the logarithm of ``gamma_mixed``, 0 if the exponent is 0."""
    p, value = exponent.evaluate(env), auxiliary.evaluate(env)
    log_density = jsp.xlogy(p - 1, value) - jsp.gammaln(p) - value * rate.evaluate(env)
    return jnp.where(p > 0, log_density, 0.0)


class GammaMixtureRule(Rule):
    """Q^-p with ω ~ Gamma(p, rate Q): Student-t."""

    title = "Scale mixture (Gamma mixing)"
    rank = 3
    auxiliary: Auxiliary
    law: Gamma

    def __init__(self, name: str, base: Quadratic, exponent: Expression, parent: Auxiliary | None):
        self.base, self.exponent, self.parent = base, exponent, parent
        self.positions = base.positions
        self.factor = power(base.expression, multiply(-1.0, exponent))
        self.auxiliary = Auxiliary(name, base.expression.is_vector or exponent.is_vector)
        self.law = Gamma(exponent, base.expression)

    @classmethod
    def match(cls, factor: Factor, deriver: Deriver) -> tuple[Factor, ...] | None:
        base, exponent, formula = factor.base, factor.exponent, factor.expression
        if not isinstance(base, (Sum, Reduction, Power)) or exponent.sign != -1:
            return None
        quadratic = read_completed(expand(base, deriver.size))
        if quadratic is None:
            raise deriver.no_rule(formula, "a sum of w σ(z), w >= 0, or a non-negative quadratic, to a negative power")
        deriver.require_quadratic(quadratic, formula)
        p = multiply(-1.0, exponent)
        deriver.require(p, "nonnegative", words("minus the exponent in"), formula)
        # Q^-p diverges at Q = 0: without a positive constant it is not a likelihood.
        deriver.require(quadratic.constant, "positive", words("the constant in"), formula)
        if isinstance(quadratic.constant, Constant) and quadratic.constant.value <= 0:
            raise deriver.no_rule(formula, "a quadratic with a positive constant, to a negative power")
        deriver.check_plates(base, exponent, any(square.reduced for square in quadratic.squares), formula)
        deriver.rules.append(cls(deriver.name("ω"), quadratic, p, factor.parent))
        return ()

    def share(self) -> Expression:
        return over_latents(multiply(-1.0, self.exponent, log(mean_quadratic(self.base))))

    def log_joint(self, env: Environment) -> Array:
        return log_gamma_mixed(self.auxiliary, self.exponent, self.base.expression, env)

    def augmented(self) -> Expression:
        return gamma_mixed(self.auxiliary, self.exponent, self.base.expression)

    def prior(self) -> tuple[Expression, ...]:
        return (self.exponent,)

    def sites(self) -> tuple[SiteTerm, ...]:
        return quadratic_sites(self.base, self.auxiliary)

    def averaged(self) -> Gamma:
        return Gamma(self.exponent, mean_quadratic(self.base))


class InverseGaussianMixtureRule(Rule):
    """exp(-κ √Q) with ω ~ InverseGaussian(mean κ / (2 √Q), shape κ^2 / 2): Laplace (Andrews and Mallows 1974)."""

    title = "Scale mixture (inverse Gaussian mixing)"
    rank = 3
    auxiliary: Auxiliary
    law: InverseGaussian

    def __init__(self, name: str, base: Quadratic, root: Expression, steepness: Expression, parent: Auxiliary | None):
        self.base, self.root, self.steepness, self.parent = base, root, steepness, parent
        self.positions = base.positions
        self.factor = exp(multiply(-1.0, steepness, root))
        self.auxiliary = Auxiliary(name, root.is_vector or steepness.is_vector)
        self.law = InverseGaussian(steepness, root)

    @classmethod
    def match(cls, factor: Factor, deriver: Deriver) -> tuple[Factor, ...] | None:
        terms = exponent_of(factor, deriver.size) or []
        rooted = [term for term in terms if len(term.atoms) == 1 and _is_root(term.atoms[0])]
        if not rooted:
            return None
        for term in rooted:
            deriver.rules.append(cls._of_term(term, factor.parent, deriver))
        rest = add(*(term.expression for term in terms if not any(term is root for root in rooted)))
        return (Factor(exp(rest), ONE, factor.parent),)

    @classmethod
    def _of_term(cls, term: Term, parent: Auxiliary | None, deriver: Deriver) -> InverseGaussianMixtureRule:
        formula, atom = exp(multiply(term.coefficient, *term.atoms)), term.atoms[0]
        steepness = multiply(-1.0, term.coefficient)
        if steepness.sign == -1:
            raise deriver.no_rule(formula, "exp(-κ |z|) or exp(-κ sqrt(Q)) with κ >= 0")
        inside = power(atom.argument, 2.0) if isinstance(atom, Call) else atom.base  # type: ignore[attr-defined]
        quadratic = read_completed(expand(inside, deriver.size))
        if quadratic is None:
            raise deriver.no_rule(formula, "the root of a non-negative quadratic")
        deriver.require_quadratic(quadratic, formula)
        deriver.require(steepness, "nonnegative", words("the steepness in"), formula)
        deriver.check_plates(atom, steepness, any(square.reduced for square in quadratic.squares), formula)
        return cls(deriver.name("ω"), quadratic, atom, steepness, parent)

    def share(self) -> Expression:
        return over_latents(multiply(-1.0, self.steepness, power(mean_quadratic(self.base), 0.5)))

    def log_joint(self, env: Environment) -> Array:
        # Lévy mixing law with scale κ^2 / 2, whose Laplace transform at Q is exp(-κ √Q).
        c, value = self.law.shape.evaluate(env), self.auxiliary.evaluate(env)
        levy = 0.5 * jnp.log(c / (2 * jnp.pi)) - 1.5 * jnp.log(value) - c / (2 * value)
        return jnp.where(c > 0, levy - value * self.base.expression.evaluate(env), 0.0)

    def augmented(self) -> Tree:
        mixed = exp(multiply(-1.0, self.auxiliary, self.base.expression))
        return factors(mixed, density("Lévy", self.auxiliary, 0, self.law.shape))

    def prior(self) -> tuple[Expression, ...]:
        return (self.steepness,)

    def sites(self) -> tuple[SiteTerm, ...]:
        return quadratic_sites(self.base, self.auxiliary)

    def averaged(self) -> InverseGaussian:
        return InverseGaussian(self.steepness, power(mean_quadratic(self.base), 0.5))

    def has_no_mean(self, env: Environment) -> bool:
        # κ / (2 √Q) is not integrable over f if Q is the square of a single predictor.
        several = len(self.base.squares) > 1 or (self.base.squares[0].reduced and env.f.shape[-1] > 1)
        return not several and not np.any(self.base.constant.evaluate(env))


def _is_root(atom: Expression) -> bool:
    if isinstance(atom, Call):
        return atom.name == "abs"
    return isinstance(atom, Power) and isinstance(atom.exponent, Constant) and atom.exponent.value == 0.5


class MixtureRule(Rule):
    """p_1 + ... + p_J, each matched by other rules, with the allocation j of probability p_j / Σ p."""

    title = "Mixture"
    rank = 1
    auxiliary: Auxiliary
    law: Categorical

    def __init__(self, name: str, factor: Factor, components: tuple[Expression, ...], shares: tuple[Expression, ...]):
        self.components, self.shares, self.parent = components, shares, factor.parent
        self.base, self.exponent = factor.base, factor.exponent
        self.factor = power(self.base, self.exponent)
        self.auxiliary = Auxiliary(name, False)
        self.law = Categorical(components, factor.exponent)
        self.allocated = tuple(Allocated(self.auxiliary, number) for number in range(1, len(components) + 1))

    @classmethod
    def match(cls, factor: Factor, deriver: Deriver) -> tuple[Factor, ...] | None:
        base, exponent = factor.base, factor.exponent
        is_indicator = exponent.key == ONE.key or (exponent.sign != -1 and not isinstance(exponent, type(ONE)))
        if not isinstance(base, Sum) or base.is_vector or exponent.is_vector or not is_indicator:
            return None
        deriver.require(exponent, "indicator", words("the exponent of"), base)
        components = _components(base, deriver.size)
        for component in components:
            weight, rest = split_latents(component)
            if weight.sign == -1:
                raise deriver.no_rule(factor.expression, "a sum of likelihoods with weights >= 0")
            deriver.require(weight, "nonnegative", words("the weight of"), rest, words("in"), factor.expression)
        shares = tuple(deriver.component_bound(component) for component in components)
        rule = cls(deriver.name("j"), factor, components, shares)
        deriver.rules.append(rule)
        # Σ_j p_j is the sum over j of Π_k p_k^[j = k]
        allocated_factors = [
            Factor(inner.base, multiply(inner.exponent, allocated), rule.auxiliary)
            for allocated, component in zip(rule.allocated, components, strict=True)
            for inner in factorise(component, deriver.size)
        ]
        dependent = [power(inner.base, inner.exponent) for inner in allocated_factors if not inner.base.latent_free]
        rule.remaining_factor = multiply(*(Reduction("prod", part) if part.is_vector else part for part in dependent))
        rule.positions = tuple(sorted(positions_of(base)))
        return tuple(allocated_factors)

    def finish(self, deriver: Deriver) -> None:
        self.coefficient = deriver.coefficient(self.auxiliary)

    def share(self) -> Expression:
        return multiply(self.exponent, LogMixture(self.shares))

    def log_factor(self, env: Environment, known: Container[str] = ()) -> Array:
        return self.exponent.evaluate(env) * jax.nn.logsumexp(self.law.log_weights(env), axis=0)

    def log_joint(self, env: Environment) -> Array:
        return self.coefficient.log_evaluate(env)

    def identity(self) -> Tree:
        terms = multiply(*map(power, self.components, self.allocated))
        return line(self.base, "=", over("Σ", self.auxiliary, terms), *where(self.exponent))

    def augmented(self) -> Expression:
        return self.coefficient

    def prior(self) -> tuple[Expression, ...]:
        factors = (part for component in self.components for part in factors_of(component))
        return tuple(part for part in factors if not any(isinstance(n, Observation) for n in subexpressions(part)))

    def expectations(self) -> tuple[tuple[Expected, Expression], ...]:
        shares = (multiply(self.exponent, Responsibility(self.shares, k)) for k in range(len(self.allocated)))
        return tuple(zip(map(Expected, self.allocated), shares, strict=True))


class LogMixture(Expression):
    """The value log Σ_j exp B_j, with the bounds B_j of the components."""

    def __init__(self, shares: tuple[Expression, ...]):
        self.children = shares

    def evaluate(self, env: Environment) -> Array:
        return jax.nn.logsumexp(_stacked(self.children, env), axis=0)

    def notation(self, precedence: int = 0) -> Tree:
        return call("log", add(*map(exponential, self.children)))


class Responsibility(Expression):
    """The probability exp B_k / Σ_j exp B_j of a component under the optimal q."""

    labels = ("component",)
    nonnegative = True  # type: ignore[assignment]

    def __init__(self, shares: tuple[Expression, ...], component: int):
        self.children, self.component = shares, component

    def evaluate(self, env: Environment) -> Array:
        return jax.nn.softmax(_stacked(self.children, env), axis=0)[self.component]

    def notation(self, precedence: int = 0) -> Tree:
        total = add(*map(exponential, self.children))
        return multiply(exponential(self.children[self.component]), power(total, -1.0)).notation(precedence)


def _stacked(shares: tuple[Expression, ...], env: Environment) -> Array:
    return jnp.stack(jnp.broadcast_arrays(*(share.evaluate(env) for share in shares)))


def exponential(bound: Expression) -> Expression:
    """Return exp of a bound; its logarithmic terms become factors."""
    factors, rest = [], []
    for term in bound.children if isinstance(bound, Sum) else (bound,):
        term_factors = factors_of(term)
        logs = [part for part in term_factors if _argument(part) is not None]
        others = multiply(*(part for part in term_factors if not (logs and part is logs[0])))
        argument = _argument(logs[0]) if len(logs) == 1 else None
        if argument is None:
            rest.append(term)
        else:
            factors.append(power(argument, others))
    return multiply(*factors, exp(add(*rest)) if rest and add(*rest).key != ZERO.key else ONE)


def _argument(part: Expression) -> Expression | None:
    if isinstance(part, Tilde) and part.logarithm:
        return Tilde(part.predictor, part.side)
    return part.argument if isinstance(part, Call) and part.name == "log" else None


def _links_of(product: Expression, most: int = 20) -> list[Call] | None:
    """Return the factors of a product of values of σ and Φ, repeated for whole exponents; None for others."""
    links: list[Call] = []
    for factor in factors_of(product):
        base, exponent = (factor.base, factor.exponent) if isinstance(factor, Power) else (factor, ONE)
        times = exponent.value if isinstance(exponent, Constant) else 0.0
        if not isinstance(base, Call) or base.name not in ("sigmoid", "normal_cdf") or times not in range(1, most):
            return None
        links += [base] * int(times)
    return links


def _components(base: Sum, size: int) -> tuple[Expression, ...]:
    """The terms of a sum: latent-free terms merged, -w Π_i σ(z_i) as Σ_i w σ(-z_i) Π_{j<i} σ(z_j) - w, and -w exp(x).

    The last is w (1 - exp(x)) - w.
    """
    constants, dependent = [], []
    for child in base.children:
        weight, link = split_latents(child)
        if isinstance(link, Reduction) and link.operator == "prod":
            link = substitute(link, [Latent(number, size) for number in range(size)])
        links = _links_of(link) if split_number(child)[0] < 0 else None
        if links is not None:
            constants.append(weight)
            for place, one in enumerate(links):
                others = Call(one.name, multiply(-1.0, one.argument))
                dependent.append(multiply(multiply(-1.0, weight), others, *links[:place]))
        elif child.latent_free:
            constants.append(child)
        elif base.complement is None and split_number(child)[0] < 0 and isinstance(link, Call) and link.name == "exp":
            constants.append(weight)
            dependent.append(multiply(multiply(-1.0, weight), add(1.0, multiply(-1.0, link))))
        else:
            dependent.append(child)
    constant = add(*constants)
    return (*([] if constant.key == ZERO.key else [constant]), *dependent)
