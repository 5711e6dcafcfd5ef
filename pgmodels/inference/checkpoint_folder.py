"""Checkpoints of an engine in a folder, validated before any work."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

import jax
import numpy as np
from jaxtyping import PyTree

from pgmodels.runtime.io import (
    Arrays,
    decode,
    encode,
    locked_folder,
    make_folder,
    read_arrays,
    remove_temporary,
    write_arrays,
)
from pgmodels.runtime.messages import shorten
from pgmodels.runtime.precision import as_array

# The file by which each engine recognises its folder.
_FILES = {"gibbs": "index.npz", "svi": "svi.npz"}
# All files that each engine writes there.
_WRITTEN = {"gibbs": r"index\.npz|draws-\d{6}\.npz|state-\d{9}\.npz", "svi": r"svi\.npz"}


class EngineCheckpoint:
    """The base of an engine's checkpoints: a folder with the files of one run.

    ``index`` has the values of the main file when the folder was opened, None if there was none. A state is saved as
    the leaves of a tree, and restored by ``tree`` from a tree of the same structure.

    Raises ValueError if the folder cannot be created or written to, or belongs to another engine. Also for a file that
    is damaged or of another version. Every error has a remedy.
    """

    engine: ClassVar[str]
    # Version of the file format, increased by every change of its contents or of what an iteration computes.
    format: ClassVar[int]
    # Minimum number of seconds between two saves.
    interval: ClassVar[float] = 2.0

    def __init__(self, checkpoint: Any):
        self.time = time.monotonic()
        self.fingerprint: dict[str, str] = {}
        self.index: dict[str, Any] | None = None
        try:
            self.path = Path(checkpoint)
        except TypeError as error:
            raise ValueError(f"checkpoint must be the path of a folder; got {shorten(checkpoint)}.") from error
        self.file = self.path / _FILES[self.engine]
        make_folder(self.path, "checkpoint")
        for other, name in _FILES.items():
            if other != self.engine and (self.path / name).exists():
                raise ValueError(
                    f"checkpoint: {self.path / name} belongs to a run of {other}, not of {self.engine}. Name another "
                    "folder, or delete this one."
                )

    @classmethod
    @contextmanager
    def opened(cls, checkpoint: Any) -> Iterator[Self | None]:
        """Return the checkpoint in a folder, which no other run may use within the context; None without a folder.

        What killed runs wrote in part is removed. Raises ValueError, before any work, if the folder cannot be written
        to, is in use or contains other files.
        """
        if checkpoint is None:
            yield None
            return
        saved = cls(checkpoint)
        # Of processes that share one run, the first writes and the others read.
        first = jax.process_index() == 0
        with locked_folder(saved.path, "checkpoint", cls.engine) if first else nullcontext():
            if first:
                remove_temporary(saved.path, _WRITTEN[cls.engine])
            saved.index = saved.read_file(saved.file) if saved.file.exists() else None
            yield saved

    def is_due(self, final: bool) -> bool:
        """Return whether to save: if the last save is long enough ago, or if this is the final one."""
        due = final or time.monotonic() - self.time >= self.interval
        self.time = time.monotonic() if due else self.time
        return due

    def write_index(self, values: dict[str, Any]) -> None:
        """Write the main file, with the identity of the run."""
        self.write_file(self.file, {"fingerprint": self.fingerprint, **values})

    def write_file(self, path: Path, values: dict[str, Any]) -> None:
        """Write plain values and arrays to a file of the folder."""
        arrays: Arrays = {}
        entries = encode(values, arrays, "")
        document = {"kind": f"a checkpoint of {self.engine}", "format": self.format, "values": entries}
        write_arrays(path, document, arrays)

    def read_file(self, path: Path) -> dict[str, Any]:
        """Return the values of a file of the folder."""
        try:
            document, arrays = read_arrays(path)
        except FileNotFoundError:
            self.refuse(f"{path} is missing")
        except ValueError as error:
            self.refuse(str(error))
        kind = document.get("kind", "another")
        if kind != f"a checkpoint of {self.engine}":
            self.refuse(f"{path} is not a file of a checkpoint of {self.engine}, but {kind}")
        if document.get("format") != self.format:
            self.refuse(
                f"{path} has format {document.get('format')}, of another version of pgmodels; this one has format "
                f"{self.format}"
            )
        try:
            values = decode(document.get("values"), arrays)
        except Exception as error:
            self.refuse(f"{path} is damaged: {shorten(error)}")
        if not isinstance(values, dict):
            self.refuse(f"{path} is damaged: it has no values")
        return values

    def continues(self, expected: dict[str, str]) -> bool:
        """Return whether a run is saved; ValueError if it differs from this one, naming the differences."""
        self.fingerprint = expected
        if self.index is None:
            return False
        saved = self.index.get("fingerprint")
        if not isinstance(saved, dict) or set(saved) != set(expected):
            self.refuse(f"{self.file} does not identify its run")
        differing = [name for name in expected if saved[name] != expected[name]]
        if differing:
            raise ValueError(
                f"checkpoint: {self.path} contains another run of {self.engine}, which differs in: "
                f"{', '.join(differing)}. Name another folder, or delete this one."
            )
        return True

    def tree(self, path: Path, saved: Any, like: PyTree) -> PyTree:
        """Return the tree of saved leaves, with the types and shapes of the leaves of ``like``.

        The first leaf grows with a run: its first axis may have any length. Raises ValueError for other leaves.
        """
        leaves, structure = jax.tree.flatten(like)
        expected = [leaf if hasattr(leaf, "dtype") else np.asarray(leaf) for leaf in leaves]
        if not isinstance(saved, tuple) or not all(isinstance(leaf, np.ndarray) for leaf in saved):
            self.refuse(f"{path} is damaged: the arrays of the state are missing")
        if len(saved) != len(expected):
            self.refuse(f"{path} is damaged: it has {len(saved)} arrays of the state, and should have {len(expected)}")
        for i, (leaf, template) in enumerate(zip(saved, expected, strict=True)):
            first, shape = int(i == 0), tuple(template.shape)
            fits = leaf.ndim == len(shape) and leaf.shape[first:] == shape[first:]
            if leaf.dtype != template.dtype or not fits:
                self.refuse(
                    f"{path} is damaged: array {i} of the state is of type {leaf.dtype} and shape {leaf.shape}, and "
                    f"should be of type {template.dtype} and shape {shape}"
                )
        return jax.tree.unflatten(structure, [as_array(leaf) for leaf in saved])

    def refuse(self, fault: str) -> NoReturn:
        """Raise ValueError for a damaged or foreign folder."""
        raise ValueError(
            f"checkpoint: {fault}. The run cannot be resumed: delete the folder {self.path} to start "
            "again, or name another one."
        )


def leaves_of(tree: PyTree) -> tuple[np.ndarray, ...]:
    """Return the leaves of a tree as arrays of a file."""
    return tuple(np.asarray(leaf) for leaf in jax.tree.leaves(tree))
