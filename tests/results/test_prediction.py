"""Predictive distributions and draws of y against brute-force integrals and SciPy's distributions."""

import time
from functools import cache

import arviz_stats as az
import numpy as np
import numpyro.distributions as dist
import pytest
from arviz_base import rc_context
from numpyro.distributions import constraints
from scipy import integrate, stats
from scipy.special import expit

import pgmodels as pgm
from pgmodels.likelihoods.sampling import draw_observations
from pgmodels.numerics.quadrature import grid, grid_support, refined
from pgmodels.results.gaussian import NormalDensity
from pgmodels.results.predictive import DrawNodes, IndependentNodes
from pgmodels.results.result import GRID, GridDensity, bounds, interpolation, of_marginal
from tests.covering import some
from tests.referees import cdf_of, gp_regression, gp_regression_marginals

MEAN = np.array([0.7, -1.3, 2.1])
VARIANCE = np.array([0.5, 1.7, 0.02])

# (likelihood, distribution of y given f, observations, tolerance of log density). Smooth integrands are exact to the
# quadrature's stopping rule, 1e-7; a kink is integrated to a tenth of the last change, 1e-5.
CASES = {
    "Bernoulli": (pgm.Bernoulli(), lambda f: stats.bernoulli(expit(f)), [1, 0, 0], 1e-7),
    "Probit": (pgm.Probit(), lambda f: stats.bernoulli(stats.norm.cdf(f)), [0, 1, 1], 1e-7),
    "NegativeBinomial": (pgm.NegativeBinomial(2.5), lambda f: stats.nbinom(2.5, expit(-f)), [3, 0, 40], 1e-7),
    "SigmoidPoisson": (pgm.SigmoidPoisson(6.0), lambda f: stats.poisson(6.0 * expit(f)), [3, 0, 9], 1e-7),
    "StudentT": (pgm.StudentT(4.0, 0.05), lambda f: stats.t(4.0, f, 0.05), [1.0, 2.0, -3.0], 1e-7),
    "Laplace": (pgm.Laplace(0.3), lambda f: stats.laplace(f, 0.3), [1.0, 2.0, -3.0], 1e-6),
    "narrow": (pgm.Gaussian(0.01), lambda f: stats.norm(f, 0.01), [1.0, 2.0, 9.0], 1e-7),
}


def predictive(lik, covariates=None):
    return pgm.Predictive(lik, IndependentNodes(MEAN[:, None], VARIANCE[:, None]), covariates)


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
    got = pgm.Predictive(pgm.Gaussian(0.01), nodes).log_density(np.array(y))
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
    probabilities = predictive(pgm.Bernoulli()).probabilities
    np.testing.assert_allclose(probabilities[:, 1], expected, atol=1e-9)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-9)


@pytest.mark.parametrize("lik", [pgm.LogisticSoftmax(3), pgm.StickBreaking(4)], ids=lambda lik: lik.name)
def test_probabilities_of_several_classes_match_monte_carlo(lik):
    mean, variance = np.array([[1.2, -0.7, 0.3], [-2.0, 0.5, 1.5]]), np.array([[0.5, 1.5, 0.1], [2.0, 0.3, 0.7]])
    p = pgm.Predictive(lik, IndependentNodes(mean, variance)).probabilities
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
    got = pgm.Predictive(lik, IndependentNodes(mean, variance)).log_density(np.array([2.0, 0.0]))
    np.testing.assert_allclose(np.exp(got), p[[0, 1], [2, 0]], rtol=3e-3)


def test_binomial_takes_trials_as_covariates():
    trials = np.array([3, 7, 12])
    p = predictive(pgm.Binomial(), trials)
    y = np.column_stack([[2, 0, 11], trials])
    for row, (m, v) in enumerate(zip(MEAN, VARIANCE, strict=True)):
        expected = quadrature(lambda f, row=row: stats.binom.pmf(y[row, 0], trials[row], expit(f)), m, v)
        np.testing.assert_allclose(p.log_density(y)[row], np.log(expected), atol=1e-7)
        np.testing.assert_allclose(p.mean[row], trials[row] * quadrature(expit, m, v), rtol=1e-8)


@pgm.likelihood(num_latents=1, mean=lambda y, f: f, variance=lambda y, f: y[1] ** 2)
def known_noise(y, f):
    return pgm.normal_pdf(y[0], f, y[1])


def test_columns_that_are_read_must_be_given():
    for name in ("mean", "variance"):
        with pytest.raises(ValueError, match=rf"the {name} of y by Binomial depends on y\[1\].*shape \(3, 1\)"):
            getattr(predictive(pgm.Binomial()), name)
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


@pytest.mark.parametrize("scale", [0.05, 0.5, 3.0])
def test_densities_thousands_of_deviations_out_are_those_of_the_sum(scale):
    """Where the mass of p(y | f) q(f) lies far outside q, at y / sqrt(v + s^2) = 900 to 1e5."""
    far = np.array([900.0, -7e3, 1e5])
    total = np.sqrt(VARIANCE + scale**2)
    y = MEAN + far * total
    # The exponent is y^2 / 2 in deviations, and its rounding 2e-16 of that; the trapezoid rule stops at 1e-5.
    np.testing.assert_allclose(
        predictive(pgm.Gaussian(scale)).log_density(y), stats.norm.logpdf(y, MEAN, total), rtol=1e-14, atol=1e-6
    )


def test_unresolved_integrals_are_reported():
    with pytest.warns(pgm.PredictionWarning, match="not resolved in 3 rows"):
        predictive(pgm.Gaussian(0.5)).log_density(np.full(3, 1e9))

    @pgm.likelihood(num_latents=1)
    def comb(y, f):
        from pgmodels.likelihoods.operations import sigmoid

        return sigmoid(f) ** y * sigmoid(-f) ** (1 - y)

    with pytest.warns(pgm.PredictionWarning, match="not known to be a normalised density"):
        predictive(comb()).log_density(np.array([1.0, 0.0, 1.0]))
    # 16,384 points cannot see noise a ten-thousandth of the latent scale.
    nodes = IndependentNodes(np.zeros((1, 2)), np.array([[1e6, 1.0]]))
    with pytest.warns(pgm.PredictionWarning, match="not resolved in 1 rows"):
        pgm.Predictive(pgm.HeteroscedasticGaussian(100.0), nodes).log_density(np.array([0.3]))


def test_unresolved_moments_are_reported(recwarn):
    """Var y = v_1 + (1 + exp(v_2 / 2)) / 4, of which rare large values of the second latent are most."""

    def variance(uncertainty):
        nodes = IndependentNodes(np.zeros((1, 2)), np.array([[1.0, uncertainty]]))
        return pgm.Predictive(pgm.HeteroscedasticGaussian(4.0), nodes).variance[0]

    assert variance(4.0) == pytest.approx(1.0 + (1.0 + np.exp(2.0)) / 4.0, rel=0.01)
    assert not recwarn.list
    with pytest.warns(pgm.PredictionWarning, match="variance of y are not resolved in 1 rows") as caught:
        variance(9.0)
    assert caught[0].filename == __file__


def test_draw_nodes_average_over_draws():
    f = np.random.default_rng(2).normal(0.4, 1.0, (50, 3, 1))
    p = pgm.Predictive(pgm.Bernoulli(), DrawNodes(f))
    np.testing.assert_allclose(p.probabilities[:, 1], expit(f[..., 0]).mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(p.log_density(np.ones(3)), np.log(expit(f[..., 0]).mean(axis=0)), rtol=1e-12)
    negative = pgm.Predictive(pgm.NegativeBinomial(2.0), DrawNodes(f))
    mean = 2.0 * np.exp(f[..., 0])
    np.testing.assert_allclose(negative.mean, mean.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(negative.variance, (mean + mean**2 / 2).mean(axis=0) + mean.var(axis=0), rtol=1e-12)


@cache
def fitted():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(25, 2))
    y = (rng.random(25) < expit(2.0 * X[:, 0] + 0.8)).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 0.9), mean=0.8))
    return X, y, pgm.cavi(model, X, y), pgm.gibbs(model, X, y, num_samples=100, num_warmup=20, num_chains=2, seed=3)


def test_training_inputs_give_the_training_marginals():
    X, _, vi, mcmc = fitted()
    # The prior's representation neglects variances below 1e-10 of its own; see test_latent.
    np.testing.assert_allclose(vi.predict_latent(X), (vi.mean, vi.variance), atol=1e-6)
    np.testing.assert_allclose(mcmc.predict_latent(X), (mcmc.mean, mcmc.variance), atol=1e-6)


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


# Of tests of draws with a fixed seed: below this one would be a false alarm in ten thousand.
ALPHA = 1e-4


def test_trials_differ_between_data():
    f = np.broadcast_to(np.array([[0.5], [3.0], [-0.4]]), (200, 3, 1))
    y = draw_observations(pgm.Binomial(), f, np.array([0.0, 2.0, 9.0]), np.random.default_rng(0))
    assert y.shape == (200, 3)
    assert (y <= [0, 2, 9]).all()
    assert y.max(axis=0).tolist()[:2] == [0, 2]


def test_draws_need_a_declared_and_normalised_formula():
    from pgmodels.likelihoods.operations import sigmoid
    from pgmodels.likelihoods.supports import Counts

    @pgm.likelihood
    def undeclared(y, f):
        return sigmoid(f) ** y * sigmoid(-f)

    @pgm.likelihood(support=Counts())
    def unnormalised(y, f):
        return sigmoid(f) ** y * sigmoid(-f) ** 2.5

    f, rng = np.full((5, 1, 1), 0.3), np.random.default_rng(11)
    with pytest.raises(ValueError, match="declare it"):
        draw_observations(undeclared(), f, None, rng)
    with pytest.raises(ValueError, match="does not sum to 1"):
        draw_observations(unnormalised(), f, None, rng)


@pytest.mark.parametrize("classes", [3, 18])
def test_probabilities_are_averages_over_the_same_nodes_whether_classes_are_few_or_many(classes):
    rng = np.random.default_rng(5)
    nodes = IndependentNodes(rng.normal(size=(3, classes)), rng.uniform(0.2, 2.0, (3, classes)))
    probabilities = pgm.Predictive(pgm.LogisticSoftmax(classes), nodes).probabilities
    f, _ = nodes.at(np.arange(3), nodes.levels[1])
    expected = np.mean(expit(f) / expit(f).sum(axis=-1, keepdims=True), axis=0)
    np.testing.assert_allclose(probabilities, expected, rtol=1e-12)


# Draws, quantiles and probabilities of y at new inputs against laws in closed form.


LATENT_MEAN, LATENT_VARIANCE = np.array([[-1.2], [0.7], [2.1]]), np.array([[0.3], [1.9], [0.05]])
NODES = IndependentNodes(LATENT_MEAN, LATENT_VARIANCE)


def gaussian_law(row):
    return stats.norm(LATENT_MEAN[row, 0], np.sqrt(LATENT_VARIANCE[row, 0] + 0.5**2))


def test_draws_and_quantiles_follow_the_predictive_distribution():
    predictive = pgm.Predictive(pgm.Gaussian(0.5), NODES)
    drawn = predictive.draw(2000, seed=3)
    assert drawn.shape == (2000, 3)
    levels = [0.1, 0.5, 0.8]
    quantiles = predictive.quantiles(levels, num_draws=2000, seed=3)
    for row in range(3):
        law = gaussian_law(row)
        assert stats.kstest(drawn[:, row], law.cdf).pvalue > ALPHA
        expected = law.ppf(levels)
        # Six standard errors of a quantile of 2,000 draws.
        errors = np.sqrt(np.multiply(levels, np.subtract(1, levels)) / 2000) / law.pdf(expected)
        assert (np.abs(quantiles[:, row] - expected) <= 6 * errors).all()
    np.testing.assert_array_equal(drawn, predictive.draw(2000, seed=3))
    assert not np.array_equal(drawn, predictive.draw(2000, seed=4))


def test_draws_take_the_parameters_of_their_own_latents():
    # Latents and scales come in pairs: (-3, 0.1) and (3, 2), each as often as the other.
    f, scale = np.array([-3.0, 3.0]), np.array([0.1, 2.0])
    nodes = DrawNodes(f.reshape(2, 1, 1), {"scale": scale.reshape(2, 1, 1)})
    drawn = pgm.Predictive(pgm.Gaussian(1.0), nodes).draw(2001)[:, 0]
    cdf = lambda x: 0.5 * (stats.norm.cdf(x, -3.0, 0.1) + stats.norm.cdf(x, 3.0, 2.0))  # noqa: E731
    assert stats.kstest(drawn, cdf).pvalue > ALPHA
    assert (drawn < -2.0).sum() >= 1000


def mixed(mass):
    """The average of a probability over the latents, (3, values), on a fine grid of each row's quantiles."""
    standard = stats.norm.ppf((np.arange(4000) + 0.5) / 4000)[:, None]
    return np.stack(
        [mass(m + np.sqrt(v) * standard).mean(axis=0) for m, v in zip(LATENT_MEAN, LATENT_VARIANCE, strict=True)]
    )


def test_probabilities_of_counts_and_of_successes():
    counts = np.array([0, 3, 11])
    probabilities = pgm.Predictive(pgm.NegativeBinomial(1.5), NODES).probabilities_of(counts)
    # The midpoint rule in probability: its error is that of the two outermost of 4,000 cells.
    np.testing.assert_allclose(probabilities, mixed(lambda f: stats.nbinom.pmf(counts, 1.5, expit(-f))), atol=2e-4)
    trials = np.array([2.0, 5.0, 0.0])
    probabilities = pgm.Predictive(pgm.Binomial(), NODES, trials).probabilities_of(np.arange(6))
    expected = mixed(lambda f: stats.binom.pmf(np.arange(6), 5, expit(f)))[1]
    np.testing.assert_allclose(probabilities[1], expected, atol=2e-4)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-6)
    assert (probabilities[0, 3:] == 0).all()
    assert probabilities[2, 0] == pytest.approx(1.0)
    binary = pgm.Predictive(pgm.Bernoulli(), NODES)
    np.testing.assert_allclose(binary.probabilities_of([1, 0, 2, 0.5])[:, :2], binary.probabilities[:, ::-1])
    assert (binary.probabilities_of([1, 0, 2, 0.5])[:, 2:] == 0).all()


def predicted(inputs=slice(None), covariates=None):
    X, _, vi, _ = fitted()
    return vi.predict(X[inputs], covariates)


WRONG = {
    "y of other rows": (lambda: predicted().log_density(np.ones(3)), r"y_new must have shape \(25,\)"),
    "labels 1 and 2": (lambda: predicted().log_density(fitted()[1] + 1), "labels 0 and 1"),
    "holes in y": (lambda: predicted().log_density(np.full(25, np.nan)), "y_new must be finite"),
    "one column of two": (lambda: predicted((slice(None), 0)), "X_new"),
    "covariates of labels": (lambda: predicted(covariates=np.ones(25)), "leave covariates out"),
    "covariates of two rows": (lambda: predictive(pgm.Binomial(), [1.0, 2.0]), r"covariates must have shape \(3, 1\)"),
    "a hole": (lambda: predictive(pgm.Binomial(), [3.0, np.nan, 4.0]), "covariates must be finite; got nan in row 1"),
    "all counts": (lambda: predictive(pgm.NegativeBinomial(1.0)).probabilities, "finite set of values"),
    "of a real number": (
        lambda: pgm.Predictive(pgm.Gaussian(0.5), NODES).probabilities_of([0.0]),
        "declared to be a count",
    ),
    "without trials": (lambda: pgm.Predictive(pgm.Binomial(), NODES).probabilities_of([0.0]), r"depends on y\[1\]"),
    "draws without trials": (
        lambda: pgm.Predictive(pgm.Binomial(), NODES).draw(),
        r"draws of y by Binomial depends on y\[1\]",
    ),
    "a level of 5": (
        lambda: pgm.Predictive(pgm.Gaussian(0.5), NODES).quantiles([5]),
        "levels must be numbers between 0 and 1",
    ),
    "no draws": (lambda: pgm.Predictive(pgm.Gaussian(0.5), NODES).draw(0), "num_draws must be a whole number >= 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_asked_for_is_refused(name):
    call, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_draws_of_two_latents():
    nodes = IndependentNodes(np.array([[0.4, -1.0]]), np.array([[0.6, 1e-12]]))
    drawn = pgm.Predictive(pgm.HeteroscedasticGaussian(5.0), nodes).draw(2000)[:, 0]
    law = stats.norm(0.4, np.sqrt(0.6 + 1 / (5.0 * expit(-1.0))))
    assert stats.kstest(drawn, law.cdf).pvalue > ALPHA


def test_probabilities_of_many_counts_are_those_of_each():
    # Values repeat, and one is in no support.
    predictive = pgm.Predictive(pgm.NegativeBinomial(1.5), NODES)
    counts = np.array([7.0, 0.0, 7.0, 2.5, 400.0, 31.0])
    probabilities = predictive.probabilities_of(counts)
    each = np.concatenate([predictive.probabilities_of(count) for count in counts], axis=1)
    np.testing.assert_allclose(probabilities, each, rtol=1e-9)
    np.testing.assert_allclose(probabilities, mixed(lambda f: stats.nbinom.pmf(counts, 1.5, expit(-f))), atol=2e-4)
    start = time.process_time()
    many = predictive.probabilities_of(np.tile(np.arange(400.0), 25))
    assert time.process_time() - start < 4.0
    assert many[2, :400].sum() == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_array_equal(many[:, :400], many[:, 9600:])


# Marginals of hyperparameters from weighted points: quantiles and densities against quadrature and closed forms.


LEVELS = np.array([0.025, 0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975])


def lattice(log_density, mode, axes):
    """The points of ``integrate`` (S, d) for a density of unconstrained values, and their masses."""

    def at(point, near):
        return float(log_density(*(mode + axes @ point)))

    support = grid_support(refined(at, grid(at, len(mode))))
    return mode + support.points @ axes.T, support.mass


def test_quantiles_of_three_hyperparameters_are_those_of_quadrature():
    mode, deviations = np.log([6.8, 2.1, 1.75]), np.array([0.19, 0.29, 0.27])
    points, mass = lattice(gp_regression, mode, np.diag(deviations))
    for entries, (values, shares) in zip(points.T, gp_regression_marginals(), strict=True):
        mean = shares @ np.exp(values)
        deviation = np.sqrt(shares @ (np.exp(values) - mean) ** 2)
        marginal, cdf = pgm.Marginal(np.exp(entries), mass), cdf_of(values, shares)
        np.testing.assert_allclose(marginal.mean, mean, atol=0.02 * deviation)
        np.testing.assert_allclose(marginal.deviation, deviation, rtol=0.02)
        # The lattice leaves out half a per cent at each end. Cumulated masses of its planes miss by up to 0.02.
        np.testing.assert_allclose(cdf(np.log(marginal.quantiles(LEVELS))), LEVELS, atol=0.007)
        ends = of_marginal(marginal).iloc[0, 2:].to_numpy(dtype=float)
        np.testing.assert_allclose(cdf(np.log(ends)), bounds(), atol=0.007)


# The law, its values by unconstrained ones, the logarithm of their derivative, and the bounds.
LAWS = {
    "positive": (stats.gamma(3.0), np.exp, lambda x: x, (0.0, np.inf)),
    "of an interval": (
        stats.beta(2.0, 5.0, loc=-1.0, scale=3.0),
        lambda x: 3.0 * expit(x) - 1.0,
        lambda x: -np.logaddexp(0.0, x) - np.logaddexp(0.0, -x),
        (-1.0, 2.0),
    ),
    "above a bound": (stats.gamma(3.0, loc=2.0), lambda x: 2.0 + np.exp(x), lambda x: x, (2.0, np.inf)),
    "below a bound": (stats.weibull_max(1.5, loc=2.0), lambda x: 2.0 - np.exp(-x), lambda x: -x, (-np.inf, 2.0)),
    # All values are positive, and there is no bound at 0.
    "real": (stats.norm(6.0, 1.0), lambda x: x, lambda x: 0.0, (-np.inf, np.inf)),
}


@pytest.mark.parametrize("name", LAWS)
def test_quantiles_and_densities_of_one_hyperparameter_are_those_of_the_law(name):
    law, constrain, log_slope, bounds = LAWS[name]
    start = 6.0 if name == "real" else 0.0
    points, mass = lattice(lambda x: law.logpdf(constrain(x)) + log_slope(x), np.array([start]), np.array([[0.8]]))
    marginal = pgm.Marginal(constrain(points[:, 0]), mass, bounds)
    values = law.ppf(LEVELS)
    np.testing.assert_allclose(marginal.quantiles(LEVELS), values, atol=0.04 * law.std())
    np.testing.assert_allclose(marginal.density(values), law.pdf(values), atol=0.03 / law.std())
    outside = [bound + step for bound, step in zip(bounds, (-0.1, 0.1), strict=True) if np.isfinite(bound)]
    np.testing.assert_array_equal(marginal.density(outside), 0.0)


def test_smoothing_leaves_mean_and_variance_of_a_normal():
    # Three points with the moments of a standard normal.
    marginal = pgm.Marginal(np.sqrt(3.0) * np.array([-1.0, 0.0, 1.0]), np.array([1.0, 4.0, 1.0]) / 6.0)
    at = np.linspace(-4.0, 4.0, 2001)
    density = marginal.density(at) * (at[1] - at[0])
    np.testing.assert_allclose([density.sum(), density @ at, density @ at**2], [1.0, 0.0, 1.0], atol=1e-3)


def test_quantiles_of_entries_have_their_own_bounds():
    rng = np.random.default_rng(0)
    values = np.stack([rng.beta(0.3, 0.4, 500), 5.0 * rng.beta(0.3, 0.4, 500)], axis=1)
    marginal = pgm.Marginal(values, np.full(500, 1 / 500), (0.0, np.array([1.0, 5.0])))
    quantiles = marginal.quantiles([1e-4, 1.0 - 1e-4])
    assert np.all(quantiles > 0.0)
    assert np.all(quantiles < [1.0, 5.0])
    each = pgm.Marginal(values[:, 1], np.full(500, 1 / 500), (0.0, 5.0)).quantiles([0.3])
    np.testing.assert_array_equal(marginal.quantiles([0.3])[:, 1], each)


def test_a_marginal_of_one_value_has_this_value_as_its_quantiles():
    marginal = pgm.Marginal(np.full(3, 2.5), np.full(3, 1 / 3))
    np.testing.assert_allclose(marginal.quantiles([0.1, 0.9]), 2.5)
    # Rounding of the transform may put a value on its bound.
    at_bound = pgm.Marginal(np.array([0.2, 0.4, 1.0]), np.array([0.5, 0.5, 0.0]), (0.0, 1.0))
    assert np.isfinite(at_bound.quantiles([0.1, 0.9])).all()


@pytest.mark.parametrize(
    ("prior", "constraint", "bounds"),
    [
        (dist.HalfNormal(1.0), None, (0.0, np.inf)),
        (dist.Normal(0.0, 1.0), None, (-np.inf, np.inf)),
        (dist.Uniform(-1.0, 2.0), None, (-1.0, 2.0)),
        (dist.TruncatedNormal(0.0, 1.0, high=1.5), None, (-np.inf, 1.5)),
        (dist.Uniform(-1.0, 2.0).expand([2]).to_event(1), None, (-1.0, 2.0)),
        (None, constraints.simplex, (0.0, 1.0)),
        (None, constraints.positive_ordered_vector, (0.0, np.inf)),
        (None, constraints.ordered_vector, (-np.inf, np.inf)),
    ],
)
def test_bounds_of_a_parameter_are_those_of_its_support(prior, constraint, bounds):
    parameter = pgm.Parameter(np.array([0.25, 0.75]), prior=prior, constraint=constraint)
    np.testing.assert_allclose(parameter.bounds, bounds)


def test_a_marginal_of_a_function_has_its_moments_and_the_functions_of_quantiles():
    # The square of a log-normal, as weighted points; its root is the log-normal.
    levels = (np.arange(400) + 0.5) / 400
    values, mass = stats.lognorm(0.5).ppf(levels), np.full(400, 1.0 / 400.0)
    squares = pgm.Marginal(values**2, mass, (0.0, np.inf))
    roots = squares.of(np.sqrt)
    assert roots.mean == pytest.approx(values.mean(), rel=1e-12)
    assert roots.deviation == pytest.approx(values.std(), rel=1e-12)
    np.testing.assert_allclose(roots.quantiles([0.1, 0.9]), np.sqrt(squares.quantiles([0.1, 0.9])), rtol=1e-9)


# Normal densities against scipy's; distances of draws are tested with comparisons.


def test_densities_and_quantiles():
    mean, variance = np.array([[0.3, -2.0], [5.0, 1.0]]), np.array([[4.0, 0.25], [1.0, 9.0]])
    marginals, law = NormalDensity(mean, variance), stats.norm(mean, np.sqrt(variance))
    levels = np.array([0.02, 0.5, 0.9])
    np.testing.assert_allclose(marginals.quantiles(levels), [law.ppf(level) for level in levels], rtol=1e-12)
    values = np.array([-1.0, 0.7])[:, None, None]
    np.testing.assert_allclose(marginals.pdf(values), law.pdf(values), rtol=1e-12)
    np.testing.assert_allclose(marginals[1].quantiles(0.9)[0], law.ppf(0.9)[1], rtol=1e-12)
    assert not marginals.skewness.any()


def test_variances_that_are_not_positive_have_no_density():
    marginals = NormalDensity(np.zeros(2), np.array([-1.0, 1.0]))
    np.testing.assert_array_equal(np.isnan(marginals.quantiles([0.5])), [[True, False]])
    with pytest.raises(ValueError, match="levels must be numbers between 0 and 1"):
        marginals.quantiles([-1.96, 1.96])


# Densities on grids: moments, quantiles and maps against closed forms, with skewed, kinked and degenerate ones.


GRID_LAWS = {
    "normal": (stats.norm(-3.0, 0.4), -3.0, 0.4),
    "log-gamma": (stats.loggamma(1.0, loc=2.0), -8.0, 2.0),
    "far from the grid's centre": (stats.norm(0.0, 1.0), 1.5, 1.1),
    "Laplace": (stats.laplace(1.0, 0.5), 1.0, 1.6),
}


def density(law, location, scale):
    log_density = law.logpdf(location + scale * GRID) + 2.5
    return GridDensity(np.array([location]), np.array([scale]), log_density[None])


@pytest.mark.parametrize("name", GRID_LAWS)
def test_moments_and_quantiles_are_those_of_the_law(name):
    law, location, scale = GRID_LAWS[name]
    marginal = density(law, location, scale)
    mean, variance, skewness = (float(part) for part in law.stats("mvs"))
    assert marginal.mean[0] == pytest.approx(mean, abs=2e-3)
    assert marginal.variance[0] == pytest.approx(variance, rel=5e-3)
    assert marginal.skewness[0] == pytest.approx(skewness, abs=0.02)
    assert marginal.log_masses[0] == pytest.approx(2.5, abs=6e-3)
    levels = np.array([1e-4, 0.01, 0.3, 0.5, 0.95, 0.999])
    np.testing.assert_allclose(marginal.quantiles(levels)[:, 0], law.ppf(levels), atol=0.02 * np.sqrt(variance))
    at = law.ppf(np.array([0.02, 0.4, 0.9]))
    np.testing.assert_allclose(marginal.pdf(at[:, None])[:, 0], law.pdf(at), rtol=0.02)


def test_one_density_of_several():
    law, location, scale = GRID_LAWS["log-gamma"]
    several, levels = density(law, location, scale), [0.05, 0.9]
    one = several[0]
    assert one.shape == ()
    np.testing.assert_array_equal(one.quantiles(levels), several.quantiles(levels)[:, 0])
    np.testing.assert_array_equal(one.pdf(np.array([1.0, 2.0])), several.pdf(np.array([[1.0], [2.0]]))[:, 0])
    assert (one.mean, one.variance, one.skewness) == (several.mean[0], several.variance[0], several.skewness[0])


def test_draws_are_of_the_law():
    law, location, scale = GRID_LAWS["log-gamma"]
    marginal = density(law, location, scale)
    draws = marginal.transport(np.random.default_rng(0).standard_normal((4000, 1)))[:, 0]
    assert stats.kstest(draws, law.cdf).pvalue > 1e-3


def test_maps_increase_far_beyond_the_grid():
    marginal = density(*GRID_LAWS["log-gamma"])
    scores = np.linspace(-40.0, 40.0, 400)[:, None]
    assert np.all(np.diff(marginal.transport(scores)[:, 0]) > 0.0)


def test_distances_are_those_of_draws():
    law, location, scale = GRID_LAWS["log-gamma"]
    marginal = density(law, location, scale)
    draws = np.sort(law.rvs(500, random_state=1))
    many = law.ppf((np.arange(200_000) + 0.5) / 200_000)
    expected = stats.wasserstein_distance(draws, many)
    assert marginal.wasserstein(draws[:, None])[0] == pytest.approx(expected, abs=0.01)
    assert marginal[:1].wasserstein(draws[:, None] + 30.0)[0] == pytest.approx(
        30.0 + draws.mean() - law.mean(), rel=1e-3
    )


def test_several_densities_and_a_point_mass():
    location, scale = np.array([[0.0, 2.0], [1.0, -1.0]]), np.array([[1.0, 0.5], [0.0, 2.0]])
    marginal = GridDensity(location, scale, np.broadcast_to(-0.5 * GRID**2, (2, 2, len(GRID))))
    np.testing.assert_allclose(marginal.mean, location, atol=1e-12)
    np.testing.assert_allclose(marginal.variance, scale**2, rtol=1e-6)
    z = np.random.default_rng(1).standard_normal((7, 2, 2))
    np.testing.assert_allclose(marginal.transport(z), location + scale * z, atol=3e-3)
    np.testing.assert_allclose(marginal.transport(z[:, :1], [1]), (location + scale * z[:, :1])[:, 1:], atol=3e-3)


def test_the_interpolation_is_exact_for_cubics():
    cubic = np.polynomial.Polynomial([0.3, -1.0, 0.5, 0.1])
    nodes, matrix = interpolation(17)
    np.testing.assert_allclose(matrix @ cubic(nodes), cubic(GRID), atol=1e-9)
    np.testing.assert_allclose(nodes, GRID[::12], atol=1e-12)


# Summaries of results against ArviZ and SciPy.


X = np.linspace(-1.5, 1.5, 14)[:, None]
Y = (np.sin(2.0 * X[:, 0]) > 0.2).astype(float)
MODEL = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(dist.LogNormal(0.3, 0.5), 0.8), mean=pgm.Fixed(0.2)))


def test_draws_are_summarised_as_arviz_does():
    draws = pgm.gibbs(MODEL, X, Y, num_samples=60, num_warmup=10, num_chains=2, seed=0)
    table = draws.summary(latents=True)
    expected = az.summary(draws.to_arviz(), round_to="none", ci_kind="eti").loc[["variance", *table.index[2:]]]
    # The lengthscale, a number, keeps its value.
    assert list(table.index) == ["variance", "lengthscale", *(f"f[{row}, 0]" for row in range(14))]
    assert table.loc["lengthscale", "mean"] == 0.8
    assert table.loc["lengthscale"].isna().sum() == len(table.columns) - 1
    rows = table.drop(index="lengthscale")
    assert list(rows.columns) == list(expected.columns[: len(rows.columns)])
    # The deviation is of all draws, with one degree of freedom less in ArviZ.
    np.testing.assert_allclose(rows["sd"], expected["sd"], rtol=1e-2)
    columns = [name for name in rows.columns if name != "sd"]
    np.testing.assert_allclose(rows[columns], expected[columns], rtol=1e-9)


def test_approximations_have_the_quantiles_of_their_marginals():
    vi = pgm.gaussian_vi(MODEL, X, Y)
    with rc_context({"stats.ci_prob": 0.8}):
        table = vi.summary(latents=True)
    assert list(table.columns) == ["mean", "sd", "eti80_lb", "eti80_ub"]
    assert table.loc["variance"].isna().sum() == 3
    latent = table.loc["f[3, 0]"]
    normal = stats.norm(vi.mean[3, 0], np.sqrt(vi.variance[3, 0]))
    np.testing.assert_allclose(latent, [normal.mean(), normal.std(), normal.ppf(0.1), normal.ppf(0.9)], rtol=1e-9)
    assert list(vi.summary().index) == ["variance", "lengthscale"]


@pytest.mark.slow
def test_learned_integrated_and_streamed_results():
    learned = pgm.fit(MODEL, X, Y, seed=0)
    table = learned.summary()
    assert list(table.index) == list(learned.fit.values)
    # Medians of lognormal variables.
    values = np.array([float(value) for value in learned.fit.values.values()])
    np.testing.assert_allclose(np.sqrt(table.iloc[:, 2] * table.iloc[:, 3]), values, rtol=5e-3)
    spread = np.log(table.iloc[:, 3] / table.iloc[:, 2]) / (2.0 * stats.norm.ppf(0.945))
    np.testing.assert_allclose(table["mean"], values * np.exp(0.5 * spread**2), rtol=2e-2)
    mixed = pgm.integrate(MODEL, X, Y)
    table, marginal = mixed.summary(latents=True), mixed.hyperparameters["variance"]
    values, mass = marginal.values, marginal.mass
    np.testing.assert_allclose(table.loc["variance", "mean"], values @ mass)
    np.testing.assert_allclose(table.loc["variance", "sd"], np.sqrt(values**2 @ mass - (values @ mass) ** 2))
    # 0.055 of the mass is below the end.
    assert abs(mass[values < table.loc["variance"].iloc[2]].sum() - 0.055) < mass.max()
    low, high = mixed.quantiles([0.055, 0.945])[:, 5, 0]
    np.testing.assert_allclose(table.loc["f[5, 0]"].iloc[2:], [low, high], atol=0.02)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 0.8), form=pgm.Inducing(5)))
    with pytest.warns(pgm.ConvergenceWarning):
        streamed = pgm.svi(model, pgm.ArrayRows(X, Y), batch_size=7, max_epochs=1)
    assert list(streamed.summary().index) == ["variance", "lengthscale"]
    with pytest.raises(ValueError, match="latents=True needs the data"):
        streamed.summary(latents=True)


def test_entries_of_arrays_and_stored_rows():
    model = pgm.Model(pgm.Gaussian(0.5), pgm.GP(pgm.On(pgm.Coregion(2, 1), [1]), mean=pgm.Fixed(0.0)))
    data = np.column_stack([X[:, 0], np.arange(14) % 2])
    table = pgm.cavi(model, data, X[:, 0]).summary()
    assert any("[0, 0]" in name for name in table.index), table.index
    draws = pgm.gibbs(MODEL.fixed(), X, Y, num_samples=5, num_warmup=2, num_chains=1, seed=0, keep=[2, 7])
    rows = draws.summary(latents=True)
    assert [name for name in rows.index if name.startswith("f[")] == ["f[2, 0]", "f[7, 0]"]
    np.testing.assert_allclose(rows.loc["f[7, 0]", "mean"], draws.latents[0, :, 1, 0].mean())
    assert "r_hat" not in rows
