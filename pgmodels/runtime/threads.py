"""The number of BLAS threads, and of available cores."""

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from threadpoolctl import OpenBLASController, ThreadpoolController

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
        X = args[1] if len(args) > 1 else options.get("X")
        with one_thread_up_to(_num_rows(X)):
            return engine(*args, **options)

    return wrapped


def _num_rows(X: Any) -> int:
    """The number of rows of unchecked inputs, 0 if they have no shape."""
    shape = getattr(X, "shape", (len(X),) if isinstance(X, (list, tuple)) else ())
    return int(shape[0]) if shape else 0
