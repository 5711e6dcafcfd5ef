"""The first pass over rows: every one is checked, and what the model needs of all of them is learned."""

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from pgmodels.data.sources.rows import BLOCK, Block, Rows, Scaling

# Rows that stand for all where not all can be looked at.
_SAMPLE = 20_000


class Survey(NamedTuple):
    """How many rows there are, what standardises their inputs, a uniform sample of them, and a digest of all.

    The sample's inputs are standardised.
    """

    num_rows: int
    scaling: Scaling
    X: np.ndarray
    y: np.ndarray
    digest: str


def survey(rows: Rows, check: Callable[[np.ndarray, np.ndarray], Block]) -> Survey:
    """One pass over rows in their order. ``check`` gives blocks as doubles, or ValueError with the row of the block.

    The error that is raised has the row of the data. Raises ValueError where there is no row, too.
    """
    rng, count, digest = np.random.default_rng(0), 0, hashlib.sha256()
    mean = squares = np.zeros(())
    low, high = np.array(np.inf), np.array(-np.inf)
    sample: Block | None = None
    keys = np.zeros(0)
    for X, y in _pieces(rows):
        X, y = _checked(check, X, y, count)
        digest.update(np.ascontiguousarray(X).tobytes() + np.ascontiguousarray(y).tobytes())
        # Means and sums of squares about them, block by block (Chan, Golub and LeVeque 1983).
        share, apart = len(X) / (count + len(X)), X.mean(axis=0) - mean
        squares = squares + np.sum((X - X.mean(axis=0)) ** 2, axis=0) + count * share * apart**2
        mean, count = mean + share * apart, count + len(X)
        low, high = np.minimum(low, X.min(axis=0)), np.maximum(high, X.max(axis=0))
        # The rows with the smallest of keys drawn for all are a uniform sample.
        keys = np.concatenate([keys, rng.random(len(X))])
        kept = np.sort(np.argsort(keys)[:_SAMPLE])
        parts = ((X, y),) if sample is None else (sample, (X, y))
        every_X, every_y = (np.concatenate(both) for both in zip(*parts, strict=True))
        keys, sample = keys[kept], (every_X[kept], every_y[kept])
    if sample is None:
        raise ValueError("the data have no rows: give at least one.")
    deviation = np.sqrt(squares / count)
    scaling = Scaling(np.zeros_like(mean), np.ones_like(mean))
    if rows.standardise:
        # Rounding moves the mean of a constant column, and leaves a deviation.
        varies = high > low
        scaling = Scaling(np.where(varies, mean, low), np.where(varies, deviation, 1.0))
    return Survey(count, scaling, scaling(sample[0]), sample[1], digest.hexdigest())


def _pieces(rows: Rows) -> Iterator[Block]:
    """Blocks of at most ``BLOCK`` rows."""
    for X, y in rows.blocks(None):
        for start in range(0, max(len(X), len(y)), BLOCK):
            yield X[start : start + BLOCK], y[start : start + BLOCK]


def _checked(check: Callable[[np.ndarray, np.ndarray], Block], X: np.ndarray, y: np.ndarray, first: int) -> Block:
    try:
        return check(X, y)
    except ValueError as error:
        # Rows of a block are counted from its first.
        message = re.sub(r"\brow (\d+)", lambda found: f"row {first + int(found[1])}", str(error))
        raise ValueError(message) from error
