"""The augmentation of a likelihood: local bound, sites, auxiliary draws and densities, as used by the engines."""

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from pgmodels.augmentation.averages import VARIANCE
from pgmodels.augmentation.laws import Law
from pgmodels.augmentation.requirement import Requirement
from pgmodels.augmentation.rules.rule import Rule, evaluate_sites
from pgmodels.augmentation.symbols import Auxiliary, Logarithm, SiteTerm
from pgmodels.augmentation.tangent import TangentBound
from pgmodels.likelihoods.algebra import add, multiply
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.operations import Call, Product
from pgmodels.likelihoods.symbols import Constant
from pgmodels.objectives.formula import FormulaObjective


class Augmentation(FormulaObjective):
    """The augmentation of one likelihood: its rules in the order in which their auxiliaries are drawn.

    Two augmentations of equal formulas are equal, so that compiled code is shared between them.
    """

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

    def __hash__(self) -> int:
        return hash((self.formula.key, self.size))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Augmentation) and (self.formula.key, self.size) == (other.formula.key, other.size)

    @cached_property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """Blocks of latents updated jointly; latents in a Poisson rate and in its sigmoid are in different blocks."""
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
    def is_gaussian(self) -> bool:
        """Whether the formula is Gaussian in latents that are updated together, so that q is the posterior."""
        return len(self.blocks) == 1 and self.is_exact

    @cached_property
    def bound(self) -> Expression:
        """The local bound B of one datum as a formula of q's marginal means m and variances v."""
        return add(*(rule.share() for rule in self.rules if rule.parent is None), self.log_base)

    @property
    def log_base(self) -> Expression:
        """The term of the bound that is free of the latents."""
        return _log(self.base)

    def local_bound(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        """B(m, v + m^2) <= E log p(y | f) of each datum under f ~ N(m, v), shape (n,) (math: section 1)."""
        bound = self.bound.evaluate(Environment(y, m, {**parameters, VARIANCE: v}))
        return jnp.broadcast_to(bound[..., 0], m.shape[:-1])

    def tangent(self) -> TangentBound:
        return TangentBound(self)

    def draw_chain(
        self,
        key: Any,
        f: Any,
        y: Any,
        parameters: Mapping[str, Any],
        block: int = 0,
        known: Mapping[str, Any] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """Draw the auxiliaries of a block of latents given all latents; returns values by name.

        Those in ``known`` are conditioned on instead.
        """
        values = {**parameters, **known}
        drawn = {}
        keys = jax.random.split(key, len(self.rules))
        for rule, rule_key in zip(self.rules, keys, strict=True):
            if rule.auxiliary is None or rule.law is None or rule.auxiliary.name in known:
                continue
            if self._active(rule, block):
                value = rule.law.draw(rule_key, Environment(y, f, values))
                values[rule.auxiliary.name] = drawn[rule.auxiliary.name] = value
        return drawn

    @cached_property
    def complete_laws(self) -> dict[str, Law]:
        """The laws of ``Rule.complete``, by the names of the auxiliaries."""
        laws = {}
        for rule in self.rules:
            law = None if rule.auxiliary is None else rule.complete(self.children_of(rule.auxiliary))
            if rule.auxiliary is not None and law is not None:
                laws[rule.auxiliary.name] = law
        return laws

    def children_of(self, parent: Auxiliary) -> list[Auxiliary]:
        """The auxiliaries of the factors that the rule of another auxiliary returned."""
        return [rule.auxiliary for rule in self.rules if rule.parent is parent and rule.auxiliary is not None]

    def sites_given(
        self, auxiliaries: Mapping[str, Any], f: Any, y: Any, parameters: Mapping[str, Any], block: int = 0
    ) -> tuple[Any, Any]:
        """The sites of a block of latents given the auxiliaries, shapes (n, latents)."""
        env = Environment(y, f, {**parameters, **auxiliaries})
        terms: list[SiteTerm] = []
        for rule in self.rules:
            if self._active(rule, block):
                terms += rule.sites()
            if set(rule.coupled) & set(self.blocks[block]):
                terms += rule.coupled_sites()
        return evaluate_sites(tuple(terms), env)

    def draw_auxiliaries(
        self, key: Any, f: Any, y: Any, parameters: Mapping[str, Any], block: int = 0
    ) -> tuple[Any, Any]:
        """Draw the auxiliaries given f and return the resulting sites: the first half of a Gibbs sweep."""
        return self.sites_given(self.draw_chain(key, f, y, parameters, block), f, y, parameters, block)

    def log_joint(
        self, auxiliaries: Mapping[str, Any], f: Any, y: Any, parameters: Mapping[str, Any], block: int = 0
    ) -> Any:
        """log p(y, auxiliaries | f) of each datum; auxiliaries missing from ``auxiliaries`` are integrated out."""
        env = Environment(y, f, {**parameters, **auxiliaries})
        total = self.base.log_evaluate(env)
        for rule in self.rules:
            if rule.parent is not None and rule.parent.name not in auxiliaries:
                continue  # included in the parent's factor, which is integrated out
            if rule.auxiliary is None or rule.auxiliary.name in auxiliaries:
                part = rule.log_joint(env)
            else:
                part = rule.log_factor(env, known=auxiliaries)
            total = total + jnp.sum(part, axis=-1, keepdims=True)
        return total[..., 0]

    def log_conditional(self, auxiliaries: Mapping[str, Any], f: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        """log p(auxiliaries | f, y) of each datum."""
        env = Environment(y, f, {**parameters, **auxiliaries})
        total = jnp.zeros((1, 1))
        for rule in self.rules:
            if rule.auxiliary is not None and rule.law is not None and rule.auxiliary.name in auxiliaries:
                part = rule.law.log_density(auxiliaries[rule.auxiliary.name], env)
                total = total + jnp.sum(part, axis=-1, keepdims=True)
        return total[..., 0]

    def _active(self, rule: Rule, block: int) -> bool:
        return bool(set(rule.positions) & set(self.blocks[block]))


def _log(base: Expression) -> Expression:
    """The logarithm of a coefficient; exponential factors contribute their arguments."""
    factors = base.children if isinstance(base, Product) else (base,)
    exponents = [factor.argument for factor in factors if isinstance(factor, Call) and factor.name == "exp"]
    rest = multiply(*(factor for factor in factors if not (isinstance(factor, Call) and factor.name == "exp")))
    return add(*exponents, Constant(0.0) if rest.key == Constant(1.0).key else Logarithm(rest))
