"""Linear response over a Markov chain, against the Hessian of all means and variances written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.priors.base import Sites
from pgmodels.priors.markov.response import Factors, respond, variances_at
from tests.covering import some

KERNELS = [pgm.Matern12(2.0, 0.8), pgm.Matern32(2.0, 0.8), pgm.Matern52(2.0, 0.8) + pgm.Constant(0.5)]


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def hessian(V, steepness, mixed, curved, precision):
    """-d^2 ELBO / d(m, v)^2, with V the covariance given sites of these precisions (math: section 5b)."""
    curvature = np.linalg.inv(V) - np.diag(precision) + np.diag(steepness)
    return np.block([[curvature, -np.diag(mixed)], [-np.diag(mixed), 0.5 * np.linalg.inv(V**2) - np.diag(curved)]])


@pytest.mark.parametrize(
    ("kernel", "scale"), some([(kernel, scale) for kernel in KERNELS for scale in (0.02, 1.0)], (KERNELS[1], 1.0))
)
def test_variances_and_the_number_of_negative_eigenvalues_are_those_of_the_hessian(kernel, scale):
    rng = np.random.default_rng(4)
    n, x, new = 8, np.sort(rng.uniform(-2.0, 2.0, 8)), np.array([-3.0, -0.4, 0.9, 4.0])
    prior = pgm.Markov().bind(kernel, 0.0, x[:, None], 1)
    w = rng.gamma(1.5, 0.7, n)
    counts = []
    for _ in range(5):
        mixed, curved = scale * rng.normal(size=(2, n))
        steepness = w + scale * rng.normal(size=n)
        # Rows without factors, and with a factor of rank one.
        steepness[0] = mixed[0] = curved[0] = mixed[1] = curved[1] = 0.0

        @jax.jit
        def figures(w, factors):
            posterior = prior.condition(Sites(jnp.zeros((n, 1)), w[:, None]))
            states = posterior.smoothed.covariances()[:, 0]
            scans = respond(prior.chain, prior.for_sampling().noise_roots, w, states, factors)
            return scans.variances(), variances_at(scans, prior.gaps(jnp.asarray(new)[:, None])), scans.negative

        factors = Factors(*map(jnp.asarray, (steepness, mixed, curved)))
        at_data, at_new, negative = (np.asarray(part) for part in figures(jnp.asarray(w), factors))
        rows = np.concatenate([x, new])[:, None]
        K = np.asarray(kernel(rows, rows)) + 1e-12 * np.eye(n + 4)
        full = [np.concatenate([part, np.zeros(4)]) for part in (steepness, mixed, curved, w)]
        V = np.linalg.inv(np.linalg.inv(K) + np.diag(full[3]))
        M = hessian(V, *full)
        counts.append(int(np.sum(np.linalg.eigvalsh(M) < 0.0)))
        assert negative.sum() == counts[-1]
        expected = np.diagonal(np.linalg.inv(M))[: n + 4]
        # Indefinite systems have small eigenvalues of any sign: relative to the largest entry.
        np.testing.assert_allclose(np.append(at_data, at_new), expected, rtol=0, atol=1e-7 * np.abs(expected).max())
    # Both kinds of systems are among them.
    assert (max(counts) > 0) == (scale == 1.0)
    assert (min(counts) == 0) or scale == 1.0
