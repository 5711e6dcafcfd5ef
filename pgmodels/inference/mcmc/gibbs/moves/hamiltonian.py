"""Hamiltonian steps on hyperparameters and latents jointly."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

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
from pgmodels.inference.mcmc.gibbs.target import Chain, Target, latents_at
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.lapack_loops import vmap_as_loop
from pgmodels.runtime.x64 import as_array

# Longest trajectory in standard deviations, and the mean length; initial step size; target acceptance probability.
_TRAJECTORY, _MEAN_TRAJECTORY, _FIRST_STEP, _ACCEPTANCE = 3.2, 0.75, 0.4, 0.95
_MAX_LEAPFROGS = 50
# Operations of a gradient, in units of n^3 (measured).
_GRADIENT = 10.0

_density_and_gradient = vmap_as_loop(lambda target, standard: jax.value_and_grad(target.log_posterior)(standard))


class HamiltonianSettings(NamedTuple):
    """At most ``leapfrogs`` steps of length ``step``."""

    leapfrogs: Any
    step: Any


@dataclass(frozen=True)
class Hamiltonian(Move):
    """A Hamiltonian step on hyperparameters and latents jointly; ``info`` is its acceptance probability.

    In the standard coordinates x of the surrogate, with a unit mass. The dynamics of N(x; 0, I) are solved exactly, by
    rotation of position and momentum, between kicks by the gradient of the remaining density. The number of steps is
    drawn between half of ``leapfrogs`` and all of them, and their size within 20 % of ``step``, so that trajectories
    are not periodic. Source: Neal 2011; Shahbaba, Lan, Johnson and Neal 2014.
    """

    name: ClassVar[str] = "hamiltonian"
    requirements: ClassVar[frozenset[MoveRequirement]] = frozenset(
        {
            MoveRequirement.HYPERPARAMETERS,
            MoveRequirement.FACTOR,
            MoveRequirement.GAUSSIAN,
            MoveRequirement.PRECONDITIONER,
            MoveRequirement.GRADIENT,
            MoveRequirement.WARMUP,
        }
    )

    def no_info(self, chain: Chain) -> Any:
        """See Move."""
        del chain
        return jnp.zeros(())

    def step(self, target: Target, settings: HamiltonianSettings, chain: Chain, state: Any, number: Any) -> Step:
        """See Move."""
        del number
        key, momentum_key, uniform_key = jax.random.split(chain.key, 3)
        # Drawn together, since random draws take long to compile.
        number_share, length_share, height = jax.random.uniform(uniform_key, (3,))
        fewest = (settings.leapfrogs + 1) // 2
        leapfrogs = fewest + jnp.floor(number_share * (settings.leapfrogs + 1 - fewest)).astype(fewest.dtype)
        start = target.path.standardise(chain.unknowns, chain.coordinates)
        momentum = jax.random.normal(momentum_key, start.shape, start.dtype)
        step = settings.step * (0.8 + 0.4 * length_share)

        def kick_and_turn(i: Any, state: Any) -> Any:
            x, p, first, _ = state
            density, gradient = _density_and_gradient(target, x)
            at_end = (i == 0) | (i == leapfrogs)
            p = p + jnp.where(at_end, 0.5, 1.0) * step * (gradient + x)
            angle = jnp.where(i < leapfrogs, step, 0.0)
            x, p = x * jnp.cos(angle) + p * jnp.sin(angle), p * jnp.cos(angle) - x * jnp.sin(angle)
            return x, p, jnp.where(i == 0, density, first), density

        trajectory = jax.lax.fori_loop(0, leapfrogs + 1, kick_and_turn, (start, momentum, jnp.zeros(()), jnp.zeros(())))
        standard, turned, before, after = trajectory
        gain = after - before - 0.5 * (turned @ turned - momentum @ momentum)
        # Proposals with a density that is not finite are rejected.
        probability = jnp.where(jnp.isfinite(gain), jnp.exp(jnp.minimum(gain, 0.0)), 0.0)
        accepted = height < probability
        vector, whitened = target.path.place(standard)
        moved = Chain(key, vector, latents_at(target, vector, whitened), whitened)
        stayed = chain._replace(key=key)
        return Step(jax.lax.cond(accepted, lambda: moved, lambda: stayed), state, probability)

    def cost(self, prior: PriorCollection, schedule: MoveSchedule, stats: MoveStats | None) -> float:
        """See Move: gradients of the posterior density in hyperparameters and latents."""
        del stats
        gradient = _GRADIENT * factor_operations(prior) + 3.0 * prior.num_rows * sum(prior.sizes) * DENSITY
        return (1.0 + _MEAN_TRAJECTORY * _leapfrogs(float(schedule.settings.step))) * gradient

    def first(self) -> MoveSchedule:
        """See Move."""
        return move_schedule(1, 1, _settings(_FIRST_STEP))

    def tune(self, prior: PriorCollection, sampled: bool, schedule: MoveSchedule, stats: MoveStats) -> MoveSchedule:
        """See Move: the size of steps and their number."""
        del prior, sampled
        if not schedule.repeats:
            return schedule
        return schedule._replace(settings=_settings(choose_step(float(schedule.settings.step), acceptance(stats))))


def acceptance(stats: MoveStats) -> float:
    """The mean acceptance probability."""
    return float(np.sum(stats.info) / stats.steps)


def choose_step(step: float, probability: float) -> float:
    """Step size with the target acceptance probability, from the acceptance probability of another step size.

    In many dimensions it is 2 Φ(-c step^2) (Beskos, Pillai, Roberts, Sanz-Serna and Stuart 2013).
    """
    quantile = -scipy.special.ndtri(np.clip(probability, 1e-3, 0.999) / 2.0)
    return step * float(np.clip(np.sqrt(-scipy.special.ndtri(_ACCEPTANCE / 2.0) / quantile), 0.4, 1.6))


def _settings(step: float) -> HamiltonianSettings:
    return HamiltonianSettings(as_array(_leapfrogs(step)), as_array(step))


def _leapfrogs(step: float) -> int:
    return int(np.clip(np.ceil(_TRAJECTORY / step), 1, _MAX_LEAPFROGS))
