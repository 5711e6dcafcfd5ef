"""Several outputs, not all measured in each row, as long rows of one output each."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pgmodels.data.arrays import as_inputs, read_inputs
from pgmodels.data.frames import as_frame
from pgmodels.data.text_and_dates import NUMBER, PLURALS

_COLUMN = "output"


class StackedOutputs(NamedTuple):
    """Long rows, one for each value of y: see ``pgmodels.stack_outputs``.

    ``X`` has the number of the output as its last column; if it is a data frame its name, in the column "output".
    ``y`` (N,) are the values, None of new inputs; ``rows`` and ``outputs`` (N,) say where they stood among
    ``num_rows`` rows, and ``names`` are the outputs.
    """

    X: Any
    y: np.ndarray | None
    rows: np.ndarray
    outputs: np.ndarray
    num_rows: int
    names: tuple[Any, ...]

    def at(self, X_new: ArrayLike) -> "StackedOutputs":
        """All outputs at new inputs (m, d), to predict at their ``X``."""
        return _stacked(X_new, None, np.ones((_length(X_new, "X_new"), len(self.names)), dtype=bool), self.names)

    def wide(self, values: ArrayLike) -> np.ndarray:
        """Values of the long rows (N, ...), such as predictive means, as (rows, outputs, ...), NaN in holes."""
        values = np.asarray(values, dtype=np.float64)
        if values.shape[:1] != self.rows.shape:
            raise ValueError(
                f"values must have {len(self.rows)} rows, one for each row of the stacked X; got shape {values.shape}."
            )
        wide = np.full((self.num_rows, len(self.names), *values.shape[1:]), np.nan)
        wide[self.rows, self.outputs] = values
        return wide


def stack_outputs(X: ArrayLike, y: ArrayLike) -> StackedOutputs:
    """Rows of several outputs with holes as rows of one output each, for kernels over inputs and outputs.

    Parameters
    ----------
    X : array_like, shape (n, d)
        Inputs, one row per datum; an array or a data frame.
    y : array_like, shape (n, outputs)
        The outputs, NaN where one was not measured; names of a data frame become the names of the outputs.

    Returns
    -------
    StackedOutputs
        ``X`` and ``y`` to fit, ``at`` for new inputs, and ``wide`` to reshape their predictions.

    Raises
    ------
    ValueError
        For y of another shape, and for an output without a value.

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
    values, columns = read_inputs(y, "y")
    if values.ndim != 2 or values.shape[0] != _length(X, "X"):
        raise ValueError(
            f"y must have shape ({_length(X, 'X')}, outputs), a row for each of X; got shape {values.shape}."
        )
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


def _stacked(X: Any, y: np.ndarray | None, measured: np.ndarray, names: tuple[Any, ...]) -> StackedOutputs:
    rows, outputs = np.nonzero(measured)
    frame = as_frame(X)
    if frame is None:
        inputs: Any = np.column_stack([as_inputs(X, "X")[rows], outputs])
    else:
        import narwhals.stable.v2 as nw

        if _COLUMN in frame.columns:
            raise ValueError(f"X has a column {_COLUMN!r}, the name of the column of outputs: rename it.")
        # The order of the categories is that of the outputs, so that their codes are their numbers.
        texts = list(map(str, names))
        kind = nw.Categorical() if frame.implementation.is_pyarrow() else nw.Enum(texts)
        labels = [texts[output] for output in outputs]
        series = nw.new_series(_COLUMN, labels, kind, backend=frame.implementation)
        inputs = frame[rows.tolist()].with_columns(series).to_native()
    return StackedOutputs(inputs, y, rows, outputs, len(measured), names)


def _length(X: Any, name: str) -> int:
    return len(read_inputs(X, name)[0])
