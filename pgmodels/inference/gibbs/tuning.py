"""What the Gibbs engine sets in warm-up and then freezes: how often it makes which move."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from pgmodels.inference.gaussian_vi import num_nodes
from pgmodels.latent.coupled import choose_blocks
from pgmodels.latent.joint import JointPrior

# Iterations of the pilot that the tuning reads.
PILOT = 25
# Effective draws of the latents that slice steps are to give an iteration, and how many steps it may take. Slice steps
# on hyperparameters cost several factorisations each: beside them these cost next to nothing.
_DRAWS, _MAX_SLICE_STEPS = 1.5, 12
_DRAWS_BESIDE_UNKNOWNS, _MAX_SLICE_STEPS_BESIDE_UNKNOWNS = 6.0, 24
_MAX_SWEEP_EVERY = 10
# The nearer to -1, the longer the draws go round in circles.
_STRONGEST = -0.95
# Floating-point operations that a Pólya-Gamma draw and an evaluation of a log density are worth, by measurement.
_DRAW, _DENSITY = 3000.0, 150.0
# Slice steps on the hyperparameters with the surrogate, an iteration.
_UNKNOWNS_SLICES = 2
# Hamiltonian steps: how far the longest go, in standard deviations, and the mean of that; the length of the first; how
# many are to be accepted.
_TRAJECTORY, _MEAN_TRAJECTORY, _FIRST_STEP, _ACCEPTANCE = 3.2, 0.75, 0.4, 0.95
_SELDOM, _MAX_LEAPFROGS = 0.3, 50
# Surrogates that a slice step on the hyperparameters is worth, with the slice steps on latents in its train; operations
# of a gradient in n^3, by measurement.
_EVALUATIONS, _GRADIENT = 4.0, 10.0


class Tuning(NamedTuple):
    """``slice_steps`` elliptical slice steps an iteration, a Gibbs sweep in every ``sweep_every``-th, and its factor.

    An iteration has ``unknowns_slices`` slice steps on the hyperparameters with the surrogate, and a Hamiltonian step
    of at most ``leapfrogs`` steps of length ``step``, where that is not 0; ``leapfrogs`` is None where none is tried.
    """

    slice_steps: Any
    sweep_every: Any
    relaxation: Any
    unknowns_slices: Any
    leapfrogs: Any
    step: Any


def default_tuning(prior: JointPrior, hamiltonian: bool) -> Tuning:
    """What is used until something is known, and for ever where there is no warm-up.

    Hamiltonian steps, if they can be made, are tried where they cost no more than slice steps in whose place they
    would be.
    """
    cost, slice_cost = _costs(prior, _FIRST_STEP)
    tried = hamiltonian and cost <= _UNKNOWNS_SLICES * slice_cost
    return Tuning(
        slice_steps=jnp.asarray(4),
        sweep_every=jnp.asarray(1),
        relaxation=jnp.asarray(0.0),
        unknowns_slices=jnp.asarray(1 if tried else _UNKNOWNS_SLICES),
        leapfrogs=jnp.asarray(0) if tried else None,
        step=jnp.asarray(_FIRST_STEP),
    )


def pilot_tuning(held: Tuning, stage: int) -> Tuning:
    """What the pilot of a stage of warm-up does: a sweep in every iteration, and the moves that are tried.

    The first pilot finds the length of Hamiltonian steps, the second compares them to slice steps, and the last has the
    moves that were chosen.
    """
    held = held._replace(sweep_every=jnp.asarray(1))
    if held.leapfrogs is None or stage == 1:
        held = held._replace(slice_steps=jnp.asarray(4))
    if held.leapfrogs is None or stage > 1:
        return held
    if stage == 0:
        zero = jnp.asarray(0)
        return held._replace(leapfrogs=jnp.asarray(_leapfrogs(_FIRST_STEP)), unknowns_slices=zero, slice_steps=zero)
    return held._replace(unknowns_slices=jnp.asarray(1))


class Probe(NamedTuple):
    """Sums over a stretch: what the tuning reads.

    Those of f and E[f] at the Gibbs sweeps are (chains, n, latents). ``jumps`` (2, d) are squared moves of the
    standardised hyperparameters, by Hamiltonian steps and by slice steps with the surrogate; ``probabilities`` are the
    former's of acceptance; ``moves`` counts iterations times chains.
    """

    sweeps: Any
    slices: Any
    shrinks: Any
    before: Any
    expected: Any
    squares: Any
    products: Any
    moves: Any
    probabilities: Any
    jumps: Any

    @classmethod
    def empty(cls, chains: Any) -> "Probe":
        """Before anything is seen."""
        zero, zeros = jnp.zeros(()), jnp.zeros_like(chains.latents)
        return cls(zero, zero, zero, zeros, zeros, zeros, zeros, zero, zero, jnp.zeros((2, chains.unknowns.shape[1])))

    def add_sweep(self, before: Any, expected: Any) -> "Probe":
        """With a sweep from latents ``before``, whose auxiliaries give them the mean ``expected``."""
        return self._replace(
            sweeps=self.sweeps + 1.0,
            before=self.before + before,
            expected=self.expected + expected,
            squares=self.squares + before**2,
            products=self.products + before * expected,
        )

    def add_unknowns(self, probabilities: Any, jumps: Any) -> "Probe":
        """With moves of the hyperparameters: probabilities (chains,), squared jumps (chains, 2, d)."""
        return self._replace(
            moves=self.moves + len(probabilities),
            probabilities=self.probabilities + jnp.sum(probabilities),
            jumps=self.jumps + jnp.sum(jumps, axis=0),
        )

    def autocorrelation(self) -> np.ndarray:
        """cov(f, E[f | auxiliaries]) / var f of each latent, (n, latents), within chains."""
        count, f, E = float(self.sweeps), np.asarray(self.before), np.asarray(self.expected)
        variance = np.sum(np.asarray(self.squares) - f**2 / count, axis=0)
        covariance = np.sum(np.asarray(self.products) - f * E / count, axis=0)
        return covariance / np.maximum(variance, 1e-300)


def tune(prior: JointPrior, probe: Probe, held: Tuning) -> Tuning:
    """The numbers of moves and the factor of overrelaxation that a pilot suggests.

    Of two kinds of move on the hyperparameters one is kept; both, where Hamiltonian steps alone are seldom accepted.
    """
    held = held._replace(relaxation=jnp.asarray(choose_relaxation(probe.autocorrelation())))
    if held.leapfrogs is not None and held.leapfrogs > 0:
        probability = float(probe.probabilities / probe.moves)
        step = choose_step(float(held.step), probability)
        held = held._replace(leapfrogs=jnp.asarray(_leapfrogs(step)), step=jnp.asarray(step))
        if held.unknowns_slices > 0:
            held = _choose_kind(prior, probe, held)
        elif probability < _SELDOM:
            one = jnp.asarray(1)
            return held._replace(unknowns_slices=one, slice_steps=jnp.asarray(4), sweep_every=one)
    if held.unknowns_slices == 0:
        # The Hamiltonian step moves the latents too, and without slice steps no iteration needs a surrogate.
        return held._replace(slice_steps=jnp.asarray(0), sweep_every=jnp.asarray(_MAX_SWEEP_EVERY))
    return _with_slice_steps(prior, probe, held)


def _choose_kind(prior: JointPrior, probe: Probe, held: Tuning) -> Tuning:
    """With the kind of move that goes further for its cost alone."""
    # The standardised hyperparameter that moves least decides. An independent draw has a mean squared jump of 2; beyond
    # it a move goes to and fro, and mixes variances no better.
    hamiltonian, slices = np.minimum(np.asarray(probe.jumps) / float(probe.moves), 2.0).min(axis=1)
    costs = _costs(prior, float(held.step))
    if hamiltonian / costs[0] <= slices / costs[1]:
        return held._replace(leapfrogs=jnp.asarray(0), unknowns_slices=jnp.asarray(_UNKNOWNS_SLICES))
    return held._replace(unknowns_slices=jnp.asarray(0))


def _with_slice_steps(prior: JointPrior, probe: Probe, held: Tuning) -> Tuning:
    """With so many slice steps on the latents, and sweeps, as the pilot suggests."""
    shrinks = float(probe.shrinks / probe.slices)
    sampled = bool(probe.jumps.size)
    wanted = _DRAWS_BESIDE_UNKNOWNS if sampled else _DRAWS
    most = _MAX_SLICE_STEPS_BESIDE_UNKNOWNS if sampled else _MAX_SLICE_STEPS
    # Effective draws a slice step, a fit to 12 models from 0.77 at 0.1 shrinks to 0.16 at 1.2.
    steps = int(np.clip(np.ceil(wanted / (0.85 * np.exp(-1.45 * shrinks))), 2, most))
    # As much work for sweeps as for the other moves. Slice steps on hyperparameters cost more than a sweep each, and
    # sweeps reach where no Gaussian does.
    other = np.inf if sampled else steps * _slice_cost(prior, shrinks)
    every = _sweep_cost(prior) / other
    return held._replace(
        slice_steps=jnp.asarray(steps), sweep_every=jnp.asarray(int(np.clip(round(every), 1, _MAX_SWEEP_EVERY)))
    )


def choose_step(step: float, probability: float) -> float:
    """The length of steps that are accepted with the probability wanted, from that of steps of another length.

    In many dimensions it is 2 Φ(-c step^2) (Beskos, Pillai, Roberts, Sanz-Serna and Stuart 2013).
    """
    found = -ndtri(np.clip(probability, 1e-3, 0.999) / 2.0)
    return step * float(np.clip(np.sqrt(-ndtri(_ACCEPTANCE / 2.0) / found), 0.4, 1.6))


def _leapfrogs(step: float) -> int:
    return int(np.clip(np.ceil(_TRAJECTORY / step), 1, _MAX_LEAPFROGS))


def choose_relaxation(autocorrelation: np.ndarray) -> float:
    """The factor that makes the largest autocorrelation of the Gibbs sweep smallest over the latents.

    A latent whose plain sweep has the autocorrelation r = cov(f, E[f | auxiliaries]) / var f has r + (1 - r) a under
    overrelaxation with a. The largest over r in [low, high] is least at a = -(low + high) / (2 - low - high).
    """
    low, high = np.quantile(np.clip(autocorrelation, 0.0, 0.99), [0.05, 0.95])
    return float(np.clip(-(low + high) / (2.0 - low - high), _STRONGEST, 0.0))


def _sweep_cost(prior: JointPrior) -> float:
    """Floating-point operations of a Gibbs sweep."""
    total = 0.0
    for group, size in zip(prior.groups, prior.sizes, strict=True):
        total += size * (group.sweep_operations() + len(group.X) * _DRAW)
    return total


def _slice_cost(prior: JointPrior, shrinks: float) -> float:
    """Floating-point operations of a slice step."""
    total = sum(len(factor) for factor in prior.factors())
    n, size = len(prior.groups[0].X), sum(prior.sizes)
    return total**2 + 2.0 * n * total + (2.0 + shrinks) * n * size * _DENSITY


def _costs(prior: JointPrior, step: float) -> tuple[float, float]:
    """Floating-point operations of a Hamiltonian step, and of a slice step on the hyperparameters."""
    gradients = 1.0 + _MEAN_TRAJECTORY * _leapfrogs(step)
    return gradients * _gradient_cost(prior), _EVALUATIONS * _surrogate_cost(prior)


def _gradient_cost(prior: JointPrior) -> float:
    """Floating-point operations of a gradient of the posterior density in hyperparameters and latents."""
    n, size = len(prior.groups[0].X), sum(prior.sizes)
    return _GRADIENT * n**3 * len(prior.groups) + 3.0 * n * size * _DENSITY


def _surrogate_cost(prior: JointPrior) -> float:
    """Floating-point operations of a surrogate at other hyperparameters."""
    n, size = len(prior.groups[0].X), sum(prior.sizes)
    ranks = [sum(len(prior.factors()[latent]) for latent in block) for block in choose_blocks(prior)]
    product = sum(rank**3 / 3 + 2.0 * n * rank**2 for rank in ranks)
    return product + n**3 / 3 * len(prior.groups) + num_nodes(size) * n * size**2 * _DENSITY
