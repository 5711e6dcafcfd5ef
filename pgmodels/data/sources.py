"""Sources of minibatches: arrays, files, iterables and streams."""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import count as count_from
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from pgmodels.data.arrays import as_frame, as_numbers

# The number of rows per block, if it can be chosen.
BLOCK = 16_384

# Raw inputs (m, d), observations (m,) or (m, columns), and row weights (m,) if there are any.
Block: TypeAlias = tuple[np.ndarray, ...]


class Rows(ABC):
    """Rows of data that can be read repeatedly, block by block, e.g. by ``pgm.svi``.

    With ``standardise``, a first pass computes the mean and standard deviation that standardise inputs. Predictions
    still use raw inputs. A user-defined source implements ``blocks``, and may have ``columns``.
    """

    columns: tuple[str, ...] | None = None
    standardise: bool = False

    @abstractmethod
    def blocks(self, rng: np.random.Generator | None) -> Iterator[Block]:
        """Return all rows once: in order if ``rng`` is None, else in a random order, as far as that is cheap."""


class Scaling(NamedTuple):
    """The standardisation of inputs, (X - location) / scale, with location and scale (d,)."""

    location: Float[np.ndarray, " d"]
    scale: Float[np.ndarray, " d"]

    def __call__(self, X: np.ndarray) -> np.ndarray:
        return (X - self.location) / self.scale


class Survey(NamedTuple):
    """The number of rows, the standardisation of inputs, a uniform standardised sample, and a digest of all rows."""

    num_rows: int
    scaling: Scaling
    X: np.ndarray
    y: np.ndarray
    digest: str


def survey(rows: Rows, check: Callable[[np.ndarray, np.ndarray], Block], seed: int = 0) -> Survey:
    """Read the rows in order once. ``check`` converts a block to float64, or raises ValueError with a row of the block.

    ``seed`` draws the sample. The error has the row's number in the data. Raises ValueError if there are no rows.
    """
    rng, count, digest = np.random.default_rng(seed), 0, hashlib.sha256()
    mean = squares = np.zeros(())
    low, high = np.array(np.inf), np.array(-np.inf)
    sample: Block | None = None
    keys = np.zeros(0)
    pieces = (
        tuple(part[start : start + BLOCK] for part in block)
        for block in rows.blocks(None)
        for start in range(0, max(map(len, block)), BLOCK)
    )
    for X, y in pieces:
        try:
            X, y = check(X, y)
        except ValueError as error:
            # The message has the row number within the block.
            def numbered(match: re.Match[str], first: int = count) -> str:
                return f"row {first + int(match[1])}"

            raise ValueError(re.sub(r"\brow (\d+)", numbered, str(error))) from error
        digest.update(np.ascontiguousarray(X).tobytes() + np.ascontiguousarray(y).tobytes())
        # Means and sums of squares around them, block by block (Chan, Golub and LeVeque 1983).
        share, shift = len(X) / (count + len(X)), X.mean(axis=0) - mean
        squares = squares + np.sum((X - X.mean(axis=0)) ** 2, axis=0) + count * share * shift**2
        mean, count = mean + share * shift, count + len(X)
        low, high = np.minimum(low, X.min(axis=0)), np.maximum(high, X.max(axis=0))
        # The rows with the smallest random keys are a uniform sample.
        keys = np.concatenate([keys, rng.random(len(X))])
        kept = np.sort(np.argsort(keys)[:20_000])
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


class ArrayRows(Rows):
    """The rows of X (n, d) and y (n,) or (n, columns): arrays or ``numpy.memmap`` of any numeric type.

    Every pass reads runs of consecutive rows in a new random order. Raises ValueError if shapes are inconsistent.
    """

    def __init__(self, X: ArrayLike, y: ArrayLike, *, standardise: bool = False):
        frame = as_frame(X)
        self.columns, self.standardise = None if frame is None else tuple(frame.columns), standardise
        self.X, self.y = _sliced(X, "X"), _sliced(y, "y")
        # All arrays whose rows belong to blocks.
        self.arrays: Block = self.X, self.y
        if self.X.ndim != 2:
            raise ValueError(f"X must have shape (n, d), one row per datum; got shape {self.X.shape}.")
        if self.y.ndim not in (1, 2) or len(self.y) != len(self.X):
            raise ValueError(
                f"X and y must have the same length; got shapes {self.X.shape} of X and {self.y.shape} of y."
            )

    def blocks(self, rng: np.random.Generator | None) -> Iterator[Block]:
        # In a random order, consecutive rows are read together: many rows for a disk, few within a shuffled block.
        length = BLOCK if rng is None else 1024
        starts = np.arange(0, len(self.X), length)
        for start in starts if rng is None else rng.permutation(starts):
            yield tuple(array[start : start + length] for array in self.arrays)


def _sliced(value: ArrayLike, name: str) -> np.ndarray:
    """Return a numeric array unchanged, so that a mapped file is not read yet, and other values as numbers."""
    return value if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" else as_numbers(value, name)


class IterableRows(Rows):
    """The rows of pairs (X, y), X (m, d) and y (m,) or (m, columns), from an object that can be iterated repeatedly.

    Batches have the object's order, and rows are shuffled among neighbouring batches. Raises ValueError for items that
    are not pairs, and for an iterator, such as a generator, which can be read only once.
    """

    def __init__(self, batches: Iterable[tuple[ArrayLike, ArrayLike]], *, standardise: bool = False):
        if not isinstance(batches, Iterable) or isinstance(batches, Iterator):
            raise ValueError(
                "batches must be an object that can be iterated repeatedly, such as a list of pairs (X, y) "
                f"or a class whose __iter__ is a generator; got {type(batches).__name__}."
            )
        self.batches, self.standardise = batches, standardise

    def blocks(self, rng: np.random.Generator | None) -> Iterator[Block]:
        for pair in self.batches:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise ValueError(f"batches must be pairs (X, y); got a {type(pair).__name__}.")
            X, y = as_numbers(pair[0], "X"), as_numbers(pair[1], "y")
            if X.ndim != 2 or y.ndim not in (1, 2):
                raise ValueError(
                    f"batches must be pairs of X (m, d) and y (m,) or (m, columns); got shapes {X.shape} and {y.shape}."
                )
            yield X, y


class ParquetRows(Rows):
    """The rows of Parquet files with the same columns: y is ``target``, and X is ``inputs``.

    ``target`` is the name of a column, or several names if the likelihood reads several columns. ``inputs`` are one or
    more names, by default of all other columns. Every pass reads the row groups in a new random order, block by block.
    Raises ValueError if a file is missing or not a Parquet file, or a column is missing; ImportError without pyarrow.
    """

    def __init__(
        self,
        path: str | PathLike[str] | Sequence[str | PathLike[str]],
        target: str | Sequence[str],
        inputs: str | Sequence[str] | None = None,
        *,
        standardise: bool = False,
    ):
        paths = [path] if isinstance(path, str | PathLike) else list(path)
        self.paths, self.standardise = list(map(Path, paths)), standardise
        if not self.paths:
            raise ValueError("path is an empty list: name at least one Parquet file.")
        self.target = _names(target)
        columns = [self._open(file).schema_arrow.names for file in self.paths]
        others = tuple(name for name in columns[0] if name not in self.target)
        self.inputs = self.columns = others if inputs is None else _names(inputs)
        for file, names in zip(self.paths, columns, strict=True):
            missing = [name for name in (*self.target, *self.inputs) if name not in names]
            if missing:
                raise ValueError(f"{file} has no column {missing[0]!r}; it has {', '.join(names)}.")
        if not self.inputs or not self.target:
            raise ValueError(f"{self.paths[0]} must have y and at least one column of X; its columns are {columns[0]}.")
        if twice := {name for name in self.inputs if self.inputs.count(name) > 1}:
            raise ValueError(f"inputs name column {min(twice)!r} twice: name each column once.")
        if both := set(self.inputs) & set(self.target):
            raise ValueError(f"column {min(both)!r} cannot be in both X and y: remove it from inputs.")

    def blocks(self, rng: np.random.Generator | None) -> Iterator[Block]:
        counts = [self._open(path).num_row_groups for path in self.paths]
        groups = [(path, group) for path, count in zip(self.paths, counts, strict=True) for group in range(count)]
        for place in np.arange(len(groups)) if rng is None else rng.permutation(len(groups)):
            path, group = groups[place]
            names = [*self.inputs, *self.target]
            for batch in self._open(path).iter_batches(BLOCK, row_groups=[group], columns=names):
                arrays = {name: batch.column(name).to_numpy(zero_copy_only=False) for name in names}
                X = np.column_stack([as_numbers(arrays[name], f"column {name}") for name in self.inputs])
                y = np.column_stack([as_numbers(arrays[name], f"column {name}") for name in self.target])
                yield X, y[:, 0] if len(self.target) == 1 else y

    @staticmethod
    def _open(path: Path) -> Any:
        try:
            from pyarrow import ArrowInvalid
            from pyarrow.parquet import ParquetFile
        except ImportError as error:
            raise ImportError("Parquet files are read by pyarrow: pip install 'pgmodels[parquet]'.") from error
        if not path.is_file():
            raise ValueError(f"path: there is no file {path}.")
        try:
            return ParquetFile(path)
        except ArrowInvalid as error:
            raise ValueError(f"path: {path} is not a Parquet file: {error}") from error


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def batches(
    rows: Rows, scaling: Scaling, num_rows: int, size: int, seed: Sequence[int], first: int = 0
) -> Iterator[Block]:
    """Yield batches of ``size`` rows, from batch ``first`` on: float64 X (size, d), y (size, ...), and any weights.

    A pass has as many full batches as possible and drops the remaining rows. Its order depends on the seed and the
    number of the pass, so a resumed run continues with the same batches. A batch of all rows is in order. Raises
    ValueError if the number of batches differs from the first pass.
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
    """Yield rows in order in batches of ``size``; the last may be smaller. Raise ValueError if the number changed."""
    rest = yield from _one_pass(rows, scaling, size, None)
    if len(rest[1]) != num_rows % size:
        raise ValueError(
            f"a pass over the data has {len(rest[1])} rows in addition to its batches of {size}, but the first had "
            f"{num_rows % size}: give the same rows in every pass."
        )
    if len(rest[1]):
        yield rest


def _one_pass(
    rows: Rows, scaling: Scaling, size: int, rng: np.random.Generator | None
) -> Generator[Block, None, Block]:
    buffer: list[Block] = []
    num_buffered = 0
    for block in rows.blocks(rng):
        X, *others = (np.asarray(part, dtype=np.float64) for part in block)
        buffer.append((scaling(X), *others))
        num_buffered += len(X)
        # Rows are shuffled within a buffer.
        if num_buffered >= max(131_072, size):
            buffer = [(yield from _drained(buffer, size, rng))]
            num_buffered = len(buffer[0][0])
    return (yield from _drained(buffer, size, rng)) if buffer else (np.zeros((0, 0)), np.zeros(0))


def _drained(buffer: list[Block], size: int, rng: np.random.Generator | None) -> Generator[Block, None, Block]:
    """Yield shuffled batches of the buffered blocks, and return the remaining rows."""
    block = tuple(np.concatenate(arrays) for arrays in zip(*buffer, strict=True))
    count = len(block[0])
    order = np.arange(count) if rng is None else rng.permutation(count)
    for start in range(0, count - size + 1, size):
        chosen = order[start : start + size]
        yield tuple(part[chosen] for part in block)
    rest = order[count - count % size :]
    return tuple(part[rest] for part in block)


def stacked_batches(stream: Iterator[Block], length: int) -> Iterator[Block]:
    """Yield stacks of ``length`` batches along a new first axis."""
    while True:
        yield tuple(np.stack(arrays) for arrays in zip(*islice(stream, length), strict=True))
