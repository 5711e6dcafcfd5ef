"""Moves by slice sampling and by Hamiltonian steps."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array

from pgmodels.inference.moves import (
    Chain,
    Move,
    MoveRequirement,
    MoveSchedule,
    MoveStats,
    Step,
    Target,
    columns_of,
    factor_operations,
    latents_at,
    mean_and_deviation,
    move_schedule,
    prior_at,
    replaced,
    surrogate_at,
    sweep_operations,
)
from pgmodels.inference.surrogates import Ellipse
from pgmodels.objectives.expected import num_coarse_nodes
from pgmodels.priors.base import RandomKey
from pgmodels.priors.block_posterior import BlockPosterior
from pgmodels.priors.collection import PriorCollection, choose_blocks, flatten
from pgmodels.priors.linalg import vmap_as_loop, vmap_as_loop_if_batched
from pgmodels.runtime.precision import as_array

State = TypeVar("State")
# Cost of a slice step on hyperparameters and of those on latents that follow, in evaluations of its density (measured).
EVALUATIONS = 4.0
# Maximum number of shrinkages, by 2^-100 in all: the rest is rounding, and the chain does not move.
MAX_SHRINKS = 100
# Cost of a log density in floating-point operations (measured).
DENSITY = 150.0


class Uniforms(NamedTuple):
    """The uniform numbers of a slice step, drawn outside loops: for its height, first proposal, and shrinkages."""

    height: Array
    first: Array
    others: Array

    @classmethod
    def draw(cls, key: RandomKey) -> "Uniforms":
        """Return numbers for the maximum number of shrinkages."""
        drawn = jax.random.uniform(key, (2 + MAX_SHRINKS,))
        return cls(drawn[0], drawn[1], drawn[2:])

    def height_below(self, density: Array) -> Array:
        """Return the log of a uniform height below a density, from the log density."""
        return density + jnp.log1p(-self.height)

    def between(self, low: Array, high: Array, count: Array) -> Array:
        """Return a proposal within an interval after a number of shrinkages."""
        return low + (high - low) * self.others[count]


class EllipticalT(NamedTuple):
    """The t distribution with the middle and scale of an ellipse, on whose ellipses slice steps move."""

    ellipse: Ellipse
    freedom: int = 8

    def minus_log_density(self, vector: Array) -> Array:
        """Up to a constant."""
        standard = self.ellipse.standard(vector - self.ellipse.middle)
        return 0.5 * (self.freedom + len(vector)) * jnp.log1p(standard @ standard / self.freedom)

    def draw_width(self, vector: Array, noise: Array) -> Array:
        """The scale of the normal distribution given a vector, from ``freedom`` plus its size standard normals."""
        standard = self.ellipse.standard(vector - self.ellipse.middle)
        return jnp.sqrt((self.freedom + standard @ standard) / (noise @ noise))


def slice_step(
    key: RandomKey,
    ellipse: Ellipse,
    vector: Array,
    state: State,
    density: Array,
    at: Callable[[Array], tuple[State, Array]],
) -> tuple[Array, State]:
    """Make a slice step on an ellipse of the t distribution (Neal 2003; Nishihara, Murray and Adams 2014)."""
    middle, law = ellipse.middle, EllipticalT(ellipse)
    normal_key, uniform_key = jax.random.split(key)
    noise, others = jnp.split(jax.random.normal(normal_key, (2 * len(vector) + law.freedom,)), [len(vector)])
    uniforms = Uniforms.draw(uniform_key)
    width = law.draw_width(vector, others)
    height = uniforms.height_below(density + law.minus_log_density(vector))
    high = 2.0 * jnp.pi * uniforms.first

    def unfinished(carry: tuple[Any, ...]) -> Array:
        *_, accepted, count = carry
        return ~accepted & (count < MAX_SHRINKS)

    def propose(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        low, high, accepted_point, _, count = carry
        angle = uniforms.between(low, high, count)
        proposed = middle + (vector - middle) * jnp.cos(angle) + width * ellipse.scale @ noise * jnp.sin(angle)
        moved, density = at(proposed)
        accepted = density + law.minus_log_density(proposed) >= height
        accepted_point = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), (proposed, moved), accepted_point)
        return jnp.where(angle < 0, angle, low), jnp.where(angle < 0, high, angle), accepted_point, accepted, count + 1

    start = (high - 2.0 * jnp.pi, high, (vector, state), jnp.array(False), 0)
    return jax.lax.while_loop(unfinished, propose, start)[2]


# A loop over chains if their surrogates differ: see pgmodels.priors.linalg.
_deviations = vmap_as_loop_if_batched(lambda surrogate, noise: jax.vmap(surrogate.deviation)(noise))


@dataclass(frozen=True)
class SliceLatents(Move):
    """An elliptical slice step on all latents about the surrogate; ``info`` is the number of shrinkages of the angle.

    The posterior is the surrogate times the ratio p(y | f) / factors(f), which is nearly constant for a good surrogate.
    The step is then nearly an independent draw. Source: Murray, Adams and MacKay 2010; Nishihara, Murray and Adams
    2014.
    """

    name: ClassVar[str] = "slice_latents"
    requirements: ClassVar[frozenset[MoveRequirement]] = frozenset({MoveRequirement.GAUSSIAN})
    state: ClassVar[Literal["surrogate"]] = "surrogate"
    # Maximum number of steps per iteration, with hyperparameters fixed.
    max_steps: ClassVar[int] = 12

    def no_info(self, chain: Chain) -> Array:
        return jnp.zeros(())

    def step(self, target: Target, settings: None, chain: Chain, state: BlockPosterior) -> Step:
        return self.steps(target, settings, chain, state, 1)

    def steps(self, target: Target, settings: None, chain: Chain, state: BlockPosterior, count: Array | int) -> Step:
        """Make ``count`` steps; several deviations of the surrogate are drawn at once, at little more cost than one."""
        prior, parameters, at_once = state.prior, target.parameters(chain.unknowns), 4
        centre = prior.latents(prior.unflatten(state.centre))

        def log_ratio(f: Array) -> Array:
            return target.log_density(f, parameters) - state.log_factor(f)

        def several(group: Array, before: tuple[Chain, Array, Array]) -> tuple[Chain, Array, Array]:
            chain, density, shrinks = before
            key, noise_key = jax.random.split(chain.key)
            noise = jax.random.normal(noise_key, (at_once, *state.centre.shape), state.centre.dtype)
            others = _deviations(state, noise)
            other_latents = jax.vmap(lambda v: prior.latents(prior.unflatten(v)))(others) - prior.means()

            def again(index: Array, before: tuple[Chain, Array, Array]) -> tuple[Chain, Array, Array]:
                chain, density, shrinks = before
                other = others[index], other_latents[index]
                chain, density, more = _ellipse_step(chain, density, (state.centre, centre), other, log_ratio)
                return chain, density, shrinks + more

            remaining = jnp.minimum(count - group * at_once, at_once)
            return jax.lax.fori_loop(0, remaining, again, (chain._replace(key=key), density, shrinks))

        groups = (count + at_once - 1) // at_once
        start = chain, log_ratio(chain.latents), self.no_info(chain)
        chain, _, shrinks = jax.lax.fori_loop(0, groups, several, start)
        return Step(chain, state, shrinks, jnp.array(True))

    def cost(self, prior: PriorCollection, schedule: MoveSchedule, stats: MoveStats | None) -> float:
        total = sum(prior.spans().ranks)
        n, size = prior.num_rows, sum(prior.sizes)
        return total**2 + 2.0 * n * total + (2.0 + mean_shrinks(stats)) * n * size * DENSITY

    def first(self) -> MoveSchedule:
        return move_schedule(4, 1)

    def tune(self, prior: PriorCollection, sampled: bool, schedule: MoveSchedule, stats: MoveStats) -> MoveSchedule:
        """Return the number of steps."""
        # Effective draws per iteration, and the maximum number of steps. They cost little compared with slice steps on
        # hyperparameters, which need several factorisations each.
        wanted, most = (6.0, 24) if sampled else (1.5, self.max_steps)
        # Effective draws per slice step, fitted to 12 models: from 0.77 at 0.1 shrinkages to 0.16 at 1.2.
        steps = int(np.clip(np.ceil(wanted / (0.85 * np.exp(-1.45 * mean_shrinks(stats)))), 2, most))
        return schedule._replace(repeats=as_array(steps))


def _ellipse_step(
    chain: Chain,
    density: Array,
    centre: tuple[Array, Array],
    other: tuple[Array, Array],
    log_ratio: Callable[[Array], Array],
) -> tuple[Chain, Array, Array]:
    """The chain after a step on the ellipse through it, ``centre`` and ``other``, its log ratio, and shrinkages."""
    key, uniform_key = jax.random.split(chain.key)
    uniforms = Uniforms.draw(uniform_key)
    here = chain.coordinates, chain.latents
    height = uniforms.height_below(density)
    first = 2.0 * jnp.pi * uniforms.first

    def at(angle: Array | float) -> list[Array]:
        triples = zip(centre, here, other, strict=True)
        return [c + (x - c) * jnp.cos(angle) + o * jnp.sin(angle) for c, x, o in triples]

    def rejected(carry: tuple[Any, ...]) -> Array:
        *_, count, density = carry
        return ~(density >= height) & (count <= MAX_SHRINKS)

    def propose(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        angle, low, high, count, _ = carry
        low, high = jnp.where(angle < 0, angle, low), jnp.where(angle < 0, high, angle)
        angle = jnp.where(count == 0, first, uniforms.between(low, high, count - 1))
        return angle, low, high, count + 1, log_ratio(at(angle)[1])

    # The first angle is both ends of the interval, a full turn.
    ends = first, first - 2.0 * jnp.pi, first
    angle, _, _, count, reached = jax.lax.while_loop(rejected, propose, (*ends, 0, jnp.full_like(density, -jnp.inf)))
    accepted = reached >= height
    coordinates, latents = at(jnp.where(accepted, angle, 0.0))
    moved = chain._replace(key=key, latents=latents, coordinates=coordinates)
    return moved, jnp.where(accepted, reached, density), jnp.asarray(count - 1, float)


def mean_shrinks(stats: MoveStats | None) -> float:
    """Return the mean number of shrinkages per step; 0 before any step."""
    return float(np.sum(np.asarray(stats.info)) / max(float(stats.steps), 1.0)) if stats is not None else 0.0


@dataclass(frozen=True)
class LikelihoodSlice(Move):
    """A slice step on the likelihood's parameters given the latents, without auxiliary variables (Neal 2003)."""

    name: ClassVar[str] = "slice_likelihood"
    requirements: ClassVar[frozenset[MoveRequirement]] = frozenset(
        {MoveRequirement.HYPERPARAMETERS, MoveRequirement.OF_LIKELIHOOD, MoveRequirement.NO_GAUSSIAN}
    )

    def step(self, target: Target, settings: None, chain: Chain, state: tuple[()]) -> Step:
        entries = np.flatnonzero(target.unknowns.gps < 0)
        key, draw = jax.random.split(chain.key)
        vector = _slice_entries(draw, target, chain.unknowns, entries, partial(target.log_likelihood, chain.latents))
        return Step(chain._replace(key=key, unknowns=vector), state)

    def cost(self, prior: PriorCollection, schedule: MoveSchedule, stats: MoveStats | None) -> float:
        return EVALUATIONS * prior.num_rows * sum(prior.sizes) * DENSITY


# A loop over chains: see pgmodels.priors.linalg.
_log_normalizer = vmap_as_loop(
    lambda target, sites, parameters, vector: (
        target.problem(target.prior(vector), parameters).condition(sites).log_normalizer()
    )
)


@dataclass(frozen=True)
class MarginalSlice(Move):
    """For each block, auxiliary variables given the latents, hyperparameters of its GPs given these, and its latents.

    Given the auxiliary variables the latents are Gaussian. The density of their hyperparameters θ is p(θ) Z(θ), with Z
    the normaliser of the sites. Their slice step (Neal 2003) needs no latents. Its length does not shrink as the
    data grow.
    """

    name: ClassVar[str] = "marginal_slice"
    requirements: ClassVar[frozenset[MoveRequirement]] = frozenset(
        {MoveRequirement.HYPERPARAMETERS, MoveRequirement.OF_PRIOR, MoveRequirement.NO_GAUSSIAN}
    )

    def step(self, target: Target, settings: None, chain: Chain, state: tuple[()]) -> Step:
        key, augmentation, vector, latents = chain.key, target.augmentation, chain.unknowns, chain.latents
        parameters = target.parameters(vector)
        prior, finite = prior_at(target, vector), jnp.array(True)
        coordinates = prior.unflatten(chain.coordinates)
        for index, block in enumerate(augmentation.blocks):
            key, auxiliary_key, slice_key, latent_key = jax.random.split(key, 4)
            sites, is_finite = target.draw_sites(auxiliary_key, latents, parameters, index)
            columns = columns_of(augmentation, block)
            # The hyperparameters of GPs all of whose latents are updated together.
            groups = [index for index, part in enumerate(prior.slices()) if np.all(columns[part])]
            entries = np.flatnonzero(np.isin(target.unknowns.gps, groups))
            if entries.size:
                log_normalizer = partial(_log_normalizer, target, sites, parameters)
                vector = _slice_entries(slice_key, target, vector, entries, log_normalizer)
            prior = prior_at(target, vector)
            drawn = jax.tree.map(jnp.add, *mean_and_deviation(target, prior, latent_key, sites, parameters))
            latents, coordinates = replaced(prior, columns, drawn, latents, coordinates)
            finite = finite & is_finite
        return Step(Chain(key, vector, latents, flatten(coordinates)), state, (), finite)

    def cost(self, prior: PriorCollection, schedule: MoveSchedule, stats: MoveStats | None) -> float:
        return EVALUATIONS * sweep_operations(prior)


def check_blocks(target: Target, prior: PriorCollection) -> None:
    """ValueError if sampled hyperparameters are shared by latents of different blocks, which are drawn in turns."""
    unknowns, augmentation = target.unknowns, target.augmentation
    for index in sorted(set(unknowns.gp_indices) - {-1}):
        part = prior.slices()[index]
        if not any(np.all(columns_of(augmentation, block)[part]) for block in augmentation.blocks):
            names = [name for name, gp in zip(unknowns.names, unknowns.gp_indices, strict=True) if gp == index]
            raise ValueError(
                f"gibbs cannot sample {', '.join(names)} here: the formula multiplies latents {part.start} to "
                f"{part.stop - 1}, which share them, so that they are drawn in turns. Give each latent a GP of its "
                "own, as in [pgm.GP(kernel), pgm.GP(other)], or another form, such as pgm.Dense()."
            )


def _slice_entries(
    key: RandomKey, target: Target, vector: Array, entries: np.ndarray, log_likelihood: Callable[[Array], Array]
) -> Array:
    """The hyperparameters after a slice step on some of them, given the log likelihood of all."""

    def at(some: Array) -> tuple[tuple[()], Array]:
        proposed = vector.at[entries].set(some)
        return (), target.unknowns.log_prior_unconstrained(proposed) + log_likelihood(proposed)

    some, rows = vector[entries], target.ellipse.scale[entries]
    ellipse = Ellipse(target.ellipse.middle[entries], jnp.linalg.cholesky(rows @ rows.T))
    moved, _ = slice_step(key, ellipse, some, (), at(some)[1], at)
    return vector.at[entries].set(moved)


# A loop over chains: see pgmodels.priors.linalg.
_deviation = vmap_as_loop(lambda surrogate, u: surrogate.deviation(u))


@dataclass(frozen=True)
class SurrogateSlice(Move):
    """A slice step on the hyperparameters with the surrogate's standardised latents fixed.

    The surrogate's standard coordinates u are fixed, with f = m(θ) + S(θ) u. Given u the posterior density of the
    unconstrained θ is p(θ) Z(θ) p(y | f) / factors(f), with Z the surrogate's normaliser. The Gaussian part of f is
    integrated out. Source: Murray and Adams 2010, with Gaussian factors instead of surrogate data.
    """

    name: ClassVar[str] = "slice_unknowns"
    requirements: ClassVar[frozenset[MoveRequirement]] = frozenset(
        {MoveRequirement.HYPERPARAMETERS, MoveRequirement.GAUSSIAN}
    )
    state: ClassVar[Literal["surrogate"]] = "surrogate"

    def step(self, target: Target, settings: None, chain: Chain, state: BlockPosterior) -> Step:
        u = state.standardise(chain.coordinates)

        def log_density(vector: Array, latents: Array, surrogate: BlockPosterior) -> Array:
            ratio = target.log_likelihood(latents, vector) - surrogate.log_factor(latents)
            return target.unknowns.log_prior_unconstrained(vector) + surrogate.log_normalizer() + ratio

        def at(vector: Array) -> tuple[tuple[Array, Array, BlockPosterior], Array]:
            surrogate = surrogate_at(target, vector)
            coordinates = surrogate.centre + _deviation(surrogate, u)
            latents = surrogate.prior.latents(surrogate.prior.unflatten(coordinates))
            return (latents, coordinates, surrogate), log_density(vector, latents, surrogate)

        key, draw = jax.random.split(chain.key)
        current = chain.latents, chain.coordinates, state
        density = log_density(chain.unknowns, chain.latents, state)
        vector, (latents, coordinates, state) = slice_step(draw, target.ellipse, chain.unknowns, current, density, at)
        return Step(Chain(key, vector, latents, coordinates), state)

    def cost(self, prior: PriorCollection, schedule: MoveSchedule, stats: MoveStats | None) -> float:
        n, size = prior.num_rows, sum(prior.sizes)
        ranks = [sum(prior.spans().ranks[latent] for latent in block) for block in choose_blocks(prior)]
        product = sum(rank**3 / 3 + 2.0 * prior.distinct.num_rows * rank**2 for rank in ranks)
        surrogate = product + factor_operations(prior) / 3 + num_coarse_nodes(size) * n * size**2 * DENSITY
        return EVALUATIONS * surrogate

    def first(self) -> MoveSchedule:
        # Unless another move replaces them.
        return move_schedule(2, 1)


_density_and_gradient = vmap_as_loop(lambda target, standard: jax.value_and_grad(target.log_posterior)(standard))


class HamiltonianSettings(NamedTuple):
    """At most ``leapfrogs`` steps of length ``step``."""

    leapfrogs: Array
    step: Array

    @classmethod
    def of(cls, step: float) -> "HamiltonianSettings":
        """Steps of this length along at most 3.2 standard deviations."""
        return cls(as_array(int(np.clip(np.ceil(3.2 / step), 1, 50))), as_array(step))


@dataclass(frozen=True)
class Hamiltonian(Move):
    """A Hamiltonian step on hyperparameters and latents jointly; ``info`` is its acceptance probability.

    In the standard coordinates x of the surrogate, with a unit mass. The dynamics of N(x; 0, I) are solved exactly, by
    rotation of position and momentum, between kicks by the gradient of the remaining density. The number of steps is
    drawn between half of ``leapfrogs`` and all of them, and their size within 20 % of ``step``, so that trajectories
    are not periodic. Source: Neal 2011; Shahbaba, Lan, Johnson and Neal 2014.
    """

    name: ClassVar[str] = "hamiltonian"
    requirements: ClassVar[frozenset[MoveRequirement]] = frozenset(
        {
            MoveRequirement.HYPERPARAMETERS,
            MoveRequirement.FACTOR,
            MoveRequirement.GAUSSIAN,
            MoveRequirement.PRECONDITIONER,
            MoveRequirement.GRADIENT,
            MoveRequirement.WARMUP,
        }
    )

    def no_info(self, chain: Chain) -> Array:
        return jnp.zeros(())

    def step(self, target: Target, settings: HamiltonianSettings, chain: Chain, state: tuple[()]) -> Step:
        key, momentum_key, uniform_key = jax.random.split(chain.key, 3)
        # Drawn together, since random draws take long to compile.
        number_share, length_share, height = jax.random.uniform(uniform_key, (3,))
        fewest = (settings.leapfrogs + 1) // 2
        leapfrogs = fewest + jnp.floor(number_share * (settings.leapfrogs + 1 - fewest)).astype(fewest.dtype)
        start = target.path.standardise(chain.unknowns, chain.coordinates)
        momentum = jax.random.normal(momentum_key, start.shape, start.dtype)
        step = settings.step * (0.8 + 0.4 * length_share)

        def kick_and_turn(i: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            x, p, first, _ = state
            density, gradient = _density_and_gradient(target, x)
            at_end = (i == 0) | (i == leapfrogs)
            p = p + jnp.where(at_end, 0.5, 1.0) * step * (gradient + x)
            angle = jnp.where(i < leapfrogs, step, 0.0)
            x, p = x * jnp.cos(angle) + p * jnp.sin(angle), p * jnp.cos(angle) - x * jnp.sin(angle)
            return x, p, jnp.where(i == 0, density, first), density

        trajectory = jax.lax.fori_loop(0, leapfrogs + 1, kick_and_turn, (start, momentum, jnp.zeros(()), jnp.zeros(())))
        standard, turned, before, after = trajectory
        gain = after - before - 0.5 * (turned @ turned - momentum @ momentum)
        # Proposals with a density that is not finite are rejected.
        probability = jnp.where(jnp.isfinite(gain), jnp.exp(jnp.minimum(gain, 0.0)), 0.0)
        accepted = height < probability
        vector, whitened = target.path.place(standard)
        moved = Chain(key, vector, latents_at(target, vector, whitened), whitened)
        return Step(jax.lax.cond(accepted, lambda: moved, lambda: chain._replace(key=key)), state, probability)

    def cost(self, prior: PriorCollection, schedule: MoveSchedule, stats: MoveStats | None) -> float:
        """Gradients of the posterior density in hyperparameters and latents."""
        # A gradient takes 10 n^3 (measured). The mean number of steps is three quarters of the largest.
        gradient = 10.0 * factor_operations(prior) + 3.0 * prior.num_rows * sum(prior.sizes) * DENSITY
        return (1.0 + 0.75 * float(schedule.settings.leapfrogs)) * gradient

    def first(self) -> MoveSchedule:
        return move_schedule(1, 1, HamiltonianSettings.of(0.4))

    def tune(self, prior: PriorCollection, sampled: bool, schedule: MoveSchedule, stats: MoveStats) -> MoveSchedule:
        """Return the size of steps and their number."""
        if not schedule.repeats:
            return schedule
        step = choose_step(float(schedule.settings.step), acceptance(stats))
        return schedule._replace(settings=HamiltonianSettings.of(step))


def acceptance(stats: MoveStats) -> float:
    """Return the mean acceptance probability."""
    return float(np.sum(stats.info) / stats.steps)


def choose_step(step: float, probability: float) -> float:
    """Return the step size with acceptance 0.95 by 2 Φ(-c step^2) (Beskos et al. 2013), from another's acceptance."""
    quantile = -scipy.special.ndtri(np.clip(probability, 1e-3, 0.999) / 2.0)
    return step * float(np.clip(np.sqrt(-scipy.special.ndtri(0.95 / 2.0) / quantile), 0.4, 1.6))
