"""Likelihoods by name beyond the first ones: densities, moments and draws against SciPy, and far latents by mpmath."""

import inspect
import re
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from mpmath import mp
from scipy import stats
from scipy.integrate import quad
from scipy.special import expit, log_softmax, ndtr

import pgmodels as pgm
from pgmodels.augmentation.derive import derive_formula
from pgmodels.augmentation.predictors import NoAugmentationError
from pgmodels.cli import NAMED
from pgmodels.diagnostics.vsbc import simulate_calibration
from pgmodels.likelihoods import counts
from pgmodels.likelihoods import named as first
from pgmodels.likelihoods.expression import Environment
from pgmodels.likelihoods.likelihood import LikelihoodFamily, log_density
from pgmodels.likelihoods.sampling import draw_observations, is_normalised
from pgmodels.results.gaussian import MixedPredictive
from pgmodels.results.integrated import IntegratedApproximation
from pgmodels.results.predictive import DrawNodes, IndependentNodes, Predictive
from tests.covering import some
from tests.likelihoods.test_sampling import ALPHA, follows
from tests.own_likelihoods import log_logistic

R, SHAPE, SCALE, WIDE, PRECISION = 1.7, 1.6, 0.7, 2.9, 3.4
CUTS = np.array([-1.1, 0.2, 1.9])
COUNTS = np.array([0.0, 1.0, 2.0, 7.0, 30.0])
TIMES = np.array([0.2, 1.0, 3.7])
RIGHT = np.array([[time, event] for time in TIMES for event in (0.0, 1.0)])
ENTERED = np.array(
    [[0.3, 1.0, 0.1], [2.5, 0.0, 2.0], [2.5, 1.0, 0.0], [1e-3, 0.0, 0.0], [60.0, 1.0, 59.0], [60.0, 0.0, 1e-3]]
)
INTERVAL = np.array([[time, code, time + 0.6 * (code == 3)] for time in TIMES for code in range(4)])
LINE = np.array([[value, code, value + 0.6 * (code == 3)] for value in (-1.3, 0.4, 2.0) for code in range(4)])


def poisson(y, mean):
    return mp.exp(-mean) * mean**y / mp.factorial(y)


def negative_binomial(y, mean):
    ways = mp.gamma(y + mp.mpf(R)) / mp.gamma(R) / mp.factorial(y)
    return ways * (mean / (R + mean)) ** y * (R / (R + mean)) ** R


def logistic(z):
    return 1 / (1 + mp.exp(-z))


def inflated(count):
    return lambda y, f: logistic(f[1]) * (y == 0) + logistic(-f[1]) * count(int(y), mp.exp(f[0]))


def hurdle(count):
    def exact(y, f):
        mean = mp.exp(f[0])
        return logistic(f[1]) if y == 0 else logistic(-f[1]) * count(int(y), mean) / (1 - count(0, mean))

    return exact


def category(distribution):
    def exact(y, f):
        ends = [-mp.inf, *map(mp.mpf, CUTS), mp.inf]
        return distribution(ends[int(y) + 1] - f[0]) - distribution(ends[int(y)] - f[0])

    return exact


def record(above, density):
    """The density or probability of a censored record, by a survival function and a density."""

    def exact(y, f):
        value, code, *end = map(mp.mpf, y)
        if code == 1:
            return density(value, f[0])
        if code == 3:
            return above(value, f[0]) - above(end[0], f[0])
        return 1 - above(value, f[0]) if code == 2 else above(value, f[0])

    return exact


def of_list(p):
    """A law of SciPy of 0, 1, ... with the probabilities, of which a tail is left out."""
    return stats.rv_discrete(values=(np.arange(len(p)), p / p.sum()))


def with_zeros(share, p, keeps_zero):
    p = np.where(np.arange(len(p)) == 0, keeps_zero * p, p)
    p = (1 - share) * p / p.sum()
    return of_list(np.where(np.arange(len(p)) == 0, p + share, p))


def poisson_list(f):
    return stats.poisson.pmf(np.arange(80), np.exp(f))


def negative_binomial_list(f):
    return stats.nbinom.pmf(np.arange(400), R, R / (R + np.exp(f)))


def beta_of(f):
    return PRECISION * expit(f), PRECISION * expit(-f)


def trials_exact(y, f):
    successes, trials = map(int, y)
    up, down = PRECISION * logistic(f[0]), PRECISION * logistic(-f[0])
    return mp.binomial(trials, successes) * mp.beta(successes + up, trials - successes + down) / mp.beta(up, down)


class Row(NamedTuple):
    """A likelihood, latents, observations, the law of SciPy of y, and the density with as many digits as are needed."""

    likelihood: pgm.Likelihood
    f: tuple[float, ...]
    y: np.ndarray
    law: Callable[[Any, Any], Any]
    exact: Callable[[Any, Any], Any]


log_logistic_record = record(
    lambda t, f: logistic(SHAPE * (f - mp.log(t))),
    lambda t, f: SHAPE / t * logistic(SHAPE * (mp.log(t) - f)) * logistic(SHAPE * (f - mp.log(t))),
)
weibull_record = record(
    lambda t, f: mp.exp(-((t / mp.exp(f)) ** SHAPE)),
    lambda t, f: SHAPE / t * (t / mp.exp(f)) ** SHAPE * mp.exp(-((t / mp.exp(f)) ** SHAPE)),
)


def after_entry(exact):
    """The density or probability of a record, over the probability of no event until the entry, if there is one."""
    return lambda y, f: exact(y[:2], f) / (exact([y[2], 0], f) if y[2] else 1)


def fisk(f, y):
    return stats.fisk(SHAPE, scale=np.exp(f[0]))


def weibull_min(f, y):
    return stats.weibull_min(SHAPE, scale=np.exp(f[0]))


ROWS = {
    "ordinal logit": Row(
        pgm.Ordinal(4, cuts=CUTS),
        (0.8,),
        np.arange(4.0),
        lambda f, y: of_list(np.diff(stats.logistic.cdf([-np.inf, *CUTS, np.inf], f[0]))),
        category(logistic),
    ),
    "ordinal probit": Row(
        pgm.Ordinal(4, link="probit", cuts=CUTS),
        (0.8,),
        np.arange(4.0),
        lambda f, y: of_list(np.diff(stats.norm.cdf([-np.inf, *CUTS, np.inf], f[0]))),
        category(mp.ncdf),
    ),
    "poisson": Row(
        pgm.Poisson(),
        (1.3,),
        COUNTS,
        lambda f, y: stats.poisson(np.exp(f[0])),
        lambda y, f: poisson(int(y), mp.exp(f[0])),
    ),
    "negative binomial": Row(
        pgm.NegativeBinomial2(R),
        (1.3,),
        COUNTS,
        lambda f, y: stats.nbinom(R, R / (R + np.exp(f[0]))),
        lambda y, f: negative_binomial(int(y), mp.exp(f[0])),
    ),
    "zero-inflated poisson": Row(
        pgm.ZeroInflatedPoisson(),
        (1.3, -0.4),
        COUNTS,
        lambda f, y: with_zeros(expit(f[1]), poisson_list(f[0]), True),
        inflated(poisson),
    ),
    "zero-inflated negative binomial": Row(
        pgm.ZeroInflatedNegativeBinomial(R),
        (1.3, -0.4),
        COUNTS,
        lambda f, y: with_zeros(expit(f[1]), negative_binomial_list(f[0]), True),
        inflated(negative_binomial),
    ),
    "hurdle poisson": Row(
        pgm.HurdlePoisson(),
        (0.3, -0.4),
        COUNTS,
        lambda f, y: with_zeros(expit(f[1]), poisson_list(f[0]), False),
        hurdle(poisson),
    ),
    "hurdle negative binomial": Row(
        pgm.HurdleNegativeBinomial(R),
        (0.3, -0.4),
        COUNTS,
        lambda f, y: with_zeros(expit(f[1]), negative_binomial_list(f[0]), False),
        hurdle(negative_binomial),
    ),
    "beta-binomial": Row(
        pgm.BetaBinomial(PRECISION),
        (0.8,),
        np.array([[0.0, 9.0], [2.0, 9.0], [9.0, 9.0], [0.0, 0.0], [1.0, 300.0]]),
        lambda f, y: stats.betabinom(int(y[1]), *beta_of(f[0])),
        trials_exact,
    ),
    "gamma": Row(
        pgm.Gamma(SHAPE),
        (0.8,),
        TIMES,
        lambda f, y: stats.gamma(SHAPE, scale=np.exp(f[0]) / SHAPE),
        lambda y, f: (SHAPE * y / mp.exp(f[0])) ** SHAPE * mp.exp(-SHAPE * y / mp.exp(f[0])) / y / mp.gamma(SHAPE),
    ),
    "log-normal": Row(
        pgm.LogNormal(SCALE),
        (0.8,),
        TIMES,
        lambda f, y: stats.lognorm(SCALE, scale=np.exp(f[0])),
        lambda y, f: mp.npdf(mp.log(y), f[0], SCALE) / y,
    ),
    "beta": Row(
        pgm.Beta(PRECISION),
        (0.8,),
        np.array([1e-6, 0.3, 0.9, 1.0 - 1e-9]),
        lambda f, y: stats.beta(*beta_of(f[0])),
        lambda y, f: (
            mp.mpf(y) ** (PRECISION * logistic(f[0]) - 1)
            * (1 - mp.mpf(y)) ** (PRECISION * logistic(-f[0]) - 1)
            / mp.beta(PRECISION * logistic(f[0]), PRECISION * logistic(-f[0]))
        ),
    ),
    "weibull": Row(pgm.Weibull(SHAPE), (0.8,), RIGHT, weibull_min, weibull_record),
    "weibull of intervals": Row(
        pgm.Weibull(SHAPE, censoring="interval"), (0.8,), INTERVAL, weibull_min, weibull_record
    ),
    "weibull after an entry": Row(
        pgm.Weibull(SHAPE, censoring="counting"), (0.8,), ENTERED, weibull_min, after_entry(weibull_record)
    ),
    "log-logistic": Row(pgm.LogLogistic(SHAPE), (0.8,), RIGHT, fisk, log_logistic_record),
    "log-logistic after an entry": Row(
        pgm.LogLogistic(SHAPE, censoring="counting"), (0.8,), ENTERED, fisk, after_entry(log_logistic_record)
    ),
    "log-logistic of intervals": Row(
        pgm.LogLogistic(SHAPE, censoring="interval"), (0.8,), INTERVAL, fisk, log_logistic_record
    ),
    "censored gaussian": Row(
        pgm.CensoredGaussian(WIDE),
        (0.8,),
        LINE,
        lambda f, y: stats.norm(f[0], WIDE),
        record(lambda v, f: mp.ncdf((f - v) / WIDE), lambda v, f: mp.npdf(v, f, WIDE)),
    ),
    "known noise": Row(
        pgm.KnownNoise(),
        (0.8,),
        np.array([[0.3, 0.7], [-2.0, 0.2], [5.0, 3.0]]),
        lambda f, y: stats.norm(f[0], y[1]),
        lambda y, f: mp.npdf(y[0], f[0], y[1]),
    ),
}
RECORDS = (
    *("weibull", "weibull of intervals", "weibull after an entry"),
    *("log-logistic", "log-logistic of intervals", "log-logistic after an entry", "censored gaussian"),
)
AUGMENTED = (
    *("ordinal logit", "ordinal probit", "negative binomial", "zero-inflated negative binomial", "log-normal"),
    *("log-logistic", "log-logistic of intervals", "log-logistic after an entry", "censored gaussian", "known noise"),
)


def values_and_slopes(likelihood, y, f):
    """log p, and its slopes in the latents and the parameters, for latents f (n, latents)."""
    with jax.enable_x64(True):
        values = {name: jnp.asarray(value) for name, value in likelihood.values.items()}
        formula = likelihood.formula(f.shape[1])
        log_p = lambda f, values: formula.log_evaluate(Environment(jnp.asarray(y), f, values))[..., 0]  # noqa: E731
        value, pull = jax.vjp(log_p, jnp.asarray(f), values)
        slope, of_parameters = pull(jnp.ones(len(y)))
    return np.asarray(value), np.asarray(slope), of_parameters


def log_law(law, y, is_discrete, is_record, is_entered):
    first = y if np.ndim(y) == 0 else y[0]
    if not is_record:
        return law.logpmf(first) if is_discrete else law.logpdf(first)
    logs = {0: law.logsf, 1: law.logpdf, 2: law.logcdf, 3: lambda low: np.log(law.cdf(y[2]) - law.cdf(low))}
    entered = law.logsf(y[2]) if is_entered else 0.0
    return logs[int(y[1])](first) - entered


def far(f):
    """The latents, and each of them 40 lower and higher in turn."""
    return [np.array(f), *(np.where(np.arange(len(f)) == k, end, f) for k in range(len(f)) for end in (-40.0, 40.0))]


@pytest.mark.parametrize("name", ROWS)
def test_densities_are_those_of_scipy_and_finite_far_out(name):
    row = ROWS[name]
    points = far(row.f)
    value, slope, of_parameters = values_and_slopes(
        row.likelihood, np.concatenate([row.y] * len(points)), np.repeat(points, len(row.y), axis=0)
    )
    support = row.likelihood.support(len(row.f))
    assert support.check(row.y) is None
    expected = [log_law(row.law(row.f, y), y, support.is_discrete, name in RECORDS, row.y is ENTERED) for y in row.y]
    np.testing.assert_allclose(value[: len(row.y)], expected, rtol=1e-9, atol=1e-10)
    with mpmath.workdps(500):
        cases = [(y.tolist(), [mp.mpf(one) for one in f]) for f in points for y in row.y]
        exact = [float(mp.log(row.exact(y, f))) for y, f in cases]
        slopes = [[float(partial(row.exact, y, f, k)) for k in range(len(f))] for y, f in cases]
    np.testing.assert_allclose(value, exact, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(slope, slopes, rtol=1e-8, atol=1e-12)
    assert all(np.isfinite(part).all() for part in of_parameters.values())


def partial(exact, y, f, k):
    """The slope of log p in a latent."""
    step = mp.mpf(10) ** -100
    up, down = ([one + sign * step * (j == k) for j, one in enumerate(f)] for sign in (1, -1))
    return (mp.log(exact(y, up)) - mp.log(exact(y, down))) / (2 * step)


ONE_OF_A_KIND = ("ordinal logit", "hurdle negative binomial", "beta", "log-logistic of intervals", "censored gaussian")


@pytest.mark.parametrize("name", some(ROWS, *ONE_OF_A_KIND))
def test_moments_and_draws_are_those_of_scipy(name):
    row = ROWS[name]
    f, law = np.array([row.f]), row.law(row.f, row.y[1])
    covariates = row.y[1:2, 1:] if name in ("beta-binomial", "known noise") else None
    moments = row.likelihood.moments(row.y[1:2], jnp.asarray(f), len(row.f))
    if moments is not None:
        np.testing.assert_allclose(np.ravel(moments), [law.mean(), law.var()], rtol=1e-5)
    assert row.likelihood.draws_exactly(len(row.f))
    assert (moments is None) == name.startswith(("ordinal", "log-logistic"))
    drawn = draw_observations(row.likelihood, np.tile(f, (4000, 1, 1)), covariates, np.random.default_rng(5))[:, 0]
    if row.likelihood.support(len(row.f)).is_discrete:
        assert follows(drawn, law)
    else:
        assert stats.kstest(drawn, law.cdf).pvalue > ALPHA


def test_every_likelihood_is_in_the_table():
    others = {*NAMED, "Softmax", "RobustMax", "MultinomialProbit"}  # in tests/registry.py
    named = {
        name
        for module in (first, counts)
        for name, value in vars(module).items()
        if name[0].isupper() and getattr(value, "__module__", "") == module.__name__
        if isinstance(value, LikelihoodFamily) or inspect.isfunction(value)
    }
    assert named - others == {row.likelihood.name for row in ROWS.values()}
    assert named <= set(pgm.__all__)


@pytest.mark.parametrize("name", ROWS)
def test_docstrings_say_which_engines_take_it(name):
    row = ROWS[name]
    size = len(row.f)
    said = inspect.getdoc(getattr(pgm, row.likelihood.name))
    if name in AUGMENTED:
        assert derive_formula(row.likelihood.formula(size), size).rules
        assert re.search("All engines (accept|take) it", said)
    else:
        with pytest.raises(NoAugmentationError):
            derive_formula(row.likelihood.formula(size), size)
        engines = "``gaussian_vi``, ``fit``, ``svi``, ``nuts`` and ``integrate``"
        assert re.search(f"It has no augmentation[.:] {engines} (accept|take) it", said)


def model_of(row):
    return pgm.Model(row.likelihood, pgm.GP(pgm.RBF(0.5, 1.3), mean=0.3, size=len(row.f)))


@pytest.mark.parametrize("name", some(AUGMENTED))
def test_augmentations_are_verified(name):
    assert pgm.derive(model_of(ROWS[name])).verify(seed=0).figures


@pytest.mark.slow
@pytest.mark.parametrize("name", some(ROWS, *ONE_OF_A_KIND))
def test_densities_are_normalised(name):
    assert is_normalised(ROWS[name].likelihood, len(ROWS[name].f), for_all_parameters=True) is True


@pytest.mark.slow
@pytest.mark.parametrize("name", some(ROWS, "ordinal probit", "hurdle negative binomial", "weibull of intervals"))
def test_gaussian_vi_runs(name):
    row = ROWS[name]
    rng = np.random.default_rng(3)
    y = row.likelihood.support(len(row.f)).examples(rng, 12)
    X = rng.normal(size=(12, 1))
    result = pgm.gaussian_vi(model_of(row), X, y)
    assert result.converged
    # The bound is below the marginal likelihood, by importance sampling.
    evidence = pgm.log_evidence(result, num_draws=4000)
    assert result.elbo < evidence.value + 4 * evidence.standard_error
    assert evidence.value - result.elbo < 1.0


@pytest.mark.parametrize("name", some(RECORDS[:6], "weibull of intervals"))
def test_survival_is_that_of_scipy(name):
    likelihood = ROWS[name].likelihood
    mean, variance = np.array([0.7, -0.4]), np.array([0.3, 0.05])
    predictive = Predictive(likelihood, IndependentNodes(mean[:, None], variance[:, None]))
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    f = mean[:, None] + np.sqrt(variance)[:, None] * nodes
    law = ROWS[name].law([f], None)
    weights = weights / weights.sum()
    expected = np.stack([law.sf(t) @ weights for t in TIMES], axis=1)
    np.testing.assert_allclose(predictive.survival(TIMES), expected, rtol=2e-7)
    if name.startswith("weibull"):
        np.testing.assert_allclose(predictive.mean, law.mean() @ weights, rtol=1e-6)
    drawn = predictive.draw(4000, seed=1)
    np.testing.assert_allclose(np.mean(drawn > 1.0, axis=0), expected[:, 1], atol=5 * 0.5 / np.sqrt(4000))


# Softmax, multinomial probit and robust max against SciPy, sampling and integrals of other forms.


F = np.array([[0.4, -1.2, 0.9, 0.1], [3.0, 2.9, -4.0, 0.0], [-0.3, -0.2, -0.1, 0.5]])


def log_probabilities(likelihood, f=F):
    """log p(y | f) of each class (n, classes)."""
    return np.stack([log_density(likelihood, np.full(len(f), float(y)), f) for y in range(f.shape[1])], axis=1)


def test_softmax_is_a_softmax_also_of_large_latents():
    np.testing.assert_allclose(log_probabilities(pgm.Softmax(4)), log_softmax(F, axis=1), rtol=1e-13)
    np.testing.assert_allclose(log_probabilities(pgm.Softmax(4), 400 * F), log_softmax(400 * F, axis=1), rtol=1e-13)


def test_multinomial_probit_is_an_integral_over_the_largest_value():
    def density(g, f, y):
        return stats.norm.pdf(g, f[y]) * np.prod(ndtr(g - np.delete(f, y)))

    exact = [[quad(density, f[y] - 9, f[y] + 9, args=(f, y), epsabs=1e-13)[0] for y in range(4)] for f in F]
    np.testing.assert_allclose(np.exp(log_probabilities(pgm.MultinomialProbit(4))), exact, atol=1e-10)


def test_robust_max_errs_at_its_rate():
    expected = np.full(F.shape, 0.06 / 3)
    expected[np.arange(3), [2, 0, 3]] = 0.94
    np.testing.assert_allclose(np.exp(log_probabilities(pgm.RobustMax(4, 0.06))), expected, rtol=1e-13)
    # (1 - ε) [f_y is the largest] + ε / C of Galy-Fajou et al. 2019.
    epsilon = 0.08
    other = epsilon / 4 + (1 - epsilon) * np.equal(F, F.max(axis=1, keepdims=True))
    np.testing.assert_allclose(np.exp(log_probabilities(pgm.RobustMax(4, epsilon * 3 / 4))), other, rtol=1e-13)


@pytest.mark.parametrize("likelihood", [pgm.Softmax(4), pgm.MultinomialProbit(4), pgm.RobustMax(4, 0.2)], ids=repr)
def test_they_are_normalised_and_drawn_exactly(likelihood):
    assert is_normalised(likelihood, 4, for_all_parameters=True)
    assert likelihood.support(4) == pgm.Classes(4)
    drawn = draw_observations(likelihood, np.repeat(F[:1], 4000, axis=0), None, np.random.default_rng(5))
    counts = np.bincount(drawn.astype(int), minlength=4)
    assert stats.chisquare(counts, 4000 * np.exp(log_probabilities(likelihood)[0])).pvalue > ALPHA


def test_the_error_rate_is_a_parameter_between_0_and_1():
    assert repr(pgm.RobustMax(3, 0.1)) == "RobustMax(3, error=Parameter(0.1, constraint=unit_interval))"
    assert repr(pgm.Softmax(3)) == "Softmax(3)"
    likelihood = pgm.RobustMax(3, dist.Beta(1.0, 9.0))
    assert float(likelihood.parameters["error"].value) == 1e-3
    for wrong in (0.0, 1.0, -0.1):
        with pytest.raises(ValueError, match="error of RobustMax must"):
            pgm.RobustMax(3, wrong)


# Times that may be censored: what is predicted of them, by quadrature over a Gaussian latent and laws of SciPy.


SURVIVAL_SHAPE = 2.5
MEAN, VARIANCE = np.array([0.7, -0.4, 1.1]), np.array([0.3, 0.05, 0.8])
SURVIVAL_TIMES = np.array([0.2, 1.0, 3.5, 40.0])
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(120)
SURVIVAL_F, WEIGHTS = MEAN[:, None] + np.sqrt(VARIANCE)[:, None] * NODES, WEIGHTS / WEIGHTS.sum()


@pgm.likelihood(support=pgm.Censored(), num_latents=1)
def constant_hazard(y, f):  # f: the logarithm of the mean time
    return pgm.exp(-f) ** y[1] * pgm.exp(-y[0] * pgm.exp(-f))


@pgm.likelihood(support=pgm.Given(pgm.Censored(), pgm.Positive()), num_latents=1)
def paced(y, f, shape=pgm.Parameter(SURVIVAL_SHAPE, positive=True)):
    z = shape * (pgm.log(y[0]) - f - pgm.log(y[2]))
    return (shape / y[0] * pgm.sigmoid(z)) ** y[1] * pgm.sigmoid(-z)


PACE = np.array([2.0, 0.5, 3.0])
FISK = lambda pace: lambda f: stats.fisk(SURVIVAL_SHAPE, scale=np.exp(f) * pace)  # noqa: E731
CASES = {
    "log-logistic": (log_logistic(SURVIVAL_SHAPE), None, FISK(1.0)),
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
    predictive, law = gaussian(likelihood, covariates), law_at(SURVIVAL_F)
    # Two levels of quadrature agree to 1e-7 in log density.
    survival = np.stack([mixed(law.sf(t)) for t in SURVIVAL_TIMES], axis=1)
    np.testing.assert_allclose(predictive.survival(SURVIVAL_TIMES), survival, rtol=2e-7)
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
        assert stats.kstest(drawn[:, row], cdf).pvalue > ALPHA
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
        np.testing.assert_allclose(
            predictive.mean, mixed(stats.fisk(shape, scale=np.exp(SURVIVAL_F)).mean()), rtol=1e-5
        )


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
Y = np.column_stack(
    [stats.fisk.rvs(SURVIVAL_SHAPE, scale=np.exp(np.sin(X[:, 0])), random_state=3), np.arange(12) % 3 > 0]
)
MODEL = pgm.Model(
    log_logistic(pgm.Fixed(SURVIVAL_SHAPE)), pgm.GP(pgm.RBF(pgm.Fixed(1.0), pgm.Fixed(0.9)), mean=pgm.Fixed(0.3))
)


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
    law = stats.fisk(SURVIVAL_SHAPE, scale=np.exp(mean[:, None] + np.sqrt(variance)[:, None] * NODES))
    predictive = result.predict(X_NEW)
    np.testing.assert_allclose(predictive.mean, mixed(law.mean()), rtol=1e-6)
    np.testing.assert_allclose(predictive.survival(2.0)[:, 0], mixed(law.sf(2.0)), rtol=1e-6)


@pytest.mark.slow
def test_draws_predict_times():
    draws = learned("gibbs")
    law = stats.fisk(SURVIVAL_SHAPE, scale=np.exp(draws.draw_marginals(X_NEW, seed=0)[..., 0]))
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
    assert stats.kstest(z[:, 4], stats.fisk(SURVIVAL_SHAPE).cdf).pvalue > ALPHA
    with pytest.raises(ValueError, match="covariates: y of log_logistic has no covariates"):
        pgm.prior_predictive(MODEL, X, Y[:, 1])
    tree = learned("cavi").to_arviz(num_draws=100)
    z = tree.posterior_predictive.y.values[0] / np.exp(tree.posterior.f.values[0, :, :, 0])
    cut = int(np.flatnonzero(Y[:, 1] == 0)[0])
    assert stats.kstest(z[:, cut], stats.fisk(SURVIVAL_SHAPE).cdf).pvalue > ALPHA
    np.testing.assert_array_equal(tree.constant_data.covariates[:, 0], Y[:, 1])
    # Log densities are of the records as they are.
    law = stats.fisk(SURVIVAL_SHAPE, scale=np.exp(tree.posterior.f.values[0, :, cut, 0]))
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
        (lambda p: p.log_density([[1.0, 2.0]] * 3), r"y\[1\] must hold 1 for"),
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
        (log_logistic(), Y[:, ::-1], r"its columns look swapped.*the second values such as.*Use y = numpy.array"),
        (log_logistic(), Y[Y[:, 1] == 1][:, ::-1], "its columns look swapped"),
        (paced(), np.column_stack([Y[:, ::-1], np.ones(12)]), "its columns look swapped"),
        (log_logistic(), np.column_stack([Y[:, 0], 1 + Y[:, 1]]), r"y\[1\] must hold 1 for .* got 2 in row 1"),
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
    model = pgm.Model(
        log_logistic(pgm.Fixed(SURVIVAL_SHAPE)), pgm.GP(pgm.RBF(dist.LogNormal(0.0, 0.5), pgm.Fixed(0.9)))
    )
    result = pgm.integrate(model, X, Y)
    assert isinstance(result, IntegratedApproximation)
    predictive = result.predict(X_NEW)
    f = result.draw_latents(X_NEW, 20_000, seed=1)[..., 0]
    survival = stats.fisk(SURVIVAL_SHAPE, scale=np.exp(f)).sf(1.5)
    error = survival.std(axis=0) / np.sqrt(len(f))
    assert (np.abs(predictive.survival(1.5)[:, 0] - survival.mean(axis=0)) < 5 * error + 2e-3).all()
    assert result.to_arviz(num_draws=20).posterior_predictive.y.shape == (1, 20, 12)
