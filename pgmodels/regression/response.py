"""Responses of formulas: columns of y, codes of labels, and the columns that new data need."""

from typing import Any

import numpy as np
import pandas as pd

from pgmodels.regression.columns import Columns, Numbers
from pgmodels.regression.grammar import Observed

# Responses whose further columns new data have.
_COVARIATES = ("c", "se")


class Response:
    """The observations of a formula.

    ``kind`` is "p" for successes of trials, "Surv" for times, "se" for known noise, "c" for other columns, or "column".
    ``levels`` are the labels of a column of text or categories, coded in this order; () for numbers.
    """

    def __init__(self, observed: Observed, frame: pd.DataFrame, context: dict[str, Any]):
        self.text, self.kind, self.levels = observed.text, observed.kind, ()
        expressions = list(observed.arguments)
        # R's order of the arguments; y has the event in its second column.
        if self.kind == "Surv" and len(expressions) == 3:
            expressions = [expressions[0], expressions[2], expressions[1]]
        name = expressions[0]
        self.columns: Columns
        if self.kind == "column" and name in frame.columns and not _is_number(frame[name]):
            self.columns = labels = _Labels(name, frame, observed.level)
            self.levels = labels.levels
        else:
            if observed.level is not None:
                raise ValueError(f"formula: {self.text} names a level of {name}, which is not a column of text.")
            self.columns = Numbers(expressions, frame, context, self.text)

    def read(self, frame: pd.DataFrame) -> np.ndarray:
        """The columns of y (n, k)."""
        return self.columns.read(frame)

    def covariates(self, frame: pd.DataFrame, count: int, name: str = "newdata") -> np.ndarray:
        """The last ``count`` columns of y for new data: 1 trial, and else the columns of the formula."""
        if self.kind not in _COVARIATES or count == 0:
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


def _is_number(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column)
