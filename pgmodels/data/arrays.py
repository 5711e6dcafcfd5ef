"""Conversion of users' arrays to float64, or an error with a remedy."""

import sys
from collections.abc import Collection
from typing import Any

import numpy as np

from pgmodels.data.frames import Columns, as_frame, as_identifiers, columns_of, encoded
from pgmodels.data.text_and_dates import (
    IDENTIFIER,
    PLURALS,
    as_array_code,
    describe,
    is_polars_frame,
    labelled_columns,
    numbers_in,
)


def as_numbers(value: Any, name: str, *, is_input: bool = False, is_new: bool = False) -> np.ndarray:
    """A float64 array of any shape; missing values (None, pandas.NA) are NaN.

    Raises ValueError, naming the argument, for values that are not an array of numbers: None, sparse and masked arrays,
    dates, complex numbers, text (also of numbers), rows of different lengths. For text and dates among inputs
    (``is_input``) the remedy is a data frame, with which the model must be fitted if they are new (``is_new``).
    """
    if value is None:
        raise ValueError(f"{name} is None: give an array of numbers.")
    if _is_sparse(value):
        raise ValueError(f"{name} is a sparse matrix; covariances need a dense one: use {name}.toarray().")
    if isinstance(value, np.ma.MaskedArray):
        _check_unmasked(value, name)
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
    X: Any, name: str, known: Columns | None = None, may_be_new: Collection[str] = (), is_new: bool = False
) -> tuple[np.ndarray, Columns | None]:
    """Inputs as a float64 array with NaN where an entry is missing, and the columns of a data frame, None of others.

    With ``known`` columns of training data a frame is read in the same way, by name, and columns ``may_be_new`` may
    have other levels. Raises ValueError for what is not numbers and cannot be read as such.
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
                f"{name} has whole numbers beyond 2^53 in column {coded[0].name!r}, and the training X had none there, "
                "so that they have no codes: fit the model to a data frame with this column as a categorical."
            )
        raise ValueError(
            f"{name} has {PLURALS[coded[0].kind]} in column {coded[0].name!r}, and the training X had no column names: "
            "give an array of numbers, or fit the model to a data frame."
        )
    return encoded(frame, columns, name, may_be_new), columns


def as_inputs(X: Any, name: str, num_columns: int | None = None, columns: Columns | None = None) -> np.ndarray:
    """Inputs as a finite float64 array (n, d), with ``num_columns`` columns if given, or ValueError.

    ``columns`` are for messages.
    """
    array = as_array_code(X, name)
    X, of_frame = read_inputs(X, name, is_new=num_columns is not None)
    columns = columns or of_frame
    if of_frame is not None and any(column.kind == IDENTIFIER for column in of_frame):
        raise ValueError(
            f"{name} has whole numbers beyond 2^53, which float64 does not hold exactly, and there are no codes "
            "for them here: subtract a constant, or number the identifiers from 0."
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
    """Raise ValueError, naming the first, if an array has NaN or infinite entries."""
    bad = np.argwhere(~np.isfinite(array))
    if bad.size:
        place = f"row {bad[0][0]}"
        if array.ndim == 2:
            place += f", column {bad[0][1] if columns is None else repr(columns[bad[0][1]].name)}"
        raise ValueError(
            f"{name} must be finite; got {array[tuple(bad[0])]} in {place} ({len(bad)} such values). {remedy}"
        )


def first_column(y: np.ndarray) -> np.ndarray:
    """The first column of observations (n,) or (n, columns), the one that is predicted."""
    return y[:, 0] if y.ndim == 2 else y


def column_names(value: Any) -> tuple[str, ...] | None:
    """The column names of a data frame; None for other values, or if not all names are text."""
    frame = as_frame(value)
    return None if frame is None else tuple(frame.columns)


def in_units_of(scale: Any, values: Any, known: float = 0.0) -> np.ndarray:
    """``values / scale``, and ``known`` where both are 0, as for quantities without variance."""
    values, scale = np.broadcast_arrays(np.asarray(values, dtype=np.float64), np.asarray(scale, dtype=np.float64))
    return np.divide(values, scale, out=np.full(values.shape, known), where=(values != 0.0) | (scale != 0.0))


def _is_sparse(value: Any) -> bool:
    """Whether a value is one of SciPy's sparse arrays, for which its module need not be loaded."""
    return "scipy.sparse" in sys.modules and sys.modules["scipy.sparse"].issparse(value)


def _check_unmasked(value: np.ma.MaskedArray, name: str) -> None:
    masked = np.argwhere(np.ma.getmaskarray(value))
    if masked.size:
        raise ValueError(
            f"{name} is a masked array, with {len(masked)} masked value(s), the first in row {masked[0][0]}. Drop "
            f"these rows, or impute them and use {name}.filled(...)."
        )


def distinct_rows(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices (m,) of the first occurrence of each distinct row of X (n, d), in order, and the inverse indices (n,).

    Without columns all rows are equal.
    """
    # If all rows differ, a weighted sum of each shows it in a tenth of the time.
    sums = sum((np.sqrt(2.0 + column) * X[:, column] for column in range(X.shape[1])), np.zeros(len(X)))
    if np.all(np.diff(np.sort(sums)) > 0.0):
        return np.arange(len(X)), np.arange(len(X))
    order = np.lexsort(X.T[::-1]) if X.shape[1] else np.arange(len(X))
    ordered = X[order]
    begins = np.concatenate([[True], np.any(ordered[1:] != ordered[:-1], axis=1)])
    # The sort is stable: the first of equal rows comes first.
    firsts = order[begins]
    ranks = np.empty(len(firsts), np.int64)
    ranks[np.argsort(firsts)] = np.arange(len(firsts))
    places = np.empty(len(X), np.int64)
    places[order] = ranks[np.cumsum(begins) - 1]
    return np.sort(firsts), places
