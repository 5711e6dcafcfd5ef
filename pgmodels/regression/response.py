"""Responses of formulas: columns of y, codes of labels, and the columns that new data need."""

from typing import Any

import numpy as np
import pandas as pd

from pgmodels.data.arrays import check_finite
from pgmodels.data.series import kind_of_column
from pgmodels.data.text_and_dates import DATE, LEVEL, ORDERED, ZONED
from pgmodels.regression.columns import Columns, Numbers, settled
from pgmodels.regression.expressions import Computed
from pgmodels.regression.grammar import Observed

# Responses whose further columns new data have.
_COVARIATES = ("c", "se")


class Response:
    """The observations of a formula.

    ``kind`` is "p" for successes of trials, "Surv" for times, "se" for known noise, "c" for other columns, or "column".
    ``censoring`` is that of times, as in ``Weibull``.
    ``levels`` are the labels of a column of text or categories, coded in this order; () for numbers.
    """

    def __init__(
        self, observed: Observed, frame: pd.DataFrame, context: dict[str, Any], has_levels: bool, counts: np.ndarray
    ):
        frame = settled(frame)
        self.text, self.kind = observed.text, observed.kind
        self.levels: tuple[Any, ...] = ()
        self.censoring: str | None = None
        expressions = observed.arguments
        name = expressions[0]
        for expression in expressions:
            if expression in frame.columns and kind_of_column(frame[expression]) in (DATE, ZONED):
                raise ValueError(f"formula: the response {self.text} has dates in column {expression!r}: give numbers.")
        self.columns: Columns
        if self.kind == "Surv":
            self.columns = times = _Times(observed, context)
            self.censoring = times.censoring
        elif self.kind == "column" and name in frame.columns and kind_of_column(frame[name]) in (LEVEL, ORDERED):
            self.columns = labels = _Labels(name, frame, observed.level)
            self.levels = labels.levels
        else:
            if observed.level is not None:
                raise ValueError(f"formula: {self.text} names a level of {name}, which is not a column of text.")
            self.columns = Numbers(expressions, frame, context, self.text, counts)
            if self.kind == "column" and has_levels:
                self.columns = codes = _Codes(self.columns, frame)
                self.levels = codes.levels

    @property
    def has_covariates(self) -> bool:
        """Whether new data have columns of it."""
        return self.kind in _COVARIATES

    def read(self, frame: pd.DataFrame) -> np.ndarray:
        """The columns of y (n, k)."""
        return self.columns.read(settled(frame))

    def covariates(self, frame: pd.DataFrame, count: int, name: str = "newdata") -> np.ndarray:
        """The last ``count`` columns of y for new data: 1 trial, and else the columns of the formula."""
        if not self.has_covariates or count == 0:
            return np.ones((len(frame), count))
        columns = self.columns
        assert isinstance(columns, Numbers)
        return columns.last(count).read(frame, name)


class _Labels(Columns):
    """A column of labels: categories in their order, others sorted; the ``chosen`` one of two is the last."""

    def __init__(self, name: str, frame: pd.DataFrame, chosen: Any):
        column, self.names = frame[name], (name,)
        levels = list(column.cat.categories) if hasattr(column, "cat") else sorted(column.dropna().unique())
        if chosen is not None:
            matches = [level for level in levels if str(level) == str(chosen)]
            if not matches or len(levels) > 2:
                raise ValueError(f"formula: {name}[{chosen!r}] must name one of two levels; {name} has {levels!r}.")
            levels = [level for level in levels if level not in matches] + matches
        self.levels = tuple(levels)

    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        codes = {level: float(code) for code, level in enumerate(self.levels)}
        return np.array([[codes.get(value, np.nan)] for value in frame[self.names[0]]])


class _Codes(Columns):
    """Whole numbers as labels: those that occur, in their order."""

    def __init__(self, numbers: Numbers, frame: pd.DataFrame):
        self.numbers, self.names = numbers, numbers.names
        values = np.unique(numbers.read(frame))
        if (values != np.floor(values)).any():
            raise ValueError(
                f"formula: the response {self.names[0]} must have labels or whole numbers; got "
                f"{values[values != np.floor(values)][0]}."
            )
        self.levels = tuple(map(int, values))

    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        return np.searchsorted(self.levels, self.numbers.read(frame, name)).astype(np.float64)


# The arguments of Surv by its type, R's names, of which "counting" is (entry, exit, event).
_TYPES = {
    "right": ("time", "event"),
    "left": ("time", "event"),
    "counting": ("entry", "exit", "event"),
    "interval": ("time", "time2", "code"),
    "interval2": ("lower", "upper"),
}


def _type_of(observed: Observed) -> str:
    """The type of Surv: by default of two arguments "right" and of three "counting", as in R."""
    count = len(observed.arguments)
    kind = observed.options.get("type", "counting" if count == 3 else "right")
    if kind not in _TYPES or (count != len(_TYPES[kind]) and (kind, count) != ("right", 1)):
        there_are = "; ".join(f"Surv({', '.join(names)}, type={one!r})" for one, names in _TYPES.items())
        raise ValueError(f"formula: {observed.text} must be one of {there_are}.")
    return kind


def has_value(observed: Observed, frame: pd.DataFrame, context: dict[str, Any]) -> np.ndarray:
    """Whether each row (n,) has a value of the response; a censored time has no other end."""
    holes = [
        frame[[name for name in one.names if name in frame.columns]].isna().any(axis=1).to_numpy()
        for one in observed.arguments
    ]
    kind = _type_of(observed) if observed.kind == "Surv" else None
    if kind == "interval2":
        return ~(holes[0] & holes[1])
    if kind == "interval":
        code = Computed(observed.arguments[2], context).column(frame)
        holes[1] = holes[1] & (code == 3)
    return ~np.any(holes, axis=0)


class _Times(Columns):
    """Times with censoring, as (time, event), (time, event, entry), or (time, code, second time)."""

    def __init__(self, observed: Observed, context: dict[str, Any]):
        self.kind, self.text = _type_of(observed), observed.text
        self.arguments = [Computed(one, context) for one in observed.arguments]
        self.censoring = self.kind if self.kind in ("right", "counting") else "interval"
        self.names = {
            "right": ("time", "event"), "counting": ("time", "event", "entry"), "interval": ("time", "code", "time2")
        }[self.censoring]  # fmt: skip

    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        times = self._times(frame, name)
        check_finite(times, f"{name}, {self.text}")
        return times

    def _times(self, frame: pd.DataFrame, name: str) -> np.ndarray:
        values = [one.column(frame) for one in self.arguments]
        if self.kind == "interval2":
            return self._intervals(values[0], values[1], name)
        event = np.ones(len(frame)) if len(values) == 1 else values[-1]
        codes = (0.0, 1.0, 2.0, 3.0) if self.kind == "interval" else (0.0, 1.0)
        wrong = np.flatnonzero(~np.isin(event, codes))
        if len(wrong):
            one = self.arguments[-1].text
            raise ValueError(
                f"{name}: {one} in {self.text} must be {'0, 1, 2 or 3' if len(codes) == 4 else '0 or 1'}; got "
                f"{event[wrong[0]]:g} in row {wrong[0]}. Compute it, as in {one} == 2; codes of intervals need "
                "type='interval'."
            )
        if self.kind == "counting":
            early = np.flatnonzero((values[0] < 0) | (values[0] >= values[1]))
            if len(early):
                raise ValueError(
                    f"{name}: {self.text} must have an entry from 0 to below the exit; got {values[0][early[0]]:g} and "
                    f"{values[1][early[0]]:g} in row {early[0]}. The order is Surv(entry, exit, event)."
                )
            return np.column_stack([values[1], event, values[0]])
        if self.kind == "interval":
            return np.column_stack([values[0], event, np.where(event == 3, values[1], values[0])])
        if self.kind == "left":
            return np.column_stack([values[0], np.where(event == 1, 1.0, 2.0), values[0]])
        return np.column_stack([values[0], event])

    def _intervals(self, lower: np.ndarray, upper: np.ndarray, name: str) -> np.ndarray:
        # Times are above 0.
        is_left, is_right = np.isnan(lower) | (lower == 0.0) | (lower == -np.inf), np.isnan(upper) | (upper == np.inf)
        wrong = np.flatnonzero((is_left & is_right) | (lower > upper))
        if len(wrong):
            raise ValueError(
                f"{name}: {self.text} must have a lower end that is not above the upper one; got {lower[wrong[0]]:g} "
                f"and {upper[wrong[0]]:g} in row {wrong[0]}. An open end is NaN, or 0 below and inf above."
            )
        code = np.select([is_left, is_right, lower == upper], [2.0, 0.0, 1.0], default=3.0)
        time = np.where(is_left, upper, lower)
        return np.column_stack([time, code, np.where(code == 3, upper, time)])
