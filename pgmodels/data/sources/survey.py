"""The first pass over rows: checks every row, and collects statistics, a sample and a digest of all."""

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from pgmodels.data.sources.rows import BLOCK, Block, Rows, Scaling

# The size of the uniform sample of rows.
_SAMPLE = 20_000


class Survey(NamedTuple):
    """The number of rows, the standardisation of inputs, a uniform sample with standardised inputs, a digest of all."""

    num_rows: int
    scaling: Scaling
    X: np.ndarray
    y: np.ndarray
    digest: str


def survey(rows: Rows, check: Callable[[np.ndarray, np.ndarray], Block], seed: int = 0) -> Survey:
    """One pass over rows in order. ``check`` converts a block to float64, or raises ValueError with a row of the block.

    ``seed`` draws the sample. The error is raised with the row's number in the data.
    Raises ValueError if there are no rows.
    """
    rng, count, digest = np.random.default_rng(seed), 0, hashlib.sha256()
    mean = squares = np.zeros(())
    low, high = np.array(np.inf), np.array(-np.inf)
    sample: Block | None = None
    keys = np.zeros(0)
    for X, y in _pieces(rows):
        X, y = _checked(check, X, y, count)
        digest.update(np.ascontiguousarray(X).tobytes() + np.ascontiguousarray(y).tobytes())
        # Means and sums of squares about them, block by block (Chan, Golub and LeVeque 1983).
        share, shift = len(X) / (count + len(X)), X.mean(axis=0) - mean
        squares = squares + np.sum((X - X.mean(axis=0)) ** 2, axis=0) + count * share * shift**2
        mean, count = mean + share * shift, count + len(X)
        low, high = np.minimum(low, X.min(axis=0)), np.maximum(high, X.max(axis=0))
        # The rows with the smallest random keys are a uniform sample.
        keys = np.concatenate([keys, rng.random(len(X))])
        kept = np.sort(np.argsort(keys)[:_SAMPLE])
        blocks = ((X, y),) if sample is None else (sample, (X, y))
        every_X, every_y = (np.concatenate(arrays) for arrays in zip(*blocks, strict=True))
        keys, sample = keys[kept], (every_X[kept], every_y[kept])
    if sample is None:
        raise ValueError("the data have no rows: give at least one.")
    deviation = np.sqrt(squares / count)
    scaling = Scaling(np.zeros_like(mean), np.ones_like(mean))
    if rows.standardise:
        # The computed mean and deviation of a constant column have rounding errors.
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
        # The message numbers the rows within the block.
        message = re.sub(r"\brow (\d+)", lambda match: f"row {first + int(match[1])}", str(error))
        raise ValueError(message) from error
