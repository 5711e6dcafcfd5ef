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
from pgmodels.regression.expressions import Computed, Expression


class Columns(ABC):
    """Numbers (n, k) of a data frame."""

    names: tuple[str, ...]

    @abstractmethod
    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        """The columns of a frame; ValueError, with its ``name``, for missing columns and entries."""


class Design(Columns):
    """The design matrix of linear terms, by formulaic."""

    def __init__(
        self, products: Sequence[tuple[Expression, ...]], frame: pd.DataFrame, context: dict[str, Any],
        has_intercept: bool = True,
    ):  # fmt: skip
        formulaic = require_formulaic()
        from formulaic.parser.types import Factor, Term

        factors = dict.fromkeys(factor for product in products for factor in product)
        self.formula = " + ".join(":".join(product) or "1" for product in products)
        names = [name for factor in factors for name in factor.names]
        self.columns = list(dict.fromkeys(name for name in names if name in frame.columns))
        self.computed = [Computed(factor, context) for factor in factors if factor not in self.columns]
        numbers = [name for name in self.columns if name in factors and name.isdecimal()]
        if numbers:
            raise ValueError(f"formula: the name of column {numbers[0]!r} is a number: rename it in data.")
        # Dates by themselves are days since the first; formulaic has no linear term of them.
        dates = [name for name in self.columns if name in factors and _is_date(frame[name])]
        self.origins = {name: frame[name].min() for name in dates}
        terms = [
            Term([Factor(str(one), eval_method="lookup") for one in product] or [Factor("1", eval_method="literal")])
            for product in products
        ]
        parsed = formulaic.Formula(terms, _ordering="none")
        data, values = self._with_days(frame), self._values(frame, "data")
        matrix = _evaluated(lambda: parsed.get_model_matrix(data, context=values, na_action="raise"), self.formula)
        self.spec = matrix.model_spec
        # Without an intercept factors are coded as if there were one.
        self.kept = [number for number, name in enumerate(matrix.columns) if has_intercept or name != "Intercept"]
        self.names = tuple(matrix.columns[self.kept])
        # Formulaic takes other levels as missing, and gives a row of zeros.
        kinds = pd.api.types
        self.levels = {
            name: set(frame[name])
            for name in self.columns
            if not kinds.is_numeric_dtype(frame[name]) and not _is_date(frame[name])
        }

    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        if not self.names:
            return np.empty((len(frame), 0))
        require_values(frame, self.columns, name, self.formula)
        for column, levels in self.levels.items():
            row = next((row for row, level in enumerate(frame[column]) if level not in levels), None)
            if row is not None:
                raise ValueError(
                    f"{name} has {frame[column].iloc[row]!r} in row {row}, column {column!r}, which is not a level of "
                    f"this fixed effect in the training data. A group effect, (1|{column}), takes new levels."
                )
        data, computed = self._with_days(frame), self._values(frame, name)
        matrix = _evaluated(lambda: self.spec.get_model_matrix(data, context=computed), self.formula)
        values = np.asarray(matrix, dtype=np.float64)[:, self.kept]
        check_finite(values, f"{name}, {self.formula}")
        return values

    def _values(self, frame: pd.DataFrame, name: str) -> dict[str, Any]:
        """The values of factors that are not columns, by their text."""
        computed = {}
        for one in self.computed:
            values = one.values(frame)
            if isinstance(values, str | int | float | np.generic):
                values = pd.Series([values] * len(frame))
            if getattr(values, "dtype", None) == np.float64:
                check_finite(np.asarray(values), f"{name}, {one.text}")
            computed[str(one.text)] = values
        return computed

    def constant(self, X: np.ndarray) -> np.ndarray:
        """Which coefficients are the line's constant: the intercept, or without one the levels of a factor."""
        if "Intercept" in self.names:
            return np.array([name == "Intercept" for name in self.names])
        for indices in self.spec.term_indices.values():
            columns = np.isin(self.kept, indices)
            if np.isin(X[:, columns], (0.0, 1.0)).all() and (X[:, columns].sum(axis=1) == 1.0).all():
                return columns
        return np.zeros(len(self.names), dtype=bool)

    def _with_days(self, frame: pd.DataFrame) -> pd.DataFrame:
        days = {name: (frame[name] - first) / pd.Timedelta(days=1) for name, first in self.origins.items()}
        return frame.assign(**days) if days else frame


class Numbers(Columns):
    """Columns of numbers or dates by name, and functions of columns."""

    def __init__(self, expressions: Sequence[Expression], frame: pd.DataFrame, context: dict[str, Any], term: str):
        self.names, self.term = tuple(expressions), term
        self.readers: list[Any] = []
        for expression in expressions:
            if expression.is_name and expression not in context:
                require_columns(frame, [expression], "data", term)
            if expression in frame.columns:
                known = columns_of(nw.from_native(frame[[str(expression)]], eager_only=True), "data")
                if known[0].kind == "level":
                    raise ValueError(
                        f"formula: {term} needs numbers, dates or ordered categories; {expression} has levels without "
                        "an order. Use (1|...) for an effect of each level, or by= for a function of each."
                    )
                self.readers.append(known)
            else:
                computed = Computed(expression, context)
                computed.column(frame)
                self.readers.append((computed, [name for name in expression.names if name in frame.columns]))

    def last(self, count: int) -> "Numbers":
        """The last ``count`` columns."""
        some = copy(self)
        some.names, some.readers = self.names[-count:], self.readers[-count:]
        return some

    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        columns = []
        for expression, reader in zip(self.names, self.readers, strict=True):
            if isinstance(reader[0], Computed):
                computed, names = reader
                require_values(frame, names, name, self.term)
                columns.append(computed.column(frame)[:, None])
                check_finite(columns[-1], f"{name}, {expression} in {self.term}")
                continue
            require_columns(frame, [expression], name, self.term)
            values, _ = read_inputs(frame[[str(expression)]], name, reader, is_new=True)
            check_finite(values, name, reader)
            columns.append(values)
        return np.concatenate(columns, axis=1)


class Levels(Columns):
    """The code of the level of a factor, or of the combination of levels of several; new levels have new codes."""

    def __init__(self, factors: Sequence[str], frame: pd.DataFrame, term: str):
        self.factors, self.names, self.term = [str(factor) for factor in factors], (":".join(factors),), term
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
        require_values(frame, self.factors, name, self.term)
        columns = [frame[factor].tolist() for factor in self.factors]
        return list(zip(*columns, strict=True))


def require_columns(frame: pd.DataFrame, names: Sequence[str], name: str, term: str) -> None:
    """Raise ValueError if a frame lacks columns of a term."""
    missing = [column for column in names if column not in frame.columns]
    if missing:
        raise ValueError(f"{name} has no column {missing[0]!r}, which {term} reads; it has {list(frame.columns)}.")


def require_values(frame: pd.DataFrame, names: Sequence[str], name: str, term: str) -> None:
    """Raise ValueError if a frame lacks columns of a term, or entries of these."""
    require_columns(frame, names, name, term)
    for column in names:
        empty = np.flatnonzero(frame[column].isna())
        if len(empty):
            raise ValueError(f"{name} has no value in row {empty[0]}, column {column!r}, which {term} reads.")


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
    try:
        return call()
    # Transforms and contrasts raise errors of all kinds for columns that they cannot have.
    except Exception as error:
        raise ValueError(f"formula: {formula} cannot be evaluated: {error}") from error
