"""Columns of a term, computed in the same way for training data and new data."""

import ast
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd

from pgmodels.data.arrays import check_finite, read_inputs
from pgmodels.data.frames import as_frame, check_types_of_levels, columns_of, listed
from pgmodels.data.series import (
    are_exact,
    days_in,
    first_time,
    floats_in,
    inexact,
    kind_of_column,
    read_column,
    unreadable,
)
from pgmodels.data.text_and_dates import (
    BOOLEAN,
    DATE,
    DURATION,
    IDENTIFIER,
    LEVEL,
    NUMBER,
    ORDERED,
    PLURALS,
    ZONED,
    as_python,
)
from pgmodels.regression.expressions import Computed, Expression

# Rows from which transforms learn, such as the deviation by which scale(x) divides.
_MOST = 10_000_000


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
        has_intercept: bool = True, counts: np.ndarray | None = None,
    ):  # fmt: skip
        formulaic = require_formulaic()
        from formulaic.parser.types import Factor, Term

        factors = dict.fromkeys(factor for product in products for factor in product)
        self.formula = " + ".join(":".join(product) or "1" for product in products)
        names = [name for factor in factors for name in factor.names]
        self.reads = list(dict.fromkeys(name for name in names if name in frame.columns))
        frame = _with_used_levels(frame)
        # Columns of levels, by factor.
        self.compared = {name: name for name in self.reads if kind_of_column(frame[name]) in (LEVEL, ORDERED)}
        for factor in factors:
            match factor.node:
                case ast.Call(ast.Name("C"), [ast.Name(), *arguments], options):
                    self.compared[factor] = factor.names[0]
                    levels = arguments[1:2] + [option.value for option in options if option.arg == "levels"]
                    if levels and factor.names[0] in frame.columns:
                        chosen = Computed(Expression(ast.unparse(levels[0]), levels[0]), context).values(frame)
                        self._require_levels(frame[factor.names[0]], chosen, factor, "data")
        others = [factor for factor in factors if factor not in self.reads]
        self.computed = [_learned(factor, frame, context, counts) for factor in others]
        numbers = [name for name in self.reads if name in factors and name.isdecimal()]
        if numbers:
            raise ValueError(f"formula: the name of column {numbers[0]!r} is a number: rename it in data.")
        self.kinds = {name: kind_of_column(frame[name]) for name in self.reads if name in factors}
        # Dates by themselves are days since the first; formulaic has no linear term of them.
        dates = [name for name, kind in self.kinds.items() if kind in (DATE, ZONED)]
        self.origins = {name: first_time(frame[name]) for name in dates}
        terms = [
            Term([Factor(str(one), eval_method="lookup") for one in product] or [Factor("1", eval_method="literal")])
            for product in products
        ]
        parsed = formulaic.Formula(terms, _ordering="none")
        data, values = self._looked_up(frame, "data"), self._values(frame, "data")
        matrix = _evaluated(lambda: parsed.get_model_matrix(data, context=values, na_action="raise"), self.formula)
        self.spec = matrix.model_spec
        # Without an intercept factors are coded as if there were one.
        self.kept = [number for number, name in enumerate(matrix.columns) if has_intercept or name != "Intercept"]
        self.names = tuple(matrix.columns[self.kept])

    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        if not self.names:
            return np.empty((len(frame), 0))
        require_values(frame, self.reads, name, self.formula)
        frame = _with_used_levels(frame)
        data, computed = self._looked_up(frame, name), self._values(frame, name)
        self._check_levels(data, computed, name)
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

    def _looked_up(self, frame: pd.DataFrame, name: str) -> pd.DataFrame:
        """The columns that are factors by themselves: numbers, days, or levels."""
        columns = {}
        for column, kind in self.kinds.items():
            values, place = frame[column], f"{name}, column {column!r},"
            is_level = kind_of_column(values) in (LEVEL, ORDERED)
            if kind in (LEVEL, ORDERED):
                columns[column] = values if is_level else values.astype(object)
            elif kind in (DATE, ZONED, DURATION):
                columns[column] = pd.Series(days_in(values, self.origins.get(column, "")), frame.index)
            elif is_level or (kind == BOOLEAN and not values.isin([0, 1]).all()):
                raise ValueError(
                    f"{place} must have {PLURALS[kind]}, as in the training data; got {values.iloc[0]!r} in row 0."
                )
            else:
                columns[column] = pd.Series(floats_in(values, place), frame.index)
        return pd.DataFrame(columns, index=frame.index)

    def _check_levels(self, data: pd.DataFrame, computed: dict[str, Any], name: str) -> None:
        """Raise ValueError for other levels than a factor has: formulaic would give them a row of zeros."""
        for factor, (_, state) in self.spec.encoder_state.items():
            if "categories" not in state:
                continue
            values = computed[factor] if factor in computed else data[factor]
            self._require_levels(pd.Series(getattr(values, "__wrapped__", values)), state["categories"], factor, name)

    def _require_levels(self, values: pd.Series, levels: Sequence[Any], factor: str, name: str) -> None:
        unknown = np.flatnonzero(~values.isin(levels))
        if len(unknown):
            column = self.compared.get(factor)
            place = factor if column is None else f"column {column!r}"
            raise ValueError(
                f"{name} has {as_python(values.iloc[unknown[0]])!r} in row {unknown[0]}, {place}, which is not a level "
                f"of this fixed effect in the training data ({listed(levels)}). A group effect, "
                f"(1|{column or 'group'}), takes new levels."
            )


class Numbers(Columns):
    """Columns of numbers or dates by name, and functions of columns."""

    def __init__(
        self, expressions: Sequence[Expression], frame: pd.DataFrame, context: dict[str, Any], term: str,
        counts: np.ndarray | None = None,
    ):  # fmt: skip
        self.names, self.term = tuple(expressions), term
        self.reads = [str(name) for expression in expressions for name in expression.names]
        self.readers: list[Any] = []
        for expression in expressions:
            if expression.is_name and expression not in context:
                require_columns(frame, [expression], "data", term)
            if expression in frame.columns:
                known = columns_of(nw.from_native(frame[[str(expression)]], eager_only=True), "data")
                if known[0].kind == IDENTIFIER:
                    # Raises.
                    floats_in(frame[expression], f"formula: in {term}, {expression}")
                if known[0].kind == "level":
                    raise ValueError(
                        f"formula: {term} needs numbers, dates or ordered categories; {expression} has levels without "
                        "an order. Use (1|...) for an effect of each level, or by= for a function of each."
                    )
                self.readers.append(known)
            else:
                computed = _learned(expression, frame, context, counts)
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
        keys, _ = self._keys(frame, "data")
        self.codes = {key: code for code, key in enumerate(sorted(keys, key=str))}

    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        keys, places = self._keys(frame, name)
        unknown = sorted(set(keys) - set(self.codes), key=str)
        for number, factor in enumerate(self.factors):
            levels = {key[number] for key in self.codes}
            others = [key[number] for key in unknown if key[number] not in levels]
            check_types_of_levels(others, levels, f"{name}, column {factor!r},")
        codes = self.codes | {key: len(self.codes) + number for number, key in enumerate(unknown)}
        return np.array([float(codes[key]) for key in keys])[places][:, None]

    def _keys(self, frame: pd.DataFrame, name: str) -> tuple[list[tuple[Any, ...]], np.ndarray]:
        """The distinct combinations of levels, and which each row has."""
        require_values(frame, self.factors, name, self.term)
        for factor in self.factors:
            if frame[factor].dtype == np.float64 and not are_exact(frame[factor]):
                raise ValueError(
                    f"{name}, column {factor!r}, has floats beyond 2^53, where float64 merges neighbours; {self.term} "
                    "needs levels. Give integers or text."
                )
        places = frame.groupby(self.factors, sort=False, observed=True).ngroup().to_numpy()
        firsts = frame.loc[~pd.Series(places).duplicated().to_numpy(), self.factors]
        return list(zip(*(firsts[factor].tolist() for factor in self.factors), strict=True)), places


def read_frame(data: Any, name: str, used: Collection[str]) -> pd.DataFrame:
    """A data frame of any library with columns as ``read_column`` has them, and rows numbered from 0.

    Raises ValueError for columns ``used`` without such a type; others are kept as objects.
    """
    frame = as_frame(data)
    if frame is None:
        labels = list(getattr(data, "columns", ())) if hasattr(data, "iloc") else []
        if labels:
            other = next((label for label in labels if not isinstance(label, str)), labels[0])
            raise ValueError(
                f"{name}: names of columns must be text, as in {name}.columns = ['y', 'x1', 'x2']; got {other!r}."
            )
        raise ValueError(f"{name} must be a data frame of pandas, polars or pyarrow; got {type(data).__name__}.")
    columns = {}
    for label in frame.columns:
        column = read_column(frame[label])
        if column is None and label in used:
            raise ValueError(f"{name}, column {label!r}, {unreadable(frame[label].to_list())}")
        columns[label] = pd.Series(frame[label].to_list(), dtype=object) if column is None else column
    return pd.DataFrame(columns)


def check_kinds(frame: pd.DataFrame, kinds: Mapping[str, str], name: str) -> None:
    """Raise ValueError for columns of times or durations where the data had none, and the reverse.

    Terms themselves check numbers and levels, of which groups may have others.
    """
    for column, kind in kinds.items():
        got = kind_of_column(frame[column]) if column in frame.columns else kind
        if got != kind and not {got, kind} <= {NUMBER, BOOLEAN, LEVEL, ORDERED}:
            raise ValueError(
                f"{name} has {PLURALS[got]} in column {column!r}, and the training data have {PLURALS[kind]}: convert "
                "them."
            )


def settled(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame with nullable numbers and booleans as plain ones; float64 with NaN where entries are missing."""
    changed = {}
    for name, column in frame.items():
        if isinstance(column.dtype, pd.api.extensions.ExtensionDtype) and column.dtype.kind in "iub":
            plain = not column.isna().any()
            if plain or not inexact(column):
                changed[name] = column.astype(column.dtype.numpy_dtype) if plain else pd.Series(floats_in(column, ""))
    return frame.assign(**{name: column.set_axis(frame.index) for name, column in changed.items()})


def moments(X: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of columns, of rows that count as often as they have weight.

    Raises ValueError if variances overflow.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.average(X, axis=0, weights=counts)
        deviation = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=counts))
    if not np.isfinite(deviation).all():
        raise ValueError(
            f"data: numbers of the formula are up to {np.abs(X).max():.3g}, so that their variance overflows double "
            "precision. Change the units of these columns."
        )
    return mean, deviation


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


def _with_used_levels(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame whose categoricals have the levels that occur: others have no coefficient."""
    categories = [name for name in frame.columns if hasattr(frame[name], "cat")]
    return frame.assign(**{name: frame[name].cat.remove_unused_categories() for name in categories})


def _learned(
    expression: Expression, frame: pd.DataFrame, context: dict[str, Any], counts: np.ndarray | None
) -> Computed:
    """An expression whose transforms learned from rows that occur as often as they have weight, if that is whole.

    With other weights, and more than ``_MOST`` rows, each row counts once, as one that has none does.
    """
    computed = Computed(expression, context)
    computed.values(frame)
    times = np.ones(len(frame)) if counts is None else np.where(counts > 0.0, counts, 1.0)
    if computed.states and (times != 1.0).any() and (times == np.floor(times)).all() and times.sum() <= _MOST:
        computed = Computed(expression, context)
        computed.values(frame.loc[frame.index.repeat(times.astype(int))].reset_index(drop=True))
    return computed


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
