"""Importance weights of blocks of a series, from a posterior of Markov processes given sites."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pgmodels.inference.evidence.particles import log_site
from pgmodels.likelihoods.expression import Environment
from pgmodels.model import Model
from pgmodels.priors.chain_blocks import Layout, moves_along
from pgmodels.priors.markov.chain import apply, times
from pgmodels.priors.markov.information import roots_of
from pgmodels.priors.posterior import Posterior
from pgmodels.runtime.jit import compiled

# Rows of a block, and the number of blocks at most, evenly spread over the series.
LENGTH, _MOST = 100, 100


def starts_of_blocks(num_rows: int) -> np.ndarray:
    """The places of the blocks' first rows, in the order of time."""
    count = num_rows // LENGTH
    return LENGTH * np.unique(np.linspace(0, count - 1, min(count, _MOST)).astype(int))


@partial(compiled, static_argnames=("num_draws", "layout"))
def block_log_ratios(
    model: Model,
    posterior: Posterior,
    y: Array,
    row_weights: Array,
    starts: Int[Array, " blocks"],
    key: Array,
    num_draws: int,
    layout: Layout,
) -> Float[Array, "blocks draws"]:
    """Log ratios of the likelihoods of a block's rows to their sites, at draws of the posterior given all sites.

    They are the weights of these draws if the block has its likelihoods, and all other rows have their sites.
    """
    formula, parameters = model.likelihood.formula(model.num_latents), model.parameters
    order, moves = moves_along(posterior, row_weights, layout)
    rows, weights = [part[order] for part in (posterior.moments()[0], *posterior.sites, y)], row_weights[order]
    spread = len(starts), num_draws

    def along(before: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        F, root = now
        V = times(times(F, before), jnp.swapaxes(F, -1, -2)) + times(root, jnp.swapaxes(root, -1, -2))
        return V, V

    covariances = jax.lax.scan(along, jnp.zeros_like(moves.root[0]), moves[:2])[1][starts]
    of_first, of_others = jax.random.split(key)
    noise = jax.random.normal(of_first, (*spread, *covariances.shape[1:3]))
    first = apply(roots_of(covariances)[:, None], noise)

    def step(number: Array, before: tuple[Any, Array]) -> tuple[Any, Array]:
        states, total = before
        at = starts + number
        mean, h, w, y_block = (part[at][:, None] for part in rows)
        f = mean + layout.latents(states, moves.observation[at][:, None])
        # Rows are along the second axis but one of f, as a formula expects.
        terms = formula.log_evaluate(Environment(y_block[:, 0], jnp.swapaxes(f, 0, 1), parameters))[..., 0].T
        ratio = jnp.where(weights[at][:, None] > 0, weights[at][:, None] * terms, 0.0)
        total = total + ratio - log_site(h, w, f)
        after = jnp.minimum(at + 1, len(y) - 1)
        noise = jax.random.normal(jax.random.fold_in(of_others, number), states.shape)
        moved = apply(moves.transition[after][:, None], states) + apply(moves.root[after][:, None], noise)
        return moved, total

    return jax.lax.fori_loop(0, LENGTH, step, (first, jnp.zeros(spread)))[1]
