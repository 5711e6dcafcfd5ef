"""The values of columns of X at which a kernel or a prior is defined: the lowest and the highest of each, (d, 2)."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float


def unlimited(num_columns: int) -> Float[np.ndarray, "d 2"]:
    """The limits of columns that may have any value."""
    return np.tile([-np.inf, np.inf], (num_columns, 1))


def intersection(limits: Sequence[Float[np.ndarray, "d 2"]]) -> Float[np.ndarray, "d 2"]:
    """The values that are within all limits."""
    lowest, highest = np.moveaxis(np.stack(limits), -1, 0)
    return np.stack([lowest.max(axis=0), highest.min(axis=0)], axis=1)
