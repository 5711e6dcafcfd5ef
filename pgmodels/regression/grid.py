"""Grids of new data: some columns over their values, the others at their means or most frequent levels."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

# Of the first column of numbers, and of further ones: the minimum, quartiles and maximum.
_POINTS, _QUARTILES = 50, (0.0, 0.25, 0.5, 0.75, 1.0)

Conditional = str | Sequence[str] | Mapping[str, Any]


def conditional_grid(frame: pd.DataFrame, conditional: Conditional) -> tuple[pd.DataFrame, list[str]]:
    """The grid of the columns ``conditional``, and their names.

    A dict has the values of columns, or None for the default: all levels, 50 points of the first column of numbers, and
    quartiles of further ones.
    """
    wanted = {conditional: None} if isinstance(conditional, str) else conditional
    wanted = dict(wanted) if isinstance(wanted, Mapping) else dict.fromkeys(wanted)
    unknown = [name for name in wanted if name not in frame.columns]
    if not wanted or unknown:
        wrong = unknown[0] if unknown else wanted
        raise ValueError(f"conditional must name columns of the data, {list(frame.columns)}; got {wrong!r}.")
    numbers = [name for name in wanted if _is_continuous(frame[name])]
    values = [
        _values(frame[name], is_first=name in numbers[:1]) if chosen is None else _as_list(chosen)
        for name, chosen in wanted.items()
    ]
    grid = pd.DataFrame(list(product(*values)), columns=list(wanted))
    others = {name: [_typical(frame[name])] * len(grid) for name in frame.columns if name not in wanted}
    grid = pd.concat([grid, pd.DataFrame(others, index=grid.index)], axis=1)
    return grid[list(frame.columns)], list(wanted)


def _is_continuous(column: pd.Series) -> bool:
    kinds = pd.api.types
    is_number = kinds.is_numeric_dtype(column) and not kinds.is_bool_dtype(column)
    return is_number or kinds.is_datetime64_any_dtype(column)


def _values(column: pd.Series, is_first: bool) -> list[Any]:
    if not _is_continuous(column):
        return list(column.cat.categories) if hasattr(column, "cat") else sorted(column.unique())
    distinct = sorted(column.unique())
    if is_first and len(distinct) > _POINTS:
        return list(column.min() + (column.max() - column.min()) * np.linspace(0.0, 1.0, _POINTS))
    return distinct if is_first or len(distinct) <= len(_QUARTILES) else list(column.quantile(_QUARTILES))


def _as_list(values: Any) -> list[Any]:
    return [values] if np.ndim(values) == 0 else list(values)


def _typical(column: pd.Series) -> Any:
    return column.mean() if _is_continuous(column) else column.mode().iloc[0]
