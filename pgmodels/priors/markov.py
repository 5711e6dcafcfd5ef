"""GPs as Markov processes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeGuard, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped
from numpy.typing import ArrayLike

from pgmodels.kernels.kernel import Kernel, with_values
from pgmodels.kernels.state_space import StateSpace
from pgmodels.parameters.parameter import bare_arrays
from pgmodels.priors.base import (
    Covariance,
    GroupPosterior,
    LatentPrior,
    Moments,
    RandomKey,
    Sites,
    pad_zeros,
    padded_size,
)
from pgmodels.priors.chain import Chain, Gaps, apply, paths, roots_of, solve, stack, stack_gaps, times
from pgmodels.priors.dense import centred
from pgmodels.priors.joint_chain import Chains, Drawn, Joint, LineSites, Scans, by_sign, smooth
from pgmodels.priors.representation import EAGER, Binding, Representation, Scalar
from pgmodels.runtime.jit import compiled, is_traced
from pgmodels.runtime.precision import as_array


class MarkovPrior(LatentPrior):
    """The prior of a GP of one column of X whose kernel has a state-space form: see pgmodels.kernels.state_space.

    Coordinates are the states' deviations from the mean, in the order of the rows. ``order`` (n,) sorts the rows, and
    ``chain`` is sorted. ``noise_roots`` has the roots of its noise. It is None before ``for_sampling``: sites may then
    have negative precisions, but not if auxiliary variables are drawn. Padding rows repeat the row that is sorted last,
    and follow it. For rows that continue a series, the mean differs between rows.
    """

    is_chain: ClassVar[bool] = True

    kernel: Any
    mean: Float[Array, ""] | Float[Array, "n 1"]
    X: Float[Array, "n _"]
    order: Int[Array, " n"]
    chain: Chain
    noise_roots: Float[Array, "n d d"] | None
    column: int = eqx.field(static=True)
    size: int = eqx.field(static=True)

    @property
    def dimension(self) -> int:
        """The number of entries of a state."""
        return self.chain.noise.shape[1]

    @property
    def rank(self) -> int:
        """The entries of the states at all rows."""
        return len(self.X) * self.dimension

    @property
    def approximation_error(self) -> Float[Array, ""]:
        """The variance of the harmonics that are left out."""
        return self.kernel.to_state_space().omitted_variance

    @property
    def num_across(self) -> int:
        return 8 * self.dimension**2

    @property
    def sorted_inputs(self) -> Float[Array, " n"]:
        return self.X[self.order, self.column]

    def resized(self, size: int) -> "MarkovPrior":
        count = len(self.X)
        X, order, (F, Q) = np.asarray(self.X), np.asarray(self.order), map(np.asarray, self.chain)
        noise_roots = None if self.noise_roots is None else as_array(pad_zeros(self.noise_roots, size))
        if size > count:
            X = np.concatenate([X, np.broadcast_to(X[order[-1]], (size - count, X.shape[1]))])
            order = np.concatenate([order, np.arange(count, size, dtype=order.dtype)])
            F = np.concatenate([F, np.broadcast_to(np.eye(self.dimension), (size - count, *F.shape[1:]))])
        chain = Chain(as_array(F[:size]), as_array(pad_zeros(Q, size)))
        return replace(self, X=as_array(X[:size]), order=as_array(order[:size]), chain=chain, noise_roots=noise_roots)

    def for_sampling(self) -> "MarkovPrior":
        if self.noise_roots is not None:
            return self
        if is_traced():
            return replace(self, noise_roots=roots_of(self.chain.noise))
        # One program serves many sizes.
        count, noise = len(self.X), self.chain.noise
        padded = _compiled_roots(as_array(pad_zeros(noise, padded_size(count))))
        return replace(self, noise_roots=as_array(np.asarray(padded)[:count]))

    def condition(self, sites: Sites) -> "MarkovPosterior":
        potential, constant = centred(sites, self.mean)
        scans = _smooth(self.chain, potential[self.order], sites.precision[self.order])
        return MarkovPosterior(self, scans, jnp.sum(constant), self.noise_roots is None)

    def moments(self, sites: Sites) -> Moments:
        posterior = self.condition(sites)
        mean, variance = posterior.moments()
        divergence = jnp.sum(posterior.each(Joint.divergence, out_axes=0)) - 0.5 * jnp.sum(sites.precision * variance)
        return Moments(mean, variance, posterior.log_normalizer(), divergence)

    def marginals(self) -> tuple[Float[Array, "n l"], Float[Array, "n l"]]:
        shape = (len(self.X), self.size)
        variance = self.kernel.diagonal(self.X)
        return jnp.broadcast_to(self.mean, shape), jnp.broadcast_to(variance[:, None], shape)

    def coloured(self, whitened: Float[Array, "r l"]) -> Float[Array, "r l"]:
        """Return the states from the noise of each step, in the order of time."""
        noise = jnp.swapaxes(whitened.reshape(len(self.X), self.dimension, self.size), 1, 2)
        return self.coordinates(paths(self.chain.transition, apply(self.step_roots[:, None], noise)))

    def sweep_operations(self) -> float:
        return scan_operations(len(self.X), self.dimension)

    def latents(self, coordinates: Float[Array, "*batch r l"]) -> Float[Array, "*batch n l"]:
        return self.mean + coordinates[..., :: self.dimension, :]

    def conditional(
        self, X_new: Float[Array, "m _"], coordinates: Float[Array, "*batch r l"]
    ) -> tuple[Float[Array, "*batch m l"], Float[Array, " m"]]:
        gaps = self.gaps(X_new)
        kept, gain, residual = _between(self, gaps)
        before, after = _neighbours(self, gaps, coordinates)
        mean = jnp.sum(kept[:, 0, :, None] * before + gain[:, 0, :, None] * after, axis=-2)
        return self.mean + mean, jnp.maximum(residual[:, 0, 0], 0.0)

    @property
    def noise_size(self) -> int:
        return self.dimension

    def draw_given(
        self, X_new: Float[Array, "m _"], coordinates: Float[Array, "*batch r l"], noise: Float[Array, "*batch m l d"]
    ) -> Float[Array, "*batch m l"]:
        # In the order of time, each state is drawn given the state before it (new or of the data) and the data's next.
        order = jnp.argsort(X_new[:, self.column])
        gaps = self.gaps(X_new[order])
        same = gaps.before == jnp.concatenate([jnp.full(1, -2), gaps.before[:-1]])
        since = jnp.where(same, jnp.diff(gaps.time, prepend=gaps.time[:1]), gaps.since)
        state = self.kernel.to_state_space()
        # Before all rows of the data, only the first new state has no state before it.
        starts = (gaps.before < 0) & ~same
        F = jnp.where(_of(starts), 0.0, state.transition(since))
        Q = jnp.where(_of(starts), gaps.to.noise, state.noise(since))
        before = jnp.where(same, jnp.maximum(gaps.before, 0), gaps.before)
        gaps = gaps._replace(before=before, since=since, to=Chain(F, Q))
        kept, gain, residual = _between(self, gaps)
        before, after = (jnp.moveaxis(part, (-3, -1), (0, -2)) for part in _neighbours(self, gaps, coordinates))
        moved = jnp.moveaxis(noise[..., order, :, :], -3, 0)

        def step(last: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
            same, kept, gain, root, before, after, noise = now
            drawn = apply(kept, jnp.where(same, last, before)) + apply(gain, after) + apply(root, noise)
            return drawn, drawn

        steps = (same, kept, gain, roots_of(residual), before, after, moved)
        drawn = jax.lax.scan(step, jnp.zeros_like(before[0]), steps)[1][..., 0]
        unsorted = jnp.zeros_like(drawn).at[order].set(drawn, unique_indices=True)
        return self.mean + jnp.moveaxis(unsorted, 0, -2)

    def coordinates(self, states: Float[Array, "n l d"]) -> Float[Array, "r l"]:
        return jnp.swapaxes(self.unsorted(states), 1, 2).reshape(self.rank, self.size)

    def unsorted(self, values: Shaped[Array, "n *rest"]) -> Shaped[Array, "n *rest"]:
        """Return sorted values in the order of the rows."""
        return jnp.zeros_like(values).at[self.order].set(values, unique_indices=True)

    def gaps(self, X_new: Float[Array, "m _"]) -> Gaps:
        """Return the place of new inputs among the sorted ones."""
        return gaps_at(self.kernel.to_state_space(), self.sorted_inputs, X_new[:, self.column])

    @property
    def step_roots(self) -> Float[Array, "n d d"]:
        """Roots of the noise of each step."""
        return roots_of(self.chain.noise) if self.noise_roots is None else self.noise_roots


def is_chain(prior: LatentPrior) -> TypeGuard[MarkovPrior]:
    """Return whether a prior is a Markov process."""
    return prior.is_chain


def _neighbours(prior: MarkovPrior, gaps: Gaps, coordinates: Float[Array, "*batch r l"]) -> tuple[Array, Array]:
    """Return the states before and after new inputs, (..., m, d, latents)."""
    inputs, last = prior.sorted_inputs, len(prior.X) - 1
    states = coordinates.reshape(*coordinates.shape[:-2], len(prior.X), prior.dimension, prior.size)
    # The first of equal inputs is used, which is no padding: given coordinates may lack padding.
    firsts = (jnp.searchsorted(inputs, inputs[jnp.clip(row, 0, last)]) for row in (gaps.before, gaps.after))
    before, after = (states[..., prior.order[first], :, :] for first in firsts)
    return before, after


def _between(prior: MarkovPrior, gaps: Gaps) -> tuple[Array, Array, Array]:
    """Return the A, B and C of states A x + B z + noise of covariance C, between the states x before and z after."""
    state, step = prior.kernel.to_state_space(), gaps.since + gaps.until
    (F, Q), (onward, onward_noise) = gaps.to, gaps.onward
    # A state before the first row is one step of the prior.
    is_first, is_last = _of(gaps.before < 0), _of(gaps.after == len(prior.X))
    total = jnp.where(is_first, state.covariance(gaps.time + gaps.until), state.noise(step))
    gain = jnp.where(is_last, 0.0, jnp.swapaxes(solve(total, times(onward, Q)), 1, 2))
    kept = F - times(gain, jnp.where(is_first, 0.0, state.transition(step)))
    rest = jnp.eye(prior.dimension) - times(gain, onward)
    residual = times(times(rest, Q), jnp.swapaxes(rest, 1, 2))
    return kept, gain, residual + times(times(gain, onward_noise), jnp.swapaxes(gain, 1, 2))


class MarkovPosterior(GroupPosterior):
    """The posterior of a group, by scans over the sorted rows, with the latents along the second axis."""

    prior: MarkovPrior
    scans: Scans
    constant: Float[Array, ""]
    may_be_signed: bool = eqx.field(static=True)

    def each(self, function: Callable[..., Any], *batched: Array, out_axes: int = 1) -> Any:
        """Return a function of one latent's scans, applied to each latent along the second axis of arrays."""
        chains = _chains(self.prior.chain)

        def one(scans: Scans, *arrays: Array) -> Any:
            return function(Joint(chains, *scans, jnp.zeros(0), jnp.zeros((0, 0))), *arrays)

        return jax.vmap(one, 1, out_axes)(self.scans, *batched)

    def moments(self) -> tuple[Float[Array, "n l"], Float[Array, "n l"]]:
        mean, variance = (self.prior.unsorted(part[..., 0, 0]) for part in self.each(Joint.marginals))
        return self.prior.mean + mean, variance

    def log_normalizer(self) -> Float[Array, ""]:
        return jnp.sum(self.each(Joint.log_normalizer, out_axes=0)) + self.constant

    def predict(self, X_new: Float[Array, "m _"]) -> tuple[Float[Array, "m l"], Float[Array, "m l"]]:
        gaps = stack_gaps([self.prior.gaps(X_new)])
        mean, variance = self.each(lambda joint: joint.marginals_at(gaps))
        return self.prior.mean + mean[..., 0, 0], variance[..., 0, 0]

    def extended(self, X_new: Float[Array, "m _"]) -> "MarkovPosterior":
        prior, (_, _, h, w) = self.prior, self.scans.sites
        X = jnp.concatenate([prior.X, X_new])
        order = jnp.argsort(X[:, prior.column])
        chain = chain_at(prior.kernel.to_state_space(), X[order, prior.column])
        joined = replace(prior, X=X, order=order, chain=chain, noise_roots=roots_of(chain.noise))
        # The chain is of deviations from the mean.
        nothing = jnp.zeros((len(X_new), prior.size))
        of_sites = (jnp.concatenate([prior.unsorted(part[..., 0]), nothing])[order] for part in (h, w))
        return replace(self, prior=joined, scans=_smooth(chain, *of_sites))

    def mean_and_deviation(self, key: RandomKey) -> tuple[Float[Array, "r l"], Float[Array, "r l"]]:
        prior, shape = self.prior, (len(self.prior.X), self.prior.size)
        of_path, of_sites = jax.random.split(key)
        noise = jax.random.normal(of_path, (*shape, prior.dimension), prior.mean.dtype)
        of_sites, roots = jax.random.normal(of_sites, (*shape, 1), prior.mean.dtype), prior.step_roots[:, None]

        def draw(is_signed: bool) -> tuple[Drawn, Drawn]:
            def one(joint: Joint, of_steps: Array, of_sites: Array) -> tuple[Drawn, Drawn]:
                return joint.mean_and_deviation(roots, joint.centre, of_steps, of_sites, is_signed)

            return self.each(one, noise, of_sites)

        (_, mean), (_, deviation) = by_sign(draw, self.scans.sites.precision, self.may_be_signed)
        return prior.coordinates(mean), prior.coordinates(deviation)


def _chains(chain: Chain) -> Chains:
    return Chains(*stack([chain]), kinds=(0,), observed=(0,))


@partial(jax.vmap, in_axes=(None, 1, 1), out_axes=1)
def _smooth(chain: Chain, potential: Float[Array, " n"], precision: Float[Array, " n"]) -> Scans:
    """Return the scans of each latent's sites."""
    h, w = potential[:, None], precision[:, None]
    return smooth(_chains(chain), LineSites(jnp.ones_like(h)[..., None], jnp.zeros_like(h)[..., None], h, w))


_compiled_roots = compiled(roots_of, optimise=False)


def scan_operations(count: int, dimension: int) -> float:
    """Return the number of floating-point operations of a sweep with ``count`` rows."""
    # Measured for each row and latent; the second term is for products of matrices.
    return count * (3000.0 + 20.0 * dimension**3)


def chain_at(state: StateSpace, sorted_inputs: Float[Array, " n"]) -> Chain:
    """Return the chain of the states at sorted inputs."""
    steps = jnp.diff(sorted_inputs, prepend=sorted_inputs[:1])
    is_first = _of(jnp.arange(len(steps)) == 0)
    Q = jnp.where(is_first, state.covariance(sorted_inputs[:1]), state.noise(steps))
    return Chain(jnp.where(is_first, 0.0, state.transition(steps)), Q)


def gaps_at(state: StateSpace, sorted_inputs: Float[Array, " n"], t: Float[Array, " m"]) -> Gaps:
    """Return the place of new inputs among sorted ones."""
    after = jnp.searchsorted(sorted_inputs, t, side="right")
    before, last = after - 1, len(sorted_inputs) - 1
    is_first = before < 0
    since = jnp.where(is_first, 0.0, t - sorted_inputs[jnp.maximum(before, 0)])
    until = jnp.maximum(sorted_inputs[jnp.minimum(after, last)] - t, 0.0)
    transition = jnp.where(_of(is_first), 0.0, state.transition(since))
    noise = jnp.where(_of(is_first), state.covariance(t), state.noise(since))
    onward = Chain(state.transition(until), state.noise(until))
    return Gaps(before, after, t, since, until, Chain(transition, noise), onward)


def _of(rows: Array) -> Array:
    """Return a mask of rows that broadcasts against their matrices."""
    return rows[:, None, None]


@dataclass(frozen=True)
class Markov(Representation):
    """A GP of one column as a Markov process: O(n) time and memory, and exact.

    The form is for Matern12, Matern32, Matern52, Cosine, RandomWalk, Constant, White and Linear, and their sums.
    Products may not contain RandomWalk or Linear. All read one column: ``pgm.On(kernel, [column])`` if X has several.
    Gaps and ties may be of any size, and the rows in any order. Periodic is a sum of harmonics, exact except for the
    share of the variance that these leave out: see ``pgm.Periodic``.

    References
    ----------
    Hartikainen and Särkkä 2010; Nickisch, Solin and Grigorievskiy 2018.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 6.0, 40)[:, None]
    >>> model = pgm.Model(pgm.Gaussian(0.1), pgm.GP(pgm.Matern32(), form=pgm.Markov()))
    >>> vi = pgm.cavi(model, X, np.sin(X[:, 0]))
    >>> bool(np.allclose(vi.mean, pgm.cavi(model.with_form(pgm.Dense()), X, np.sin(X[:, 0])).mean, atol=1e-6))
    True
    """

    can_pad: ClassVar[bool] = True
    has_factor: ClassVar[bool] = False
    # With fewer rows, compilation costs more time than the search.
    least_subset: ClassVar[int | None] = 20_000

    def check(self, kernel: Kernel, num_columns: int) -> None:
        columns = kernel.reads(num_columns)
        if len(columns) > 1:
            raise ValueError(
                f"pgm.Markov() is for kernels of one column, but {kernel!r} reads {len(columns)}: choose one, as in "
                "pgm.On(kernel, [0]), or another form of the GP, such as pgm.Dense()."
            )
        values = with_values(kernel)
        variance = float(values.diagonal(np.zeros((1, num_columns)))[0])
        share = float(values.to_state_space().omitted_variance) / max(variance, float(np.finfo(float).tiny))
        # This check is before learning; afterwards ``approximation_error`` is compared with the data.
        largest = 1e-3
        if share > largest:
            raise ValueError(
                f"the harmonics of {kernel!r} leave out {share:.1%} of the variance, but pgm.Markov() accepts at most "
                f"{largest:.1%}: keep more, as in pgm.Periodic(..., harmonics=30), at a cost that grows with the "
                "third power of their number, use a longer lengthscale, or another form, such as pgm.Dense()."
            )

    def subset(self, kernel: Kernel, X: np.ndarray, count: int, seed: int) -> np.ndarray:
        """Return neighbours in time, from which a lengthscale is learned as well as from all rows."""
        order = np.argsort(X[:, _column(kernel, X.shape[1])], kind="stable")
        first = np.random.default_rng(seed).integers(len(X) - count + 1)
        return np.sort(order[first : first + count])

    def bind(self, kernel: Covariance, mean: Scalar, X: ArrayLike, size: int, how: Binding = EAGER) -> LatentPrior:
        if how.traced:
            return _traced(cast(Kernel, kernel), as_array(mean), as_array(X), size, how.row_mask)
        bare = bare_arrays(cast(Kernel, kernel))
        line = np.asarray(X, dtype=np.float64)[:, _column(bare, np.shape(X)[1])]
        order = np.argsort(line, kind="stable")
        padding = (0, padded_size(len(line)) - len(line))
        F, Q = _chain(bare, as_array(np.pad(line[order], padding, mode="edge")))
        chain = Chain(*(as_array(np.asarray(part)[: len(line)]) for part in (F, Q)))
        return _prior(bare, as_array(mean), as_array(X), as_array(order), chain, size)


def _traced(
    kernel: Kernel, mean: Array, X: Float[Array, "n _"], size: int, row_mask: Float[Array, " n"] | None
) -> MarkovPrior:
    column = _column(kernel, X.shape[1])
    if row_mask is not None:
        last = jnp.argmax(jnp.where(row_mask > 0.0, X[:, column], -jnp.inf))
        X = jnp.where(row_mask[:, None] > 0.0, X, X[last])
    order = jnp.argsort(X[:, column])
    return _prior(kernel, mean, X, order, chain_at(kernel.to_state_space(), X[order, column]), size)


def _prior(
    kernel: Kernel, mean: Array, X: Float[Array, "n _"], order: Int[Array, " n"], chain: Chain, size: int
) -> MarkovPrior:
    column = _column(kernel, X.shape[1])
    return MarkovPrior(
        kernel=kernel, mean=mean, X=X, order=order, chain=chain, noise_roots=None, column=column, size=size
    )


def _column(kernel: Kernel, num_columns: int) -> int:
    """Return the column that a kernel reads; the first column for a constant."""
    return next(iter(kernel.reads(num_columns)), 0)


@partial(compiled, optimise=False)
def _chain(kernel: Kernel, sorted_inputs: Float[Array, " n"]) -> Chain:
    return chain_at(kernel.to_state_space(), sorted_inputs)
