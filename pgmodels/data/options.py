"""Checks of numerical options, before any work."""

from typing import Any

import numpy as np

from pgmodels.runtime.formatting import shorten


def check_whole_number(value: Any, name: str, least: int) -> None:
    """Raise ValueError if an option is not a whole number >= ``least``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name} must be a whole number >= {least}; got {shorten(value)}.")


def check_between(value: Any, name: str, low: float, high: float) -> None:
    """Raise ValueError if an option is not a number strictly between ``low`` and ``high``."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not low < float(value) < high:
        limits = f"between {low:g} and {high:g}" if np.isfinite(high) else f"> {low:g}"
        raise ValueError(f"{name} must be a finite number {limits}; got {shorten(value)}.")
