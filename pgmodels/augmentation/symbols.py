"""Symbols of derivations: auxiliary variables and expressions of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pgmodels.augmentation.predictor import Predictor
from pgmodels.likelihoods import algebra
from pgmodels.likelihoods.algebra import add, multiply
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.notation import Part, Tree, bracketed, indexed, line
from pgmodels.likelihoods.operations import Call, Product, Reduction, Sum
from pgmodels.likelihoods.symbols import Constant


class Auxiliary(Expression):
    """The symbol of an auxiliary variable; it counts as a coefficient, free of the latents."""

    def __init__(self, name: str, is_vector: bool):
        self.name = name
        self.is_vector = is_vector  # type: ignore[misc]

    def _label(self) -> Any:
        return (self.name, self.is_vector)

    sign = 1  # type: ignore[assignment]
    nonnegative = True  # type: ignore[assignment]

    def evaluate(self, env: Environment) -> Any:
        return env.parameters[self.name]

    def element(self, index: Part | None) -> Tree:
        """The symbol with the given index."""
        return indexed(self.name, index)

    def notation(self, precedence: int = 0) -> Tree:
        return self.element("c" if self.is_vector else None)


class Allocated(Expression):
    """The indicator that the allocation ``auxiliary`` equals ``component``."""

    sign = 1  # type: ignore[assignment]
    nonnegative = True  # type: ignore[assignment]

    def __init__(self, auxiliary: Auxiliary, component: int):
        self.auxiliary, self.component = auxiliary, component
        self.name = f"{auxiliary.name} = {component}"
        self.children = (auxiliary,)

    def _label(self) -> Any:
        return self.component

    def evaluate(self, env: Environment) -> Any:
        return (self.auxiliary.evaluate(env) == self.component).astype(jnp.result_type(float))

    @property
    def condition(self) -> Tree:
        """The condition, such as j = 1, as a formula."""
        return line(self.auxiliary, "=", self.component)

    def notation(self, precedence: int = 0) -> Tree:
        return bracketed(self.condition, "[]")


class Logarithm(Call):
    """The logarithm by the argument's ``log_evaluate``, without overflow or cancellation."""

    def __init__(self, argument: Expression):
        super().__init__("log", argument)

    def evaluate(self, env: Environment) -> Any:
        return self.argument.log_evaluate(env)


class WeightedSum(Expression):
    """constant + Σ_j weight_j value_j with weights and values >= 0; its logarithm never underflows.

    ``terms`` are (weight, value, whether the product is summed over the latents); ``written`` is the printed sum.
    """

    nonnegative = True  # type: ignore[assignment]

    def __init__(self, written: Expression, constant: Expression, terms: Iterable[tuple[Expression, Expression, bool]]):
        self.written, self.constant, self.terms = written, constant, tuple(terms)
        self.children = (written,)

    def evaluate(self, env: Environment) -> Any:
        return jnp.exp(self.log_evaluate(env))

    def log_evaluate(self, env: Environment) -> Any:
        columns = []
        if self.constant.key != Constant(0.0).key:
            factor, logarithm = self.constant.scaled(env)
            columns.append((logarithm, factor))
        for weight, argument, reduced in self.terms:
            factor, log_weight = weight.scaled(env)
            value, factor = jnp.broadcast_arrays(log_weight + argument.log_evaluate(env), factor)
            if reduced:
                columns.extend((value[..., i : i + 1], factor[..., i : i + 1]) for i in range(value.shape[-1]))
            else:
                columns.append((value, factor))
        values = jnp.stack(jnp.broadcast_arrays(*(value for value, _ in columns)))
        factors = jnp.stack(jnp.broadcast_arrays(*(factor for _, factor in columns)))
        return jax.nn.logsumexp(values, axis=0, b=factors)

    def notation(self, precedence: int = 0) -> Tree:
        return self.written.notation(precedence)


@dataclass(frozen=True)
class SiteTerm:
    """The factor exp(potential z - precision z^2 / 2) of a predictor z, as formulas."""

    predictor: Predictor
    potential: Expression
    precision: Expression


def group_by_component(expression: Expression) -> Expression:
    """A sum with its terms grouped by the mixture component whose indicator they contain."""
    groups: dict[tuple, tuple[Expression, list[Expression]]] = {}
    for term in expression.children if isinstance(expression, Sum) else ():
        factors = term.children if isinstance(term, Product) else (term,)
        indicator: Expression = next((factor for factor in factors if isinstance(factor, Allocated)), Constant(1.0))
        rest = multiply(*(factor for factor in factors if factor is not indicator))
        groups.setdefault(indicator.key, (indicator, []))[1].append(rest)
    if all(indicator.key == Constant(1.0).key for indicator, _ in groups.values()):
        return expression
    return add(*(multiply(indicator, add(*rests)) for indicator, rests in groups.values()))


def auxiliaries_of(expression: Expression) -> list[Auxiliary]:
    """The distinct auxiliaries in an expression, in order of appearance."""
    if isinstance(expression, Auxiliary):
        return [expression]
    auxiliaries = {node.key: node for child in expression.children for node in auxiliaries_of(child)}
    return list(auxiliaries.values())


def substitute(expression: Expression, table: Mapping[tuple, Expression]) -> Expression:
    """The expression with subexpressions replaced according to ``table``, by key."""
    if expression.key in table:
        return table[expression.key]
    return rebuild(expression, [substitute(child, table) for child in expression.children])


def rebuild(expression: Expression, children: list[Expression]) -> Expression:
    """The expression with its children replaced."""
    return Logarithm(*children) if isinstance(expression, Logarithm) else algebra.rebuild(expression, children)


def over_latents(expression: Expression) -> Expression:
    """The sum over the latents if an expression is a vector over them, else the expression."""
    return Reduction("sum", expression) if expression.is_vector else expression
