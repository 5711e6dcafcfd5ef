"""What users give as arrays, read as doubles or refused with a remedy."""

from typing import Any

import numpy as np
from scipy.sparse import issparse


def as_numbers(value: Any, name: str) -> np.ndarray:
    """A float64 array of any shape.

    Raises ValueError, naming the argument, for what is none or is not to be read as one without a decision: nothing,
    sparse and masked arrays, dates, complex numbers, text, rows of different lengths.
    """
    if value is None:
        raise ValueError(f"{name} is None: give an array of numbers.")
    if issparse(value):
        raise ValueError(f"{name} is a sparse matrix; covariances need all of it: use {name}.toarray().")
    if isinstance(value, np.ma.MaskedArray):
        _check_unmasked(value, name)
        value = value.data
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name} cannot be read as an array ({error}): give an array of numbers, all rows of one length."
        ) from error
    kinds = {array.dtype.kind}
    if array.dtype.kind == "O" and array.size:
        kinds = {np.asarray(entry).dtype.kind for entry in array.ravel()}
    if kinds & {"M", "m"} or _holds_dates(array):
        raise ValueError(
            f"{name} holds dates or times, whose unit is not to be guessed: turn them into numbers, as in "
            "(t - t.min()) / np.timedelta64(1, 'D') for days."
        )
    if "c" in kinds:
        raise ValueError(f"{name} holds complex numbers; use {name}.real, or columns of real and imaginary parts.")
    try:
        return array.astype(np.float64, copy=False)
    except (TypeError, ValueError) as error:
        raise ValueError(_not_numeric(array, name)) from error


def check_finite(array: np.ndarray, name: str) -> None:
    """Raise ValueError where an array holds NaN or an infinity, naming the first."""
    bad = np.argwhere(~np.isfinite(array))
    if bad.size:
        place = f"row {bad[0][0]}" + (f", column {bad[0][1]}" if array.ndim == 2 else "")
        raise ValueError(
            f"{name} must be finite; got {array[tuple(bad[0])]} in {place} ({len(bad)} such values). "
            "Drop or impute these rows."
        )


def first_column(y: np.ndarray) -> np.ndarray:
    """The first column of observations (n,) or (n, columns), which is what is predicted."""
    return y[:, 0] if y.ndim == 2 else y


def column_names(value: Any) -> tuple[str, ...] | None:
    """The names of a data frame's columns; None where it is none, or not all of them are text."""
    names = getattr(value, "columns", None)
    if names is None or not hasattr(value, "__array__"):
        return None
    found = tuple(names)
    return found if found and all(isinstance(column, str) for column in found) else None


def check_column_names(value: Any, expected: tuple[str, ...] | None, name: str) -> None:
    """Raise ValueError where a data frame's columns are not those that a result was learned from, in their order.

    An array without names is taken as it is.
    """
    names = column_names(value)
    if names is None or expected is None or names == expected:
        return
    if sorted(names) == sorted(expected):
        raise ValueError(
            f"{name} has the columns in another order than the X that the result was learned from: got "
            f"{list(names)}, expected {list(expected)}. Use {name}[{list(expected)}]."
        )
    missing = [column for column in expected if column not in names]
    extra = [column for column in names if column not in expected]
    raise ValueError(
        f"{name} must have the columns of the X that the result was learned from, {list(expected)}; missing {missing}, "
        f"not seen before {extra}. Give those columns, or an array where only the names differ."
    )


def _check_unmasked(value: np.ma.MaskedArray, name: str) -> None:
    masked = np.argwhere(np.ma.getmaskarray(value))
    if masked.size:
        raise ValueError(
            f"{name} is a masked array, with {len(masked)} masked value(s), the first in row {masked[0][0]}. Drop "
            f"these rows, or impute them and use {name}.filled(...)."
        )


def _holds_dates(array: np.ndarray) -> bool:
    """Whether an array of objects holds datetimes, dates or time differences of Python or pandas."""
    return array.dtype.kind == "O" and any(
        hasattr(entry, "year") or hasattr(entry, "total_seconds") for entry in array.ravel()
    )


def _not_numeric(array: np.ndarray, name: str) -> str:
    """What an array holds that is no number, and what to do."""
    for place, entry in np.ndenumerate(array):
        try:
            np.float64(entry)
        except (TypeError, ValueError):
            where = f" in row {place[0]}" if place else ""
            remedy = "Give numbers."
            if isinstance(entry, str):
                remedy = f"Encode text as 0, 1, ..., a column at a time with np.unique({name}, return_inverse=True)[1]."
            return f"{name} must be numeric; got {entry!r} of type {type(entry).__name__}{where}. {remedy}"
    return f"{name} must be numeric; got an array of {array.dtype}. Give numbers."
