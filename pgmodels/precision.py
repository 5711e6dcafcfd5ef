"""Double precision for the package's own computations, without touching global state."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import jax

P = ParamSpec("P")
R = TypeVar("R")


def double_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Run a public entry point with 64-bit JAX arithmetic and restore the caller's setting afterwards."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return wrapped
