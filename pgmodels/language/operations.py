"""The operations of a formula: sums, products, powers, functions, comparisons and reductions over the latents."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import cached_property

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
from jax import Array

from pgmodels.language.expression import Environment, Expression
from pgmodels.language.symbols import Constant

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
    "gamma": lambda x: jnp.exp(jsp.gammaln(x)),
}
_LOGARITHMS: dict[str, Function] = {
    "sigmoid": jax.nn.log_sigmoid,
    "exp": lambda x: x,
    "normal_cdf": jsp.log_ndtr,
    "gamma": jsp.gammaln,
}


class Sum(Expression):
    """A sum of terms."""

    def __init__(self, children: tuple[Expression, ...]):
        self.children = children

    @cached_property
    def sign(self) -> int | None:
        signs = {child.sign for child in self.children}
        return signs.pop() if len(signs) == 1 else None

    @cached_property
    def nonnegative(self) -> bool:
        return all(child.nonnegative for child in self.children)

    def evaluate(self, env: Environment) -> Array:
        return sum((child.evaluate(env) for child in self.children[1:]), self.children[0].evaluate(env))

    def log_evaluate(self, env: Environment) -> Array:
        if not self.nonnegative:
            return jnp.log(self.evaluate(env))
        logs = [child.log_evaluate(env) for child in self.children]
        return jax.nn.logsumexp(jnp.stack(jnp.broadcast_arrays(*logs)), axis=0)


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
        return math.prod((child.evaluate(env) for child in self.children[1:]), start=self.children[0].evaluate(env))

    def log_evaluate(self, env: Environment) -> Array:
        if not self.nonnegative and any(not child.nonnegative and not child.latent_free for child in self.children):
            return jnp.log(self.evaluate(env))
        return sum((child.log_evaluate(env) for child in self.children[1:]), self.children[0].log_evaluate(env))


class Power(Expression):
    """A base to an exponent."""

    def __init__(self, base: Expression, exponent: Expression):
        self.base = base
        self.exponent = exponent
        self.children = (base, exponent)

    @cached_property
    def sign(self) -> int | None:
        return 1 if self.base.sign == 1 or self._even else None

    @cached_property
    def nonnegative(self) -> bool:
        return self.base.nonnegative or self._even

    @cached_property
    def _even(self) -> bool:
        return isinstance(self.exponent, Constant) and self.exponent.value % 2 == 0

    def evaluate(self, env: Environment) -> Array:
        base = self.base.evaluate(env)
        if isinstance(self.exponent, Constant):
            value = self.exponent.value
            if value == 0.5:
                return jnp.sqrt(base)
            return base ** int(value) if value == int(value) else base**value
        return base ** self.exponent.evaluate(env)

    def log_evaluate(self, env: Environment) -> Array:
        if self._even and not self.base.nonnegative:
            return self.exponent.evaluate(env) * jnp.log(jnp.abs(self.base.evaluate(env)))
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
        return self.name in ("sigmoid", "exp", "normal_cdf", "abs", "gamma")

    def evaluate(self, env: Environment) -> Array:
        return _VALUES[self.name](self.argument.evaluate(env))

    def log_evaluate(self, env: Environment) -> Array:
        argument = self.argument.evaluate(env)
        if self.name in _LOGARITHMS:
            return _LOGARITHMS[self.name](argument)
        return jnp.log(_VALUES[self.name](argument))


class Comparison(Expression):
    """An indicator: 1 where the comparison of two coefficients holds, else 0."""

    def __init__(self, operator: str, left: Expression, right: Expression):
        if not (left.latent_free and right.latent_free):
            raise ValueError(
                f"a formula compares latent values ({left.text()} {operator} {right.text()}): comparisons are "
                "indicators of the data, and must be free of f. For a kink write abs, as in exp(-abs(y - f)) or "
                "(f + abs(f)) / 2 for max(f, 0); for a smooth step sigmoid or normal_cdf."
            )
        self.operator = operator
        self.left = left
        self.right = right
        self.children = (left, right)

    def _label(self) -> Hashable:
        return self.operator

    @cached_property
    def sign(self) -> int | None:
        return 1

    @cached_property
    def nonnegative(self) -> bool:
        return True

    def evaluate(self, env: Environment) -> Array:
        left, right = self.left.evaluate(env), self.right.evaluate(env)
        return _COMPARISONS[self.operator](left, right).astype(jnp.result_type(float))


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
        reduce = jnp.sum if self.operator == "sum" else jnp.prod
        return reduce(self.argument.evaluate(env), axis=-1, keepdims=True)

    def log_evaluate(self, env: Environment) -> Array:
        if not self.argument.nonnegative:
            return jnp.log(self.evaluate(env))
        logs = self.argument.log_evaluate(env)
        if self.operator == "sum":
            return jax.nn.logsumexp(logs, axis=-1, keepdims=True)
        return jnp.sum(logs, axis=-1, keepdims=True)
