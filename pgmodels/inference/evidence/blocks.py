"""Importance weights of blocks of a series, from a posterior of Markov processes given sites."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pgmodels.inference.evidence.particles import moves_along
from pgmodels.likelihoods.expression import Environment
from pgmodels.model import Model
from pgmodels.priors.markov.chain import apply, roots, times
from pgmodels.priors.posterior import Posterior
from pgmodels.runtime.jit import compiled

# Rows of a block, and the number of blocks at most, evenly spread over the series.
LENGTH, _MOST = 100, 100


def starts_of_blocks(num_rows: int) -> np.ndarray:
    """The places of the blocks' first rows, in the order of time."""
    count = num_rows // LENGTH
    return LENGTH * np.unique(np.linspace(0, count - 1, min(count, _MOST)).astype(int))


@partial(compiled, static_argnames="num_draws")
def block_log_ratios(
    model: Model,
    posterior: Posterior,
    y: Array,
    row_weights: Array,
    starts: Int[Array, " blocks"],
    key: Array,
    num_draws: int,
) -> Float[Array, "blocks draws"]:
    """Log ratios of the likelihoods of a block's rows to their sites, at draws of the posterior given all sites.

    They are the weights of these draws if the block has its likelihoods, and all other rows have their sites.
    """
    formula, parameters = model.likelihood.formula(model.num_latents), model.parameters
    order, moves = moves_along(posterior, row_weights)
    rows, weights = [part[order] for part in (posterior.moments()[0], *posterior.sites, y)], row_weights[order]
    spread = len(starts), num_draws

    def begun(index: int, move: Any) -> Array:
        def step(before: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            F, root = now
            V = times(times(F, before), jnp.swapaxes(F, -1, -2)) + times(root, jnp.swapaxes(root, -1, -2))
            return V, V

        covariances = jax.lax.scan(step, jnp.zeros_like(move.root[0]), move)[1][starts]
        shape = covariances.shape
        first = roots(covariances.reshape(-1, *shape[2:])).reshape(shape)
        noise = jax.random.normal(jax.random.fold_in(key, index), (*spread, *shape[1:3]))
        return apply(first[:, None], noise)

    def step(number: Array, before: tuple[Any, Array]) -> tuple[Any, Array]:
        states, total = before
        at = starts + number
        mean, h, w, y_block = (part[at][:, None] for part in rows)
        f = mean + jnp.concatenate([state[..., 0] for state in states], axis=-1)
        # Rows are along the second axis but one of f, as a formula expects.
        terms = formula.log_evaluate(Environment(y_block[:, 0], jnp.swapaxes(f, 0, 1), parameters))[..., 0].T
        ratio = jnp.where(weights[at][:, None] > 0, weights[at][:, None] * terms, 0.0)
        total = total + ratio - jnp.sum(h * f - 0.5 * w * f**2, axis=-1)
        shocks = jax.random.fold_in(key, len(moves) + number)
        after = jnp.minimum(at + 1, len(y) - 1)
        moved = tuple(
            apply(move.transition[after][:, None], state)
            + apply(move.root[after][:, None], jax.random.normal(jax.random.fold_in(shocks, i), state.shape))
            for i, (move, state) in enumerate(zip(moves, states, strict=True))
        )
        return moved, total

    start = tuple(begun(index, move) for index, move in enumerate(moves))
    return jax.lax.fori_loop(0, LENGTH, step, (start, jnp.zeros(spread)))[1]
