"""Checks that kernels of users read their tables at valid indices, which JAX would silently clip or wrap."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax.experimental import checkify
from jax.extend.core import ClosedJaxpr, Literal

from pgmodels.kernels.kernel import Kernel, with_values
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import as_array

# Operations that move entries, and operations on each entry, of which all other operands must be constants.
_MOVES = ("squeeze", "slice", "reshape", "broadcast_in_dim", "transpose", "rev", "copy", "concatenate")
_STEPS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "neg": np.negative,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "convert_element_type": np.trunc,
}
# Steps that keep a column but for a constant.
_SHIFTS = ("add", "sub", "convert_element_type")
# Constants with more entries are not computed.
_LARGE = 10_000


def check_lookups(kernel: Any, X: np.ndarray, name: str, names: tuple[str, ...] | None = None) -> None:
    """Raise ValueError if a user's kernel indexes its arrays out of bounds, at rows of X (n, d).

    JAX would silently use another entry: the last one for -1, which is pandas' code of a missing level. Indices that
    the kernel clips or wraps itself are valid. Those that are made of several columns, or in a loop, are only checked
    for the upper bound, as far as JAX can. ``names`` are those of the columns.
    """
    if isinstance(kernel, Kernel) and kernel.is_positive_semidefinite:
        return
    values, one = with_values(kernel), as_array(X[:1])
    # Two rows show which columns are read.
    program = jax.make_jaxpr(_between)(values, as_array(np.resize(X, (2, X.shape[1]))), one)
    if "gather" not in str(program):
        return
    reading = _Reading(X.shape[1])
    reading.follow(program, [None] * (len(program.jaxpr.invars) - 2) + [reading.columns, None])
    for index, size in reading.lookups:
        _check_index(kernel, index, size, X, name, names)
    try:
        fault = _lookups(values, as_array(X), one)[0].get()
    except NotImplementedError:
        # checkify does not support some loops and solvers.
        return
    if fault is not None:
        raise ValueError(
            f"{kernel!r} indexes an array out of bounds for some row of {name}: {fault.splitlines()[0].strip()} "
            f"Use indices within the kernel's arrays in {name}, or larger arrays."
        )


class _Index(NamedTuple):
    """A number made of one column of X by steps, each an operation and its operands, None for the number so far."""

    column: int
    steps: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def __call__(self, values: Any) -> Any:
        """The number where the column has these values."""
        with np.errstate(all="ignore"):
            for operation, operands in self.steps:
                values = _STEPS[operation](*(values if operand is None else operand for operand in operands))
        return values

    @property
    def is_shifted(self) -> bool:
        """Whether it is the column but for whole constants that are added or subtracted."""
        return all(
            operation in _SHIFTS
            and not (operation == "sub" and operands[0] is not None)
            and all(operand is None or operand == int(operand) for operand in operands)
            for operation, operands in self.steps
        )


class _Made(NamedTuple):
    """An array of indices by number, -1 for other entries; ``is_sign`` for whether they are below 0."""

    numbers: np.ndarray
    is_sign: bool = False


class _Reading:
    """Follows the columns of X through a kernel's program to its tables, at two rows of X.

    ``lookups`` has the indices with the number of entries that they choose from.
    """

    def __init__(self, num_columns: int):
        self._indices = {_Index(column): column for column in range(num_columns)}
        self.columns = _Made(np.tile(np.arange(num_columns), (2, 1)))
        self.lookups: dict[tuple[_Index, int], None] = {}

    def follow(self, program: ClosedJaxpr, arguments: list[Any]) -> list[Any]:
        """The outputs of a program. Arguments and outputs are ``_Made``, constants, or None if they are neither."""
        known = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
        known |= dict(zip(program.jaxpr.invars, arguments, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else known.get(atom)

        for equation in program.jaxpr.eqns:
            operands = [read(atom) for atom in equation.invars]
            if equation.primitive.name in ("jit", "pjit"):
                results = self.follow(equation.params["jaxpr"], operands)
            else:
                results = [self._result(equation, operands)]
            known |= dict(zip(equation.outvars, results, strict=False))
        return [read(atom) for atom in program.jaxpr.outvars]

    def _result(self, equation: Any, operands: list[Any]) -> Any:
        """The first output of an operation."""
        name, shape = equation.primitive.name, getattr(equation.outvars[0].aval, "shape", None)
        made = [operand for operand in operands if isinstance(operand, _Made)]
        if not made:
            is_small = shape is not None and math.prod(shape) <= _LARGE
            is_constant = is_small and operands and all(operand is not None for operand in operands)
            return equation.primitive.bind(*operands, **equation.params) if is_constant else None
        first, *others = operands
        if name == "gather" and isinstance(others[0], _Made):
            self._look_up(equation, others[0].numbers)
            return None
        if name in _MOVES or (name == "gather" and others[0] is not None):
            return _Made(_moved(equation, operands), made[0].is_sign)
        if name == "select_n" and self._wraps(operands):
            return others[0]
        if name == "lt" and len(made) == 1 and first is made[0] and np.size(others[0]) == 1 and others[0] == 0:
            return _Made(first.numbers, is_sign=True)
        if name == "convert_element_type":
            before, after = (atom.aval.dtype.kind for atom in (equation.invars[0], equation.outvars[0]))
            if before == "f" and after not in "iu":
                return first if after == "f" else None
            return first if before in "iu" else self._step(name, operands)
        is_step = name in _STEPS and len(made) == 1 and not made[0].is_sign
        is_step = is_step and all(operand is not None for operand in operands)
        return self._step(name, operands) if is_step else None

    def _step(self, name: str, operands: list[Any]) -> Any:
        """The numbers of the indices after an operation with at most one constant."""
        constants = [None if isinstance(operand, _Made) else np.asarray(operand) for operand in operands]
        if any(constant is not None and constant.size != 1 for constant in constants):
            return None
        step = name, tuple(None if constant is None else constant.item() for constant in constants)
        (numbers,) = (operand.numbers for operand in operands if isinstance(operand, _Made))
        indices = [*self._indices]
        stepped = {-1: -1}
        for number in set(numbers.flat) - {-1}:
            index = indices[number]
            stepped[number] = self._indices.setdefault(index._replace(steps=(*index.steps, step)), len(self._indices))
        return _Made(np.vectorize(stepped.get, otypes=[int])(numbers))

    def _wraps(self, operands: list[Any]) -> bool:
        """Whether an operation makes indices below 0 count from the end, as JAX and NumPy do."""
        sign, index, added = operands if len(operands) == 3 else (None,) * 3
        if not (isinstance(sign, _Made) and sign.is_sign and isinstance(index, _Made) and isinstance(added, _Made)):
            return False
        indices = [*self._indices]
        pairs = {(a, b) for a, b in zip(index.numbers.flat, added.numbers.flat, strict=True) if (a, b) != (-1, -1)}
        return np.array_equal(sign.numbers, index.numbers) and all(
            indices[b].steps[:-1] == indices[a].steps and indices[b].steps[-1][0] == "add" for a, b in pairs
        )

    def _look_up(self, equation: Any, numbers: np.ndarray) -> None:
        indices, table = [*self._indices], equation.invars[0].aval.shape
        dimensions, lengths = (equation.params[key] for key in ("dimension_numbers", "slice_sizes"))
        for place, axis in enumerate(dimensions.start_index_map):
            size = table[axis] - lengths[axis] + 1
            self.lookups |= {(indices[number], size): None for number in set(numbers[..., place].flat) - {-1}}


def _moved(equation: Any, operands: list[Any]) -> np.ndarray:
    """Numbers of indices after an operation that moves entries."""
    pairs = zip(equation.invars, operands, strict=True)
    if equation.primitive.name == "gather":
        arrays = [operands[0].numbers, operands[1]]
    else:
        arrays = [part.numbers if isinstance(part, _Made) else np.full(atom.aval.shape, -1) for atom, part in pairs]
    return np.asarray(equation.primitive.bind(*arrays, **equation.params))


def _check_index(
    kernel: Any, index: _Index, size: int, X: np.ndarray, name: str, names: tuple[str, ...] | None
) -> None:
    column = X[:, index.column]
    rows = index(column)
    is_bad = ~((rows >= 0) & (rows < size))
    if index.is_shifted:
        is_bad |= column != np.floor(column)
    if not is_bad.any():
        return
    row = int(np.flatnonzero(is_bad)[0])
    where = f"column {index.column if names is None else repr(names[index.column])} of {name}"
    first = -int(index(0.0)) if index.is_shifted else 0
    wanted = f"whole numbers from {first} to {first + size - 1}"
    fault = f"must have {wanted} there; got {column[row]:g} in row {row}"
    if not index.is_shifted:
        fault = f"must give {wanted}; {column[row]:g} in row {row} gives {rows[row]:g}"
    raise ValueError(
        f"{kernel!r} reads the {size} entries of an array by {where}, which {fault}. Correct or drop such rows (pandas "
        "codes a missing level as -1), or compute the index in the kernel, as in jnp.floor(x) or index % size."
    )


def _between(kernel: Any, X: Array, Z: Array) -> Array:
    return kernel(X, Z)


_lookups = compiled(checkify.checkify(_between, errors=checkify.index_checks), optimise=False)
