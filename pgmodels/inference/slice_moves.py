"""Moves by slice sampling and by Hamiltonian steps."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

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
from pgmodels.inference.problem import condition
from pgmodels.objectives.expected import num_coarse_nodes
from pgmodels.priors.base import Sites
from pgmodels.priors.block_posterior import BlockPosterior
from pgmodels.priors.collection import PriorCollection, choose_blocks
from pgmodels.priors.linalg import vmap_as_loop, vmap_as_loop_if_batched
from pgmodels.runtime.precision import as_array

# Degrees of freedom of the t distribution on whose ellipses slice steps move.
_FREEDOM = 8
# Cost of a step in surrogates, including the slice steps on latents that follow (measured).
EVALUATIONS = 4.0
# Maximum number of shrinkages, by 2^-100 in all: the rest is rounding, and the chain does not move.
MAX_SHRINKS = 100


class Uniforms(NamedTuple):
    """The uniform numbers of a slice step: for its height, its first proposal, and the shrinkages.

    All are drawn at once: random draws within a loop take far longer to compile.
    """

    height: Any
    first: Any
    others: Any

    @classmethod
    def draw(cls, key: Any) -> "Uniforms":
        """Numbers for the maximum number of shrinkages."""
        drawn = jax.random.uniform(key, (2 + MAX_SHRINKS,))
        return cls(drawn[0], drawn[1], drawn[2:])

    def height_below(self, density: Any) -> Any:
        """The log of a uniform height below a density, from the log density."""
        return density + jnp.log1p(-self.height)

    def between(self, low: Any, high: Any, count: Any) -> Any:
        """A proposal within an interval after a number of shrinkages."""
        return low + (high - low) * self.others[count]


def slice_step(key: Any, path: Any, vector: Any, state: Any, density: Any, at: Any) -> tuple[Any, Any]:
    """A slice step from a vector with its state and log density; ``at(vector)`` computes those of another.

    It moves on an ellipse of the t distribution with the middle and scale of ``path``. Source: Neal 2003; Nishihara,
    Murray and Adams 2014.
    """
    middle, scale = path.middle, path.scale
    normal_key, uniform_key = jax.random.split(key)
    noise, others = jnp.split(jax.random.normal(normal_key, (2 * len(vector) + _FREEDOM,)), [len(vector)])
    uniforms = Uniforms.draw(uniform_key)
    relative = _width(path.standard(vector - middle), others @ others)

    def minus_log_t(vector: Any) -> Any:
        standard = path.standard(vector - middle)
        return 0.5 * (_FREEDOM + len(vector)) * jnp.log1p(standard @ standard / _FREEDOM)

    height = uniforms.height_below(density + minus_log_t(vector))
    high = 2.0 * jnp.pi * uniforms.first

    def unfinished(carry: Any) -> Any:
        *_, accepted, count = carry
        return ~accepted & (count < MAX_SHRINKS)

    def propose(carry: Any) -> Any:
        low, high, accepted_point, _, count = carry
        angle = uniforms.between(low, high, count)
        proposed = middle + (vector - middle) * jnp.cos(angle) + relative * scale @ noise * jnp.sin(angle)
        moved, density = at(proposed)
        accepted = density + minus_log_t(proposed) >= height
        accepted_point = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), (proposed, moved), accepted_point)
        return jnp.where(angle < 0, angle, low), jnp.where(angle < 0, high, angle), accepted_point, accepted, count + 1

    start = (high - 2.0 * jnp.pi, high, (vector, state), jnp.array(False), 0)
    return jax.lax.while_loop(unfinished, propose, start)[2]


def _width(standard: Any, chi_square: Any) -> Any:
    """A draw of the scale of the normal distribution, given a standardised vector of the t distribution.

    ``chi_square`` is drawn with the degrees of freedom of the t distribution plus the size of the vector.
    """
    return jnp.sqrt((_FREEDOM + standard @ standard) / chi_square)


# Effective draws of the latents per iteration that slice steps should give, and the maximum number of steps. They cost
# little compared with slice steps on hyperparameters, which need several factorisations each.
_DRAWS, MAX_STEPS = 1.5, 12
_DRAWS_BESIDE_UNKNOWNS, _MAX_STEPS_BESIDE_UNKNOWNS = 6.0, 24
# Cost of a log density in floating-point operations (measured).
DENSITY = 150.0

# Number of deviations drawn at a time.
_AT_ONCE = 4

# A loop over chains if their surrogates differ: see pgmodels.priors.linalg.
_deviations = vmap_as_loop_if_batched(lambda surrogate, noise: jax.vmap(surrogate.deviation)(noise))


@dataclass(frozen=True)
class SliceLatents(Move):
    """An elliptical slice step on all latents about the surrogate; ``info`` is the number of shrinkages of the angle.

    The posterior is the surrogate times the ratio p(y | f) / factors(f), which is nearly constant for a good surrogate:
    the step is then nearly an independent draw. Source: Murray, Adams and MacKay 2010; Nishihara, Murray and Adams
    2014.
    """

    name: ClassVar[str] = "slice_latents"
    requirements: ClassVar[frozenset[MoveRequirement]] = frozenset({MoveRequirement.GAUSSIAN})
    state: ClassVar[Literal["surrogate"]] = "surrogate"

    def no_info(self, chain: Chain) -> Any:
        return jnp.zeros(())

    def step(self, target: Target, settings: None, chain: Chain, state: BlockPosterior, number: Any) -> Step:
        return self.steps(target, settings, chain, state, number, 1)

    def steps(
        self, target: Target, settings: None, chain: Chain, state: BlockPosterior, number: Any, count: Any
    ) -> Step:
        """The surrogate's deviations are drawn several at once, which costs little more than one."""
        prior, parameters = state.prior, target.parameters(chain.unknowns)
        centre = prior.latents(prior.unflatten(state.centre))

        def log_ratio(f: Any) -> Any:
            return target.log_density(f, parameters) - state.log_factor(f)

        def several(group: Any, before: tuple[Chain, Any, Any]) -> tuple[Chain, Any, Any]:
            chain, density, shrinks = before
            key, noise_key = jax.random.split(chain.key)
            noise = jax.random.normal(noise_key, (_AT_ONCE, *state.centre.shape), state.centre.dtype)
            others = _deviations(state, noise)
            other_latents = jax.vmap(lambda v: prior.latents(prior.unflatten(v)))(others) - prior.means()

            def again(index: Any, before: tuple[Chain, Any, Any]) -> tuple[Chain, Any, Any]:
                chain, density, shrinks = before
                other = others[index], other_latents[index]
                chain, density, more = _turned(chain, density, (state.centre, centre), other, log_ratio)
                return chain, density, shrinks + more

            remaining = jnp.minimum(count - group * _AT_ONCE, _AT_ONCE)
            return jax.lax.fori_loop(0, remaining, again, (chain._replace(key=key), density, shrinks))

        groups = (count + _AT_ONCE - 1) // _AT_ONCE
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
        """The number of steps."""
        wanted = _DRAWS_BESIDE_UNKNOWNS if sampled else _DRAWS
        most = _MAX_STEPS_BESIDE_UNKNOWNS if sampled else MAX_STEPS
        # Effective draws per slice step, fitted to 12 models: from 0.77 at 0.1 shrinkages to 0.16 at 1.2.
        steps = int(np.clip(np.ceil(wanted / (0.85 * np.exp(-1.45 * mean_shrinks(stats)))), 2, most))
        return schedule._replace(repeats=as_array(steps))


def _turned(
    chain: Chain, density: Any, centre: tuple[Any, Any], other: tuple[Any, Any], log_ratio: Callable[[Any], Any]
) -> tuple[Chain, Any, Any]:
    """The chain after a step on the ellipse through it and a deviation, its log ratio, and the number of shrinkages.

    ``centre`` and ``other`` are coordinates and latents of the ellipse's centre and of the deviation from it.
    """
    key, uniform_key = jax.random.split(chain.key)
    uniforms = Uniforms.draw(uniform_key)
    here = chain.coordinates, chain.latents
    height = uniforms.height_below(density)
    first = 2.0 * jnp.pi * uniforms.first

    def at(angle: Any) -> list[Any]:
        triples = zip(centre, here, other, strict=True)
        return [c + (x - c) * jnp.cos(angle) + o * jnp.sin(angle) for c, x, o in triples]

    def rejected(carry: Any) -> Any:
        *_, count, density = carry
        return ~(density >= height) & (count <= MAX_SHRINKS)

    def propose(carry: Any) -> Any:
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
    """The mean number of shrinkages per step; 0 before any step."""
    return float(np.sum(np.asarray(stats.info)) / max(float(stats.steps), 1.0)) if stats is not None else 0.0


@dataclass(frozen=True)
class LikelihoodSlice(Move):
    """A slice step on the likelihood's parameters given the latents, without auxiliary variables (Neal 2003)."""

    name: ClassVar[str] = "slice_likelihood"
    requirements: ClassVar[frozenset[MoveRequirement]] = frozenset(
        {MoveRequirement.HYPERPARAMETERS, MoveRequirement.OF_LIKELIHOOD, MoveRequirement.NO_GAUSSIAN}
    )

    def step(self, target: Target, settings: None, chain: Chain, state: Any, number: Any) -> Step:
        entries = np.flatnonzero(target.unknowns.gps < 0)
        key, draw = jax.random.split(chain.key)
        vector = _moved(draw, target, chain.unknowns, entries, partial(target.log_likelihood, chain.latents))
        return Step(chain._replace(key=key, unknowns=vector), state)

    def cost(self, prior: PriorCollection, schedule: MoveSchedule, stats: MoveStats | None) -> float:
        return EVALUATIONS * prior.num_rows * sum(prior.sizes) * DENSITY


# A loop over chains: see pgmodels.priors.linalg.
_log_normalizer = vmap_as_loop(
    lambda target, sites, parameters, vector: condition(
        target.augmentation.predictors, target.prior(vector), sites, target.family.y, parameters
    ).log_normalizer()
)


@dataclass(frozen=True)
class MarginalSlice(Move):
    """For each block, auxiliary variables given the latents, hyperparameters of its GPs given these, and its latents.

    Given the auxiliary variables the latents are Gaussian: the density of their hyperparameters θ is p(θ) Z(θ), with Z
    the normaliser of the sites, and their slice step (Neal 2003) needs no latents. Its length does not shrink as the
    data grow.
    """

    name: ClassVar[str] = "marginal_slice"
    requirements: ClassVar[frozenset[MoveRequirement]] = frozenset(
        {MoveRequirement.HYPERPARAMETERS, MoveRequirement.OF_PRIOR, MoveRequirement.NO_GAUSSIAN}
    )

    def step(self, target: Target, settings: None, chain: Chain, state: Any, number: Any) -> Step:
        key, augmentation, vector, latents = chain.key, target.augmentation, chain.unknowns, chain.latents
        parameters = target.parameters(vector)
        prior, finite = prior_at(target, vector), jnp.array(True)
        coordinates = prior.unflatten(chain.coordinates)
        for index, block in enumerate(augmentation.blocks):
            key, auxiliary_key, slice_key, latent_key = jax.random.split(key, 4)
            z = augmentation.predictor_values(latents, target.family.y, parameters)
            drawn_sites = augmentation.draw_auxiliaries(auxiliary_key, z, target.family.y, parameters, index)
            h, w = (target.masked(part) for part in drawn_sites)
            finite = finite & jnp.all(jnp.isfinite(h)) & jnp.all(jnp.isfinite(w))
            columns = columns_of(augmentation, block)
            # The hyperparameters of GPs all of whose latents are updated together.
            groups = [index for index, part in enumerate(prior.slices()) if np.all(columns[part])]
            entries = np.flatnonzero(np.isin(target.unknowns.gps, groups))
            if entries.size:
                log_normalizer = partial(_log_normalizer, target, Sites(h, w), parameters)
                vector = _moved(slice_key, target, vector, entries, log_normalizer)
            prior = prior_at(target, vector)
            means, deviations = mean_and_deviation(target, prior, latent_key, Sites(h, w), parameters)
            drawn = tuple(m + d for m, d in zip(means, deviations, strict=True))
            coordinates = replaced(prior, columns, drawn, coordinates)
            latents = jnp.where(columns, prior.latents(drawn), latents)
        return Step(Chain(key, vector, latents, prior.flatten(coordinates)), state, (), finite)

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


def _moved(key: Any, target: Target, vector: Any, entries: np.ndarray, log_likelihood: Callable[[Any], Any]) -> Any:
    """The hyperparameters after a slice step on some of them, given the log likelihood of all."""

    def at(some: Any) -> tuple[Any, Any]:
        proposed = vector.at[entries].set(some)
        return (), target.unknowns.log_prior_unconstrained(proposed) + log_likelihood(proposed)

    some = vector[entries]
    moved, _ = slice_step(key, target.ellipse.of_entries(entries), some, (), at(some)[1], at)
    return vector.at[entries].set(moved)


# Steps per iteration, unless another move replaces them.
REPEATS = 2

# A loop over chains: see pgmodels.priors.linalg.
_deviation = vmap_as_loop(lambda surrogate, u: surrogate.deviation(u))


@dataclass(frozen=True)
class SurrogateSlice(Move):
    """A slice step on the hyperparameters with the surrogate's standardised latents fixed.

    The surrogate's standard coordinates u are fixed, with f = m(θ) + S(θ) u. Given u the posterior density of the
    unconstrained θ is p(θ) Z(θ) p(y | f) / factors(f), with Z the surrogate's normaliser: the Gaussian part of f is
    integrated out. Source: Murray and Adams 2010, with Gaussian factors instead of surrogate data.
    """

    name: ClassVar[str] = "slice_unknowns"
    requirements: ClassVar[frozenset[MoveRequirement]] = frozenset(
        {MoveRequirement.HYPERPARAMETERS, MoveRequirement.GAUSSIAN}
    )
    state: ClassVar[Literal["surrogate"]] = "surrogate"

    def step(self, target: Target, settings: None, chain: Chain, state: BlockPosterior, number: Any) -> Step:
        u = state.standardise(chain.coordinates)

        def log_density(vector: Any, latents: Any, surrogate: BlockPosterior) -> Any:
            ratio = target.log_likelihood(latents, vector) - surrogate.log_factor(latents)
            return target.unknowns.log_prior_unconstrained(vector) + surrogate.log_normalizer() + ratio

        def at(vector: Any) -> tuple[Any, Any]:
            surrogate = surrogate_at(target, vector)
            coordinates = surrogate.centre + _deviation(surrogate, u)
            latents = surrogate.prior.latents(surrogate.prior.unflatten(coordinates))
            return (latents, coordinates, surrogate), log_density(vector, latents, surrogate)

        key, draw = jax.random.split(chain.key)
        current = chain.latents, chain.coordinates, state
        density = log_density(chain.unknowns, chain.latents, state)
        vector, (*moved, state) = slice_step(draw, target.path, chain.unknowns, current, density, at)
        return Step(Chain(key, vector, *moved), state)

    def cost(self, prior: PriorCollection, schedule: MoveSchedule, stats: MoveStats | None) -> float:
        n, size = prior.num_rows, sum(prior.sizes)
        ranks = [sum(prior.spans().ranks[latent] for latent in block) for block in choose_blocks(prior)]
        product = sum(rank**3 / 3 + 2.0 * prior.distinct.num_rows * rank**2 for rank in ranks)
        surrogate = product + factor_operations(prior) / 3 + num_coarse_nodes(size) * n * size**2 * DENSITY
        return EVALUATIONS * surrogate

    def first(self) -> MoveSchedule:
        return move_schedule(REPEATS, 1)


# Longest trajectory in standard deviations, and the mean length; initial step size; target acceptance probability.
_TRAJECTORY, _MEAN_TRAJECTORY, _FIRST_STEP, _ACCEPTANCE = 3.2, 0.75, 0.4, 0.95
_MAX_LEAPFROGS = 50
# Operations of a gradient, in units of n^3 (measured).
_GRADIENT = 10.0

_density_and_gradient = vmap_as_loop(lambda target, standard: jax.value_and_grad(target.log_posterior)(standard))


class HamiltonianSettings(NamedTuple):
    """At most ``leapfrogs`` steps of length ``step``."""

    leapfrogs: Any
    step: Any


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

    def no_info(self, chain: Chain) -> Any:
        return jnp.zeros(())

    def step(self, target: Target, settings: HamiltonianSettings, chain: Chain, state: Any, number: Any) -> Step:
        key, momentum_key, uniform_key = jax.random.split(chain.key, 3)
        # Drawn together, since random draws take long to compile.
        number_share, length_share, height = jax.random.uniform(uniform_key, (3,))
        fewest = (settings.leapfrogs + 1) // 2
        leapfrogs = fewest + jnp.floor(number_share * (settings.leapfrogs + 1 - fewest)).astype(fewest.dtype)
        start = target.path.standardise(chain.unknowns, chain.coordinates)
        momentum = jax.random.normal(momentum_key, start.shape, start.dtype)
        step = settings.step * (0.8 + 0.4 * length_share)

        def kick_and_turn(i: Any, state: Any) -> Any:
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
        stayed = chain._replace(key=key)
        return Step(jax.lax.cond(accepted, lambda: moved, lambda: stayed), state, probability)

    def cost(self, prior: PriorCollection, schedule: MoveSchedule, stats: MoveStats | None) -> float:
        """Gradients of the posterior density in hyperparameters and latents."""
        gradient = _GRADIENT * factor_operations(prior) + 3.0 * prior.num_rows * sum(prior.sizes) * DENSITY
        return (1.0 + _MEAN_TRAJECTORY * _leapfrogs(float(schedule.settings.step))) * gradient

    def first(self) -> MoveSchedule:
        return move_schedule(1, 1, _settings(_FIRST_STEP))

    def tune(self, prior: PriorCollection, sampled: bool, schedule: MoveSchedule, stats: MoveStats) -> MoveSchedule:
        """The size of steps and their number."""
        if not schedule.repeats:
            return schedule
        return schedule._replace(settings=_settings(choose_step(float(schedule.settings.step), acceptance(stats))))


def acceptance(stats: MoveStats) -> float:
    """The mean acceptance probability."""
    return float(np.sum(stats.info) / stats.steps)


def choose_step(step: float, probability: float) -> float:
    """Step size with the target acceptance probability, from the acceptance probability of another step size.

    In many dimensions it is 2 Φ(-c step^2) (Beskos, Pillai, Roberts, Sanz-Serna and Stuart 2013).
    """
    quantile = -scipy.special.ndtri(np.clip(probability, 1e-3, 0.999) / 2.0)
    return step * float(np.clip(np.sqrt(-scipy.special.ndtri(_ACCEPTANCE / 2.0) / quantile), 0.4, 1.6))


def _settings(step: float) -> HamiltonianSettings:
    return HamiltonianSettings(as_array(_leapfrogs(step)), as_array(step))


def _leapfrogs(step: float) -> int:
    return int(np.clip(np.ceil(_TRAJECTORY / step), 1, _MAX_LEAPFROGS))
