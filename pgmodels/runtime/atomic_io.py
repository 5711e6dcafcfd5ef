"""Files of arrays and a JSON document: written whole or not at all, and read without pickles, code or surprises."""

import json
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

# The entry with the document, which lists the others.
_DOCUMENT = "pgmodels"
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def write_arrays(path: Path, document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Arrays in NumPy's npz format, with a document that says their types and shapes too; ValueError for objects."""
    objects = [name for name, array in arrays.items() if array.dtype.hasobject]
    if objects:
        raise ValueError(f"{objects[0]} holds Python objects, which a file of arrays does not.")
    table = {name: _described(array.dtype, array.shape) for name, array in arrays.items()}
    text = np.frombuffer(json.dumps({**document, "arrays": table}).encode(), dtype=np.uint8)
    entries: dict[str, Any] = {_DOCUMENT: text, **arrays}
    with written_whole(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **entries)


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """A document in JSON."""
    with written_whole(path) as temporary:
        temporary.write_text(json.dumps(document), encoding="utf-8")


def read_arrays(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The document and the arrays of a file, in the memory that the file has on disk.

    Sizes are looked at before anything is read: arrays are stored as they are, so that a file that says otherwise, as
    one that unpacks to a thousand times its size, is not of this package. Raises ValueError, FileNotFoundError
    where there is no file.
    """
    with _faults_of(path, "npz"), zipfile.ZipFile(path) as archive:
        entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        _check_sizes(archive.infolist(), path.stat().st_size)
        found = {name: _header(archive, entry) for name, entry in entries.items()}
        if _DOCUMENT not in entries:
            raise ValueError("it is not of pgmodels")
        del found[_DOCUMENT]
        document = _decoded(_read(archive, entries.pop(_DOCUMENT)).tobytes())
        # Files of the first versions have no table.
        table = document.get("arrays", found)
        wrong = sorted({name for name in {*found, *table} if found.get(name) != table.get(name)})
        if wrong:
            name = wrong[0]
            raise ValueError(f"{name} is {_words(found.get(name))} and should be {_words(table.get(name))}")
        return document, {name: _read(archive, entry) for name, entry in entries.items()}


def read_document(path: Path) -> dict[str, Any]:
    """A document in JSON. Raises ValueError, FileNotFoundError where there is no file."""
    with _faults_of(path, "JSON"):
        return _decoded(path.read_bytes())


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


def make_folder(folder: Path, option: str) -> None:
    """Make a folder where there is none. Raises ValueError, naming the option, where it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Rights alone do not say it: of a file system that can only be read, for one.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"{option} must name a folder that files can be written to; {folder} is none ({error.strerror or error}). "
            "Name another."
        ) from error


@contextmanager
def _faults_of(path: Path, kind: str) -> Iterator[None]:
    """Within the context, whatever zipfile, NumPy and JSON raise on bytes that are not theirs is one error."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror or error})") from error
    except Exception as error:
        raise ValueError(f"{path} is damaged, cut off or no {kind} file ({error})") from error


def _check_sizes(entries: list[zipfile.ZipInfo], size: int) -> None:
    """ValueError where entries are packed, or have more bytes than their file."""
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise ValueError(f"{entry.filename} is compressed, which pgmodels never does, to {entry.file_size} bytes")
    total = sum(entry.file_size for entry in entries)
    if total > size:
        raise ValueError(f"its entries have {total} bytes, and the file {size}")


def _header(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> list[Any]:
    """Type and shape of an array; ValueError for objects, or another number of bytes than that takes."""
    with archive.open(entry) as stream:
        shape, _, dtype = _HEADERS[npy.read_magic(stream)](stream)
        left = entry.file_size - stream.tell()
    if dtype.hasobject:
        raise ValueError(f"{entry.filename} holds pickled objects, which are never loaded")
    taken = dtype.itemsize
    for length in shape:
        taken *= length
    if taken != left or min(shape, default=0) < 0:
        raise ValueError(f"{entry.filename} has {left} bytes for an array of shape {shape}, which takes {taken}")
    return _described(dtype, shape)


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(entry) as stream:
        return npy.read_array(stream, allow_pickle=False)


def _decoded(text: bytes) -> dict[str, Any]:
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError(f"its document is a {type(document).__name__}")
    return document


def _described(dtype: np.dtype[Any], shape: tuple[int, ...]) -> list[Any]:
    return [dtype.str, list(shape)]


def _words(described: Any) -> str:
    return "missing" if described is None else f"of type {described[0]} and shape {tuple(described[1])}"
