"""Texts for users: numbers in messages, warnings at the caller's line, progress, provenance."""

from __future__ import annotations

import datetime
import inspect
import platform
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from pgmodels.runtime.seeds import is_distribution

if TYPE_CHECKING:
    from numpyro.distributions import Distribution
    from numpyro.distributions.constraints import Constraint

# Packages whose frames may lie between the user's line and the warning.
_INSIDE = ("pgmodels", "equinox", "jax", "jaxtyping", "beartype", "functools")

_suppressed: ContextVar[tuple[type[Warning], ...]] = ContextVar("suppressed", default=())
_renamed: ContextVar[tuple[tuple[type[Warning], type[Warning]], ...]] = ContextVar("renamed", default=())
_raised: ContextVar[tuple[type[Warning], ...]] = ContextVar("raised", default=())


class PgmodelsWarning(UserWarning):
    """The base class of all warnings of the package."""


@contextmanager
def _within(variable: ContextVar[tuple[Any, ...]], entry: object) -> Iterator[None]:
    token = variable.set((*variable.get(), entry))
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def suppress_warnings(category: type[Warning]) -> Iterator[None]:
    """Suppress the package's warnings of a category within the context, in this thread only.

    ``warnings.catch_warnings`` changes the filters of the whole process, and overlapping threads would restore each
    other's filters.
    """
    with _within(_suppressed, category):
        yield


def raised(category: type[Warning]) -> AbstractContextManager[None]:
    """Raise the package's warnings of a category as exceptions within the context, in this thread only."""
    return _within(_raised, category)


def renamed(category: type[Warning], other: type[Warning]) -> AbstractContextManager[None]:
    """Emit the package's warnings of a category as another category within the context, in this thread only."""
    return _within(_renamed, (category, other))


def warn(message: str, category: type[Warning]) -> None:
    """Emit a warning, attributed to the first line outside of the package."""
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


# Text of numbers, NumPyro distributions and constraints, as a user would type them.

# The number of entries up to which an array is printed entry by entry.
_ENTRIES = 20


def write_value(value: object) -> str:
    """Return numbers or nested lists of numbers to six digits, many numbers as a range, other values as ``str``."""
    if value is None or isinstance(value, (str, bool, jax.core.Tracer)):
        return str(value)
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        return str(value)
    if array.size > _ENTRIES:
        shape = " x ".join(map(str, array.shape))
        return f"<{shape} numbers from {write_value(np.min(array))} to {write_value(np.max(array))}>"
    rounded = np.array([entry if array.dtype.kind != "f" else float(f"{entry:.6g}") for entry in array.flat])
    return repr(rounded.reshape(array.shape).tolist())


def shorten(value: object) -> str:
    """Return ``repr`` of a value for an error message, shortened; for arrays, shape and type."""
    if isinstance(value, (np.ndarray, jax.Array)) and value.size > _ENTRIES:
        return f"an array of shape {value.shape} and type {value.dtype}"
    return shorten_text(repr(value))


def shorten_text(text: str) -> str:
    """Return a text for an error message; a long text is shortened to its beginning and end."""
    return text if len(text) <= 200 else f"{text[:100]} ... {text[-100:]}"


def write_distribution(distribution: Distribution) -> str:
    """Return a distribution with its arguments as text, ``LogNormal(0.0, 1.0)``."""
    from numpyro.distributions import ExpandedDistribution, Independent

    if isinstance(distribution, ExpandedDistribution):
        return f"{write_distribution(distribution.base_dist)}.expand({list(distribution.batch_shape)})"
    if isinstance(distribution, Independent):
        return f"{write_distribution(distribution.base_dist)}.to_event({distribution.reinterpreted_batch_ndims})"
    kind = type(distribution)
    names = [name for name in inspect.signature(kind).parameters if name != "validate_args"]
    if not all(hasattr(distribution, name) for name in names):
        return f"{kind.__name__}(...)"
    return f"{kind.__name__}({', '.join(_write_argument(getattr(distribution, name)) for name in names)})"


def _write_argument(value: object) -> str:
    if is_distribution(value):
        return write_distribution(value)
    if value is None or isinstance(value, (bool, int, float)):
        return write_value(value)
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return f"array({write_value(value)})" if value.ndim else write_value(value)
    # A repr may hold an address, which differs between processes.
    return f"{type(value).__name__}(...)"


def write_constraint(constraint: Constraint) -> str:
    """Return a constraint's name in ``numpyro.distributions.constraints``, with its bounds, if any."""
    from numpyro.distributions import constraints

    for name, value in vars(constraints).items():
        if type(value) is type(constraint) and value == constraint:
            return name
    bounds = [getattr(constraint, name) for name in ("lower_bound", "upper_bound") if hasattr(constraint, name)]
    for name in ("interval", "greater_than", "less_than"):
        if bounds and getattr(constraints, name) is type(constraint):
            return f"{name}({', '.join(map(write_value, bounds))})"
    return str(constraint)


class ProgressBar:
    """A progress bar; ``advance`` moves it and may show a short note."""

    def __init__(self, move: Callable[[int, str], None] | None):
        self._move = move

    @property
    def visible(self) -> bool:
        """Whether the bar is shown."""
        return self._move is not None

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Advance the bar by some steps."""
        if self._move is not None:
            self._move(steps, note)


def shows_progress(enabled: bool | None) -> bool:
    """Return whether to show progress: in a terminal or a notebook, unless it is turned off."""
    if enabled is False:
        return False
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_jupyter:
        # Without ipywidgets, rich shows a warning and no bar.
        return find_spec("ipywidgets") is not None
    # With FORCE_COLOR or TTY_COMPATIBLE, rich treats a file as a terminal.
    is_real = sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()
    return is_real and console.is_terminal and console.is_interactive


@contextmanager
def progress_bar(description: str, total: int, enabled: bool | None) -> Iterator[ProgressBar]:
    """Yield a bar of ``total`` steps, shown if ``shows_progress(enabled)``."""
    if not shows_progress(enabled):
        yield ProgressBar(None)
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
        bars.TextColumn("{task.fields[note]}"),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(description, total=total, note="")
        yield ProgressBar(lambda steps, note: progress.update(task, advance=steps, note=note))


VERSIONED = ("pgmodels", "numpy", "scipy", "jax", "jaxlib", "numpyro", "polyagamma", "arviz-stats")


def environment() -> dict[str, Any]:
    """Return the date (UTC), the machine, and the versions of the numerical packages."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        "versions": {name: version(name) for name in VERSIONED},
    }
