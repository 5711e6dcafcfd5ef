"""Grids of new data: some columns over their values, the others at their means or most frequent levels."""

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from pgmodels.data.series import kind_of_column
from pgmodels.data.text_and_dates import DATE, DURATION, NUMBER, ZONED

# Of the first column of numbers, and of further ones: the minimum, quartiles and maximum.
_POINTS, _QUARTILES = 50, (0.0, 0.25, 0.5, 0.75, 1.0)

Conditional = str | Sequence[str] | Mapping[str, Any]


def conditional_grid(
    frame: pd.DataFrame, conditional: Conditional, used: Collection[str] | None = None,
    compared: Collection[str] = (), counts: np.ndarray | None = None,
) -> tuple[pd.DataFrame, list[str]]:  # fmt: skip
    """The grid of the columns ``conditional``, with others that are ``used``, by default all, and their names.

    Numbers in columns ``compared`` are levels. Means and most frequent levels are of rows that count as often as they
    have weight. A dict has the values of columns, or None for the default: all levels, 50 points of the first column of
    numbers, and quartiles of further ones.
    """
    wanted = {conditional: None} if isinstance(conditional, str) else conditional
    wanted = dict(wanted) if isinstance(wanted, Mapping) else dict.fromkeys(wanted)
    unknown = [name for name in wanted if name not in frame.columns]
    if not wanted or unknown:
        wrong = unknown[0] if unknown else wanted
        raise ValueError(f"conditional must name columns of the data, {list(frame.columns)}; got {wrong!r}.")
    numbers = [name for name in wanted if name not in compared and _is_continuous(frame[name])]
    values = [
        _values(frame[name], name in numbers, is_first=name in numbers[:1]) if chosen is None else _as_list(chosen)
        for name, chosen in wanted.items()
    ]
    grid = pd.DataFrame(list(product(*values)), columns=list(wanted))
    names = [name for name in frame.columns if name in wanted or used is None or name in used]
    others = {
        name: [_typical(frame[name], name in compared, counts)] * len(grid) for name in names if name not in wanted
    }
    grid = pd.concat([grid, pd.DataFrame(others, index=grid.index)], axis=1)
    return grid[names], list(wanted)


def _is_continuous(column: pd.Series) -> bool:
    kinds = pd.api.types
    is_number = kinds.is_numeric_dtype(column) and not kinds.is_bool_dtype(column)
    return is_number or kind_of_column(column) in (DATE, ZONED, DURATION)


def _values(column: pd.Series, is_continuous: bool, is_first: bool) -> list[Any]:
    if not is_continuous:
        # Levels that do not occur have no coefficient.
        has_categories = hasattr(column, "cat")
        return list(column.cat.remove_unused_categories().cat.categories) if has_categories else sorted(set(column))
    distinct = sorted(column.unique())
    if is_first and len(distinct) > _POINTS:
        return list(column.min() + (column.max() - column.min()) * np.linspace(0.0, 1.0, _POINTS))
    return distinct if is_first or len(distinct) <= len(_QUARTILES) else list(column.quantile(_QUARTILES))


def _as_list(values: Any) -> list[Any]:
    return [values] if np.ndim(values) == 0 else list(values)


def _typical(column: pd.Series, is_compared: bool, counts: np.ndarray | None) -> Any:
    counts = np.ones(len(column)) if counts is None else counts
    if is_compared or not _is_continuous(column):
        return pd.Series(counts).groupby(column.to_numpy(dtype=object)).sum().idxmax()
    if kind_of_column(column) == NUMBER:
        return float(np.average(column[column.notna()], weights=counts[column.notna()]))
    first = column.min()
    return first + pd.Timedelta(days=1) * float(np.average((column - first) / pd.Timedelta(days=1), weights=counts))
