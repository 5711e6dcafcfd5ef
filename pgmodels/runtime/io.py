"""Atomic writes, locked folders, and fingerprints of data."""

import csv
import errno
import hashlib
import json
import math
import os
import platform
import re
import secrets
import stat
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cached_property, partial
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, BinaryIO
from weakref import ReferenceType

import jax
import numpy as np
from numpy.lib import format as npy

from pgmodels.runtime.jit import available_memory
from pgmodels.runtime.seeds import is_distribution

if TYPE_CHECKING:
    import pandas as pd


# Files of arrays with a JSON document: values as JSON, atomic writing, and safe reading without pickles.

# The name of the document's entry; the document lists all other entries.
_DOCUMENT = "pgmodels"
# Spreadsheets read text that begins with one of these as a formula (OWASP, CSV injection).
_FORMULA = tuple("=+-@\t\r\n＝＋－＠")
# The largest document in bytes, and the kinds of NumPy types in files: booleans and numbers.
_LARGEST, _KINDS = 2**26, "biufc"
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}

Arrays = dict[str, np.ndarray]
Build = Callable[[str, dict[str, Any]], Any]


def _no_class(value: object, *_: object) -> Any:
    """The default of ``encode`` and ``decode``: no class is registered."""
    raise ValueError(f"{value if isinstance(value, str) else type(value).__name__} cannot be stored as arrays")


def encode(
    value: object, arrays: Arrays, name: str, fields_of: Callable[[Any, str], tuple[str, dict[str, Any]]] = _no_class
) -> Any:
    """Return a value as JSON: tuples become lists, and arrays become names, under which ``arrays`` then holds them.

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


def decode(value: object, arrays: Arrays, build: Build = _no_class) -> Any:
    """Return the value of a document; ``build`` makes objects from public names and fields, or raises ValueError."""
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
    """Write arrays and a document, which also lists their types and shapes, as npz. Raise ValueError for objects."""
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise ValueError(f"{name} holds Python objects, which a file of arrays cannot store.")
        if array.dtype.kind not in _KINDS:
            raise ValueError(f"{name} is of type {array.dtype}, but a file stores only numbers and booleans.")
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
    """Return the document and the arrays of a file, using no more memory than the file's size on disk.

    Sizes are checked before arrays are read. Files with compressed entries, such as zip bombs, are rejected, since
    pgmodels never compresses arrays. Raises ValueError for a file that is damaged, not regular, or larger than the
    available memory, and FileNotFoundError for a missing file.
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
            raise ValueError(f"{name} is {_words(headers.get(name))}, but should be {_words(table.get(name))}")
        return document, {name: _read(archive, entry) for name, entry in entries.items()}


def remove_temporary(folder: Path, names: str) -> None:
    """Remove files of these names (a regular expression) that killed processes left; no process may be writing them."""
    temporary = re.compile(rf"\.({names})\.[0-9a-f]{{16}}\.tmp")
    for entry in folder.iterdir():
        if temporary.fullmatch(entry.name):
            entry.unlink(missing_ok=True)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, renamed to ``path`` on exit: an interrupted process leaves no partial file.

    Each write creates its own temporary file. Several processes may therefore write the same file, and a link that
    someone has put there is not followed.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    # The file has the permissions of any new file, unlike files of tempfile.
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
    """Write the names of a folder's files to disk; Windows has no such call."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # Some network file systems refuse the call.
            with suppress(OSError):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make_folder(folder: Path, option: str) -> None:
    """Create a folder if it does not exist. Raise ValueError, with the option's name, if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Permissions alone are not enough: the file system may be read-only.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"{option} must be a writable folder; got {folder} ({error.strerror or error}). Choose another folder."
        ) from error


def _escaped(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Yield a regular file that fits into memory, open for reading. Raise OSError for other files, such as pipes."""
    _require_regular(os.stat(path))
    # The file may have been replaced by a pipe: opening a pipe would wait for its writer.
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
    """Convert errors of zipfile, NumPy and JSON for invalid bytes to one ValueError, within the context."""
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
            raise ValueError(f"{entry.filename} is compressed, of {entry.file_size} bytes; pgmodels never compresses")
    total = sum(entry.file_size for entry in entries)
    if total > size:
        raise ValueError(f"its entries have {total} bytes, but the file has {size}")


def _header(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> list[Any]:
    """Return the type and the shape of an array. Raise ValueError for objects, or if the bytes do not match."""
    with archive.open(entry) as stream:
        shape, _, dtype = _HEADERS[npy.read_magic(stream)](stream)
        num_bytes = entry.file_size - stream.tell()
    if dtype.hasobject:
        raise ValueError(f"{entry.filename} holds pickled objects, which are never loaded")
    if dtype.kind not in _KINDS:
        raise ValueError(f"{entry.filename} is of type {dtype}, but files of pgmodels hold only numbers and booleans")
    expected = math.prod(shape, start=dtype.itemsize)
    if expected != num_bytes or min(shape, default=0) < 0:
        raise ValueError(
            f"{entry.filename} has {num_bytes} bytes for an array of shape {shape}, which needs {expected}"
        )
    return _described(dtype, shape)


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(entry) as stream:
        return npy.read_array(stream, allow_pickle=False)


def _described(dtype: np.dtype[Any], shape: tuple[int, ...]) -> list[Any]:
    return [dtype.str, list(shape)]


def _words(described: list[Any] | None) -> str:
    return "missing" if described is None else f"of type {described[0]} and shape {tuple(described[1])}"


if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_NAME = "pgmodels.lock"
# On Windows, the locked byte of a file cannot be read by another process: the lock is therefore after the file's end.
_BEYOND = 2**20


@contextmanager
def locked_folder(folder: Path, option: str, run: str) -> Iterator[None]:
    """Keep other runs from a folder within the context.

    The system releases a lock when its process ends in any way; another run on the same machine can then use the file.
    A run that ends by itself leaves the file empty. If the file were deleted, a process that has just opened it would
    lock a file without a name.

    Raises ValueError, with the option's name, if another run uses the folder, or may use it on another machine.
    """
    path = folder / _NAME
    descriptor = _descriptor(path, option)
    try:
        is_free, holder = _try_lock(descriptor), _holder_of(descriptor, path, option)
        if is_free is None:
            # The file system has no locks: the contents of the file decide.
            is_free = not (holder and holder["host"] == platform.node() and _is_running(holder["process"]))
        if not is_free:
            raise ValueError(
                f"{option}: {folder} is in use by {_holding(holder)}. Wait until that run has ended, or name another "
                "folder."
            )
        if holder and holder["host"] != platform.node():
            raise ValueError(
                f"{option}: {folder} is in use by {_holding(holder)}, or that run was killed. If it has ended, delete "
                f"{path}; otherwise name another folder."
            )
        since = datetime.now().isoformat(" ", "seconds")
        _write(descriptor, json.dumps({"run": run, "process": os.getpid(), "host": platform.node(), "since": since}))
        try:
            yield
        finally:
            _write(descriptor, "")
    finally:
        os.close(descriptor)


def _descriptor(path: Path, option: str) -> int:
    """Return a descriptor of the lock file, created if needed. Raise ValueError unless it is the user's own file."""
    # Links are not followed, and opening a pipe does not wait for its other end.
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags, 0o666)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        fault = "it is no regular file"
    except OSError as error:
        fault = "it is a link" if error.errno == errno.ELOOP else str(error.strerror or error)
    raise ValueError(f"{option}: {path} cannot be used as a lock file ({fault}). Delete it, or name another folder.")


def _try_lock(descriptor: int) -> bool | None:
    """Lock a file, and return whether this succeeded; None if the file system has no locks."""
    try:
        if sys.platform == "win32":
            os.lseek(descriptor, _BEYOND, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return None
    return True


def _holder_of(descriptor: int, path: Path, option: str) -> dict[str, Any] | None:
    """Return the contents of a lock file; None if it is empty. Raise ValueError if another program wrote it."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    # Each lock file is far smaller than this.
    text = os.read(descriptor, 4096)
    try:
        holder = json.loads(text or b"null")
    except ValueError:
        holder = text
    match holder:
        case None:
            return None
        case {"run": str(), "process": int(process), "host": str(), "since": str()} if process > 0:
            return holder
    raise ValueError(f"{option}: {path} is no lock file of pgmodels. Delete it, or name another folder.")


def _write(descriptor: int, text: str) -> None:
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, text.encode())


def _is_running(process: int) -> bool:
    try:
        # On Windows, os.kill would end the process.
        if sys.platform != "win32":
            os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def _holding(holder: dict[str, Any] | None) -> str:
    if holder is None:
        return "another run"
    return f"a run of {holder['run']} in process {holder['process']} on {holder['host']}, since {holder['since']}"


def digest(value: object) -> str:
    """Return a hash of ``identity(value)``, the same in every process."""
    return hashlib.sha256(repr(identity(value)).encode()).hexdigest()


def identity(value: object) -> Any:
    """Return nested tuples of text and numbers, equal for values with equal contents.

    They contain no process-specific values, such as addresses, set orders and string hashes. An object is represented
    by its class and contents, a function by its code, defaults and closure.
    """
    return _identity(value, ())


def _identity(value: object, within: tuple[int, ...]) -> Any:
    if value is None or isinstance(value, (str, bytes)):
        return value
    if isinstance(value, (bool, int, float, complex, np.generic, np.ndarray, jax.Array)):
        return _numbers(value)
    if isinstance(value, type):
        return _name(value)
    if isinstance(value, Enum):
        return _name(type(value)), value.name
    if id(value) in within:
        return "itself"
    inside = (*within, id(value))
    if isinstance(value, CodeType):
        return value.co_code, _identity(value.co_consts, inside), value.co_names, value.co_varnames, value.co_argcount
    if isinstance(value, (set, frozenset)):
        return type(value).__name__, *sorted((_identity(part, inside) for part in value), key=repr)
    if isinstance(value, dict):
        entries = [(_identity(name, inside), _identity(part, inside)) for name, part in value.items()]
        return "dict", *sorted(entries, key=repr)
    if isinstance(value, (tuple, list)):
        return type(value).__name__, *(_identity(part, inside) for part in value)
    return _name(type(value)), *(_identity(part, inside) for part in _contents(value))


def _numbers(value: Any) -> Any:
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        return str(jax.random.key_impl(value)), _numbers(jax.random.key_data(value))
    # Equal numbers of Python and of NumPy are the same.
    array = np.asarray(value.item() if isinstance(value, np.generic) else value)
    if array.dtype.hasobject:
        return array.shape, repr(array.tolist())
    return array.dtype.name, array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _contents(value: Any) -> tuple[Any, ...]:
    """Return the contents that identify an object, without its class."""
    if isinstance(value, FunctionType):
        cells = tuple(_cell_content(cell) for cell in value.__closure__ or ())
        return value.__name__, value.__code__, value.__defaults__, value.__kwdefaults__, cells
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, partial):
        return value.func, value.args, value.keywords
    if hasattr(value, "__wrapped__"):
        return (value.__wrapped__,)
    if isinstance(value, (BuiltinFunctionType, np.ufunc)):
        return (value.__name__,)
    if is_distribution(value):
        # NumPyro has the names of the fields in a set, and their values in the order of the set.
        kind = type(value)
        names = {*kind.gather_pytree_data_fields(), *kind.gather_pytree_aux_fields()} - {"_validate_args"}
        return tuple((name, vars(value).get(name)) for name in sorted(names))
    if is_dataclass(value):
        return tuple((field.name, getattr(value, field.name, None)) for field in fields(value))
    try:
        return tuple(value.tree_flatten())
    except (AttributeError, NotImplementedError):  # neither a constraint nor a transform, or a user-defined one
        attributes = getattr(value, "__dict__", None)
    if attributes is None:
        return (repr(value),)
    derived = {name for name in attributes if isinstance(getattr(type(value), name, None), cached_property)}
    derived |= {name for name, part in attributes.items() if isinstance(part, ReferenceType)}
    return tuple((name, attributes[name]) for name in sorted(attributes) if name not in derived)


def _cell_content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
