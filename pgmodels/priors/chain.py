"""Kalman filters and smoothers of one Markov process."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pgmodels.kernels.state_space import block_diagonal

# Inference in a Gaussian Markov chain given sites on the first entries of its states, by one scan in each direction.
#
# The chain is x_k = F_k x_{k-1} + noise of covariance Q_k from x_{-1} = 0: the first Q is the covariance of the first
# state. The backward scan is that of the adjoints (Bryson and Frazier 1963), which inverts no matrix: precisions may
# be zero, and noise as small as it is for rows that are close.

# Up to this dimension, products of matrices in a loop over time are sums, which are faster than calls, and loops over
# entries are unrolled.
_SMALL = 9
# Steps of a loop over time that are compiled together: the fastest of 1, 4 and 8.
_UNROLL = 4
# Pivots below this share of their diagonal entry are rounding of zero.
_ROUNDING = 1e-13


class Chain(NamedTuple):
    """F and Q of n steps, shared by all latents."""

    transition: Float[Array, "n d d"]
    noise: Float[Array, "n d d"]


class Gaps(NamedTuple):
    """Of m new inputs, the sorted inputs before and after (-1 and n for none), and the prior between.

    ``since`` and ``until`` are the distances to these, ``transition`` and ``noise`` lead from the state before, or from
    nothing if there is none, and ``onward`` and ``onward_noise`` from there to the state after: for one kernel, or g.
    """

    before: Int[Array, " m"]
    after: Int[Array, " m"]
    time: Float[Array, " m"]
    since: Float[Array, " m"]
    until: Float[Array, " m"]
    transition: Float[Array, "m *g d d"]
    noise: Float[Array, "m *g d d"]
    onward: Float[Array, "m *g d d"]
    onward_noise: Float[Array, "m *g d d"]


class Forward(NamedTuple):
    """Of l latents, the mean m and covariance P of each state given the sites up to it, and its own site's terms.

    With the mean and variance (m0, p0) of the latent given earlier sites only, ``gained`` = w p0 and
    ``innovation`` = h - w m0.
    """

    mean: Float[Array, "... l d"]
    covariance: Float[Array, "... l d d"]
    gained: Float[Array, "... l"]
    innovation: Float[Array, "... l"]


class Adjoint(NamedTuple):
    """λ and Λ of each state: given the later sites too, it has mean m - P λ and covariance P - P Λ P.

    The derivatives of the log normaliser in m and P are -λ and (λ λ^T - Λ) / 2. A joint chain has one state
    (..., ld), and its vectors columns (..., ld, c).
    """

    vector: Float[Array, "..."]
    matrix: Float[Array, "... d d"]


class Smoothed(NamedTuple):
    """The scans of given sites: ``adjoint`` is of the later sites alone. Sites are of latents with zero mean."""

    potential: Float[Array, "n l"]
    precision: Float[Array, "n l"]
    forward: Forward
    adjoint: Adjoint

    def moments(self) -> tuple[Float[Array, "n l"], Float[Array, "n l"]]:
        """Mean and variance of the latents."""
        row, (vector, matrix) = self.forward.covariance[:, :, 0], self.adjoint
        mean = self.forward.mean[:, :, 0] - jnp.sum(row * vector, axis=-1)
        return mean, row[:, :, 0] - jnp.sum(row * apply(matrix, row), axis=-1)

    def states(self) -> Float[Array, "n l d"]:
        """Means of the states."""
        return self.forward.mean - apply(self.forward.covariance, self.adjoint.vector)

    def with_sites(self) -> Adjoint:
        """The adjoints of each state's own site and the later ones."""
        return _with_site(self.adjoint, self.precision, self.forward)

    def divergence(self) -> Float[Array, ""]:
        """KL(q || prior) of all latents."""
        mean, variance = self.moments()
        # K^-1 (E f) at each row, without the cancellation of h - w m.
        weights = self.adjoint.vector[:, :, 0] - self.with_sites().vector[:, :, 0]
        log_determinant = log_determinant_of(self.forward.gained, self.precision)
        return 0.5 * (log_determinant + jnp.sum(mean * weights - self.precision * variance))


def smooth(chain: Chain, potential: Float[Array, "n l"], precision: Float[Array, "n l"]) -> Smoothed:
    """Condition on sites."""
    forward = _filter(chain, potential, precision)
    return Smoothed(potential, precision, forward, _adjoints(chain, precision, forward))


def log_determinant_of(gained: Float[Array, "*sites"], precision: Float[Array, "*sites"]) -> Float[Array, ""]:
    """log det(I + K W) from ``gained`` of each site; NaN if K^-1 + W is not positive definite.

    The ratios 1 + w p0 of sites of negative precision may be negative, if later sites make up for them.
    """
    logs = jnp.log1p(jnp.where(1.0 + gained <= 0.0, -2.0 - gained, gained))
    return jnp.where(jnp.sum(negative_directions(gained, precision)) == 0.0, jnp.sum(logs), jnp.nan)


def negative_directions(gained: Float[Array, "*sites"], precision: Float[Array, "*sites"]) -> Float[Array, "*sites"]:
    """Site by site, what sums to the number of negative eigenvalues of K^-1 + W (Haynsworth's inertia of W^-1 + K).

    A site that turns the sign of the determinant adds one if its precision is negative, and takes one otherwise.
    """
    return jnp.where(1.0 + gained <= 0.0, -jnp.sign(precision), 0.0)


@jax.custom_jvp
def log_normalizer(chain: Chain, potential: Array, precision: Array, smoothed: Smoothed) -> Float[Array, ""]:
    """Log of the integral of the prior times the sites, from their scans.

    Its derivative, as a function of all but ``smoothed``, is that by the adjoints: no scan is differentiated.
    """
    del chain, potential, precision
    h, w, (m, P, gained, innovation), _ = smoothed
    # The mean of each latent before its own site.
    variance = P[:, :, 0, 0]
    mean = m[:, :, 0] - variance * innovation
    of_means = jnp.sum(variance * h**2 + (2.0 * h - w * mean) * mean / (1.0 + gained))
    return 0.5 * (of_means - log_determinant_of(gained, w))


@log_normalizer.defjvp
def _derivative(
    primals: tuple[Chain, Array, Array, Smoothed], tangents: tuple[Chain, Array, Array, Smoothed]
) -> tuple[Array, Array]:
    (F, _), _, _, smoothed = primals
    (dF, dQ), dh, dw, _ = tangents
    mean, variance = smoothed.moments()
    vector, matrix = smoothed.with_sites()
    before = jax.tree.map(one_step_earlier, smoothed.forward[:2])
    moved = jnp.sum(vector * apply(dF[:, None], before[0]))
    slope = 0.5 * (vector[..., :, None] * vector[..., None, :] - matrix)
    # d(F P F^T + Q) = 2 dF P F^T + dQ, up to the transpose.
    spread = jnp.sum(2.0 * times(times(slope, F[:, None]), before[1]) * dF[:, None]) + jnp.sum(slope * dQ[:, None])
    sites = jnp.sum(mean * dh - 0.5 * (variance + mean**2) * dw)
    return log_normalizer(*primals), spread - moved + sites


def paths(transition: Float[Array, "n *_ d d"], noise: Float[Array, "n *batch d"]) -> Float[Array, "n *batch d"]:
    """The states of chains from the noise of each step."""

    def step(before: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        state = apply(now[0], before) + now[1]
        return state, state

    return jax.lax.scan(step, jnp.zeros_like(noise[0]), (transition, noise), unroll=_UNROLL)[1]


def mean_and_deviation(
    chain: Chain,
    potential: Float[Array, "n l"],
    precision: Float[Array, "n l"],
    roots: Float[Array, "n d d"],
    noise: Float[Array, "n l d"],
    of_sites: Float[Array, "n l"],
) -> tuple[Float[Array, "n l d"], Float[Array, "n l d"]]:
    """The mean of the states given sites of precisions >= 0, and draws of the deviation from it by standard normals.

    A deviation is a path of the prior less its mean given observations of it with the sites' noise (Durbin and Koopman
    2002). One scan in each direction finds both means.
    """
    path, w = paths(chain.transition, apply(roots[:, None], noise)), precision
    observed = w * path[:, :, 0] + jnp.sqrt(w) * of_sites
    forward = _filter(chain, jnp.stack([potential, observed], axis=1), w)
    means = forward.mean - apply(forward.covariance[:, None], _vectors(chain, w, forward))
    return means[:, 0], path - means[:, 1]


def _filter(chain: Chain, potential: Float[Array, "n *k l"], precision: Float[Array, "n l"]) -> Forward:
    """The forward scan; of k sets of potentials, means and innovations have one more axis."""

    def step(before: tuple[Array, Array], now: tuple[Array, ...]) -> tuple[tuple[Array, Array], Forward]:
        F, Q, h, w = now
        mean, P = apply(F, before[0]), times(times(F, before[1]), F.T) + Q
        gained, innovation = w * P[:, 0, 0], h - w * mean[..., 0]
        gain = P[:, :, 0] / (1.0 + gained)[:, None]
        mean = mean + gain * innovation[..., None]
        P = P - w[:, None, None] * gain[:, :, None] * P[:, :1]
        # The variance of the latent itself, exact however precise the site.
        P = jnp.where(first[:, None], gain[:, None, :], jnp.where(first, gain[:, :, None], P))
        return (mean, P), Forward(mean, P, gained, innovation)

    size, d = precision.shape[1], chain.noise.shape[1]
    # Masks, where updates in place would end the loop's fused arithmetic.
    first = np.arange(d) == 0
    start = jnp.zeros((*potential.shape[1:], d), potential.dtype), jnp.zeros((size, d, d), potential.dtype)
    return jax.lax.scan(step, start, (*chain, potential, precision), unroll=_UNROLL)[1]


def _adjoints(chain: Chain, precision: Float[Array, "n l"], forward: Forward) -> Adjoint:
    def step(after: Adjoint, now: tuple[Array, Array, Forward]) -> tuple[Adjoint, Adjoint]:
        F, w, forward = now
        vector, matrix = _with_site(after, w, forward)
        return Adjoint(apply(F.T, vector), times(times(F.T, matrix), F)), after

    zeros = Adjoint(jnp.zeros_like(forward.mean[0]), jnp.zeros_like(forward.covariance[0]))
    return jax.lax.scan(step, zeros, (chain.transition, precision, forward), reverse=True, unroll=_UNROLL)[1]


def _vectors(chain: Chain, precision: Float[Array, "n l"], forward: Forward) -> Float[Array, "n *k l d"]:

    def step(after: Array, now: tuple[Array, Array, Forward]) -> tuple[Array, Array]:
        F, w, forward = now
        return apply(F.T, _vector_with_site(after, w, forward)), after

    steps = chain.transition, precision, forward
    return jax.lax.scan(step, jnp.zeros_like(forward.mean[0]), steps, reverse=True, unroll=_UNROLL)[1]


def _with_site(later: Adjoint, w: Float[Array, "... l"], forward: Forward) -> Adjoint:
    """The adjoints before a site from those after it: C^T Λ C + w / s, with C the matrix of the filter's update."""
    update, first = _update(w, forward), np.arange(later.vector.shape[-1]) == 0
    matrix = times(times(jnp.swapaxes(update, -1, -2), later.matrix), update)
    added = (w / (1.0 + forward.gained))[..., None, None] * (first[:, None] & first)
    return Adjoint(_vector_with_site(later.vector, w, forward), matrix + added)


def _vector_with_site(later: Float[Array, "... l d"], w: Float[Array, "... l"], forward: Forward) -> Array:
    first = np.arange(later.shape[-1]) == 0
    pushed = forward.innovation / (1.0 + forward.gained)
    return jnp.where(first, jnp.sum(_column(w, forward) * later, axis=-1)[..., None] - pushed[..., None], later)


def _update(w: Float[Array, "... l"], forward: Forward) -> Float[Array, "... l d d"]:
    """C with P = C P' and m = C m' + gain h, from (m', P') before the site to (m, P) after it."""
    column = _column(w, forward)
    first = np.arange(column.shape[-1]) == 0
    return jnp.where(first, column[..., :, None], np.eye(len(first)))


def _column(w: Float[Array, "... l"], forward: Forward) -> Float[Array, "... l d"]:
    """The first column of ``_update``; the others are those of the identity."""
    gain = forward.covariance[..., 0]
    first = np.arange(gain.shape[-1]) == 0
    return jnp.where(first, 1.0 / (1.0 + forward.gained)[..., None], -w[..., None] * gain)


def roots(matrices: Float[Array, "m d d"]) -> Float[Array, "m d d"]:
    """Lower roots of positive semi-definite matrices; a column is zero where its pivot is."""
    diagonal, entries = jnp.diagonal(matrices, axis1=1, axis2=2), np.arange(matrices.shape[1])

    def add(j: Any, before: tuple[Array, Array]) -> tuple[Array, Array]:
        rest, L = before
        pivot = rest[:, j, j]
        positive = pivot > _ROUNDING * diagonal[:, j]
        scale = jnp.where(positive, 1.0 / jnp.sqrt(jnp.where(positive, pivot, 1.0)), 0.0)
        column = jnp.where(entries >= j, rest[:, :, j] * scale[:, None], 0.0)
        return rest - column[:, :, None] * column[:, None, :], L.at[:, :, j].set(column)

    return repeat(len(entries), add, (matrices, jnp.zeros_like(matrices)))[1]


def solve(matrices: Float[Array, "m d d"], right: Float[Array, "m d k"]) -> Float[Array, "m d k"]:
    """Solutions for positive semi-definite matrices and right-hand sides in their range.

    Not LAPACK's: see pgmodels.priors.linalg.
    """
    L = roots(matrices)
    d = L.shape[1]
    pivots = jnp.diagonal(L, axis1=1, axis2=2)
    inverse = jnp.where(pivots > 0.0, 1.0 / jnp.where(pivots > 0.0, pivots, 1.0), 0.0)

    def forward(i: Any, half: Array) -> Array:
        return half.at[:, i].set((right[:, i] - jnp.sum(L[:, i, :, None] * half, axis=1)) * inverse[:, i, None])

    half = repeat(d, forward, jnp.zeros_like(right))

    def backward(step: Any, solution: Array) -> Array:
        i = d - 1 - step
        later = jnp.sum(L[:, :, i, None] * solution, axis=1)
        return solution.at[:, i].set((half[:, i] - later) * inverse[:, i, None])

    return repeat(d, backward, jnp.zeros_like(right))


def repeat(count: int, body: Callable[[Any, Any], Any], start: Any) -> Any:
    """``jax.lax.fori_loop`` over entries of a state, unrolled for small ones; large ones would compile for minutes."""
    if count > _SMALL:
        return jax.lax.fori_loop(0, count, body, start)
    for step in range(count):
        start = body(step, start)
    return start


def times(one: Float[Array, "... i j"], other: Float[Array, "... j k"]) -> Float[Array, "... i k"]:
    """Products of small matrices."""
    if one.shape[-1] > _SMALL:
        return one @ other
    return jnp.sum(one[..., :, :, None] * other[..., None, :, :], axis=-2)


def apply(matrix: Float[Array, "... i j"], vector: Float[Array, "... j"]) -> Float[Array, "... i"]:
    """Products of small matrices and vectors."""
    return jnp.sum(matrix * vector[..., None, :], axis=-1)


def one_step_earlier(values: Float[Array, "n *rest"]) -> Float[Array, "n *rest"]:
    """The values one step earlier, zero for the first."""
    return jnp.concatenate([jnp.zeros_like(values[:1]), values[:-1]])


# The information filter: a chain given sites of any sign is a chain of deviations from the mean.
#
# Where the posterior is proper, each state has a proper distribution given the one before and all sites, also if the
# filter of pgmodels.priors.chain passes improper ones. Precisions of 1e10 and more lose digits here, not there.


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


# The chain of states and their second moments, in which linear response is conditioning on sites, in O(n).
#
# The states x given the sites are a Markov chain, and so, in its first two moments, is y = vech(x x^T), the distinct
# products of two entries: the first entry of y, x_0^2, has the covariance 2 V o V. Corrected covariances are those of
# the chain of (x, y) given factors of a row's latents and their products (math: section 5b).


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
    return Chain(block_diagonal(chain.transition, moved), block_diagonal(chain.noise, spread))


def place_of_product(i: int, j: int) -> int:
    """The entry of y that is the product of entries i and j of x."""
    return max(i, j) * (max(i, j) + 1) // 2 + min(i, j)
