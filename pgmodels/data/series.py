"""Columns of data frames as series of pandas of a few types, whatever their library and type."""

from collections.abc import Callable, Sequence
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd

from pgmodels.data.text_and_dates import (
    BOOLEAN,
    DATE,
    DURATION,
    EXACT,
    LEVEL,
    NUMBER,
    ORDERED,
    ZONED,
    as_python,
    is_missing,
    kind_of,
    numbers_in,
)


def read_column(series: nw.Series[Any]) -> pd.Series | None:
    """A column as a series of pandas of one of a few types, whatever its library and type; None if it has none.

    Numbers are float64; whole numbers int64 or uint64, and booleans bool, or nullable with missing entries; text is
    of dtype object, with None where it is missing; categories keep their levels; dates and times are datetime64, with
    a zone if they have one; durations are timedelta64.
    """
    dtype, native = series.dtype, series.to_native()
    # Arrow's dictionaries in pandas are columns of their values.
    if isinstance(dtype, nw.Enum | nw.Categorical) and not isinstance(getattr(native, "dtype", None), pd.ArrowDtype):
        entries = [None if is_missing(entry) else as_python(entry) for entry in series.to_list()]
        categories = dtype.categories if isinstance(dtype, nw.Enum) else series.cat.get_categories().to_list()
        return pd.Series(pd.Categorical(entries, [*map(as_python, categories)], ordered=isinstance(dtype, nw.Enum)))
    if dtype.is_integer() and dtype not in (nw.Int128, nw.UInt128):
        values = series.fill_null(0).to_numpy()
        return _nullable(values.astype(np.uint64 if dtype == nw.UInt64 else np.int64), series.is_null().to_numpy())
    if dtype == nw.Boolean:
        return _nullable(series.fill_null(False).to_numpy().astype(bool), series.is_null().to_numpy())
    if dtype.is_float():
        return pd.Series(numbers_in(series.to_numpy()))
    if isinstance(native, pd.Series) and native.dtype.kind in "mM" and not isinstance(native.dtype, pd.ArrowDtype):
        return pd.Series(native.array)
    if dtype == nw.Date:
        series = series.cast(nw.Datetime("us"))
        dtype = series.dtype
    if isinstance(dtype, nw.Datetime):
        times = _of_unit(series, dtype.time_unit, "datetime64", lambda unit: series.dt.timestamp(unit))
        return times if dtype.time_zone is None else times.dt.tz_localize("UTC").dt.tz_convert(dtype.time_zone)
    if isinstance(dtype, nw.Duration):
        totals = {"ns": "total_nanoseconds", "ms": "total_milliseconds"}
        return _of_unit(
            series, dtype.time_unit, "timedelta64",
            lambda unit: getattr(series.dt, totals.get(unit, "total_microseconds"))(),
        )  # fmt: skip
    return _of_entries(series.to_list())


def _nullable(values: np.ndarray, missing: np.ndarray) -> pd.Series:
    if not missing.any():
        return pd.Series(values)
    array = pd.arrays.BooleanArray if values.dtype == bool else pd.arrays.IntegerArray
    return pd.Series(array(values, missing))


def _of_unit(series: nw.Series[Any], unit: str, kind: str, counts: Callable[[Any], nw.Series[Any]]) -> pd.Series:
    """Times or durations of whole numbers of a unit."""
    unit = unit if unit in ("ns", "us", "ms") else "us"
    values = counts(unit).fill_null(0).to_numpy().astype(np.int64).astype(f"{kind}[{unit}]")
    values[series.is_null().to_numpy()] = "NaT"
    return pd.Series(values)


def _of_entries(entries: Sequence[Any]) -> pd.Series | None:
    """A column of Python objects of one kind; None if they are of several, or of no kind."""
    missing = np.array([is_missing(entry) for entry in entries], dtype=bool)
    entries = [None if is_empty else as_python(entry) for entry, is_empty in zip(entries, missing, strict=True)]
    types = {type(entry) for entry in entries} - {type(None)}
    kinds = {kind_of(one) for one in types}
    if kinds == {"number"} and types <= {bool, int}:
        integers = [0 if entry is None else entry for entry in entries]
        if types == {bool}:
            return _nullable(np.array(integers, dtype=bool), missing)
        if min(integers) >= -(2**63) and max(integers) < 2**64:
            return _nullable(np.array(integers, dtype=np.int64 if max(integers) < 2**63 else np.uint64), missing)
        return None
    if kinds <= {"number"}:
        values = numbers_in(np.array(entries, dtype=object))
        return None if values is None else pd.Series(values)
    if kinds == {"text"} and types <= {str}:
        return pd.Series(entries, dtype=object)
    if kinds == {"date"}:
        starts = [getattr(entry, "start_time", entry) for entry in entries]
        zoned = {getattr(entry, "tzinfo", None) is not None for entry in starts if entry is not None}
        return pd.Series(pd.to_datetime(starts, utc=True if zoned == {True} else None)) if len(zoned) == 1 else None
    return pd.Series(pd.to_timedelta(entries)) if kinds == {"duration"} else None


def unreadable(entries: Sequence[Any]) -> str:
    """What is wrong with entries of which ``read_column`` makes no column, and the remedy."""
    kinds: dict[str, int] = {}
    for row, entry in enumerate(entries):
        if not is_missing(entry):
            kind = kind_of(type(entry))
            is_zoned = kind == "date" and getattr(entry, "tzinfo", None) is not None
            kinds.setdefault(ZONED if is_zoned else kind, row)
    (kind, row), *others = kinds.items()
    first = f"{entries[row]!r} of type {type(entries[row]).__name__} in row {row}"
    if others:
        return f"has {first} and {entries[others[0][1]]!r} in row {others[0][1]}: give entries of one kind."
    if kind == "number":
        return "has whole numbers beyond 64 bits: convert them to text."
    remedy = "hours, as numbers" if kind == "time" else "numbers, booleans, text, categories, dates or durations"
    return f"has {first}: give {remedy}."


def kind_of_column(column: pd.Series) -> str:
    """The kind of a column that ``read_column`` returned."""
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return ORDERED if dtype.ordered else LEVEL
    if isinstance(dtype, pd.DatetimeTZDtype):
        return ZONED
    return {"O": LEVEL, "M": DATE, "m": DURATION, "b": BOOLEAN}.get(dtype.kind, NUMBER)


def days_in(column: pd.Series, origin: str = "1970-01-01") -> np.ndarray:
    """Durations in days, or days from an origin to times, in UTC if they have a zone; NaN where there are none."""
    if kind_of_column(column) == DURATION:
        return (column / pd.Timedelta(days=1)).to_numpy(dtype=np.float64)
    times = column.dt.tz_convert(None) if kind_of_column(column) == ZONED else column
    # Differences of whole numbers are exact: those of days since 1970 would be off by 0.3 microseconds.
    return ((times - pd.Timestamp(origin)) / pd.Timedelta(days=1)).to_numpy(dtype=np.float64)


def first_time(column: pd.Series) -> str:
    """The first time of a column as an origin of ``days_in``."""
    first = column.min()
    return str(first if first.tz is None else first.tz_convert(None))


def floats_in(column: pd.Series, place: str) -> np.ndarray:
    """A column of numbers or booleans as float64, NaN where there is none; ValueError for what float64 does not hold.

    ``place`` names the column, for messages.
    """
    if inexact(column):
        raise ValueError(
            f"{place} has whole numbers beyond 2^53, which float64 does not hold exactly. Subtract a constant from "
            "them, or, if they are identifiers, use them where levels are only compared."
        )
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def inexact(column: pd.Series) -> bool:
    """Whether a column has whole numbers that float64 does not hold."""
    if column.dtype.kind not in "iu":
        return False
    integers = column.dropna().to_numpy(dtype=np.uint64 if column.dtype.kind == "u" else np.int64)
    beyond = integers[np.abs(integers.astype(np.float64)) > EXACT]
    return any(int(float(number)) != number for number in beyond.tolist())


def are_exact(values: pd.Series) -> bool:
    """Whether no number is beyond 2^53, where float64 merges neighbours."""
    return bool((values.abs().fillna(0.0) <= EXACT).all())
