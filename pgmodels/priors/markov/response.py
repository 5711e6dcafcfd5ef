"""Linear response in a Markov chain in O(n): one more pair of scans, over the states and their second moments.

The states x given the sites are a Markov chain, and so, in its first two moments, is y = vech(x x^T), the distinct
products of two entries: the first entry of y, f^2, has the covariance 2 V o V. The corrected covariance of the latents
is theirs in the chain of (x, y) given factors of (f, f^2) at each row (math: section 5b).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pgmodels.priors.markov.chain import Chain, Gaps, apply, roots, solve, times


class Factors(NamedTuple):
    """-B_mm, B_mv and B_vv of the objective at each sorted row: the factor of (f, f^2) has the precision
    [[-B_mm, -B_mv], [-B_mv, -B_vv]]."""

    steepness: Float[Array, " n"]
    mixed: Float[Array, " n"]
    curved: Float[Array, " n"]


class ResponseScans(NamedTuple):
    """The scans over (x, y), and over x before the correction.

    ``covariance`` is that of each (x, y) given the factors up to it, ``later`` and ``ahead`` are the adjoints of the
    later ones, without and with its own (see pgmodels.priors.markov.chain). ``states`` are the covariances of x given
    all sites, ``informed`` is the information that the sites from each x on have about it, and ``negative`` sums to the
    number of negative eigenvalues of the precision of all (x, y).
    """

    covariance: Float[Array, "n D D"]
    later: Float[Array, "n D D"]
    ahead: Float[Array, "n D D"]
    states: Float[Array, "n d d"]
    informed: Float[Array, "n d d"]
    negative: Int[Array, " n"]

    def variances(self) -> Float[Array, " n"]:
        """The corrected variances of the latent at the sorted rows."""
        row = self.covariance[:, 0]
        return row[:, 0] - jnp.einsum("ni,nij,nj->n", row, self.later, row)


def respond(
    chain: Chain,
    noise_roots: Float[Array, "n d d"],
    precision: Float[Array, " n"],
    states: Float[Array, "n d d"],
    factors: Factors,
) -> ResponseScans:
    """The scans, from the roots of the chain's noise, the sites' precisions and the states' covariances given them."""
    before = jnp.concatenate([jnp.zeros_like(states[:1]), states[:-1]])
    informed = information(chain, noise_roots, precision)
    steps = joint_chain(chain, noise_roots, informed, before)
    d = chain.noise.shape[1]
    D = steps.noise.shape[1]
    read = np.array([0, d])
    W = jnp.stack(
        [jnp.stack([factors.steepness, -factors.mixed], -1), jnp.stack([-factors.mixed, -factors.curved], -1)], -2
    )

    def forward(P: Array, now: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...]]:
        F, Q, W = now
        P = times(times(F, P), F.T) + Q
        B = jnp.eye(2) + times(W, P[read][:, read])
        determinant = _determinant(B)
        inverse = jnp.array([[B[1, 1], -B[0, 1]], [-B[1, 0], B[0, 0]]]) / determinant
        U = times(inverse, W)
        taken = times(P[:, read], U)
        P = P - times(taken, P[read])
        P = 0.5 * (P + P.T)
        return P, (P, U, taken, _positive(U, jnp.sign(determinant) * _determinant(W)) - _positive(W, _determinant(W)))

    P, U, taken, negative = jax.lax.scan(forward, jnp.zeros((D, D), W.dtype), (*steps, W))[1]

    def backward(later: Array, now: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
        F, U, taken = now
        C = jnp.eye(D).at[:, read].add(-taken)
        ahead = times(times(C.T, later), C).at[read[:, None], read].add(U)
        return times(times(F.T, ahead), F), (later, ahead)

    start = jnp.zeros((D, D), W.dtype)
    later, ahead = jax.lax.scan(backward, start, (steps.transition, U, taken), reverse=True)[1]
    return ResponseScans(P, later, ahead, states, informed, negative)


def information(
    chain: Chain, noise_roots: Float[Array, "n d d"], precision: Float[Array, " n"]
) -> Float[Array, "n d d"]:
    """The information that the sites from each state on have about it."""

    def step(later: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
        F, L, w = now
        informed = later.at[0, 0].add(w)
        return one_step_back(F, L, informed), informed

    start = jnp.zeros_like(chain.noise[0])
    return jax.lax.scan(step, start, (chain.transition, noise_roots, precision), reverse=True)[1]


def one_step_back(F: Float[Array, "... d d"], L: Float[Array, "... d d"], J: Float[Array, "... d d"]) -> Array:
    """F^T (J^-1 + L L^T)^-1 F, by an update for each column of L."""
    for j in range(L.shape[-1]):
        column = L[..., j]
        moved = apply(J, column)
        scale = 1.0 + jnp.sum(column * moved, axis=-1)
        J = J - moved[..., :, None] * (moved / scale[..., None])[..., None, :]
    return times(times(jnp.swapaxes(F, -1, -2), J), F)


def given_sites(chain: Chain, L: Float[Array, "n d d"], informed: Float[Array, "n d d"]) -> Chain:
    """The chain of the deviations of x from their mean given the sites; see ``joint_chain``."""
    across = jnp.swapaxes(L, 1, 2)
    share = solve(jnp.eye(L.shape[1]) + times(times(across, informed), L), across)
    # (I + Q Λ)^-1 F and (I + Q Λ)^-1 Q, by the roots of Q, which may be singular.
    noise = times(L, share)
    return Chain(chain.transition - times(times(noise, informed), chain.transition), noise)


def joint_chain(
    chain: Chain, L: Float[Array, "n d d"], informed: Float[Array, "n d d"], before: Float[Array, "n d d"]
) -> Chain:
    """The chain of (x, y), with y that of x given the sites.

    ``L`` are the roots of the noise, ``informed`` is the information that the sites from each state on have about it,
    ``before`` the covariance given all sites of the state one step earlier.
    """
    F, Q = chain
    transition, noise = given_sites(chain, L, informed)
    carried = times(times(transition, before), jnp.swapaxes(transition, 1, 2))
    i, j = np.tril_indices(L.shape[1])

    def entries(matrices: Array, rows: np.ndarray, columns: np.ndarray) -> Array:
        return matrices[:, rows[:, None], columns]

    def straight(one: Array, other: Array) -> Array:
        return entries(one, i, i) * entries(other, j, j)

    def crossed(one: Array, other: Array) -> Array:
        return entries(one, i, j) * entries(other, j, i)

    moved = straight(transition, transition) + np.where(i == j, 0.0, 1.0) * crossed(transition, transition)
    pairs = ((carried, noise), (noise, carried), (noise, noise))
    spread = sum((product(*pair) for pair in pairs for product in (straight, crossed)), jnp.zeros_like(moved))
    return Chain(_side_by_side(F, moved), _side_by_side(Q, spread))


def variances_at(scans: ResponseScans, gaps: Gaps) -> Float[Array, " m"]:
    """The corrected variances of the latent at new inputs."""
    last = len(scans.states) - 1
    before, after = jnp.maximum(gaps.before, 0), jnp.minimum(gaps.after, last)
    goes_on = (gaps.after <= last)[:, None, None]
    through, onward = Chain(gaps.transition, gaps.noise), Chain(gaps.onward, gaps.onward_noise)
    roots_onward = roots(onward.noise)
    ahead = jnp.where(goes_on, scans.informed[after], 0.0)
    informed = one_step_back(onward.transition, roots_onward, ahead)
    F, Q = joint_chain(through, roots(through.noise), informed, scans.states[before])
    P = times(times(F, scans.covariance[before]), jnp.swapaxes(F, 1, 2)) + Q
    # The covariance before matters to the noise of a step alone, which is not read.
    onward_transition = joint_chain(onward, roots_onward, ahead, scans.states[before]).transition
    row = apply(onward_transition, P[:, 0])
    later = jnp.where(goes_on, scans.ahead[after], 0.0)
    return P[:, 0, 0] - jnp.sum(row * apply(later, row), axis=-1)


def _determinant(matrix: Float[Array, "2 2"]) -> Float[Array, ""]:
    return matrix[0, 0] * matrix[1, 1] - matrix[0, 1] * matrix[1, 0]


def _positive(matrix: Float[Array, "2 2"], determinant: Float[Array, ""]) -> Int[Array, ""]:
    """The number of positive eigenvalues. A factor W adds as many negative ones to the precision of all (x, y) as
    (W^-1 + S)^-1 has more positive ones than W, with S the covariance before (Haynsworth 1968)."""
    rises = jnp.trace(matrix) > 0.0
    return jnp.where(determinant > 0.0, 2 * rises, jnp.where(determinant < 0.0, 1, rises))


def _side_by_side(one: Float[Array, "n i i"], other: Float[Array, "n j j"]) -> Float[Array, "n D D"]:
    i, j = one.shape[1], other.shape[1]
    return jnp.pad(one, ((0, 0), (0, j), (0, j))) + jnp.pad(other, ((0, 0), (i, 0), (i, 0)))
