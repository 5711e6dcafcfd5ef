"""Double precision for the package's own computations, without touching global state, in a process that can do them."""

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

P = ParamSpec("P")
R = TypeVar("R")


# The process in which the package first computed.
_home: int | None = None


def check_process() -> None:
    """Raise RuntimeError in a process forked from one that has computed, where JAX would wait for its lost threads."""
    global _home
    _home = os.getpid() if _home is None else _home
    if _home != os.getpid():
        raise RuntimeError(
            "this process was forked from one in which pgmodels had computed, and JAX would wait here for ever for the "
            "threads that a fork leaves behind. Start processes afresh: multiprocessing.get_context('spawn'), "
            "concurrent.futures.ProcessPoolExecutor(mp_context=...) with it, or joblib.Parallel as it is."
        )


def double_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Run a public entry point with 64-bit JAX arithmetic and restore the caller's setting afterwards.

    Raises RuntimeError in a process forked from one that has computed.
    """

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        check_process()
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return wrapped


_OF_HOST = (np.ndarray, np.generic, bool, int, float, complex)


def as_array(value: Any) -> Array:
    """``jnp.asarray``, which compiles a program for each new shape of a NumPy array and for numbers; this does not."""
    return jax.device_put(value) if isinstance(value, _OF_HOST) else jnp.asarray(value)
