"""Means and variances of predictions by formulas that declare none: of Gaussians in y exactly, else by quadrature."""

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import pgmodels as pgm
from pgmodels.likelihoods.sampling import is_normalised
from pgmodels.likelihoods.supports import Undeclared
from pgmodels.results.predictive import DrawNodes, IndependentNodes, PredictionWarning, Predictive

MEAN, VARIANCE = np.array([[1.2], [-0.4], [2.5]]), np.array([[0.3], [1.1], [0.05]])


def predictive(likelihood, *covariates):
    return Predictive(likelihood, IndependentNodes(MEAN, VARIANCE), *covariates)


def by_draws(likelihood, conditional, *covariates):
    """Mean and variance of y from those given f, and their errors by 200,000 draws of f."""
    f = MEAN[:, 0] + np.sqrt(VARIANCE[:, 0]) * np.random.default_rng(4).standard_normal((200_000, 3))
    mean, variance = conditional(f)
    return mean.mean(axis=0), variance.mean(axis=0) + mean.var(axis=0)


@pgm.likelihood
def noisy(y, f, s=pgm.Parameter(0.7, positive=True)):
    return pgm.normal_pdf(y, 2 * f - 1, s)


def test_a_normal_pdf_has_a_mean_a_variance_draws_and_quantiles():
    p = predictive(noisy())
    deviation = np.sqrt(4.0 * VARIANCE[:, 0] + 0.49)
    np.testing.assert_allclose(p.mean, 2.0 * MEAN[:, 0] - 1.0, rtol=1e-12)
    np.testing.assert_allclose(p.variance, deviation**2, rtol=1e-12)
    drawn = p.draw(4000, seed=1)
    # Five standard errors of 4,000 draws.
    np.testing.assert_allclose(drawn.mean(axis=0), p.mean, atol=5.0 * deviation.max() / np.sqrt(4000))
    expected = stats.norm.ppf([[0.1], [0.8]], p.mean, deviation)
    np.testing.assert_allclose(p.quantiles([0.1, 0.8], seed=1), expected, atol=0.2)
    y = np.array([0.3, -2.0, 4.5])
    np.testing.assert_allclose(p.log_density(y), stats.norm.logpdf(y, p.mean, deviation), atol=1e-7)


GAUSSIANS = {
    "of the latent's exponential": (lambda y, f: pgm.normal_pdf(y, f, pgm.exp(f / 4)), lambda f: (f, np.exp(f / 2))),
    "scaled": (lambda y, f: pgm.normal_pdf(3 * y, f, 2.0) * 3, lambda f: (f / 3, np.full(f.shape, 4 / 9))),
    "a product": (
        lambda y, f: pgm.normal_pdf(y, f, 1.0) * pgm.normal_pdf(y, 1.0, 2.0) / pgm.normal_pdf(f, 1.0, 5.0**0.5),
        lambda f: ((f + 0.25) / 1.25, np.full(f.shape, 0.8)),
    ),
    "in full": (
        lambda y, f: pgm.exp(-(y**2) / 2 + y * f - f**2 / 2) / pgm.sqrt(2 * np.pi),
        lambda f: (f, np.ones(f.shape)),
    ),
    "to a power": (
        lambda y, f: pgm.normal_pdf(y, f, 2.0) ** 4 * pgm.sqrt(2 * np.pi) ** 3 * 16,
        lambda f: (f, np.ones(f.shape)),
    ),
}


@pytest.mark.parametrize("name", GAUSSIANS)
def test_formulas_that_are_gaussian_in_y(name):
    formula, conditional = GAUSSIANS[name]
    likelihood = pgm.likelihood(formula)()
    assert is_normalised(likelihood, 1)
    p = predictive(likelihood)
    mean, variance = by_draws(likelihood, conditional)
    # Standard errors of 200,000 draws.
    np.testing.assert_allclose(p.mean, mean, atol=0.02)
    np.testing.assert_allclose(p.variance, variance, rtol=0.03)


def test_covariates_of_a_gaussian_are_scales_as_well():
    @pgm.likelihood
    def known(y, f):
        return pgm.normal_pdf(y[0], y[2] * f, y[1])

    covariates = np.array([[0.3, 2.0], [1.5, -1.0], [0.8, 0.5]])
    p = predictive(known(), covariates)
    np.testing.assert_allclose(p.mean, covariates[:, 1] * MEAN[:, 0], rtol=1e-12)
    np.testing.assert_allclose(p.variance, covariates[:, 1] ** 2 * VARIANCE[:, 0] + covariates[:, 0] ** 2, rtol=1e-12)
    assert p.draw(10).shape == (10, 3)
    with pytest.raises(ValueError, match=r"the mean of y by known depends on y\[1\] and y\[2\]"):
        _ = predictive(known()).mean


@pytest.mark.parametrize(
    "formula",
    [
        lambda y, f: pgm.sigmoid(f) ** y * pgm.sigmoid(-f) ** (1 - y),
        lambda y, f: pgm.exp(y * f) / (1 + pgm.exp(f)),
        lambda y, f: pgm.normal_pdf(pgm.log(y), f, 1.0) / y,
        lambda y, f: pgm.exp(-abs(y - f)) / 2,
        lambda y, f: pgm.normal_pdf(y, f, 1.0) ** (y > 0) * pgm.normal_cdf(-f) ** (y == 0),
    ],
)
def test_what_is_not_gaussian_in_y_is_left_undeclared(formula):
    likelihood = pgm.likelihood(formula)()
    assert isinstance(likelihood.support(1), Undeclared)
    with pytest.raises(ValueError, match="has no declared support of y, so y has no mean and no variance: declare it"):
        _ = predictive(likelihood).mean


def test_a_declared_support_that_is_not_the_line_is_no_gaussians():
    @pgm.likelihood(support=pgm.Binary())
    def potts(y, f):
        weight = pgm.exp(-((y - f) ** 2) / 2)
        return weight / (pgm.exp(-(f**2) / 2) + pgm.exp(-((1 - f) ** 2) / 2))

    p = predictive(potts())
    np.testing.assert_allclose(p.mean, p.probabilities[:, 1], rtol=1e-10)


@pgm.likelihood(support=pgm.Positive())
def log_normal(y, f):
    return pgm.normal_pdf(pgm.log(y), f, 0.5) / y


@pgm.likelihood(support=pgm.Counts())
def zero_inflated(y, f, p=pgm.Parameter(0.3, positive=True), r=pgm.Parameter(2.0, positive=True)):
    q = pgm.sigmoid(f)
    return p * (y == 0) + (1 - p) * pgm.gamma(y + r) / pgm.gamma(r) / pgm.gamma(y + 1) * q**y * (1 - q) ** r


@pgm.likelihood(support=pgm.Clipped(low=0.0))
def tobit(y, f):
    return pgm.normal_cdf(-f) ** (y == 0) * pgm.normal_pdf(y, f, 1.0) ** (y > 0)


@pgm.likelihood(support=pgm.Real())
def contaminated(y, f):
    return 0.9 * pgm.normal_pdf(y, f, 0.5) + 0.1 * pgm.normal_pdf(y, 0.0, 5.0)


@pgm.likelihood(support=pgm.Given(pgm.Counts(), pgm.Positive()))
def exposed(y, f):
    rate = y[1] * pgm.exp(f)
    return rate ** y[0] * pgm.exp(-rate) / pgm.gamma(y[0] + 1)


def of_counts(f, p=0.3, r=2.0):
    mean, variance = r * np.exp(f), r * np.exp(f) * (1 + np.exp(f))
    return (1 - p) * mean, (1 - p) * (variance + p * mean**2)


def of_tobit(f):
    mean = f * stats.norm.cdf(f) + stats.norm.pdf(f)
    return mean, (f**2 + 1) * stats.norm.cdf(f) + f * stats.norm.pdf(f) - mean**2


EXPOSURE = np.array([0.5, 2000.0, 3.0])
OTHERS = {
    "log-normal": (log_normal(), lambda f: (np.exp(f + 0.125), np.exp(2 * f + 0.25) * np.expm1(0.25))),
    "zero-inflated": (zero_inflated(), of_counts),
    "clipped": (tobit(), of_tobit),
    "a mixture": (contaminated(), lambda f: (0.9 * f, 0.9 * (f**2 + 0.25) + 2.5 - 0.81 * f**2)),
    # Two thousand times e^f: more counts than are added up one by one.
    "exposed": (exposed(), lambda f: (EXPOSURE * np.exp(f), EXPOSURE * np.exp(f)), EXPOSURE),
}


@pytest.mark.parametrize("name", OTHERS)
def test_moments_by_quadrature_given_latents(name):
    likelihood, conditional, *covariates = OTHERS[name]
    f = MEAN[:, 0] + np.array([[0.0], [-0.7], [1.3]])
    p = Predictive(likelihood, DrawNodes(f[..., None]), *covariates)
    mean, variance = conditional(f)
    np.testing.assert_allclose(p.mean, mean.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(p.variance, variance.mean(axis=0) + mean.var(axis=0), rtol=1e-5)


def test_moments_by_quadrature_over_uncertain_latents():
    p = predictive(log_normal())
    mean = np.exp(MEAN + VARIANCE / 2 + 0.125)
    np.testing.assert_allclose(p.mean, mean[:, 0], rtol=1e-9)
    second = np.exp(2 * MEAN + 2 * VARIANCE + 0.5)
    np.testing.assert_allclose(p.variance, (second - mean**2)[:, 0], rtol=1e-8)


def test_parameters_may_differ_from_draw_to_draw():
    f, rate = np.array([[0.3], [0.3]])[..., None], np.array([0.2, 0.6]).reshape(2, 1, 1)
    p = Predictive(zero_inflated(), DrawNodes(f, {"p": rate}))
    mean = np.array([of_counts(0.3, p)[0] for p in (0.2, 0.6)])
    np.testing.assert_allclose(p.mean, mean.mean(), rtol=1e-7)


def test_tails_without_a_variance_are_reported():
    @pgm.likelihood(support=pgm.Real())
    def heavy(y, f):  # a t density with two degrees of freedom
        return (2 + (y - f) ** 2) ** -1.5

    p = predictive(heavy())
    with pytest.warns(PredictionWarning, match="not resolved in 3 rows, and NaN.*take quantiles"):
        assert np.isnan(p.variance).all()
    np.testing.assert_allclose(p.mean, MEAN[:, 0], atol=1e-6)


def test_what_is_not_normalised_has_no_mean():
    @pgm.likelihood(support=pgm.Real())
    def half(y, f):
        return pgm.exp(-abs(y - f))

    with pytest.raises(ValueError, match="half does not sum to 1 over y, so y has no mean and no variance: include"):
        _ = predictive(half()).mean


@pytest.mark.slow
def test_fit_learns_the_scale_of_a_normal_pdf_and_compare_measures_its_means():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(40, 1))
    y = 2 * np.sin(2 * X[:, 0]) - 1 + 0.4 * rng.normal(size=40)
    model = pgm.Model(noisy(pgm.Parameter(1.5)), pgm.GP(pgm.RBF(1.0, dist.LogNormal(0.0, 0.5))))
    result = pgm.fit(model, X, y)
    assert 0.2 < result.model.likelihood.values["s"] < 0.7
    assert np.abs(result.predict(X).mean - y).std() < 0.5
    draws = pgm.gibbs(result.model.fixed(), X, y, num_samples=50, num_warmup=20, num_chains=2, seed=0)
    table = pgm.compare(gibbs=draws, fit=result, X=X, y=y)
    assert table.to_dataframe()["rmse"].notna().all()
