"""Slice steps on the hyperparameters with the surrogate's standardised latents fixed."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax

from pgmodels.inference.mcmc.gibbs.moves.move import (
    Move,
    MoveRequirement,
    MoveSchedule,
    MoveStats,
    Step,
    factor_operations,
    move_schedule,
)
from pgmodels.inference.mcmc.gibbs.moves.slice_latents import DENSITY
from pgmodels.inference.mcmc.gibbs.moves.slice_sampler import EVALUATIONS, slice_step
from pgmodels.inference.mcmc.gibbs.target import Chain, Target, surrogate_at
from pgmodels.objectives.expected import num_coarse_nodes
from pgmodels.priors.block_posterior import BlockPosterior
from pgmodels.priors.blocks import choose_blocks
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.lapack_loops import vmap_as_loop

# Steps per iteration, unless another move replaces them.
REPEATS = 2

# A loop over chains: see pgmodels.priors.lapack_loops.
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
        """See Move."""
        del settings, number
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
        """See Move."""
        del schedule, stats
        n, size = prior.num_rows, sum(prior.sizes)
        ranks = [sum(prior.spans().ranks[latent] for latent in block) for block in choose_blocks(prior)]
        product = sum(rank**3 / 3 + 2.0 * prior.distinct.num_rows * rank**2 for rank in ranks)
        surrogate = product + factor_operations(prior) / 3 + num_coarse_nodes(size) * n * size**2 * DENSITY
        return EVALUATIONS * surrogate

    def first(self) -> MoveSchedule:
        """See Move."""
        return move_schedule(REPEATS, 1)
