"""Operations on expressions: arithmetic, algebra, indicators, functions, substitution."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np
from jax import Array
from scipy import special

from pgmodels.likelihoods.expression import (
    Constant,
    Environment,
    Expression,
    Latent,
    Latents,
    Operand,
    Positions,
    Scaled,
    Selected,
    VectorSymbol,
    product,
    total,
    total_along,
)
from pgmodels.likelihoods.printing import Tree, call
from pgmodels.numerics.elementary import EQUAL_NODES, log_probability_of_largest, namespace, safe_sqrt
from pgmodels.runtime.jit import compiled

# Functions by name: NumPy's and JAX's.
_COMPARISONS = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le}
_VALUES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sigmoid": (special.expit, jax.nn.sigmoid),
    "exp": (np.exp, jnp.exp),
    "log": (np.log, jnp.log),
    "abs": (abs, abs),
    "normal_cdf": (special.ndtr, jsp.ndtr),
    "cauchy_cdf": (lambda z: np.arctan2(1.0, -z) / np.pi, lambda z: jnp.arctan2(1.0, -z) / jnp.pi),
    "step": (lambda z: np.heaviside(z, 0.5), lambda z: jnp.heaviside(z, 0.5)),
    "gamma": (lambda x: np.exp(special.gammaln(x)), lambda x: jnp.exp(jsp.gammaln(x))),
}
_LOGARITHMS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sigmoid": (special.log_expit, jax.nn.log_sigmoid),
    "exp": (lambda x: x, lambda x: x),
    "normal_cdf": (special.log_ndtr, jsp.log_ndtr),
    "cauchy_cdf": (lambda z: np.log(np.arctan2(1.0, -z) / np.pi), lambda z: jnp.log(jnp.arctan2(1.0, -z) / jnp.pi)),
    "gamma": (special.gammaln, jsp.gammaln),
}


def _logarithm(name: str, x: Array) -> Array:
    return _LOGARITHMS[name][isinstance(x, jax.Array)](x)


class Difference(NamedTuple):
    """weight (F(upper) - F(lower)) with F = σ or Φ by ``name``; ``upper`` and ``gap`` are None where F(upper) is 1.

    ``gap`` is upper - lower.
    """

    name: str
    weight: Expression
    upper: Expression | None
    lower: Expression
    gap: Expression | None


class Sum(Expression):
    """A sum of terms."""

    def __init__(self, children: tuple[Expression, ...]):
        self.children = children

    @cached_property
    def sign(self) -> int | None:
        signs = {child.sign for child in self.children}
        return signs.pop() if len(signs) == 1 else (1 if self.complement is not None else None)

    @cached_property
    def nonnegative(self) -> bool:
        if self.complement is not None or all(child.nonnegative for child in self.children):
            return True
        # The ends of an interval are assumed to be ordered, as observations are assumed to be >= 0.
        return self.difference is not None and self.difference.weight.nonnegative and not self.latent_free

    @cached_property
    def difference(self) -> Difference | None:
        """The sum as a difference of values of σ or Φ whose arguments differ by a coefficient, else None."""
        links = [link for child in self.children if (link := _link_in(child)) is not None]
        rest = [child for child in self.children if _link_in(child) is None]
        algebra = self.algebra
        if len(links) == 1 and rest and all(child.latent_free for child in rest):
            (minus, lower), weight = links[0], algebra.add(*rest)
            cancels = algebra.add(weight, minus).key == Constant(0.0).key
            return Difference(lower.name, weight, None, lower.argument, None) if cancels else None
        if len(links) != 2 or rest or links[0][1].name != links[1][1].name:
            return None
        for (weight, upper), (minus, lower) in (links, links[::-1]):
            gap = algebra.add(_distributed(upper.argument), algebra.multiply(-1.0, _distributed(lower.argument)))
            cancels = algebra.add(weight, minus).key == Constant(0.0).key
            if cancels and gap.latent_free and gap.sign != -1 and weight.sign != -1:
                return Difference(upper.name, weight, upper.argument, lower.argument, gap)
        return None

    @cached_property
    def complement(self) -> tuple[float, Expression] | None:
        """The sum as a positive number times 1 - p, with p between 0 and 1 such as exp(-x), else None."""
        numbers = [child.value for child in self.children if isinstance(child, Constant)]
        others = [child for child in self.children if not isinstance(child, Constant)]
        if len(numbers) != 1 or len(others) != 1 or numbers[0] <= 0:
            return None
        share = self.algebra.multiply(-1.0 / numbers[0], others[0])
        return (numbers[0], share) if _is_share(share) else None

    def evaluate(self, env: Environment) -> Array:
        if self.complement is not None:
            number, share = self.complement
            return -number * env.xp.expm1(share.log_evaluate(env))
        return sum((child.evaluate(env) for child in self.children[1:]), self.children[0].evaluate(env))

    def log_evaluate(self, env: Environment) -> Array:
        if self.difference is not None:
            return self.difference.weight.log_evaluate(env) + _log_difference(self.difference, env)
        if self.complement is not None:
            # 1 - p cancels where p is nearly 1.
            return env.xp.log(self.evaluate(env))
        return self.scaled(env).log

    def scaled(self, env: Environment) -> Scaled:
        if self.difference is not None:
            return product([self.difference.weight.scaled(env), Scaled.of_log(_log_difference(self.difference, env))])
        if self.complement is not None or not self.extreme:
            return Scaled.of(self.evaluate(env))
        return total([child.scaled(env) for child in self.children])


def _is_share(expression: Expression) -> bool:
    """Whether an expression is between 0 and 1 for all data."""
    if isinstance(expression, Power):
        return expression.exponent.sign == 1 and _is_share(expression.base)
    if isinstance(expression, Product):
        return all(map(_is_share, expression.children))
    if not isinstance(expression, Call):
        return False
    if expression.name == "exp":
        return expression.argument.sign == -1
    return expression.name in ("sigmoid", "normal_cdf", "cauchy_cdf")


def factors_of(expression: Expression) -> tuple[Expression, ...]:
    """The factors of a product; any other expression is its only factor."""
    return expression.children if isinstance(expression, Product) else (expression,)


def _link_in(term: Expression) -> tuple[Expression, Call] | None:
    """A term as weight times σ or Φ, None if it is not of this form."""
    factors = factors_of(term)
    links = [factor for factor in factors if isinstance(factor, Call) and factor.name in ("sigmoid", "normal_cdf")]
    if len(links) != 1 or not all(factor.latent_free for factor in factors if factor is not links[0]):
        return None
    return term.algebra.multiply(1.0, *(factor for factor in factors if factor is not links[0])), links[0]


def _distributed(expression: Expression) -> Expression:
    """A coefficient times a sum as a sum of products, so that common terms of two arguments cancel."""
    sums = [factor for factor in expression.children if isinstance(factor, Sum) and not factor.latent_free]
    if not isinstance(expression, Product) or len(sums) != 1:
        return expression
    others = [factor for factor in expression.children if factor is not sums[0]]
    return expression.algebra.add(*(expression.algebra.multiply(*others, term) for term in sums[0].children))


def _log_difference(difference: Difference, env: Environment) -> Array:
    """The logarithm of F(upper) - F(lower), accurate in both tails."""
    lower = difference.lower.evaluate(env)
    if difference.upper is None or difference.gap is None:
        return _logarithm(difference.name, -lower)
    upper = difference.upper.evaluate(env)
    if difference.name == "sigmoid":
        # σ(a) - σ(b) = σ(a) σ(-b) (1 - exp(b - a))
        log_gap = env.xp.log(-env.xp.expm1(-difference.gap.evaluate(env)))
        return _logarithm("sigmoid", upper) + _logarithm("sigmoid", -lower) + log_gap
    return log_normal_interval(lower, upper)


def log_normal_interval(lower: Array, upper: Array) -> Array:
    """log(Φ(upper) - Φ(lower)) for lower < upper, which may be infinite; accurate in both tails."""
    xp = namespace(lower, upper)
    reflected = lower + upper > 0
    low, high = xp.where(reflected, -upper, lower), xp.where(reflected, -lower, upper)
    log_high = _logarithm("normal_cdf", xp.where(xp.isfinite(high), high, 0.0))
    log_high = xp.where(xp.isfinite(high), log_high, 0.0)
    # Below -∞ there is no mass, and its derivative, which would be NaN, must not be computed.
    bounded = xp.isfinite(low)
    log_low = _logarithm("normal_cdf", xp.where(bounded, low, -1.0))
    ratio = xp.where(bounded, log_low - log_high, -1.0)
    return log_high + xp.where(bounded, xp.log(-xp.expm1(ratio)), 0.0)


class Product(Expression):
    """A product of factors."""

    def __init__(self, children: tuple[Expression, ...]):
        self.children = children

    @cached_property
    def sign(self) -> int | None:
        signs = [child.sign for child in self.children]
        return None if None in signs else math.prod(sign or 1 for sign in signs)

    @cached_property
    def nonnegative(self) -> bool:
        return all(child.nonnegative for child in self.children)

    def evaluate(self, env: Environment) -> Array:
        # One factor may overflow where another underflows.
        if sum(child.extreme for child in self.children) > 1:
            return self.scaled(env).value
        return math.prod((child.evaluate(env) for child in self.children[1:]), start=self.children[0].evaluate(env))

    def log_evaluate(self, env: Environment) -> Array:
        logs = [child.log_evaluate(env) for child in self.children if child.nonnegative]
        # An even number of factors may be negative.
        signed = [child.scaled(env) for child in self.children if not child.nonnegative]
        logs += [product(signed).log] if signed else []
        return sum(logs[1:], logs[0])

    def scaled(self, env: Environment) -> Scaled:
        return product([child.scaled(env) for child in self.children])


class Power(Expression):
    """A base to an exponent."""

    def __init__(self, base: Expression, exponent: Expression):
        self.base, self.exponent = base, exponent
        self.children = (base, exponent)

    @cached_property
    def sign(self) -> int | None:
        return 1 if self.base.sign == 1 or self.is_even else None

    @cached_property
    def nonnegative(self) -> bool:
        return self.base.nonnegative or self.is_even

    @cached_property
    def is_even(self) -> bool:
        """Whether the exponent is an even number, so that the base may have any sign."""
        return isinstance(self.exponent, Constant) and self.exponent.value % 2 == 0

    @cached_property
    def extreme(self) -> bool:
        # Squares and roots of moderate numbers are moderate.
        return self.base.extreme or not isinstance(self.exponent, Constant) or abs(self.exponent.value) > 2

    def evaluate(self, env: Environment) -> Array:
        base = self.base.evaluate(env)
        if isinstance(self.exponent, Constant):
            value = self.exponent.value
            if value == 0.5:
                return safe_sqrt(base) if isinstance(base, jax.Array) else np.sqrt(base)
            return base ** int(value) if value == int(value) else base**value
        return base ** self.exponent.evaluate(env)

    def scaled(self, env: Environment) -> Scaled:
        base = self.base.scaled(env)
        if isinstance(self.exponent, Constant):
            return base.power(self.exponent.value)
        return base.power_of_any(self.exponent.evaluate(env))

    def log_evaluate(self, env: Environment) -> Array:
        if not self.base.nonnegative:
            return self.scaled(env).log
        exponent = self.exponent.evaluate(env)
        log_base = self.base.log_evaluate(env)
        # 0 ** 0 is 1: an exponent of zero switches the factor off even where its base is zero.
        return env.xp.where(exponent == 0, 0.0, exponent * env.xp.where(exponent == 0, 0.0, log_base))


class Call(Expression):
    """A named function of one argument."""

    labels = ("name",)

    def __init__(self, name: str, argument: Expression):
        self.name, self.argument = name, argument
        self.children = (argument,)
        self.nonnegative = name in _LOGARITHMS or name in ("step", "abs")  # type: ignore[misc]

    @cached_property
    def extreme(self) -> bool:
        return self.name in _LOGARITHMS or (self.name == "abs" and self.argument.extreme)

    def evaluate(self, env: Environment) -> Array:
        if self.name == "log" and self.argument.extreme:
            return self.argument.log_evaluate(env)
        argument = self.argument.evaluate(env)
        return _VALUES[self.name][isinstance(argument, jax.Array)](argument)

    def log_evaluate(self, env: Environment) -> Array:
        if self.name in _LOGARITHMS:
            return _logarithm(self.name, self.argument.evaluate(env))
        if self.name == "abs":
            factor, logarithm = self.argument.scaled(env)
            return Scaled(env.xp.abs(factor), logarithm).log
        return env.xp.log(self.evaluate(env))


class Comparison(Expression):
    """An indicator: 1 where the comparison of two coefficients holds, else 0."""

    labels = ("operator",)
    nonnegative = True  # type: ignore[assignment]

    def __init__(self, operator: str, lhs: Expression, rhs: Expression):
        if not (lhs.latent_free and rhs.latent_free):
            raise ValueError(
                f"a formula compares latent values ({lhs.text()} {operator} {rhs.text()}): comparisons are "
                "indicators of the data, and must be free of f. For a kink write abs, as in pgm.exp(-abs(y - f)) "
                "or (f + abs(f)) / 2 for max(f, 0); for a step pgm.step(f) or pgm.largest(f, y), for a smooth one "
                "pgm.sigmoid or pgm.normal_cdf."
            )
        self.operator, self.lhs, self.rhs = operator, lhs, rhs
        self.children = (lhs, rhs)

    def evaluate(self, env: Environment) -> Array:
        lhs, rhs = self.lhs.evaluate(env), self.rhs.evaluate(env)
        return _COMPARISONS[self.operator](lhs, rhs).astype(env.xp.result_type(float))


class Reduction(Expression):
    """The sum or the product over the latents."""

    labels = ("operator",)
    is_vector = False  # type: ignore[assignment]

    def __init__(self, operator: str, argument: Expression):
        self.operator, self.argument = operator, argument
        self.children = (argument,)

    @cached_property
    def sign(self) -> int | None:
        return self.argument.sign if self.operator == "sum" else (1 if self.argument.sign == 1 else None)

    @cached_property
    def nonnegative(self) -> bool:
        return self.argument.nonnegative

    def evaluate(self, env: Environment) -> Array:
        if self.operator == "prod" and self.extreme:
            return self.scaled(env).value
        reduce = env.xp.sum if self.operator == "sum" else env.xp.prod
        return reduce(self.argument.evaluate(env), axis=-1, keepdims=True)

    def log_evaluate(self, env: Environment) -> Array:
        if self.operator == "prod" and self.argument.nonnegative:
            return env.xp.sum(self.argument.log_evaluate(env), axis=-1, keepdims=True)
        return self.scaled(env).log

    def scaled(self, env: Environment) -> Scaled:
        if not self.extreme:
            return Scaled.of(self.evaluate(env))
        factor, logarithm = env.xp.broadcast_arrays(*self.argument.scaled(env))
        if self.operator == "sum":
            return total_along(Scaled(factor, logarithm), -1)
        return Scaled(env.xp.prod(factor, axis=-1, keepdims=True), env.xp.sum(logarithm, axis=-1, keepdims=True))


# Sums, products, powers and comparisons of formulas, simplified only by identities.


def as_expression(value: Any) -> Expression:
    """A number as a Constant, an expression unchanged; TypeError or ValueError for anything else."""
    if isinstance(value, Expression):
        return value
    if isinstance(value, VectorSymbol):
        raise ValueError(
            f"the formula uses {value.name} as one number, but it has {value.length} entries: give it one number, "
            f"read an entry as {value.name}[0], or put values that differ between data into columns of y."
        )
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
            return as_expression(value.item())
        raise TypeError(
            f"a formula contains {value!r} of type {type(value).__name__}: use numbers, y, f, parameters and the "
            "functions pgm.sigmoid, pgm.exp, pgm.log, pgm.sqrt, pgm.sum, pgm.prod, pgm.normal_pdf, pgm.normal_cdf, "
            "pgm.step, pgm.largest, pgm.gamma and pgm.positions."
        )
    return Constant(value)


def split_number(expression: Expression) -> tuple[float, Expression]:
    """Write an expression as number times rest."""
    if isinstance(expression, Constant):
        return expression.value, Constant(1.0)
    if isinstance(expression, Product) and isinstance(expression.children[0], Constant):
        rest = expression.children[1:]
        return expression.children[0].value, rest[0] if len(rest) == 1 else Product(rest)
    return 1.0, expression


def add(*operands: Operand) -> Expression:
    """A sum, with like terms collected."""
    collected: dict[tuple, tuple[float, Expression]] = {}
    pending = [as_expression(operand) for operand in operands]
    while pending:
        term = pending.pop(0)
        if isinstance(term, Sum):
            pending[:0] = term.children
            continue
        coefficient, rest = split_number(term)
        previous = collected.get(rest.key, (0.0, rest))[0]
        collected[rest.key] = (previous + coefficient, rest)
    terms = tuple(multiply(c, rest) for c, rest in collected.values() if c != 0.0)
    if not terms:
        return Constant(0.0)
    return terms[0] if len(terms) == 1 else Sum(terms)


def multiply(*operands: Operand) -> Expression:
    """A product, with numbers and equal bases collected."""
    number = 1.0
    collected: dict[tuple, tuple[Expression, Expression]] = {}
    pending = [as_expression(operand) for operand in operands]
    while pending:
        factor = pending.pop(0)
        if isinstance(factor, Product):
            pending[:0] = factor.children
        elif isinstance(factor, Constant):
            number *= factor.value
        else:
            base, exponent = (factor.base, factor.exponent) if isinstance(factor, Power) else (factor, Constant(1.0))
            previous = collected.get(base.key)
            collected[base.key] = (base, exponent if previous is None else add(previous[1], exponent))
    if number == 0.0:
        return Constant(0.0)
    factors: list[Expression] = []
    for base, exponent in collected.values():
        factor = power(base, exponent)
        if isinstance(factor, Constant):
            number *= factor.value
        else:
            factors.append(factor)
    if not factors:
        return Constant(number)
    if number != 1.0:
        if len(factors) == 1 and isinstance(factors[0], Sum):
            return add(*(multiply(number, term) for term in factors[0].children))
        factors.insert(0, Constant(number))
    return factors[0] if len(factors) == 1 else Product(tuple(factors))


def power(base: Operand, exponent: Operand) -> Expression:
    """A power; nested powers are merged only if that is an identity."""
    base, exponent = as_expression(base), as_expression(exponent)
    if isinstance(exponent, Constant):
        if exponent.value == 0.0:
            return Constant(1.0)
        if exponent.value == 1.0:
            return base
        if isinstance(base, Constant) and (base.value > 0 or exponent.value == int(exponent.value)):
            if base.value == 0.0 and exponent.value < 0:
                raise ValueError("the formula divides by zero.")
            return Constant(base.value**exponent.value)
    if isinstance(base, Constant) and base.value == 1.0:
        return base
    is_integer = isinstance(exponent, Constant) and exponent.value == int(exponent.value)
    if isinstance(base, Power) and (is_integer or base.base.nonnegative):
        return power(base.base, multiply(base.exponent, exponent))
    if isinstance(base, Power) and base.is_even and isinstance(exponent, Constant):
        # The root of a square is |z|, whose kink other modules recognise.
        return power(absolute(base.base), multiply(base.exponent, exponent))
    if isinstance(base, Product) and (is_integer or base.nonnegative):
        return multiply(*(power(factor, exponent) for factor in base.children))
    if isinstance(base, Call) and base.name == "exp" and not is_integer and exponent.latent_free:
        return Call("exp", multiply(exponent, base.argument))
    return Power(base, exponent)


def absolute(x: Operand) -> Expression:
    """The absolute value, also written ``abs(x)``."""
    return Call("abs", as_expression(x))


def compare(operator: str, lhs: Operand, rhs: Operand) -> Expression:
    """The indicator that is 1 where a comparison of two coefficients holds, else 0."""
    return Comparison(operator, as_expression(lhs), as_expression(rhs))


def rebuild(expression: Expression, children: list[Expression]) -> Expression:
    """The expression with its children replaced; one without children unchanged."""
    match expression:
        case Sum():
            return add(*children)
        case Product():
            return multiply(*children)
        case Power():
            return power(*children)
        case Call():
            return Call(expression.name, *children)
        case Comparison():
            return Comparison(expression.operator, *children)
        case Reduction():
            return Reduction(expression.operator, *children)
    return expression


# An integral by loops, for which NumPy has no fast form.
_of_largest = compiled(partial(log_probability_of_largest, nodes=EQUAL_NODES))


class Largest(Expression):
    """The probability that latent ``index`` plus noise of variance ``noise`` is the largest of all."""

    nonnegative = True  # type: ignore[assignment]
    is_vector = False  # type: ignore[assignment]
    # The vector of latents in the notation.
    symbol: ClassVar[str] = "f"

    def __init__(self, latents: Latents, index: Expression, noise: Expression):
        self.latents, self.index, self.noise = latents, index, noise
        self.children = (latents, index, noise)
        # Without noise the value jumps.
        self.is_indicator = isinstance(noise, Constant) and noise.value == 0.0
        self.extreme = not self.is_indicator  # type: ignore[misc]

    def chosen(self, env: Environment) -> Array:
        """Whether each latent is the one of the index, (..., n, latents)."""
        return self.index.evaluate(env) == env.xp.arange(self.latents.size)

    def evaluate(self, env: Environment) -> Array:
        if not self.is_indicator:
            return env.xp.exp(self.log_evaluate(env))
        at_top = env.f == env.xp.max(env.f, axis=-1, keepdims=True)
        share = at_top / env.xp.sum(at_top, axis=-1, keepdims=True)
        return env.xp.sum(env.xp.where(self.chosen(env), share, 0.0), axis=-1, keepdims=True)

    def log_evaluate(self, env: Environment) -> Array:
        if self.is_indicator:
            return env.xp.log(self.evaluate(env))
        return env.xp.asarray(_of_largest(env.f, self.noise.evaluate(env), self.chosen(env)))

    def notation(self, precedence: int = 0) -> Tree:
        return call("largest", self.symbol, self.index, *(() if self.is_indicator else (self.noise,)))


def jumps(formula: Expression) -> Iterator[Expression]:
    """The steps and largest latents of a formula, at which it jumps as a function of the latents."""
    if formula.latent_free:
        return
    is_step = isinstance(formula, Call) and formula.name == "step"
    if is_step or (isinstance(formula, Largest) and formula.is_indicator):
        yield formula
    for child in () if isinstance(formula, Largest) else formula.children:
        yield from jumps(child)


# Functions for the formulas of likelihoods.


def sigmoid(z: Operand) -> Expression:
    """The logistic function 1 / (1 + exp(-z))."""
    return Call("sigmoid", as_expression(z))


def exp(x: Operand) -> Expression:
    """The exponential function."""
    return Call("exp", as_expression(x))


def log(x: Operand) -> Expression:
    """The natural logarithm; of exp(z) it is z."""
    expression = as_expression(x)
    if isinstance(expression, Call) and expression.name == "exp":
        return expression.argument
    return Call("log", expression)


def sqrt(x: Operand) -> Expression:
    """The square root."""
    return power(x, 0.5)


def normal_cdf(z: Operand) -> Expression:
    """The standard normal distribution function Φ(z)."""
    return Call("normal_cdf", as_expression(z))


def cauchy_cdf(z: Operand) -> Expression:
    """The standard Cauchy distribution function 1/2 + arctan(z) / π."""
    return Call("cauchy_cdf", as_expression(z))


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


def _reduce(operator: str, x: Operand | Iterable[Operand]) -> Expression:
    # The vector of latents is iterable too.
    if not isinstance(x, Expression) and isinstance(x, Iterable):
        terms = [_reduce(operator, term) for term in x]
        return add(*terms) if operator == "sum" else multiply(*terms)
    expression = as_expression(x)
    return Reduction(operator, expression) if expression.is_vector else expression


def substitute(formula: Expression, latents: Sequence[Expression]) -> Expression:
    """The formula with latent number l replaced by ``latents[l]``; ValueError for ``largest``."""
    return _Substitution(latents).scalar(formula)


class _Substitution:
    """Replaces latents; ``chosen`` is the number of the latent that f[index] stands for."""

    def __init__(self, latents: Sequence[Expression], chosen: int | None = None):
        self.latents, self.chosen = latents, chosen

    def scalar(self, node: Expression) -> Expression:
        if node.latent_free:
            return node
        if self.chosen is None and (index := _index_in(node)) is not None and not isinstance(node, Product):
            if isinstance(node, Power) and node.exponent.latent_free:
                return power(self.scalar(node.base), node.exponent)
            # g(f[i]) = Π_c g(f[c])^[i = c].
            each = [_Substitution(self.latents, c).scalar(node) for c in range(len(self.latents))]
            return multiply(*(power(value, compare("==", index, float(c))) for c, value in enumerate(each)))
        if isinstance(node, Selected):
            assert self.chosen is not None
            return self.latents[self.chosen]
        if isinstance(node, Reduction):
            entries = [self.entry(node.argument, c) for c in range(len(self.latents))]
            return add(*entries) if node.operator == "sum" else multiply(*entries)
        return self.entry(node, 0)

    def entry(self, node: Expression, c: int) -> Expression:
        """Entry c of a vector over the latents; a number as it is."""
        if isinstance(node, Latent):
            return self.latents[node.position]
        if isinstance(node, Latents):
            return self.latents[c]
        if isinstance(node, Positions):
            return Constant(float(c))
        if isinstance(node, Largest):
            raise ValueError(
                f"{node.text()} reads single latents, not sums of latents: use a likelihood without pgm.largest, such "
                "as Softmax or LogisticSoftmax."
            )
        if not node.is_vector and (node.latent_free or isinstance(node, Selected | Reduction)):
            return self.scalar(node)
        children = [self.entry(child, c) if child.is_vector else self.scalar(child) for child in node.children]
        return rebuild(node, children)


def _index_in(node: Expression) -> Expression | None:
    """The index of f[index] in an expression, None if there is none."""
    if isinstance(node, Selected):
        return node.index
    return next((index for child in node.children if (index := _index_in(child)) is not None), None)
