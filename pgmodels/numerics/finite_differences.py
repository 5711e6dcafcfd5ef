"""Hessians by finite differences of gradients."""

from collections.abc import Callable

import numpy as np

_STEP = 0.05


def hessian(gradient: Callable[[np.ndarray], np.ndarray], x: np.ndarray, *, central: bool) -> np.ndarray:
    """The symmetric Hessian at x (d,), for entries of unit scale.

    ``central`` differences take 2 d gradients instead of d + 1, and have an error of second order.
    """
    at = None if central else gradient(x)
    slopes = [gradient(x + step) - (gradient(x - step) if at is None else at) for step in _STEP * np.eye(len(x))]
    H = np.array(slopes) / (2.0 * _STEP if central else _STEP)
    return 0.5 * (H + H.T)
