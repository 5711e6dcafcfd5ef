"""Warnings in the name of the line that called the package, however deep inside it they arise."""

import sys
import warnings
from types import FrameType

# Packages through which a call may pass on its way.
_INSIDE = ("pgmodels", "equinox", "jax", "jaxtyping", "beartype", "functools")


def warn(message: str, category: type[Warning]) -> None:
    """Warn of the first line outside the package."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and _is_inside(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _is_inside(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__", "")
    # Functions whose shapes are checked are called from code without a file.
    return name.partition(".")[0] in _INSIDE or frame.f_code.co_filename.startswith("<@beartype")
