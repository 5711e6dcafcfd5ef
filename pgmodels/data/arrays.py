"""Inputs and targets: arrays, data frames, labels, missing values, several outputs."""

import numbers
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from pgmodels.runtime.messages import shorten

if TYPE_CHECKING:
    import narwhals.stable.v2 as nw
    import pandas as pd

# Checks of numerical options, before any work.


def check_whole_number(value: object, name: str, least: int) -> None:
    """Raise ValueError if an option is not a whole number >= ``least``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name} must be a whole number >= {least}; got {shorten(value)}.")


def check_between(value: object, name: str, low: float, high: float) -> None:
    """Raise ValueError if an option is not a number strictly between ``low`` and ``high``."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not low < float(value) < high:
        limits = f"between {low:g} and {high:g}" if np.isfinite(high) else f"> {low:g}"
        raise ValueError(f"{name} must be a finite number {limits}; got {shorten(value)}.")


MissingChoice = Literal["raise", "drop", "predict"]


class Missing(NamedTuple):
    """Rows of the data without an observation, which ``missing="predict"`` keeps.

    ``rows`` (m,) are their row numbers and ``X`` (m, d) their inputs. ``covariates`` are the columns of y after the
    first, or None. They are arguments of ``predict`` and ``predict_latent``.
    """

    rows: Int[np.ndarray, " m"]
    X: Float[np.ndarray, "m d"]
    covariates: Float[np.ndarray, "m _"] | None = None


def check_missing(missing: object) -> None:
    """Raise ValueError if the choice is unknown."""
    choices = get_args(MissingChoice)
    if not isinstance(missing, str) or missing not in choices:
        raise ValueError(f"missing must be one of {', '.join(map(repr, choices))}; got {missing!r}.")


def without_value(y: np.ndarray, num_covariates: int, num_rows: int) -> np.ndarray:
    """Return whether an observation is missing, (n,): NaN in y before its covariates. False if y is not (n, k)."""
    if y.ndim not in (1, 2) or len(y) != num_rows:
        return np.zeros(num_rows, dtype=bool)
    columns = y[:, None] if y.ndim == 1 else y
    return np.isnan(columns[:, : max(1, columns.shape[1] - num_covariates)]).any(axis=1)


def check_covariates_of(rows: np.ndarray, y: np.ndarray, num_covariates: int) -> None:
    """Raise ValueError, naming row and column, if covariates of rows to be predicted are not finite."""
    first = y.shape[1] - num_covariates
    bad = np.argwhere(~np.isfinite(y[rows, first:]))
    if bad.size:
        row, column = rows[bad[0][0]], first + bad[0][1]
        raise ValueError(
            f"y[{column}] is a covariate and must be finite in rows that are to be predicted; got {y[row, column]} in "
            f"row {row}, column {column} of y. Impute it, or omit rows without y with missing='drop'."
        )


def name_rows(rows: np.ndarray) -> str:
    """Return row numbers in words, ten at most."""
    shown = ", ".join(map(str, rows[:10])) + (f" and {len(rows) - 10} more" if len(rows) > 10 else "")
    return f"row{'s' * (len(rows) > 1)} {shown}"


# Text, dates and times in data: how they are recognised, and the errors if numbers are needed.

NUMBER, BOOLEAN, LEVEL, ORDERED, DURATION = "number", "boolean", "level", "ordered", "duration"
IDENTIFIER = "identifier"
DATE, ZONED = "date", "date with a zone"
# Kinds of columns, for messages.
PLURALS = {
    NUMBER: "numbers", BOOLEAN: "booleans", LEVEL: "text or categories", ORDERED: "ordered categories",
    IDENTIFIER: "whole numbers", DURATION: "durations", DATE: "dates or times without a time zone",
    ZONED: "times with a time zone",
}  # fmt: skip
# Whole numbers up to this limit are exact in float64.
EXACT = 2.0**53
_ISO = re.compile(r"\d{4}-\d{2}(-\d{2}([T ]\d{2}(:?\d{2}(:?\d{2}([.,]\d+)?)?)?(Z|[+-]\d{2}(:?\d{2})?)?)?)?")
# Types of missing entries in Python and pandas; a missing number is NaN.
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
    """Return the kind of entries of a type: number, complex, text, date, duration, time, missing or object."""
    if entry.__name__ in _MISSING:
        return "missing"
    if entry.__name__ == "Period":
        return "date"
    # The order matters, since NumPy's duration type is a subclass of its integer type.
    kinds = {
        "text": (str, bytes),
        "date": (date, np.datetime64),
        "duration": (timedelta, np.timedelta64),
        "time": (time,),
        "complex": (complex, np.complexfloating),
        "number": (numbers.Number, np.number, np.bool_),
    }
    return next((kind for kind, types in kinds.items() if issubclass(entry, types)), "object")


def is_missing(entry: object) -> bool:
    """Return whether an entry is None, NaN or NaT, or missing in pandas."""
    return entry is None or type(entry).__name__ in ("NAType", "NaTType") or entry != entry


def as_python(entry: object) -> Any:
    """Return an entry as a Python object. NumPy times are unchanged, since they may be finer than Python's."""
    return entry.item() if isinstance(entry, np.generic) and entry.dtype.kind not in "mM" else entry


def numbers_in(array: np.ndarray) -> np.ndarray | None:
    """Return an array as float64, or None if an entry is not a number."""
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


def is_polars_frame(value: object) -> bool:
    """Return whether a value is a polars frame. If it became one array, its dates would become numbers."""
    return hasattr(value, "with_columns") and hasattr(value, "__array__")


def as_array_code(value: object, name: str) -> str:
    """Return code that converts a value to an array: its name if it is an array."""
    if isinstance(value, np.ndarray):
        return name
    return f"{name}.to_numpy()" if hasattr(value, "to_numpy") else f"numpy.asarray({name})"


def describe(columns: Iterable[tuple[Any, np.ndarray]], name: str, *, is_input: bool, is_new: bool) -> str:
    """Return an error message: the first entry of labelled columns that is not a number, and a remedy.

    ``is_input`` means inputs, which data frames convert; ``is_new`` means new inputs of a model of a numeric array.
    """
    faults = []
    for label, entries in columns:
        kind, row = kind_of_entries(entries)
        if kind not in ("number", "missing"):
            place = f" in row {row}" * bool(entries.ndim) + ("" if label is None else f", column {label!r}")
            faults.append((kind, np.ravel(entries)[row], place))
    if not faults:
        return f"{name} must be numeric; got numbers beyond float64, or more than two dimensions. Give numbers."
    # Entries that no conversion can turn into numbers come first.
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
    """Return labels and entries of the columns of a value; the label is None for scalars and one dimension."""
    if hasattr(value, "iloc") or is_polars_frame(value):
        labels = list(getattr(value, "columns", [])) if np.ndim(value) == 2 else []
        if labels and len(set(labels)) == len(labels):
            yield from ((label, np.asarray(value[label])) for label in labels)
            return
    array = np.asarray(value)
    if array.dtype.kind in "US":
        # NumPy converts a mixture of numbers and text to text.
        array = np.asarray(value, dtype=object)
    if array.ndim == 2:
        yield from enumerate(array.T)
    elif array.ndim < 2:
        yield None, array


def kind_of_entries(entries: np.ndarray) -> tuple[str, int]:
    """Return the common kind of entries (n,), ignoring missing ones, and the first entry that is not a number."""
    entries = np.atleast_1d(entries)
    if entries.dtype.kind in "biuf":
        return "number", 0
    types = [(entry, kind_of(type(entry))) for entry in entries]
    kinds = np.array(["missing" if kind == "number" and x != x else kind for x, kind in types], dtype=object)
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


def _is_date(text: str | bytes) -> bool:
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


# Columns of data frames as numbers, the same for new data: codes for text and categories, days for dates.

# Kinds whose entries are converted to the numbers of their levels.
_CODED = (LEVEL, ORDERED, IDENTIFIER)


class Column(NamedTuple):
    """A column of a data frame, and how its entries become numbers.

    ``kind`` is one of the following. "number". "level": text and categories without an order, whose codes are their
    places in ``levels``. "ordered": ordered categories. "identifier": whole numbers that float64 cannot hold. "date" or
    "date with a zone": days since ``origin``. "duration": days.
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
    """Return a data frame of any library, or None for other values and for frames with column names other than text."""
    if isinstance(value, np.ndarray):
        return None
    import narwhals.stable.v2 as nw

    if hasattr(value, "iloc") and not all(isinstance(label, str) for label in getattr(value, "columns", ())):
        return None
    frame = nw.from_native(value, eager_only=True, pass_through=True)
    return frame if isinstance(frame, nw.DataFrame) and frame.columns else None


def as_identifiers(value: object, known: Columns | None = None) -> "nw.DataFrame[Any] | None":
    """Return an array (n, d) as a data frame if it, or a ``known`` column, has numbers beyond float64, else None."""
    try:
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    has_codes = any(column.kind == IDENTIFIER for column in known or ())
    if array.ndim != 2 or array.dtype.kind not in ("biufO" if has_codes else "iuO"):
        return None
    numbers, has_other_columns = numbers_in(array), known is not None and len(known) != array.shape[1]
    if numbers is None or has_other_columns or not (has_codes or np.any(np.abs(numbers) > EXACT)):
        return None
    import narwhals.stable.v2 as nw
    import pandas as pd

    names = [str(number) for number in range(array.shape[1])] if known is None else [one.name for one in known]
    frame = nw.from_native(pd.DataFrame(array, columns=names), eager_only=True)
    columns = [read_column(frame[label]) for label in names]
    return frame if has_codes or any(column is not None and inexact(column) for column in columns) else None


def columns_of(frame: "nw.DataFrame[Any]", name: str) -> Columns:
    """Return how the columns of a training frame become numbers. Raise ValueError for a column that cannot."""
    columns = {label: _frame_column(frame[label]) for label in frame.columns}
    unreadable = [(label, frame[label].to_numpy()) for label, column in columns.items() if column is None]
    if unreadable:
        raise ValueError(describe(unreadable, name, is_input=True, is_new=False))
    return tuple(column for column in columns.values() if column is not None)


def encoded(frame: "nw.DataFrame[Any]", columns: Columns, name: str, may_be_new: Collection[str] = ()) -> np.ndarray:
    """Return a frame as a float64 array (n, d), its columns selected by name; missing entries are NaN.

    New levels of the columns ``may_be_new`` get new codes. Raises ValueError for missing columns, unknown levels, and
    entries of another kind.
    """
    missing = [column.name for column in columns if column.name not in frame.columns]
    if missing:
        raise ValueError(
            f"{name} must have the columns of the training X, {[column.name for column in columns]}; missing "
            f"{missing}, got {list(frame.columns)}."
        )
    arrays = [_frame_codes(frame[column.name], column, name, may_be_new) for column in columns]
    return np.column_stack(arrays) if arrays else np.empty((len(frame), 0))


def with_new_levels(columns: Columns, frame: "nw.DataFrame[Any]", may_be_new: Collection[str]) -> Columns:
    """Return the columns with a frame's new levels after the known ones, in the order of ``encoded``."""
    coded = {column.name for column in columns if column.kind in _CODED} & set(may_be_new) & set(frame.columns)
    return tuple(
        column._replace(levels=(*column.levels, *_new_levels(frame[column.name], column)))
        if column.name in coded
        else column
        for column in columns
    )


def _new_levels(series: "nw.Series[Any]", column: Column) -> list[Any]:
    entries = {as_python(entry) for entry in series.to_list()}
    return sorted({entry for entry in entries if not is_missing(entry)} - set(column.levels), key=repr)


def _frame_column(series: "nw.Series[Any]") -> Column | None:
    """Return how a column becomes numbers, or None if it cannot, e.g. text that holds numbers or dates."""
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


def _frame_codes(series: "nw.Series[Any]", column: Column, name: str, may_be_new: Collection[str]) -> np.ndarray:
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
            f"({listed(column.levels)}). New levels are possible only in a column that only White reads."
        )
    check_types_of_levels(unknown, column.levels, f"{name}, column {column.name!r},")
    codes = {level: float(code) for code, level in enumerate((*column.levels, *unknown))}
    return np.array([np.nan if is_missing(entry) else codes[entry] for entry in entries])


def check_types_of_levels(unknown: Iterable[Any], levels: Iterable[Any], place: str) -> None:
    """Raise ValueError if an unknown entry and a level have the same text, e.g. 1 and "1", ids of another type."""
    texts = {_text_of(level): level for level in levels}
    for entry in unknown:
        if _text_of(entry) in texts:
            level = texts[_text_of(entry)]
            raise ValueError(
                f"{place} has {entry!r} of type {type(entry).__name__}, and the training data have {level!r} of type "
                f"{type(level).__name__}: convert the column to the training type, or its levels would all be new."
            )


def _text_of(level: Any) -> str:
    return str(int(level)) if isinstance(level, float) and level.is_integer() else str(level)


def listed(levels: Sequence[Any]) -> str:
    """Return the first levels, for messages."""
    shown = ", ".join(map(repr, levels[:10]))
    return shown if len(levels) <= 10 else f"{shown} and {len(levels) - 10} more"


def as_numbers(value: Any, name: str, *, is_input: bool = False, is_new: bool = False) -> np.ndarray:
    """Return a float64 array of any shape; missing values (None, pandas.NA) are NaN.

    Raises ValueError, naming the argument, unless the value is an array of numbers. Refused are None, sparse and masked
    arrays, dates, complex numbers, text (even of numbers), and rows of different lengths. For text and dates among
    inputs (``is_input``), the remedy is a data frame. New inputs (``is_new``) need a model that was fitted to one.
    """
    if value is None:
        raise ValueError(f"{name} is None: give an array of numbers.")
    if hasattr(value, "tocsr"):
        raise ValueError(f"{name} is a sparse matrix; covariances need a dense one: use {name}.toarray().")
    if isinstance(value, np.ma.MaskedArray):
        masked = np.argwhere(np.ma.getmaskarray(value))
        if masked.size:
            raise ValueError(
                f"{name} is a masked array, with {len(masked)} masked value(s), the first in row {masked[0][0]}. Drop "
                f"these rows, or impute them and use {name}.filled(...)."
            )
        value = value.data
    columns = [value[column] for column in value.columns] if is_polars_frame(value) else [value]
    try:
        arrays = [np.asarray(column) for column in columns]
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name} cannot be read as an array ({error}): give an array of numbers, all rows of one length."
        ) from error
    if any(array.dtype.kind == "c" for array in arrays):
        raise ValueError(
            f"{name} holds complex numbers; use numpy.real({name}), or columns of real and imaginary parts."
        )
    numeric = [array for array in map(numbers_in, arrays) if array is not None]
    if len(numeric) < len(arrays):
        raise ValueError(describe(labelled_columns(value), name, is_input=is_input, is_new=is_new))
    if is_polars_frame(value):
        return np.column_stack(numeric) if numeric else np.empty((len(value), 0))
    return numeric[0]


def read_inputs(
    X: object, name: str, known: Columns | None = None, may_be_new: Collection[str] = (), is_new: bool = False
) -> tuple[np.ndarray, Columns | None]:
    """Return inputs as a float64 array, NaN for missing entries, and the columns of a data frame, else None.

    With ``known`` columns of training data, a frame is converted in the same way, by column name, and columns
    ``may_be_new`` may have new levels. Raises ValueError for values that are not numbers and cannot become numbers.
    """
    frame = as_frame(X)
    if frame is None:
        frame = as_identifiers(X, known)
    if frame is None:
        return as_numbers(X, name, is_input=True, is_new=is_new), None
    columns = columns_of(frame, name) if known is None else known
    coded = [column for column in columns if column.kind != "number"]
    if is_new and known is None and coded:
        if coded[0].kind == IDENTIFIER:
            raise ValueError(
                f"{name} has whole numbers beyond 2^53 in column {coded[0].name!r}, but the training X had none there, "
                "so they have no codes: fit the model to a data frame with this column as a categorical."
            )
        raise ValueError(
            f"{name} has {PLURALS[coded[0].kind]} in column {coded[0].name!r}, and the training X had no column names: "
            "give an array of numbers, or fit the model to a data frame."
        )
    return encoded(frame, columns, name, may_be_new), columns


def as_inputs(X: object, name: str, num_columns: int | None = None, columns: Columns | None = None) -> np.ndarray:
    """Return inputs as a finite float64 array (n, d), d = ``num_columns``. Raise ValueError naming ``columns``."""
    array = as_array_code(X, name)
    X, of_frame = read_inputs(X, name, is_new=num_columns is not None)
    columns = columns or of_frame
    if of_frame is not None and any(column.kind == IDENTIFIER for column in of_frame):
        raise ValueError(
            f"{name} has whole numbers beyond 2^53, which float64 does not hold exactly and which have no codes "
            "here: subtract a constant, or number the identifiers from 0."
        )
    if X.ndim != 2:
        hint = f"{array}.reshape(len({name}), -1)"
        if X.ndim < 2:
            one_row = X.ndim == 0 or (num_columns not in (None, 1) and X.shape == (num_columns,))
            hint = f"numpy.reshape({array}, (1, -1)) for one row" if one_row else f"{array}[:, None]"
        raise ValueError(f"{name} must have shape (n, d), one row per datum; got shape {X.shape}. Use {hint}.")
    if X.shape[0] == 0 or X.shape[1] == 0:
        raise ValueError(f"{name} is empty: got shape {X.shape}, expected at least one row and one column.")
    if num_columns is not None and X.shape[1] != num_columns:
        raise ValueError(f"{name} must have the {num_columns} column(s) of the training X; got shape {X.shape}.")
    check_finite(X, name, columns)
    return X


def check_finite(
    array: np.ndarray, name: str, columns: Columns | None = None, remedy: str = "Drop or impute these rows."
) -> None:
    """Raise ValueError, naming the first entry, if an array has NaN or infinite entries."""
    bad = np.argwhere(~np.isfinite(array))
    if bad.size:
        place = f"row {bad[0][0]}"
        if array.ndim == 2:
            place += f", column {bad[0][1] if columns is None else repr(columns[bad[0][1]].name)}"
        raise ValueError(
            f"{name} must be finite; got {array[tuple(bad[0])]} in {place} ({len(bad)} such values). {remedy}"
        )


def first_column(y: np.ndarray) -> np.ndarray:
    """Return the first column of observations (n,) or (n, columns), which is the predicted column."""
    return y[:, 0] if y.ndim == 2 else y


def in_units_of(scale: ArrayLike, values: ArrayLike, known: float = 0.0) -> np.ndarray:
    """Return ``values / scale``, or ``known`` if both are 0, e.g. for quantities without variance."""
    values, scale = np.broadcast_arrays(np.asarray(values, dtype=np.float64), np.asarray(scale, dtype=np.float64))
    return np.divide(values, scale, out=np.full(values.shape, known), where=(values != 0.0) | (scale != 0.0))


def distinct_rows(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return indices (m,) of the first occurrence of each distinct row of X (n, d), and inverse indices (n,)."""
    # If all rows differ, a weighted sum of each row shows it in a tenth of the time.
    sums = sum((np.sqrt(2.0 + column) * X[:, column] for column in range(X.shape[1])), np.zeros(len(X)))
    if np.all(np.diff(np.sort(sums)) > 0.0):
        return np.arange(len(X)), np.arange(len(X))
    order = np.lexsort(X.T[::-1]) if X.shape[1] else np.arange(len(X))
    ordered = X[order]
    begins = np.concatenate([[True], np.any(ordered[1:] != ordered[:-1], axis=1)])
    # The sort is stable: the first of several equal rows comes first.
    firsts = order[begins]
    ranks = np.argsort(np.argsort(firsts))
    places = np.empty(len(X), np.int64)
    places[order] = ranks[np.cumsum(begins) - 1]
    return np.sort(firsts), places


Labels = tuple[Any, ...]
_BOOLEANS: Labels = (False, True)


def labels_of(y: object, name: str, num_labels: int, rows: np.ndarray | None = None) -> Labels | None:
    """Return the labels of y (n,) in the order of their codes, sorted or by category; None if y holds numbers.

    Text outside ``rows`` is not a label. Raises ValueError if the number of labels is not ``num_labels``.
    """
    entries, categories = _entries(y)
    if entries is None:
        return None
    if categories is None:
        present = entries if rows is None or len(rows) != len(entries) else entries[rows]
        kind, _ = kind_of_entries(present)
        texts = {entry for entry in present if isinstance(entry, str)}
        if kind == "number" and num_labels == 2 and all(is_missing(e) or isinstance(e, bool) for e in present):
            return _BOOLEANS
        if kind != "text" or len(texts) < sum(not is_missing(entry) for entry in set(present)):
            return None
        categories = tuple(sorted(texts))
    elif all(isinstance(level, int | float) and level in range(num_labels) for level in categories):
        return None
    count = len(categories)
    if count != num_labels:
        remedy = f"use one of {count} classes, such as pgm.Softmax({count}), or drop rows."
        if count < num_labels:
            example = [*categories, *(f"another {number}" for number in range(1, num_labels - count + 1))]
            other = "" if count < 2 else f", or use one of {count} classes"
            remedy = f"give a categorical of all labels in their order, with the categories {example!r}{other}."
        raise ValueError(
            f"{name} has {count} label{'s' * (count != 1)}, {listed(categories)}, but the likelihood needs "
            f"{num_labels}: {remedy}"
        )
    return categories


def coded(y: object, labels: Labels, name: str, rows: np.ndarray | None = None) -> np.ndarray:
    """Return the codes (n,) of y by the training labels, or NaN. Raise ValueError for unknown labels in ``rows``."""
    if labels == _BOOLEANS:
        return as_numbers(y, name)
    entries, _ = _entries(y, as_it_is=True)
    if entries is None:
        return as_numbers(y, name)
    codes = {label: float(code) for code, label in enumerate(labels)}
    for row, entry in enumerate(entries):
        if not (is_missing(entry) or entry in codes) and (rows is None or rows[row]):
            raise ValueError(
                f"{name} has {entry!r} in row {row}, which is not a label of the training y ({listed(labels)}): give "
                "labels, not codes, and drop rows with other labels."
            )
    return np.array([codes.get(entry, np.nan) for entry in entries])


def _entries(y: Any, as_it_is: bool = False) -> tuple[np.ndarray | None, Labels | None]:
    """Return the entries (n,) of y and its categories; None for other entries, except with ``as_it_is``."""
    categories: Any = getattr(getattr(y, "dtype", None), "categories", None)
    if not isinstance(y, np.ndarray | list | tuple):
        import narwhals.stable.v2 as nw

        series = nw.from_native(y, series_only=True, pass_through=True)
        if isinstance(series, nw.Series):
            if isinstance(series.dtype, nw.Enum):
                categories = series.dtype.categories
            elif isinstance(series.dtype, nw.Categorical):
                categories = series.cat.get_categories().to_list()
            y = series.to_list()
    if y is None or isinstance(y, np.ma.MaskedArray) or hasattr(y, "tocsr"):
        return None, None
    try:
        array = np.asarray(y)
        array = np.asarray(y, dtype=object) if array.dtype.kind != "O" else array
        is_plain = np.asarray(y).dtype.kind in "iufcmM"
    except (TypeError, ValueError, RuntimeError):
        return None, None
    if array.ndim != 1 or (is_plain and categories is None and not as_it_is):
        return None, None
    entries = np.empty(len(array), dtype=object)
    entries[:] = [as_python(entry) for entry in array]
    return entries, None if categories is None else tuple(as_python(level) for level in categories)


class StackedOutputs(NamedTuple):
    """Long rows, one for each value of y, as made by ``pgmodels.stack_outputs``.

    The last column of ``X`` is the number of the output, or its name, in the column "output", if X is a data frame.
    ``y`` (N,) are the values, None for new inputs. ``rows`` and ``outputs`` (N,) are their original positions among
    ``num_rows`` rows. ``names`` are the names of the outputs.
    """

    X: Any
    y: np.ndarray | None
    rows: np.ndarray
    outputs: np.ndarray
    num_rows: int
    names: tuple[Any, ...]

    def at(self, X_new: ArrayLike) -> "StackedOutputs":
        """Return all outputs at new inputs (m, d); predict at their ``X``."""
        num_rows = len(read_inputs(X_new, "X_new")[0])
        return _stacked(X_new, None, np.ones((num_rows, len(self.names)), dtype=bool), self.names)

    def wide(self, values: ArrayLike) -> np.ndarray:
        """Return values of the long rows (N, ...), e.g. predictive means, as (rows, outputs, ...), NaN in holes."""
        values = np.asarray(values, dtype=np.float64)
        if values.shape[:1] != self.rows.shape:
            raise ValueError(
                f"values must have {len(self.rows)} rows, one for each row of the stacked X; got shape {values.shape}."
            )
        wide = np.full((self.num_rows, len(self.names), *values.shape[1:]), np.nan)
        wide[self.rows, self.outputs] = values
        return wide


def stack_outputs(X: ArrayLike, y: ArrayLike) -> StackedOutputs:
    """Return rows of several outputs, with holes, as rows of one output each, for kernels over inputs and outputs.

    Parameters
    ----------
    X : array_like, shape (n, d)
        Inputs, one row per datum; an array or a data frame.
    y : array_like, shape (n, outputs)
        The outputs, NaN if one was not measured. Column names of a data frame become the names of the outputs.

    Returns
    -------
    StackedOutputs
        ``X`` and ``y`` to fit, ``at`` for new inputs, and ``wide``, which reshapes predictions.

    Raises
    ------
    ValueError
        If y has another shape, or an output has no value.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> rows = pgm.stack_outputs([[0.1], [0.2]], [[1.0, 2.0], [np.nan, 3.0]])
    >>> rows.X
    array([[0.1, 0. ],
           [0.1, 1. ],
           [0.2, 1. ]])
    >>> rows.y
    array([1., 2., 3.])
    """
    (values, columns), num_rows = read_inputs(y, "y"), len(read_inputs(X, "X")[0])
    if values.ndim != 2 or values.shape[0] != num_rows:
        raise ValueError(f"y must have shape ({num_rows}, outputs), a row for each of X; got shape {values.shape}.")
    for column in columns or ():
        if column.kind != NUMBER:
            raise ValueError(
                f"y must have numbers in each column; got {PLURALS[column.kind]} in column {column.name!r}."
            )
    names = tuple(range(values.shape[1])) if columns is None else tuple(column.name for column in columns)
    measured = ~np.isnan(values)
    empty = np.flatnonzero(~measured.any(axis=0))
    if empty.size:
        raise ValueError(f"y has no value in column {names[empty[0]]!r}: leave this output out.")
    return _stacked(X, values[measured], measured, names)


def _stacked(X: object, y: np.ndarray | None, measured: np.ndarray, names: tuple[Any, ...]) -> StackedOutputs:
    rows, outputs = np.nonzero(measured)
    frame = as_frame(X)
    if frame is None:
        inputs: Any = np.column_stack([as_inputs(X, "X")[rows], outputs])
    else:
        import narwhals.stable.v2 as nw

        column = "output"
        if column in frame.columns:
            raise ValueError(f"X has a column {column!r}, the name of the column of outputs: rename it.")
        # The categories have the order of the outputs, so that their codes are the output numbers.
        texts = list(map(str, names))
        kind = nw.Categorical() if frame.implementation.is_pyarrow() else nw.Enum(texts)
        labels = [texts[output] for output in outputs]
        series = nw.new_series(column, labels, kind, backend=frame.implementation)
        inputs = frame[rows.tolist()].with_columns(series).to_native()
    return StackedOutputs(inputs, y, rows, outputs, len(measured), names)


# Columns of data frames as pandas series of a few types, whatever their library and type.


def read_column(series: "nw.Series[Any]") -> "pd.Series | None":
    """Return a column of any library as a pandas series of one of a few types, or None if none applies.

    Numbers become float64, whole numbers int64 or uint64, and booleans bool; the last two are nullable if entries are
    missing. Text has dtype object, and None if it is missing. Categories keep their levels. Dates and times become
    datetime64, with their zone if they have one. Durations become timedelta64.
    """
    import narwhals.stable.v2 as nw
    import pandas as pd

    dtype, native = series.dtype, series.to_native()
    # In pandas, an Arrow dictionary is a column of its values.
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
    if isinstance(dtype, nw.Datetime | nw.Duration):
        unit = dtype.time_unit if dtype.time_unit != "s" else "us"
        totals = {"ns": "total_nanoseconds", "us": "total_microseconds", "ms": "total_milliseconds"}
        if isinstance(dtype, nw.Datetime):
            counts, kind, zone = series.dt.timestamp(unit), "datetime64", dtype.time_zone
        else:
            counts, kind, zone = getattr(series.dt, totals[unit])(), "timedelta64", None
        values = counts.fill_null(0).to_numpy().astype(np.int64).astype(f"{kind}[{unit}]")
        values[series.is_null().to_numpy()] = "NaT"
        times = pd.Series(values)
        return times if zone is None else times.dt.tz_localize("UTC").dt.tz_convert(zone)
    return _of_entries(series.to_list())


def _nullable(values: np.ndarray, missing: np.ndarray) -> "pd.Series":
    import pandas as pd

    if not missing.any():
        return pd.Series(values)
    array = pd.arrays.BooleanArray if values.dtype == bool else pd.arrays.IntegerArray
    return pd.Series(array(values, missing))


def _of_entries(entries: Sequence[Any]) -> "pd.Series | None":
    """Return a column of Python objects of one kind, or None if the kinds differ or there is none."""
    import pandas as pd

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


def kind_of_column(column: "pd.Series") -> str:
    """Return the kind of a column that ``read_column`` returned."""
    import pandas as pd

    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return ORDERED if dtype.ordered else LEVEL
    if isinstance(dtype, pd.DatetimeTZDtype):
        return ZONED
    return {"O": LEVEL, "M": DATE, "m": DURATION, "b": BOOLEAN}.get(dtype.kind, NUMBER)


def days_in(column: "pd.Series", origin: str = "1970-01-01") -> np.ndarray:
    """Return durations in days, or days from an origin to times (zoned times in UTC); NaN if missing."""
    import pandas as pd

    if kind_of_column(column) == DURATION:
        return (column / pd.Timedelta(days=1)).to_numpy(dtype=np.float64)
    times = column.dt.tz_convert(None) if kind_of_column(column) == ZONED else column
    # Differences of whole numbers are exact. Differences of days since 1970 would have an error of 0.3 microseconds.
    return ((times - pd.Timestamp(origin)) / pd.Timedelta(days=1)).to_numpy(dtype=np.float64)


def floats_in(column: "pd.Series", place: str) -> np.ndarray:
    """Return a column of numbers or booleans as float64, NaN if missing. Raise ValueError at ``place`` beyond it."""
    if inexact(column):
        raise ValueError(
            f"{place} has whole numbers beyond 2^53, which float64 does not hold exactly. Subtract a constant from "
            "them, or, if they are identifiers, use them only in comparisons of levels."
        )
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def inexact(column: "pd.Series") -> bool:
    """Return whether a column has whole numbers that float64 does not hold."""
    if column.dtype.kind not in "iu":
        return False
    integers = column.dropna().to_numpy(dtype=np.uint64 if column.dtype.kind == "u" else np.int64)
    beyond = integers[np.abs(integers.astype(np.float64)) > EXACT]
    return any(int(float(number)) != number for number in beyond.tolist())


def are_exact(values: "pd.Series") -> bool:
    """Return whether no number is beyond 2^53, above which float64 merges neighbours."""
    return bool((values.abs().fillna(0.0) <= EXACT).all())
