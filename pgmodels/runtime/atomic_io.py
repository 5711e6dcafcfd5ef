"""Files of arrays with a JSON document: values as JSON, atomic writing, and safe reading without pickles."""

import csv
import errno
import json
import os
import re
import secrets
import stat
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import jax
import numpy as np
from numpy.lib import format as npy

from pgmodels.runtime.memory import available_memory

if TYPE_CHECKING:
    import pandas as pd

# The entry of the document, which lists the other entries.
_DOCUMENT = "pgmodels"
# Text that begins with one of these is a formula to a spreadsheet (OWASP, CSV injection).
_FORMULA = tuple("=+-@\t\r\n＝＋－＠")
# The largest document in bytes, and the kinds of NumPy types that files hold: booleans and numbers.
_LARGEST, _KINDS = 2**26, "biufc"
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}

Arrays = dict[str, np.ndarray]
Build = Callable[[str, dict[str, Any]], Any]


def _no_class(value: Any, *_: Any) -> Any:
    """The default of ``encode`` and ``decode``: no class is registered."""
    raise ValueError(f"{value if isinstance(value, str) else type(value).__name__} cannot be stored as arrays")


def encode(
    value: Any, arrays: Arrays, name: str, fields_of: Callable[[Any, str], tuple[str, dict[str, Any]]] = _no_class
) -> Any:
    """A value as JSON: a tuple as a list, and an array as its name in ``arrays``, to which it is added.

    ``fields_of`` returns the public name and the fields of an object at a place in the file, or raises ValueError.
    """

    def nested(values: Mapping[str, Any]) -> dict[str, Any]:
        return {key: encode(part, arrays, f"{name}.{key}" if name else key, fields_of) for key, part in values.items()}

    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (np.ndarray, jax.Array)):
        arrays[name] = np.asarray(value)
        return {"array": name}
    if type(value) is tuple:
        return [*nested({str(i): part for i, part in enumerate(value)}).values()]
    if type(value) is dict:
        return {"dict": nested(value)}
    public, fields = fields_of(value, name)
    return {"class": public, "fields": nested(fields)}


def decode(value: Any, arrays: Arrays, build: Build = _no_class) -> Any:
    """The value of a document; ``build`` makes an object of its public name and fields, or raises ValueError."""
    match value:
        case list():
            return tuple(decode(part, arrays, build) for part in value)
        case {"array": name}:
            return arrays[name]
        case {"dict": entries}:
            return {key: decode(part, arrays, build) for key, part in entries.items()}
        case {"class": str(public), "fields": entries}:
            return build(public, {key: decode(part, arrays, build) for key, part in entries.items()})
        case dict():
            raise ValueError(f"its document has an entry of {', '.join(value) or 'nothing'}")
    return value


def write_arrays(path: Path, document: Mapping[str, Any], arrays: Arrays) -> None:
    """Write arrays and a document, which also lists their types and shapes, as NumPy's npz; ValueError for objects."""
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise ValueError(f"{name} holds Python objects, which a file of arrays cannot store.")
        if array.dtype.kind not in _KINDS:
            raise ValueError(f"{name} is of type {array.dtype}, and a file stores numbers and booleans.")
    table = {name: _described(array.dtype, array.shape) for name, array in arrays.items()}
    text = np.frombuffer(json.dumps({**document, "arrays": table}).encode(), dtype=np.uint8)
    if len(text) > _LARGEST:
        raise ValueError(f"the text of the file has {len(text)} bytes, more than {_LARGEST}: use pickle.")
    entries: dict[str, Any] = {_DOCUMENT: text, **arrays}
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **entries)


def write_table(path: Path, table: "pd.DataFrame") -> None:
    """Write a data frame as CSV, with an apostrophe before text that a spreadsheet would read as a formula."""
    names = [_escaped(name) for name in table.index.names]
    escaped = table.map(_escaped).rename(index=_escaped, columns=_escaped).rename_axis(index=names)
    with atomic_write(path) as temporary:
        escaped.to_csv(temporary, quoting=csv.QUOTE_NONNUMERIC)


def read_arrays(path: Path) -> tuple[dict[str, Any], Arrays]:
    """The document and the arrays of a file, using no more memory than the file's size on disk.

    Sizes are checked before anything is read: pgmodels never compresses arrays, so that a file with compressed entries,
    such as a zip bomb, is rejected. Raises ValueError for a damaged file and one that is not regular, or larger than
    the available memory, FileNotFoundError for a missing one.
    """
    with _faults_of(path), _opened(path) as file, zipfile.ZipFile(file) as archive:
        entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        _check_sizes(archive.infolist(), os.fstat(file.fileno()).st_size)
        if entries.get(_DOCUMENT, zipfile.ZipInfo()).file_size > _LARGEST:
            raise ValueError(f"its document is larger than {_LARGEST} bytes")
        headers = {name: _header(archive, entry) for name, entry in entries.items()}
        if _DOCUMENT not in entries:
            raise ValueError("it was not written by pgmodels")
        del headers[_DOCUMENT]
        document = json.loads(_read(archive, entries.pop(_DOCUMENT)).tobytes())
        if not isinstance(document, dict):
            raise ValueError(f"its document must be a JSON object; got a {type(document).__name__}")
        table = document.get("arrays", {})
        for name in sorted(name for name in {*headers, *table} if headers.get(name) != table.get(name)):
            raise ValueError(f"{name} is {_words(headers.get(name))} and should be {_words(table.get(name))}")
        return document, {name: _read(archive, entry) for name, entry in entries.items()}


def remove_temporary(folder: Path, names: str) -> None:
    """Remove what killed processes left behind of files with these names, a regular expression.

    No other process may be writing them.
    """
    temporary = re.compile(rf"\.({names})\.[0-9a-f]{{16}}\.tmp")
    for entry in folder.iterdir():
        if temporary.fullmatch(entry.name):
            entry.unlink(missing_ok=True)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary path to write to, renamed to ``path`` on exit: an interrupted process leaves no partial file.

    Each write has a temporary file of its own, which is created here: several processes may write the same file, and a
    link that someone has put there is not followed.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    # Unlike the files of tempfile, with the permissions of any new file.
    temporary.open("xb").close()
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Have the names of a folder's files on disk; Windows offers no such call."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # Some file systems of networks refuse it.
            with suppress(OSError):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make_folder(folder: Path, option: str) -> None:
    """Create a folder if it does not exist. Raises ValueError, naming the option, where it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Permissions alone are not enough: the file system may be read-only.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"{option} must be a writable folder; got {folder} ({error.strerror or error}). Choose another one."
        ) from error


def _escaped(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A regular file that fits into memory, open to read.

    Raises OSError for others: a pipe or a device may have no end.
    """
    _require_regular(os.stat(path))
    # The file may have been replaced since: opening a pipe would wait for its writer.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
        status = os.fstat(file.fileno())
        _require_regular(status)
        largest = available_memory()
        if status.st_size > largest:
            raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes, and at most {largest:,.0f} are read")
        yield file


def _require_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is a folder, a pipe or a device, not a regular file")


@contextmanager
def _faults_of(path: Path) -> Iterator[None]:
    """Within the context, errors of zipfile, NumPy and JSON on invalid bytes become one ValueError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror or error})") from error
    except Exception as error:
        raise ValueError(f"{path} is damaged, truncated or not in npz format ({error})") from error


def _check_sizes(entries: list[zipfile.ZipInfo], size: int) -> None:
    """Raise ValueError if entries are compressed, or have more bytes than their file."""
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise ValueError(f"{entry.filename} is compressed, which pgmodels never does, to {entry.file_size} bytes")
    total = sum(entry.file_size for entry in entries)
    if total > size:
        raise ValueError(f"its entries have {total} bytes, and the file {size}")


def _header(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> list[Any]:
    """Type and shape of an array; ValueError for objects, or if the number of bytes does not match."""
    with archive.open(entry) as stream:
        shape, _, dtype = _HEADERS[npy.read_magic(stream)](stream)
        num_bytes = entry.file_size - stream.tell()
    if dtype.hasobject:
        raise ValueError(f"{entry.filename} holds pickled objects, which are never loaded")
    if dtype.kind not in _KINDS:
        raise ValueError(f"{entry.filename} is of type {dtype}, and files of pgmodels hold numbers and booleans")
    expected = dtype.itemsize
    for length in shape:
        expected *= length
    if expected != num_bytes or min(shape, default=0) < 0:
        raise ValueError(
            f"{entry.filename} has {num_bytes} bytes for an array of shape {shape}, which takes {expected}"
        )
    return _described(dtype, shape)


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(entry) as stream:
        return npy.read_array(stream, allow_pickle=False)


def _described(dtype: np.dtype[Any], shape: tuple[int, ...]) -> list[Any]:
    return [dtype.str, list(shape)]


def _words(described: Any) -> str:
    return "missing" if described is None else f"of type {described[0]} and shape {tuple(described[1])}"
