"""Recognising NumPyro's distributions and constraints without loading NumPyro, which takes a tenth of a second.

Where it is not loaded, no object is one of its own.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpyro.distributions import Distribution
    from numpyro.distributions.constraints import Constraint
    from typing_extensions import TypeIs


def is_distribution(value: Any) -> "TypeIs[Distribution]":
    """Whether a value is a NumPyro distribution."""
    return isinstance(value, _class("numpyro.distributions", "Distribution"))


def is_constraint(value: Any) -> "TypeIs[Constraint]":
    """Whether a value is a NumPyro constraint."""
    return isinstance(value, _class("numpyro.distributions.constraints", "Constraint"))


def _class(module: str, name: str) -> Any:
    """A class of a module, none where that is not loaded or, by another thread, not yet to its end."""
    return getattr(sys.modules.get(module), name, ())
