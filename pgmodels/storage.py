"""Files that are written whole or not at all, and folders to write them to."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np


def temporary_of(path: Path) -> Path:
    """Where a file is written before it takes its place."""
    return path.with_name(f".{path.name}.tmp")


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A path to write to, beside the file, whose place it takes in one step at the end: no kill leaves half a file."""
    # One name: what a kill leaves is written over by the next.
    temporary = temporary_of(path)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Arrays in NumPy's npz format, whole or not at all."""
    with written_whole(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def make_folder(folder: Path, option: str) -> None:
    """Make a folder where there is none. Raises ValueError, naming the option, where it cannot be written to."""
    probe = folder / f".{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"{option} must name a folder that files can be written to; {folder} is none ({error.strerror}). Name "
            "another."
        ) from error
