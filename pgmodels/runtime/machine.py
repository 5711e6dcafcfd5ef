"""What the machine has: memory and threads."""

import math
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from threadpoolctl import OpenBLASController, ThreadpoolController

_GIGABYTE = 1e9


# Memory limit and usage of a container in the two versions of Linux control groups, and caches that are reclaimable.
_GROUP = Path("/sys/fs/cgroup")
_LIMITS = ("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")
_RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")


def available_memory() -> float:
    """Bytes that this process can still allocate, by Linux and the limit of its addresses; infinite where unknown."""
    limits = [_available_in(*(_GROUP / name for name in names)) for names in _LIMITS]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        lines = []
    limits += [1024.0 * float(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return min(*limits, _available_addresses())


def _available_addresses() -> float:
    """What is left of the limit that ``ulimit -v`` sets, beyond which an allocation ends the process."""
    try:
        import resource
    except ImportError:  # not on Windows
        return math.inf
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return math.inf
    return limit - _read(Path("/proc/self/statm")) * resource.getpagesize()


def _available_in(limit: Path, usage: Path) -> float:
    """The limit of a control group less its usage, without reclaimable caches."""
    most, used = _read(limit), _read(usage)
    if math.inf in (most, used):
        return most
    try:
        lines = [line.split() for line in (limit.parent / "memory.stat").read_text().splitlines()]
    except OSError:
        lines = []
    return most - used + sum(float(number) for name, number in lines if name in _RECLAIMABLE)


def _read(path: Path) -> float:
    """The first number in a file; infinity if there is none."""
    try:
        return float(path.read_text().split()[0])
    except (IndexError, OSError, ValueError):
        return math.inf


def require_memory(needed: float, what: str, remedy: str) -> None:
    """Raise MemoryError where more bytes are needed than are available."""
    available = available_memory()
    if needed > available:
        raise MemoryError(
            f"{what} take {needed / _GIGABYTE:.1f} GB of memory, and {available / _GIGABYTE:.1f} GB are available. "
            f"{remedy}"
        )


def require_draws(num_draws: int, num_rows: int, num_latents: int, matrices: float = 0.0) -> None:
    """Raise MemoryError where draws of latents at rows, and the bytes of matrices for them, need more than there is."""
    # Draws, their noise, and what is computed of them.
    needed = 4.0 * 8.0 * num_draws * num_rows * num_latents + matrices
    fewer = "fewer rows" if matrices > 0.5 * needed else "fewer rows or draws"
    require_memory(needed, f"{num_draws:,} draws of the latents at {num_rows:,} rows", f"Ask for {fewer}.")


# The number of BLAS threads, and of available cores.

P = ParamSpec("P")
R = TypeVar("R")

# Up to this many rows one BLAS thread factorises about as fast as several, and on a busy machine far faster: threads
# wait for each other within every small factorisation (455 rows, 2 cores, 2 other processes: 10 ms against 1,270 ms).
SMALL = 1500


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _OneThread:
    """A context of one BLAS thread, shared by Python threads: the first to enter sets it, the last to exit restores.

    The number of BLAS threads is global in a process: separate contexts in overlapping threads could restore the 1 that
    another thread has set.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._within = 0
        self._limit: Any = None
        # Finding the BLAS libraries of NumPy and SciPy takes as long as a small factorisation.
        self._libraries: ThreadpoolController | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._within == 0:
                self._libraries = self._libraries or ThreadpoolController()
                self._limit = self._libraries.limit(limits=1, user_api="blas")
                _release_control()
            self._within += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._within -= 1
            if self._within == 0:
                self._limit.restore_original_limits()
                _release_control()


def _release_control() -> None:
    """Let any thread set the number: from threadpoolctl 3.7 on only the thread that set it may set it again."""
    release = getattr(OpenBLASController, "clear_controlling_thread", None)
    if release is not None:
        release()


_one_thread = _OneThread()


def one_thread_up_to(num_rows: int) -> AbstractContextManager[Any]:
    """One BLAS thread within the context, if there are at most ``SMALL`` rows."""
    return _one_thread if num_rows <= SMALL else nullcontext()


def one_thread_if_small(engine: Callable[P, R]) -> Callable[P, R]:
    """Run an engine (model, X, ...) on one BLAS thread if X has few rows; the setting is restored afterwards."""

    @wraps(engine)
    def wrapped(*args: P.args, **options: P.kwargs) -> R:
        X: Any = args[1] if len(args) > 1 else options.get("X")
        # X is not checked yet.
        shape = getattr(X, "shape", (len(X),) if isinstance(X, (list, tuple)) else ())
        with one_thread_up_to(int(shape[0]) if shape else 0):
            return engine(*args, **options)

    return wrapped
