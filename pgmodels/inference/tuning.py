"""What the Gibbs engine sets in warm-up and then freezes: how often it makes which move."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from pgmodels.latent.joint import JointPrior
from pgmodels.latent.prior import DensePrior

# Iterations of the pilot that the tuning reads.
PILOT = 25
_MAX_SLICE_STEPS = 12
_MAX_SWEEP_EVERY = 10
# The nearer to -1, the longer the draws go round in circles.
_STRONGEST = -0.95
# Floating-point operations that a Pólya-Gamma draw and an evaluation of a log density are worth, by measurement.
_DRAW, _DENSITY = 3000.0, 150.0


class Tuning(NamedTuple):
    """``slice_steps`` elliptical slice steps an iteration, a Gibbs sweep in every ``sweep_every``-th, and its factor.

    ``middle`` (d,) and ``scale`` (d, d) are where the unconstrained hyperparameters are and how far they reach.
    """

    slice_steps: Any
    sweep_every: Any
    relaxation: Any
    middle: Any
    scale: Any


def default_tuning(vector: Any) -> Tuning:
    """What is used until something is known, and for ever where there is no warm-up."""
    return Tuning(jnp.asarray(4), jnp.asarray(1), jnp.asarray(0.0), vector, jnp.eye(len(vector)))


class Probe(NamedTuple):
    """Sums over the Gibbs sweeps of a stretch: what the tuning reads. Those of f and E[f] are (chains, n, latents)."""

    sweeps: Any
    slices: Any
    shrinks: Any
    before: Any
    expected: Any
    squares: Any
    products: Any

    @classmethod
    def empty(cls, latents: Any) -> "Probe":
        """Before anything is seen."""
        zeros = jnp.zeros_like(latents)
        return cls(jnp.zeros(()), jnp.zeros(()), jnp.zeros(()), zeros, zeros, zeros, zeros)

    def add_sweep(self, before: Any, expected: Any) -> "Probe":
        """With a sweep from latents ``before``, whose auxiliaries give them the mean ``expected``."""
        return self._replace(
            sweeps=self.sweeps + 1.0,
            before=self.before + before,
            expected=self.expected + expected,
            squares=self.squares + before**2,
            products=self.products + before * expected,
        )

    def autocorrelation(self) -> np.ndarray:
        """cov(f, E[f | auxiliaries]) / var f of each latent, (n, latents), within chains."""
        count, f, E = float(self.sweeps), np.asarray(self.before), np.asarray(self.expected)
        variance = np.sum(np.asarray(self.squares) - f**2 / count, axis=0)
        covariance = np.sum(np.asarray(self.products) - f * E / count, axis=0)
        return covariance / np.maximum(variance, 1e-300)


def tune(prior: JointPrior, probe: Probe, held: Tuning) -> Tuning:
    """The numbers of moves and the factor of overrelaxation that a pilot suggests."""
    shrinks = float(probe.shrinks / probe.slices)
    # Effective draws a slice step, a fit to 12 models from 0.77 at 0.1 shrinks to 0.16 at 1.2: enough steps for 1.5.
    steps = int(np.clip(np.ceil(1.5 / (0.85 * np.exp(-1.45 * shrinks))), 2, _MAX_SLICE_STEPS))
    every = _sweep_cost(prior) / (steps * _slice_cost(prior, shrinks))
    return held._replace(
        slice_steps=jnp.asarray(steps),
        sweep_every=jnp.asarray(int(np.clip(round(every), 1, _MAX_SWEEP_EVERY))),
        relaxation=jnp.asarray(choose_relaxation(probe.autocorrelation())),
    )


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
        n, r = len(group.X), group.rank
        dense = isinstance(group, DensePrior)
        total += size * ((n**3 / 3 + 10 * n**2) if dense else (n * r**2 + r**3 / 3 + 6 * n * r + 4 * r**2))
        total += size * n * _DRAW
    return total


def _slice_cost(prior: JointPrior, shrinks: float) -> float:
    """Floating-point operations of a slice step."""
    total = sum(len(factor) for factor in prior.factors())
    n, size = len(prior.groups[0].X), sum(prior.sizes)
    return total**2 + 2.0 * n * total + (2.0 + shrinks) * n * size * _DENSITY
