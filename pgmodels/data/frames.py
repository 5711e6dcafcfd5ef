"""Columns of data frames as numbers: text and categories by codes, dates by days, in the same way for new data."""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pgmodels.data.text_and_dates import (
    BOOLEAN,
    DATE,
    DURATION,
    EXACT,
    IDENTIFIER,
    LEVEL,
    NUMBER,
    ORDERED,
    PLURALS,
    ZONED,
    as_python,
    describe,
    is_missing,
    kind_of_entries,
    numbers_in,
)

if TYPE_CHECKING:
    import narwhals.stable.v2 as nw

# Kinds whose entries become the numbers of their levels.
_CODED = (LEVEL, ORDERED, IDENTIFIER)


class Column(NamedTuple):
    """A column of a data frame, and how its entries become numbers.

    ``kind`` is "number", "level" for text and categories without an order, whose codes are their places in ``levels``,
    "ordered" for ordered categories, "identifier" for whole numbers that float64 does not hold, "date" or "date with a
    zone" for days since ``origin``, or "duration" for days.
    """

    name: str
    kind: str = NUMBER
    levels: tuple[Any, ...] = ()
    origin: str = ""

    def __str__(self) -> str:
        match self.kind:
            case "level" | "ordered" | "identifier":
                return f"{self.name}: {', '.join(f'{code} = {level!r}' for code, level in enumerate(self.levels))}"
            case "date" | "date with a zone":
                return f"{self.name}: days since {self.origin}"
            case "duration":
                return f"{self.name}: days"
        return self.name


Columns = tuple[Column, ...]


def as_frame(value: Any) -> "nw.DataFrame[Any] | None":
    """A data frame of any library; None for other values, and for a frame whose column names are not all text."""
    if isinstance(value, np.ndarray):
        return None
    import narwhals.stable.v2 as nw

    if hasattr(value, "iloc") and not all(isinstance(label, str) for label in getattr(value, "columns", ())):
        return None
    frame = nw.from_native(value, eager_only=True, pass_through=True)
    return frame if isinstance(frame, nw.DataFrame) and frame.columns else None


def as_identifiers(value: Any, known: Columns | None = None) -> "nw.DataFrame[Any] | None":
    """An array (n, d) as a data frame if it has whole numbers that float64 does not hold, or ``known`` columns have.

    None for others, whose entries may become float64 as they are.
    """
    try:
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    has_codes = any(column.kind == IDENTIFIER for column in known or ())
    if array.ndim != 2 or array.dtype.kind not in ("biufO" if has_codes else "iuO"):
        return None
    numbers = numbers_in(array)
    if numbers is None or (known is not None and len(known) != array.shape[1]):
        return None
    if not has_codes and not np.any(np.abs(numbers) > EXACT):
        return None
    import narwhals.stable.v2 as nw
    import pandas as pd

    from pgmodels.data.series import inexact, read_column

    names = [str(number) for number in range(array.shape[1])] if known is None else [one.name for one in known]
    frame = nw.from_native(pd.DataFrame(array, columns=names), eager_only=True)
    columns = [read_column(frame[label]) for label in names]
    return frame if has_codes or any(column is not None and inexact(column) for column in columns) else None


def columns_of(frame: "nw.DataFrame[Any]", name: str) -> Columns:
    """How the columns of a frame of training data become numbers; ValueError for a column that has none."""
    columns = [_column(frame[label]) for label in frame.columns]
    if None in columns:
        labels = [label for label, column in zip(frame.columns, columns, strict=True) if column is None]
        unreadable = [(label, frame[label].to_numpy()) for label in labels]
        raise ValueError(describe(unreadable, name, is_input=True, is_new=False))
    return tuple(column for column in columns if column is not None)


def encoded(frame: "nw.DataFrame[Any]", columns: Columns, name: str, may_be_new: Collection[str] = ()) -> np.ndarray:
    """A frame as a float64 array (n, d), its columns selected by name; missing entries are NaN.

    New levels of the columns ``may_be_new`` get codes of their own.
    Raises ValueError for missing columns, and for unknown levels and entries of another kind.
    """
    missing = [column.name for column in columns if column.name not in frame.columns]
    if missing:
        raise ValueError(
            f"{name} must have the columns of the training X, {[column.name for column in columns]}; missing "
            f"{missing}, got {list(frame.columns)}."
        )
    arrays = [_codes(frame[column.name], column, name, may_be_new) for column in columns]
    return np.column_stack(arrays) if arrays else np.empty((len(frame), 0))


def with_new_levels(columns: Columns, frame: "nw.DataFrame[Any]", may_be_new: Collection[str]) -> Columns:
    """The columns, with new levels of a frame after the known ones, as ``encoded`` codes them."""
    extended = []
    for column in columns:
        if column.name in may_be_new and column.name in frame.columns and column.kind in _CODED:
            column = column._replace(levels=(*column.levels, *_new_levels(frame[column.name], column)))
        extended.append(column)
    return tuple(extended)


def _new_levels(series: "nw.Series[Any]", column: Column) -> list[Any]:
    entries = {as_python(entry) for entry in series.to_list()}
    return sorted({entry for entry in entries if not is_missing(entry)} - set(column.levels), key=repr)


def _column(series: "nw.Series[Any]") -> Column | None:
    """How a column becomes numbers; None for one without numbers, and for text that holds numbers or dates."""
    from pgmodels.data.series import days_in, inexact, kind_of_column, read_column

    column, label = read_column(series), series.name
    if column is None:
        return None
    kind = kind_of_column(column)
    if hasattr(column, "cat"):
        return Column(label, kind, tuple(map(as_python, column.cat.categories)))
    if kind == LEVEL:
        is_text = kind_of_entries(column.to_numpy())[0] == "text"
        return Column(label, LEVEL, tuple(sorted(set(column.dropna())))) if is_text else None
    if kind in (DATE, ZONED):
        days = days_in(column)
        first = np.floor(np.nanmin(days)) if np.isfinite(days).any() else 0.0
        return Column(label, kind, origin=str(np.datetime64(int(first), "D")))
    if inexact(column):
        return Column(label, IDENTIFIER, tuple(sorted(set(column.dropna().tolist()))))
    return Column(label, DURATION) if kind == DURATION else Column(label)


def _codes(series: "nw.Series[Any]", column: Column, name: str, may_be_new: Collection[str]) -> np.ndarray:
    """The numbers (n,) of a series."""
    from pgmodels.data.series import are_exact, days_in, floats_in, kind_of_column, read_column

    values = read_column(series)
    kind = None if values is None else kind_of_column(values)
    is_whole = values is not None and (values.dtype.kind in "iu" or (values.dtype == float and are_exact(values)))
    if column.kind in (LEVEL, ORDERED) or (column.kind == IDENTIFIER and is_whole):
        return _level_codes(series, column, name, column.name in may_be_new)
    if values is not None and kind == column.kind and kind in (DATE, ZONED, DURATION):
        return days_in(values, column.origin or "1970-01-01")
    if values is None or kind not in (NUMBER, BOOLEAN) or column.kind != NUMBER:
        raise ValueError(
            f"{name} must have {PLURALS[column.kind]} in column {column.name!r}, as the training X; got {series.dtype}."
        )
    return floats_in(values, f"{name}, column {column.name!r},")


def _level_codes(series: "nw.Series[Any]", column: Column, name: str, may_be_new: bool) -> np.ndarray:
    entries = [as_python(entry) for entry in series.to_list()]
    unknown = _new_levels(series, column)
    if unknown and not may_be_new:
        row = next(row for row, entry in enumerate(entries) if entry in unknown)
        raise ValueError(
            f"{name} has {entries[row]!r} in row {row}, column {column.name!r}, which is not a level of the training X "
            f"({listed(column.levels)}). Only a column that White reads alone takes new levels."
        )
    check_types_of_levels(unknown, column.levels, f"{name}, column {column.name!r},")
    codes = {level: float(code) for code, level in enumerate((*column.levels, *unknown))}
    return np.array([np.nan if is_missing(entry) else codes[entry] for entry in entries])


def check_types_of_levels(unknown: Iterable[Any], levels: Iterable[Any], place: str) -> None:
    """Raise ValueError if an entry that is no level is the same text as one, as 1 and "1" are: ids of another type."""
    texts = {_text_of(level): level for level in levels}
    for entry in unknown:
        if _text_of(entry) in texts:
            level = texts[_text_of(entry)]
            raise ValueError(
                f"{place} has {entry!r} of type {type(entry).__name__}, and the training data have {level!r} of type "
                f"{type(level).__name__}: convert the column to the type that it has there, so that levels are not new."
            )


def _text_of(level: Any) -> str:
    return str(int(level)) if isinstance(level, float) and level.is_integer() else str(level)


def listed(levels: Sequence[Any]) -> str:
    """The first levels, for messages."""
    shown = ", ".join(map(repr, levels[:10]))
    return shown if len(levels) <= 10 else f"{shown} and {len(levels) - 10} more"
