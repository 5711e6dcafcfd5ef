"""The folder of an engine's checkpoints, validated before any work."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

import jax
import numpy as np

from pgmodels.runtime.atomic_io import make_folder, read_arrays, read_document, remove_temporary
from pgmodels.runtime.folder_lock import locked_folder
from pgmodels.runtime.formatting import shorten

# The file by which each engine recognises its folder.
_FILES = {"gibbs": "index.json", "svi": "svi.npz"}
# All files that each engine writes there.
_WRITTEN = {"gibbs": r"index\.json|draws-\d{6}\.npz|state-\d{9}\.npz", "svi": r"svi\.npz"}
# Minimum number of seconds between two saves.
_INTERVAL = 2.0


class CheckpointFolder:
    """The checkpoint folder of one engine; ``document`` and ``arrays`` read and validate its files.

    Raises ValueError if the folder cannot be created or written to, belongs to another engine, or contains a file that
    is damaged or of another version. Every error has a remedy.
    """

    def __init__(self, checkpoint: Any, engine: str, format: int):
        self.engine, self.format, self.time = engine, format, time.monotonic()
        try:
            self.path = Path(checkpoint)
        except TypeError as error:
            raise ValueError(f"checkpoint must be the path of a folder; got {shorten(checkpoint)}.") from error
        make_folder(self.path, "checkpoint")
        for other, name in _FILES.items():
            if other != engine and (self.path / name).exists():
                raise ValueError(
                    f"checkpoint: {self.path / name} belongs to a run of {other}, not of {engine}. Name another "
                    "folder, or delete this one."
                )

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other runs from the folder within the context; what killed ones wrote in part is removed."""
        with locked_folder(self.path, "checkpoint", self.engine):
            remove_temporary(self.path, _WRITTEN[self.engine])
            yield

    @property
    def file(self) -> Path:
        """The main file of the folder."""
        return self.path / _FILES[self.engine]

    def is_due(self, final: bool) -> bool:
        """Whether to save: if the last save is long enough ago, or if this is the final one."""
        due = final or time.monotonic() - self.time >= _INTERVAL
        self.time = time.monotonic() if due else self.time
        return due

    def document(self) -> dict[str, Any] | None:
        """The document of a folder whose file has no arrays."""
        try:
            document = read_document(self.file)
        except FileNotFoundError:
            return None
        except ValueError as error:
            self.refuse(str(error))
        return self._checked(self.file, document)

    def arrays(self, path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The document and arrays of a file."""
        try:
            document, arrays = read_arrays(path)
        except FileNotFoundError:
            self.refuse(f"{path} is missing")
        except ValueError as error:
            self.refuse(str(error))
        return self._checked(path, document), arrays

    def require_same(self, saved: Any, expected: dict[str, str]) -> None:
        """Raise ValueError if the run differs from the saved one, naming the differences."""
        if not isinstance(saved, dict) or set(saved) != set(expected):
            self.refuse(f"{self.file} does not identify its run")
        differing = [name for name in expected if saved[name] != expected[name]]
        if differing:
            raise ValueError(
                f"checkpoint: {self.path} contains another run of {self.engine}, which differs in: "
                f"{', '.join(differing)}. Name another folder, or delete this one."
            )

    def refuse(self, fault: str) -> NoReturn:
        """Raise ValueError for a damaged or foreign folder."""
        raise ValueError(
            f"checkpoint: {fault}. The run cannot be resumed: delete the folder {self.path} to start "
            "again, or name another one."
        )

    def _checked(self, path: Path, document: dict[str, Any]) -> dict[str, Any]:
        if document.get("kind") != f"a checkpoint of {self.engine}":
            self.refuse(f"{path} is not a file of a checkpoint of {self.engine}, but {document.get('kind', 'another')}")
        if document.get("format") != self.format:
            self.refuse(
                f"{path} has format {document.get('format')}, of another version of pgmodels; this one has format "
                f"{self.format}"
            )
        return document

    @property
    def heading(self) -> dict[str, Any]:
        """The first entries of every document."""
        return {"kind": f"a checkpoint of {self.engine}", "format": self.format}


class EngineCheckpoint:
    """The base of an engine's checkpoints: a folder with the files of one run."""

    engine: ClassVar[str]
    # Version of the file format, increased by every change of its contents or of what an iteration computes.
    format: ClassVar[int]

    def __init__(self, folder: CheckpointFolder):
        self.folder = folder

    @classmethod
    @contextmanager
    def opened(cls, checkpoint: Any) -> Iterator[Self | None]:
        """The checkpoint in a folder, which no other run may use within the context; None without a folder.

        Raises ValueError, before any work, if the folder cannot be written to, is in use or contains other files.
        """
        if checkpoint is None:
            yield None
            return
        folder = CheckpointFolder(checkpoint, cls.engine, cls.format)
        # Of processes that share one run, the first writes and the others read.
        with folder.lock() if jax.process_index() == 0 else nullcontext():
            yield cls(folder)


def named_leaves(tree: Any) -> dict[str, np.ndarray]:
    """The leaves of a tree as arrays of a file."""
    return {f"leaf_{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(tree))}


def leaves_of(arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The leaves of a tree from the arrays of a file, in order; missing ones are skipped."""
    return [arrays[f"leaf_{i}"] for i in range(len(arrays)) if f"leaf_{i}" in arrays]


def fault_of_leaves(saved: list[np.ndarray], expected: list[Any], free: int | None = None) -> str | None:
    """The fault of saved leaves of a tree, or None; the first axis of the leaf ``free`` may have any length."""
    if len(saved) != len(expected):
        return f"it has {len(saved)} arrays of the state, and should have {len(expected)}"
    for i, (leaf, template) in enumerate(zip(saved, expected, strict=True)):
        start = int(i == free)
        if (
            leaf.dtype != template.dtype
            or leaf.ndim != len(template.shape)
            or leaf.shape[start:] != tuple(template.shape)[start:]
        ):
            return (
                f"leaf_{i} is of type {leaf.dtype} and shape {leaf.shape}, and should be of type {template.dtype} and "
                f"shape {tuple(template.shape)}"
            )
    return None
