"""Times that may be censored: what is predicted of them, by quadrature over a Gaussian latent and laws of SciPy."""

import warnings
from functools import cache

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import pgmodels as pgm
from pgmodels.diagnostics.vsbc import simulate_calibration
from pgmodels.results.gaussian import MixedPredictive
from pgmodels.results.integrated import IntegratedApproximation
from pgmodels.results.predictive import DrawNodes, IndependentNodes, Predictive
from tests.covering import some

SHAPE = 2.5
MEAN, VARIANCE = np.array([0.7, -0.4, 1.1]), np.array([0.3, 0.05, 0.8])
TIMES = np.array([0.2, 1.0, 3.5, 40.0])
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(120)
F, WEIGHTS = MEAN[:, None] + np.sqrt(VARIANCE)[:, None] * NODES, WEIGHTS / WEIGHTS.sum()


@pgm.likelihood(support=pgm.Censored(), num_latents=1)
def log_logistic(y, f, shape=pgm.Parameter(SHAPE, positive=True)):
    z = shape * (pgm.log(y[0]) - f)
    return (shape / y[0] * pgm.sigmoid(z)) ** y[1] * pgm.sigmoid(-z)


@pgm.likelihood(support=pgm.Censored(), num_latents=1)
def constant_hazard(y, f):  # f: the logarithm of the mean time
    return pgm.exp(-f) ** y[1] * pgm.exp(-y[0] * pgm.exp(-f))


@pgm.likelihood(support=pgm.Given(pgm.Censored(), pgm.Positive()), num_latents=1)
def paced(y, f, shape=pgm.Parameter(SHAPE, positive=True)):
    z = shape * (pgm.log(y[0]) - f - pgm.log(y[2]))
    return (shape / y[0] * pgm.sigmoid(z)) ** y[1] * pgm.sigmoid(-z)


PACE = np.array([2.0, 0.5, 3.0])
FISK = lambda pace: lambda f: stats.fisk(SHAPE, scale=np.exp(f) * pace)  # noqa: E731
CASES = {
    "log-logistic": (log_logistic(), None, FISK(1.0)),
    "constant hazard": (constant_hazard(), None, lambda f: stats.expon(scale=np.exp(f))),
    "with a covariate": (paced(), PACE, FISK(PACE[:, None])),
}


def gaussian(likelihood, covariates=None):
    return Predictive(likelihood, IndependentNodes(MEAN[:, None], VARIANCE[:, None]), covariates)


def mixed(values):
    """A law's values at nodes, averaged over the latent."""
    return values @ WEIGHTS


# Far out SciPy takes the logarithm of a probability of 0.
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning:scipy")
@pytest.mark.parametrize("name", some(CASES, "constant hazard"))
def test_times_to_an_event_are_predicted(name):
    likelihood, covariates, law_at = CASES[name]
    predictive, law = gaussian(likelihood, covariates), law_at(F)
    # Two levels of quadrature agree to 1e-7 in log density.
    survival = np.stack([mixed(law.sf(t)) for t in TIMES], axis=1)
    np.testing.assert_allclose(predictive.survival(TIMES), survival, rtol=2e-7)
    np.testing.assert_array_equal(predictive.survival(0.0), np.ones((3, 1)))
    # Hermite at 120 nodes is exact for exp(2f), and the window leaves out 1e-9.
    mean, square = mixed(law.mean()), mixed(law.var() + law.mean() ** 2)
    np.testing.assert_allclose(predictive.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(predictive.variance, square - mean**2, rtol=1e-6)
    # Records of events, and of times cut short.
    y = np.column_stack([[0.4, 1.5, 6.0], [1.0, 0.0, 0.0]])
    y = y if covariates is None else np.column_stack([y, covariates])
    t = y[:, :1]
    expected = np.log(np.where(y[:, 1] == 1, mixed(law.pdf(t)), mixed(law.sf(t))))
    np.testing.assert_allclose(predictive.log_density(y), expected, rtol=2e-7)
    drawn = predictive.draw(300, seed=3)
    f = MEAN[:, None] + np.sqrt(VARIANCE)[:, None] * stats.norm.ppf((np.arange(400) + 0.5) / 400)
    for row in range(3):
        cdf = lambda t, row=row: np.array([law_at(f).cdf(one)[row].mean() for one in t])  # noqa: E731
        assert stats.kstest(drawn[:, row], cdf).pvalue > 1e-4
    below = np.stack([mixed(law.sf(q[:, None])) for q in predictive.quantiles([0.1, 0.5], num_draws=400)])
    # Five standard errors of a share of 400.
    np.testing.assert_allclose(1.0 - below, [[0.1] * 3, [0.5] * 3], atol=5 * 0.5 / np.sqrt(400))


def test_parameters_that_were_drawn_go_with_their_latents():
    f, shape = np.array([[[0.3]], [[-0.5]], [[0.9]]]), np.array([2.2, 3.0, 5.0])
    predictive = Predictive(log_logistic(), DrawNodes(f, {"shape": shape[:, None, None]}))
    laws = [stats.fisk(a, scale=np.exp(one[0, 0])) for a, one in zip(shape, f, strict=True)]
    np.testing.assert_allclose(predictive.survival([0.5, 2.0]), [np.mean([k.sf([0.5, 2.0]) for k in laws], axis=0)])
    mean = np.mean([k.mean() for k in laws])
    np.testing.assert_allclose(predictive.mean, [mean], rtol=1e-6)
    square = np.mean([k.var() + k.mean() ** 2 for k in laws])
    np.testing.assert_allclose(predictive.variance, [square - mean**2], rtol=1e-6)
    components = [Predictive(log_logistic(a), DrawNodes(one[None])) for a, one in zip(shape, f, strict=True)]
    both = MixedPredictive(np.array([0.2, 0.3, 0.5]), components)
    expected = np.array([0.2, 0.3, 0.5]) @ [k.sf([0.5, 2.0]) for k in laws]
    np.testing.assert_allclose(both.survival([0.5, 2.0]), [expected])


@pytest.mark.parametrize(("shape", "finite"), [(0.8, (False, False)), (1.0, (False, False)), (1.7, (True, False))])
def test_moments_that_there_are_not_are_infinite(shape, finite):
    predictive = gaussian(log_logistic(shape))
    assert (np.isfinite(predictive.mean) == finite[0]).all()
    assert (predictive.variance == np.inf).all()
    if finite[0]:
        np.testing.assert_allclose(predictive.mean, mixed(stats.fisk(shape, scale=np.exp(F)).mean()), rtol=1e-5)


def test_sharp_and_far_times_have_their_moments():
    # Deviations of a few thousandths, and times of 1e30: the window is where the probability is.
    mean = np.array([[70.0], [-30.0]])
    predictive = Predictive(log_logistic(400.0), IndependentNodes(mean, np.full((2, 1), 1e-6)))
    law = stats.fisk(400.0, scale=np.exp(mean[:, 0]))
    np.testing.assert_allclose(predictive.mean, law.mean() * np.exp(5e-7), rtol=1e-6)
    ratio = (law.var() + law.mean() ** 2) * np.exp(2e-6) - law.mean() ** 2 * np.exp(1e-6)
    np.testing.assert_allclose(predictive.variance, ratio, rtol=1e-4)


def test_a_declared_mean_is_taken():
    declared = pgm.likelihood(
        support=pgm.Censored(), mean=lambda y, f: pgm.exp(f), variance=lambda y, f: pgm.exp(f) ** 2
    )(constant_hazard.function)
    predictive = gaussian(declared())
    np.testing.assert_allclose(predictive.mean, np.exp(MEAN + VARIANCE / 2), rtol=1e-6)
    np.testing.assert_allclose(gaussian(constant_hazard()).mean, predictive.mean, rtol=1e-6)


RNG = np.random.default_rng(8)
X = RNG.uniform(-2.0, 2.0, (12, 1))
X_NEW = np.array([[-0.5], [0.3], [1.7]])
Y = np.column_stack([stats.fisk.rvs(SHAPE, scale=np.exp(np.sin(X[:, 0])), random_state=3), np.arange(12) % 3 > 0])
MODEL = pgm.Model(log_logistic(pgm.Fixed(SHAPE)), pgm.GP(pgm.RBF(pgm.Fixed(1.0), pgm.Fixed(0.9)), mean=pgm.Fixed(0.3)))


@cache
def learned(engine):
    few = {"num_samples": 6, "num_warmup": 0, "num_chains": 1}
    with warnings.catch_warnings():
        # Few steps and few draws.
        warnings.simplefilter("ignore")
        return {
            "cavi": lambda: pgm.cavi(MODEL, X, Y),
            "gaussian_vi": lambda: pgm.gaussian_vi(MODEL, X, Y),
            "correct": lambda: pgm.correct(learned("cavi")),
            "gibbs": lambda: pgm.gibbs(MODEL, X, Y, **few),
            "weighted": lambda: pgm.cavi(MODEL, X, Y, weights=np.full(12, 1.5)),
        }[engine]()


@pytest.mark.parametrize("engine", ["cavi", "gaussian_vi", "correct", "weighted"])
def test_results_predict_times_of_their_own_latents(engine):
    result = learned(engine)
    mean, variance = (part[:, 0] for part in result.predict_latent(X_NEW))
    law = stats.fisk(SHAPE, scale=np.exp(mean[:, None] + np.sqrt(variance)[:, None] * NODES))
    predictive = result.predict(X_NEW)
    np.testing.assert_allclose(predictive.mean, mixed(law.mean()), rtol=1e-6)
    np.testing.assert_allclose(predictive.survival(2.0)[:, 0], mixed(law.sf(2.0)), rtol=1e-6)


@pytest.mark.slow
def test_draws_predict_times():
    draws = learned("gibbs")
    law = stats.fisk(SHAPE, scale=np.exp(draws.draw_marginals(X_NEW, seed=0)[..., 0]))
    predictive = draws.predict(X_NEW)
    np.testing.assert_allclose(predictive.mean, law.mean().mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(predictive.survival([1.0])[:, 0], law.sf(1.0).mean(axis=0), rtol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        comparison = pgm.compare(gibbs=draws, cavi=learned("cavi"), X=X, y=Y)
    expected = -learned("cavi").predict(X).log_density(Y).mean()
    assert comparison.to_dataframe().loc["cavi", "negative_log_density"] == expected


@pytest.mark.slow
def test_times_before_data_and_of_posteriors_are_not_cut_short():
    drawn = pgm.prior_predictive(MODEL, X, num_draws=100, seed=2)
    assert drawn.covariates is None
    z = drawn.observations / np.exp(drawn.latents[..., 0])
    assert stats.kstest(z[:, 4], stats.fisk(SHAPE).cdf).pvalue > 1e-4
    with pytest.raises(ValueError, match="covariates: y of log_logistic has no covariates"):
        pgm.prior_predictive(MODEL, X, Y[:, 1])
    tree = learned("cavi").to_arviz(num_draws=100)
    z = tree.posterior_predictive.y.values[0] / np.exp(tree.posterior.f.values[0, :, :, 0])
    cut = int(np.flatnonzero(Y[:, 1] == 0)[0])
    assert stats.kstest(z[:, cut], stats.fisk(SHAPE).cdf).pvalue > 1e-4
    np.testing.assert_array_equal(tree.constant_data.covariates[:, 0], Y[:, 1])
    # Log densities are of the records as they are.
    law = stats.fisk(SHAPE, scale=np.exp(tree.posterior.f.values[0, :, cut, 0]))
    np.testing.assert_allclose(tree.log_likelihood.y[0, :, cut], law.logsf(Y[cut, 0]), rtol=1e-9)


def test_simulated_data_are_cut_short_where_the_data_are():
    support = pgm.Given(pgm.Censored(), pgm.Positive())
    y = np.array([[2.0, 0.0, 5.0], [1.0, 1.0, 6.0]])
    expected = [[[2.0, 0.0, 5.0], [7.0, 1.0, 6.0]], [[1.5, 1.0, 5.0], [0.3, 1.0, 6.0]]]
    np.testing.assert_array_equal(support.recorded(np.array([[3.0, 7.0], [1.5, 0.3]]), y), expected)
    assert simulate_calibration(learned("cavi"), 4, progress=False).num_failed == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.survival([-1.0]), "times must be one finite number >= 0"),
        (lambda p: p.survival([np.inf]), "times must be one finite number >= 0"),
        (lambda p: p.survival([[1.0]]), "times must be one finite number >= 0"),
        (lambda p: p.log_density([1.0, 2.0, 3.0]), r"y_new must have shape \(3, 2\)"),
        (lambda p: p.log_density([[1.0, 2.0]] * 3), r"y\[1\] must hold 1 where"),
        (lambda p: gaussian(pgm.Gaussian(1.0)).survival(1.0), "y of Gaussian is not declared to be a time that may be"),
        (lambda p: gaussian(paced()).survival(1.0), r"survival of y by paced depends on y\[2\].*shape \(3, 1\)"),
        (lambda p: gaussian(paced()).mean, r"the mean of y by paced depends on y\[2\]"),
    ],
)
def test_what_cannot_be_predicted_says_so(call, message):
    with pytest.raises(ValueError, match=message):
        call(gaussian(log_logistic()))


@pytest.mark.parametrize(
    ("likelihood", "y", "message"),
    [
        # New times, all rows, and events only.
        (log_logistic(), Y[:, ::-1], r"its columns look swapped.*the second other values.*Use y = numpy.array"),
        (log_logistic(), Y[Y[:, 1] == 1][:, ::-1], "its columns look swapped"),
        (paced(), np.column_stack([Y[:, ::-1], np.ones(12)]), "its columns look swapped"),
        (log_logistic(), np.column_stack([Y[:, 0], 1 + Y[:, 1]]), r"y\[1\] must hold 1 where .* got 2 in row 1"),
        (log_logistic(), np.column_stack([0 * Y[:, 0], Y[:, 1]]), r"y\[0\] must hold times > 0; got 0 in row 0"),
        (pgm.Binomial(), [[5.0, 2.0], [3.0, 3.0]], r"5 successes of 2 trials in row 0. The columns look swapped"),
        (pgm.Binomial(), [[5.0, 2.0], [1.0, 3.0]], r"The columns are \(successes, trials\), not \(successes, fail"),
    ],
)
def test_swapped_columns_are_recognised(likelihood, y, message):
    model = pgm.Model(likelihood, pgm.GP(pgm.RBF(1.0, 1.0)))
    with pytest.raises(ValueError, match=message) as caught:
        model.check(np.arange(len(y))[:, None], y)
    if "swapped" in str(caught.value):
        for value in (y, np.asarray(y).tolist(), pd.DataFrame(y)):
            space = {"numpy": np, "y": value}
            exec(str(caught.value).rpartition("Use ")[2].rstrip("."), space)
            model.check(np.arange(len(y))[:, None], space["y"])
    assert "Drop" not in str(caught.value)


@pytest.mark.slow
def test_integrated_results_predict_times():
    import numpyro.distributions as dist

    model = pgm.Model(log_logistic(pgm.Fixed(SHAPE)), pgm.GP(pgm.RBF(dist.LogNormal(0.0, 0.5), pgm.Fixed(0.9))))
    result = pgm.integrate(model, X, Y)
    assert isinstance(result, IntegratedApproximation)
    predictive = result.predict(X_NEW)
    f = result.draw_latents(X_NEW, 20_000, seed=1)[..., 0]
    survival = stats.fisk(SHAPE, scale=np.exp(f)).sf(1.5)
    error = survival.std(axis=0) / np.sqrt(len(f))
    assert (np.abs(predictive.survival(1.5)[:, 0] - survival.mean(axis=0)) < 5 * error + 2e-3).all()
    assert result.to_arviz(num_draws=20).posterior_predictive.y.shape == (1, 20, 12)
