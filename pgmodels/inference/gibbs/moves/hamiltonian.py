"""Hamiltonian steps on hyperparameters and latents at once."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from pgmodels.inference.gibbs.moves.move import Move, Need, Seen, Step, Turn, factor_operations, turn_of
from pgmodels.inference.gibbs.moves.slice_latents import DENSITY
from pgmodels.inference.gibbs.target import Chain, Target, latents_at
from pgmodels.latent.joint import JointPrior
from pgmodels.latent.sequential import one_by_one
from pgmodels.precision import as_array

# How far the longest go, in standard deviations, and the mean of that; the length of the first; how many are to be
# accepted.
_TRAJECTORY, _MEAN_TRAJECTORY, _FIRST_STEP, _ACCEPTANCE = 3.2, 0.75, 0.4, 0.95
_MAX_LEAPFROGS = 50
# Operations of a gradient in n^3, by measurement.
_GRADIENT = 10.0

_density_and_gradient = one_by_one(lambda target, standard: jax.value_and_grad(target.log_posterior)(standard))


class HamiltonianSettings(NamedTuple):
    """At most ``leapfrogs`` steps of length ``step``."""

    leapfrogs: Any
    step: Any


@dataclass(frozen=True)
class Hamiltonian(Move):
    """A Hamiltonian step on hyperparameters and latents at once; ``info`` is how probable it was to be accepted.

    In the standard coordinates x of the target's response, with a unit mass. Between kicks by the gradient of what the
    density has besides N(x; 0, I), position and momentum turn exactly, as N(x; 0, I) alone has them do. The number of
    steps is drawn between half of ``leapfrogs`` and all of them, and their length within 20 % of ``step``, so that
    neither means nor squares come back to where they were. Source: Neal 2011; Shahbaba, Lan, Johnson and Neal 2014.
    """

    name: ClassVar[str] = "hamiltonian"
    needs: ClassVar[frozenset[Need]] = frozenset(
        {Need.UNKNOWNS, Need.FACTOR, Need.GAUSSIAN, Need.FRAME, Need.GRADIENT, Need.WARMUP}
    )

    def no_info(self, chain: Chain) -> Any:
        """See Move."""
        del chain
        return jnp.zeros(())

    def step(self, target: Target, settings: HamiltonianSettings, chain: Chain, own: Any, number: Any) -> Step:
        """See Move."""
        del number
        key, momentum_key, uniform_key = jax.random.split(chain.key, 3)
        # Together, since what draws takes long to compile.
        number_share, length_share, height = jax.random.uniform(uniform_key, (3,))
        fewest = (settings.leapfrogs + 1) // 2
        leapfrogs = fewest + jnp.floor(number_share * (settings.leapfrogs + 1 - fewest)).astype(fewest.dtype)
        start = target.response.standardise(chain.unknowns, chain.coordinates)
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

        state = jax.lax.fori_loop(0, leapfrogs + 1, kick_and_turn, (start, momentum, jnp.zeros(()), jnp.zeros(())))
        standard, turned, before, after = state
        gain = after - before - 0.5 * (turned @ turned - momentum @ momentum)
        # What is not finite at the end is not gone to.
        probability = jnp.where(jnp.isfinite(gain), jnp.exp(jnp.minimum(gain, 0.0)), 0.0)
        accepted = height < probability
        vector, whitened = target.response.place(standard)
        moved = Chain(key, vector, latents_at(target, vector, whitened), whitened)
        stayed = chain._replace(key=key)
        return Step(jax.lax.cond(accepted, lambda: moved, lambda: stayed), own, probability)

    def cost(self, prior: JointPrior, turn: Turn, seen: Seen | None) -> float:
        """See Move: gradients of the posterior density in hyperparameters and latents."""
        del seen
        gradient = _GRADIENT * factor_operations(prior) + 3.0 * prior.num_rows * sum(prior.sizes) * DENSITY
        return (1.0 + _MEAN_TRAJECTORY * _leapfrogs(float(turn.settings.step))) * gradient

    def first(self) -> Turn:
        """See Move."""
        return turn_of(1, 1, _settings(_FIRST_STEP))

    def tune(self, prior: JointPrior, sampled: bool, turn: Turn, seen: Seen) -> Turn:
        """See Move: the length of steps, and how many."""
        del prior, sampled
        if not turn.repeats:
            return turn
        return turn._replace(settings=_settings(choose_step(float(turn.settings.step), acceptance(seen))))


def acceptance(seen: Seen) -> float:
    """The mean probability of being accepted."""
    return float(np.sum(seen.info) / seen.steps)


def choose_step(step: float, probability: float) -> float:
    """The length of steps that are accepted with the probability wanted, from that of steps of another length.

    In many dimensions it is 2 Φ(-c step^2) (Beskos, Pillai, Roberts, Sanz-Serna and Stuart 2013).
    """
    found = -ndtri(np.clip(probability, 1e-3, 0.999) / 2.0)
    return step * float(np.clip(np.sqrt(-ndtri(_ACCEPTANCE / 2.0) / found), 0.4, 1.6))


def _settings(step: float) -> HamiltonianSettings:
    return HamiltonianSettings(as_array(_leapfrogs(step)), as_array(step))


def _leapfrogs(step: float) -> int:
    return int(np.clip(np.ceil(_TRAJECTORY / step), 1, _MAX_LEAPFROGS))
