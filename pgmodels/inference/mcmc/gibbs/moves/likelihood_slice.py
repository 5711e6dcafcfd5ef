"""Slice steps on the parameters of the likelihood given the latents."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np

from pgmodels.inference.mcmc.gibbs.moves.move import Move, MoveRequirement, MoveSchedule, MoveStats, Step
from pgmodels.inference.mcmc.gibbs.moves.slice_latents import DENSITY
from pgmodels.inference.mcmc.gibbs.moves.slice_sampler import EVALUATIONS, slice_step
from pgmodels.inference.mcmc.gibbs.target import Chain, Target
from pgmodels.priors.collection import PriorCollection


@dataclass(frozen=True)
class LikelihoodSlice(Move):
    """A slice step on the likelihood's parameters given the latents, without auxiliary variables (Neal 2003)."""

    name: ClassVar[str] = "slice_likelihood"
    requirements: ClassVar[frozenset[MoveRequirement]] = frozenset(
        {MoveRequirement.HYPERPARAMETERS, MoveRequirement.OF_LIKELIHOOD, MoveRequirement.NO_GAUSSIAN}
    )

    def step(self, target: Target, settings: None, chain: Chain, state: Any, number: Any) -> Step:
        """See Move."""
        del settings, number
        entries, vector = np.flatnonzero(target.unknowns.gps < 0), chain.unknowns

        def at(some: Any) -> tuple[Any, Any]:
            proposed = vector.at[entries].set(some)
            log_prior = target.unknowns.log_prior_unconstrained(proposed)
            return (), log_prior + target.log_likelihood(chain.latents, proposed)

        key, draw = jax.random.split(chain.key)
        some = vector[entries]
        moved, _ = slice_step(draw, target.ellipse.of_entries(entries), some, (), at(some)[1], at)
        return Step(chain._replace(key=key, unknowns=vector.at[entries].set(moved)), state)

    def cost(self, prior: PriorCollection, schedule: MoveSchedule, stats: MoveStats | None) -> float:
        """See Move."""
        del schedule, stats
        return EVALUATIONS * prior.num_rows * sum(prior.sizes) * DENSITY
