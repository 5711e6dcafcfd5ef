"""The symbols of a derivation beyond those of a formula: auxiliaries, q's moments, and what is made of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from pgmodels.augmentation.predictor import Predictor
from pgmodels.augmentation.quadratic import Quadratic
from pgmodels.augmentation.stable import log_sigmoid_tilde
from pgmodels.language.algebra import add, multiply, power
from pgmodels.language.expression import Environment, Expression
from pgmodels.language.operations import Call, Comparison, Power, Product, Reduction, Sum
from pgmodels.language.symbols import Latent, Latents


class Auxiliary(Expression):
    """The symbol of an auxiliary variable; given the latents it is a coefficient like any other."""

    def __init__(self, name: str, is_vector: bool):
        self.name = name
        self.is_vector = is_vector  # type: ignore[misc]

    def _label(self) -> Any:
        return (self.name, self.is_vector)

    sign = 1  # type: ignore[assignment]
    nonnegative = True  # type: ignore[assignment]

    def evaluate(self, env: Environment) -> Any:
        return env.parameters[self.name]

    def text(self, precedence: int = 0) -> str:
        return f"{self.name}[c]" if self.is_vector else self.name


@dataclass(frozen=True)
class SiteTerm:
    """The factor exp(potential z - precision z^2 / 2) of a predictor z, as formulas."""

    predictor: Predictor
    potential: Expression
    precision: Expression


VARIANCE = "Var[f]"


class Marginal(Expression):
    """The mean ``m`` of a latent under q, or its variance ``v``: read from ``f`` and the parameter VARIANCE."""

    def __init__(self, symbol: str, latent: Latent | Latents):
        self.symbol, self.latent = symbol, latent
        self.is_vector = latent.is_vector  # type: ignore[misc]
        self.nonnegative = symbol == "v"  # type: ignore[misc]

    def _label(self) -> Any:
        return (self.symbol, self.latent.key)

    def evaluate(self, env: Environment) -> Any:
        values = env.f if self.symbol == "m" else jnp.asarray(env.parameters[VARIANCE])
        return self.latent.evaluate(Environment(env.y, values, env.parameters))

    def text(self, precedence: int = 0) -> str:
        return self.symbol + self.latent.text()[1:]


class Expected(Expression):
    """The expectation of an auxiliary under q, read from the parameter of the same name, such as ``E[ω]``."""

    nonnegative = True  # type: ignore[assignment]

    def __init__(self, auxiliary: Expression):
        self.auxiliary = auxiliary
        self.name = f"E[{auxiliary.name}]"  # type: ignore[attr-defined]
        self.is_vector = auxiliary.is_vector  # type: ignore[misc]

    def _label(self) -> Any:
        return (self.name, self.is_vector)

    def evaluate(self, env: Environment) -> Any:
        return env.parameters[self.name]

    def text(self, precedence: int = 0) -> str:
        return f"E[{self.auxiliary.text()}]"


class Tilde(Expression):
    """σ̃₊(z) or σ̃₋(z) under q's marginals (math: section 2), or its logarithm."""

    def __init__(self, predictor: Predictor, side: int, logarithm: bool = False):
        self.predictor, self.side, self.logarithm = predictor, side, logarithm
        self.is_vector = predictor.is_vector  # type: ignore[misc]
        self.nonnegative = not logarithm  # type: ignore[misc]

    def _label(self) -> Any:
        return (self.predictor.key, self.side, self.logarithm)

    def evaluate(self, env: Environment) -> Any:
        mean, variance = self.predictor.moments(env.f, env.parameters[VARIANCE], env)
        value = log_sigmoid_tilde(self.side * mean, variance)
        return value if self.logarithm else jnp.exp(value)

    def text(self, precedence: int = 0) -> str:
        symbol = "σ̃₊" if self.side > 0 else "σ̃₋"
        return f"{'log ' if self.logarithm else ''}{symbol}({self.predictor.text()})"


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

    def text(self, precedence: int = 0) -> str:
        return f"{self.name}[c]" if self.is_vector else self.name


class Function(Expression):
    """A function of one argument that only derivations print."""

    nonnegative = True  # type: ignore[assignment]

    def __init__(self, name: str, function: Callable[[Any], Any], argument: Expression):
        self.name, self.function, self.argument = name, function, argument
        self.children = (argument,)

    def _label(self) -> Any:
        return self.name

    def evaluate(self, env: Environment) -> Any:
        return self.function(self.argument.evaluate(env))

    def text(self, precedence: int = 0) -> str:
        return f"{self.name}({self.argument.text()})"


def mean_of(predictor: Predictor) -> Expression:
    """E[z] in q's marginals."""
    return add(multiply(predictor.scale, Marginal("m", predictor.latent)), predictor.shift)


def variance_of(predictor: Predictor) -> Expression:
    """Var[z] in q's marginals."""
    return multiply(power(predictor.scale, 2.0), Marginal("v", predictor.latent))


def mean_quadratic(quadratic: Quadratic) -> Expression:
    """E[Q] in q's marginals."""
    total = quadratic.constant
    for square in quadratic.squares:
        second = add(power(mean_of(square.predictor), 2.0), variance_of(square.predictor))
        value = multiply(square.weight, second)
        total = add(total, over_latents(value) if square.reduced else value)
    return total


def auxiliaries_of(expression: Expression) -> list[Auxiliary]:
    """The auxiliaries in an expression, each once, in order."""
    if isinstance(expression, Auxiliary):
        return [expression]
    found = {node.key: node for child in expression.children for node in auxiliaries_of(child)}
    return list(found.values())


def substitute(expression: Expression, table: Mapping[tuple, Expression]) -> Expression:
    """The expression with symbols, given by key, replaced."""
    if expression.key in table:
        return table[expression.key]
    return rebuild(expression, [substitute(child, table) for child in expression.children])


def rebuild(expression: Expression, parts: list[Expression]) -> Expression:
    """The expression with other children."""
    if isinstance(expression, Sum):
        return add(*parts)
    if isinstance(expression, Product):
        return multiply(*parts)
    if isinstance(expression, Power):
        return power(*parts)
    if isinstance(expression, Call):
        return Call(expression.name, *parts)
    if isinstance(expression, Comparison):
        return Comparison(expression.operator, *parts)
    if isinstance(expression, Reduction):
        return Reduction(expression.operator, *parts)
    return expression


def over_latents(expression: Expression) -> Expression:
    """The sum over the latents where an expression is a vector over them."""
    return Reduction("sum", expression) if expression.is_vector else expression
