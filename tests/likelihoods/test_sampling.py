"""Draws and quantiles of counts against SciPy's distributions: named likelihoods, and formulas that are inverted."""

import pickle
import time

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.special import expit

import pgmodels as pgm
from pgmodels.likelihoods.sampling import draw_observations, is_normalised
from pgmodels.likelihoods.supports import Undeclared
from pgmodels.results.gaussian import MixedPredictive
from pgmodels.results.predictive import DrawNodes, IndependentNodes, PredictionWarning, Predictive
from tests.own_likelihoods import log_poisson, tobit

# Below this a test of a fixed seed would be a false alarm in ten thousand.
ALPHA = 1e-4


def draw(likelihood, f, covariates=None, n=4000):
    f = np.broadcast_to(np.asarray(f, dtype=float), (n, 1, np.size(f)))
    return draw_observations(likelihood, f, covariates, np.random.default_rng(5))[:, 0]


def follows(y, law):
    """Whether whole numbers follow a law of SciPy: by chi-square, in cells between its quantiles."""
    assert np.array_equal(y, np.round(y))
    edges = np.unique(law.ppf(np.linspace(0.03, 0.97, 33)))
    expected = len(y) * np.diff(np.concatenate([[0.0], law.cdf(edges), [1.0]]))
    observed = np.bincount(np.searchsorted(edges, y), minlength=len(expected))
    possible = expected > 0
    assert not observed[~possible].any()
    return stats.chisquare(observed[possible], expected[possible]).pvalue > ALPHA


def negative_binomial(dispersion, mean):
    return stats.nbinom(dispersion, dispersion / (dispersion + mean))


@pgm.likelihood(support=pgm.Counts())
def overdispersed(y, f, dispersion=pgm.Parameter(0.27)):
    ways = pgm.gamma(y + dispersion) / (pgm.gamma(dispersion) * pgm.gamma(y + 1))
    return ways * pgm.sigmoid(f) ** y * pgm.sigmoid(-f) ** dispersion


@pgm.likelihood(support=pgm.SuccessesOfTrials())
def successes(y, f):
    ways = pgm.gamma(y[1] + 1) / (pgm.gamma(y[0] + 1) * pgm.gamma(y[1] - y[0] + 1))
    return ways * pgm.sigmoid(f) ** y[0] * pgm.sigmoid(-f) ** (y[1] - y[0])


@pytest.mark.parametrize(
    ("likelihood", "f", "law", "trials"),
    [
        (pgm.NegativeBinomial(0.27), np.log(500 / 0.27), negative_binomial(0.27, 500), None),
        (pgm.NegativeBinomial(0.6), np.log(2e12 / 0.6), stats.gamma(0.6, scale=2e12 / 0.6), None),
        (pgm.SigmoidPoisson(3e4), -0.7, stats.poisson(3e4 * expit(-0.7)), None),
        (pgm.SigmoidPoisson(4e16), 0.3, stats.norm(4e16 * expit(0.3), np.sqrt(4e16 * expit(0.3))), None),
        (pgm.Binomial(), 1.3, stats.binom(5000, expit(1.3)), 5000.0),
        (pgm.Binomial(), -1.3, stats.binom(1, expit(-1.3)), 1.0),
        (pgm.Probit(), 0.4, stats.bernoulli(stats.norm.cdf(0.4)), None),
        (log_poisson(), np.log(1e4), stats.poisson(1e4), None),
        (log_poisson(), np.log(560.0), stats.poisson(560), None),
        (overdispersed(), np.log(500 / 0.27), negative_binomial(0.27, 500), None),
        (successes(), -1.4, stats.binom(5000, expit(-1.4)), 5000.0),
        (successes(), 8.5, stats.binom(20_000, expit(8.5)), 20_000.0),
    ],
)
def test_draws_follow_the_law_of_the_likelihood(likelihood, f, law, trials):
    n = 4000 if likelihood.sampler else 512
    assert follows(draw(likelihood, f, None if trials is None else [trials], n), law)


@pytest.mark.slow
@pytest.mark.parametrize("mean", [0.4, 70.0, 3000.0, 5e5, 1e9])
@pytest.mark.parametrize("dispersion", [0.05, 0.27, 3.0])
def test_formulas_of_any_dispersion_and_mean_are_inverted(mean, dispersion):
    law = negative_binomial(dispersion, mean)
    assert follows(draw(overdispersed(dispersion), np.log(mean / dispersion), n=20_000), law)


def test_named_classes_and_real_numbers_are_drawn_exactly():
    f = np.array([0.9, -1.2, 0.3])
    expected = {
        pgm.LogisticSoftmax(3): expit(f) / expit(f).sum(),
        pgm.StickBreaking(4): [*expit(f) * np.concatenate([[1.0], np.cumprod(expit(-f))[:-1]]), np.prod(expit(-f))],
    }
    for likelihood, p in expected.items():
        observed = np.bincount(draw(likelihood, f).astype(int), minlength=len(p))
        assert stats.chisquare(observed, 4000 * np.asarray(p)).pvalue > ALPHA

    @pgm.likelihood
    def noisy(y, f, scale=pgm.Parameter(0.7)):
        return pgm.normal_pdf(y, 2 * f, scale)

    laws = {
        pgm.StudentT(3.0, 0.4): stats.t(3.0, 0.9, 0.4),
        pgm.Laplace(0.4): stats.laplace(0.9, 0.4),
        noisy(): stats.norm(1.8, 0.7),
    }
    for likelihood, law in laws.items():
        assert stats.kstest(draw(likelihood, 0.9), law.cdf).pvalue > ALPHA
    heteroscedastic = draw(pgm.HeteroscedasticGaussian(5.0), [0.9, -2.0])
    assert stats.kstest(heteroscedastic, stats.norm(0.9, 1 / np.sqrt(5.0 * expit(-2.0))).cdf).pvalue > ALPHA
    assert all(made.draws_exactly(1) for made in laws)
    assert not log_poisson().draws_exactly(1)


def test_parameters_go_with_their_draws():
    # Dispersions (0.3, 4) in turn, at the same mean.
    dispersion = np.tile([0.3, 4.0], 256)
    f = np.log(50 / dispersion)[:, None, None]
    parameters = {"dispersion": dispersion[:, None, None]}
    for likelihood in (pgm.NegativeBinomial(1.0), overdispersed(1.0)):
        y = draw_observations(likelihood, f, None, np.random.default_rng(2), parameters)[:, 0]
        assert follows(y[::2], negative_binomial(0.3, 50))
        assert follows(y[1::2], negative_binomial(4.0, 50))


def test_a_million_draws_of_a_named_likelihood_take_less_than_a_second():
    f = np.full((1_000_000, 1, 1), 2.0)
    draw(pgm.NegativeBinomial(0.27), 2.0, n=10)
    start = time.process_time()
    draw_observations(pgm.NegativeBinomial(0.27), f, None, np.random.default_rng(0))
    assert time.process_time() - start < 1.0


def test_quantiles_of_counts_are_whole_numbers():
    trials = np.linspace(4000.0, 5000.0, 20)
    f = np.linspace(-6.0, 3.0, 20)[:, None]
    predictive = Predictive(pgm.Binomial(), IndependentNodes(f, np.full((20, 1), 1e-20)), np.round(trials))
    levels = [0.025, 0.5, 0.9]
    start = time.process_time()
    quantiles = predictive.quantiles(levels)
    assert time.process_time() - start < 2.0
    law = stats.binom(np.round(trials), expit(f[:, 0]))
    assert np.array_equal(quantiles, np.round(quantiles))
    # Six standard errors of a quantile of 4,000 draws, of which the density is at least 0.05 of the normal's.
    errors = 6 * np.sqrt(0.25 / 4000) / 0.05 * law.std()
    assert (np.abs(quantiles - law.ppf(np.array(levels)[:, None])) <= np.maximum(errors, 1.0)).all()
    mixed = MixedPredictive(np.array([0.4, 0.6]), [predictive, predictive]).quantiles(levels, 500)
    assert np.array_equal(mixed, np.round(mixed))
    # Of a number of draws that puts a level between two of them.
    few = Predictive(pgm.Bernoulli(), IndependentNodes(np.zeros((1, 1)), np.ones((1, 1)))).quantiles(0.5, 2, seed=1)
    assert few in (0.0, 1.0)


def test_quantiles_before_and_after_data():
    mean = np.log(500 / 0.27)
    model = pgm.Model(pgm.NegativeBinomial(0.27), pgm.GP(pgm.RBF(1e-10, 1.0), mean=mean))
    X = np.zeros((1, 1))
    law = negative_binomial(0.27, 500)
    before = pgm.prior_predictive(model, X, num_draws=4000, seed=1)
    assert follows(before.observations[:, 0], law)
    after = pgm.cavi(model, X, np.array([40.0]))
    tree = after.to_arviz(num_draws=3000)
    assert follows(tree.posterior_predictive.y.values[0, :, 0], law)
    assert after.predict(X).quantiles([0.5, 0.9])[:, 0] == pytest.approx(law.ppf([0.5, 0.9]), rel=0.25)


@pgm.likelihood(support=pgm.Counts(), sampler=lambda rng, y, f, rate: rng.poisson(rate * np.exp(f)))
def sampled(y, f, rate=pgm.Parameter(2.0)):
    return (rate * pgm.exp(f)) ** y * pgm.exp(-rate * pgm.exp(f)) / pgm.gamma(y + 1)


def test_a_formula_may_bring_its_sampler():
    assert follows(draw(sampled(3.0), np.log(7.0)), stats.poisson(21.0))
    assert pickle.loads(pickle.dumps(sampled(3.0))).sampler is sampled.sampler

    @pgm.likelihood(support=pgm.Counts(), sampler=lambda rng, y, f: rng.poisson(1.0))
    def of_one(y, f):
        return pgm.exp(y * f - pgm.exp(f)) / pgm.gamma(y + 1)

    with pytest.raises(ValueError, match=r"sampler of of_one must return one number per datum, shape \(7,\)"):
        draw(of_one(), 0.3, n=7)
    with pytest.raises(ValueError, match=r"sampler of the likelihood .* must be a function \(rng, y, f, r\)"):
        pgm.likelihood(sampler=lambda rng, y, f: y)(lambda y, f, r: f)


@pgm.likelihood(support=pgm.Counts())
def two_peaks(y, f):
    near, far = (pgm.exp(y * g - pgm.exp(g)) / pgm.gamma(y + 1) for g in (f, 2 * f))
    return 0.3 * near + 0.7 * far


def test_probability_that_is_not_found_is_an_error():
    # Both peaks of 600 and of 360,000 are found: one in the list, one beyond it.
    y = draw(two_peaks(), np.log(600.0), n=64)
    assert stats.binomtest(int((y < 2000).sum()), 64, 0.3).pvalue > ALPHA
    with pytest.raises(ValueError, match=r"two_peaks cannot be drawn at 64 of 64.*9\.2.*sum to 0\.3 .*sampler"):
        draw(two_peaks(), 9.2, n=64)
    with pytest.raises(ValueError, match=r"poisson cannot be drawn at 512 of 512 .* such as 800"):
        draw(log_poisson(), 800.0, n=512)
    nodes = DrawNodes(np.full((64, 1, 1), 9.2))
    with pytest.raises(ValueError, match="two_peaks cannot be drawn"):
        Predictive(two_peaks(), nodes).quantiles(0.5, 64)


# Means and variances of predictions by formulas that declare none: of Gaussians in y exactly, else by quadrature.


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
    "clipped": (tobit(1.0), of_tobit),
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
    with pytest.warns(PredictionWarning, match="not resolved in 3 rows, and NaN.*Use quantiles"):
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
