"""Symbols of variational inference: moments of q, expectations under q, and the terms of local bounds."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from pgmodels.augmentation.predictor import Predictor
from pgmodels.augmentation.quadratic import Quadratic
from pgmodels.augmentation.stable import log_sigmoid_tilde
from pgmodels.augmentation.symbols import Allocated, Auxiliary, over_latents
from pgmodels.likelihoods.algebra import add, multiply, power
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.notation import Applied, Name, Part, Tree, call, expectation, indexed
from pgmodels.likelihoods.symbols import Latent, Latents
from pgmodels.runtime.x64 import as_array

VARIANCE = "Var[f]"


class Marginal(Expression):
    """The mean ``m`` of a latent under q (read from ``env.f``) or its variance ``v`` (the parameter VARIANCE)."""

    def __init__(self, symbol: str, latent: Latent | Latents):
        self.symbol, self.latent = symbol, latent
        self.is_vector = latent.is_vector  # type: ignore[misc]
        self.nonnegative = symbol == "v"  # type: ignore[misc]

    def _label(self) -> Any:
        return (self.symbol, self.latent.key)

    def evaluate(self, env: Environment) -> Any:
        values = env.f if self.symbol == "m" else as_array(env.parameters[VARIANCE])
        return self.latent.evaluate(Environment(env.y, values, env.parameters))

    def notation(self, precedence: int = 0) -> Tree:
        return indexed(self.symbol, self.latent.index)


class Expected(Expression):
    """The expectation of an auxiliary under q, read from the parameter of the same name, such as ``E[ω]``.

    For a mixture component it is the probability, such as ``q(j = 1)``.
    """

    nonnegative = True  # type: ignore[assignment]

    def __init__(self, auxiliary: Auxiliary | Allocated):
        self.auxiliary = auxiliary
        self.name = f"E[{auxiliary.name}]"
        self.is_vector = auxiliary.is_vector  # type: ignore[misc]

    def _label(self) -> Any:
        return (self.name, self.is_vector)

    def evaluate(self, env: Environment) -> Any:
        return env.parameters[self.name]

    def element(self, index: Part | None) -> Tree:
        """The symbol with the given index."""
        if isinstance(self.auxiliary, Allocated):
            return call("q", self.auxiliary.condition)
        return expectation(self.auxiliary.element(index))

    def notation(self, precedence: int = 0) -> Tree:
        return self.element("c" if self.is_vector else None)


class Tilde(Expression):
    """σ̃₊(z) or σ̃₋(z) under q's marginals (math: section 2), or its logarithm."""

    def __init__(self, predictor: Predictor, side: int, logarithm: bool = False):
        self.predictor, self.side, self.logarithm = predictor, side, logarithm
        self.mean, self.variance = mean_of(predictor), variance_of(predictor)
        self.is_vector = predictor.is_vector  # type: ignore[misc]
        self.nonnegative = not logarithm  # type: ignore[misc]

    def _label(self) -> Any:
        return (self.predictor.key, self.side, self.logarithm)

    def evaluate(self, env: Environment) -> Any:
        value = log_sigmoid_tilde(self.side * self.mean.evaluate(env), self.variance.evaluate(env))
        return value if self.logarithm else jnp.exp(value)

    def notation(self, precedence: int = 0) -> Tree:
        value = call("σ̃₊" if self.side > 0 else "σ̃₋", self.predictor.expression)
        return Applied(Name("log"), value) if self.logarithm else value


class Thinning(Expression):
    """1 - σ̃₋(z), which replaces σ(z) in bounds; evaluated without cancellation."""

    nonnegative = True  # type: ignore[assignment]

    def __init__(self, predictor: Predictor):
        self.down = Tilde(predictor, -1)
        self.log_down = Tilde(predictor, -1, logarithm=True)
        self.written = add(1.0, multiply(-1.0, self.down))
        self.is_vector = predictor.is_vector  # type: ignore[misc]

    def _label(self) -> Any:
        return self.down.key

    def evaluate(self, env: Environment) -> Any:
        return -jnp.expm1(self.log_down.evaluate(env))

    def notation(self, precedence: int = 0) -> Tree:
        return self.written.notation(precedence)


class Root(Expression):
    """ζ = sqrt(E[z^2]) under q's marginals."""

    nonnegative = True  # type: ignore[assignment]

    def __init__(self, name: str, predictor: Predictor):
        self.name, self.predictor = name, predictor
        mean = mean_of(predictor)
        self.definition = power(add(power(mean, 2.0), variance_of(predictor)), 0.5)
        self.is_vector = self.definition.is_vector  # type: ignore[misc]

    def _label(self) -> Any:
        return (self.name, self.definition.key)

    def evaluate(self, env: Environment) -> Any:
        return self.definition.evaluate(env)

    def notation(self, precedence: int = 0) -> Tree:
        return indexed(self.name, "c" if self.is_vector else None)


class Function(Expression):
    """A named function of one argument, as printed in derivations."""

    nonnegative = True  # type: ignore[assignment]

    def __init__(self, name: str, function: Callable[[Any], Any], argument: Expression):
        self.name, self.function, self.argument = name, function, argument
        self.children = (argument,)

    def _label(self) -> Any:
        return self.name

    def evaluate(self, env: Environment) -> Any:
        return self.function(self.argument.evaluate(env))

    def notation(self, precedence: int = 0) -> Tree:
        return call(self.name, self.argument)


def mean_of(predictor: Predictor) -> Expression:
    """E[z] under q's marginals, as a formula."""
    return add(multiply(predictor.scale, Marginal("m", predictor.latent)), predictor.shift)


def variance_of(predictor: Predictor) -> Expression:
    """Var[z] under q's marginals, as a formula."""
    return multiply(power(predictor.scale, 2.0), Marginal("v", predictor.latent))


def mean_quadratic(quadratic: Quadratic) -> Expression:
    """E[Q] under q's marginals, as a formula."""
    total = quadratic.constant
    for square in quadratic.squares:
        second = add(power(mean_of(square.predictor), 2.0), variance_of(square.predictor))
        value = multiply(square.weight, second)
        total = add(total, over_latents(value) if square.reduced else value)
    return total
