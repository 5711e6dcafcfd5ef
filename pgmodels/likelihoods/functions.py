"""Functions for the formulas of likelihoods."""

import math
from collections.abc import Iterable
from typing import Any

from pgmodels.likelihoods.algebra import add, as_expression, multiply, power
from pgmodels.likelihoods.expression import Expression, Operand
from pgmodels.likelihoods.operations import Call, Reduction
from pgmodels.likelihoods.symbols import Constant, Latent, Latents, Positions


def sigmoid(z: Operand) -> Expression:
    """The logistic function 1 / (1 + exp(-z))."""
    return Call("sigmoid", as_expression(z))


def exp(x: Operand) -> Expression:
    """The exponential function."""
    return Call("exp", as_expression(x))


def log(x: Operand) -> Expression:
    """The natural logarithm."""
    return Call("log", as_expression(x))


def sqrt(x: Operand) -> Expression:
    """The square root."""
    return power(x, 0.5)


def normal_cdf(z: Operand) -> Expression:
    """The standard normal distribution function Φ(z)."""
    return Call("normal_cdf", as_expression(z))


def normal_pdf(x: Operand, mean: Operand, scale: Operand) -> Expression:
    """The normal density of ``x`` with mean ``mean`` and standard deviation ``scale``."""
    scale = as_expression(scale)
    deviation = add(x, multiply(-1.0, mean))
    squared = multiply(power(deviation, 2.0), power(scale, -2.0))
    return multiply(1.0 / math.sqrt(2.0 * math.pi), power(scale, -1.0), exp(multiply(-0.5, squared)))


def gamma(x: Operand) -> Expression:
    """The gamma function Γ(x) of a coefficient, for normalising constants."""
    return Call("gamma", as_expression(x))


def positions(f: Expression) -> Expression:
    """The positions 0, 1, ..., L - 1 of the latents in ``f``, as a vector of coefficients."""
    if isinstance(f, Latents):
        return Positions(f.size)
    if isinstance(f, Latent) and f.size == 1:
        return Constant(0.0)
    raise ValueError(f"positions takes the vector of latents f; got {f!r}.")


def sum_(x: Operand | Iterable[Operand]) -> Expression:
    """The sum over the latents of a vector, or of a Python sequence of expressions."""
    return _reduce("sum", x)


def prod(x: Operand | Iterable[Operand]) -> Expression:
    """The product over the latents of a vector, or of a Python sequence of expressions."""
    return _reduce("prod", x)


def _reduce(operator: str, x: Any) -> Expression:
    if isinstance(x, (list, tuple)) or (not isinstance(x, Expression) and isinstance(x, Iterable)):
        terms = [_reduce(operator, term) for term in x]
        return add(*terms) if operator == "sum" else multiply(*terms)
    expression = as_expression(x)
    return Reduction(operator, expression) if expression.is_vector else expression
