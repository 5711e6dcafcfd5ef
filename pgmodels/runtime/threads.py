"""Threads of the linear algebra library, and cores to run on."""

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, TypeVar

from threadpoolctl import OpenBLASController, ThreadpoolController

R = TypeVar("R")

# Up to this many rows one thread factorises about as fast as several, and on a busy machine far faster: several threads
# wait for each other inside every small factorisation (455 rows, 2 cores, 2 other processes: 10 ms against 1,270 ms).
SMALL = 1500


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _OneThread:
    """A context of one BLAS thread, which Python threads share: the first in sets it, the last out restores."""

    # The number is the process's. Each for itself would restore what it found, which may be another's one.
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._within = 0
        self._limit: Any = None
        # Looking for the libraries that NumPy and SciPy brought along takes as long as a small factorisation.
        self._libraries: ThreadpoolController | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._within == 0:
                self._libraries = self._libraries or ThreadpoolController()
                self._limit = self._libraries.limit(limits=1, user_api="blas")
                _let_go()
            self._within += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._within -= 1
            if self._within == 0:
                self._limit.restore_original_limits()
                _let_go()


def _let_go() -> None:
    """Leave the number to any thread: from threadpoolctl 3.7 on only the one that has set it may do so again."""
    release = getattr(OpenBLASController, "clear_controlling_thread", None)
    if release is not None:
        release()


_one_thread = _OneThread()


def one_thread_up_to(num_rows: int) -> AbstractContextManager[Any]:
    """One BLAS thread within the context where the rows are few."""
    return _one_thread if num_rows <= SMALL else nullcontext()


def one_thread_if_small(engine: Callable[..., R]) -> Callable[..., R]:
    """Run an engine (model, X, ...) on one BLAS thread where X has few rows; the setting is restored afterwards."""

    @wraps(engine)
    def wrapped(model: Any, X: Any, *args: Any, **options: Any) -> R:
        with one_thread_up_to(_num_rows(X)):
            return engine(model, X, *args, **options)

    return wrapped


def _num_rows(X: Any) -> int:
    """The rows of inputs that are not checked yet; none where they have none."""
    shape = getattr(X, "shape", (len(X),) if isinstance(X, (list, tuple)) else ())
    return int(shape[0]) if shape else 0
