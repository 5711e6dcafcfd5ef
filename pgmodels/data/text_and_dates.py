"""Text, dates and times in data: recognising them, and the errors where numbers are needed."""

import numbers
import re
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time, timedelta
from typing import Any

import numpy as np

NUMBER, BOOLEAN, LEVEL, ORDERED, DURATION = "number", "boolean", "level", "ordered", "duration"
IDENTIFIER = "identifier"
DATE, ZONED = "date", "date with a zone"
# Kinds of columns, for messages.
PLURALS = {
    NUMBER: "numbers", BOOLEAN: "booleans", LEVEL: "text or categories", ORDERED: "ordered categories",
    IDENTIFIER: "whole numbers", DURATION: "durations", DATE: "dates or times without a time zone",
    ZONED: "times with a time zone",
}  # fmt: skip
# Whole numbers up to this one are exact in float64.
EXACT = 2.0**53
_ISO = re.compile(r"\d{4}-\d{2}(-\d{2}([T ]\d{2}(:?\d{2}(:?\d{2}([.,]\d+)?)?)?(Z|[+-]\d{2}(:?\d{2})?)?)?)?")
# Types of missing entries of Python and pandas; missing numbers are NaN.
_MISSING = ("NoneType", "NAType", "NaTType")
_TEXT = "Text is never converted to numbers implicitly."
_REMEDIES = {
    "mixed": "Other entries are of another kind: replace it by a number, or drop the row.",
    "complex": "Use numpy.real, or columns of real and imaginary parts.",
    "text": f"{_TEXT} Give numbers, with the same codes in training data and new data.",
    "numeric text": f"{_TEXT} Convert it by pandas.to_numeric if it means numbers; if it names classes, encode them.",
    "date": "Give days from a fixed day, the same for training data and new data.",
    "duration": "Give days, as numbers.",
    "time": "Give hours from midnight, as numbers.",
}
_REMEDIES_OF_INPUTS = {
    "text": f"{_TEXT} Give a pandas.DataFrame: its columns of text and categories become codes, the same for new data.",
    "numeric text": f"{_TEXT} Convert it by pandas.to_numeric if it means numbers; if it names classes, give a "
    "pandas.DataFrame in which it is a pandas.Categorical.",
    "date": "Give a pandas.DataFrame: its columns of dates become days from the first one, in new data too. "
    "pandas.to_datetime converts text, and dates of several zones to UTC.",
    "duration": "Give a pandas.DataFrame: its columns of durations become days, in new data too.",
}


def kind_of(entry: type) -> str:
    """The kind of entries of a type: number, complex, text, date, duration, time, missing or object."""
    if entry.__name__ in _MISSING:
        return "missing"
    if entry.__name__ == "Period":
        return "date"
    # The order matters: NumPy's duration type is a subclass of its integer type.
    kinds = {
        "text": (str, bytes),
        "date": (date, np.datetime64),
        "duration": (timedelta, np.timedelta64),
        "time": (time,),
        "complex": (complex, np.complexfloating),
        "number": (numbers.Number, np.number, np.bool_),
    }
    return next((kind for kind, types in kinds.items() if issubclass(entry, types)), "object")


def is_missing(entry: Any) -> bool:
    """Whether an entry is None, NaN or NaT, or missing for pandas."""
    return entry is None or type(entry).__name__ in ("NAType", "NaTType") or entry != entry


def as_python(entry: Any) -> Any:
    """An entry as a Python object, not of a NumPy type other than its times, which may be finer than Python's."""
    return entry.item() if isinstance(entry, np.generic) and entry.dtype.kind not in "mM" else entry


def numbers_in(array: np.ndarray) -> np.ndarray | None:
    """An array as float64; None if an entry is not a number."""
    if array.dtype.kind in "biuf":
        return array.astype(np.float64, copy=False)
    if array.dtype.kind != "O":
        return None
    entries = array.ravel()
    kinds = {kind_of(entry) for entry in set(map(type, entries))}
    if not kinds <= {"number", "missing", "object"}:
        return None
    if "missing" in kinds:
        entries = np.array([np.nan if kind_of(type(entry)) == "missing" else entry for entry in entries], dtype=object)
    try:
        return entries.astype(np.float64).reshape(array.shape)
    except (TypeError, ValueError, OverflowError):
        return None


def is_polars_frame(value: Any) -> bool:
    """Whether a value is a polars frame; converted as one array, its dates would become numbers."""
    return hasattr(value, "with_columns") and hasattr(value, "__array__")


def as_array_code(value: Any, name: str) -> str:
    """Code that converts a value to an array: its name if it is one."""
    if isinstance(value, np.ndarray):
        return name
    return f"{name}.to_numpy()" if hasattr(value, "to_numpy") else f"numpy.asarray({name})"


def describe(columns: Iterable[tuple[Any, np.ndarray]], name: str, *, is_input: bool, is_new: bool) -> str:
    """An error message: the first entry of columns, with their labels, that is not a number, and a remedy.

    ``is_input`` is of inputs, which data frames convert; ``is_new`` of new inputs of a model of an array of numbers.
    """
    faults = []
    for label, entries in columns:
        kind, row = kind_of_entries(entries)
        if kind not in ("number", "missing"):
            place = f" in row {row}" * bool(entries.ndim) + ("" if label is None else f", column {label!r}")
            faults.append((kind, np.ravel(entries)[row], place))
    if not faults:
        return f"{name} must be numeric; got numbers beyond float64, or more than two dimensions. Give numbers."
    # What no conversion makes numbers comes first.
    kind, first, place = next((fault for fault in faults if fault[0] in ("mixed", "object", "complex")), faults[0])
    lead = f"{name} must be numeric; got {as_python(first)!r} of type {type(as_python(first)).__name__}"
    if kind in ("date", "duration", "time") or kind_of(type(first)) in ("date", "duration", "time"):
        lead = f"{name} holds dates or times, and their unit is ambiguous; got {str(first)!r}"
    remedy = _REMEDIES.get(kind, "Give numbers.")
    if is_input and kind in _REMEDIES_OF_INPUTS:
        remedy = _REMEDIES_OF_INPUTS[kind]
        if is_new:
            remedy = "The training X was an array of numbers: give numbers, or fit the model to a pandas.DataFrame."
    return f"{lead}{place}. {remedy}"


def labelled_columns(value: Any) -> Iterator[tuple[Any, np.ndarray]]:
    """Labels and entries of the columns of a value; the label is None for one-dimensional values and scalars."""
    if hasattr(value, "iloc") or is_polars_frame(value):
        labels = list(getattr(value, "columns", [])) if np.ndim(value) == 2 else []
        if labels and len(set(labels)) == len(labels):
            yield from ((label, np.asarray(value[label])) for label in labels)
            return
    array = np.asarray(value)
    if array.dtype.kind in "US":
        # NumPy converts numbers mixed with text to text.
        array = np.asarray(value, dtype=object)
    if array.ndim == 2:
        yield from enumerate(array.T)
    elif array.ndim < 2:
        yield None, array


def kind_of_entries(entries: np.ndarray) -> tuple[str, int]:
    """The common kind of entries (n,), ignoring missing ones, and the first entry that is not a number."""
    entries = np.atleast_1d(entries)
    if entries.dtype.kind in "biuf":
        return "number", 0
    kinds = np.array([_kind_of_entry(entry) for entry in entries], dtype=object)
    present = set(kinds) - {"missing"}
    first = int(np.argmax(~np.isin(kinds, ["number", "missing"])))
    if "text" in present:
        text = [entry for entry, kind in zip(entries, kinds, strict=True) if kind == "text"]
        if all(map(_is_date, text)):
            present = present - {"text"} | {"date"}
        elif present == {"text"} and all(map(_is_number, text)):
            return "numeric text", first
    if "complex" in present:
        return "complex", first
    if len(present) > 1:
        return "mixed", first
    return (present.pop() if present else "missing"), first


def _kind_of_entry(entry: Any) -> str:
    kind = kind_of(type(entry))
    return "missing" if kind == "number" and entry != entry else kind


def _is_date(text: str | bytes) -> bool:
    """Whether text is an ISO 8601 date, possibly in the compact form."""
    if isinstance(text, bytes):
        return False
    if _ISO.fullmatch(text):
        return True
    try:
        return len(text) == 8 and text.isdigit() and bool(datetime.strptime(text, "%Y%m%d"))
    except ValueError:
        return False


def _is_number(text: str | bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
