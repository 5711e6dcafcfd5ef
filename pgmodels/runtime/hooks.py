"""What results, models and comparisons are asked for and other rooms answer.

Data know neither the screen nor other libraries nor what runs on them: they call these functions, and ``report``,
``interop`` and ``inference`` register how each kind of thing is written, drawn, exported or gone on from.
"""

from functools import singledispatch
from typing import Any


@singledispatch
def line(thing: object) -> str:
    """A thing in a line, without what takes a computation."""
    raise _unanswered("line", thing)


@singledispatch
def text(thing: object) -> str:
    """A thing as a terminal shows it."""
    raise _unanswered("text", thing)


@singledispatch
def html(thing: object) -> str:
    """A thing as a notebook shows it."""
    raise _unanswered("html", thing)


@singledispatch
def figure(thing: object) -> Any:
    """A thing as a matplotlib Figure."""
    raise _unanswered("figure", thing)


@singledispatch
def report(thing: object, path: Any, **options: Any) -> Any:
    """Write a report on a thing to an HTML file; its path."""
    raise _unanswered("report", thing)


@singledispatch
def arviz(thing: object, **options: Any) -> Any:
    """A thing as an xarray.DataTree for ArviZ."""
    raise _unanswered("arviz", thing)


@singledispatch
def save(thing: object, path: Any) -> Any:
    """Write a thing to one file; its path."""
    raise _unanswered("save", thing)


@singledispatch
def extend(thing: object, num_samples: int, progress: bool | None) -> Any:
    """A thing and ``num_samples`` more of what it is made of."""
    raise _unanswered("extend", thing)


@singledispatch
def moments_at(thing: object, X_new: Any) -> Any:
    """Means and covariances of a thing's latents at new inputs, for each of its parts."""
    raise _unanswered("moments_at", thing)


@singledispatch
def joint_moments_at(thing: object, X_new: Any, point: int) -> Any:
    """Means and joint covariance of a thing's latents at new inputs, at one of its points."""
    raise _unanswered("joint_moments_at", thing)


def _unanswered(name: str, thing: object) -> NotImplementedError:
    return NotImplementedError(f"nothing is registered with generic.{name} for {type(thing).__name__}.")
