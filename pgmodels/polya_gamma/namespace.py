"""The array library of an array: NumPy or jax.numpy."""

from types import ModuleType

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike


def namespace(array: ArrayLike) -> ModuleType:
    """NumPy for NumPy arrays, jax.numpy for everything else.

    Lets the samplers in JAX and those on the host share formulas: code that runs in a callback must not call JAX.
    """
    return np if isinstance(array, np.ndarray) else jnp
