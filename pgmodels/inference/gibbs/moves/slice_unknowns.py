"""Slice steps on the hyperparameters, the latents moving with the surrogate."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from pgmodels.inference.gibbs.moves.move import Move, Need, Seen, Step, Turn, factor_operations, turn_of
from pgmodels.inference.gibbs.moves.shrinking import slice_step
from pgmodels.inference.gibbs.moves.slice_latents import DENSITY
from pgmodels.inference.gibbs.target import Chain, Target, surrogate_at
from pgmodels.latent.blocks import choose_blocks
from pgmodels.latent.coupled import CoupledPosterior
from pgmodels.latent.joint import JointPrior
from pgmodels.latent.sequential import one_by_one
from pgmodels.objectives.quadrature import num_coarse_nodes

# Surrogates that a step is worth, with the slice steps on latents in its train, by measurement.
_EVALUATIONS = 4.0
# Steps an iteration, where no other move takes their place.
REPEATS = 2

# Over chains this loops: see pgmodels.latent.sequential.
_deviation = one_by_one(lambda surrogate, u: surrogate.deviation(u))


@dataclass(frozen=True)
class SliceUnknowns(Move):
    """A slice step on the hyperparameters, the latents moving with the surrogate.

    Held are the surrogate's standard coordinates u, with f = m(θ) + S(θ) u. Given u the posterior density of the
    unconstrained θ is p(θ) Z(θ) p(y | f) / factors(f), with Z the surrogate's normaliser: the Gaussian part of f is
    integrated out. Source: Murray and Adams 2010, with Gaussian factors in the place of surrogate data.
    """

    name: ClassVar[str] = "slice_unknowns"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.UNKNOWNS, Need.GAUSSIAN})
    state: ClassVar[type[CoupledPosterior]] = CoupledPosterior

    def step(self, target: Target, settings: None, chain: Chain, own: CoupledPosterior, number: Any) -> Step:
        """See Move."""
        del settings, number
        u = own.standardise(chain.coordinates)

        def log_density(vector: Any, latents: Any, surrogate: CoupledPosterior) -> Any:
            ratio = target.log_likelihood(latents, vector) - surrogate.log_factor(latents)
            return target.unknowns.log_prior_unconstrained(vector) + surrogate.log_normalizer() + ratio

        def at(vector: Any) -> tuple[Any, Any]:
            surrogate = surrogate_at(target, vector)
            coordinates = surrogate.centre + _deviation(surrogate, u)
            latents = surrogate.prior.latents(surrogate.prior.unflatten(coordinates))
            return (latents, coordinates, surrogate), log_density(vector, latents, surrogate)

        key, draw = jax.random.split(chain.key)
        held = chain.latents, chain.coordinates, own
        density = log_density(chain.unknowns, chain.latents, own)
        vector, (*moved, own) = slice_step(draw, target.response, chain.unknowns, held, density, at, True)
        return Step(Chain(key, vector, *moved), own)

    def cost(self, prior: JointPrior, turn: Turn, seen: Seen | None) -> float:
        """See Move."""
        del turn, seen
        n, size = prior.num_rows, sum(prior.sizes)
        ranks = [sum(prior.spans().ranks[latent] for latent in block) for block in choose_blocks(prior)]
        product = sum(rank**3 / 3 + 2.0 * prior.distinct.num_rows * rank**2 for rank in ranks)
        surrogate = product + factor_operations(prior) / 3 + num_coarse_nodes(size) * n * size**2 * DENSITY
        return _EVALUATIONS * surrogate

    def first(self) -> Turn:
        """See Move."""
        return turn_of(REPEATS, 1)
