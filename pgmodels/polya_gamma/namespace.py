"""Which library computes with an array."""

from types import ModuleType

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike


def namespace(array: ArrayLike) -> ModuleType:
    """NumPy for its own arrays, jax.numpy for everything else.

    Formulas that both the samplers in JAX and those on the host need are written once: code that runs in a callback
    must not call JAX.
    """
    return np if isinstance(array, np.ndarray) else jnp
