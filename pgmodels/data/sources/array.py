"""Rows of arrays, in memory or mapped from a file."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from pgmodels.data.arrays import as_numbers, column_names
from pgmodels.data.sources.rows import BLOCK, Block, Rows

# Neighbours that are read together where the order is drawn: enough for a disk, and few of what is shuffled at a time.
_RUN = 1024


class ArrayRows(Rows):
    """The rows of X (n, d) and y (n,) or (n, columns): arrays, or a ``numpy.memmap`` each, of any numeric type.

    In every pass runs of neighbours are read in another order. Raises ValueError for shapes that do not fit.
    """

    def __init__(self, X: Any, y: Any, *, standardise: bool = False):
        self.columns, self.standardise = column_names(X), standardise
        self.X, self.y = (_sliced(part, name) for part, name in ((X, "X"), (y, "y")))
        if self.X.ndim != 2:
            raise ValueError(f"X must have shape (n, d), a row a datum; got shape {self.X.shape}.")
        if self.y.ndim not in (1, 2) or len(self.y) != len(self.X):
            raise ValueError(
                f"X and y must have the same length; got shapes {self.X.shape} of X and {self.y.shape} of y."
            )

    def blocks(self, rng: np.random.Generator | None) -> Iterator[Block]:
        """See Rows."""
        length = BLOCK if rng is None else _RUN
        starts = np.arange(0, len(self.X), length)
        for start in starts if rng is None else rng.permutation(starts):
            yield self.X[start : start + length], self.y[start : start + length]


def _sliced(part: Any, name: str) -> np.ndarray:
    """An array as it is, so that nothing of a mapped file is read; anything else as numbers."""
    return part if isinstance(part, np.ndarray) and part.dtype.kind in "biuf" else as_numbers(part, name)
