"""The log evidence against closed forms, quadrature, and averages of the likelihood over the prior."""

from functools import cache

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, logsumexp

import pgmodels as pgm
from pgmodels.likelihoods.likelihood import log_density
from tests.covering import some
from tests.referees import rbf
from tests.registry import CASES

ENGINES = {
    "cavi": pgm.cavi,
    "gaussian": pgm.gaussian_vi,
    "perturbative": lambda *problem: pgm.correct(pgm.cavi(*problem), method="perturbative"),
}


def labels(n):
    """A wide prior with a nonzero mean."""
    X, y = np.array([[0.0], [0.8], [-0.5]])[:n], np.array([1.0, 0.0, 1.0])[:n]
    return pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(9.0, 1.2), mean=0.7)), X, y


def by_quadrature(X, y):
    """log p(y) of labels, by 60 Gauss-Hermite nodes along each dimension of the whitened prior."""
    z, weights = np.polynomial.hermite_e.hermegauss(60)
    grid = np.stack(np.meshgrid(*[z] * len(y), indexing="ij"), axis=-1).reshape(-1, len(y))
    each = np.prod(np.stack(np.meshgrid(*[weights / weights.sum()] * len(y), indexing="ij"), axis=-1), axis=-1)
    f = 0.7 + grid @ np.linalg.cholesky(rbf(X, 9.0, 1.2)).T
    return np.log(each.ravel() @ np.prod(np.where(y == 1, expit(f), expit(-f)), axis=-1))


@pytest.mark.parametrize(
    ("engine", "n"),
    some([("cavi", 1), ("cavi", 2), ("cavi", 3), ("gaussian", 3), ("perturbative", 3)], ("gaussian", 3)),
)
def test_labels_against_quadrature(engine, n):
    model, X, y = labels(n)
    result = ENGINES[engine](model, X, y)
    evidence = pgm.log_evidence(result, num_draws=20_000, seed=2)
    assert evidence.is_reliable
    assert abs(evidence.value - by_quadrature(X, y)) < 4 * evidence.standard_error
    # There is something to find: the bound is further off than the error.
    assert evidence.value - result.elbo > 6 * evidence.standard_error
    assert evidence.elbo == result.elbo
    assert evidence.standard_error < 0.002
    if engine == "gaussian":
        assert pgm.log_evidence(pgm.correct(result), num_draws=20_000, seed=2) == evidence


@pytest.mark.parametrize("engine", some(["cavi", "gaussian"], "cavi"))
def test_of_gaussian_noise_it_is_exact(engine):
    X, y = np.array([-2.0, -1.1, 0.2, 0.9, 1.4, 2.6])[:, None], np.array([0.3, 1.2, -0.4, 0.1, 0.9, 2.0])
    result = ENGINES[engine](pgm.Model(pgm.Gaussian(0.5), pgm.GP(pgm.RBF(1.5, 0.9), mean=0.4)), X, y)
    truth = stats.multivariate_normal(np.full(6, 0.4), rbf(X, 1.5, 0.9) + 0.25 * np.eye(6)).logpdf(y)
    evidence = pgm.log_evidence(result, num_draws=400)
    # The optimum is found to 1e-9 of the ELBO, and jitter is 1e-8.
    np.testing.assert_allclose(evidence.value, truth, rtol=1e-6)
    assert evidence.standard_error < 1e-4


def by_the_prior(model, X, y, num_draws=100_000):
    """log p(y) as the average likelihood over draws of the prior, and its standard error."""
    rng = np.random.default_rng(11)
    f = np.empty((num_draws, len(X), model.num_latents))
    for latent, gp in enumerate(model.gps):
        root = np.linalg.cholesky(rbf(X, float(gp.kernel.variance.value), float(gp.kernel.lengthscale.value)))
        f[..., latent] = float(gp.mean.value) + rng.standard_normal((num_draws, len(X))) @ root.T
    total = log_density(model.likelihood, y, f).sum(axis=-1)
    value = logsumexp(total) - np.log(num_draws)
    return value, np.exp(total - value).std() / np.sqrt(num_draws)


@cache
def case(name):
    X, y = CASES[name].data(6, seed=3)
    size = CASES[name].num_latents
    gps = [pgm.GP(pgm.RBF(1.5 + 0.5 * k, 0.8 + 0.4 * k), mean=0.3 - 0.2 * k) for k in range(size)]
    return pgm.Model(CASES[name].likelihood(), gps), X, y


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bernoulli", "additive", "heteroscedastic"])
def test_against_the_average_over_the_prior(name):
    """One latent, predictors that combine latents, and latents that multiply: q of one, of joint and of two blocks."""
    model, X, y = case(name)
    truth, error = by_the_prior(model, X, y)
    result = pgm.cavi(model, X, y)
    evidence = pgm.log_evidence(result, seed=1)
    assert evidence.is_reliable
    assert abs(evidence.value - truth) < 4 * np.hypot(error, evidence.standard_error)
    # There is something to find.
    assert evidence.value - result.elbo > 4 * np.hypot(error, evidence.standard_error)


@pytest.mark.slow
def test_of_latents_that_the_gaussian_couples():
    model, X, y = case("heteroscedastic")
    both = [pgm.log_evidence(engine(model, X, y), seed=1) for engine in (pgm.cavi, pgm.gaussian_vi)]
    assert abs(both[0].value - both[1].value) < 4 * np.hypot(*(evidence.standard_error for evidence in both))
    # The closer Gaussian leaves more of the draws.
    assert both[1].standard_error < both[0].standard_error


def test_what_it_says():
    model, X, y = labels(3)
    result = pgm.cavi(model, X, y)
    evidence = pgm.log_evidence(result, num_draws=100)
    assert evidence.limit == 0.5
    assert "log p(y) = " in str(evidence)
    assert "100 draws of the corrected Gaussian" in str(evidence)
    assert pgm.log_evidence(result, num_draws=100) == evidence != pgm.log_evidence(result, num_draws=100, seed=1)


@pytest.mark.slow
def test_what_a_gaussian_misses_is_reported():
    # Neighbours that contradict each other under noise of heavy tails: two modes, and q between them.
    X, y = np.array([[0.0], [0.1]]), np.array([-8.0, 8.0])
    result = pgm.cavi(pgm.Model(pgm.StudentT(2.0, 0.2), pgm.GP(pgm.RBF(20.0, 1.0))), X, y)
    with (
        pytest.warns(pgm.CorrectionWarning, match="not positive definite"),
        pytest.warns(pgm.EvidenceWarning, match=r"k-hat of the weights is .* above 0\.70"),
    ):
        evidence = pgm.log_evidence(result)
    assert not evidence.is_reliable
    assert "not reliable (4000 draws of q, whose linear response is not a covariance)" in str(evidence)


def test_wrong_calls_are_refused():
    model, X, y = labels(2)
    result = pgm.cavi(model, X, y)
    with pytest.raises(ValueError, match=r"result must be what cavi, gaussian_vi, fit or correct return; got Model"):
        pgm.log_evidence(model)
    with pytest.raises(ValueError, match=r"num_draws must be a whole number >= 100; got 10\."):
        pgm.log_evidence(result, num_draws=10)
    with pytest.raises(ValueError, match="seed"):
        pgm.log_evidence(result, seed=-1)
