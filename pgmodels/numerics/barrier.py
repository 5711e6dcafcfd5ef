"""A barrier for line searches."""

import numpy as np


def barrier(x: np.ndarray, best: np.ndarray, value: float) -> tuple[float, np.ndarray]:
    """A value above that of the best point and its gradient, which send a line search from there back to it."""
    away = x - best
    if not np.isfinite(value) or not away.any():
        return np.inf, np.zeros_like(x)
    height = 1.0 + abs(value)
    return value + height, 2.0 * height * away / (away @ away)
