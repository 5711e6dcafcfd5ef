"""The operations of a formula: sums, products, powers, functions, comparisons and reductions over the latents."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
from jax import Array

from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.scaled import Scaled, product, total, total_along
from pgmodels.likelihoods.symbols import Constant
from pgmodels.numerics.safe_sqrt import safe_sqrt

_COMPARISONS: dict[str, Callable[..., Array]] = {
    "==": jnp.equal,
    "!=": jnp.not_equal,
    "<": jnp.less,
    "<=": jnp.less_equal,
}
_VALUES: dict[str, Callable[..., Array]] = {
    "sigmoid": jax.nn.sigmoid,
    "exp": jnp.exp,
    "log": jnp.log,
    "abs": jnp.abs,
    "normal_cdf": jsp.ndtr,
    "step": lambda z: jnp.heaviside(z, 0.5),
    "gamma": lambda x: jnp.exp(jsp.gammaln(x)),
}
_LOGARITHMS: dict[str, Callable[..., Array]] = {
    "sigmoid": jax.nn.log_sigmoid,
    "exp": lambda x: x,
    "normal_cdf": jsp.log_ndtr,
    "gamma": jsp.gammaln,
}


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
            return -number * jnp.expm1(share.log_evaluate(env))
        return sum((child.evaluate(env) for child in self.children[1:]), self.children[0].evaluate(env))

    def log_evaluate(self, env: Environment) -> Array:
        if self.difference is not None:
            return self.difference.weight.log_evaluate(env) + _log_difference(self.difference, env)
        if self.complement is not None:
            # 1 - p cancels where p is nearly 1.
            return jnp.log(self.evaluate(env))
        return self.scaled(env).log

    def scaled(self, env: Environment) -> Scaled:
        if self.difference is not None:
            weight = self.difference.weight.scaled(env)
            return product([weight, Scaled.of_log(_log_difference(self.difference, env))])
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
    return expression.name in ("sigmoid", "normal_cdf") or (expression.name == "exp" and expression.argument.sign == -1)


def _link_in(term: Expression) -> tuple[Expression, Call] | None:
    """A term as weight times σ or Φ, None if it is not of this form."""
    factors = term.children if isinstance(term, Product) else (term,)
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
        return _LOGARITHMS[difference.name](-lower)
    upper = difference.upper.evaluate(env)
    if difference.name == "sigmoid":
        # σ(a) - σ(b) = σ(a) σ(-b) (1 - exp(b - a))
        log_gap = jnp.log(-jnp.expm1(-difference.gap.evaluate(env)))
        return jax.nn.log_sigmoid(upper) + jax.nn.log_sigmoid(-lower) + log_gap
    return log_normal_interval(lower, upper)


def log_normal_interval(lower: Array, upper: Array) -> Array:
    """log(Φ(upper) - Φ(lower)) for lower < upper, which may be infinite; accurate in both tails."""
    reflected = lower + upper > 0
    low, high = jnp.where(reflected, -upper, lower), jnp.where(reflected, -lower, upper)
    log_high = jsp.log_ndtr(jnp.where(jnp.isfinite(high), high, 0.0))
    log_high = jnp.where(jnp.isfinite(high), log_high, 0.0)
    # Below -∞ there is no mass, and its derivative, which would be NaN, must not be computed.
    bounded = jnp.isfinite(low)
    log_low = jsp.log_ndtr(jnp.where(bounded, low, -1.0))
    ratio = jnp.where(bounded, log_low - log_high, -1.0)
    return log_high + jnp.where(bounded, jnp.log(-jnp.expm1(ratio)), 0.0)


class Product(Expression):
    """A product of factors."""

    def __init__(self, children: tuple[Expression, ...]):
        self.children = children

    @cached_property
    def sign(self) -> int | None:
        sign = 1
        for child in self.children:
            if child.sign is None:
                return None
            sign *= child.sign
        return sign

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
        self.base = base
        self.exponent = exponent
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
                return safe_sqrt(base)
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
        return jnp.where(exponent == 0, 0.0, exponent * jnp.where(exponent == 0, 0.0, log_base))


class Call(Expression):
    """A named function of one argument."""

    def __init__(self, name: str, argument: Expression):
        self.name = name
        self.argument = argument
        self.children = (argument,)

    def _label(self) -> Hashable:
        return self.name

    @cached_property
    def sign(self) -> int | None:
        return 1 if self.nonnegative else None

    @cached_property
    def nonnegative(self) -> bool:
        return self.name in ("sigmoid", "exp", "normal_cdf", "step", "abs", "gamma")

    @cached_property
    def extreme(self) -> bool:
        return self.name in _LOGARITHMS or (self.name == "abs" and self.argument.extreme)

    def evaluate(self, env: Environment) -> Array:
        if self.name == "log" and self.argument.extreme:
            return self.argument.log_evaluate(env)
        return _VALUES[self.name](self.argument.evaluate(env))

    def log_evaluate(self, env: Environment) -> Array:
        if self.name in _LOGARITHMS:
            return _LOGARITHMS[self.name](self.argument.evaluate(env))
        if self.name == "abs":
            factor, logarithm = self.argument.scaled(env)
            return Scaled(jnp.abs(factor), logarithm).log
        return jnp.log(self.evaluate(env))


class Comparison(Expression):
    """An indicator: 1 where the comparison of two coefficients holds, else 0."""

    def __init__(self, operator: str, lhs: Expression, rhs: Expression):
        if not (lhs.latent_free and rhs.latent_free):
            raise ValueError(
                f"a formula compares latent values ({lhs.text()} {operator} {rhs.text()}): comparisons are "
                "indicators of the data, and must be free of f. For a kink write abs, as in pgm.exp(-abs(y - f)) "
                "or (f + abs(f)) / 2 for max(f, 0); for a step pgm.step(f) or pgm.largest(f, y), for a smooth one "
                "pgm.sigmoid or pgm.normal_cdf."
            )
        self.operator = operator
        self.lhs = lhs
        self.rhs = rhs
        self.children = (lhs, rhs)

    def _label(self) -> Hashable:
        return self.operator

    @cached_property
    def sign(self) -> int | None:
        return 1

    @cached_property
    def nonnegative(self) -> bool:
        return True

    def evaluate(self, env: Environment) -> Array:
        lhs, rhs = self.lhs.evaluate(env), self.rhs.evaluate(env)
        return _COMPARISONS[self.operator](lhs, rhs).astype(jnp.result_type(float))


class Reduction(Expression):
    """The sum or the product over the latents."""

    is_vector = False  # type: ignore[assignment]

    def __init__(self, operator: str, argument: Expression):
        self.operator = operator
        self.argument = argument
        self.children = (argument,)

    def _label(self) -> Hashable:
        return self.operator

    @cached_property
    def sign(self) -> int | None:
        return self.argument.sign if self.operator == "sum" else (1 if self.argument.sign == 1 else None)

    @cached_property
    def nonnegative(self) -> bool:
        return self.argument.nonnegative

    def evaluate(self, env: Environment) -> Array:
        if self.operator == "prod" and self.extreme:
            return self.scaled(env).value
        reduce = jnp.sum if self.operator == "sum" else jnp.prod
        return reduce(self.argument.evaluate(env), axis=-1, keepdims=True)

    def log_evaluate(self, env: Environment) -> Array:
        if self.operator == "prod" and self.argument.nonnegative:
            return jnp.sum(self.argument.log_evaluate(env), axis=-1, keepdims=True)
        return self.scaled(env).log

    def scaled(self, env: Environment) -> Scaled:
        if not self.extreme:
            return Scaled.of(self.evaluate(env))
        factor, logarithm = jnp.broadcast_arrays(*self.argument.scaled(env))
        if self.operator == "sum":
            return total_along(Scaled(factor, logarithm), -1)
        return Scaled(jnp.prod(factor, axis=-1, keepdims=True), jnp.sum(logarithm, axis=-1, keepdims=True))
