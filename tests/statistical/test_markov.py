"""Geweke's test of the Gibbs sweep with a GP that is a Markov process: sweeps keep the joint law of latents and data.

Were the sweep exact, 1 run in 100 would fail by chance (Bonferroni over all scores).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import pgmodels as pgm
from pgmodels.priors.base import Sites

pytestmark = pytest.mark.slow

REPLICAS, SWEEPS = 20_000, 3
FALSE_ALARM = 0.01
# Unsorted, with a tie, two that are close, and a gap of many lengthscales.
X = np.array([0.4, 0.0, 0.4, 1.1, 1.1 + 1e-7, 40.0])[:, None]


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def products(f, y):
    """Replicas of the functions whose expectations are compared."""
    pairs = [f[:, i] * f[:, j] for i in range(len(X)) for j in range(i + 1)]
    return np.column_stack([f, *pairs, f * y, f**3])


@pytest.mark.parametrize("kernel", [pgm.Matern32(2.0, 0.8), pgm.Matern52(1.0, 2.0) + pgm.Matern12(0.5, 0.3)])
def test_sweeps_keep_the_joint_law(kernel):
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(kernel, mean=0.3, form=pgm.Markov()))
    prior = model.prior(X).for_sampling()
    rng = np.random.default_rng(2)

    @jax.jit
    @jax.vmap
    def sweeps(key, f, y):
        for number in range(SWEEPS):
            auxiliaries, latents = jax.random.split(jax.random.fold_in(key, number))
            h, w = model.augmentation.draw_auxiliaries(auxiliaries, f, y, {}, 0)
            f = prior.condition(Sites(h, w)).draw(latents)[0]
        return f

    def forward(count):
        # The latents by the dense covariance, and the data given them, without the package.
        K = np.asarray(kernel(X, X))
        values, vectors = np.linalg.eigh(K)
        f = 0.3 + rng.normal(size=(count, len(X))) @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
        return f, (rng.random(f.shape) < 1.0 / (1.0 + np.exp(-f))).astype(float)

    f, y = forward(REPLICAS)
    moved = np.asarray(
        sweeps(jax.random.split(jax.random.key(3), REPLICAS), jnp.asarray(f)[:, :, None], jnp.asarray(y))
    )
    # The latents of one chain move.
    assert np.corrcoef(f[:, 0], moved[:, 0, 0])[0, 1] < 0.9
    ours, theirs = products(moved[:, :, 0], y), products(*forward(4 * REPLICAS))
    z = (ours.mean(axis=0) - theirs.mean(axis=0)) / np.sqrt(
        ours.var(axis=0) / len(ours) + theirs.var(axis=0) / len(theirs)
    )
    assert np.max(np.abs(z)) < stats.norm.isf(0.5 * FALSE_ALARM / len(z))
