"""Joint draws of all latents, compiled."""

from functools import partial, reduce

import jax
import numpy as np
from jaxtyping import Array, Int, Key

from pgmodels.integration import equal_chunks, power_of_two
from pgmodels.latent.coupled import CoupledPosterior
from pgmodels.latent.joint import Coordinates, JointPosterior, JointPrior
from pgmodels.latent.sequential import ASCENT_OPTIONS

# Draws at a time: larger numbers of them share one program.
_DRAWS = 512


def draw_latents(
    gaussian: JointPrior | JointPosterior | CoupledPosterior, count: int, seed: int, *path: int
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Draws of the latents at the data, (count, n, latents), and their coordinates by group.

    Each has a key of its own: that of the seed, folded with the path and with the draw's number.
    """
    key = jax.random.key(seed)
    chunks = equal_chunks(np.arange(count), min(_DRAWS, power_of_two(count)))
    parts = [jax.tree.map(np.asarray, _draw(gaussian, key, path, chunk)) for chunk in chunks]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *parts)


@partial(jax.jit, compiler_options=ASCENT_OPTIONS)
def _draw(
    gaussian: JointPrior | JointPosterior | CoupledPosterior,
    key: Key[Array, ""],
    path: tuple[Int[Array, ""], ...],
    numbers: Int[Array, " draws"],
) -> tuple[Array, Coordinates]:
    key = reduce(jax.random.fold_in, path, key)
    # The Gaussian is not batched: it is factorised already.
    return jax.vmap(lambda number: gaussian.draw(jax.random.fold_in(key, number)))(numbers)
