"""Likelihoods by name beyond the first ones: densities, moments and draws against SciPy, and far latents by mpmath."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from mpmath import mp
from scipy import stats
from scipy.special import expit

import pgmodels as pgm
from pgmodels.augmentation.derive import derive_formula
from pgmodels.augmentation.predictors import NoAugmentationError
from pgmodels.likelihoods import counts
from pgmodels.likelihoods import counts as ordinal
from pgmodels.likelihoods import counts as survival
from pgmodels.likelihoods import named as bounded
from pgmodels.likelihoods import named as measurements
from pgmodels.likelihoods.expression import Environment
from pgmodels.likelihoods.likelihood import LikelihoodFamily
from pgmodels.likelihoods.sampling import draw_observations, is_normalised
from pgmodels.results.predictive import IndependentNodes, Predictive
from tests.covering import some
from tests.likelihoods.test_count_draws import ALPHA, follows

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


log_logistic = record(
    lambda t, f: logistic(SHAPE * (f - mp.log(t))),
    lambda t, f: SHAPE / t * logistic(SHAPE * (mp.log(t) - f)) * logistic(SHAPE * (f - mp.log(t))),
)
weibull = record(
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
    "weibull": Row(pgm.Weibull(SHAPE), (0.8,), RIGHT, weibull_min, weibull),
    "weibull of intervals": Row(pgm.Weibull(SHAPE, censoring="interval"), (0.8,), INTERVAL, weibull_min, weibull),
    "weibull after an entry": Row(
        pgm.Weibull(SHAPE, censoring="counting"), (0.8,), ENTERED, weibull_min, after_entry(weibull)
    ),
    "log-logistic": Row(pgm.LogLogistic(SHAPE), (0.8,), RIGHT, fisk, log_logistic),
    "log-logistic after an entry": Row(
        pgm.LogLogistic(SHAPE, censoring="counting"), (0.8,), ENTERED, fisk, after_entry(log_logistic)
    ),
    "log-logistic of intervals": Row(
        pgm.LogLogistic(SHAPE, censoring="interval"), (0.8,), INTERVAL, fisk, log_logistic
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


@pytest.mark.parametrize("name", ROWS)
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
    modules = (bounded, counts, measurements, ordinal, survival)
    named = {
        name
        for module in modules
        for name, value in vars(module).items()
        if name[0].isupper() and getattr(value, "__module__", "") == module.__name__
        if isinstance(value, LikelihoodFamily) or inspect.isfunction(value)
    }
    assert named == {row.likelihood.name for row in ROWS.values()}
    assert named <= set(pgm.__all__)


@pytest.mark.parametrize("name", ROWS)
def test_docstrings_say_which_engines_take_it(name):
    row = ROWS[name]
    size = len(row.f)
    said = inspect.getdoc(getattr(pgm, row.likelihood.name))
    if name in AUGMENTED:
        assert derive_formula(row.likelihood.formula(size), size).rules
        assert "All engines take it" in said
    else:
        with pytest.raises(NoAugmentationError):
            derive_formula(row.likelihood.formula(size), size)
        assert "It has no augmentation: ``gaussian_vi``, ``fit``, ``svi``, ``nuts`` and ``integrate`` take it" in said


def model_of(row):
    return pgm.Model(row.likelihood, pgm.GP(pgm.RBF(0.5, 1.3), mean=0.3, size=len(row.f)))


@pytest.mark.parametrize("name", some(AUGMENTED))
def test_augmentations_are_verified(name):
    assert pgm.derive(model_of(ROWS[name])).verify(seed=0).figures


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_densities_are_normalised(name):
    assert is_normalised(ROWS[name].likelihood, len(ROWS[name].f), for_all_parameters=True) is True


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
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
