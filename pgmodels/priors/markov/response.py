"""The chain of states and their second moments, in which linear response is conditioning on sites, in O(n).

The states x given the sites are a Markov chain, and so, in its first two moments, is y = vech(x x^T), the distinct
products of two entries: the first entry of y, x_0^2, has the covariance 2 V o V. Corrected covariances are those of the
chain of (x, y) given factors of a row's latents and their products (math: section 5b).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pgmodels.priors.markov.chain import Chain, times
from pgmodels.priors.markov.information import information, steps_given


class Given(NamedTuple):
    """A chain of deviations from the mean given all sites, and the states' covariances and information.

    ``covariance`` is that of each state given all sites, ``informed`` the information that the sites from each state on
    have about it. All are (n, *batch, s, s).
    """

    transition: Float[Array, "n *batch s s"]
    noise: Float[Array, "n *batch s s"]
    covariance: Float[Array, "n *batch s s"]
    informed: Float[Array, "n *batch s s"]


def given_sites(chain: Chain, L: Float[Array, "n *batch s s"], precision: Float[Array, "n *batch s s"]) -> Given:
    """The chain given sites of these precisions on its states; ``L`` are the roots of its noise."""
    informed = information(chain, L, precision)
    transition, noise = steps_given(chain, L, informed)

    def ahead(before: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        F, Q = now
        covariance = times(times(F, before), jnp.swapaxes(F, -1, -2)) + Q
        return covariance, covariance

    covariance = jax.lax.scan(ahead, jnp.zeros_like(noise[0]), (transition, noise))[1]
    return Given(transition, noise, covariance, informed)


def joint_steps(chain: Chain, conditioned: Chain, before: Float[Array, "*batch s s"]) -> Chain:
    """The steps of (x, y), with y of x given the sites, whose steps are ``conditioned``.

    ``before`` is the covariance given all sites of the state before each step.
    """
    transition, noise = conditioned
    carried = times(times(transition, before), jnp.swapaxes(transition, -1, -2))
    i, j = np.tril_indices(noise.shape[-1])

    def entries(matrices: Array, rows: np.ndarray, columns: np.ndarray) -> Array:
        return matrices[..., rows[:, None], columns]

    def straight(one: Array, other: Array) -> Array:
        return entries(one, i, i) * entries(other, j, j)

    def crossed(one: Array, other: Array) -> Array:
        return entries(one, i, j) * entries(other, j, i)

    moved = straight(transition, transition) + np.where(i == j, 0.0, 1.0) * crossed(transition, transition)
    pairs = ((carried, noise), (noise, carried), (noise, noise))
    spread = sum((product(*pair) for pair in pairs for product in (straight, crossed)), jnp.zeros_like(moved))
    return Chain(_side_by_side(chain.transition, moved), _side_by_side(chain.noise, spread))


def place_of_product(i: int, j: int) -> int:
    """The entry of y that is the product of entries i and j of x."""
    return max(i, j) * (max(i, j) + 1) // 2 + min(i, j)


def _side_by_side(one: Float[Array, "*n i i"], other: Float[Array, "*n j j"]) -> Float[Array, "*n D D"]:
    i, j, rest = one.shape[-1], other.shape[-1], [(0, 0)] * (one.ndim - 2)
    return jnp.pad(one, [*rest, (0, j), (0, j)]) + jnp.pad(other, [*rest, (i, 0), (i, 0)])
