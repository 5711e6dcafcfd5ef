"""Random keys from seeds, and draws of NumPyro distributions."""

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np

if TYPE_CHECKING:
    from numpyro.distributions import Distribution
    from numpyro.distributions.constraints import Constraint
    from typing_extensions import TypeIs


# Accepted types of ``seed``.
Seed: TypeAlias = int | jax.Array

# Seeds are whole numbers below this: accepted by JAX in double precision and by NumPy.
NUM_SEEDS = 2**63


def as_seed(seed: Seed) -> int:
    """Return the seed as an int; ``jax.random.key(n)`` gives ``n``. Raise ValueError as ``as_key`` does."""
    if _is_whole(seed):
        if not 0 <= seed < NUM_SEEDS:
            raise _invalid(seed)
        return int(seed)
    number = 0
    for word in np.asarray(jax.random.key_data(as_key(seed))).ravel().tolist():
        number = (number << 32) | word
    return number % NUM_SEEDS


def as_key(seed: Seed) -> jax.Array:
    """Return a JAX key from an int or a key. Raise ValueError for other values, and for several keys."""
    if _is_whole(seed):
        return _key_of(as_seed(seed))
    if isinstance(seed, jax.Array):
        if jax.numpy.issubdtype(seed.dtype, jax.dtypes.prng_key) and seed.shape == ():
            return seed
        # The key is from jax.random.PRNGKey.
        if seed.dtype == np.uint32 and seed.shape == jax.random.PRNGKey(0).shape:
            return jax.random.wrap_key_data(seed)
    raise _invalid(seed)


def _key_of(seed: int) -> jax.Array:
    """Return ``jax.random.key(seed)``, without compiling its programs if keys are of JAX's usual kind."""
    config: Any = jax.config
    usual = config.jax_default_prng_impl == "threefry2x32" and not config.jax_random_seed_offset
    if not usual or not config.jax_enable_x64:
        return jax.random.key(seed)
    return jax.random.wrap_key_data(jax.device_put(np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)))


def as_generator(seed: Seed) -> np.random.Generator:
    """Return a NumPy generator from an int or a key. Raise ValueError as ``as_key`` does."""
    return np.random.default_rng(as_seed(seed))


def _invalid(seed: Any) -> ValueError:
    # Python refuses to print numbers of thousands of digits.
    is_long = isinstance(seed, int) and seed.bit_length() > 256
    shown = f"a number of {seed.bit_length()} bits" if is_long else repr(seed)
    return ValueError(
        f"seed must be a whole number from 0 to 2**63 - 1, or one JAX key such as jax.random.key(0); got {shown}."
    )


def _is_whole(seed: object) -> "TypeIs[int | np.integer]":
    return isinstance(seed, (int, np.integer)) and not isinstance(seed, bool)


# NumPyro loads in 0.1 s. If it is not loaded, no object can be of its classes, and it need not be loaded.


def is_distribution(value: object) -> "TypeIs[Distribution]":
    """Return whether a value is a NumPyro distribution."""
    return isinstance(value, _class("numpyro.distributions", "Distribution"))


def is_constraint(value: object) -> "TypeIs[Constraint]":
    """Return whether a value is a NumPyro constraint."""
    return isinstance(value, _class("numpyro.distributions.constraints", "Constraint"))


def _class(module: str, name: str) -> Any:
    """Return a class of a module; no class if the module is not loaded, or if another thread is still loading it."""
    return getattr(sys.modules.get(module), name, ())
