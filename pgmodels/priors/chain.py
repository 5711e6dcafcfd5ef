"""Gaussian Markov chains: their steps, chains given sites of any sign, and chains of second moments."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pgmodels.kernels.state_space import block_diagonal

# A chain is x_k = F_k x_{k-1} + noise of covariance Q_k from x_{-1} = 0: the first Q is the covariance of the first
# state.

T = TypeVar("T")
# Up to this dimension, products of matrices in a loop over time are sums, because these are faster than calls. Loops
# over entries are unrolled.
_SMALL = 9


class Chain(NamedTuple):
    """The transitions F and noise covariances Q of n steps."""

    transition: Float[Array, "n *batch d d"]
    noise: Float[Array, "n *batch d d"]


class Gaps(NamedTuple):
    """For m new inputs, the sorted inputs before and after (-1 and n for none), and the prior between.

    ``since`` and ``until`` are the distances to these inputs. The steps ``to`` the new inputs start at the state
    before, or at zero if there is none. The steps ``onward`` lead from the new inputs to the state after.
    """

    before: Int[Array, " m"]
    after: Int[Array, " m"]
    time: Float[Array, " m"]
    since: Float[Array, " m"]
    until: Float[Array, " m"]
    to: Chain
    onward: Chain


def stack(chains: Sequence[Chain]) -> Chain:
    """Return the steps (n, g, d, d) of chains of g kernels; states of fewer entries are padded with zeros."""
    d = max(chain.noise.shape[-1] for chain in chains)

    def padded(*parts: Array) -> Array:
        return jnp.stack([jnp.pad(part, ((0, 0), *2 * ((0, d - part.shape[-1]),))) for part in parts], axis=1)

    return jax.tree.map(padded, *chains)


def stack_gaps(gaps: Sequence[Gaps]) -> Gaps:
    """Return gaps that are equal for all chains, with the steps of chains of g kernels."""
    return gaps[0]._replace(to=stack([of_one.to for of_one in gaps]), onward=stack([of_one.onward for of_one in gaps]))


def paths(transition: Float[Array, "n *_ d d"], noise: Float[Array, "n *batch d"]) -> Float[Array, "n *batch d"]:
    """Return the states of chains from the noise of each step."""

    def step(before: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        state = apply(now[0], before) + now[1]
        return state, state

    return jax.lax.scan(step, jnp.zeros_like(noise[0]), (transition, noise))[1]


def roots_of(matrices: Float[Array, "*batch d d"]) -> Float[Array, "*batch d d"]:
    """Return lower roots of positive semi-definite matrices; a column is zero if its pivot is zero."""
    diagonal, entries = jnp.diagonal(matrices, axis1=-2, axis2=-1), np.arange(matrices.shape[-1])
    # Pivots below this share of their diagonal entry are rounding errors of zero.
    rounding = 1e-13

    def add(j: int | Array, before: tuple[Array, Array]) -> tuple[Array, Array]:
        rest, L = before
        pivot = rest[..., j, j]
        positive = pivot > rounding * diagonal[..., j]
        scale = jnp.where(positive, 1.0 / jnp.sqrt(jnp.where(positive, pivot, 1.0)), 0.0)
        column = jnp.where(entries >= j, rest[..., j] * scale[..., None], 0.0)
        return rest - column[..., :, None] * column[..., None, :], L.at[..., j].set(column)

    return repeat(len(entries), add, (matrices, jnp.zeros_like(matrices)))[1]


def solve(matrices: Float[Array, "*batch d d"], right: Float[Array, "*batch d k"]) -> Float[Array, "*batch d k"]:
    """Return solutions for positive semi-definite matrices and right-hand sides in their range, without LAPACK."""
    L = roots_of(matrices)
    d = L.shape[-1]
    pivots = jnp.diagonal(L, axis1=-2, axis2=-1)
    inverse = jnp.where(pivots > 0.0, 1.0 / jnp.where(pivots > 0.0, pivots, 1.0), 0.0)

    def forward(i: int | Array, half: Array) -> Array:
        rest = right[..., i, :] - jnp.sum(L[..., i, :, None] * half, axis=-2)
        return half.at[..., i, :].set(rest * inverse[..., i, None])

    half = repeat(d, forward, jnp.zeros_like(right))

    def backward(step: int | Array, solution: Array) -> Array:
        i = d - 1 - step
        rest = half[..., i, :] - jnp.sum(L[..., i, None] * solution, axis=-2)
        return solution.at[..., i, :].set(rest * inverse[..., i, None])

    return repeat(d, backward, jnp.zeros_like(right))


def repeat(count: int, body: Callable[[int | Array, T], T], start: T) -> T:
    """Run ``jax.lax.fori_loop`` over a state's entries, unrolled for small states only, to limit compile time."""
    if count > _SMALL:
        return jax.lax.fori_loop(0, count, body, start)
    for step in range(count):
        start = body(step, start)
    return start


def times(one: Float[Array, "... i j"], other: Float[Array, "... j k"]) -> Float[Array, "... i k"]:
    """Return products of small matrices."""
    if one.shape[-1] > _SMALL:
        return one @ other
    return jnp.sum(one[..., :, :, None] * other[..., None, :, :], axis=-2)


def apply(matrix: Float[Array, "... i j"], vector: Float[Array, "... j"]) -> Float[Array, "... i"]:
    """Return products of small matrices and vectors."""
    return jnp.sum(matrix * vector[..., None, :], axis=-1)


def one_step_earlier(values: Float[Array, "n *rest"]) -> Float[Array, "n *rest"]:
    """Return the values one step earlier, and zero for the first step."""
    return jnp.concatenate([jnp.zeros_like(values[:1]), values[:-1]])


# The information filter: a chain given sites of any sign is a chain of deviations from the mean.
#
# If the posterior is proper, each state has a proper distribution given the state before and all sites. The filter of
# pgmodels.priors.joint_chain may pass improper distributions, but it keeps digits that precisions of 1e10 lose here.


def information(
    chain: Chain, L: Float[Array, "n *batch s s"], precision: Float[Array, "n *batch s s"]
) -> Float[Array, "n *batch s s"]:
    """Return the information about each state from its own and all later sites."""

    def step(later: Array, now: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        F, L, w = now
        informed = later + w
        return one_step_back(F, L, informed), informed

    return jax.lax.scan(step, jnp.zeros_like(precision[0]), (chain.transition, L, precision), reverse=True)[1]


def one_step_back(F: Float[Array, "*batch s s"], L: Float[Array, "*batch s s"], J: Float[Array, "*batch s s"]) -> Array:
    """Return F^T (J^-1 + L L^T)^-1 F, by an update for each column of L."""

    def update(j: int | Array, J: Array) -> Array:
        column = L[..., j]
        moved = apply(J, column)
        scale = 1.0 + jnp.sum(column * moved, axis=-1)
        return J - moved[..., :, None] * (moved / scale[..., None])[..., None, :]

    return times(times(jnp.swapaxes(F, -1, -2), repeat(L.shape[-1], update, J)), F)


def steps_given(chain: Chain, L: Float[Array, "*batch s s"], informed: Float[Array, "*batch s s"]) -> Chain:
    """Return transitions and noise given the sites' information about the state after each step."""
    across = jnp.swapaxes(L, -1, -2)
    share = solve(jnp.eye(L.shape[-1]) + times(times(across, informed), L), across)
    # (I + Q Λ)^-1 F and (I + Q Λ)^-1 Q, by the roots of Q, which may be singular.
    noise = times(L, share)
    return Chain(chain.transition - times(times(noise, informed), chain.transition), noise)


def draw_deviations(
    chain: Chain,
    L: Float[Array, "n *batch s s"],
    precision: Float[Array, "n *batch s s"],
    noise: Float[Array, "n *batch s"],
) -> Float[Array, "n *batch s"]:
    """Return draws of the states' deviations from their mean given sites, from standard normals."""
    transition, Q = steps_given(chain, L, information(chain, L, precision))
    return paths(transition, apply(roots_of(Q), noise))


# Linear response is conditioning on sites, in O(n), in the chain of states and their second moments.
#
# The states x given the sites are a Markov chain. In its first two moments y = vech(x x^T), the distinct products of
# two entries, is one too: the first entry of y, x_0^2, has the covariance 2 V o V. Corrected covariances are the
# covariances of the chain (x, y) given factors of a row's latents and their products (math: section 5b).


class Given(NamedTuple):
    """The steps of a chain of deviations from the mean given all sites, and the states' covariances and information.

    ``covariance`` is each state's covariance given all sites. ``informed`` is the information about each state from its
    own and all later sites.
    """

    steps: Chain
    covariance: Float[Array, "n *batch s s"]
    informed: Float[Array, "n *batch s s"]


def given_sites(chain: Chain, L: Float[Array, "n *batch s s"], precision: Float[Array, "n *batch s s"]) -> Given:
    """Return the chain given sites of these precisions on its states; ``L`` are the roots of its noise."""
    informed = information(chain, L, precision)
    steps = steps_given(chain, L, informed)

    def ahead(before: Array, now: Chain) -> tuple[Array, Array]:
        F, Q = now
        covariance = times(times(F, before), jnp.swapaxes(F, -1, -2)) + Q
        return covariance, covariance

    covariance = jax.lax.scan(ahead, jnp.zeros_like(steps.noise[0]), steps)[1]
    return Given(steps, covariance, informed)


def joint_steps(chain: Chain, conditioned: Chain, before: Float[Array, "*batch s s"]) -> Chain:
    """Return the steps of (x, y), with the y of x given the sites; ``conditioned`` are the steps of that x.

    ``before`` is the covariance, given all sites, of the state before each step.
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
    return Chain(block_diagonal(chain.transition, moved), block_diagonal(chain.noise, spread))


def place_of_product(i: int, j: int) -> int:
    """Return the entry of y that is the product of entries i and j of x."""
    return max(i, j) * (max(i, j) + 1) // 2 + min(i, j)
