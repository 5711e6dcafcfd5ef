"""Rows of Parquet files, chosen columns of them."""

from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from pgmodels.data.arrays import as_numbers
from pgmodels.data.sources.rows import BLOCK, Block, Rows


class ParquetRows(Rows):
    """The rows of a Parquet file, or of several with the same columns: y is ``target``, X ``inputs``.

    ``target`` is the name of a column, or names where a likelihood reads several; ``inputs`` are all the others unless
    one or several are named. Row groups are read in an order of their own in every pass, and of a group a part at a
    time. Raises ValueError for files that are not there or are none, and columns that they do not have; ImportError
    without pyarrow.
    """

    def __init__(
        self,
        path: str | PathLike[str] | Sequence[str | PathLike[str]],
        target: str | Sequence[str],
        inputs: str | Sequence[str] | None = None,
        *,
        standardise: bool = False,
    ):
        given = [path] if isinstance(path, str | PathLike) else list(path)
        self.paths, self.standardise = [Path(own) for own in given], standardise
        if not self.paths:
            raise ValueError("path is an empty list: name at least one Parquet file.")
        self.target = _names(target)
        found = [self._open(own).schema_arrow.names for own in self.paths]
        others = tuple(name for name in found[0] if name not in self.target)
        self.inputs = self.columns = others if inputs is None else _names(inputs)
        for own, names in zip(self.paths, found, strict=True):
            missing = [name for name in (*self.target, *self.inputs) if name not in names]
            if missing:
                raise ValueError(f"{own} has no column {missing[0]!r}; it has {', '.join(names)}.")
        if not self.inputs or not self.target:
            raise ValueError(f"{self.paths[0]} must give y and at least one column of X; its columns are {found[0]}.")
        if twice := {name for name in self.inputs if self.inputs.count(name) > 1}:
            raise ValueError(f"inputs name column {min(twice)!r} twice: name each once.")
        if both := set(self.inputs) & set(self.target):
            raise ValueError(f"column {min(both)!r} cannot be in X and in y: leave it out of inputs.")

    def blocks(self, rng: np.random.Generator | None) -> Iterator[Block]:
        """See Rows."""
        counts = [self._open(path).num_row_groups for path in self.paths]
        groups = [(path, group) for path, count in zip(self.paths, counts, strict=True) for group in range(count)]
        for place in np.arange(len(groups)) if rng is None else rng.permutation(len(groups)):
            path, group = groups[place]
            names = [*self.inputs, *self.target]
            for part in self._open(path).iter_batches(BLOCK, row_groups=[group], columns=names):
                read = {name: part.column(name).to_numpy(zero_copy_only=False) for name in names}
                X = np.column_stack([as_numbers(read[name], f"column {name}") for name in self.inputs])
                y = np.column_stack([as_numbers(read[name], f"column {name}") for name in self.target])
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
            raise ValueError(f"path: {path} is no Parquet file: {error}") from error


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
