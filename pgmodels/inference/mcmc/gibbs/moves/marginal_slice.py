"""Slice steps on hyperparameters of the latents given auxiliary variables, with the latents integrated out."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from pgmodels.inference.mcmc.gibbs.moves.data_augmentation import (
    columns_of,
    mean_and_deviation,
    replaced,
    sweep_operations,
)
from pgmodels.inference.mcmc.gibbs.moves.move import Move, MoveRequirement, MoveSchedule, MoveStats, Step
from pgmodels.inference.mcmc.gibbs.moves.slice_sampler import EVALUATIONS, slice_step
from pgmodels.inference.mcmc.gibbs.target import Chain, Target, prior_at
from pgmodels.inference.problem import condition
from pgmodels.priors.base import Sites
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.lapack_loops import vmap_as_loop

# A loop over chains: see pgmodels.priors.lapack_loops.
_log_normalizer = vmap_as_loop(
    lambda target, vector, sites, parameters: condition(
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
        """See Move."""
        del settings, number
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
            vector = _moved(slice_key, target, vector, Sites(h, w), parameters, entries_of(target, prior, columns))
            prior = prior_at(target, vector)
            means, deviations = mean_and_deviation(target, prior, latent_key, Sites(h, w), parameters)
            drawn = tuple(m + d for m, d in zip(means, deviations, strict=True))
            coordinates = replaced(prior, columns, drawn, coordinates)
            latents = jnp.where(columns, prior.latents(drawn), latents)
        return Step(Chain(key, vector, latents, prior.flatten(coordinates)), state, (), finite)

    def cost(self, prior: PriorCollection, schedule: MoveSchedule, stats: MoveStats | None) -> float:
        """See Move."""
        del schedule, stats
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


def entries_of(target: Target, prior: PriorCollection, columns: np.ndarray) -> np.ndarray:
    """The entries of the hyperparameters of GPs all of whose latents are in ``columns``."""
    groups = [index for index, part in enumerate(prior.slices()) if np.all(columns[part])]
    return np.flatnonzero(np.isin(target.unknowns.gps, groups))


def _moved(key: Any, target: Target, vector: Any, sites: Sites, parameters: Any, entries: np.ndarray) -> Any:
    """The hyperparameters after a slice step on some of them, given sites and without the latents."""
    if not entries.size:
        return vector

    def at(some: Any) -> tuple[Any, Any]:
        proposed = vector.at[entries].set(some)
        log_prior = target.unknowns.log_prior_unconstrained(proposed)
        return (), log_prior + _log_normalizer(target, proposed, sites, parameters)

    some = vector[entries]
    moved, _ = slice_step(key, target.ellipse.of_entries(entries), some, (), at(some)[1], at)
    return vector.at[entries].set(moved)
