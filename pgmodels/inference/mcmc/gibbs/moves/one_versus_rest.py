"""The sweep over the classes of a softmax, one after another, each given the others."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import jax
import jax.numpy as jnp

from pgmodels.augmentation.one_versus_rest import OneVersusRest
from pgmodels.inference.mcmc.gibbs.moves.data_augmentation import sweep_operations
from pgmodels.inference.mcmc.gibbs.moves.move import Move, MoveSchedule, MoveStats, Step
from pgmodels.inference.mcmc.gibbs.target import Chain, Target
from pgmodels.priors.base import Sites
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.lapack_loops import vmap_as_loop

# A loop over chains: see pgmodels.priors.lapack_loops.
_mean_and_deviation = vmap_as_loop(lambda prior, key, sites: prior.condition(sites).mean_and_deviation(key))


@dataclass(frozen=True)
class ClassByClass(Move):
    """For each class c, ω_c given all latents, then f_c given ω_c and the other latents.

    Source: Polson, Scott and Windle 2013, section on the multinomial logit; see ``OneVersusRest``.
    """

    name: ClassVar[str] = "one_vs_rest"
    state: ClassVar[Literal["prior"]] = "prior"
    is_sweep: ClassVar[bool] = True

    def step(self, target: Target, settings: None, chain: Chain, state: PriorCollection, number: Any) -> Step:
        """See Move."""
        del settings, number
        objective = cast(OneVersusRest, target.objective)
        key, latents, finite, coordinates = chain.key, chain.latents, jnp.array(True), []
        for index, (part, group) in enumerate(zip(state.slices(), state.unflatten(chain.coordinates), strict=True)):
            prior = state.of_one_latent(index)

            def update(i: Any, before: Any, first: int = part.start, prior: PriorCollection = prior) -> Any:
                key, latents, group, finite = before
                key, auxiliary_key, latent_key = jax.random.split(key, 3)
                h, w = map(target.masked, objective.draw_site(auxiliary_key, latents, target.family.y, first + i))
                finite = finite & jnp.all(jnp.isfinite(h)) & jnp.all(jnp.isfinite(w))
                drawn = jax.tree.map(jnp.add, *_mean_and_deviation(prior, latent_key, Sites(h, w)))
                latents = jax.lax.dynamic_update_slice_in_dim(latents, prior.latents(drawn), first + i, axis=1)
                return key, latents, jax.lax.dynamic_update_slice_in_dim(group, drawn[0], i, axis=1), finite

            start = key, latents, group, finite
            key, latents, group, finite = jax.lax.fori_loop(0, state.sizes[index], update, start)
            coordinates.append(group)
        moved = chain._replace(key=key, latents=latents, coordinates=state.flatten(coordinates))
        return Step(moved, state, finite=finite)

    def cost(self, prior: PriorCollection, schedule: MoveSchedule, stats: MoveStats | None) -> float:
        """See Move."""
        del schedule, stats
        return sweep_operations(prior)
