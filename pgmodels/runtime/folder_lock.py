"""A folder that one run uses at a time, by a lock file that names its process and machine."""

import errno
import json
import os
import platform
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_NAME = "pgmodels.lock"
# The largest lock file is far smaller.
_MAX_BYTES = 4096
# A file that another process has locked on Windows cannot be read there: the byte that is locked is beyond its end.
_BEYOND = 2**20


@contextmanager
def locked_folder(folder: Path, option: str, run: str) -> Iterator[None]:
    """Keep other runs from a folder within the context.

    The system releases a lock when its process ends, however it ends, and another run on the same machine then takes
    the file over. The file stays, empty, where a run has ended by itself: if it were deleted, a process that has just
    opened it would lock a file without a name.

    Raises ValueError, naming the option, if another run uses the folder, or may do so on another machine.
    """
    path = folder / _NAME
    descriptor = _opened(path, option)
    try:
        is_free, holder = _try_lock(descriptor), _read(descriptor, path, option)
        if is_free is None:
            # The file system has no locks: what the file contains decides.
            is_free = not (holder and holder["host"] == platform.node() and _is_running(holder["process"]))
        if not is_free:
            raise ValueError(
                f"{option}: {folder} is in use by {_words(holder)}. Wait until that run has ended, or name another "
                "folder."
            )
        if holder and holder["host"] != platform.node():
            raise ValueError(
                f"{option}: {folder} is in use by {_words(holder)}, or that run was killed. If it has ended, delete "
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


def _opened(path: Path, option: str) -> int:
    """A descriptor of the lock file, which is created if there is none; ValueError if it is no file of one's own."""
    # Links are not followed, and a pipe does not wait for its other end.
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
    """Whether this process could lock a file; None where the file system has no locks."""
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


def _read(descriptor: int, path: Path, option: str) -> dict[str, Any] | None:
    """What a lock file contains; None if it is empty. Raises ValueError if another program wrote it."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    text = os.read(descriptor, _MAX_BYTES)
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
    """Replace the contents of a lock file."""
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, text.encode())


def _is_running(process: int) -> bool:
    if sys.platform == "win32":
        # There, os.kill would end the process.
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _words(holder: dict[str, Any] | None) -> str:
    if holder is None:
        return "another run"
    return f"a run of {holder['run']} in process {holder['process']} on {holder['host']}, since {holder['since']}"
