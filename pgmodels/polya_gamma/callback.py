"""Samplers that run on the host, called from inside compiled JAX code."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PRNGKeyArray

from pgmodels.polya_gamma.numpy_sampler import sample

Sampler = Callable[[np.random.Generator, np.ndarray, np.ndarray], np.ndarray]


def draw(key: PRNGKeyArray, b: Array, c: Array) -> Array:
    """Exact draws of PG(b, c) by ``sample``; under ``vmap`` one call for all keys, on which all draws depend."""
    return on_host(sample, key, b, c)


def on_host(sampler: Sampler, key: PRNGKeyArray, b: Array, c: Array) -> Array:
    """Call a host sampler with a generator seeded by the key (under ``vmap``, by all keys); returns float64."""
    seed = jax.random.bits(key, (4,), jnp.uint32)
    # JAX runs the callback in another thread, in single precision: doubles are passed as pairs of 32-bit words.
    words = [jax.lax.bitcast_convert_type(a, jnp.uint32) for a in (b, c)]

    def draw_words(seed: Array, b_words: Array, c_words: Array) -> np.ndarray:
        entropy = np.ascontiguousarray(seed, dtype=np.uint32).ravel()
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy.tolist())))
        b, c = (np.ascontiguousarray(a, dtype=np.uint32).view(np.float64)[..., 0] for a in (b_words, c_words))
        return np.ascontiguousarray(sampler(generator, b, c)[..., None]).view(np.uint32)

    result = jax.ShapeDtypeStruct((*b.shape, 2), jnp.uint32)
    drawn = jax.pure_callback(draw_words, result, seed, *words, vmap_method="broadcast_all")
    return jax.lax.bitcast_convert_type(drawn, jnp.float64)
