"""Random seeds: a whole number or a JAX key, checked before any work."""

from typing import Any

import jax
import numpy as np

# Seeds are whole numbers below this: accepted by JAX in double precision and by NumPy.
NUM_SEEDS = 2**63


def as_seed(seed: Any) -> int:
    """The seed as an int. Raises ValueError where it is not a whole number from 0 to 2**63 - 1."""
    if not _is_whole(seed) or not 0 <= seed < NUM_SEEDS:
        raise ValueError(f"seed must be a whole number from 0 to 2**63 - 1, such as 0; got {_shown(seed)}.")
    return int(seed)


def as_key(seed: Any) -> Any:
    """A JAX key from an int or a key. Raises ValueError for anything else, and for several keys."""
    if _is_whole(seed):
        return jax.random.key(as_seed(seed))
    if isinstance(seed, jax.Array):
        if jax.numpy.issubdtype(seed.dtype, jax.dtypes.prng_key) and seed.shape == ():
            return seed
        # A key made by jax.random.PRNGKey.
        if seed.dtype == np.uint32 and seed.shape == jax.random.PRNGKey(0).shape:
            return jax.random.wrap_key_data(seed)
    raise ValueError(
        "seed must be a whole number from 0 to 2**63 - 1, or one JAX key such as jax.random.key(0); got "
        f"{_shown(seed)}."
    )


def _is_whole(seed: Any) -> bool:
    return isinstance(seed, (int, np.integer)) and not isinstance(seed, bool)


def _shown(seed: Any) -> str:
    """The seed for a message; Python refuses to print numbers of thousands of digits."""
    return f"a number of {seed.bit_length()} bits" if isinstance(seed, int) and seed.bit_length() > 256 else repr(seed)
