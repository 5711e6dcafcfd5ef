"""Elliptical slice steps on all latents."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from pgmodels.inference.mcmc.gibbs.moves.move import Move, MoveRequirement, MoveSchedule, MoveStats, Step, move_schedule
from pgmodels.inference.mcmc.gibbs.moves.slice_sampler import MAX_SHRINKS, Uniforms
from pgmodels.inference.mcmc.gibbs.target import Chain, Target
from pgmodels.priors.block_posterior import BlockPosterior
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.lapack_loops import vmap_as_loop_if_batched
from pgmodels.runtime.x64 import as_array

# Effective draws of the latents per iteration that slice steps should give, and the maximum number of steps. They cost
# little compared with slice steps on hyperparameters, which need several factorisations each.
_DRAWS, MAX_STEPS = 1.5, 12
_DRAWS_BESIDE_UNKNOWNS, _MAX_STEPS_BESIDE_UNKNOWNS = 6.0, 24
# Cost of a log density in floating-point operations (measured).
DENSITY = 150.0

# Number of deviations drawn at a time.
_AT_ONCE = 4

# A loop over chains if their surrogates differ: see pgmodels.priors.lapack_loops.
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
        """See Move."""
        del chain
        return jnp.zeros(())

    def step(self, target: Target, settings: None, chain: Chain, state: BlockPosterior, number: Any) -> Step:
        """See Move."""
        return self.steps(target, settings, chain, state, number, 1)

    def steps(
        self, target: Target, settings: None, chain: Chain, state: BlockPosterior, number: Any, count: Any
    ) -> Step:
        """See Move. The surrogate's deviations are drawn several at once, which costs little more than one."""
        del settings, number
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
        """See Move."""
        del schedule
        total = sum(prior.spans().ranks)
        n, size = prior.num_rows, sum(prior.sizes)
        return total**2 + 2.0 * n * total + (2.0 + mean_shrinks(stats)) * n * size * DENSITY

    def first(self) -> MoveSchedule:
        """See Move."""
        return move_schedule(4, 1)

    def tune(self, prior: PriorCollection, sampled: bool, schedule: MoveSchedule, stats: MoveStats) -> MoveSchedule:
        """See Move: the number of steps."""
        del prior
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
