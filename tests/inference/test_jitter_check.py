"""Priors and likelihoods of extreme scales: what double precision holds is right, and what it does not is said."""

import warnings

import numpy as np
import pytest
from mpmath import mp

import pgmodels as pgm

SCALE, VARIANCE, N = 1e-4, 1e4, 60


@pytest.fixture(scope="module")
def extreme():
    """X, y, and log p(y) and the posterior mean in sixty digits."""
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(-2.0, 2.0, (N, 1)), axis=0)
    y = np.sin(2 * X[:, 0]) + SCALE * rng.normal(size=N)
    with mp.workdps(60):
        points, noise = [mp.mpf(x) for x in X[:, 0]], mp.mpf(SCALE) ** 2
        K = mp.matrix(N, N)
        for i in range(N):
            for j in range(N):
                K[i, j] = VARIANCE * mp.exp(-((points[i] - points[j]) ** 2) / 2) + (noise if i == j else 0)
        root, observed = mp.cholesky(K), mp.matrix([mp.mpf(value) for value in y])
        half = mp.lu_solve(root, observed)
        weights = mp.lu_solve(root.T, half)
        log_evidence = -mp.fdot(half, half) / 2 - sum(mp.log(root[i, i]) for i in range(N)) - N * mp.log(2 * mp.pi) / 2
        mean = np.array([float(observed[i] - noise * weights[i]) for i in range(N)])
    return X, y, float(log_evidence), mean


def test_a_prior_a_hundred_million_times_wider_than_the_noise(extreme):
    X, y, log_evidence, mean = extreme
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vi = pgm.cavi(pgm.Model(pgm.Gaussian(SCALE), pgm.GP(pgm.RBF(VARIANCE, 1.0))), X, y)
    # Twelve of sixteen digits are between the prior's variance and the noise's.
    assert abs(vi.elbo - log_evidence) < 0.02
    np.testing.assert_allclose(vi.mean[:, 0], mean, atol=0.02 * SCALE)


@pytest.mark.slow
def test_draws_of_a_prior_a_hundred_million_times_wider_than_the_noise(extreme):
    X, y, _, mean = extreme
    model = pgm.Model(pgm.Gaussian(SCALE), pgm.GP(pgm.RBF(VARIANCE, 1.0)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draws = pgm.gibbs(model, X, y, num_samples=400, num_warmup=25, num_chains=1, progress=False)
    # Independent draws: five standard errors.
    np.testing.assert_allclose(draws.mean[:, 0], mean, atol=5 * SCALE / np.sqrt(400))


def test_a_form_that_is_not_accurate_says_so(extreme):
    X, y, _, _ = extreme
    model = pgm.Model(pgm.Gaussian(SCALE), pgm.GP(pgm.RBF(VARIANCE, 1.0), form=pgm.Dense()))
    with pytest.warns(pgm.PrecisionWarning, match="approximated to a variance of 1.0e-06") as caught:
        pgm.cavi(model, X, y)
    assert [str(warning.filename) for warning in caught] == [__file__]
