"""Responses of formulas: columns of y, codes of labels, and the columns that new data need."""

import re
from typing import Any

import numpy as np
import pandas as pd

from pgmodels.regression.columns import Columns, Numbers, require_columns

# Names before a parenthesis that are a response of several columns, not functions.
_CALLS = ("p", "Surv", "c")
_COVARIATES = ("c", "se")


class Response:
    """The observations of a formula.

    ``kind`` is "p" for successes of trials, "Surv" for times, "se" for known noise, "c" for other columns, or "column".
    ``levels`` are the labels of a column of text or categories, coded in this order; () for numbers.
    """

    def __init__(self, text: str, frame: pd.DataFrame, context: dict[str, Any]):
        self.text, self.levels = text, ()
        self.kind, expressions, chosen = _read(text)
        # R's order of the arguments; y has the event in its second column.
        if self.kind == "Surv" and len(expressions) == 3:
            expressions = [expressions[0], expressions[2], expressions[1]]
        name = expressions[0]
        self.columns: Columns
        if self.kind == "column" and name in frame.columns and not _is_number(frame[name]):
            self.columns = labels = _Labels(name, frame, chosen)
            self.levels = labels.levels
        else:
            if chosen is not None:
                raise ValueError(f"formula: {text} names a level of {name}, which is not a column of text.")
            for expression in expressions:
                if re.fullmatch(r"[A-Za-z_.]\w*", expression):
                    require_columns(frame, [expression], "data", "the response")
            self.columns = Numbers(expressions, frame, context, text)

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

    def __init__(self, name: str, frame: pd.DataFrame, chosen: str | None):
        column, self.names = frame[name], (name,)
        levels = list(column.cat.categories) if hasattr(column, "cat") else sorted(column.dropna().unique())
        if chosen is not None:
            matches = [level for level in levels if str(level) == chosen]
            if not matches or len(levels) > 2:
                raise ValueError(f"formula: {name}[{chosen!r}] must name one of two levels; {name} has {levels!r}.")
            levels = [level for level in levels if level not in matches] + matches
        self.levels = tuple(levels)

    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        codes = {level: float(code) for code, level in enumerate(self.levels)}
        return np.array([[codes.get(value, np.nan)] for value in frame[self.names[0]]])


def _read(text: str) -> tuple[str, list[str], str | None]:
    """The kind of a response, its expressions, and the level that is modelled."""
    if text.startswith("cbind"):
        raise ValueError("formula: cbind(successes, failures) is written p(successes, trials).")
    if bar := re.fullmatch(r"(.+?)\s*\|\s*(\w+)\((.+)\)", text):
        kinds = {"trials": "p", "se": "se"}
        if bar[2] not in kinds:
            raise ValueError(
                f"formula: {text} has {bar[2]}() after the bar; there are trials() and se(). Weights are the argument "
                "weights, rates an offset(log()) term, and censored times Surv(time, event)."
            )
        return kinds[bar[2]], [bar[1].strip(), bar[3].strip()], None
    if call := re.fullmatch(rf"({'|'.join(_CALLS)})\((.+)\)", text):
        return call[1], [part.strip() for part in call[2].split(",")], None
    if level := re.fullmatch(r"(\w+)\[\s*['\"]?(.+?)['\"]?\s*\]", text):
        return "column", [level[1]], level[2]
    return "column", [text], None


def _is_number(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column)
