"""Slice steps on the hyperparameters with whitened latents fixed."""

from dataclasses import dataclass
from typing import Any, ClassVar

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
from pgmodels.inference.mcmc.gibbs.moves.slice_sampler import slice_step
from pgmodels.inference.mcmc.gibbs.target import Chain, Target, latents_at
from pgmodels.priors.collection import PriorCollection

# Cost of a step in priors (measured).
_EVALUATIONS = 4.0


@dataclass(frozen=True)
class WhitenedSlice(Move):
    """A slice step on the hyperparameters with the latents' whitened coordinates fixed.

    It needs only the prior's roots, and mixes if the data are weak or the posterior is far from a Gaussian. Every
    fourth iteration it is along an ellipse, otherwise along a line. Source: Murray and Adams 2010.
    """

    name: ClassVar[str] = "slice_unknowns_whitened"
    requirements: ClassVar[frozenset[MoveRequirement]] = frozenset(
        {MoveRequirement.HYPERPARAMETERS, MoveRequirement.FACTOR, MoveRequirement.GAUSSIAN}
    )

    def step(self, target: Target, settings: None, chain: Chain, state: Any, number: Any) -> Step:
        """See Move."""
        del settings

        def log_density(vector: Any, latents: Any) -> Any:
            return target.unknowns.log_prior_unconstrained(vector) + target.log_likelihood(latents, vector)

        def at(vector: Any) -> tuple[Any, Any]:
            latents = latents_at(target, vector, chain.coordinates)
            return latents, log_density(vector, latents)

        key, draw = jax.random.split(chain.key)
        density = log_density(chain.unknowns, chain.latents)
        current = chain.unknowns, chain.latents, density
        vector, latents = slice_step(draw, target.path, *current, at, number % 4 == 0)
        return Step(chain._replace(key=key, unknowns=vector, latents=latents), state)

    def cost(self, prior: PriorCollection, schedule: MoveSchedule, stats: MoveStats | None) -> float:
        """See Move."""
        del schedule, stats
        return _EVALUATIONS * factor_operations(prior) / 3

    def first(self) -> MoveSchedule:
        """See Move."""
        return move_schedule(1, 2)
