"""Double precision within the package, without changing JAX's global setting, and a check for forked processes."""

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


# The id of the process in which the package first computed.
_first_process: int | None = None


def check_process() -> None:
    """Raise RuntimeError in a process forked from one that has computed, where JAX would deadlock."""
    global _first_process
    _first_process = os.getpid() if _first_process is None else _first_process
    if _first_process != os.getpid():
        raise RuntimeError(
            "this process was forked from one in which pgmodels had computed; a fork lacks JAX's threads, and JAX "
            "would wait for them forever. Start new processes by spawn: multiprocessing.get_context('spawn'), "
            "concurrent.futures.ProcessPoolExecutor(mp_context=...) with that context, or joblib.Parallel."
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


_HOST_TYPES = (np.ndarray, np.generic, bool, int, float, complex)


def as_array(value: Any) -> Array:
    """``jnp.asarray`` without compilation: JAX's compiles a program for each new shape of a NumPy array."""
    return jax.device_put(value) if isinstance(value, _HOST_TYPES) else jnp.asarray(value)
