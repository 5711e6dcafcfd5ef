"""The sweep over complete conditionals: Gamma rates, Poisson counts, Pólya-Gamma variables and latents in turn."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.inference.mcmc.gibbs.moves.data_augmentation import (
    columns_of,
    mean_and_deviation,
    replaced,
    sweep_operations,
)
from pgmodels.inference.mcmc.gibbs.moves.move import Move, MoveSchedule, MoveStats, Step
from pgmodels.inference.mcmc.gibbs.target import Chain, Target
from pgmodels.likelihoods.expression import Environment
from pgmodels.priors.base import Sites
from pgmodels.priors.collection import PriorCollection

# Folded into a chain's key to draw the first counts, independently of what the key draws later.
_FIRST = 2**31 - 2


@dataclass(frozen=True)
class FourBlock(Move):
    """λ | n, then n | f, λ, then ω | n, f, then f | n, ω, of the Gamma, Poisson and Pólya-Gamma rules.

    The Gibbs sweep instead draws λ | f, with n and ω integrated out. The state is n, which belongs to f: no other move
    may update the latents. Source: Galy-Fajou, Wenzel, Donner and Opper 2019, section 3.2; n is drawn at σ(-f), where
    they print σ(f).
    """

    name: ClassVar[str] = "four_block"
    is_sweep: ClassVar[bool] = True

    def init(self, target: Target, chain: Chain) -> dict[str, Any]:
        """See Move: counts by name, drawn given the latents."""
        augmentation, key = target.augmentation, jax.random.fold_in(chain.key, _FIRST)
        parameters = target.parameters(chain.unknowns)
        z = augmentation.predictor_values(chain.latents, target.family.y, parameters)
        drawn: dict[str, Any] = {}
        for index in range(len(augmentation.blocks)):
            drawn |= augmentation.draw_chain(
                jax.random.fold_in(key, index), z, target.family.y, parameters, index, known=drawn
            )
        return {name: drawn[name] for name in count_names(augmentation)}

    def step(self, target: Target, settings: None, chain: Chain, state: dict[str, Any], number: Any) -> Step:
        """See Move."""
        del settings, number
        key, augmentation, counts, y = chain.key, target.augmentation, state, target.family.y
        parameters, prior = target.parameters(chain.unknowns), target.prior(chain.unknowns)
        latents, coordinates, finite = chain.latents, prior.unflatten(chain.coordinates), jnp.array(True)
        for index, block in enumerate(augmentation.blocks):
            key, rate_key, auxiliary_key, latent_key = jax.random.split(key, 4)
            z = augmentation.predictor_values(latents, y, parameters)
            env, laws = Environment(y, z, {**parameters, **counts}), augmentation.complete_laws
            keys = jax.random.split(rate_key, len(laws))
            rates = {name: law.draw(k, env) for (name, law), k in zip(laws.items(), keys, strict=True)}
            drawn = rates | augmentation.draw_chain(auxiliary_key, z, y, parameters, index, known=rates)
            counts = {name: drawn.get(name, before) for name, before in counts.items()}
            h, w = map(target.masked, augmentation.sites_given(drawn, z, y, parameters, index))
            finite = finite & jnp.all(jnp.isfinite(h)) & jnp.all(jnp.isfinite(w))
            means, deviations = mean_and_deviation(target, prior, latent_key, Sites(h, w), parameters)
            moved, columns = jax.tree.map(jnp.add, means, deviations), columns_of(augmentation, block)
            coordinates = replaced(prior, columns, moved, coordinates)
            latents = jnp.where(columns, prior.latents(moved), latents)
        moved_chain = chain._replace(key=key, latents=latents, coordinates=prior.flatten(coordinates))
        return Step(moved_chain, counts, finite=finite)

    def cost(self, prior: PriorCollection, schedule: MoveSchedule, stats: MoveStats | None) -> float:
        """See Move."""
        del schedule, stats
        return sweep_operations(prior)


def count_names(augmentation: Augmentation) -> list[str]:
    """The counts that the state holds: the auxiliaries that the rates' complete conditionals depend on."""
    rules = [rule for rule in augmentation.rules if rule.auxiliary is not None]
    rates = [rule.auxiliary for rule in rules if rule.auxiliary.name in augmentation.complete_laws]  # type: ignore[union-attr]
    return [count.name for rate in rates for count in augmentation.children_of(rate)]  # type: ignore[arg-type]
