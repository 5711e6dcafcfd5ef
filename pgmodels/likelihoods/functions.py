"""Functions for the formulas of likelihoods."""

import math
from collections.abc import Iterable
from typing import Any

from pgmodels.likelihoods.algebra import add, as_expression, multiply, power
from pgmodels.likelihoods.expression import Expression, Operand
from pgmodels.likelihoods.indicators import Largest
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


def step(z: Operand) -> Expression:
    """The unit step: 1 where z > 0, 0 where z < 0, and one half at 0.

    The log density of a formula with a step has no gradient in the latents, so that ``nuts`` refuses it; the expected
    log density has one (see Notes).

    Parameters
    ----------
    z : expression or float
        The argument, such as ``(2 * y - 1) * f``.

    Returns
    -------
    Expression

    Notes
    -----
    A step alone gives a label probability 0: a likelihood has an error rate too, as in
    ``error + (1 - 2 * error) * pgm.step((2 * y - 1) * f)``. ``gaussian_vi`` is exact for steps of one predictor, an
    affine function of the latents.
    """
    return Call("step", as_expression(z))


def largest(f: Expression, y: Operand, noise: Operand = 0.0) -> Expression:
    """The probability that f[y] is the largest of all latents, each with independent Gaussian noise.

    Without noise, the indicator of the largest latent: 1 or 0, shared between ties. Its log density has no gradient in
    the latents, so that ``nuts`` refuses it.

    Parameters
    ----------
    f : Expression
        The vector of latents, at least two.
    y : expression or int
        The position of the latent, 0 to the number of latents - 1: the observation, one of its columns, or a number.
    noise : expression or float
        Variance of the noise of each latent, >= 0: a number, or a coefficient such as a positive parameter.

    Returns
    -------
    Expression
        Over the positions y it sums to 1.

    Raises
    ------
    ValueError
        If ``f`` is not the vector of latents, ``y`` is no position, or ``noise`` may be negative.

    Notes
    -----
    With noise it is E Π_c Φ(u + (f[y] - f[c]) / √noise) over c ≠ y and a standard normal u: the multinomial probit, by
    quadrature; in closed form for two latents. Without noise a likelihood has an error rate too, as in
    ``(1 - error) * pgm.largest(f, y) + error / (C - 1) * (1 - pgm.largest(f, y))`` for C classes.

    References
    ----------
    Albert and Chib 1993; Girolami and Rogers 2006; Hernández-Lobato, Hernández-Lobato and Dupont 2011.
    """
    if not isinstance(f, Latents):
        raise ValueError(
            f"largest takes the vector of at least two latents f; got {f!r}. Give the model one latent for each class, "
            "as in pgm.GP(kernel, size=3), and write pgm.step for the sign of one latent."
        )
    index, variance = as_expression(y), as_expression(noise)
    if isinstance(index, Constant) and index.value not in range(f.size):
        raise ValueError(f"largest takes a position y of 0 to {f.size - 1} in the latents f; got {index.text()}.")
    if not index.latent_free or index.is_vector:
        raise ValueError(f"largest takes a position y that is a number or a function of y alone; got {index.text()}.")
    if not variance.latent_free or variance.is_vector or variance.sign != 1:
        raise ValueError(
            f"noise of largest must be a variance >= 0 free of f; got {variance.text()}. Use a number or a parameter "
            "with pgm.Parameter(1.0, positive=True)."
        )
    return Largest(f, index, variance)


def normal_pdf(x: Operand, mean: Operand, scale: Operand) -> Expression:
    """The normal density of ``x`` with mean ``mean`` and standard deviation ``scale``."""
    scale = as_expression(scale)
    deviation = add(x, multiply(-1.0, mean))
    squared = multiply(power(deviation, 2.0), power(scale, -2.0))
    return multiply(1.0 / math.sqrt(2.0 * math.pi), power(scale, -1.0), exp(multiply(-0.5, squared)))


def gamma(x: Operand) -> Expression:
    """The gamma function Γ(x) of a positive expression."""
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
