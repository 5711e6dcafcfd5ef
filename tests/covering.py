"""Tables of cases of which a fixed selection runs by default; the rest is marked slow."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

ParameterSet = type(pytest.param())


def some(values: Iterable[Any], *default: Any) -> list[Any]:
    """The rows of a table as parameters, all but the default ones slow; a row of several is a tuple."""
    values = list(values)
    missing = [value for value in default if value not in values]
    if missing:
        raise ValueError(f"default must be among the values; got {missing}, expected some of {values}.")
    return [_parameter(value, () if value in default else pytest.mark.slow) for value in values]


def _parameter(row: Any, marks: Any = ()) -> Any:
    return pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=marks)


def default_rows(test: Callable[..., Any]) -> list[tuple[Any, ...]]:
    """The rows with which a test of one table runs by default."""
    marks = {mark.name: mark for mark in getattr(test, "pytestmark", ())}
    if "slow" in marks:
        return []
    rows = [row if isinstance(row, ParameterSet) else _parameter(row) for row in marks["parametrize"].args[1]]
    return [row.values for row in rows if not any(mark.name == "slow" for mark in row.marks)]
