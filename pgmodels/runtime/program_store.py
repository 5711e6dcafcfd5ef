"""Compiled programs in the user's cache folder: a process loads what an earlier one compiled.

The name of a file is a hash of the lowered program, of all that JAX compiles it with, and of the machine. A file is
thus never out of date, and nothing has to be known about the function: neither its source nor its constants.
"""

import hashlib
import logging
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jaxlib
from jax.experimental.serialize_executable import deserialize_and_load, serialize
from jaxlib.utils import absl_set_min_log_level

logger = logging.getLogger(__name__)

# A program takes 0.05 to 0.5 MB: some 2,000 programs, of 100 to 300 models and sizes of data.
MAX_BYTES = 500_000_000
# The folder's size is added up once for so many new programs, in a few milliseconds.
_WRITES_BETWEEN_SUMS = 64
# What lowering and loading are known to do; older releases crash on macOS when a loaded program is called.
_OLDEST = (0, 10)
# Operations of LAPACK alone. Others can be a callback, whose address is another function in another process.
_KNOWN_CALLS = ("lapack_",)
# What JAX compiles a program with, beside its text.
_ARGUMENTS = (
    *("kept_var_idx", "global_in_avals", "global_out_avals", "in_shardings", "out_shardings", "in_layouts"),
    *("out_layouts", "tuple_args", "committed", "num_devices", "mut", "context_mesh"),
)
# Read by XLA. JAX's own variables are in its configuration.
_VARIABLES = ("XLA_", "TF_", "LIBTPU", "PJRT_", "NPROC")

# Stored programs can fail on a machine for good (JAX issue 38445), or once for lack of memory: a week.
_SECONDS_BETWEEN_TRIALS = 604_800

_num_writes = 0


def folder() -> Path | None:
    """The folder of compiled programs: PGMODELS_CACHE or the user's cache folder.

    None if PGMODELS_CACHE is 0, or if the user has no home folder to find it in.
    """
    value = os.environ.get("PGMODELS_CACHE")
    if value == "0":
        return None
    import platformdirs

    try:
        if value:
            return Path(value).expanduser()
        path = platformdirs.user_cache_path("pgmodels", appauthor=False) / "programs"
    except RuntimeError:
        return None
    return path if path.is_absolute() else None


def is_on() -> bool:
    """Whether programs are stored: on one CPU device, unless PGMODELS_CACHE is 0 or JAX's own cache is used.

    A program that JAX has loaded cannot be called where it is stored and loaded again.
    """
    if folder() is None or jax.__version_info__ < _OLDEST:
        return False
    settings = jax.config.values
    if settings.get("jax_compilation_cache_dir") or settings.get("jax_disable_jit"):
        return False
    return jax.default_backend() == "cpu" and jax.device_count() == 1


def load(lowered: Any, path: Path) -> bool:
    """Give a lowered program its executable from a file; False if it has to be compiled."""
    try:
        data = path.read_bytes()
    except OSError:
        return False
    digest, data = data[:32], data[32:]
    if digest != hashlib.sha256(data).digest():
        return False
    try:
        with _quietly():
            program = deserialize_and_load(data, jax.tree.structure(lowered.args_info), lowered.out_tree)
        lowered._lowering._executable = program._executable
    except Exception as error:
        logger.debug("a compiled program was not loaded: %r", error)
        forget(lowered, path)
        return False
    with suppress(OSError):  # the time of last use
        os.utime(path)
    return True


def save(lowered: Any, path: Path) -> None:
    """Store the executable of a lowered program that has been called."""
    global _num_writes
    try:
        if lowered._lowering._executable is None:
            return
        data, _, _ = serialize(lowered.compile())
        _write(path, hashlib.sha256(data).digest() + data)
        if _num_writes % _WRITES_BETWEEN_SUMS == 0:
            _remove_oldest(path.parent)
        _num_writes += 1
    except Exception as error:
        logger.debug("a compiled program was not stored: %r", error)


def forget(lowered: Any, path: Path) -> None:
    """Have a program compiled whose stored executable failed, and for a time load none on this machine."""
    lowered._lowering._executable = None
    with suppress(OSError):
        _mark(path.parent).touch(mode=0o600)


def path_of(lowered: Any) -> Path | None:
    """The file of a program, in a folder that exists; None if it cannot be stored."""
    try:
        path = _path(lowered)
        return None if path is None or _has_failed(path.parent) else path
    except Exception as error:
        logger.debug("a compiled program is not stored: %r", error)
        return None


@contextmanager
def _quietly() -> Iterator[None]:
    """Within the context XLA writes no errors: it says of every program that tuning is no feature of the processor.

    Programs are of this processor, by their key. JAX issue 38445.
    """
    level = jax.config.jax_logging_level  # type: ignore[attr-defined]
    levels = {"INFO": 0, "DEBUG": 0, "WARN": 1, "WARNING": 1, "ERROR": 2, "CRITICAL": 3, "FATAL": 3}
    absl_set_min_log_level(3)
    try:
        yield
    finally:
        absl_set_min_log_level(levels.get(level, int(os.environ.get("TF_CPP_MIN_LOG_LEVEL", 1))))


def _path(lowered: Any) -> Path | None:
    root = folder()
    if root is None:
        return None
    text = lowered.as_text()
    calls = re.findall(r"custom_call[\s@\"]+(\S+)", text)
    arguments = lowered._lowering.compile_args
    effects = (arguments["host_callbacks"], arguments["ordered_effects"], arguments["unordered_effects"])
    if not all(name.startswith(_KNOWN_CALLS) for name in calls) or any(effects) or lowered._lowering.const_args:
        return None
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if hasattr(os, "getuid"):
        status = root.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            # A file holds code that is run.
            raise PermissionError(f"{root} can be written to by other users")
    # The text has neither unused arguments, nor which of Python's numbers are of weak type.
    described = [repr(arguments[name]) for name in _ARGUMENTS] + [repr(jax.tree.leaves(lowered.args_info))]
    options = repr(lowered._lowering._compiler_options_kvs), repr(sorted(jax.config.values.items()))
    return root / f"{_digest(_machine(), *options, *described, text)}.program"


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


@cache
def _machine() -> str:
    """All that XLA compiles for, and that a file can be read by."""
    packages = jax.__version__, jaxlib.__version__, jax.devices()[0].client.platform_version, sys.version
    cores = os.cpu_count(), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    variables = sorted((name, value) for name, value in os.environ.items() if name.startswith(_VARIABLES))
    flags = [argument for argument in sys.argv if argument.startswith("--xla")]
    return repr((packages, platform.system(), platform.machine(), _processor(), cores, variables, flags))


def _processor() -> str:
    """Model and instruction sets of the processor: machines can share a home folder."""
    if sys.platform == "linux":
        return _lasting(Path("/proc/cpuinfo").read_text().split("\n\n")[0])
    if sys.platform == "darwin":
        return subprocess.check_output(["sysctl", "machdep.cpu", "hw.optional"], text=True)
    return platform.processor()


def _lasting(lines: str) -> str:
    """The lines of /proc/cpuinfo without those that differ between cores or from time to time."""
    changing = r"(processor|cpu MHz|bogomips|physical id|core id|(initial )?apicid)\s*:"
    return "\n".join(line for line in lines.splitlines() if not re.match(changing, line, re.I))


def _mark(root: Path) -> Path:
    """A file that says when a stored program of this machine failed."""
    return root / f"{_digest(_machine())}.failed"


def _has_failed(root: Path) -> bool:
    try:
        return time.time() - _mark(root).stat().st_mtime < _SECONDS_BETWEEN_TRIALS
    except FileNotFoundError:
        return False


def _write(path: Path, data: bytes) -> None:
    """Write a file under a name of its own, then rename it: several processes may write the same program."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _remove_oldest(root: Path) -> None:
    """Remove files that were used least recently, beyond MAX_BYTES."""
    with os.scandir(root) as entries:
        files = sorted(
            (entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in entries if entry.is_file()
        )
    excess = sum(size for _, size, _ in files) - MAX_BYTES
    for _, size, path in files:
        if excess <= 0:
            break
        with suppress(OSError):  # removed by another process, or in use on Windows
            os.unlink(path)
        excess -= size
