"""Warnings in the name of the line that called the package, however deep inside it they arise."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

# Packages through which a call may pass on its way.
_INSIDE = ("pgmodels", "equinox", "jax", "jaxtyping", "beartype", "functools")

_unsaid: ContextVar[tuple[type[Warning], ...]] = ContextVar("unsaid", default=())
_raised: ContextVar[tuple[type[Warning], ...]] = ContextVar("raised", default=())


@contextmanager
def unsaid(category: type[Warning]) -> Iterator[None]:
    """Within the context the package's own warnings of a category are not given, in this thread alone.

    ``warnings.catch_warnings`` changes the filters of the process: of threads that overlap, the last would leave those
    of another behind.
    """
    token = _unsaid.set((*_unsaid.get(), category))
    try:
        yield
    finally:
        _unsaid.reset(token)


@contextmanager
def raised(category: type[Warning]) -> Iterator[None]:
    """Within the context the package's own warnings of a category are exceptions, in this thread alone."""
    token = _raised.set((*_raised.get(), category))
    try:
        yield
    finally:
        _raised.reset(token)


def warn(message: str, category: type[Warning]) -> None:
    """Warn of the first line outside the package."""
    if issubclass(category, _unsaid.get()):
        return
    if issubclass(category, _raised.get()):
        raise category(message)
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and _is_inside(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _is_inside(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__", "")
    # Functions whose shapes are checked are called from code without a file.
    return name.partition(".")[0] in _INSIDE or frame.f_code.co_filename.startswith("<@beartype")
