"""Columns of a term, computed in the same way for training data and new data."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd

from pgmodels.data.arrays import check_finite, read_inputs
from pgmodels.data.frames import columns_of


class Columns(ABC):
    """Numbers (n, k) of a data frame."""

    names: tuple[str, ...]

    @abstractmethod
    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        """The columns of a frame; ValueError, with its ``name``, for missing columns and entries."""


class Design(Columns):
    """The design matrix of linear terms, by formulaic."""

    def __init__(self, formula: str, frame: pd.DataFrame, context: dict[str, Any], has_intercept: bool = True):
        formulaic = require_formulaic()
        self.formula, self.context = formula, context
        parsed = _evaluated(lambda: formulaic.Formula(formula, _ordering="none"), formula)
        # Dates by themselves are days since the first; formulaic has no linear term of them.
        factors = {factor.expr for term in parsed for factor in term.factors}
        dates = [name for name in frame.columns if name in factors and _is_date(frame[name])]
        self.origins = {name: frame[name].min() for name in dates}
        data = self._with_days(frame)
        matrix = _evaluated(lambda: parsed.get_model_matrix(data, context=context, na_action="raise"), formula)
        self.spec = matrix.model_spec
        # Without an intercept factors are coded as if there were one.
        self.kept = [number for number, name in enumerate(matrix.columns) if has_intercept or name != "Intercept"]
        self.names = tuple(matrix.columns[self.kept])
        columns = [name for name in map(str, parsed.required_variables) if name in frame.columns]
        # Formulaic takes other levels as missing, and gives a row of zeros.
        kinds = pd.api.types
        self.levels = {
            name: set(frame[name])
            for name in columns
            if not kinds.is_numeric_dtype(frame[name]) and not _is_date(frame[name])
        }

    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        if not self.names:
            return np.empty((len(frame), 0))
        for column, levels in self.levels.items():
            require_columns(frame, [column], name, self.formula)
            row = next((row for row, level in enumerate(frame[column]) if level not in levels), None)
            if row is not None:
                raise ValueError(
                    f"{name} has {frame[column].iloc[row]!r} in row {row}, column {column!r}, which is not a level of "
                    f"this fixed effect in the training data. A group effect, (1|{column}), takes new levels."
                )
        require_columns(frame, list(self.origins), name, self.formula)
        data = self._with_days(frame)
        matrix = _evaluated(lambda: self.spec.get_model_matrix(data, context=self.context), self.formula)
        values = np.asarray(matrix, dtype=np.float64)[:, self.kept]
        check_finite(values, f"{name}, {self.formula}")
        return values

    def _with_days(self, frame: pd.DataFrame) -> pd.DataFrame:
        days = {name: (frame[name] - first) / pd.Timedelta(days=1) for name, first in self.origins.items()}
        return frame.assign(**days) if days else frame


class Numbers(Columns):
    """Columns of numbers or dates by name, and functions of columns."""

    def __init__(self, expressions: Sequence[str], frame: pd.DataFrame, context: dict[str, Any], term: str):
        self.names, self.term = tuple(expressions), term
        self.readers: list[Any] = []
        for expression in expressions:
            if expression in frame.columns:
                known = columns_of(nw.from_native(frame[[expression]], eager_only=True), "data")
                if known[0].kind == "level":
                    raise ValueError(
                        f"formula: {term} needs numbers, dates or ordered categories; {expression} has levels without "
                        "an order. Use (1|...) for an effect of each level, or by= for a function of each."
                    )
                self.readers.append(known)
            else:
                design = Design(f"0 + {expression}", frame, context)
                if len(design.names) != 1:
                    raise ValueError(f"formula: {term}: {expression} must be one column of numbers.")
                self.readers.append(design)

    def last(self, count: int) -> "Numbers":
        """The last ``count`` columns."""
        some = copy(self)
        some.names, some.readers = self.names[-count:], self.readers[-count:]
        return some

    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        columns = []
        for expression, reader in zip(self.names, self.readers, strict=True):
            if isinstance(reader, Design):
                columns.append(reader.read(frame, name))
                continue
            require_columns(frame, [expression], name, self.term)
            values, _ = read_inputs(frame[[expression]], name, reader, is_new=True)
            check_finite(values, name, reader)
            columns.append(values)
        return np.concatenate(columns, axis=1)


class Levels(Columns):
    """The code of the level of a factor, or of the combination of levels of several; new levels have new codes."""

    def __init__(self, factor: str, frame: pd.DataFrame, term: str):
        self.factors, self.names, self.term = factor.split(":"), (factor,), term
        self.factors = [part.strip() for part in self.factors]
        self.codes: dict[Any, int] = {}
        for key in sorted(set(self._keys(frame, "data")), key=str):
            self.codes[key] = len(self.codes)

    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        keys = self._keys(frame, name)
        codes = dict(self.codes)
        for key in sorted(set(keys) - set(codes), key=str):
            codes[key] = len(codes)
        return np.array([[float(codes[key])] for key in keys])

    def _keys(self, frame: pd.DataFrame, name: str) -> list[Any]:
        require_columns(frame, self.factors, name, self.term)
        for factor in self.factors:
            empty = np.flatnonzero(frame[factor].isna())
            if len(empty):
                raise ValueError(f"{name} has no value in row {empty[0]}, column {factor!r}, which {self.term} reads.")
        columns = [frame[factor].tolist() for factor in self.factors]
        return list(zip(*columns, strict=True))


def require_columns(frame: pd.DataFrame, names: Sequence[str], name: str, term: str) -> None:
    """Raise ValueError if a frame lacks columns of a term."""
    missing = [column for column in names if column not in frame.columns]
    if missing:
        raise ValueError(f"{name} has no column {missing[0]!r}, which {term} reads; it has {list(frame.columns)}.")


def _is_date(column: pd.Series) -> bool:
    return pd.api.types.is_datetime64_any_dtype(column)


def require_formulaic() -> Any:
    """The module formulaic; ImportError with the remedy if it is not installed."""
    try:
        import formulaic
    except ImportError as error:
        raise ImportError(
            "pgm.formula needs the package formulaic: python -m pip install 'pgmodels[formula]'"
        ) from error
    return formulaic


def _evaluated(call: Any, formula: str) -> Any:
    """The result of a call of formulaic, with its errors as ValueError."""
    from formulaic.errors import FormulaicError

    try:
        return call()
    except (FormulaicError, SyntaxError) as error:
        raise ValueError(f"formula: {formula} cannot be evaluated: {error}") from error
