"""Rows of Parquet files."""

from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from pgmodels.data.arrays import as_numbers
from pgmodels.data.sources.rows import BLOCK, Block, Rows


class ParquetRows(Rows):
    """The rows of one or several Parquet files with the same columns: y is ``target``, X ``inputs``.

    ``target`` is the name of a column, or several names for a likelihood that reads several; ``inputs`` are one or more
    names, by default all other columns. Every pass reads the row groups in another random order, block by block. Raises
    ValueError for files that are missing or not Parquet files, and for missing columns; ImportError without pyarrow.
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
            raise ValueError(f"inputs name column {min(twice)!r} twice: name each once.")
        if both := set(self.inputs) & set(self.target):
            raise ValueError(f"column {min(both)!r} cannot be in both X and y: remove it from inputs.")

    def blocks(self, rng: np.random.Generator | None) -> Iterator[Block]:
        """See Rows."""
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
