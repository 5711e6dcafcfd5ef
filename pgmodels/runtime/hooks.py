"""Hooks that other subpackages implement for results, models and comparisons: display, export, saving, resuming.

Results, models and comparisons do not import reporting, other libraries or inference: they call these functions, for
which ``report``, ``interop`` and ``inference`` register an implementation for each class.
"""

from functools import singledispatch
from typing import Any


@singledispatch
def line(value: object) -> str:
    """A one-line summary of an object, without costly computations."""
    raise _not_registered("line", value)


@singledispatch
def status(value: object) -> str:
    """What an engine did, in one or two lines: objective, convergence, bound or log evidence, and correction."""
    raise _not_registered("status", value)


@singledispatch
def text(value: object) -> str:
    """The text of an object for a terminal."""
    raise _not_registered("text", value)


@singledispatch
def html(value: object) -> str:
    """The HTML of an object for a notebook."""
    raise _not_registered("html", value)


@singledispatch
def figure(value: object) -> Any:
    """An object as a matplotlib Figure."""
    raise _not_registered("figure", value)


@singledispatch
def report(value: object, path: Any, **options: Any) -> Any:
    """Write a report on an object to an HTML file; returns its path."""
    raise _not_registered("report", value)


@singledispatch
def arviz(value: object, **options: Any) -> Any:
    """An object as an xarray.DataTree for ArviZ."""
    raise _not_registered("arviz", value)


@singledispatch
def save(value: object, path: Any) -> Any:
    """Save an object to one file; returns its path."""
    raise _not_registered("save", value)


@singledispatch
def extend(value: object, num_samples: int, progress: bool | None) -> Any:
    """Draws continued by ``num_samples`` more of each chain."""
    raise _not_registered("extend", value)


@singledispatch
def moments_at(value: object, X_new: Any) -> Any:
    """Means and covariances of a result's latents at new inputs, for each of its mixture components."""
    raise _not_registered("moments_at", value)


@singledispatch
def joint_moments_at(value: object, X_new: Any, point: int) -> Any:
    """Means and joint covariance of a result's latents at new inputs, at one of its hyperparameter points."""
    raise _not_registered("joint_moments_at", value)


@singledispatch
def nested_marginals(value: object, X_new: Any, Phi: Any) -> Any:
    """Nested variational marginals of a result's latents, or of predictors Φ f of them, at new inputs."""
    raise _not_registered("nested_marginals", value)


def _not_registered(name: str, value: object) -> NotImplementedError:
    return NotImplementedError(f"no implementation is registered with hooks.{name} for {type(value).__name__}.")
