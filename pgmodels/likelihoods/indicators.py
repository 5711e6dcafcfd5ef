"""Indicators of the latents: which one is the largest, and where a formula jumps."""

from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.notation import Tree, call
from pgmodels.likelihoods.operations import Call
from pgmodels.likelihoods.symbols import Constant, Latents
from pgmodels.numerics.largest import EQUAL_NODES, log_probability_of_largest


class Largest(Expression):
    """The probability that latent ``index`` plus noise of variance ``noise`` is the largest of all."""

    is_vector = False  # type: ignore[assignment]
    # The vector of latents in the notation.
    symbol: ClassVar[str] = "f"

    def __init__(self, latents: Latents, index: Expression, noise: Expression):
        self.latents, self.index, self.noise = latents, index, noise
        self.children = (latents, index, noise)

    @cached_property
    def is_indicator(self) -> bool:
        """Whether there is no noise, so that the value jumps."""
        return isinstance(self.noise, Constant) and self.noise.value == 0.0

    @cached_property
    def sign(self) -> int | None:
        return 1

    @cached_property
    def nonnegative(self) -> bool:
        return True

    @cached_property
    def extreme(self) -> bool:
        return not self.is_indicator

    def chosen(self, env: Environment) -> Array:
        """Whether each latent is the one of the index, (..., n, latents)."""
        return self.index.evaluate(env) == jnp.arange(self.latents.size)

    def evaluate(self, env: Environment) -> Array:
        if not self.is_indicator:
            return jnp.exp(self.log_evaluate(env))
        at_top = env.f == jnp.max(env.f, axis=-1, keepdims=True)
        share = at_top / jnp.sum(at_top, axis=-1, keepdims=True)
        return jnp.sum(jnp.where(self.chosen(env), share, 0.0), axis=-1, keepdims=True)

    def log_evaluate(self, env: Environment) -> Array:
        if self.is_indicator:
            return jnp.log(self.evaluate(env))
        return log_probability_of_largest(env.f, self.noise.evaluate(env), self.chosen(env), EQUAL_NODES)

    def notation(self, precedence: int = 0) -> Tree:
        return call("largest", self.symbol, self.index, *(() if self.is_indicator else (self.noise,)))


def jumps(formula: Expression) -> Iterator[Expression]:
    """The steps and largest latents of a formula, at which it jumps as a function of the latents."""
    if formula.latent_free:
        return
    if isinstance(formula, Largest):
        if formula.is_indicator:
            yield formula
    else:
        if isinstance(formula, Call) and formula.name == "step":
            yield formula
        for child in formula.children:
            yield from jumps(child)
