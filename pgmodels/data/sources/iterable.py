"""Rows of an object that can be iterated repeatedly for batches."""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import ArrayLike

from pgmodels.data.arrays import as_numbers
from pgmodels.data.sources.rows import Block, Rows


class IterableRows(Rows):
    """The rows of pairs (X, y), X (m, d) and y (m,) or (m, columns), from an object that can be iterated repeatedly.

    Batches are read in the object's order, and rows are shuffled among neighbouring batches. Raises ValueError for an
    iterator, such as a generator, which can be read only once, and for items that are not pairs.
    """

    def __init__(self, batches: Iterable[tuple[ArrayLike, ArrayLike]], *, standardise: bool = False):
        if not isinstance(batches, Iterable) or isinstance(batches, Iterator):
            raise ValueError(
                "batches must be an object that can be iterated repeatedly, such as a list of pairs (X, y) "
                f"or a class whose __iter__ is a generator; got {type(batches).__name__}."
            )
        self.batches, self.standardise = batches, standardise

    def blocks(self, rng: np.random.Generator | None) -> Iterator[Block]:
        """See Rows."""
        for pair in self.batches:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise ValueError(f"batches must be pairs (X, y); got a {type(pair).__name__}.")
            X, y = as_numbers(pair[0], "X"), as_numbers(pair[1], "y")
            if X.ndim != 2 or y.ndim not in (1, 2):
                raise ValueError(
                    f"batches must be pairs of X (m, d) and y (m,) or (m, columns); got shapes {X.shape} and {y.shape}."
                )
            yield X, y
