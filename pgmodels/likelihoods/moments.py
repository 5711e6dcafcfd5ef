"""Mean and variance of y given the latents, for formulas that are Gaussian in y."""

import jax
import jax.numpy as jnp
from jax import Array

from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.operations import Call, Power, Product, Sum
from pgmodels.likelihoods.symbols import Constant, Observation


def is_gaussian(formula: Expression) -> bool:
    """Whether a formula is exp of a quadratic in y (its first column) times factors that do not depend on y."""
    return _degree_of_log(formula) == 2


def gaussian_moments(formula: Expression, env: Environment) -> tuple[Array, Array]:
    """Mean m and variance s² (..., n) of y: at y = 0, log p has slope m/s² and curvature -1/s²."""
    y = jnp.asarray(env.y, dtype=env.f.dtype)
    first = jnp.zeros(y.shape) if y.ndim == 1 else y.at[..., 0].set(0.0)
    direction = jnp.ones(y.shape) if y.ndim == 1 else jnp.zeros(y.shape).at[..., 0].set(1.0)

    def log_density(y: Array) -> Array:
        return formula.log_evaluate(Environment(y, env.f, env.parameters))[..., 0]

    def slope(y: Array) -> Array:
        return jax.jvp(log_density, (y,), (direction,))[1]

    potential, curvature = jax.jvp(slope, (first,), (direction,))
    return -potential / curvature, -1.0 / curvature


def _degree_of_log(formula: Expression) -> int | None:
    """The degree of log p as a polynomial in y, None if it is not one."""
    if not _reads_y(formula):
        return 0
    if isinstance(formula, Product):
        return _largest([_degree_of_log(factor) for factor in formula.children])
    if isinstance(formula, Call) and formula.name == "exp":
        return _degree(formula.argument)
    if isinstance(formula, Power) and not _reads_y(formula.exponent):
        return _degree_of_log(formula.base)
    return None


def _degree(expression: Expression) -> int | None:
    """The degree of an expression as a polynomial in y, None if it is not one."""
    if not _reads_y(expression):
        return 0
    if isinstance(expression, Observation):
        return 1
    degrees = [_degree(child) for child in expression.children]
    if isinstance(expression, Sum):
        return _largest(degrees)
    if isinstance(expression, Product):
        return None if None in degrees else sum(degree or 0 for degree in degrees)
    if isinstance(expression, Power) and isinstance(expression.exponent, Constant) and degrees[0] is not None:
        power = expression.exponent.value
        return degrees[0] * int(power) if power > 0 and power == int(power) else None
    return None


def _largest(degrees: list[int | None]) -> int | None:
    return None if None in degrees else max(degree or 0 for degree in degrees)


def _reads_y(expression: Expression) -> bool:
    """Whether an expression reads y, or its first column if it has several."""
    if isinstance(expression, Observation):
        return expression.column in (None, 0)
    return any(map(_reads_y, expression.children))
