"""Threads of the linear algebra library, and cores to run on."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, wraps
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

R = TypeVar("R")

# Up to this many rows one thread factorises about as fast as several, and on a busy machine far faster: several threads
# wait for each other inside every small factorisation (455 rows, 2 cores, 2 other processes: 10 ms against 1,270 ms).
SMALL = 1500


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def one_thread_up_to(num_rows: int) -> AbstractContextManager[Any]:
    """One BLAS thread within the context where the rows are few."""
    return _libraries().limit(limits=1, user_api="blas") if num_rows <= SMALL else nullcontext()


@cache
def _libraries() -> ThreadpoolController:
    """The libraries that NumPy and SciPy brought along; looking for them takes as long as a small factorisation."""
    return ThreadpoolController()


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
