"""The package's warnings, attributed to the user's line that called the package."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

# Packages whose frames may lie between the user's line and the warning.
_INSIDE = ("pgmodels", "equinox", "jax", "jaxtyping", "beartype", "functools")

_suppressed: ContextVar[tuple[type[Warning], ...]] = ContextVar("suppressed", default=())
_renamed: ContextVar[tuple[tuple[type[Warning], type[Warning]], ...]] = ContextVar("renamed", default=())
_raised: ContextVar[tuple[type[Warning], ...]] = ContextVar("raised", default=())


class PgmodelsWarning(UserWarning):
    """The base class of all warnings of the package."""


@contextmanager
def suppress_warnings(category: type[Warning]) -> Iterator[None]:
    """Within the context the package does not emit warnings of a category, in this thread only.

    ``warnings.catch_warnings`` changes the filters of the whole process, and overlapping threads would restore each
    other's filters.
    """
    token = _suppressed.set((*_suppressed.get(), category))
    try:
        yield
    finally:
        _suppressed.reset(token)


@contextmanager
def raised(category: type[Warning]) -> Iterator[None]:
    """Within the context the package's own warnings of a category are exceptions, in this thread alone."""
    token = _raised.set((*_raised.get(), category))
    try:
        yield
    finally:
        _raised.reset(token)


@contextmanager
def renamed(category: type[Warning], other: type[Warning]) -> Iterator[None]:
    """Within the context the package's warnings of a category are of another one, in this thread alone."""
    token = _renamed.set((*_renamed.get(), (category, other)))
    try:
        yield
    finally:
        _renamed.reset(token)


def warn(message: str, category: type[Warning]) -> None:
    """Emit a warning, attributed to the first line outside the package."""
    if issubclass(category, _suppressed.get()):
        return
    if issubclass(category, _raised.get()):
        raise category(message)
    category = next((other for one, other in _renamed.get() if issubclass(category, one)), category)
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and _is_inside(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _is_inside(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__", "")
    # Beartype calls the functions that it checks from generated code without a file.
    return name.partition(".")[0] in _INSIDE or frame.f_code.co_filename.startswith("<@beartype")
