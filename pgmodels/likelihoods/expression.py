"""Expressions: formulas as trees that can be evaluated, printed and analysed.

A likelihood is a Python function of the observation ``y`` and the latent values ``f`` of one datum. It is called once,
with symbols, and returns an expression.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from pgmodels.likelihoods.notation import Tree
from pgmodels.likelihoods.printers.text import to_text
from pgmodels.likelihoods.scaled import Scaled


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Environment:
    """Values for the symbols: ``y`` (n,) or (n, columns), ``f`` (..., n, latents) and the parameters by name.

    A parameter is one number, or an array that broadcasts against ``f``.
    """

    y: ArrayLike
    f: Array
    parameters: Mapping[str, ArrayLike]


class Algebra(Protocol):
    """The constructors behind the operators of expressions."""

    def add(self, *operands: Operand) -> Expression: ...

    def multiply(self, *operands: Operand) -> Expression: ...

    def power(self, base: Operand, exponent: Operand) -> Expression: ...

    def absolute(self, x: Operand) -> Expression: ...

    def compare(self, operator: str, lhs: Operand, rhs: Operand) -> Expression: ...


class Expression(ABC):
    """A node of a formula.

    ``evaluate`` returns (..., n, 1) for one value per datum and (..., n, latents) for a vector over the latents.
    """

    # The modules that build and print nodes import all node classes: ``pgmodels.likelihoods`` sets these attributes.
    algebra: ClassVar[Algebra]
    writer: ClassVar[Callable[[Expression, int], Tree]]

    children: tuple[Expression, ...] = ()

    @cached_property
    def key(self) -> tuple:
        """The structure as nested tuples: equal keys mean equal formulas."""
        return (type(self).__name__, self._label(), *(child.key for child in self.children))

    def _label(self) -> Hashable:
        return ""

    @cached_property
    def latent_free(self) -> bool:
        """Whether the expression is a coefficient: a function of y and parameters only."""
        return all(child.latent_free for child in self.children)

    @cached_property
    def is_vector(self) -> bool:
        """Whether the expression has one value for each latent."""
        return any(child.is_vector for child in self.children)

    @cached_property
    def sign(self) -> int | None:
        """1 or -1 if the expression cannot have the other sign, else None. Observations are assumed to be >= 0."""
        return None

    @cached_property
    def nonnegative(self) -> bool:
        """Whether the expression is >= 0 for all data."""
        return False

    @cached_property
    def extreme(self) -> bool:
        """Whether the value may over- or underflow although its logarithm does not."""
        return any(child.extreme for child in self.children)

    @abstractmethod
    def evaluate(self, env: Environment) -> Array:
        """The value at ``env``."""

    def log_evaluate(self, env: Environment) -> Array:
        """The logarithm of the value, without overflow or cancellation where the structure allows that."""
        return jnp.log(self.evaluate(env))

    def scaled(self, env: Environment) -> Scaled:
        """The value, of any sign, as a factor and a logarithm that do not over- or underflow."""
        if self.extreme and self.nonnegative:
            return Scaled.of_log(self.log_evaluate(env))
        return Scaled.of(self.evaluate(env))

    def notation(self, precedence: int = 0) -> Tree:
        """The notation tree, in brackets if the context binds as tightly as ``precedence``."""
        return type(self).writer(self, precedence)

    def text(self) -> str:
        """The expression as plain text in infix notation."""
        return to_text(self.notation())

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text()

    def __hash__(self) -> int:
        return hash(self.key)

    def __bool__(self) -> bool:
        raise TypeError(
            f"the formula branches on {self.text()!r}, which has no value while the formula is traced: write it with "
            "powers of indicators, such as pgm.sigmoid(f) ** (y == 1), instead of if, and, or, min, max."
        )

    __iter__ = None

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Expression:
        """Operators with a NumPy scalar give an expression; NumPy's functions raise TypeError."""
        operation = _OPERATORS.get(ufunc.__name__)
        several = any(isinstance(x, np.ndarray) and x.ndim for x in inputs)
        if operation is not None and method == "__call__" and not several:
            return operation(*(x.item() if isinstance(x, (np.generic, np.ndarray)) else x for x in inputs))
        raise TypeError(_foreign(f"numpy.{ufunc.__name__}", self))

    def __float__(self) -> float:
        raise TypeError(_foreign("a function of numbers, such as one of math or float()", self))

    __int__ = __complex__ = __round__ = __float__  # type: ignore[assignment]

    def _refuse_operator(self, *_: Any) -> Expression:
        raise TypeError(
            f"the formula uses an operator other than + - * / ** and comparisons on {self.text()!r}: for 'and' "
            "multiply indicators, as in (y > 0) * (y < 3), for 'not' write 1 - (y > 0); round or divide y beforehand."
        )

    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _refuse_operator
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __divmod__ = __rdivmod__ = _refuse_operator
    __matmul__ = __rmatmul__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refuse_operator

    def __add__(self, other: Operand) -> Expression:
        return self.algebra.add(self, other)

    def __radd__(self, other: Operand) -> Expression:
        return self.algebra.add(other, self)

    def __sub__(self, other: Operand) -> Expression:
        return self.algebra.add(self, self.algebra.multiply(-1.0, other))

    def __rsub__(self, other: Operand) -> Expression:
        return self.algebra.add(other, self.algebra.multiply(-1.0, self))

    def __neg__(self) -> Expression:
        return self.algebra.multiply(-1.0, self)

    def __pos__(self) -> Expression:
        return self

    def __mul__(self, other: Operand) -> Expression:
        return self.algebra.multiply(self, other)

    def __rmul__(self, other: Operand) -> Expression:
        return self.algebra.multiply(other, self)

    def __truediv__(self, other: Operand) -> Expression:
        return self.algebra.multiply(self, self.algebra.power(other, -1.0))

    def __rtruediv__(self, other: Operand) -> Expression:
        return self.algebra.multiply(other, self.algebra.power(self, -1.0))

    def __pow__(self, other: Operand) -> Expression:
        return self.algebra.power(self, other)

    def __rpow__(self, other: Operand) -> Expression:
        return self.algebra.power(other, self)

    def __abs__(self) -> Expression:
        return self.algebra.absolute(self)

    def __eq__(self, other: Operand) -> Expression:  # type: ignore[override]
        return self.algebra.compare("==", self, other)

    def __ne__(self, other: Operand) -> Expression:  # type: ignore[override]
        return self.algebra.compare("!=", self, other)

    def __lt__(self, other: Operand) -> Expression:
        return self.algebra.compare("<", self, other)

    def __le__(self, other: Operand) -> Expression:
        return self.algebra.compare("<=", self, other)

    def __gt__(self, other: Operand) -> Expression:
        return self.algebra.compare("<", other, self)

    def __ge__(self, other: Operand) -> Expression:
        return self.algebra.compare("<=", other, self)


def _foreign(what: str, expression: Expression) -> str:
    return (
        f"the formula applies {what} to {expression.text()!r}, which has no value while the formula is traced: use "
        "arithmetic, abs, pgm.sigmoid, pgm.exp, pgm.log, pgm.sqrt, pgm.sum, pgm.prod, pgm.normal_pdf, pgm.normal_cdf, "
        "pgm.step, pgm.largest and pgm.gamma."
    )


# NumPy's names of the operators, which a NumPy scalar on the left-hand side delegates to the expression.
_OPERATORS: dict[str, Callable[..., Expression]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "power": operator.pow,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}

Operand: TypeAlias = Expression | int | float
