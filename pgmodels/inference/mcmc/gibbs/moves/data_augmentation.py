"""The Gibbs sweep: auxiliary variables given the latents, latents given the auxiliary variables."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.inference.mcmc.gibbs.moves.move import Move, MoveSchedule, MoveStats, Step, move_schedule
from pgmodels.inference.mcmc.gibbs.target import Chain, Target
from pgmodels.inference.problem import condition
from pgmodels.priors.base import Coordinates, Sites
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.lapack_loops import vmap_as_loop
from pgmodels.runtime.x64 import as_array

# Closer to -1 the draws oscillate for longer.
_STRONGEST = -0.95
# Cost of a Pólya-Gamma draw in floating-point operations (measured).
_DRAW = 3000.0

# A loop over chains: see pgmodels.priors.lapack_loops.
mean_and_deviation = vmap_as_loop(
    lambda target, prior, key, sites, parameters: condition(
        target.augmentation.predictors, prior, sites, target.family.y, parameters
    ).mean_and_deviation(key)
)


class DataAugmentationSettings(NamedTuple):
    """The factor of overrelaxation, in (-1, 0]."""

    relaxation: Any


class DataAugmentationInfo(NamedTuple):
    """Moments of f before the sweep and of E[f | auxiliaries], (n, latents) each."""

    before: Any
    expected: Any
    squares: Any
    products: Any


@dataclass(frozen=True)
class DataAugmentation(Move):
    """For each block, draw its auxiliary variables given all latents, then its latents given the auxiliary variables.

    The latents' draw is overrelaxed, v' = E v + a (v - E v) + sqrt(1 - a^2) deviation with a = ``relaxation`` in
    (-1, 0] (Adler 1981; math: section 4), in the coordinates of the prior.
    """

    name: ClassVar[str] = "sweep"
    state: ClassVar[Literal["prior"]] = "prior"
    is_sweep: ClassVar[bool] = True

    def no_info(self, chain: Chain) -> DataAugmentationInfo:
        """See Move."""
        zeros = jnp.zeros_like(chain.latents)
        return DataAugmentationInfo(zeros, zeros, zeros, zeros)

    def step(
        self, target: Target, settings: DataAugmentationSettings, chain: Chain, state: PriorCollection, number: Any
    ) -> Step:
        """See Move."""
        del number
        key, augmentation, relaxation = chain.key, target.augmentation, settings.relaxation
        latents, coordinates = chain.latents, state.unflatten(chain.coordinates)
        parameters = target.parameters(chain.unknowns)
        expected, finite = latents, jnp.array(True)
        for index, block in enumerate(augmentation.blocks):
            key, auxiliary_key, latent_key = jax.random.split(key, 3)
            z = augmentation.predictor_values(latents, target.family.y, parameters)
            drawn_sites = augmentation.draw_auxiliaries(auxiliary_key, z, target.family.y, parameters, index)
            h, w = (target.masked(part) for part in drawn_sites)
            finite = finite & jnp.all(jnp.isfinite(h)) & jnp.all(jnp.isfinite(w))
            means, deviations = mean_and_deviation(target, state, latent_key, Sites(h, w), parameters)
            spread = jnp.sqrt(1.0 - relaxation**2)
            drawn = tuple(
                m + relaxation * (v - m) + spread * d for m, v, d in zip(means, coordinates, deviations, strict=True)
            )
            columns = columns_of(augmentation, block)
            expected = jnp.where(columns, state.latents(means), expected)
            coordinates = replaced(state, columns, drawn, coordinates)
            latents = jnp.where(columns, state.latents(drawn), latents)
        moved = chain._replace(key=key, latents=latents, coordinates=state.flatten(coordinates))
        before, expected = target.masked(chain.latents), target.masked(expected)
        return Step(moved, state, DataAugmentationInfo(before, expected, before**2, before * expected), finite)

    def cost(self, prior: PriorCollection, schedule: MoveSchedule, stats: MoveStats | None) -> float:
        """See Move."""
        del schedule, stats
        return sweep_operations(prior)

    def first(self) -> MoveSchedule:
        """See Move."""
        return move_schedule(1, 1, DataAugmentationSettings(as_array(0.0)))

    def tune(self, prior: PriorCollection, sampled: bool, schedule: MoveSchedule, stats: MoveStats) -> MoveSchedule:
        """See Move: the factor of overrelaxation."""
        del prior, sampled
        return schedule._replace(settings=DataAugmentationSettings(as_array(choose_relaxation(autocorrelation(stats)))))


@dataclass(frozen=True)
class PlainSweep(DataAugmentation):
    """The sweep without overrelaxation, whatever warm-up measures (Polson, Scott and Windle 2013)."""

    name: ClassVar[str] = "plain_sweep"

    def tune(self, prior: PriorCollection, sampled: bool, schedule: MoveSchedule, stats: MoveStats) -> MoveSchedule:
        """See Move: nothing is tuned."""
        del prior, sampled, stats
        return schedule


def columns_of(augmentation: Augmentation, block: tuple[int, ...]) -> np.ndarray:
    """Which latents a block of predictors depends on."""
    return np.isin(np.arange(augmentation.num_latents), augmentation.latents_of(block))


def replaced(prior: PriorCollection, columns: np.ndarray, new: Coordinates, old: Coordinates) -> Coordinates:
    """The coordinates with those of the latents in ``columns`` replaced by new ones."""
    triples = zip(new, old, prior.slices(), strict=True)
    return tuple(jnp.where(columns[part], drawn, before) for drawn, before, part in triples)


def sweep_operations(prior: PriorCollection) -> float:
    """Floating-point operations of an auxiliary draw for each datum and latent, and of a draw of each latent."""
    pairs = zip(prior.groups, prior.sizes, strict=True)
    return sum((size * (group.sweep_operations() + prior.num_rows * _DRAW) for group, size in pairs), 0.0)


def autocorrelation(stats: MoveStats) -> np.ndarray:
    """cov(f, E[f | auxiliaries]) / var f of each latent that moved, within chains."""
    f, E, squares, products = (np.asarray(part) for part in stats.info)
    count = float(stats.steps) / len(f)
    variance = np.sum(squares - f**2 / count, axis=0)
    covariance = np.sum(products - f * E / count, axis=0)
    return (covariance / np.maximum(variance, 1e-300))[variance > 0]


def choose_relaxation(autocorrelation: np.ndarray) -> float:
    """The factor that makes the largest autocorrelation of the Gibbs sweep smallest over the latents.

    A latent whose plain sweep has the autocorrelation r = cov(f, E[f | auxiliaries]) / var f has r + (1 - r) a under
    overrelaxation with a. The largest over r in [low, high] is least at a = -(low + high) / (2 - low - high).
    """
    if not autocorrelation.size:
        return 0.0
    low, high = np.quantile(np.clip(autocorrelation, 0.0, 0.99), [0.05, 0.95])
    return float(np.clip(-(low + high) / (2.0 - low - high), _STRONGEST, 0.0))
