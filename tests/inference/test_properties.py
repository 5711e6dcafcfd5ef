"""What holds of every engine on every model: random small ones, by number (``random_models.py``)."""

import warnings

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.diagnostics import effective_sample_size

import pgmodels as pgm
from pgmodels.inference.cavi import CAVI
from pgmodels.inference.objectives import objective_of_result
from pgmodels.inference.prepare import variational_problem
from pgmodels.model import Data
from tests.programs import run
from tests.random_models import KERNELS, LOG_CONCAVE, N, exact, random_model, referee
from tests.registry import EVERY

# Standard errors within which draws and what they are of agree.
ERRORS = 5.0
# Formulas without a declared support, of whose y nothing can be drawn, and with columns that are no covariates.
UNDECLARED = ("own_softmax", "affine", "offset", "shared")
# Draws of these have no fourth moment, or one that thousands of them do not show: no error of their variances.
HEAVY = ("negative_binomial", "zero_inflated", "log_poisson", "student_t", "heteroscedastic", "additive")


def one_more_step(result):
    """The ELBO of a result's q, and that of the sites that are optimal at its marginals."""
    data, posterior = Data(result.X, result.y), result.posterior
    with jax.enable_x64(True):
        problem = variational_problem(result.model, data, objective_of_result(result), posterior.prior)
        return tuple(map(float, run(elbos, problem, posterior)))


def elbos(problem, posterior):
    if posterior.is_coupled:
        mean, covariance = posterior.marginals()
        moments, divergence = problem.of_latents(mean, covariance), posterior.divergence(covariance)
    else:
        *moments, _, divergence = problem.moments(posterior.sites)
    further = CAVI.state_of(problem, problem.sites(*moments))
    return problem.local_bound(*moments) - divergence, further.elbo


def check_bound(result, right):
    """It is at the optimum and below the log evidence, of which ``log_evidence`` says the same."""
    now, further = one_more_step(result)
    assert result.converged
    assert result.elbo == pytest.approx(now, abs=1e-7 * (1 + abs(now)))
    assert result.elbo >= further - 1e-4 * N
    with warnings.catch_warnings():
        for category in (pgm.EvidenceWarning, pgm.CorrectionWarning):
            warnings.simplefilter("ignore", category)
        evidence = pgm.log_evidence(result, num_draws=2000)
    if right is None:
        assert not evidence.is_reliable or result.elbo <= evidence.value + ERRORS * evidence.standard_error + 1e-6
        return
    assert right.effective > 200
    assert result.elbo <= right.log_evidence + ERRORS * right.error + 1e-6
    apart = ERRORS * np.hypot(evidence.standard_error, right.error) + 1e-3
    assert not evidence.is_reliable or abs(evidence.value - right.log_evidence) <= apart


def prior_variance(result, X):
    with jax.enable_x64(True):
        each = [np.repeat(gp.kernel.diagonal(X)[:, None], gp.size, axis=1) for gp in result.model.gps]
    return np.concatenate(each, axis=1)


def check_copies(drawn, result):
    """At the data and at copies of them the same is said, in whatever company they come."""
    order = np.random.default_rng(0).permutation(N)
    deviation = np.sqrt(prior_variance(result, drawn.X))
    mean, variance = result.predict_latent(np.concatenate([drawn.X_new, drawn.X[order]]))
    for predicted, at_data, unit in ((mean, result.mean, deviation), (variance, result.variance, deviation**2)):
        # Of means of 1e6, the last digits.
        digits = 1e-15 * np.abs(at_data)
        np.testing.assert_array_less(np.abs(predicted[N:] - at_data[order]), (1e-6 * unit + digits + 1e-12)[order])
    for row in range(N):
        for copy in np.flatnonzero((drawn.X[row] == drawn.X).all(axis=1)):
            np.testing.assert_allclose(result.mean[copy], result.mean[row], rtol=1e-15, atol=1e-9)


def check_variances(drawn, result):
    """Corrected variances at the learned values are above 0 and, if log-concave, not above the prior's."""
    with warnings.catch_warnings():
        if drawn.case.name not in LOG_CONCAVE:
            warnings.simplefilter("ignore", pgm.CorrectionWarning)
        corrected = pgm.correct(result)
        # The uncertainty of learned parameters comes on top of what the prior at their values bounds.
        at_values = corrected.conditional
        at_new = at_values.predict_latent(drawn.X_new)[1]
    if drawn.case.name not in LOG_CONCAVE:
        return corrected
    for variance, X in ((at_values.variance, drawn.X), (at_new, drawn.X_new)):
        prior = prior_variance(result, X)
        assert np.all(variance >= -1e-9 * prior)
        # What is held of a prior is 1e-10 of it off, and the nodes of a rule leave something too.
        assert np.all(variance <= (1 + 1e-4) * prior)
    return corrected


def check_draws(drawn, result, num_draws=4000):
    """Draws of latents and of y have the means and variances that are said."""
    f = result.draw_latents(drawn.X_new, num_draws=num_draws, seed=1)
    check_moments(f, *result.predict_latent(drawn.X_new))
    if drawn.case.name in UNDECLARED:
        return
    predictive = result.predict(drawn.X_new, drawn.covariates())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y, mean, variance = predictive.draw(num_draws, seed=2), predictive.mean, predictive.variance
    # Variances that are mostly of values too rare for the rule say so.
    assert not caught or drawn.case.name in HEAVY
    if caught:
        assert all("not resolved" in str(warning.message) for warning in caught)
    elif drawn.case.name in HEAVY:
        check_mean(y, mean, variance)
    else:
        check_moments(y, mean, variance, jump=float(predictive.support.is_discrete))


def check_mean(draws, mean, variance):
    assert np.all(np.isfinite(mean))
    assert np.all(variance >= 0)
    apart = np.abs(np.mean(draws - mean, axis=0))
    assert np.all(apart <= ERRORS * np.sqrt(variance / len(draws)) + 1e-9 + 1e-14 * np.abs(mean))


def check_moments(draws, mean, variance, jump=0.0):
    """Where values differ by a ``jump``, rare ones need not be among the draws, but are in the error."""
    check_mean(draws, mean, variance)
    squares = (draws - mean) ** 2
    # Of draws that happen to be near each other, that of a Gaussian.
    error = np.sqrt(np.maximum(np.var(squares, axis=0), np.maximum(2 * variance**2, jump**2 * variance)) / len(draws))
    assert np.all(np.abs(np.mean(squares, axis=0) - variance) <= ERRORS * error + 1e-9 * variance + 1e-12)


def check_chains(draws, mean, error):
    """Means of chains are those that are right, within their error and that of what is right."""
    f = draws.latents
    size = effective_sample_size(f)
    standard_error = np.std(f, axis=(0, 1)) / np.sqrt(np.maximum(size, 10.0))
    assert np.all(np.abs(f.mean(axis=(0, 1)) - mean) <= ERRORS * np.hypot(standard_error, error) + 1e-9)


def check_gaussian(drawn, results):
    """All engines say what explicit matrices say."""
    X_new = np.concatenate([drawn.X_new, drawn.X])
    mean, variance, log_p = exact(drawn, X_new)
    prior = prior_variance(results[0], X_new)[:, 0]
    for result in results:
        assert result.elbo == pytest.approx(log_p, abs=1e-6)
        for approximation in (result, pgm.correct(result)):
            m, v = (part[:, 0] for part in approximation.predict_latent(X_new))
            assert np.all(np.abs(m - mean) <= 1e-6 * np.sqrt(prior) + 1e-14 * abs(mean))
            assert np.all(np.abs(v - variance) <= 1e-6 * prior)


def check_integrate(drawn):
    """A mean with a normal prior is one more constant covariance."""
    ((name, *values),) = drawn.kernels
    gp = pgm.GP(KERNELS[name][0](*values), mean=dist.Normal(drawn.means[0], 1.0))
    integrated = pgm.integrate(pgm.Model(pgm.Gaussian(0.5), gp), drawn.X, drawn.y, progress=False)
    mean, variance, log_p = exact(drawn, drawn.X_new, level=1.0)
    m, v = (part[:, 0] for part in integrated.predict_latent(drawn.X_new))
    np.testing.assert_allclose(m - drawn.means[0], mean - drawn.means[0], atol=0.02 * np.sqrt(variance.max()))
    np.testing.assert_allclose(v, variance, rtol=0.02)
    assert integrated.log_evidence == pytest.approx(log_p, abs=0.02)


def cavi(drawn):
    return pgm.cavi(drawn.model(), drawn.X, drawn.y)


def gaussian_vi(drawn):
    return pgm.gaussian_vi(drawn.model(), drawn.X, drawn.y)


def svi(drawn):
    model = drawn.model(form=pgm.Inducing(np.unique(drawn.X, axis=0)))
    return pgm.svi(model, drawn.X, drawn.y, batch_size=N, tolerance=1e-3)


def fit(drawn):
    with warnings.catch_warnings():
        # Seven rows determine next to nothing.
        warnings.simplefilter("ignore", pgm.FitWarning)
        return pgm.fit(drawn.model(), drawn.X, drawn.y)


def check(seed, engine):
    drawn = random_model(seed)
    result = engine(drawn)
    check_bound(result, None if engine is fit else referee(drawn))
    check_copies(drawn, result)
    check_draws(drawn, result)
    corrected = check_variances(drawn, result)
    if corrected.is_positive:
        check_copies(drawn, corrected)


ENGINES = (cavi, gaussian_vi, svi, fit)
NUMBERS = range(5 * len(EVERY))
GAUSSIAN = NUMBERS[tuple(EVERY).index("gaussian") :: len(EVERY)]


# By default labels alone: each model compiles for seconds.
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in NUMBERS[1:])])
def test_what_holds_of_every_result(seed):
    """Each likelihood with several kernels, and with every engine that takes it."""
    engine = ENGINES[(seed + seed // len(EVERY)) % len(ENGINES)]
    check(seed, engine if random_model(seed).model().is_augmentable else gaussian_vi)


# The step has no divisor in common with the number of likelihoods: each of them once.
@pytest.mark.slow
@pytest.mark.parametrize("seed", NUMBERS[::5])
def test_gibbs_has_the_means_of_importance_sampling(seed):
    drawn = random_model(seed)
    right = referee(drawn)
    engine = pgm.gibbs if drawn.model().is_augmentable else pgm.nuts
    draws = engine(drawn.model(), drawn.X, drawn.y, num_samples=1500, num_warmup=500, num_chains=2, progress=False)
    check_chains(draws, right.mean, right.mean_error)


# By default the one whose y is at a million.
@pytest.mark.parametrize(
    "seed", [GAUSSIAN[-1], *(pytest.param(seed, marks=pytest.mark.slow) for seed in GAUSSIAN[:-1])]
)
def test_engines_agree_on_gaussian_noise(seed):
    drawn = random_model(seed)
    check_gaussian(drawn, [engine(drawn) for engine in (cavi, gaussian_vi, svi)])


@pytest.mark.slow
@pytest.mark.parametrize("seed", GAUSSIAN)
def test_samplers_and_integrate_agree_on_gaussian_noise(seed):
    drawn = random_model(seed)
    options = {"num_samples": 1000, "num_warmup": 500, "num_chains": 2, "progress": False}
    mean = exact(drawn, drawn.X)[0][:, None]
    for engine in (pgm.nuts, pgm.gibbs):
        check_chains(engine(drawn.model(), drawn.X, drawn.y, **options), mean, 0.0)
    check_integrate(drawn)
