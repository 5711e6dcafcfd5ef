"""Double precision within the package, without changing JAX's global setting, and a check for forked processes."""

import os
from collections.abc import Callable
from functools import cached_property, wraps
from inspect import isfunction
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pgmodels.runtime.interruption import no_lost_interrupt

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

    Ctrl-C is not lost meanwhile. Raises RuntimeError in a process forked from one that has computed.
    """

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        check_process()
        with jax.enable_x64(True), no_lost_interrupt():
            return function(*args, **kwargs)

    return wrapped


class DoublePrecision:
    """A class whose public methods and properties enter double precision, as ``double_precision`` does.

    Those that its subclasses define do so too.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, member in list(vars(cls).items()):
            if name.startswith("_") and name not in ("__init__", "__post_init__", "__call__"):
                continue
            if isinstance(member, cached_property):
                member.func = double_precision(member.func)
            elif isinstance(member, property) and member.fget is not None:
                setattr(cls, name, member.getter(double_precision(member.fget)))
            elif isinstance(member, classmethod | staticmethod):
                setattr(cls, name, type(member)(double_precision(member.__func__)))
            elif isfunction(member):
                setattr(cls, name, double_precision(member))


_HOST_TYPES = (np.ndarray, np.generic, bool, int, float, complex)


def as_array(value: Any) -> Array:
    """``jnp.asarray`` without compilation: JAX's compiles a program for each new shape of a NumPy array."""
    return jax.device_put(value) if isinstance(value, _HOST_TYPES) else jnp.asarray(value)
