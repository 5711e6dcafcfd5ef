"""An endless stream of shuffled batches of one size, from repeated passes over the rows."""

from collections.abc import Generator, Iterator, Sequence
from itertools import count as count_from
from itertools import islice

import numpy as np

from pgmodels.data.sources.rows import Block, Rows, Scaling

# The size of the buffer within which rows are shuffled.
_SHUFFLED = 131_072


def batches(
    rows: Rows, scaling: Scaling, num_rows: int, size: int, seed: Sequence[int], first: int = 0
) -> Iterator[Block]:
    """Batches of ``size`` rows, beginning with batch ``first``: float64 X (size, d), y (size, ...), and any weights.

    A pass has as many full batches as possible and drops the remaining rows. Its order depends on the seed and the
    number of the pass, so that a resumed run continues with the same batches. A batch of all rows is in order.
    Raises ValueError if a pass has another number of batches than the first.
    """
    per_pass = num_rows // size
    for number in count_from(first // per_pass):
        rng = None if size == num_rows else np.random.default_rng([*seed, number])
        skipped, count = first % per_pass if number == first // per_pass else 0, 0
        for count, batch in enumerate(_one_pass(rows, scaling, size, rng), start=1):
            if count > skipped:
                yield batch
        if count != per_pass:
            raise ValueError(
                f"pass {number} over the data has {count} batches of {size} rows, and the first had {per_pass}: give "
                "the same rows in every pass."
            )


def in_order(rows: Rows, scaling: Scaling, num_rows: int, size: int) -> Iterator[Block]:
    """All rows once, in order, in batches of ``size`` rows; the last batch has the remaining rows.

    Raises ValueError if the number of rows has changed.
    """
    rest = yield from _one_pass(rows, scaling, size, None)
    if len(rest[1]) != num_rows % size:
        raise ValueError(
            f"a pass over the data has {len(rest[1])} rows in addition to its batches of {size}, and the first had "
            f"{num_rows % size}: give the same rows in every pass."
        )
    if len(rest[1]):
        yield rest


def _one_pass(
    rows: Rows, scaling: Scaling, size: int, rng: np.random.Generator | None
) -> Generator[Block, None, Block]:
    """The batches of a pass; returns the remaining rows."""
    buffer: list[Block] = []
    num_buffered = 0
    for block in rows.blocks(rng):
        X, *others = (np.asarray(part, dtype=np.float64) for part in block)
        buffer.append((scaling(X), *others))
        num_buffered += len(X)
        if num_buffered >= max(_SHUFFLED, size):
            buffer = [(yield from _drained(buffer, size, rng))]
            num_buffered = len(buffer[0][0])
    return (yield from _drained(buffer, size, rng)) if buffer else (np.zeros((0, 0)), np.zeros(0))


def _drained(buffer: list[Block], size: int, rng: np.random.Generator | None) -> Generator[Block, None, Block]:
    """Shuffled batches of the buffered blocks; returns the remaining rows."""
    block = tuple(np.concatenate(arrays) for arrays in zip(*buffer, strict=True))
    count = len(block[0])
    order = np.arange(count) if rng is None else rng.permutation(count)
    for start in range(0, count - size + 1, size):
        chosen = order[start : start + size]
        yield tuple(part[chosen] for part in block)
    rest = order[count - count % size :]
    return tuple(part[rest] for part in block)


def stacked_batches(stream: Iterator[Block], length: int) -> Iterator[Block]:
    """Stacks of ``length`` batches along a new first axis."""
    while True:
        yield tuple(np.stack(arrays) for arrays in zip(*islice(stream, length), strict=True))
