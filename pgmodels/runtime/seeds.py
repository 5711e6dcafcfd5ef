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
    """The seed as an int; ``jax.random.key(n)`` gives ``n``. Raises ValueError as ``as_key`` does."""
    if _is_whole(seed):
        if not 0 <= seed < NUM_SEEDS:
            raise _invalid(seed)
        return int(seed)
    number = 0
    for word in np.asarray(jax.random.key_data(as_key(seed))).ravel().tolist():
        number = (number << 32) | word
    return number % NUM_SEEDS


def as_key(seed: Seed) -> jax.Array:
    """A JAX key from an int or a key. Raises ValueError for anything else, and for several keys."""
    if _is_whole(seed):
        return _key_of(as_seed(seed))
    if isinstance(seed, jax.Array):
        if jax.numpy.issubdtype(seed.dtype, jax.dtypes.prng_key) and seed.shape == ():
            return seed
        # A key made by jax.random.PRNGKey.
        if seed.dtype == np.uint32 and seed.shape == jax.random.PRNGKey(0).shape:
            return jax.random.wrap_key_data(seed)
    raise _invalid(seed)


def _key_of(seed: int) -> jax.Array:
    """``jax.random.key(seed)``, without compiling its programs where keys are of JAX's usual kind."""
    config: Any = jax.config
    usual = config.jax_default_prng_impl == "threefry2x32" and not config.jax_random_seed_offset
    if not usual or not config.jax_enable_x64:
        return jax.random.key(seed)
    return jax.random.wrap_key_data(jax.device_put(np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)))


def as_generator(seed: Seed) -> np.random.Generator:
    """A NumPy generator from an int or a key. Raises ValueError as ``as_key`` does."""
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


# NumPyro takes a tenth of a second to load: where it is not loaded, no object is one of its classes.


def is_distribution(value: object) -> "TypeIs[Distribution]":
    """Whether a value is a NumPyro distribution."""
    return isinstance(value, _class("numpyro.distributions", "Distribution"))


def is_constraint(value: object) -> "TypeIs[Constraint]":
    """Whether a value is a NumPyro constraint."""
    return isinstance(value, _class("numpyro.distributions.constraints", "Constraint"))


def _class(module: str, name: str) -> Any:
    """A class of a module, none where that is not loaded or, by another thread, not yet to its end."""
    return getattr(sys.modules.get(module), name, ())
