"""Sums of likelihoods: a latent allocation to one component."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from pgmodels.augmentation.averages import Expected, Tilde
from pgmodels.augmentation.laws import Categorical, where
from pgmodels.augmentation.normal_form import Factor, factorise, split_latents
from pgmodels.augmentation.predictor import latents_of
from pgmodels.augmentation.rules.rule import ONE, ZERO, Rule
from pgmodels.augmentation.symbols import Allocated, Auxiliary
from pgmodels.likelihoods.algebra import add, multiply, power, split_number
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.functions import exp
from pgmodels.likelihoods.notation import Tree, call, line, over, words
from pgmodels.likelihoods.operations import Call, Product, Reduction, Sum
from pgmodels.likelihoods.symbols import Latent, Observation

if TYPE_CHECKING:
    from pgmodels.augmentation.derive import Deriver


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
        components = _components(base)
        for component in components:
            weight, rest = split_latents(component)
            if weight.sign == -1:
                raise deriver.no_rule(factor.expression, "a sum of likelihoods with weights >= 0")
            reason = (words("the weight of"), rest, words("in"), factor.expression)
            deriver.require(weight, "nonnegative", *reason)
        shares = tuple(deriver.component_bound(component) for component in components)
        rule = cls(deriver.name("j"), factor, components, shares)
        deriver.rules.append(rule)
        # Σ_j p_j is the sum over j of Π_k p_k^[j = k]
        allocated_factors = [
            Factor(inner.base, multiply(inner.exponent, allocated), rule.auxiliary)
            for allocated, component in zip(rule.allocated, components, strict=True)
            for inner in factorise(component, deriver.size)
        ]
        moving = [power(inner.base, inner.exponent) for inner in allocated_factors if not inner.base.latent_free]
        rule.remaining_factor = multiply(*(Reduction("prod", part) if part.is_vector else part for part in moving))
        rule.positions = tuple(sorted(_positions(base)))
        return tuple(allocated_factors)

    def finish(self, deriver: Deriver) -> None:
        self.coefficient = deriver.coefficient(self.auxiliary)

    def share(self) -> Expression:
        return multiply(self.exponent, LogMixture(self.shares))

    def log_factor(self, env: Environment, known: Container[str] = ()) -> Any:
        return self.exponent.evaluate(env) * jax.nn.logsumexp(self.law.log_weights(env), axis=0)

    def log_joint(self, env: Environment) -> Any:
        return self.coefficient.log_evaluate(env)

    def identity(self) -> Tree:
        terms = multiply(
            *(power(part, indicator) for part, indicator in zip(self.components, self.allocated, strict=True))
        )
        return line(self.base, "=", over("Σ", self.auxiliary, terms), *where(self.exponent))

    def augmented(self) -> Expression:
        return self.coefficient

    def prior(self) -> tuple[Expression, ...]:
        factors = (part for component in self.components for part in _factors(component))
        return tuple(part for part in factors if not _observes(part))

    def expectations(self) -> tuple[tuple[Expected, Expression], ...]:
        return tuple(
            (Expected(allocated), multiply(self.exponent, Responsibility(self.shares, k)))
            for k, allocated in enumerate(self.allocated)
        )


class LogMixture(Expression):
    """log Σ_j exp B_j, with B_j the bounds of the components."""

    def __init__(self, shares: tuple[Expression, ...]):
        self.children = shares

    def evaluate(self, env: Environment) -> Any:
        return jax.nn.logsumexp(_stacked(self.children, env), axis=0)

    def notation(self, precedence: int = 0) -> Tree:
        return call("log", add(*map(exponential, self.children)))


class Responsibility(Expression):
    """exp B_k / Σ_j exp B_j: the probability of a component under the optimal q."""

    nonnegative = True  # type: ignore[assignment]

    def __init__(self, shares: tuple[Expression, ...], component: int):
        self.children, self.component = shares, component

    def _label(self) -> Any:
        return self.component

    def evaluate(self, env: Environment) -> Any:
        return jax.nn.softmax(_stacked(self.children, env), axis=0)[self.component]

    def notation(self, precedence: int = 0) -> Tree:
        total = add(*map(exponential, self.children))
        return multiply(exponential(self.children[self.component]), power(total, -1.0)).notation(precedence)


def _stacked(shares: tuple[Expression, ...], env: Environment) -> Any:
    return jnp.stack(jnp.broadcast_arrays(*(share.evaluate(env) for share in shares)))


def exponential(bound: Expression) -> Expression:
    """exp of a bound; its logarithmic terms become factors."""
    factors, rest = [], []
    for term in bound.children if isinstance(bound, Sum) else (bound,):
        term_factors = term.children if isinstance(term, Product) else (term,)
        logs = [part for part in term_factors if _argument(part) is not None]
        others = multiply(*(part for part in term_factors if not (logs and part is logs[0])))
        argument = _argument(logs[0]) if len(logs) == 1 else None
        if argument is None:
            rest.append(term)
        else:
            factors.append(power(argument, others))
    return multiply(*factors, exp(add(*rest)) if rest and add(*rest).key != ZERO.key else ONE)


def _argument(part: Expression) -> Expression | None:
    """The argument of a logarithm; None for any other expression."""
    if isinstance(part, Tilde) and part.logarithm:
        return Tilde(part.predictor, part.side)
    return part.argument if isinstance(part, Call) and part.name == "log" else None


def _components(base: Sum) -> tuple[Expression, ...]:
    """The terms of a sum: latent-free terms merged, and -w σ(z) rewritten as w σ(-z) - w."""
    constants, moving = [], []
    for child in base.children:
        weight, link = split_latents(child)
        if isinstance(link, Call) and link.name in ("sigmoid", "normal_cdf") and split_number(child)[0] < 0:
            constants.append(weight)
            moving.append(multiply(multiply(-1.0, weight), Call(link.name, multiply(-1.0, link.argument))))
        elif child.latent_free:
            constants.append(child)
        else:
            moving.append(child)
    constant = add(*constants)
    return (*([] if constant.key == ZERO.key else [constant]), *moving)


def _factors(component: Expression) -> tuple[Expression, ...]:
    return component.children if isinstance(component, Product) else (component,)


def _observes(expression: Expression) -> bool:
    return isinstance(expression, Observation) or any(_observes(child) for child in expression.children)


def _positions(expression: Expression) -> set[int]:
    positions: set[int] = set()
    for latent in latents_of(expression).values():
        positions |= {latent.position} if isinstance(latent, Latent) else set(range(latent.size))  # type: ignore[attr-defined]
    return positions
