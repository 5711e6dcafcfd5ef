"""Batches of one size without end: pass after pass over rows, shuffled."""

from collections.abc import Generator, Iterator, Sequence
from itertools import count as count_from
from itertools import islice

import numpy as np

from pgmodels.data.sources.rows import Block, Rows, Scaling

# Rows that are held and shuffled among each other.
_SHUFFLED = 131_072


def batches(
    rows: Rows, scaling: Scaling, num_rows: int, size: int, seed: Sequence[int], first: int = 0
) -> Iterator[Block]:
    """Batches of ``size`` rows, from the ``first`` on: X (size, d) and y (size, ...), as doubles.

    A pass gives as many as it fills and leaves the other rows out. Its order depends on the seed and on the number of
    the pass, so that what is taken up later goes on with the same batches. All rows at once come in their order.
    Raises ValueError where a pass has other rows than there were.
    """
    a_pass = num_rows // size
    for number in count_from(first // a_pass):
        rng = None if size == num_rows else np.random.default_rng([*seed, number])
        skipped, found = first % a_pass if number == first // a_pass else 0, 0
        for found, batch in enumerate(_one_pass(rows, scaling, size, rng), start=1):
            if found > skipped:
                yield batch
        if found != a_pass:
            raise ValueError(
                f"pass {number} over the data has {found} batches of {size} rows, and the first had {a_pass}: give the "
                "same rows in every pass."
            )


def in_order(rows: Rows, scaling: Scaling, num_rows: int, size: int) -> Iterator[Block]:
    """Batches of all rows in their order, once: of ``size`` rows each, the last one of those that are left.

    Raises ValueError where there are other rows than there were.
    """
    rest = yield from _one_pass(rows, scaling, size, None)
    if len(rest[1]) != num_rows % size:
        raise ValueError(
            f"a pass over the data has {len(rest[1])} rows beside its batches of {size}, and the first had "
            f"{num_rows % size}: give the same rows in every pass."
        )
    if len(rest[1]):
        yield rest


def _one_pass(
    rows: Rows, scaling: Scaling, size: int, rng: np.random.Generator | None
) -> Generator[Block, None, Block]:
    """The batches of a pass; returns the rows that fill none."""
    held: list[Block] = []
    waiting = 0
    for X, y in rows.blocks(rng):
        held.append((scaling(np.asarray(X, dtype=np.float64)), np.asarray(y, dtype=np.float64)))
        waiting += len(X)
        if waiting >= max(_SHUFFLED, size):
            held = [(yield from _emptied(held, size, rng))]
            waiting = len(held[0][0])
    return (yield from _emptied(held, size, rng)) if held else (np.zeros((0, 0)), np.zeros(0))


def _emptied(held: list[Block], size: int, rng: np.random.Generator | None) -> Generator[Block, None, Block]:
    """Batches of the blocks held, shuffled; returns the rows that fill none."""
    X, y = (np.concatenate(parts) for parts in zip(*held, strict=True))
    order = np.arange(len(X)) if rng is None else rng.permutation(len(X))
    for start in range(0, len(X) - size + 1, size):
        chosen = order[start : start + size]
        yield X[chosen], y[chosen]
    rest = order[len(X) - len(X) % size :]
    return X[rest], y[rest]


def stacked_batches(stream: Iterator[Block], length: int) -> Iterator[Block]:
    """``length`` batches at a time, along a first axis."""
    while True:
        X, y = (np.stack(parts) for parts in zip(*islice(stream, length), strict=True))
        yield X, y
