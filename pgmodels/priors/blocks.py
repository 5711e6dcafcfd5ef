"""Blocks of latents that are factorised together, with concatenated coordinates."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.padding import padded_size

# Up to this many whitened coordinates in total (82 MB per root), all latents are one block; beyond, one block each.
MAX_BLOCK = 3200


def choose_blocks(prior: PriorCollection) -> tuple[tuple[int, ...], ...]:
    """One block of all latents if affordable, else one block per latent; the choice does not depend on padding."""
    ranks = [padded_size(rank) for rank in prior.spans().ranks]
    if sum(ranks) <= MAX_BLOCK:
        return (tuple(range(len(ranks))),)
    return tuple((latent,) for latent in range(len(ranks)))


def are_affordable(prior: PriorCollection, blocks: tuple[tuple[int, ...], ...]) -> bool:
    """Whether each block has at most MAX_BLOCK coordinates, and its latents have factors."""
    ranks = [padded_size(rank) for rank in prior.spans().ranks]
    return prior.factored and all(sum(ranks[latent] for latent in block) <= MAX_BLOCK for block in blocks)


def gather_blocks(prior: PriorCollection, blocks: tuple[tuple[int, ...], ...], flat: Float[Array, " D"]) -> list[Array]:
    """Split coordinates, ordered by latent, into one vector per block, whose latents need not be adjacent."""
    vectors = jnp.split(flat, np.cumsum(prior.ranks)[:-1])
    return [jnp.concatenate([vectors[latent] for latent in block]) for block in blocks]


def scatter_blocks(
    prior: PriorCollection, blocks: tuple[tuple[int, ...], ...], vectors: Sequence[Float[Array, " _"]]
) -> Float[Array, " D"]:
    """The inverse of ``gather_blocks``."""
    ranks = prior.ranks
    by_latent: dict[int, Array] = {}
    for block, part in zip(blocks, vectors, strict=True):
        pieces = jnp.split(part, np.cumsum([ranks[latent] for latent in block])[:-1])
        by_latent.update(zip(block, pieces, strict=True))
    return jnp.concatenate([by_latent[latent] for latent in range(len(ranks))])


def split_over(matrices: tuple[Array, ...], flat: Array) -> list[Array]:
    """Split a vector over concatenated blocks into one per block, as long as its matrix."""
    return jnp.split(flat, np.cumsum([len(matrix) for matrix in matrices])[:-1])


def stacked(factors: list[Array]) -> Any:
    """The block-diagonal matrix of factors (r, n), (sum of r, latents n)."""
    total, columns = sum(len(factor) for factor in factors), factors[0].shape[1]
    matrix = jnp.zeros((total, len(factors) * columns), factors[0].dtype)
    row = 0
    for place, factor in enumerate(factors):
        matrix = matrix.at[row : row + len(factor), place * columns : (place + 1) * columns].set(factor)
        row += len(factor)
    return matrix
