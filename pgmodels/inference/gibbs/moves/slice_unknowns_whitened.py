"""Slice steps on the hyperparameters, the latents moving with the prior."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from pgmodels.inference.gibbs.moves.move import Move, Need, Seen, Step, Turn, factor_operations, turn_of
from pgmodels.inference.gibbs.moves.shrinking import slice_step
from pgmodels.inference.gibbs.target import Chain, Target, latents_at
from pgmodels.latent.joint import JointPrior

# Priors that a step is worth, by measurement.
_EVALUATIONS = 4.0


@dataclass(frozen=True)
class SliceUnknownsWhitened(Move):
    """A slice step on the hyperparameters, the latents moving with the prior: their whitened coordinates are held.

    It needs the prior's roots alone, and mixes where the data say little of the latents, or no Gaussian says it well.
    In every fourth iteration it goes along an ellipse, otherwise along a line. Source: Murray and Adams 2010.
    """

    name: ClassVar[str] = "slice_unknowns_whitened"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.UNKNOWNS, Need.FACTOR, Need.GAUSSIAN})

    def step(self, target: Target, settings: None, chain: Chain, own: Any, number: Any) -> Step:
        """See Move."""
        del settings

        def log_density(vector: Any, latents: Any) -> Any:
            return target.unknowns.log_prior_unconstrained(vector) + target.log_likelihood(latents, vector)

        def at(vector: Any) -> tuple[Any, Any]:
            latents = latents_at(target, vector, chain.coordinates)
            return latents, log_density(vector, latents)

        key, draw = jax.random.split(chain.key)
        density = log_density(chain.unknowns, chain.latents)
        held = chain.unknowns, chain.latents, density
        vector, latents = slice_step(draw, target.response, *held, at, number % 4 == 0)
        return Step(chain._replace(key=key, unknowns=vector, latents=latents), own)

    def cost(self, prior: JointPrior, turn: Turn, seen: Seen | None) -> float:
        """See Move."""
        del turn, seen
        return _EVALUATIONS * factor_operations(prior) / 3

    def first(self) -> Turn:
        """See Move."""
        return turn_of(1, 2)
