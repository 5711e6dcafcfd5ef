"""Expressions of formulas, and their symbols."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import jax
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from pgmodels.likelihoods.printing import Indexed, Name, ParameterName, Tree, indexed, to_text, tree
from pgmodels.numerics.elementary import constant, namespace
from pgmodels.runtime.precision import as_array


class Scaled(NamedTuple):
    """The number factor · exp(logarithm); the factor has the sign of the number and carries its derivative."""

    factor: Array
    logarithm: Array

    @classmethod
    def of(cls, value: Array, logarithm: Array | float = 0.0) -> Scaled:
        """Return value · exp(logarithm), with a factor of -1, 0 or 1."""
        xp = namespace(value)
        size = constant(xp.abs(value))
        size = xp.where((size > 0) & xp.isfinite(size), size, 1.0)
        return cls(value / size, xp.log(size) + logarithm)

    @classmethod
    def of_log(cls, logarithm: Array) -> Scaled:
        """Return a number >= 0, given its logarithm."""
        xp = namespace(logarithm)
        zero = xp.isneginf(logarithm)
        return cls(xp.where(zero, 0.0, 1.0), xp.where(zero, 0.0, logarithm))

    @property
    def value(self) -> Array:
        """The number itself."""
        return self.factor * namespace(*self).exp(_limited(self.factor, self.logarithm))

    @property
    def log(self) -> Array:
        """The logarithm: -inf for 0, NaN for a negative number."""
        return namespace(*self).log(self.factor) + self.logarithm

    def power(self, exponent: float) -> Scaled:
        """Return the power with a number as exponent."""
        factor = self.factor ** int(exponent) if exponent == int(exponent) else self.factor**exponent
        return Scaled(factor, exponent * self.logarithm)

    def power_of_any(self, exponent: Array) -> Scaled:
        """Return the power with an array as exponent, whole if the base is negative. 0 ** 0 is 1."""
        xp = namespace(*self, exponent)
        zero, off = self.factor == 0, exponent == 0
        odd = xp.where(exponent == xp.round(exponent), xp.where(exponent % 2 == 0, 1.0, -1.0), xp.nan)
        factor = xp.where(off, 1.0, xp.where(zero, xp.where(exponent > 0, 0.0, xp.inf), 1.0))
        log_base = xp.log(xp.where(zero | off, 1.0, xp.abs(self.factor))) + xp.where(off, 0.0, self.logarithm)
        return Scaled(xp.where((self.factor < 0) & ~off, odd, factor), exponent * log_base)


def product(numbers: Sequence[Scaled]) -> Scaled:
    """Return the product of numbers."""
    factors, logarithms = zip(*numbers, strict=True)
    return Scaled(math.prod(factors[1:], start=factors[0]), sum(logarithms[1:], logarithms[0]))


def total(numbers: Sequence[Scaled]) -> Scaled:
    """Return the sum of numbers."""
    xp = namespace(*(array for number in numbers for array in number))
    stacked = (xp.stack(xp.broadcast_arrays(*arrays)) for arrays in zip(*numbers, strict=True))
    summed = total_along(Scaled(*xp.broadcast_arrays(*stacked)), 0)
    return Scaled(summed.factor[0], summed.logarithm[0])


def total_along(numbers: Scaled, axis: int) -> Scaled:
    """Return the sum along an axis, which is kept with length 1."""
    factor, logarithm = numbers
    xp = namespace(factor, logarithm)
    top = xp.max(xp.where(factor == 0, -xp.inf, logarithm), axis=axis, keepdims=True)
    top = constant(xp.where(xp.isfinite(top), top, 0.0))
    terms = factor * xp.exp(_limited(factor, logarithm - top))
    return Scaled.of(xp.sum(terms, axis=axis, keepdims=True), top)


def _limited(factor: Array, logarithm: Array) -> Array:
    """Return the logarithm, limited if the factor is zero, so that its derivative is finite."""
    xp = namespace(factor, logarithm)
    return xp.where(factor == 0, xp.minimum(logarithm, 700.0), logarithm)


# A likelihood is a Python function of the observation ``y`` and the latent values ``f`` of one datum. It is called
# once, with symbols, and returns an expression.


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Environment:
    """Values of the symbols: ``y`` (n,) or (n, columns), ``f`` (..., n, latents) and the parameters by name.

    A parameter is one number, or an array that broadcasts against ``f``. JAX evaluates expressions if one of the values
    is a JAX array, else NumPy.
    """

    y: ArrayLike
    f: Array | np.ndarray
    parameters: Mapping[str, ArrayLike]

    @cached_property
    def xp(self) -> Any:
        """The module with functions for these arrays: NumPy or jax.numpy."""
        return namespace(self.y, self.f, *self.parameters.values())

    def array(self, value: ArrayLike) -> Any:
        """Return the value as an array of that module."""
        return np.asarray(value, np.float64) if self.xp is np else as_array(value)


class Algebra(Protocol):
    """The constructors behind the operators of expressions."""

    def add(self, *operands: Operand) -> Expression: ...

    def multiply(self, *operands: Operand) -> Expression: ...

    def power(self, base: Operand, exponent: Operand) -> Expression: ...

    def absolute(self, x: Operand) -> Expression: ...

    def compare(self, operator: str, lhs: Operand, rhs: Operand) -> Expression: ...


Build: TypeAlias = Callable[[Algebra, "Operand", "Operand"], "Expression"]
BinaryOperator: TypeAlias = Callable[["Expression", "Operand"], "Expression"]


def _operator(build: Build) -> tuple[BinaryOperator, BinaryOperator]:
    """Return a binary operator for expressions, and its version for an expression on the right-hand side."""
    return (lambda x, other: build(x.algebra, x, other)), (lambda x, other: build(x.algebra, other, x))


def _foreign(what: str, expression: Expression) -> str:
    return (
        f"the formula applies {what} to {expression.text()!r}, which has no value while the formula is traced: use "
        "arithmetic, abs, pgm.sigmoid, pgm.exp, pgm.log, pgm.sqrt, pgm.sum, pgm.prod, pgm.normal_pdf, pgm.normal_cdf, "
        "pgm.step, pgm.largest and pgm.gamma."
    )


def _refuse_numbers(expression: Expression) -> float:
    raise TypeError(_foreign("a function of numbers, such as one of math or float()", expression))


def _refuse_operator(expression: Expression, *_: object) -> Expression:
    raise TypeError(
        f"the formula uses an operator other than + - * / ** and comparisons on {expression.text()!r}: for 'and' "
        "multiply indicators, as in (y > 0) * (y < 3), for 'not' write 1 - (y > 0); round or divide y beforehand."
    )


class Expression(ABC):
    """A node of a formula.

    ``evaluate`` returns (..., n, 1) for one value per datum and (..., n, latents) for a vector over the latents.
    """

    # ``pgmodels.likelihoods`` sets these attributes: the modules that build and print nodes import all node classes.
    algebra: ClassVar[Algebra]
    writer: ClassVar[Callable[[Expression, int], Tree]]

    children: tuple[Expression, ...] = ()
    # The attributes in which nodes with equal children may differ; of expressions and predictors, their keys.
    labels: ClassVar[tuple[str, ...]] = ()

    @cached_property
    def key(self) -> tuple:
        """The structure as nested tuples: equal keys mean equal formulas."""
        values = tuple(getattr(self, name) for name in self.labels)
        values = tuple(getattr(value, "key", value) for value in values)
        # Saved files have keys of this form.
        label = values[0] if len(values) == 1 else values or ""
        return (type(self).__name__, label, *(child.key for child in self.children))

    @cached_property
    def latent_free(self) -> bool:
        """Whether the expression is a coefficient, a function of y and parameters only."""
        return all(child.latent_free for child in self.children)

    @cached_property
    def is_vector(self) -> bool:
        """Whether the expression has one value for each latent."""
        return any(child.is_vector for child in self.children)

    @cached_property
    def sign(self) -> int | None:
        """The sign 1 or -1 if the expression cannot have the other sign, else None. Observations are assumed >= 0."""
        return 1 if self.nonnegative else None

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
        """Return the value at ``env``."""

    def log_evaluate(self, env: Environment) -> Array:
        """Return the logarithm of the value, without overflow or cancellation if the structure allows that."""
        return env.xp.log(self.evaluate(env))

    def scaled(self, env: Environment) -> Scaled:
        """Return the value, of any sign, as a factor and a logarithm that do not over- or underflow."""
        if self.extreme and self.nonnegative:
            return Scaled.of_log(self.log_evaluate(env))
        return Scaled.of(self.evaluate(env))

    def notation(self, precedence: int = 0) -> Tree:
        """Return the notation tree, in brackets if the context binds as tightly as ``precedence``."""
        return type(self).writer(self, precedence)

    def text(self) -> str:
        """Return the expression as plain text in infix notation."""
        return to_text(self.notation())

    __str__ = __repr__ = text

    def __hash__(self) -> int:
        return hash(self.key)

    def __bool__(self) -> bool:
        raise TypeError(
            f"the formula branches on {self.text()!r}, which has no value while the formula is traced: write it with "
            "powers of indicators, such as pgm.sigmoid(f) ** (y == 1), instead of if, and, or, min, max."
        )

    __iter__ = None

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: object) -> Expression:
        """Return an expression for an operator with a NumPy scalar. Raise TypeError for NumPy functions."""
        operation = _OPERATORS.get(ufunc.__name__)
        several = any(isinstance(x, np.ndarray) and x.ndim for x in inputs)
        if operation is not None and method == "__call__" and not several:
            return operation(*(x.item() if isinstance(x, (np.generic, np.ndarray)) else x for x in inputs))
        raise TypeError(_foreign(f"numpy.{ufunc.__name__}", self))

    __float__ = __int__ = __complex__ = __round__ = _refuse_numbers  # type: ignore[assignment]
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _refuse_operator
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __divmod__ = __rdivmod__ = _refuse_operator
    __matmul__ = __rmatmul__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refuse_operator

    __add__, __radd__ = _operator(lambda algebra, x, z: algebra.add(x, z))
    __sub__, __rsub__ = _operator(lambda algebra, x, z: algebra.add(x, algebra.multiply(-1.0, z)))
    __mul__, __rmul__ = _operator(lambda algebra, x, z: algebra.multiply(x, z))
    __truediv__, __rtruediv__ = _operator(lambda algebra, x, z: algebra.multiply(x, algebra.power(z, -1.0)))
    __pow__, __rpow__ = _operator(lambda algebra, x, z: algebra.power(x, z))
    __lt__, __gt__ = _operator(lambda algebra, x, z: algebra.compare("<", x, z))
    __le__, __ge__ = _operator(lambda algebra, x, z: algebra.compare("<=", x, z))
    __eq__ = _operator(lambda algebra, x, z: algebra.compare("==", x, z))[0]  # type: ignore[assignment]
    __ne__ = _operator(lambda algebra, x, z: algebra.compare("!=", x, z))[0]  # type: ignore[assignment]

    def __neg__(self) -> Expression:
        return self.algebra.multiply(-1.0, self)

    def __pos__(self) -> Expression:
        return self

    def __abs__(self) -> Expression:
        return self.algebra.absolute(self)


# NumPy's names of the operators. A NumPy scalar on the left-hand side delegates them to the expression.
_OPERATORS: dict[str, Callable[..., Expression]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "power": operator.pow, "equal": operator.eq, "not_equal": operator.ne, "less": operator.lt,
    "less_equal": operator.le, "greater": operator.gt, "greater_equal": operator.ge,
}  # fmt: skip

Operand: TypeAlias = Expression | int | float


# The name in ``parameters`` for the positions of the latents in ``f``, (latents,) or (n, latents), if f is a subset.
POSITIONS = "positions of f"


class Constant(Expression):
    """A number."""

    labels = ("value",)

    def __init__(self, value: float):
        self.value = float(value)
        if not math.isfinite(self.value):
            raise ValueError(f"a formula contains the number {value!r}; every number in it must be finite.")
        self.nonnegative = self.value >= 0  # type: ignore[misc]
        self.sign = 1 if self.nonnegative else -1  # type: ignore[misc]

    def evaluate(self, env: Environment) -> Array:
        return env.xp.full((1, 1), self.value)


class Observation(Expression):
    """The observation ``y``, or its column ``y[j]``."""

    labels = ("column",)
    sign = 1  # type: ignore[assignment]

    def __init__(self, column: int | None = None):
        self.column = column

    def __getitem__(self, column: int) -> Observation:
        if self.column is not None:
            raise ValueError(f"{self.text()} is one number per datum and cannot be indexed again.")
        if isinstance(column, bool) or not isinstance(column, (int, np.integer)) or column < 0:
            raise ValueError(f"a column of y is a whole number >= 0; got y[{column!r}].")
        return Observation(int(column))

    def evaluate(self, env: Environment) -> Array:
        y = env.array(env.y)
        return (y if self.column is None else y[..., self.column])[..., None]

    def notation(self, precedence: int = 0) -> Tree:
        return indexed("y", self.column)


class ParameterSymbol(Expression):
    """A parameter of the likelihood, or an entry of a vector with ``length``, e.g. ``cuts[0]`` or ``rate[y[1]]``."""

    labels = ("name", "positive", "place", "length")

    def __init__(self, name: str, positive: bool, entry: int | Expression | None = None, length: int = 1):
        self.name, self.positive, self.entry, self.length = name, positive, entry, length
        self.place = entry if isinstance(entry, int) else None
        if isinstance(entry, Expression):
            self.children = (entry,)
        self.nonnegative = positive  # type: ignore[misc]

    def evaluate(self, env: Environment) -> Array:
        value = env.array(env.parameters[self.name])
        value = value if value.ndim > 1 else value.reshape(1, -1)
        if self.entry is None:
            return value
        if isinstance(self.entry, int):
            return value[..., self.entry : self.entry + 1]
        chosen = self.entry.evaluate(env) == env.xp.arange(self.length)
        entry = env.xp.sum(env.xp.where(chosen, value, 0.0), axis=-1, keepdims=True)
        return env.xp.where(env.xp.any(chosen, axis=-1, keepdims=True), entry, env.xp.nan)

    def notation(self, precedence: int = 0) -> Tree:
        name = ParameterName(self.name)
        return name if self.entry is None else Indexed(name, tree(self.entry))


class VectorSymbol:
    """A vector parameter. A formula uses its entries, e.g. ``cuts[0]``, ``rate[y[1]]``, or in a loop."""

    def __init__(self, name: str, positive: bool, length: int):
        self.name, self.positive, self.length = name, positive, length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[ParameterSymbol]:
        return (self._entry(i) for i in range(self.length))

    def __getitem__(self, entry: Any) -> Any:
        if isinstance(entry, slice):
            return [self._entry(i) for i in range(self.length)[entry]]
        if isinstance(entry, Expression) and not isinstance(entry, Constant):
            if not entry.latent_free or entry.is_vector:
                raise ValueError(f"{self.name} is indexed by {entry.text()}: an index is a function of y alone.")
            return self._entry(entry)
        value = entry.value if isinstance(entry, Constant) else entry
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer)) or value != int(value):
            raise ValueError(
                f"{self.name} is indexed by {entry!r}: an index is a whole number or a function of y alone."
            )
        if not -self.length <= value < self.length:
            raise ValueError(f"the formula reads {self.name}[{int(value)}], but {self.name} has {self.length} entries.")
        return self._entry(int(value) % self.length)

    def _entry(self, entry: int | Expression) -> ParameterSymbol:
        return ParameterSymbol(self.name, self.positive, entry, self.length)


class Positions(Expression):
    """The vector 0, 1, ..., L - 1 over the latents."""

    labels = ("size",)
    nonnegative = is_vector = True  # type: ignore[assignment]

    def __init__(self, size: int):
        self.size = size

    def evaluate(self, env: Environment) -> Array:
        if POSITIONS in env.parameters:
            return env.xp.atleast_2d(env.array(env.parameters[POSITIONS]))
        return env.xp.arange(float(self.size))[None, :]

    def notation(self, precedence: int = 0) -> Tree:
        return Name("c")


class LatentSymbol(Expression):
    """The latents of a formula, with their ``index`` in the notation, or None for ``f`` itself."""

    latent_free = False  # type: ignore[assignment]
    index: int | str | Expression | None

    def notation(self, precedence: int = 0) -> Tree:
        return indexed("f", self.index)


class Latent(LatentSymbol):
    """One latent value: ``f`` in a model with one latent, else ``f[j]``."""

    labels: ClassVar[tuple[str, ...]] = ("position", "size")

    def __init__(self, position: int, size: int):
        self.position, self.size = position, size
        self.index = None if size == 1 else position

    def __getitem__(self, position: Any) -> Expression:
        if self.size > 1:
            raise ValueError(f"{self.text()} is one latent value and cannot be indexed again.")
        return _index(position, 1)

    def __len__(self) -> int:
        return self.size

    def evaluate(self, env: Environment) -> Array:
        return env.f[..., self.position : self.position + 1]  # type: ignore[return-value]


class Latents(LatentSymbol):
    """The vector of all latent values ``f``."""

    labels = ("size",)
    index = "c"
    is_vector = True  # type: ignore[assignment]

    def __init__(self, size: int):
        self.size = size

    def __getitem__(self, position: Any) -> Expression:
        return _index(position, self.size)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Expression]:  # type: ignore[assignment, override]
        return (self[position] for position in range(self.size))

    def evaluate(self, env: Environment) -> Array:
        return env.f  # type: ignore[return-value]


class Selected(LatentSymbol):
    """The latent whose index comes from the data: ``f[y]``."""

    labels = ("size",)
    index: Expression

    def __init__(self, index: Expression, size: int):
        self.index, self.size = index, size
        self.children = (index,)

    def evaluate(self, env: Environment) -> Array:
        index = self.index.evaluate(env)
        # Few latents are selected by a masked sum over all, more by a gather. With several observations per row of
        # latents, the masked sum would copy all latents for each.
        if self.size <= 16 and index.ndim <= env.f.ndim:
            return env.xp.sum(env.xp.where(index == env.xp.arange(self.size), env.f, 0.0), axis=-1, keepdims=True)
        place = env.xp.clip(env.xp.nan_to_num(index), 0, self.size - 1).astype(int)
        rank = max(place.ndim, env.f.ndim)
        f, place = (array.reshape(*[1] * (rank - array.ndim), *array.shape) for array in (env.f, place))
        return env.xp.where(place == index, env.xp.take_along_axis(f, place, axis=-1), 0.0)


def _index(position: Any, size: int) -> Expression:
    if isinstance(position, Constant) and position.value == int(position.value):
        position = int(position.value)
    if isinstance(position, Expression):
        if not position.latent_free or position.is_vector:
            raise ValueError(f"f is indexed by {position.text()}: an index is a whole number or a function of y alone.")
        return Selected(position, size)
    if isinstance(position, bool) or not isinstance(position, (int, np.integer)):
        raise ValueError(f"f is indexed by {position!r}: an index is a whole number or a function of y alone.")
    position = int(position)
    if not -size <= position < size:
        raise ValueError(
            f"the formula uses f[{position}], but the model has {size} latent GP{'s' if size > 1 else ''}: "
            f"give it a GP with size={abs(position) + (position >= 0)} or as many GPs in a list."
        )
    return Latent(position % size, size)
