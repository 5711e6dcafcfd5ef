"""Augmentations: the local bound, its tangent, sites, and draws of auxiliary variables."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from pgmodels.augmentation.laws import VARIANCE, Expected, Law, Thinning
from pgmodels.augmentation.predictors import Auxiliary, Logarithm, SiteTerm, rebuild, subexpressions, substitute
from pgmodels.augmentation.rules.mixtures import GammaRule
from pgmodels.augmentation.rules.rule import ONE, ZERO, Rule, evaluate_sites
from pgmodels.likelihoods.expression import (
    POSITIONS,
    Constant,
    Environment,
    Expression,
    Latent,
    Latents,
    Positions,
    Selected,
)
from pgmodels.likelihoods.operations import Call, Comparison, Reduction, add, factors_of, multiply, power
from pgmodels.likelihoods.printing import Chain, Part, Tree, to_text, words
from pgmodels.numerics.elementary import RealArray, factorised_share
from pgmodels.objectives.base import FormulaObjective, Objective, Parameters, Tangent


@dataclass(frozen=True, eq=False)
class Requirement:
    """A condition on a coefficient: ``nonnegative``, ``positive`` or ``indicator`` (0 or 1).

    ``written`` describes the coefficient and its factor, in the form of a line of the derivation.
    """

    expression: Expression
    kind: str
    written: Chain

    @property
    def reason(self) -> str:
        """The description of the coefficient, as text."""
        return to_text(self.written)

    def holds(self, values: RealArray) -> RealArray:
        """Return whether each value satisfies the condition, up to rounding."""
        if self.kind == "nonnegative":
            return values >= -1e-9
        if self.kind == "positive":
            return values > 0
        return (values == 0) | (values == 1)

    @property
    def condition(self) -> tuple[Part, ...]:
        """The condition as items of a printed line."""
        return {"nonnegative": ("≥", 0), "positive": (">", 0), "indicator": (words("is 0 or 1"),)}[self.kind]

    @property
    def wording(self) -> str:
        """The condition as text."""
        return {"nonnegative": ">= 0", "positive": "> 0", "indicator": "0 or 1"}[self.kind]


class TangentBound(Tangent):
    """The tangent of an augmentation with one factor S^-p over all latents, and factors of single latents.

    Tangents of equal augmentations are equal. Source: Galy-Fajou et al. 2019, section 4.2 (class subsampling).
    """

    def __init__(self, augmentation: Augmentation):
        self.augmentation, self.size = augmentation, augmentation.size
        rules = [rule for rule in augmentation.rules if rule.parent is None]
        gammas = [rule for rule in rules if isinstance(rule, GammaRule)]
        sum_rules = [rule for rule in gammas if all(reduced for _, _, reduced in rule.terms)]
        others = [rule for rule in rules if rule not in sum_rules and rule.share().key != ZERO.key]
        shares = [rule.share() for rule in others]
        separable = [share.argument for share in shares if isinstance(share, Reduction)]
        weights = [weight for rule in sum_rules for weight, _, _ in rule.terms]
        read_all = all(rule.positions == tuple(range(self.size)) for rule in others)
        separate = len(sum_rules) == 1 and read_all and len(separable) == len(others)
        coupled = len(augmentation.blocks) > 1 or augmentation.predictors is not None
        nodes = (node for part in (*separable, *weights) for node in subexpressions(part))
        if not separate or coupled or any(isinstance(node, Reduction) for node in nodes):
            raise ValueError(
                f"the likelihood {augmentation.formula.text()} is not one sum over its latents to a negative power, "
                "such as pgm.sum(pgm.sigmoid(f)) ** -1, times factors of single latents: no tangent "
                "separates its latents."
            )
        self.rule, self.separable = sum_rules[0], add(0.0, *separable)
        self.summands = [(weight, Thinning(predictor)) for weight, predictor, _ in self.rule.terms]
        self.indices = list({index.key: index for index in _indices(self.separable)}.values())

    def __hash__(self) -> int:
        return hash(self.augmentation)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TangentBound) and self.augmentation == other.augmentation

    def selected(self, y: Array, parameters: Parameters) -> tuple[Array, Array]:
        env = Environment(y, jnp.zeros((len(y), 1)), parameters)
        columns = [jnp.broadcast_to(index.evaluate(env), (len(y), 1)) for index in self.indices]
        chosen = jnp.concatenate(columns or [jnp.zeros((len(y), 0))], axis=1).astype(int)
        before = jnp.tril(jnp.ones((len(columns), len(columns)), dtype=bool), -1)
        return chosen, 1.0 - jnp.any((chosen[:, :, None] == chosen[:, None, :]) & before, axis=2)

    def constant(self, y: Array, parameters: Parameters) -> Array:
        return self._coefficient(self.rule.constant, y, parameters)

    def log_sums(self, m: Array, v: Array, y: Array, parameters: Parameters, latents: Array) -> Array:
        return jnp.log(self._sums(Environment(y, m, {**parameters, VARIANCE: v, POSITIONS: latents}), m))

    def terms(self, m: Array, v: Array, y: Array, parameters: Parameters, latents: Array, log_scale: Array) -> Array:
        env = Environment(y, m, {**parameters, VARIANCE: v, POSITIONS: latents})
        factor = self._coefficient(self.rule.exponent, y, parameters) * jnp.exp(-log_scale)
        return jnp.broadcast_to(self.separable.evaluate(env), m.shape) - factor[:, None] * self._sums(env, m)

    def rest(self, y: Array, parameters: Parameters, log_scale: Array) -> Array:
        p = self._coefficient(self.rule.exponent, y, parameters)
        coefficient = self._coefficient(self.augmentation.log_base, y, parameters)
        return coefficient - p * (self.constant(y, parameters) * jnp.exp(-log_scale) + log_scale - 1.0)

    def _sums(self, env: Environment, m: Array) -> Array:
        """Return S_c of the latents of an environment with means ``m``."""
        return sum((weight.evaluate(env) * link.evaluate(env) for weight, link in self.summands), jnp.zeros_like(m))

    def _coefficient(self, expression: Expression, y: Array, parameters: Parameters) -> Array:
        env = Environment(y, jnp.zeros((len(y), self.size)), parameters)
        return jnp.broadcast_to(expression.evaluate(env), (len(y), 1))[:, 0]


def _indices(expression: Expression) -> Iterator[Expression]:
    """Return the expressions that latent indices equal: the y of f[y], which appears in the indicator [c = y]."""
    for node in subexpressions(expression):
        if isinstance(node, Comparison) and node.operator == "==":
            for one, other in ((node.lhs, node.rhs), (node.rhs, node.lhs)):
                if isinstance(one, Positions) and not other.is_vector:
                    yield other


class Augmentation(FormulaObjective):
    """The augmentation of a likelihood, its rules in the order of the draws. Equal formulas have equal ones."""

    name = "augmented"
    title = "CAVI's bound"
    method = "CAVI"
    is_monotone = True
    has_auxiliaries = True

    def __init__(
        self,
        formula: Expression,
        size: int,
        base: Expression,
        rules: tuple[Rule, ...],
        requirements: tuple[Requirement, ...],
    ):
        self.formula, self.size, self.base = formula, size, base
        self.rules, self.requirements = rules, requirements

    @cached_property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """Return blocks of latents that are updated jointly. A Poisson rate and its sigmoid are in different blocks."""
        conflicts: dict[int, set[int]] = {position: set() for position in range(self.size)}
        for rule in self.rules:
            for coupled in rule.coupled:
                for other in rule.positions:
                    conflicts[coupled].add(other)
                    conflicts[other].add(coupled)
        blocks: list[list[int]] = []
        for position in range(self.size):
            free = [block for block in blocks if not conflicts[position].intersection(block)]
            if free:
                free[0].append(position)
            else:
                blocks.append([position])
        return tuple(tuple(block) for block in blocks)

    @cached_property
    def is_exact(self) -> bool:  # type: ignore[override]
        """Whether no rule introduces an auxiliary."""
        return all(rule.auxiliary is None for rule in self.rules)

    @property
    def has_fixed_sites(self) -> bool:  # type: ignore[override]
        """Whether the formula is Gaussian in jointly updated latents, so that q is the posterior."""
        return len(self.blocks) == 1 and self.is_exact

    @cached_property
    def bound(self) -> Expression:
        """The local bound B of one datum, as a formula of q's marginal means m and variances v."""
        return add(*(rule.share() for rule in self.rules if rule.parent is None), self.log_base)

    @property
    def log_base(self) -> Expression:
        """The term of the bound that is free of the latents."""
        exponents, rest = [], []
        for factor in factors_of(self.base):
            if isinstance(factor, Call) and factor.name == "exp":
                exponents.append(factor.argument)
            else:
                rest.append(factor)
        product = multiply(*rest)
        return add(*exponents, ZERO if product.key == ONE.key else Logarithm(product))

    def local_bound(self, m: Array, v: Array, y: Array, parameters: Parameters) -> Array:
        """Return B(m, v + m^2) <= E log p(y | f) of each datum under f ~ N(m, v), shape (n,) (math: section 1)."""
        bound = self.bound.evaluate(Environment(y, m, {**parameters, VARIANCE: v}))
        return jnp.broadcast_to(bound[..., 0], m.shape[:-1])

    def tangent(self) -> TangentBound:
        return TangentBound(self)

    def draw_chain(
        self,
        key: Array,
        f: Array,
        y: Array,
        parameters: Parameters,
        block: int = 0,
        known: Mapping[str, Array] = MappingProxyType({}),
    ) -> dict[str, Array]:
        """Draw the auxiliaries of a block, given all latents and ``known`` auxiliaries; return values by name."""
        values = {**parameters, **known}
        drawn = {}
        for rule, rule_key in zip(self.rules, jax.random.split(key, len(self.rules)), strict=True):
            if rule.auxiliary is None or rule.law is None or rule.auxiliary.name in known:
                continue
            if self._active(rule, block):
                value = rule.law.draw(rule_key, Environment(y, f, values))
                values[rule.auxiliary.name] = drawn[rule.auxiliary.name] = value
        return drawn

    @cached_property
    def complete_laws(self) -> dict[str, Law]:
        """Return the laws of ``Rule.complete``, by the names of the auxiliaries."""
        drawn = ((rule, rule.auxiliary) for rule in self.rules if rule.auxiliary is not None)
        laws = {auxiliary.name: rule.complete(self.children_of(auxiliary)) for rule, auxiliary in drawn}
        return {name: law for name, law in laws.items() if law is not None}

    def children_of(self, parent: Auxiliary) -> list[Auxiliary]:
        """Return the auxiliaries of the factors that the rule of another auxiliary returned."""
        return [rule.auxiliary for rule in self.rules if rule.parent is parent and rule.auxiliary is not None]

    def sites_given(
        self, auxiliaries: Mapping[str, Array], f: Array, y: Array, parameters: Parameters, block: int = 0
    ) -> tuple[Array, Array]:
        """Return the sites of a block of latents given the auxiliaries, shapes (n, latents)."""
        terms: list[SiteTerm] = []
        for rule in self.rules:
            if self._active(rule, block):
                terms += rule.sites()
            if set(rule.coupled) & set(self.blocks[block]):
                terms += rule.coupled_sites()
        return evaluate_sites(tuple(terms), Environment(y, f, {**parameters, **auxiliaries}))

    def draw_auxiliaries(
        self, key: Array, f: Array, y: Array, parameters: Parameters, block: int = 0
    ) -> tuple[Array, Array]:
        """Draw the auxiliaries given f, and return the resulting sites: the first half of a Gibbs sweep."""
        return self.sites_given(self.draw_chain(key, f, y, parameters, block), f, y, parameters, block)

    def log_joint(self, auxiliaries: Mapping[str, ArrayLike], f: Any, y: ArrayLike, parameters: Parameters) -> Array:
        """Return log p(y, auxiliaries | f) of each datum; auxiliaries without a value are integrated out."""
        env = Environment(y, f, {**parameters, **auxiliaries})
        total = self.base.log_evaluate(env)
        for rule in self.rules:
            if rule.parent is not None and rule.parent.name not in auxiliaries:
                continue  # included in the parent's factor, which is integrated out
            is_given = rule.auxiliary is None or rule.auxiliary.name in auxiliaries
            part = rule.log_joint(env) if is_given else rule.log_factor(env, known=auxiliaries)
            total = total + jnp.sum(part, axis=-1, keepdims=True)
        return total[..., 0]

    def _active(self, rule: Rule, block: int) -> bool:
        return bool(set(rule.positions) & set(self.blocks[block]))


@dataclass(frozen=True)
class LatentSite:
    """The site exp(potential f - precision f^2 / 2) of a datum, for one latent or for each of several."""

    latent: Latent | Latents
    potential: Expression
    precision: Expression

    @property
    def variables(self) -> list[Tree]:
        """The latents and auxiliaries on which the site depends."""
        nodes = [*subexpressions(self.potential), *subexpressions(self.precision)]
        latents = [node for node in nodes if isinstance(node, (Latent, Latents, Selected))]
        auxiliaries = [node for node in nodes if isinstance(node, (Auxiliary, Element))]
        return list(dict.fromkeys(node.notation() for node in (*latents, *auxiliaries)))


class Element(Expression):
    """One element of a vector of auxiliaries."""

    labels = ("vector", "position")

    def __init__(self, vector: Auxiliary | Expected, position: int):
        self.vector, self.position = vector, position

    def evaluate(self, env: Environment) -> Array:
        return self.vector.evaluate(env)[..., self.position : self.position + 1]

    def notation(self, precedence: int = 0) -> Tree:
        return self.vector.element(self.position)


def conditional_sites(augmentation: Augmentation, block: int = 0, averaged: bool = False) -> tuple[LatentSite, ...]:
    """Return the sites of a block of latents: formulas of the auxiliaries, or expectations if ``averaged``."""
    positions = set(augmentation.blocks[block])
    terms: list[SiteTerm] = []
    for rule in augmentation.rules:
        if positions & set(rule.positions):
            terms += rule.sites()
        terms += rule.coupled_sites(averaged)
    symbols = [symbol for rule in augmentation.rules for symbol, _ in rule.expectations()] if averaged else []
    table = {symbol.auxiliary.key: symbol for symbol in symbols}
    sites: dict[tuple, LatentSite] = {}
    for term in terms:
        z = term.predictor
        if not positions & set(z.positions):
            continue
        # h z - w z^2 / 2 with z = scale f + shift
        h = multiply(z.scale, add(term.potential, multiply(-1.0, term.precision, z.shift)))
        w = multiply(power(z.scale, 2.0), term.precision)
        if isinstance(z.latent, Latent):
            h, w = (Reduction("sum", part) if part.is_vector else part for part in (h, w))
        before, (h, w) = sites.get(z.latent.key), (substitute(part, table) for part in (h, w))
        total = (h, w) if before is None else (add(before.potential, h), add(before.precision, w))
        sites[z.latent.key] = LatentSite(z.latent, *total)
    return _separate(tuple(sites.values()), sorted(positions))


def _separate(sites: tuple[LatentSite, ...], positions: list[int]) -> tuple[LatentSite, ...]:
    """Return sites of the latents at positions, for formulas with factors of a single latent and of all latents."""
    vectors = [site for site in sites if isinstance(site.latent, Latents)]
    if not vectors or (len(vectors) == len(sites) and len(positions) == vectors[0].latent.size):
        return sites
    vector, size = vectors[0], vectors[0].latent.size
    separate = []
    for position in positions:
        latent = Latent(position, size)
        h, w = (_element(part, position) for part in (vector.potential, vector.precision))
        for site in sites:
            if site.latent.key == latent.key:
                h, w = add(site.potential, h), add(site.precision, w)
        separate.append(LatentSite(latent, h, w))
    return tuple(separate)


def _element(expression: Expression, position: int) -> Expression:
    if not expression.is_vector:
        return expression
    if isinstance(expression, (Auxiliary, Expected)):
        return Element(expression, position)
    if isinstance(expression, Positions):
        return Constant(position)
    if isinstance(expression, Latents):
        return Latent(position, expression.size)
    return rebuild(expression, [_element(child, position) for child in expression.children])


def expectations(augmentation: Augmentation) -> tuple[tuple[Expected, Expression], ...]:
    """Return the expectation of each auxiliary under the optimal q; each depends only on earlier ones."""
    pairs = []
    table: dict[tuple, Expression] = {}
    for rule in augmentation.rules:
        known = {**table}
        for symbol, value in rule.expectations():
            pairs.append((symbol, substitute(value, known)))
            table[symbol.auxiliary.key] = symbol
    return tuple(pairs)


class Factorised(Objective):
    """The bound with q(λ) q(n, ω) for each factor S^-p, instead of the joint law of λ, n and ω given the latents.

    For a factor with S = c + Σ_j w_j σ(z_j), let β = c + Σ_j w_j be the total rate and t = Σ_j w_j σ̃(-z_j) / β. The
    bound has -p log β + G(p, t) instead of the larger -p log(β (1 - t)); see ``factorised_share``. All other factors
    have the terms of the augmentation.

    Source: Galy-Fajou et al. 2019, section 4.1, whose equations 12-16 follow for LogisticSoftmax.
    """

    name = "factorised"
    title = "the factorised bound"
    method = "Variational inference with factorised auxiliary variables"
    is_monotone = True

    def __init__(self, augmentation: Augmentation):
        rules = [rule for rule in augmentation.rules if isinstance(rule, GammaRule)]
        if not rules or any(rule.parent is not None for rule in rules):
            raise ValueError(
                "objective='factorised' expects a likelihood with a factor like pgm.sum(pgm.sigmoid(f)) ** -1, outside "
                f"mixtures; {augmentation.formula.text()} has none. Use objective='augmented'."
            )
        others = (rule for rule in augmentation.rules if rule.parent is None and rule not in rules)
        self.augmentation, self.rules = augmentation, rules
        self.other_terms = add(*(rule.share() for rule in others), augmentation.log_base)
        self.size, self.predictors = augmentation.size, augmentation.predictors

    @property
    def _identity(self) -> Hashable:
        return type(self), self.augmentation

    @property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        return self.augmentation.blocks

    def local_bound(self, m: Array, v: Array, y: Array, parameters: Parameters) -> Array:
        env = Environment(y, m, {**parameters, VARIANCE: v})
        total = jnp.broadcast_to(self.other_terms.evaluate(env)[..., 0], m.shape[:-1])
        for rule in self.rules:
            p, log_total = rule.exponent.evaluate(env), rule.total_rate.log_evaluate(env)
            log_remaining = rule.mean_base.log_evaluate(env) - log_total
            share = factorised_share(*jnp.broadcast_arrays(p, log_remaining)) - p * log_total
            total = total + (jnp.sum(share, axis=-1) if rule.auxiliary.is_vector else share[..., 0])
        return total
