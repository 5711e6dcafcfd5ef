"""Marginals of linear functionals against quadrature in several dimensions, draws, and the marginals of latents."""

import numpy as np
import pytest
from scipy.special import logsumexp

import pgmodels as pgm
from tests.inference.corrections.test_nested import CASES, LOG_DENSITIES, X, model_of, prior_covariance


def gaussian(name, variance):
    return pgm.gaussian_vi(model_of(name, variance), X, np.array(CASES[name][1]))


@pytest.mark.parametrize(
    ("name", "variance"), [("no counts", 25.0), *(pytest.param(n, 4.0, marks=pytest.mark.slow) for n in CASES)]
)
def test_a_contrast_and_a_mean_are_those_of_quadrature(name, variance):
    A = np.array([[1.0, 0.0, -1.0], [0.2, 0.3, 0.5]])
    u = np.stack(np.meshgrid(*[np.linspace(-8.0, 8.0, 121)] * 3, indexing="ij")).reshape(3, -1)
    f = 0.3 + np.linalg.cholesky(prior_covariance(variance)) @ u
    log_p = -0.5 * np.sum(u**2, axis=0) + sum(LOG_DENSITIES[name](f[j], CASES[name][1][j]) for j in range(3))
    p, sums = np.exp(log_p - logsumexp(log_p)), A @ f
    mean = sums @ p
    spread = (sums - mean[:, None]) ** 2 @ p
    result = pgm.marginals(gaussian(name, variance), A)
    assert result.shape == (2,)
    np.testing.assert_allclose(result.mean, mean, atol=0.04 * np.sqrt(spread.min()))
    np.testing.assert_allclose(result.variance, spread, rtol=0.04)
    np.testing.assert_allclose(result.skewness, (sums - mean[:, None]) ** 3 @ p / spread**1.5, atol=0.06)


@pytest.mark.slow
def test_latents_of_the_data_are_those_of_the_correction():
    nested = pgm.correct(gaussian("labels", 9.0), method="nested")
    result = pgm.marginals(nested, np.eye(3))
    np.testing.assert_allclose(result.mean, nested.mean[:, 0], rtol=1e-6)
    levels = [0.02, 0.84]
    np.testing.assert_allclose(result.quantiles(levels), nested.quantiles(levels)[:, :, 0], rtol=1e-6)
    # Those of cavi's result are of the variational Gaussian.
    again = pgm.marginals(pgm.cavi(model_of("labels", 9.0), X, np.ones(3)), [0.0, 1.0, 0.0])
    assert again.shape == ()
    assert float(again.mean) == pytest.approx(nested.mean[1, 0], abs=1e-5)
    np.testing.assert_allclose(again.quantiles(levels), nested.quantiles(levels)[:, 1, 0], atol=1e-4)


@pytest.mark.slow
def test_differences_between_new_inputs_have_their_joint_variance():
    # Where the data say nothing, a difference is the prior's: the residuals of two near inputs are correlated.
    far = np.array([[50.0], [50.5]])
    result = pgm.marginals(gaussian("labels", 9.0), [1.0, -1.0], X_new=far)
    assert float(result.variance) == pytest.approx(18.0 * (1.0 - np.exp(-0.125)), rel=1e-3)
    near = pgm.marginals(gaussian("labels", 9.0), [0.0, 1.0], X_new=np.array([[50.0], [0.7]]))
    assert float(near.mean) == pytest.approx(pgm.correct(gaussian("labels", 9.0), method="nested").mean[1, 0], rel=1e-5)


@pytest.mark.slow
def test_effects_of_additive_terms_agree_with_gibbs():
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-2.0, 2.0, (25, 2))
    y = (np.sin(2.0 * inputs[:, 0]) + inputs[:, 1] + rng.logistic(size=25) > 0.0).astype(float)
    gps = [pgm.GP(pgm.On(pgm.RBF(variance=4.0), [0])), pgm.GP(pgm.On(pgm.RBF(variance=2.0, lengthscale=2.0), [1]))]

    @pgm.likelihood(support=pgm.Binary())
    def additive(y, f):
        return pgm.sigmoid((2 * y - 1) * (f[0] + f[1]))

    model = pgm.Model(additive(), gps)
    new = np.array([[-1.0, 0.5], [1.5, -1.0]])
    functional = np.array([[[1.0, 0.0], [-1.0, 0.0]], [[0.0, 1.0], [0.0, -1.0]], [[1.0, 1.0], [0.0, 0.0]]])
    result = pgm.marginals(pgm.gaussian_vi(model, inputs, y), functional, X_new=new)
    draws = pgm.gibbs(model, inputs, y, num_samples=4000, num_chains=4, seed=0).draw_latents(new, 8000, seed=1)
    sums = np.einsum("kml,sml->sk", functional, draws)
    np.testing.assert_allclose(result.mean, sums.mean(axis=0), atol=0.06 * sums.std(axis=0).max())
    np.testing.assert_allclose(result.variance, sums.var(axis=0), rtol=0.08)


def test_one_row_and_no_coefficients():
    one = pgm.gaussian_vi(model_of("labels", 4.0), X[:1], np.ones(1))
    result = pgm.marginals(one, [[2.0], [0.0]])
    latent = pgm.correct(one, method="nested")
    np.testing.assert_allclose(result.mean, [2.0 * latent.mean[0, 0], 0.0], rtol=1e-6)
    np.testing.assert_allclose(result.variance, [4.0 * latent.variance[0, 0], 0.0], rtol=1e-6)


def test_bad_functionals_are_named():
    result = gaussian("labels", 4.0)
    for functional, message in (
        ([1.0, 2.0], r"functional must have shape \(3,\) or \(k, 3\), a coefficient for each input; got shape \(2,\)"),
        (np.ones((1, 2, 3)), r"got shape \(1, 2, 3\)"),
        (np.ones((0, 3)), r"got shape \(0, 3\)"),
        ([1.0, np.nan, 0.0], "functional must be finite"),
        (None, "functional is None"),
    ):
        with pytest.raises(ValueError, match=message):
            pgm.marginals(result, functional)
    with pytest.raises(ValueError, match=r"X_new must have the 1 column"):
        pgm.marginals(result, [1.0], X_new=np.ones((1, 2)))
    draws = pgm.gibbs(model_of("labels", 4.0), X, np.ones(3), num_samples=4, num_warmup=2, num_chains=1, seed=0)
    with pytest.raises(ValueError, match="result must be the result of cavi, gaussian_vi, fit or correct"):
        pgm.marginals(draws, [1.0, 0.0, 0.0])
    model = pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(pgm.RBF(), size=3))
    with pytest.raises(ValueError, match=r"\(3, 3\) or \(k, 3, 3\), a coefficient for each input and latent"):
        pgm.marginals(pgm.cavi(model, X, np.arange(3)), [1.0, 0.0, 0.0])


def test_a_latent_without_variance_is_a_point():
    X, y = np.array([[0.0], [1.0], [-2.0]]), np.array([1.0, 0.0, 1.0])
    gaussian = pgm.gaussian_vi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Linear(2.0), mean=0.5)), X, y)
    result = pgm.correct(gaussian, method="nested")
    assert result.mean[0, 0] == pytest.approx(0.5)
    assert result.variance[0, 0] == 0.0
    np.testing.assert_allclose(result.quantiles([0.05, 0.95])[:, 0, 0], 0.5)
    assert result.log_evidence_bounds[0, 0] == pytest.approx(gaussian.elbo, abs=1e-4)
    # The other two are one latent, and their marginals are exact.
    slopes = np.linspace(-15.0, 15.0, 20_001)
    log_p = -(slopes**2) / 4.0 - np.logaddexp(0.0, 0.5 + slopes) - np.logaddexp(0.0, -0.5 + 2.0 * slopes)
    p = np.exp(log_p) / np.exp(log_p).sum()
    assert result.mean[1, 0] == pytest.approx(0.5 + slopes @ p, abs=2e-3)
    assert result.variance[1, 0] == pytest.approx((slopes - slopes @ p) ** 2 @ p, rel=2e-3)
