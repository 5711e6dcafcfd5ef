"""Text of numbers, NumPyro distributions and constraints, as a user would type them."""

import inspect
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from pgmodels.runtime.distributions import is_distribution

if TYPE_CHECKING:
    from numpyro.distributions import Distribution
    from numpyro.distributions.constraints import Constraint

# Significant digits of printed values, and the largest array that is printed entry by entry.
_DIGITS, _ENTRIES = 6, 20
# The most characters of a value in an error message.
_LENGTH = 200


def write_value(value: Any) -> str:
    """A number, or nested lists of numbers, to six digits; the range of many numbers; ``str`` of anything else."""
    if value is None or isinstance(value, (str, bool, jax.core.Tracer)):
        return str(value)
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        return str(value)
    if array.size > _ENTRIES:
        shape = " x ".join(map(str, array.shape))
        return f"<{shape} numbers from {write_value(np.min(array))} to {write_value(np.max(array))}>"
    rounded = np.array([entry if array.dtype.kind != "f" else float(f"{entry:.{_DIGITS}g}") for entry in array.flat])
    return repr(rounded.reshape(array.shape).tolist())


def shorten(value: Any) -> str:
    """``repr`` of a value for an error message: of arrays shape and type, and else its beginning and end."""
    if isinstance(value, (np.ndarray, jax.Array)) and value.size > _ENTRIES:
        return f"an array of shape {value.shape} and type {value.dtype}"
    return shorten_text(repr(value))


def shorten_text(text: str) -> str:
    """A text for an error message: of a long one its beginning and end."""
    half = _LENGTH // 2
    return text if len(text) <= _LENGTH else f"{text[:half]} ... {text[-half:]}"


def write_distribution(distribution: "Distribution") -> str:
    """A distribution with its arguments: ``LogNormal(0.0, 1.0)``."""
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


def _write_argument(value: Any) -> str:
    if is_distribution(value):
        return write_distribution(value)
    if value is None or isinstance(value, (bool, int, float)):
        return write_value(value)
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return f"array({write_value(value)})" if value.ndim else write_value(value)
    # A repr may hold an address, which differs between processes.
    return f"{type(value).__name__}(...)"


def write_constraint(constraint: "Constraint") -> str:
    """A constraint by its name in ``numpyro.distributions.constraints``, with its bounds, if any."""
    from numpyro.distributions import constraints

    for name, value in vars(constraints).items():
        if type(value) is type(constraint) and value == constraint:
            return name
    bounds = [getattr(constraint, name) for name in ("lower_bound", "upper_bound") if hasattr(constraint, name)]
    for name in ("interval", "greater_than", "less_than"):
        if bounds and getattr(constraints, name) is type(constraint):
            return f"{name}({', '.join(map(write_value, bounds))})"
    return str(constraint)
