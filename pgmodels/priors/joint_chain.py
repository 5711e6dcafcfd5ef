"""Kalman filters and smoothers of Markov processes."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from pgmodels.priors.chain import Chain, Gaps, apply, draw_deviations, one_step_earlier, times
from pgmodels.priors.linalg import inverse_root, root_of_one_plus
from pgmodels.runtime.precision import Module

# A site is on z = a . x + b . v: x are the latents, entries of the concatenated state, and v ~ N(0, I_r) the effects.
# The scans have one update for each site of a row. They are linear in v: the first column of means, adjoints and
# innovations is at v = 0, and all other columns are slopes in v. The filter's predictions of z then give the precision
# of v (the Schur complement of an arrowhead matrix) without cancellation.
#
# The backward scan is for the adjoints (Bryson and Frazier 1963) and inverts no matrix: precisions may be zero, and
# noise may be as small as it is between close rows.


T = TypeVar("T")
# Effects (r,) and states (n, ld), as means or as draws.
Drawn = tuple[Array, Array]


class Chains(Module):
    """The steps F and Q (n each) of chains of g kernels; ``kinds`` has the kernel of each of the l chains.

    States of fewer entries are padded with zeros. Sites are on the ``observed`` entries of the concatenated state: the
    first entry of each chain, if sites are on latents.
    """

    transition: Float[Array, "n g d d"]
    noise: Float[Array, "n g d d"]
    kinds: tuple[int, ...] = eqx.field(static=True)
    observed: tuple[int, ...] = eqx.field(static=True)

    @property
    def steps(self) -> Chain:
        """The steps, F and Q."""
        return Chain(self.transition, self.noise)

    @property
    def dimension(self) -> int:
        """The number of entries of a state, d."""
        return self.noise.shape[-1]

    @property
    def only_entry(self) -> np.ndarray | None:
        """The mask (ld,) of the only observed entry; None if there are several."""
        first, *others = self.observed
        return None if others else np.arange(len(self.kinds) * self.dimension) == first

    @property
    def of_kind(self) -> np.ndarray:
        """The mask (g, l) of the chains of each kernel."""
        return np.equal.outer(np.arange(self.noise.shape[1]), np.asarray(self.kinds)).astype(float)

    def read(self, states: Float[Array, "*n ld c"]) -> Float[Array, "*n H c"]:
        """Return the observed entries of columns."""
        places = np.array(self.observed)
        steps = np.unique(np.diff(places)) if len(places) > 1 else np.ones(1, dtype=int)
        # A slice is faster than a gather.
        is_even = len(steps) == 1 and steps[0] > 0
        return states[..., slice(places[0], places[-1] + 1, steps[0]) if is_even else places, :]

    def placed(self, direction: Float[Array, "*n H"]) -> Float[Array, "*n ld"]:
        """Return a direction of the observed entries as a direction of the states."""
        places = np.eye(len(self.kinds) * self.dimension)[list(self.observed)]
        return jnp.sum(direction[..., None] * places, axis=-2)

    def of_chains(self, blocks: Float[Array, "*n g d d"]) -> Float[Array, "*n l d d"]:
        """Return the matrix of each chain from the kernels' matrices."""
        is_same = self.kinds == tuple(range(blocks.shape[-3]))
        return blocks if is_same else blocks[..., np.asarray(self.kinds), :, :]

    def forward(self, F: Float[Array, "*n g d d"], columns: Float[Array, "*n ld c"]) -> Float[Array, "*n ld c"]:
        """Return products of the block-diagonal transition and columns."""
        split = columns.reshape(*columns.shape[:-2], len(self.kinds), self.dimension, columns.shape[-1])
        return times(self.of_chains(F), split).reshape(columns.shape)

    def sandwich(self, F: Float[Array, "*n g d d"], matrices: Float[Array, "*n ld ld"]) -> Float[Array, "*n ld ld"]:
        """Return F M F^T with the block-diagonal transition."""
        return self.forward(F, jnp.swapaxes(self.forward(F, matrices), -1, -2))

    def block_diagonal(self, blocks: Float[Array, "*n g d d"]) -> Float[Array, "*n ld ld"]:
        """Return the block-diagonal matrix of all chains."""
        size, d = len(self.kinds), self.dimension
        wide = self.of_chains(blocks)[..., :, None, :] * np.eye(size)[:, None, :, None]
        return wide.reshape(*blocks.shape[:-3], size * d, size * d)

    def diagonal_blocks(self, matrices: Float[Array, "*n ld ld"]) -> Float[Array, "*n g d d"]:
        """Return the diagonal blocks of matrices, summed over the chains of each kernel."""
        size, d = len(self.kinds), self.dimension
        numbers = np.arange(size)
        split = matrices.reshape(*matrices.shape[:-2], size, d, size, d)
        return jnp.einsum("gl,l...ij->...gij", self.of_kind, split[..., numbers, :, numbers, :])


class LineSites(NamedTuple):
    """The K sites of each row, exp(h z - w z^2 / 2), on z = a . x + b . v of the observed entries x.

    ``direction`` has a; ``slope`` has b by columns, and its first column is zero.
    """

    direction: Float[Array, "*n k H"]
    slope: Float[Array, "*n k c"]
    potential: Float[Array, "*n k"]
    precision: Float[Array, "*n k"]


class Forward(NamedTuple):
    """The states' mean and covariance at each row, given its sites and all earlier sites, and terms of each site.

    ``predicted`` and p0 are the mean and the variance of z given all earlier sites; ``gained`` = w p0, and
    ``gain`` = cov(states, z) / (1 + w p0).
    """

    mean: Float[Array, "*n ld c"]
    covariance: Float[Array, "*n ld ld"]
    gain: Float[Array, "*n k ld"]
    gained: Float[Array, "*n k"]
    predicted: Float[Array, "*n k c"]


class Adjoint(NamedTuple):
    """The adjoints λ and Λ of each state: given also the later sites, its moments are m - P λ and P - P Λ P.

    The derivatives of the log normaliser in m and P are -λ and (λ λ^T - Λ) / 2.
    """

    vector: Float[Array, "*n ld c"]
    matrix: Float[Array, "*n ld ld"]


class Scans(NamedTuple):
    """The scans of sites, as deviations from prior means; ``adjoint`` includes only later sites."""

    sites: LineSites
    forward: Forward
    adjoint: Adjoint


class Joint(Module):
    """The scans of sites, and the posterior N(centre, (R R^T)^-1) of v, as deviations from prior means."""

    chains: Chains
    sites: LineSites
    forward: Forward
    adjoint: Adjoint
    centre: Float[Array, " r"]
    root: Float[Array, "r r"]

    def turned(self, columns: Float[Array, "*n c"]) -> Float[Array, "*n c"]:
        """Return columns as a mean, and deviations that multiply standard normals."""
        if not len(self.centre):
            return columns
        first, slopes = columns[..., :1], columns[..., 1:]
        return jnp.concatenate([first + slopes @ self.centre[:, None], slopes @ inverse_root(self.root).T], axis=-1)

    @property
    def columns(self) -> Float[Array, "c c"]:
        """The matrix that turns columns into a mean and deviations for standard normals."""
        return self.turned(jnp.eye(1 + len(self.centre)))

    def marginals(self) -> tuple[Float[Array, "n l c"], Float[Array, "n l l"]]:
        """Return the mean and deviations of each row's latents, and their covariance given v."""
        return self._first_entries(self.forward.mean, self.forward.covariance, self.adjoint)

    def marginals_at(self, gaps: Gaps) -> tuple[Float[Array, "m l c"], Float[Array, "m l l"]]:
        """Return ``marginals`` at new inputs."""
        chains, last = self.chains, len(self.sites.potential) - 1
        before, after = jnp.maximum(gaps.before, 0), jnp.minimum(gaps.after, last)
        F, Q = gaps.to
        mean = chains.forward(F, self.forward.mean[before])
        covariance = chains.sandwich(F, self.forward.covariance[before]) + chains.block_diagonal(Q)
        at_next = jax.tree.map(lambda part: part[after], (self.sites, self.forward, self.adjoint))
        vector, matrix = _with_sites(chains, *at_next)
        onward, ends = jnp.swapaxes(gaps.onward.transition, -1, -2), (gaps.after > last)[:, None, None]
        vector = jnp.where(ends, 0.0, chains.forward(onward, vector))
        matrix = jnp.where(ends, 0.0, chains.sandwich(onward, matrix))
        return self._first_entries(mean, covariance, Adjoint(vector, matrix))

    def _first_entries(self, mean: Array, covariance: Array, adjoint: Adjoint) -> tuple[Array, Array]:
        read = self.chains.read
        rows = read(covariance)
        across = jnp.swapaxes(rows, -1, -2)
        mean = self.turned(read(mean) - times(rows, adjoint.vector))
        return mean, read(across) - times(times(rows, adjoint.matrix), across)

    def pulls(self) -> tuple[Float[Array, "n k c"], Float[Array, "n k c"]]:
        """Return z and h - w z of each site, as means and deviations for standard normals, without variance given v."""
        mean, _ = self.marginals()
        z = times(self.sites.direction, mean) + self.turned(self.sites.slope)
        # Computed without h - w z, which cancels if sites are precise.
        _, pulls = _vector_with_sites(self.chains, self.sites, self.forward, self.adjoint.vector)
        return z, self.turned(pulls)

    def divergence(self) -> Float[Array, ""]:
        """Return KL(q || prior) without the sites' share: half of the log det ratios and of the mean's square."""
        z, pull = self.pulls()
        log_roots = jnp.sum(jnp.log(jnp.diagonal(self.root)))
        log_determinant = _log_determinant(self.forward.gained, self.sites.precision)
        return 0.5 * (log_determinant + jnp.sum(z[..., 0] * pull[..., 0])) + log_roots

    def log_normalizer(self) -> Float[Array, ""]:
        """Return the log integral of prior times sites; its derivative is by the adjoints, not through scans."""
        return _log_normalizer(self.chains, self.sites, jax.lax.stop_gradient(self))

    def mean_and_deviation(
        self,
        roots: Float[Array, "n g d d"],
        of_effects: Float[Array, " r"],
        of_steps: Float[Array, "n ld"],
        of_sites: Float[Array, "n k"],
        is_signed: bool,
    ) -> tuple[Drawn, Drawn]:
        """Return means, and deviations from standard normals and ``roots`` of the noise; ``is_signed`` allows w < 0."""
        chains, (a, slope, _, w), forward, vector = self.chains, self.sites, self.forward, self.adjoint.vector
        if is_signed:
            on_states = chains.placed(a)
            precision = jnp.einsum("nk,nki,nkj->nij", w, on_states, on_states)
            F, Q, L = map(chains.block_diagonal, (*chains.steps, roots))
            deviation = draw_deviations(Chain(F, Q), L, precision, of_steps)
        else:
            # A path of the prior minus its mean given noisy observations of it, with the sites' noise (Durbin and
            # Koopman 2002): the recursions of a mean, with the noise of each step.
            sites = LineSites(a, jnp.zeros_like(slope[..., :1]), -jnp.sqrt(w) * of_sites, w)
            path, predicted = _means(chains, sites, forward.gain, chains.forward(roots, of_steps[..., None]))
            back = _vectors(chains, sites, forward._replace(mean=path, predicted=predicted))
            deviation = (path - times(forward.covariance, back))[..., 0]
        effects = self.columns[1:, 1:] @ of_effects

        def states(*weights: Array) -> Array:
            of_columns = jnp.concatenate(weights)
            return forward.mean @ of_columns - apply(forward.covariance, vector @ of_columns)

        mean = states(jnp.ones(1), self.centre)
        if len(effects):
            deviation += states(jnp.zeros(1), effects)
        return (self.centre, mean), (effects, deviation)


def condition(chains: Chains, sites: LineSites) -> Joint:
    """Return the scans and the posterior of v given sites."""
    scans = smooth(chains, sites)
    _, forward, _ = scans
    # Given v, sites have potentials h - w b . v: the filter's predictions of z are whitened observations of v.
    shares, about = sites.precision / (1.0 + forward.gained), forward.predicted[..., 1:]
    precision = jnp.einsum("nk,nki,nkj->ij", shares, about, about)
    innovation = _innovation(sites, forward.predicted)[..., 0] / (1.0 + forward.gained)
    root = root_of_one_plus(precision) if len(precision) else precision
    right = jnp.einsum("nk,nki->i", innovation, about)
    centre = cho_solve((root, True), right) if len(precision) else right
    return Joint(chains, *scans, centre, root)


def smooth(chains: Chains, sites: LineSites) -> Scans:
    """Return the scans of sites in each direction."""
    covariances = _covariances(chains, sites)
    mean, predicted = _means(chains, sites, covariances[1])
    forward = Forward(mean, *covariances, predicted)
    return Scans(sites, forward, Adjoint(_vectors(chains, sites, forward), _matrices(chains, sites, forward)))


def by_sign(draw: Callable[[bool], T], precision: Float[Array, "n *k"], may_be_signed: bool) -> T:
    """Return the draw for precisions of any sign if one is negative, else the draw for precisions >= 0."""
    # In compiled sweeps, a choice at run time costs a third of their time.
    if not may_be_signed:
        return draw(False)
    return jax.lax.cond(jnp.any(precision < 0.0), lambda: draw(True), lambda: draw(False))


def negative_directions(gained: Float[Array, "*sites"], precision: Float[Array, "*sites"]) -> Float[Array, "*sites"]:
    """Return terms of sites that sum to the number of K^-1 + W's negative eigenvalues (Haynsworth, of W^-1 + K).

    A site that turns the sign of the determinant adds one if its precision is negative, and subtracts one otherwise.
    """
    return jnp.where(1.0 + gained <= 0.0, -jnp.sign(precision), 0.0)


def _log_determinant(gained: Float[Array, "*sites"], precision: Float[Array, "*sites"]) -> Float[Array, ""]:
    """Return log det(I + K W) from ``gained`` of each site; NaN if K^-1 + W is not positive definite."""
    logs = jnp.log1p(jnp.where(1.0 + gained <= 0.0, -2.0 - gained, gained))
    return jnp.where(jnp.sum(negative_directions(gained, precision)) == 0.0, jnp.sum(logs), jnp.nan)


@jax.custom_jvp
def _log_normalizer(chains: Chains, sites: LineSites, joint: Joint) -> Float[Array, ""]:
    del chains
    (a, _, h, w), forward = sites, joint.forward
    z, s = forward.predicted[..., 0], forward.gained
    # The variance of z given its site; w may be zero.
    variance = jnp.sum(jnp.swapaxes(a, -1, -2) * joint.chains.read(jnp.swapaxes(forward.gain, -1, -2)), axis=-2)
    of_means = jnp.sum(variance * h**2 + (2.0 * h - w * z) * z / (1.0 + s))
    half = joint.root.T @ joint.centre
    return 0.5 * (of_means + half @ half - _log_determinant(s, w)) - jnp.sum(jnp.log(jnp.diagonal(joint.root)))


@_log_normalizer.defjvp
def _derivative(
    primals: tuple[Chains, LineSites, Joint], tangents: tuple[Chains, LineSites, Joint]
) -> tuple[Array, Array]:
    chains, sites, joint = primals
    moved, (da, db, dh, dw), _ = tangents
    forward, d = joint.forward, chains.dimension
    mean, covariance = joint.marginals()
    z, pull = joint.pulls()
    # Columns after the first multiply standard normals: products sum over them.
    across = apply(covariance[:, None], sites.direction)
    squares = jnp.sum(z**2, axis=-1) + jnp.sum(sites.direction * across, axis=-1)
    of_latents = jnp.einsum("nkc,nlc->nkl", pull, mean) - sites.precision[..., None] * across
    of_sites = jnp.sum(z[..., 0] * dh) - 0.5 * jnp.sum(squares * dw)
    of_sites += jnp.sum(of_latents * da) + jnp.sum((pull @ joint.columns.T) * db)

    vector, matrix = _with_sites(chains, sites, forward, joint.adjoint)
    vector, before = joint.turned(vector), joint.turned(one_step_earlier(forward.mean))
    slope = 0.5 * (times(vector, jnp.swapaxes(vector, -1, -2)) - matrix)
    # d(F P F^T + Q) = 2 dF P F^T + dQ, up to the transpose.
    carried = chains.forward(chains.transition, one_step_earlier(forward.covariance))
    spread = 2.0 * chains.diagonal_blocks(times(slope, carried))
    split = (*vector.shape[:-2], len(chains.kinds), d, vector.shape[-1])
    pushed = jnp.einsum("gl,...lic,...ljc->...gij", chains.of_kind, vector.reshape(split), before.reshape(split))
    of_steps = jnp.sum((spread - pushed) * moved.transition) + jnp.sum(chains.diagonal_blocks(slope) * moved.noise)
    return _log_normalizer(*primals), of_sites + of_steps


# Each recursion is a scan of single steps: XLA compiles each small loop to one function, which costs 10 % of a larger
# loop's compile time.


def _covariances(
    chains: Chains, sites: LineSites
) -> tuple[Float[Array, "n ld ld"], Float[Array, "n k ld"], Float[Array, "n k"]]:
    """Return ``covariance``, ``gain`` and ``gained`` of the forward scan."""

    def step(P: Array, now: tuple[Array, Array, LineSites]) -> tuple[Array, Array]:
        F, Q, sites = now
        before = chains.sandwich(F, P) + chains.block_diagonal(Q)
        return _covariance_with_sites(chains, sites, before)[0], before

    size = len(chains.kinds) * chains.dimension
    before = jax.lax.scan(step, jnp.zeros((size, size)), (chains.transition, chains.noise, sites))[1]
    return _covariance_with_sites(chains, sites, before)


def _covariance_with_sites(
    chains: Chains, sites: LineSites, P: Float[Array, "*n ld ld"]
) -> tuple[Float[Array, "*n ld ld"], Float[Array, "*n k ld"], Float[Array, "*n k"]]:
    """Return the covariance given a row's sites, from the one before them, and ``gain`` and ``gained`` of each site."""
    entry, gains, gained = chains.only_entry, [], []
    for k in range(sites.direction.shape[-2]):
        a, w, rows = sites.direction[..., k, :], sites.precision[..., k], chains.read(P)
        across = jnp.sum(rows * a[..., None], axis=-2)
        gained.append(w * jnp.sum(chains.read(across[..., None])[..., 0] * a, axis=-1))
        scale = 1.0 / (1.0 + gained[-1])[..., None]
        gains.append(across * scale)
        P = P - (w[..., None] * scale)[..., None] * (across[..., :, None] * across[..., None, :])
        if entry is not None:
            # Exact for sites of any precision.
            P = _bordered(P, entry, rows[..., 0, :] * scale)
    return P, jnp.stack(gains, axis=-2), jnp.stack(gained, axis=-1)


def _means(
    chains: Chains, sites: LineSites, gain: Float[Array, "n k ld"], noise: Float[Array, "n ld c"] | None = None
) -> tuple[Float[Array, "n ld c"], Float[Array, "n k c"]]:
    """Return ``mean`` and ``predicted`` of the forward scan; for draws, with the noise of each step."""

    def step(before: Array, now: tuple[Array, LineSites, Array, Array | None]) -> tuple[Array, tuple[Array, Array]]:
        F, sites, gain, noise = now
        mean, predicted = chains.forward(F, before), []
        mean = mean if noise is None else mean + noise
        is_first = np.arange(mean.shape[-1]) == 0
        for k, (a, b, h, w) in enumerate(zip(*sites, strict=True)):
            predicted.append(jnp.sum(a[:, None] * chains.read(mean), axis=0) + b)
            mean = mean + gain[k][:, None] * (h * is_first - w * predicted[-1])
        return mean, (mean, jnp.stack(predicted))

    start = jnp.zeros((gain.shape[-1], sites.slope.shape[-1]))
    return jax.lax.scan(step, start, (chains.transition, sites, gain, noise))[1]


def _vectors(chains: Chains, sites: LineSites, forward: Forward) -> Float[Array, "n ld c"]:
    """Return ``vector`` of the backward scan."""

    def step(after: Array, now: tuple[Array, LineSites, Forward]) -> tuple[Array, Array]:
        F, sites, forward = now
        vector, _ = _vector_with_sites(chains, sites, forward, after)
        return chains.forward(jnp.swapaxes(F, -1, -2), vector), after

    return jax.lax.scan(step, jnp.zeros_like(forward.mean[0]), (chains.transition, sites, forward), reverse=True)[1]


def _matrices(chains: Chains, sites: LineSites, forward: Forward) -> Float[Array, "n ld ld"]:
    """Return ``matrix`` of the backward scan."""

    def step(after: Array, now: tuple[Array, LineSites, Forward]) -> tuple[Array, Array]:
        F, sites, forward = now
        return chains.sandwich(jnp.swapaxes(F, -1, -2), _matrix_with_sites(chains, sites, forward, after)), after

    start = jnp.zeros_like(forward.covariance[0])
    return jax.lax.scan(step, start, (chains.transition, sites, forward), reverse=True)[1]


def _with_sites(chains: Chains, sites: LineSites, forward: Forward, later: Adjoint) -> Adjoint:
    """Return the adjoints before a row's sites from the adjoints after them."""
    vector, _ = _vector_with_sites(chains, sites, forward, later.vector)
    return Adjoint(vector, _matrix_with_sites(chains, sites, forward, later.matrix))


def _vector_with_sites(
    chains: Chains, sites: LineSites, forward: Forward, vector: Float[Array, "*n ld c"]
) -> tuple[Float[Array, "*n ld c"], Float[Array, "*n k c"]]:
    """Return λ before a row's sites from λ after them, and h - w z of each site."""
    innovation = _innovation(sites, forward.predicted) / (1.0 + forward.gained)[..., None]
    entry, pulls = chains.only_entry, []
    for k in reversed(range(sites.direction.shape[-2])):
        a, gain, w = sites.direction[..., k, :], forward.gain[..., k, :], sites.precision[..., k, None]
        pulls.append(innovation[..., k, :] + w * jnp.sum(gain[..., None] * vector, axis=-2))
        if entry is None:
            vector = vector - chains.placed(a)[..., None] * pulls[-1][..., None, :]
        else:
            along = jnp.sum(_column(entry, sites, forward, k)[..., None] * vector, axis=-2)
            vector = jnp.where(entry[:, None], (along - a * innovation[..., k, :])[..., None, :], vector)
    return vector, jnp.stack(pulls[::-1], axis=-2)


def _matrix_with_sites(
    chains: Chains, sites: LineSites, forward: Forward, matrix: Float[Array, "*n ld ld"]
) -> Float[Array, "*n ld ld"]:
    """Return Λ before a row's sites from Λ after them."""
    entry = chains.only_entry
    for k in reversed(range(sites.direction.shape[-2])):
        a, gain, w = sites.direction[..., k, :], forward.gain[..., k, :], sites.precision[..., k, None]
        added = w / (1.0 + forward.gained[..., k, None])
        if entry is None:
            e, along = chains.placed(a), w * apply(matrix, gain)
            kept = w * jnp.sum(along * gain, axis=-1, keepdims=True) + added
            across = e[..., :, None] * (0.5 * kept * e - along)[..., None, :]
            matrix = matrix + across + jnp.swapaxes(across, -1, -2)
        else:
            column = _column(entry, sites, forward, k)
            across = apply(matrix, column)
            corner = jnp.sum(column * across, axis=-1, keepdims=True) + added * a**2
            matrix = _bordered(matrix, entry, jnp.where(entry, corner, across))
    return matrix


def _column(entry: np.ndarray, sites: LineSites, forward: Forward, k: int) -> Float[Array, "*n ld"]:
    """Return the column of I - w gain a^T, site ``k``'s update, that differs from I, without cancellation."""
    a, w = sites.direction[..., k, :], sites.precision[..., k, None]
    return jnp.where(entry, 1.0 / (1.0 + forward.gained[..., k, None]), -w * a * forward.gain[..., k, :])


def _bordered(
    matrix: Float[Array, "*n ld ld"], entry: np.ndarray, border: Float[Array, "*n ld"]
) -> Float[Array, "*n ld ld"]:
    """Return symmetric matrices with the row and the column of an entry replaced."""
    # Masks are used, because updates in place would end a loop's fused arithmetic.
    return jnp.where(entry[:, None], border[..., None, :], jnp.where(entry, border[..., :, None], matrix))


def _innovation(sites: LineSites, predicted: Float[Array, "*n k c"]) -> Float[Array, "*n k c"]:
    is_first = np.arange(predicted.shape[-1]) == 0
    return sites.potential[..., None] * is_first - sites.precision[..., None] * predicted
