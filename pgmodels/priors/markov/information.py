"""The information filter: a chain given sites of any sign is a chain of deviations from the mean.

Where the posterior is proper, each state has a proper distribution given the one before and all sites, also if the
filter of pgmodels.priors.markov.chain passes improper ones. Precisions of 1e10 and more lose digits here, not there.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pgmodels.priors.markov.chain import Chain, apply, paths, repeat, roots, solve, times


def information(
    chain: Chain, L: Float[Array, "n *batch s s"], precision: Float[Array, "n *batch s s"]
) -> Float[Array, "n *batch s s"]:
    """The information that the sites from each state on have about it."""

    def step(later: Array, now: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        F, L, w = now
        informed = later + w
        return one_step_back(F, L, informed), informed

    return jax.lax.scan(step, jnp.zeros_like(precision[0]), (chain.transition, L, precision), reverse=True)[1]


def one_step_back(F: Float[Array, "*batch s s"], L: Float[Array, "*batch s s"], J: Float[Array, "*batch s s"]) -> Array:
    """F^T (J^-1 + L L^T)^-1 F, by an update for each column of L."""

    def update(j: Any, J: Array) -> Array:
        column = L[..., j]
        moved = apply(J, column)
        scale = 1.0 + jnp.sum(column * moved, axis=-1)
        return J - moved[..., :, None] * (moved / scale[..., None])[..., None, :]

    return times(times(jnp.swapaxes(F, -1, -2), repeat(L.shape[-1], update, J)), F)


def steps_given(chain: Chain, L: Float[Array, "*batch s s"], informed: Float[Array, "*batch s s"]) -> Chain:
    """Transitions and noise given the information that sites have about the state after each step."""
    flat = [part.reshape(-1, *part.shape[-2:]) for part in (L, informed)]
    across = jnp.swapaxes(flat[0], 1, 2)
    share = solve(jnp.eye(L.shape[-1]) + times(times(across, flat[1]), flat[0]), across)
    # (I + Q Λ)^-1 F and (I + Q Λ)^-1 Q, by the roots of Q, which may be singular.
    noise = times(flat[0], share).reshape(L.shape)
    return Chain(chain.transition - times(times(noise, informed), chain.transition), noise)


def draw_deviations(
    chain: Chain,
    L: Float[Array, "n *batch s s"],
    precision: Float[Array, "n *batch s s"],
    noise: Float[Array, "n *batch s"],
) -> Float[Array, "n *batch s"]:
    """Draws of the states' deviations from their mean given sites, from standard normals."""
    transition, Q = steps_given(chain, L, information(chain, L, precision))
    return paths(transition, apply(roots_of(Q), noise))


def roots_of(matrices: Float[Array, "*batch s s"]) -> Float[Array, "*batch s s"]:
    """Lower roots of positive semi-definite matrices."""
    return roots(matrices.reshape(-1, *matrices.shape[-2:])).reshape(matrices.shape)
