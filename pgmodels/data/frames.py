"""Columns of data frames as numbers: text and categories by codes, dates by days, in the same way for new data."""

from collections.abc import Collection, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pgmodels.data.text_and_dates import describe, is_polars_frame, kind_of_entries, numbers_in

if TYPE_CHECKING:
    import narwhals.stable.v2 as nw

_DAY = 86_400_000_000
NUMBER, LEVEL, ORDERED, DATE, DURATION = "number", "level", "ordered", "date", "duration"


class Column(NamedTuple):
    """A column of a data frame, and how its entries become numbers.

    ``kind`` is "number", "level" for text and categories without an order, whose codes are their places in ``levels``,
    "ordered" for ordered categories, "date" for days since ``origin``, or "duration" for days.
    """

    name: str
    kind: str = NUMBER
    levels: tuple[Any, ...] = ()
    origin: str = ""

    def __str__(self) -> str:
        match self.kind:
            case "level" | "ordered":
                return f"{self.name}: {', '.join(f'{code} = {level!r}' for code, level in enumerate(self.levels))}"
            case "date":
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


def columns_of(frame: "nw.DataFrame[Any]", name: str) -> Columns:
    """How the columns of a frame of training data become numbers; ValueError for a column that has none."""
    columns = [_column(frame[label]) for label in frame.columns]
    if None in columns:
        native = frame.to_native()
        readable = hasattr(native, "iloc") or is_polars_frame(native)
        raise ValueError(describe(native if readable else frame.to_pandas(), name, as_column=True, is_new=False))
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
        if column.name in may_be_new and column.name in frame.columns and column.kind in (LEVEL, ORDERED):
            column = column._replace(levels=(*column.levels, *_new_levels(frame[column.name], column)))
        extended.append(column)
    return tuple(extended)


def _new_levels(series: "nw.Series[Any]", column: Column) -> list[Any]:
    entries = {as_python(entry) for entry in series.to_list()}
    return sorted({entry for entry in entries if not is_missing(entry)} - set(column.levels), key=repr)


def _column(series: "nw.Series[Any]") -> Column | None:
    """How a column becomes numbers; None for one without numbers, and for text that holds numbers or dates."""
    import narwhals.stable.v2 as nw

    label, dtype = series.name, series.dtype
    if isinstance(dtype, nw.Enum):
        return Column(label, ORDERED, tuple(map(as_python, dtype.categories)))
    if isinstance(dtype, nw.Categorical):
        return Column(label, LEVEL, tuple(map(as_python, series.cat.get_categories().to_list())))
    if _has_dates(series):
        days = _days(series)
        first = np.floor(np.nanmin(days)) if np.isfinite(days).any() else 0.0
        return Column(label, DATE, origin=str(np.datetime64(int(first), "D")))
    if isinstance(dtype, nw.Duration):
        return Column(label, DURATION)
    if series.dtype in (nw.String, nw.Object):
        entries = np.array(series.to_list(), dtype=object)
        kind, _ = kind_of_entries(entries)
        if kind == "text" and not any(isinstance(entry, bytes) for entry in entries):
            return Column(label, LEVEL, tuple(sorted({entry for entry in entries if isinstance(entry, str)})))
        if kind not in ("number", "missing"):
            return None
    return None if numbers_in(series.to_numpy()) is None else Column(label)


def _codes(series: "nw.Series[Any]", column: Column, name: str, may_be_new: Collection[str]) -> np.ndarray:
    """The numbers (n,) of a series."""
    import narwhals.stable.v2 as nw

    if column.kind in (LEVEL, ORDERED):
        return _level_codes(series, column, name, column.name in may_be_new)
    if column.kind == DATE and _has_dates(series):
        return _days(series, column.origin)
    if column.kind == DURATION and isinstance(series.dtype, nw.Duration):
        return _as_float(series.dt.total_microseconds()) / _DAY
    other = isinstance(series.dtype, nw.Duration | nw.Categorical | nw.Enum | nw.String) or _has_dates(series)
    is_number = column.kind == NUMBER and not other
    values = numbers_in(series.to_numpy()) if is_number else None
    if values is None:
        raise ValueError(
            f"{name} must have {column.kind}s in column {column.name!r}, as the training X; got {series.dtype}."
        )
    return values


def _level_codes(series: "nw.Series[Any]", column: Column, name: str, may_be_new: bool) -> np.ndarray:
    entries = [as_python(entry) for entry in series.to_list()]
    unknown = _new_levels(series, column)
    if unknown and not may_be_new:
        row = next(row for row, entry in enumerate(entries) if entry in unknown)
        raise ValueError(
            f"{name} has {entries[row]!r} in row {row}, column {column.name!r}, which is not a level of the training X "
            f"({listed(column.levels)}). Only a column that White reads alone takes new levels."
        )
    codes = {level: float(code) for code, level in enumerate((*column.levels, *unknown))}
    return np.array([np.nan if is_missing(entry) else codes[entry] for entry in entries])


def _has_dates(series: "nw.Series[Any]") -> bool:
    """Whether the entries are dates or datetimes, of the library or of Python."""
    import narwhals.stable.v2 as nw

    if series.dtype == nw.Object:
        entries = [entry for entry in series.to_list() if not is_missing(entry)]
        return bool(entries) and all(isinstance(entry, date) for entry in entries)
    return series.dtype == nw.Date or isinstance(series.dtype, nw.Datetime)


def _days(series: "nw.Series[Any]", origin: str = "1970-01-01") -> np.ndarray:
    """Days since an origin, of dates with a zone in UTC; NaN where there are none."""
    import narwhals.stable.v2 as nw

    if series.dtype == nw.Date:
        series = series.cast(nw.Datetime("us"))
    if series.dtype == nw.Object:
        entries = series.to_list()
        microseconds = np.array([np.nan if is_missing(entry) else _microseconds(entry) for entry in entries])
    else:
        microseconds = _as_float(series.dt.timestamp("us"))
    # Differences of whole numbers are exact: those of days since 1970 would be off by 0.3 microseconds.
    return (microseconds - float(np.datetime64(origin, "us").astype(np.int64))) / _DAY


def _microseconds(entry: date) -> float:
    if isinstance(entry, datetime) and entry.tzinfo is not None:
        entry = entry.astimezone(UTC).replace(tzinfo=None)
    return float(np.datetime64(entry, "us").astype(np.int64))


def _as_float(series: "nw.Series[Any]") -> np.ndarray:
    values = numbers_in(series.to_numpy())
    return np.full(len(series), np.nan) if values is None else values


def is_missing(entry: Any) -> bool:
    """Whether an entry is None, NaN or NaT, or missing for pandas."""
    return entry is None or type(entry).__name__ in ("NAType", "NaTType") or entry != entry


def as_python(entry: Any) -> Any:
    """An entry as a Python object, not of a NumPy type."""
    return entry.item() if isinstance(entry, np.generic) else entry


def listed(levels: Sequence[Any]) -> str:
    """The first levels, for messages."""
    shown = ", ".join(map(repr, levels[:10]))
    return shown if len(levels) <= 10 else f"{shown} and {len(levels) - 10} more"
