"""Draws and quantiles of counts against SciPy's distributions: named likelihoods, and formulas that are inverted."""

import pickle
import time

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

import pgmodels as pgm
from pgmodels.likelihoods.sampling import draw_observations
from pgmodels.results.gaussian import MixedPredictive
from pgmodels.results.predictive import DrawNodes, IndependentNodes, Predictive

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
def poisson(y, f):
    return pgm.exp(y * f - pgm.exp(f)) / pgm.gamma(y + 1)


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
        (poisson(), np.log(1e4), stats.poisson(1e4), None),
        (poisson(), np.log(560.0), stats.poisson(560), None),
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
    assert not poisson().draws_exactly(1)


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
        draw(poisson(), 800.0, n=512)
    nodes = DrawNodes(np.full((64, 1, 1), 9.2))
    with pytest.raises(ValueError, match="two_peaks cannot be drawn"):
        Predictive(two_peaks(), nodes).quantiles(0.5, 64)
