"""Rows of arrays, in memory or memory-mapped."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pgmodels.data.arrays import as_numbers, column_names
from pgmodels.data.sources.rows import BLOCK, Block, Rows

# Consecutive rows that are read together in a random order: long enough for a disk, short within a shuffled block.
_RUN = 1024


class ArrayRows(Rows):
    """The rows of X (n, d) and y (n,) or (n, columns): arrays or ``numpy.memmap`` of any numeric type.

    Every pass reads runs of consecutive rows in another random order. Raises ValueError for inconsistent shapes.
    """

    def __init__(self, X: ArrayLike, y: ArrayLike, *, standardise: bool = False):
        self.columns, self.standardise = column_names(X), standardise
        self.X, self.y = _sliced(X, "X"), _sliced(y, "y")
        if self.X.ndim != 2:
            raise ValueError(f"X must have shape (n, d), one row per datum; got shape {self.X.shape}.")
        if self.y.ndim not in (1, 2) or len(self.y) != len(self.X):
            raise ValueError(
                f"X and y must have the same length; got shapes {self.X.shape} of X and {self.y.shape} of y."
            )

    def blocks(self, rng: np.random.Generator | None) -> Iterator[Block]:
        """See Rows."""
        for rows in self.slices(rng):
            yield self.X[rows], self.y[rows]

    def slices(self, rng: np.random.Generator | None) -> Iterator[slice]:
        """The rows of each block."""
        length = BLOCK if rng is None else _RUN
        starts = np.arange(0, len(self.X), length)
        for start in starts if rng is None else rng.permutation(starts):
            yield slice(start, start + length)


def _sliced(value: Any, name: str) -> np.ndarray:
    """A numeric array unchanged, so that a mapped file is not read yet; other values as numbers."""
    return value if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" else as_numbers(value, name)
