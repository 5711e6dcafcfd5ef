"""Joint draws of all latents in numbers, each by a key of its own."""

from functools import partial

import jax
import numpy as np
from jaxtyping import Array

from pgmodels.integration import equal_chunks, power_of_two
from pgmodels.latent.coupled import CoupledPosterior
from pgmodels.latent.joint import Coordinates, JointPosterior, JointPrior
from pgmodels.latent.sequential import ASCENT_OPTIONS

# Draws at a time: larger numbers of them share one program.
_DRAWS = 512


def split_seed(seed: int, *counts: int) -> np.ndarray:
    """Keys (*counts, words) as numbers: those of ``jax.random.key(seed)`` split into as many, and these split again."""
    return np.asarray(_split(jax.random.key(seed), counts))


def draw_latents(
    gaussian: JointPrior | JointPosterior | CoupledPosterior, keys: np.ndarray
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Draws of the latents at the data, a key (words,) each, (draws, n, latents), and their coordinates by group."""
    chunks = equal_chunks(np.arange(len(keys)), min(_DRAWS, power_of_two(len(keys))))
    parts = [jax.tree.map(np.asarray, _draw(gaussian, keys[chunk])) for chunk in chunks]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(keys)], *parts)


@partial(jax.jit, static_argnames="counts", compiler_options=ASCENT_OPTIONS)
def _split(key: Array, counts: tuple[int, ...]) -> Array:
    keys = key[None]
    for count in counts:
        keys = jax.vmap(partial(jax.random.split, num=count))(keys).ravel()
    return jax.random.key_data(keys).reshape(*counts, -1)


@partial(jax.jit, compiler_options=ASCENT_OPTIONS)
def _draw(gaussian: JointPrior | JointPosterior | CoupledPosterior, keys: Array) -> tuple[Array, Coordinates]:
    # The Gaussian is not batched: it is factorised already.
    return jax.vmap(lambda words: gaussian.draw(jax.random.wrap_key_data(words)))(keys)
