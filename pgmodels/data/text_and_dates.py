"""Text, dates and times in data: recognising them, and printing code that converts them to numbers.

The code can be run unchanged, and converts training data and new data in the same way: levels are written out, and days
are counted from a fixed day.
"""

import numbers
import re
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any, NamedTuple

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
# Up to this many levels are written out; more are computed, once, from the training data.
_MAX_LEVELS = 50
_ISO = re.compile(r"\d{4}-\d{2}(-\d{2}([T ]\d{2}(:?\d{2}(:?\d{2}([.,]\d+)?)?)?(Z|[+-]\d{2}(:?\d{2})?)?)?)?")
# Types of missing entries of Python and pandas; missing numbers are NaN.
_MISSING = ("NoneType", "NAType", "NaTType")
_DAYS = '(numpy.asarray({}, dtype="datetime64[us]") - numpy.datetime64("2000-01-01")) / numpy.timedelta64(1, "D")'
# Periods are converted by their start, and times with a zone in UTC.
_DAYS_OF_OBJECTS = (
    '((pandas.to_datetime([getattr(t, "start_time", t) for t in numpy.asarray({}, dtype=object)], utc=True, '
    'format="ISO8601") '
    '- pandas.Timestamp("2000-01-01", tz="UTC")) / pandas.Timedelta(days=1)).to_numpy()'
)
_DURATIONS = 'numpy.asarray({}, dtype="timedelta64[us]") / numpy.timedelta64(1, "D")'
_DURATIONS_OF_OBJECTS = "(pandas.to_timedelta(list({})) / pandas.Timedelta(days=1)).to_numpy()"
_HOURS = "numpy.array([numpy.nan if t is None else t.hour + t.minute / 60 + t.second / 3600 for t in {}])"
_FLOATS = "numpy.array([numpy.nan if pandas.isna(value) else float(value) for value in {}])"


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


def describe(value: Any, name: str, *, as_column: bool, is_new: bool) -> str:
    """An error message: the entries of a value that are not numbers, and code that converts them if there is any.

    ``as_column`` converts one-dimensional values to a column; ``is_new`` refers to the codes of the training data.
    """
    columns = list(_columns(value, name if name.isidentifier() else "values"))
    faults = [column for column in columns if column.kind not in ("number", "missing")]
    if not faults:
        return f"{name} must be numeric; got an array of {np.asarray(value).dtype}. Give numbers."
    without = [column for column in faults if column.kind in ("mixed", "object", "complex")]
    worst = (without or faults)[0]
    place = worst.place if np.ndim(value) or worst.label is not None else ""
    if without:
        remedy = {
            "mixed": "Other entries are of another kind: replace it by a number, or drop the row.",
            "complex": "Use numpy.real, or columns of real and imaginary parts.",
        }.get(worst.kind, "Give numbers.")
        return f"{_lead(worst, name)}{place}. {remedy}"
    code = _code(value, columns, faults, as_column, is_new)
    imports = [module for module in ("numpy", "pandas", "polars") if f"{module}." in "".join(code)]
    lines = [f"import {', '.join(imports)}", *code]
    return f"{_lead(worst, name)}{place}. {_why(worst.kind, is_new)}:\n\n" + "\n".join("    " + line for line in lines)


class _Column(NamedTuple):
    """A column, or a one-dimensional value if ``label`` is None: its code, its entries, and their kind.

    ``row`` is the first entry that is not a number, and ``levels`` are the levels of a categorical.
    """

    label: Any
    code: str
    entries: np.ndarray
    kind: str
    row: int
    levels: list[Any] | None

    @property
    def place(self) -> str:
        """The position, in words, of the first entry that is not a number."""
        return f" in row {self.row}" + ("" if self.label is None else f", column {self.label!r}")

    @property
    def first(self) -> Any:
        """The first entry that is not a number."""
        return self.entries[self.row]

    @property
    def is_plain(self) -> bool:
        """Whether NumPy reads all entries as dates or durations without a zone."""
        if self.entries.dtype.kind in "Mm":
            return True
        return all(isinstance(t, date) and kind_of(type(t)) == "date" and not _has_zone(t) for t in self.entries)


def _has_zone(t: date) -> bool:
    return isinstance(t, datetime) and t.tzinfo is not None


def _columns(value: Any, name: str) -> Iterator[_Column]:
    if hasattr(value, "iloc") or is_polars_frame(value):
        labels = list(getattr(value, "columns", [])) if np.ndim(value) == 2 else []
        if labels and len(set(labels)) == len(labels):
            for label in labels:
                yield _column(label, f"{name}[{label!r}]", value[label])
            return
    array = np.asarray(value)
    if array.dtype.kind in "US":
        # NumPy converts numbers mixed with text to text.
        array = np.asarray(value, dtype=object)
    if array.ndim == 1:
        yield _column(None, name, value, array)
    elif array.ndim == 2:
        for j in range(array.shape[1]):
            yield _column(j, f"{name}[:, {j}]", array[:, j])
    elif array.ndim == 0:
        # A scalar has no code: its intended shape is unknown.
        yield _Column(None, name, array.reshape(1), "object", 0, None)


def _column(label: Any, code: str, value: Any, array: Any = None) -> _Column:
    entries = np.asarray(value) if array is None else array
    kind, row = kind_of_entries(entries)
    return _Column(label, code, entries, kind, row, _levels(value))


def kind_of_entries(entries: np.ndarray) -> tuple[str, int]:
    """The common kind of entries (n,), ignoring missing ones, and the first entry that is not a number."""
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


def _levels(value: Any) -> list[Any] | None:
    """The levels of a categorical in order; None for other values and categoricals without a list of levels."""
    categories: Any = getattr(getattr(value, "dtype", None), "categories", None)
    return list(categories) if hasattr(categories, "__len__") else None


def _lead(column: _Column, name: str) -> str:
    if column.kind in ("date", "duration", "time") or kind_of(type(column.first)) in ("date", "duration", "time"):
        return f"{name} holds dates or times, and their unit is ambiguous; got {str(column.first)!r}"
    first = _bare(column.first)
    return f"{name} must be numeric; got {first!r} of type {type(first).__name__}"


def _why(kind: str, is_new: bool) -> str:
    if kind == "text" and is_new:
        return (
            "Text is never converted to numbers implicitly. Encode it by the codes of the training data; levels "
            "without a code become NaN, which is refused"
        )
    return {
        "text": "Text is never converted to numbers implicitly. Encode training data and new data by the same levels, "
        "in a meaningful order; other levels become NaN, which is refused",
        "numeric text": "Text is never converted to numbers implicitly. Convert it if it means numbers; if it names "
        "classes, encode these",
        "date": "Count days from a fixed day, the same for training data and new data",
        "duration": "Count them in days",
        "time": "Count hours from midnight",
    }[kind]


def _code(
    value: Any, columns: Sequence[_Column], faults: Sequence[_Column], as_column: bool, is_new: bool
) -> list[str]:
    """Lines of code that replace a value by numbers."""
    name = columns[0].code.partition("[")[0]
    codes = {column.label: _codes(column) for column in faults if column.kind == "text"}
    lines = []
    if codes and not is_new:
        written = codes.get(None) or "{" + ", ".join(f"{label!r}: {code}" for label, code in codes.items()) + "}"
        lines.append(f"codes = {written}  # once, for training data and new data alike")
    if columns[0].label is None:
        converted = _expression(columns[0])
        return [*lines, f"{name} = numpy.reshape({converted}, (-1, 1))" if as_column else f"{name} = {converted}"]
    if is_polars_frame(value):
        converted = ", ".join(f"polars.Series({column.label!r}, {_expression(column)})" for column in faults)
        return [*lines, f"{name} = {name}.with_columns({converted})"]
    if hasattr(value, "iloc"):
        lines.append(f"{name} = {name}.copy()")
    elif np.asarray(value).dtype.kind in "Mm":
        return [f"{name} = {(_DAYS if columns[0].kind == 'date' else _DURATIONS).format(name)}"]
    else:
        lines.append(f"{name} = numpy.array({name}, dtype=object)")
    return [*lines, *(f"{column.code} = {_expression(column)}" for column in faults)]


def _expression(column: _Column) -> str:
    """Code that converts a column to numbers (n,)."""
    if column.kind == "text":
        codes = "codes" if column.label is None else f"codes[{column.label!r}]"
        return f"numpy.array([{codes}.get(value, numpy.nan) for value in {column.code}])"
    template = {
        "date": _DAYS if column.is_plain else _DAYS_OF_OBJECTS,
        "duration": _DURATIONS if column.entries.dtype.kind == "m" else _DURATIONS_OF_OBJECTS,
        "time": _HOURS,
        "numeric text": _FLOATS,
    }[column.kind]
    return template.format(column.code)


def _codes(column: _Column) -> str:
    """Code of a dictionary from the levels of a text column, in order, to numbers."""
    if column.levels is not None:
        return level_codes(column.levels)
    texts = {entry for entry in column.entries if _kind_of_entry(entry) == "text"}
    if len(texts) > _MAX_LEVELS:
        levels = f"sorted({{value for value in {column.code} if isinstance(value, (str, bytes))}})"
        return f"{{level: float(code) for code, level in enumerate({levels})}}"
    return level_codes(sorted(texts, key=lambda level: (isinstance(level, bytes), level)))


def level_codes(levels: Sequence[Any]) -> str:
    """Code of a dictionary from levels to the numbers 0, 1, ..."""
    return repr({_bare(level): float(code) for code, level in enumerate(levels)})


def _bare(entry: Any) -> Any:
    """An entry as a Python object, not of a NumPy type."""
    return entry.item() if isinstance(entry, np.generic) else entry
