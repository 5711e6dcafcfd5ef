"""Representations of a prior and the dense covariances they represent: add a new one as a row of FORMS.

``test_representations.py`` crosses the rows with the laws of a conditionally Gaussian model: moments, log Z,
predictions, draws, coordinates, and gradients in hyperparameters, all against the dense twin here.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import pgmodels as pgm
from pgmodels.priors.base import LatentPrior, Sites
from pgmodels.priors.dense import CoefficientPrior, DensePrior, InducingPoints, LevelsPrior, LowRankPrior
from pgmodels.priors.hilbert import HilbertPrior
from pgmodels.priors.inducing import ChunkedInducingPrior, FICPrior, InducingPrior, chunked_prior_at
from pgmodels.priors.markov import MarkovPrior
from pgmodels.priors.representation import EAGER, Auto, Representation
from tests.state_space import LinePrior, StateSpace

MEAN = 0.7
# Sums of some hundred terms of size 1 to 10, solved with matrices of condition up to about 1e4: 1e-16 * 1e2 * 1e4.
ROUNDING = 1e-10
# A neglected variance (or a jitter) of 1e-10 of K moves a posterior by up to 1e-10 * (1 + w k)^2 * n; here w k <= 6.
REPRESENTATION = 1e-6


class SquaredExponential(eqx.Module):
    variance: jax.Array
    lengthscale: jax.Array

    @eqx.filter_jit
    def __call__(self, X, Z):
        difference = (X[:, None] - Z) / self.lengthscale
        return self.variance * jnp.exp(-0.5 * jnp.sum(difference**2, axis=-1))

    def diagonal(self, X):
        return self.variance * jnp.ones(len(X))


@dataclass(frozen=True)
class Streamed(Representation):
    """pgm.Inducing(Z) with all of its inputs, in chunks, as for data whose factor does not fit into memory."""

    def bind(self, kernel, mean, X, size, how=EAGER):
        span = InducingPoints(jnp.asarray(Z), jnp.ones(len(Z)), jnp.zeros(()))
        return chunked_prior_at(kernel, jnp.asarray(mean), jnp.asarray(X), span, size)


class FormCase(NamedTuple):
    """A representation bound to inputs, the expected type of prior, and its inducing inputs ``Z`` if any.

    ``sampled``: test the prior of ``LatentPrior.for_sampling``; ``whitened``: its coordinates are standard normal.
    ``tolerance`` is for posteriors, ``traced`` for the representation bound inside compiled code.
    """

    form: Representation
    kernel: Any
    X: np.ndarray
    kind: type[LatentPrior]
    tolerance: float = ROUNDING
    traced: float | None = ROUNDING
    Z: np.ndarray | None = None
    sampled: bool = False
    whitened: bool = True

    def prior(self, scale: float = 1.0) -> LatentPrior:
        """The prior of two latents, with all hyperparameters times ``scale``."""
        prior = self.form.bind(jax.tree.map(lambda leaf: scale * leaf, self.kernel), scale * MEAN, self.X, 2)
        return prior.for_sampling() if self.sampled else prior

    @property
    def new(self) -> np.ndarray:
        """New inputs, within and beyond the range of the data."""
        return np.random.default_rng(9).uniform(-2.5, 2.5, (5, self.X.shape[1]))

    @property
    def rows(self) -> np.ndarray:
        """The inputs of the data and the new ones."""
        return np.concatenate([self.X, self.new])

    def covariance(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The covariance of a latent at rows that sites act on, and the residual variance (m,) beyond it."""
        if self.Z is None:
            return np.asarray(self.kernel(rows, rows)), np.zeros(len(rows))
        cross = np.asarray(self.kernel(self.Z, rows))
        K = cross.T @ np.linalg.solve(np.asarray(self.kernel(self.Z, self.Z)), cross)
        residual = np.asarray(self.kernel.diagonal(rows)) - np.diagonal(K)
        return (K + np.diag(residual), np.zeros(len(rows))) if self.sampled else (K, residual)

    def twin(self, sites: Sites, latent: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """Mean and covariance of a latent at ``rows`` given sites at X, the residual variance, and log Z."""
        h, w = (np.zeros(len(self.rows)) for _ in range(2))
        n = len(self.X)
        h[:n], w[:n] = (np.asarray(part)[:, latent] for part in sites)
        K, residual = self.covariance(self.rows)
        mean, Sigma, log_normalizer = joint_twin(K, h, w)
        return mean, Sigma, residual, log_normalizer - 0.5 * w @ residual


def joint_twin(K, h, w):
    """Mean, covariance and log normaliser of one latent under prior times sites, by explicit inverses."""
    system = np.eye(len(K)) + K @ np.diag(w)
    Sigma = np.linalg.inv(system) @ K
    shifted = h - w * MEAN
    constant = np.sum(h * MEAN - 0.5 * w * MEAN**2)
    log_normalizer = -0.5 * np.linalg.slogdet(system)[1] + 0.5 * shifted @ Sigma @ shifted + constant
    return MEAN + Sigma @ shifted, Sigma, log_normalizer


def kernel(scale=1.0):
    return SquaredExponential(np.asarray(1.7), scale * np.asarray([0.8, 1.9]))


def inputs(n, seed=0):
    return np.random.default_rng(seed).uniform(-2, 2, size=(n, 2))


def line(n):
    """Unsorted inputs on a line, one of them twice."""
    X = np.random.default_rng(3).uniform(-2.0, 2.0, (n, 1))
    X[5] = X[2]
    return X


def some_sites(n, size=2, seed=1):
    """Potentials and precisions of order 1, one in three precisions exactly zero (with a potential all the same)."""
    rng = np.random.default_rng(seed)
    h, w = rng.normal(0.3, 1.0, (n, size)), rng.gamma(1.5, 0.7, (n, size))
    w[::3] = 0
    return Sites(jnp.asarray(h), jnp.asarray(w))


MARKOV = pgm.Matern32(1.7, 0.8)
MARKOV_SUM = pgm.Matern52(1.7, 0.8) + pgm.Matern12(0.4, 2.0) * pgm.Constant(0.9) + pgm.Linear(0.3)
# Sines enough, and ends of the interval far enough, that what they leave out is rounding.
HILBERT_SUM = pgm.On(pgm.RBF(1.7, 0.8), [1]) * pgm.Constant(0.6) + pgm.On(pgm.RBF(0.5, [1.1]), [0]) + pgm.Constant(0.4)
COEFFICIENTS = pgm.Linear([0.3, 0.8]) + pgm.Constant(0.9)
LEVELS = pgm.On(pgm.White(1.3), [1]) * (pgm.Constant(0.5) + pgm.On(pgm.Linear(0.3), [0]))
TWICE = np.concatenate([inputs(6), inputs(6)[:3]])
Z = inputs(7, seed=6)
FORMS = {
    "one point": FormCase(Auto(), kernel(), inputs(1), DensePrior),
    "rough": FormCase(Auto(), kernel(0.5), inputs(12), DensePrior),
    "coefficients": FormCase(Auto(), COEFFICIENTS, inputs(24), CoefficientPrior),
    "levels": FormCase(Auto(), LEVELS, np.column_stack([inputs(14)[:, 0], np.arange(14) % 5]), LevelsPrior),
    "duplicated rows": FormCase(Auto(), kernel(), TWICE, DensePrior, REPRESENTATION),
    "smooth": FormCase(Auto(), kernel(4.0), inputs(60), LowRankPrior, REPRESENTATION),
    "smooth, dense": FormCase(pgm.Dense(), kernel(4.0), inputs(60), DensePrior, REPRESENTATION),
    # The jitter of a traced root is 1e-8 of the variance.
    "inducing": FormCase(pgm.Inducing(Z), kernel(), inputs(24), InducingPrior, traced=1e-5, Z=Z),
    "inducing, sampled": FormCase(pgm.Inducing(Z), kernel(), inputs(24), FICPrior, traced=None, Z=Z, sampled=True),
    "inducing, streamed": FormCase(Streamed(), kernel(), inputs(24), ChunkedInducingPrior, Z=Z),
    "hilbert": FormCase(pgm.Hilbert((40, 50), domain=2 * [(-6.5, 6.5)]), HILBERT_SUM, inputs(24), HilbertPrior),
    "markov": FormCase(pgm.Markov(), MARKOV, line(9), MarkovPrior, whitened=False),
    "markov, sum": FormCase(pgm.Markov(), MARKOV_SUM, line(12), MarkovPrior, whitened=False),
    "state space": FormCase(StateSpace(), pgm.Matern12(1.7, 0.8), line(9), LinePrior, whitened=False),
}
