"""What of a table of cases runs by default: a fixed part of it, in which everything appears. The rest is slow."""

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

import pytest

ParameterSet = type(pytest.param())


def some(values: Iterable[Any], *default: Any) -> list[Any]:
    """The rows of a table as parameters, all but the default ones slow; a row of several is a tuple."""
    values = list(values)
    missing = [value for value in default if value not in values]
    if missing:
        raise ValueError(f"default must be among the values; got {missing}, expected some of {values}.")
    return [_parameter(value, value in default) for value in values]


def _parameter(row: Any, is_default: bool, name: str | None = None) -> Any:
    values = row if isinstance(row, tuple) else (row,)
    return pytest.param(*values, marks=() if is_default else pytest.mark.slow, id=name)


def covering(
    *axes: Sequence[Any], takes: Callable[..., bool] = lambda *cell: True, name: Callable[..., str] | None = None
) -> list[Any]:
    """The cells of a table that it takes, as parameters: by default each value of each axis in one cell at least.

    The k-th default cell has the k-th value of every axis, from the start again where an axis is at its end. Where the
    table does not take it, the first axis goes on to the next value with which it does.
    """
    first, *others = axes
    default = set()
    for k in range(max(map(len, axes))):
        rest = tuple(axis[k % len(axis)] for axis in others)
        start = k % len(first)
        default.add(next((value, *rest) for value in (*first[start:], *first[:start]) if takes(value, *rest)))
    cells = (cell for cell in product(*axes) if takes(*cell))
    return [_parameter(cell, cell in default, name and name(*cell)) for cell in cells]


def default_rows(test: Callable[..., Any]) -> list[tuple[Any, ...]]:
    """The rows with which a test of one table runs by default."""
    marks = {mark.name: mark for mark in getattr(test, "pytestmark", ())}
    if "slow" in marks:
        return []
    rows = [row if isinstance(row, ParameterSet) else _parameter(row, True) for row in marks["parametrize"].args[1]]
    return [row.values for row in rows if not any(mark.name == "slow" for mark in row.marks)]
