"""Predictive distributions and draws of y against brute-force integrals and SciPy's distributions."""

from functools import cache

import numpy as np
import pytest
from scipy import integrate, stats
from scipy.special import expit

from pgmodels.inference.gibbs import gibbs
from pgmodels.inference.vi import cavi
from pgmodels.kernels.stationary import RBF
from pgmodels.likelihoods.likelihood import likelihood
from pgmodels.likelihoods.named import (
    Bernoulli,
    Binomial,
    Gaussian,
    HeteroscedasticGaussian,
    Laplace,
    LogisticSoftmax,
    NegativeBinomial,
    Probit,
    SigmoidPoisson,
    StickBreaking,
    StudentT,
)
from pgmodels.likelihoods.operations import normal_pdf
from pgmodels.likelihoods.sampling import draw_observations
from pgmodels.model import GP, Model
from pgmodels.results.predictive import DrawNodes, IndependentNodes, PredictionWarning, Predictive
from tests.covering import some

MEAN = np.array([0.7, -1.3, 2.1])
VARIANCE = np.array([0.5, 1.7, 0.02])

# (likelihood, distribution of y given f, observations, tolerance of log density). Smooth integrands are exact to the
# quadrature's stopping rule, 1e-7; a kink is integrated to a tenth of the last change, 1e-5.
CASES = {
    "Bernoulli": (Bernoulli(), lambda f: stats.bernoulli(expit(f)), [1, 0, 0], 1e-7),
    "Probit": (Probit(), lambda f: stats.bernoulli(stats.norm.cdf(f)), [0, 1, 1], 1e-7),
    "NegativeBinomial": (NegativeBinomial(2.5), lambda f: stats.nbinom(2.5, expit(-f)), [3, 0, 40], 1e-7),
    "SigmoidPoisson": (SigmoidPoisson(6.0), lambda f: stats.poisson(6.0 * expit(f)), [3, 0, 9], 1e-7),
    "StudentT": (StudentT(4.0, 0.05), lambda f: stats.t(4.0, f, 0.05), [1.0, 2.0, -3.0], 1e-7),
    "Laplace": (Laplace(0.3), lambda f: stats.laplace(f, 0.3), [1.0, 2.0, -3.0], 1e-6),
    "narrow": (Gaussian(0.01), lambda f: stats.norm(f, 0.01), [1.0, 2.0, 9.0], 1e-7),
}


def predictive(lik, covariates=None):
    return Predictive(lik, IndependentNodes(MEAN[:, None], VARIANCE[:, None]), covariates)


def quadrature(function, mean, variance, points=()):
    scale = np.sqrt(variance)
    inside = [p for p in points if abs(p - mean) < 12 * scale]
    return integrate.quad(
        lambda f: function(f) * stats.norm.pdf(f, mean, scale),
        mean - 12 * scale,
        mean + 12 * scale,
        points=[mean, *inside],
        limit=500,
        epsabs=0,
        epsrel=1e-10,
    )[0]


@pytest.mark.parametrize(
    "name", some([name for name in CASES if name != "narrow"], "Bernoulli", "NegativeBinomial", "StudentT")
)
def test_log_density_is_the_integral_of_the_likelihood(name):
    lik, law, y, tolerance = CASES[name]

    def density(y, f):
        d = law(f)
        return d.pmf(y) if hasattr(d, "pmf") and d.dist.name in ("bernoulli", "nbinom", "poisson") else d.pdf(y)

    expected = [
        np.log(quadrature(lambda f, y=y: density(y, f), m, v, points=[y]))
        for y, m, v in zip(y, MEAN, VARIANCE, strict=True)
    ]
    np.testing.assert_allclose(predictive(lik).log_density(np.array(y)), expected, atol=tolerance)


@pytest.mark.parametrize("y", [[1.0, 2.0, 9.0], [40.0, -50.0, 9.0]], ids=["central", "outlying"])
@pytest.mark.parametrize("spread", [1.0, 1e3])
def test_log_density_of_a_narrow_likelihood_is_exact(spread, y):
    # Gaussian convolution in closed form; log densities down to -3,000, whose rounding is 1e-12.
    expected = stats.norm.logpdf(y, MEAN, np.sqrt(spread**2 * VARIANCE + 0.01**2))
    nodes = IndependentNodes(MEAN[:, None], spread**2 * VARIANCE[:, None])
    got = Predictive(Gaussian(0.01), nodes).log_density(np.array(y))
    np.testing.assert_allclose(got, expected, atol=1e-7, rtol=1e-10)


@pytest.mark.parametrize(
    "name", some(["NegativeBinomial", "SigmoidPoisson", "StudentT", "Laplace", "Bernoulli"], "StudentT")
)
def test_mean_and_variance_integrate_the_conditional_moments(name):
    lik, law, _, _ = CASES[name]
    p = predictive(lik)
    for row, (m, v) in enumerate(zip(MEAN, VARIANCE, strict=True)):
        mean = quadrature(lambda f: law(f).mean(), m, v)
        second = quadrature(lambda f: law(f).var() + law(f).mean() ** 2, m, v)
        # quad's relative tolerance 1e-10, and the cancellation of second - mean^2.
        np.testing.assert_allclose(p.mean[row], mean, rtol=1e-8)
        np.testing.assert_allclose(p.variance[row], second - mean**2, rtol=1e-7)


def test_probabilities_of_two_classes():
    expected = [quadrature(expit, m, v) for m, v in zip(MEAN, VARIANCE, strict=True)]
    probabilities = predictive(Bernoulli()).probabilities
    np.testing.assert_allclose(probabilities[:, 1], expected, atol=1e-9)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-9)


@pytest.mark.parametrize("lik", [LogisticSoftmax(3), StickBreaking(4)], ids=lambda lik: lik.name)
def test_probabilities_of_several_classes_match_monte_carlo(lik):
    mean, variance = np.array([[1.2, -0.7, 0.3], [-2.0, 0.5, 1.5]]), np.array([[0.5, 1.5, 0.1], [2.0, 0.3, 0.7]])
    p = Predictive(lik, IndependentNodes(mean, variance)).probabilities
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-12)
    f = mean + np.sqrt(variance) * np.random.default_rng(1).standard_normal((400_000, 2, 3))
    if lik.name == "LogisticSoftmax":
        sample = expit(f) / expit(f).sum(axis=-1, keepdims=True)
    else:
        stay = np.cumprod(expit(-f), axis=-1)
        sample = np.concatenate([expit(f), np.ones((*f.shape[:2], 1))], axis=-1)
        sample[..., 1:] *= stay
    # Standard error of 400,000 draws below 0.5 / 632 = 8e-4; Sobol's own error at 4,096 points is below it.
    np.testing.assert_allclose(p, sample.mean(axis=0), atol=3e-3)
    # log_density refines until it changes by less than 1e-3.
    got = Predictive(lik, IndependentNodes(mean, variance)).log_density(np.array([2.0, 0.0]))
    np.testing.assert_allclose(np.exp(got), p[[0, 1], [2, 0]], rtol=3e-3)


def test_binomial_takes_trials_as_covariates():
    trials = np.array([3, 7, 12])
    p = predictive(Binomial(), trials)
    y = np.column_stack([[2, 0, 11], trials])
    for row, (m, v) in enumerate(zip(MEAN, VARIANCE, strict=True)):
        expected = quadrature(lambda f, row=row: stats.binom.pmf(y[row, 0], trials[row], expit(f)), m, v)
        np.testing.assert_allclose(p.log_density(y)[row], np.log(expected), atol=1e-7)
        np.testing.assert_allclose(p.mean[row], trials[row] * quadrature(expit, m, v), rtol=1e-8)


@likelihood(num_latents=1, mean=lambda y, f: f, variance=lambda y, f: y[1] ** 2)
def known_noise(y, f):
    return normal_pdf(y[0], f, y[1])


def test_columns_that_are_read_must_be_given():
    for name in ("mean", "variance"):
        with pytest.raises(ValueError, match=rf"the {name} of y by Binomial depends on y\[1\].*shape \(3, 1\)"):
            getattr(predictive(Binomial()), name)
    # The mean reads no column but the latent, and log_density takes columns from its y_new.
    noise = predictive(known_noise())
    np.testing.assert_allclose(noise.mean, MEAN)
    with pytest.raises(ValueError, match=r"the variance of y by known_noise depends on y\[1\]"):
        _ = noise.variance
    scale = np.array([0.3, 2.0, 0.7])
    np.testing.assert_allclose(predictive(known_noise(), scale).variance, VARIANCE + scale**2)
    y = np.column_stack([[1.0, 2.0, -3.0], scale])
    expected = stats.norm.logpdf(y[:, 0], MEAN, np.sqrt(VARIANCE + scale**2))
    np.testing.assert_allclose(noise.log_density(y), expected, atol=1e-7)
    with pytest.raises(ValueError, match="covariates must be finite; got nan in row 1"):
        predictive(Binomial(), [3.0, np.nan, 4.0])


@pytest.mark.parametrize("scale", [0.05, 0.5, 3.0])
def test_densities_thousands_of_deviations_out_are_those_of_the_sum(scale):
    """Where the mass of p(y | f) q(f) lies far outside q, at y / sqrt(v + s^2) = 900 to 1e5."""
    far = np.array([900.0, -7e3, 1e5])
    total = np.sqrt(VARIANCE + scale**2)
    y = MEAN + far * total
    # The exponent is y^2 / 2 in deviations, and its rounding 2e-16 of that; the trapezoid rule stops at 1e-5.
    np.testing.assert_allclose(
        predictive(Gaussian(scale)).log_density(y), stats.norm.logpdf(y, MEAN, total), rtol=1e-14, atol=1e-6
    )


def test_unresolved_integrals_are_reported():
    with pytest.warns(PredictionWarning, match="not resolved in 3 rows"):
        predictive(Gaussian(0.5)).log_density(np.full(3, 1e9))

    @likelihood(num_latents=1)
    def comb(y, f):
        from pgmodels.likelihoods.operations import sigmoid

        return sigmoid(f) ** y * sigmoid(-f) ** (1 - y)

    with pytest.warns(PredictionWarning, match="not known to be a normalised density"):
        predictive(comb()).log_density(np.array([1.0, 0.0, 1.0]))
    # 16,384 points cannot see noise a ten-thousandth of the latent scale.
    nodes = IndependentNodes(np.zeros((1, 2)), np.array([[1e6, 1.0]]))
    with pytest.warns(PredictionWarning, match="not resolved in 1 rows"):
        Predictive(HeteroscedasticGaussian(100.0), nodes).log_density(np.array([0.3]))


def test_unresolved_moments_are_reported(recwarn):
    """Var y = v_1 + (1 + exp(v_2 / 2)) / 4, of which rare large values of the second latent are most."""

    def variance(uncertainty):
        nodes = IndependentNodes(np.zeros((1, 2)), np.array([[1.0, uncertainty]]))
        return Predictive(HeteroscedasticGaussian(4.0), nodes).variance[0]

    assert variance(4.0) == pytest.approx(1.0 + (1.0 + np.exp(2.0)) / 4.0, rel=0.01)
    assert not recwarn.list
    with pytest.warns(PredictionWarning, match="variance of y are not resolved in 1 rows") as caught:
        variance(9.0)
    assert caught[0].filename == __file__


def test_draw_nodes_average_over_draws():
    f = np.random.default_rng(2).normal(0.4, 1.0, (50, 3, 1))
    p = Predictive(Bernoulli(), DrawNodes(f))
    np.testing.assert_allclose(p.probabilities[:, 1], expit(f[..., 0]).mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(p.log_density(np.ones(3)), np.log(expit(f[..., 0]).mean(axis=0)), rtol=1e-12)
    negative = Predictive(NegativeBinomial(2.0), DrawNodes(f))
    mean = 2.0 * np.exp(f[..., 0])
    np.testing.assert_allclose(negative.mean, mean.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(negative.variance, (mean + mean**2 / 2).mean(axis=0) + mean.var(axis=0), rtol=1e-12)


@cache
def fitted():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(25, 2))
    y = (rng.random(25) < expit(2.0 * X[:, 0] + 0.8)).astype(float)
    model = Model(Bernoulli(), GP(RBF(2.0, 0.9), mean=0.8))
    return X, y, cavi(model, X, y), gibbs(model, X, y, num_samples=100, num_warmup=20, num_chains=2, seed=3)


def test_training_inputs_give_the_training_marginals():
    X, _, vi, mcmc = fitted()
    # The prior's representation neglects variances below 1e-10 of its own; see test_latent.
    for got, expected in zip(vi.predict_latent(X), (vi.mean, vi.variance), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)
    for got, expected in zip(mcmc.predict_latent(X), (mcmc.mean, mcmc.variance), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)


def test_the_prior_holds_far_from_the_data():
    _, _, vi, mcmc = fitted()
    far = np.full((1, 2), 60.0)
    for result in (vi, mcmc):
        mean, variance = result.predict_latent(far)
        np.testing.assert_allclose(mean, 0.8, atol=1e-9)
        np.testing.assert_allclose(variance, 2.0, atol=1e-9)
    np.testing.assert_allclose(vi.predict(far).probabilities[0, 1], quadrature(expit, 0.8, 2.0), atol=1e-9)


def test_draws_predict_what_their_latents_say():
    X, y, _, mcmc = fitted()
    at_data = mcmc.predict(X)
    expected = expit(mcmc.latents[..., 0]).mean(axis=(0, 1))
    # At the data the residual variance is rounding, up to 1e-10 of the prior's: noise of 1e-5 a draw.
    np.testing.assert_allclose(at_data.probabilities[:, 1], expected, atol=1e-5)
    np.testing.assert_allclose(at_data.log_density(y), np.log(np.where(y == 1, expected, 1 - expected)), atol=1e-4)
    new = np.random.default_rng(4).normal(size=(7, 2))
    f = mcmc.draw_marginals(new, seed=5)
    mean, variance = mcmc.predict_latent(new)
    # 200 draws: five standard errors.
    assert np.all(np.abs(f.mean(axis=0) - mean) < 5 * np.sqrt(variance / 200))


def test_bad_input_is_refused():
    X, y, vi, _ = fitted()
    with pytest.raises(ValueError, match=r"y_new must have shape \(25,\)"):
        vi.predict(X).log_density(y[:3])
    with pytest.raises(ValueError, match="labels 0 and 1"):
        vi.predict(X).log_density(y + 1)
    with pytest.raises(ValueError, match="y_new must be finite"):
        vi.predict(X).log_density(np.where(y == 1, np.nan, y))
    with pytest.raises(ValueError, match="leave covariates out"):
        vi.predict(X, covariates=y)
    with pytest.raises(ValueError, match=r"covariates must have shape \(3, 1\)"):
        predictive(Binomial(), [1.0, 2.0])
    with pytest.raises(ValueError, match="X_new"):
        vi.predict(X[:, 0])
    with pytest.raises(ValueError, match="finite set of values"):
        _ = predictive(NegativeBinomial(1.0)).probabilities


N = 3_000
# Draws are tested at p > 1e-4: with 13 tests, a false alarm in a thousand seeds; the seed is fixed.
ALPHA = 1e-4


def draw(lik, f, covariates=None, n=N):
    f = np.broadcast_to(np.asarray(f, dtype=float), (n, 1, np.size(f)))
    return draw_observations(lik, f, covariates, np.random.default_rng(11))[:, 0]


@pytest.mark.parametrize("f", [-1.3, 2.4])
@pytest.mark.parametrize("name", some(["StudentT", "Laplace", "narrow"], "Laplace", "narrow"))
def test_real_draws_follow_their_distribution(name, f):
    lik, law, _, _ = CASES[name]
    assert stats.kstest(draw(lik, f), law(f).cdf).pvalue > ALPHA


@pytest.mark.slow
def test_draws_of_infinite_variance_and_of_two_latents():
    assert stats.kstest(draw(StudentT(1.0, 0.3), 0.7), stats.cauchy(0.7, 0.3).cdf).pvalue > ALPHA
    law = stats.norm(1.0, 1 / np.sqrt(5.0 * expit(-2.0)))
    assert stats.kstest(draw(HeteroscedasticGaussian(5.0), [1.0, -2.0]), law.cdf).pvalue > ALPHA


@pytest.mark.parametrize(
    ("lik", "law", "covariates"),
    [
        (Bernoulli(), stats.bernoulli(expit(0.9)), None),
        (NegativeBinomial(2.5), stats.nbinom(2.5, expit(-0.9)), None),
        (NegativeBinomial(0.3), stats.nbinom(0.3, expit(-0.9)), None),
        (SigmoidPoisson(150.0), stats.poisson(150.0 * expit(0.9)), None),
        (Binomial(), stats.binom(7, expit(0.9)), [7.0]),
    ],
    ids=["Bernoulli", "NegativeBinomial", "overdispersed", "SigmoidPoisson", "Binomial"],
)
def test_discrete_draws_follow_their_distribution(lik, law, covariates):
    y = draw(lik, 0.9, covariates)
    assert np.array_equal(y, np.round(y))
    edges = np.unique(law.ppf(np.linspace(0.02, 0.98, 30)))
    expected = N * np.diff(np.concatenate([[0.0], law.cdf(edges), [1.0]]))
    observed = np.bincount(np.searchsorted(edges, y), minlength=len(expected))
    kept = expected > 0
    assert not observed[~kept].any()
    assert stats.chisquare(observed[kept], expected[kept] * N / expected[kept].sum()).pvalue > ALPHA


def test_class_draws_follow_their_probabilities():
    weights = expit(np.array([1.0, -2.0, 0.3]))
    observed = np.bincount(draw(LogisticSoftmax(3), [1.0, -2.0, 0.3]).astype(int), minlength=3)
    assert stats.chisquare(observed, N * weights / weights.sum()).pvalue > ALPHA


def test_trials_differ_between_data():
    f = np.broadcast_to(np.array([[0.5], [3.0], [-0.4]]), (200, 3, 1))
    y = draw_observations(Binomial(), f, np.array([0.0, 2.0, 9.0]), np.random.default_rng(0))
    assert y.shape == (200, 3)
    assert (y <= [0, 2, 9]).all()
    assert y.max(axis=0).tolist()[:2] == [0, 2]


def test_draws_need_a_declared_and_normalised_formula():
    from pgmodels.likelihoods.operations import sigmoid
    from pgmodels.likelihoods.supports import Counts

    @likelihood
    def undeclared(y, f):
        return sigmoid(f) ** y * sigmoid(-f)

    @likelihood(support=Counts())
    def unnormalised(y, f):
        return sigmoid(f) ** y * sigmoid(-f) ** 2.5

    with pytest.raises(ValueError, match="declare it"):
        draw(undeclared(), 0.3)
    with pytest.raises(ValueError, match="does not sum to 1"):
        draw(unnormalised(), 0.3)


@pytest.mark.parametrize("classes", [3, 18])
def test_probabilities_are_averages_over_the_same_nodes_whether_classes_are_few_or_many(classes):
    rng = np.random.default_rng(5)
    nodes = IndependentNodes(rng.normal(size=(3, classes)), rng.uniform(0.2, 2.0, (3, classes)))
    probabilities = Predictive(LogisticSoftmax(classes), nodes).probabilities
    f, _ = nodes.at(np.arange(3), nodes.levels[1])
    expected = np.mean(expit(f) / expit(f).sum(axis=-1, keepdims=True), axis=0)
    np.testing.assert_allclose(probabilities, expected, rtol=1e-12)
