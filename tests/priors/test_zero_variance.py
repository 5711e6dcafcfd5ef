"""Rows of prior variance 0: reference levels, the origin of a Linear kernel, differences of equal items."""

import gc
import tracemalloc
from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize
from scipy.special import expit, gammaln

import pgmodels as pgm
from pgmodels.data.arrays import distinct_rows
from pgmodels.inference import cavi, vi
from pgmodels.inference.bound import MarginalBound
from pgmodels.inference.cavi import CAVI
from pgmodels.inference.gibbs import warn_unmixed
from pgmodels.inference.objectives import expected_objective
from pgmodels.inference.prepare import variational_problem
from pgmodels.inference.problem import neglect, problem_of
from pgmodels.interop.numpyro import Program
from pgmodels.kernels.kernel import median_distance
from pgmodels.model import Data, check_memory
from pgmodels.objectives.expected import Quadrature
from pgmodels.parameters.vector import trainable
from pgmodels.priors.base import Sites, pad_rows
from pgmodels.priors.block_posterior import condition_blocks
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.representation import Auto
from pgmodels.runtime import jit
from pgmodels.runtime.precision import as_array
from tests.own_likelihoods import log_poisson
from tests.programs import run
from tests.referees import hermite_grid, log_normal

X = np.tile([0.0, 1.0, 2.0, -1.0], 10)[:, None]
Y = np.tile([0.0, 1.0, 1.0, 0.0, 1.0], 8)
NEW = np.array([[1.0], [0.0], [2.0]])
# Nodes and weights of the whole slope: of a standard normal, for expectations, and of a line, for its posterior.
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
LINE = np.linspace(-6.0, 6.0, 4001)


def bernoulli(**options):
    return pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Linear(1.0), **options))


@cache
def fitted():
    return pgm.gaussian_vi(bernoulli(), X, Y)


def of_slope(log_density, x=X[:, 0]):
    """What is exact for f = x a, a ~ N(0, 1), the variational mean and variance of a, and log p(y) and its moments.

    ``log_density`` gives that of the data at f (points, n), (points,).
    """

    def loss(p):
        a = p[0] + np.exp(p[1]) * NODES
        return (
            0.5 * (np.exp(2.0 * p[1]) + p[0] ** 2 - 1.0) - p[1] - WEIGHTS @ log_density(a[:, None] * x) / WEIGHTS.sum()
        )

    best = minimize(loss, [0.1, -1.0], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-11}).x
    terms = log_density(LINE[:, None] * x) + stats.norm.logpdf(LINE)
    mass = np.exp(terms - terms.max())
    log_evidence = terms.max() + np.log(mass.sum() * (LINE[1] - LINE[0]))
    mass /= mass.sum()
    mean = mass @ LINE
    return best[0], np.exp(2.0 * best[1]), log_evidence, mean, mass @ (LINE - mean) ** 2


def log_bernoulli(f):
    return np.sum(np.log(expit((2.0 * Y - 1.0) * f)), axis=1)


def test_the_variational_gaussian_is_at_its_optimum():
    """At sqrt(v) = 0 every step was NaN, and the start, CAVI's, was taken for the optimum."""
    result = fitted()
    m, v, log_evidence, exact_mean, exact_variance = of_slope(log_bernoulli)
    np.testing.assert_allclose([m, v], [0.130861, 0.065874], atol=1e-6)
    mean, variance = (part[:, 0] for part in result.predict_latent(NEW))
    np.testing.assert_allclose(mean, m * NEW[:, 0], atol=2e-6)
    np.testing.assert_allclose(variance, v * NEW[:, 0] ** 2, atol=2e-6)
    assert result.converged
    assert result.elbo < log_evidence < result.elbo + 0.001
    assert abs(pgm.log_evidence(result, num_draws=64_000).value - log_evidence) < 0.001
    assert abs(m - exact_mean) < 0.001
    assert variance[0] < exact_variance


def test_corrected_it_predicts_every_row():
    """A variance of exactly 0 is what the prior says there, and no failure of the correction."""
    exact = of_slope(log_bernoulli)[4]
    by_response = pgm.correct(fitted())
    _, variance = by_response.predict_latent(NEW)
    predicted = by_response.predict(NEW).mean
    assert by_response.num_nonpositive == 0
    np.testing.assert_allclose(variance[:, 0], exact * NEW[:, 0] ** 2, rtol=2e-3)
    slopes = exact**0.5 * NODES + fitted().predict_latent(NEW)[0][0, 0]
    np.testing.assert_allclose(predicted, WEIGHTS @ expit(slopes[:, None] * NEW[:, 0]) / WEIGHTS.sum(), atol=1e-4)


def test_negative_variances_are_still_none():
    fixed = pgm.correct(fitted())
    bad = replace(fixed, response=-2.0 * np.eye(len(fixed.response)))
    with pytest.warns(pgm.CorrectionWarning, match="2 of 3 corrected variances at X_new are not positive"):
        bad.predict_latent(NEW)
    with (
        pytest.warns(pgm.CorrectionWarning, match="not positive"),
        pytest.raises(ValueError, match=r"in row 0 of X_new \(2 such rows\)"),
    ):
        bad.predict(NEW)


@pytest.mark.parametrize("size", [1, 2])
def test_without_variance_the_objective_is_the_log_density(size):
    """Where none of a datum's predictors varies, by variances and by covariances; derivatives are finite."""
    softmax = pgm.likelihood(lambda y, f: pgm.exp(f[y]) / pgm.sum(pgm.exp(f)) if size > 1 else pgm.exp(-abs(y - f)))
    objective = Quadrature(softmax().formula(size), size)
    if size == 1:
        objective = expected_objective(pgm.Model(softmax(), pgm.GP(pgm.RBF(1.0, 1.0))))
        assert objective.kinks
    m = np.array([[0.3, -0.2, 0.9, 0.4], [0.0, 0.5, 0.1, 2.0], [0.2, 0.1, 0.0, 0.7]])[:, :size]
    y = np.array([0.0, 0.0, 1.0])
    v = np.array([0.0, 0.0, 0.7])[:, None] * np.ones(size)
    with jax.enable_x64(True):
        for spread in (v, v[:, :, None] * np.eye(size)) if size > 1 else (v,):
            arguments = tuple(map(jnp.asarray, (m, spread, y)))
            bound, *sites = jax.jit(partial(objective.local_bound_and_sites, parameters={}))(*arguments)
            exact = m[:2, 0] - np.log(np.exp(m[:2]).sum(axis=1)) if size > 1 else -np.abs(y - m[:, 0])[:2]
            np.testing.assert_allclose(bound[:2], exact, atol=1e-12)
            assert np.isfinite(bound[2])
            assert all(np.isfinite(part).all() for part in sites)
            assert abs(sites[1][2]).max() > 0.01


def test_a_step_that_fails_in_every_trial_is_no_convergence():
    """Its length is 0: it has converged where the sites are those that the marginals ask for, and only there."""
    result = fitted()
    data = result.model.prepare(X, Y, None)[1]
    problem = variational_problem(result.model, data, expected_objective(result.model), result.posterior.prior)
    with jax.enable_x64(True):
        state = vi.state_from(problem, result.posterior.sites)._replace(length=jnp.zeros(()))
        assert not cavi._is_stalled(problem, state)
        missed = jnp.where(state.variance > 0.0, 0.05 / jnp.sqrt(state.variance + 1e-300), 0.0)
        for change in (missed, jnp.nan):
            off = state._replace(slope=state.slope._replace(potential=state.slope.potential + change))
            assert cavi._is_stalled(problem, off)
            assert not cavi._is_stalled(problem, off._replace(length=jnp.ones(())))


@pytest.mark.slow
def test_trials_that_are_all_nan_warn(monkeypatch):
    class WithoutDerivative(Quadrature):
        def local_bound_and_sites(self, m, v, y, parameters):
            bound, *sites = super().local_bound_and_sites(m, v, y, parameters)
            return bound, *(jnp.full_like(part, jnp.nan) for part in sites)

    formula = pgm.Bernoulli().formula(1)
    with pytest.warns(pgm.ConvergenceWarning, match="no step raises the ELBO, and it is not at its optimum"):
        result = pgm.vi(bernoulli(), X[:8], Y[:8], objective=WithoutDerivative(formula, 1))
    assert not result.converged


def test_what_is_known_is_left_out_of_diagnoses():
    """Deviations of 0 were divided by: moments NaN, and no simulated data."""
    diagnosis = pgm.diagnose(fitted(), num_replicates=4, num_draws=400)
    text = str(diagnosis)
    assert "nan" not in text
    assert "left out" not in text
    vsbc = diagnosis.vsbc
    known = X[:, 0] == 0.0
    assert np.isnan(vsbc.z[:, known]).all()
    z = vsbc.z[:, ~known]
    np.testing.assert_allclose(vsbc.dispersion[0], np.sqrt(np.mean(z**2)))
    np.testing.assert_allclose(vsbc.coverage[0][1], np.mean(np.abs(z) < stats.norm.ppf(0.95)))
    np.testing.assert_allclose(vsbc.histogram()[0].sum(), 1.0)
    assert np.isfinite(vsbc.symmetry_corrected).all()


KINKED, KINKED_Y = (
    pgm.Model(pgm.Laplace(0.7), pgm.GP(pgm.Linear(1.0))),
    np.where(X[:, 0] == 0.0, 0.0, 0.4 * X[:, 0] + np.sin(np.arange(40.0))),
)


def test_a_laplace_row_that_is_known_exactly():
    """y = f there: the derived bound's precision has no bound, and neither has the mean of the auxiliary variable."""
    results = []
    for rows in (X[:, 0] < np.inf, X[:, 0] != 0.0):
        # By quadrature the right variance at 1 is .0183; CAVI's is .0052.
        with pytest.warns(pgm.CorrectionWarning, match="the variances are estimated to be 0.29 times the correct ones"):
            results.append(pgm.cavi(KINKED, X[rows], KINKED_Y[rows]))
    result, without = results
    np.testing.assert_allclose(result.predict_latent(NEW), without.predict_latent(NEW), rtol=1e-5)
    np.testing.assert_allclose(result.elbo, without.elbo - 10.0 * np.log(1.4), rtol=1e-7)


@pytest.mark.parametrize("mean", [1e-6, 0.3, 50.0, np.inf])
def test_draws_of_the_inverse_gaussian(mean):
    """Up to an infinite mean, where it is the Lévy distribution."""
    from pgmodels.augmentation.laws import inverse_gaussian

    with jax.enable_x64(True):
        drawn = inverse_gaussian(jax.random.key(1), jnp.full(4000, mean), jnp.full(4000, 2.5))
    law = stats.levy(scale=2.5) if np.isinf(mean) else stats.invgauss(mean / 2.5, scale=2.5)
    assert stats.kstest(np.asarray(drawn), law.cdf).pvalue > 0.01


@pytest.mark.slow
def test_a_comparison_leaves_what_is_known_alone():
    from pgmodels.report.verdicts import verdicts

    draws = pgm.gibbs(bernoulli(), X, Y, num_samples=1000, num_warmup=200, num_chains=4, seed=0, progress=False)
    comparison = pgm.compare(gibbs=draws, gaussian=fitted(), corrected=pgm.correct(fitted()), X=X[:8], y=Y[:8])
    frame = comparison.to_dataframe()
    assert np.isfinite(frame.loc["corrected", ["mean_error", "variance_error", "wasserstein"]].astype(float)).all()
    assert np.isfinite(frame.loc["corrected", "negative_log_density"])
    verdict = verdicts(comparison)["corrected"]
    assert verdict.level == "trust"
    assert "nan" not in str(verdict)


YC = np.tile([0.0, 2.0, 1.0, 5.0, 3.0], 8)
YR = np.sin(3.0 * np.arange(40.0)) + 0.3 * X[:, 0]
ONE = {
    "log_poisson": (log_poisson, YC, lambda f: np.sum(YC * f - np.exp(f) - gammaln(YC + 1.0), axis=1)),
    "sigmoid_poisson": (
        lambda: pgm.SigmoidPoisson(5.0),
        YC,
        lambda f: np.sum(stats.poisson.logpmf(YC, 5.0 * expit(f)), axis=1),
    ),
    "probit": (pgm.Probit, Y, lambda f: np.sum(stats.norm.logcdf((2.0 * Y - 1.0) * f), axis=1)),
    "student_t": (lambda: pgm.StudentT(4.0, 1.0), YR, lambda f: np.sum(stats.t.logpdf(YR - f, 4.0), axis=1)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE)
def test_every_likelihood_of_one_latent(name):
    likelihood, y, log_density = ONE[name]
    result = pgm.gaussian_vi(pgm.Model(likelihood(), pgm.GP(pgm.Linear(1.0))), X, y)
    m, v, log_evidence, *_ = of_slope(log_density)
    mean, variance = (part[:, 0] for part in result.predict_latent(NEW))
    np.testing.assert_allclose(mean, m * NEW[:, 0], atol=1e-5)
    np.testing.assert_allclose(variance, v * NEW[:, 0] ** 2, atol=1e-5)
    assert abs(pgm.log_evidence(result).value - log_evidence) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", ["heteroscedastic", "softmax"])
def test_several_latents_all_of_which_are_known_at_a_row(name):
    """Against BFGS over a Gaussian of the slopes."""
    labels = np.tile([0.0, 2.0, 1.0, 2.0, 1.0], 8)
    rows = np.arange(40)

    @pgm.likelihood
    def softmax(y, f):
        return pgm.exp(f[y]) / pgm.sum(pgm.exp(f))

    model, y, size, log_density = {
        "heteroscedastic": (
            pgm.HeteroscedasticGaussian(1.0), YR, 2,
            lambda f: stats.norm.logpdf(YR, f[..., 0], expit(f[..., 1]) ** -0.5),
        ),
        "softmax": (
            softmax(), labels, 3,
            lambda f: f[:, rows, labels.astype(int)] - np.log(np.exp(f).sum(axis=-1)),
        ),
    }[name]  # fmt: skip
    nodes, weights = hermite_grid(14, size)
    lower = np.tril_indices(size, -1)

    def root_of(p):
        root = np.diag(np.exp(p[size : 2 * size]))
        root[lower] = p[2 * size :]
        return root

    def loss(p):
        root = root_of(p)
        slopes = p[:size] + nodes @ root.T
        kl = 0.5 * (np.sum(root**2) + p[:size] @ p[:size] - size) - p[size : 2 * size].sum()
        return kl - weights @ log_density(slopes[:, None, :] * X[None]).sum(axis=1)

    best = minimize(loss, np.repeat([0.1, -1.0, 0.0], [size, size, len(lower[0])]), options={"gtol": 1e-6}).x
    result = pgm.gaussian_vi(pgm.Model(model, pgm.GP(pgm.Linear(1.0), size=size)), X, y)
    mean, variance = result.predict_latent(NEW)
    np.testing.assert_allclose(mean, NEW * best[:size], atol=2e-4)
    np.testing.assert_allclose(variance, NEW**2 * (root_of(best) ** 2).sum(axis=1), atol=2e-4)
    fixed = pgm.correct(result)
    assert fixed.num_nonpositive == 0
    assert np.isfinite(fixed.predict(NEW).log_density(y[:3])).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "columns"),
    [(pgm.Linear(1.0) * pgm.RBF(1.0, 1.0), 1), (pgm.Difference(pgm.RBF(2.0, 0.8), [0], [1]), 2)],
    ids=["product", "difference"],
)
def test_a_trace_of_variance_changes_nothing(kernel, columns):
    """The same with 1e-9 of a constant's variance, where nothing is 0."""
    inputs = np.random.default_rng(1).normal(size=(30, columns))
    inputs[:6, -1] = inputs[:6, 0] if columns == 2 else 0.0
    y = (np.random.default_rng(2).random(30) < 0.6).astype(float)
    moments = []
    for every in (kernel, kernel + pgm.Constant(1e-9)):
        result = pgm.correct(pgm.gaussian_vi(pgm.Model(pgm.Bernoulli(), pgm.GP(every)), inputs, y))
        moments.append(np.concatenate([result.mean, result.variance]))
    np.testing.assert_allclose(*moments, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_gibbs_and_learning():
    draws = pgm.gibbs(KINKED, X, KINKED_Y, num_samples=4000, num_warmup=200, num_chains=2, seed=0, progress=False)
    *_, mean, variance = of_slope(lambda f: -np.sum(np.abs(KINKED_Y - f), axis=1) / 0.7)
    np.testing.assert_allclose(draws.mean[1, 0], mean, atol=4.0 * np.sqrt(variance / 2000.0))
    np.testing.assert_allclose(draws.variance[1, 0], variance, rtol=0.12)
    assert (draws.variance[0], draws.mean[0]) == (0.0, 0.0)
    # Of labels of which all but one in eight follow the sign of x.
    labels = np.where(np.arange(40) % 8 == 1, X[:, 0] < 0, X[:, 0] > 0).astype(float)
    learned = pgm.fit(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Linear())), X, labels, objective="expected")
    assert learned.converged

    def elbo(log_variance):
        scale = np.exp(0.5 * log_variance)
        return of_slope(lambda f: np.sum(np.log(expit((2.0 * labels - 1.0) * scale * f)), axis=1))

    grid = np.linspace(-3.0, 4.0, 36)
    evidence = [elbo(place)[2] for place in grid]
    assert learned.elbo < max(evidence) < learned.elbo + 0.05


# Rows with equal inputs share their latents: what engines say of them is what explicit matrices of all rows say.


rng = np.random.default_rng(0)
# Six places and four levels: of 20 rows some are the same in both columns, and most in one of them.
EQUAL_X = np.column_stack([rng.choice(np.linspace(-2.0, 2.0, 6), 20), rng.integers(0, 4, 20).astype(float)])
EQUAL_Y = np.sin(2.0 * EQUAL_X[:, 0]) + 0.3 * EQUAL_X[:, 1] + 0.2 * rng.normal(size=20)
# New in one column, a copy of a row, and new in both.
ROW = next(row for row in range(20) if np.all(EQUAL_X[row] == EQUAL_X, axis=1).sum() > 1)
EQUAL_NEW = np.array([[0.3, 1.0], EQUAL_X[ROW], [1.0, 9.0]])
MEAN, NOISE = 0.2, 0.04


def covariance(A, B, variance=1.3, lengthscale=0.8, level=0.7):
    smooth = variance * np.exp(-0.5 * (A[:, None, 0] - B[None, :, 0]) ** 2 / lengthscale**2)
    return smooth + level * (A[:, None, 1] == B[None, :, 1])


def regression(new, **values):
    """Posterior mean and variance at inputs, and log p(y), with a matrix of all rows."""
    C, k = (covariance(EQUAL_X, EQUAL_X, **values) + NOISE * np.eye(20), covariance(new, EQUAL_X, **values))
    residual = EQUAL_Y - MEAN
    variance = np.diagonal(covariance(new, new, **values) - k @ np.linalg.solve(C, k.T))
    return MEAN + k @ np.linalg.solve(C, residual), variance, log_normal(residual, C)


@pgm.likelihood(support=pgm.Real())
def two_parts(y, f):
    """A Gaussian about the sum of two functions."""
    return pgm.normal_pdf(y, f[0] + f[1], 0.2)


def smooth(**form):
    return pgm.GP(pgm.On(pgm.RBF(1.3, 0.8), [0]), mean=MEAN, **form)


def levels(**form):
    return pgm.GP(pgm.On(pgm.White(0.7), [1]), **form)


def together(**form):
    return pgm.Model(pgm.Gaussian(0.2), pgm.GP(smooth().kernel + levels().kernel, mean=MEAN, **form))


def apart(**form):
    return pgm.Model(two_parts(), [smooth(**form), levels(**form)])


def test_equal_rows_are_told_apart_in_their_order():
    rows = np.array([[1.0, 0.0], [0.5, 2.0], [1.0, -0.0], [0.5, 1.0], [0.5, 2.0]])
    firsts, places = distinct_rows(rows)
    np.testing.assert_array_equal(firsts, [0, 1, 3])
    np.testing.assert_array_equal(places, [0, 1, 0, 2, 1])
    for one in (distinct_rows(rows[:, :0]), distinct_rows(rows[:1])):
        np.testing.assert_array_equal(one[0], [0])


def test_kernels_say_which_columns_they_read():
    kernel = pgm.On(pgm.RBF() * pgm.On(pgm.White(), [1]), [3, 0]) + pgm.Constant(1.0)
    assert kernel.reads(5) == (0, 3)
    assert pgm.Difference(pgm.On(pgm.RBF(), [1]), [0, 1], [3, 4]).reads(5) == (1, 4)
    assert pgm.RBF().reads(2) == (0, 1)


@pytest.mark.parametrize(
    ("model", "ranks"),
    [
        pytest.param(apart(), [8, 8], id="two latents, each at its own inputs"),
        pytest.param(together(form=pgm.Dense()), [16], id="one", marks=pytest.mark.slow),
        pytest.param(together(form=pgm.Inducing(60)), [16], id="one, inducing", marks=pytest.mark.slow),
        pytest.param(apart(form=pgm.Inducing(60)), [16, 16], id="two, inducing", marks=pytest.mark.slow),
    ],
)
def test_posteriors_are_those_of_all_rows(model, ranks):
    result = pgm.cavi(model, EQUAL_X, EQUAL_Y)
    assert [group.rank for group in result.prior.groups] == ranks
    mean, variance, log_p = regression(EQUAL_X)
    # The default jitter of the sum of both kernels, which is singular, is 1e-10 of its variance.
    np.testing.assert_allclose(result.elbo, log_p, atol=1e-7)
    np.testing.assert_allclose(result.mean.sum(axis=1), mean, atol=1e-8)
    for corrected in (pgm.correct(result), result):
        predictive = corrected.predict(EQUAL_NEW)
        np.testing.assert_allclose(predictive.mean, regression(EQUAL_NEW)[0], atol=1e-8)
        np.testing.assert_allclose(predictive.variance, regression(EQUAL_NEW)[1] + NOISE, atol=1e-8)
    np.testing.assert_allclose(pgm.correct(result).covariance.sum(axis=(1, 2)), variance, atol=1e-8)
    # Rows that are copies, and a copy that is predicted, have the same marginals.
    copy = np.flatnonzero((EQUAL_X[ROW] == EQUAL_X).all(axis=1))
    np.testing.assert_array_equal(result.mean[copy], result.mean[[ROW] * len(copy)])
    np.testing.assert_allclose(result.predict_latent(EQUAL_NEW[1:2])[0], result.mean[[ROW]], atol=1e-8)


def test_what_variances_neglected_do_to_an_elbo_is_that_of_all_copies_together():
    """Of y far out, by the derivative of the log evidence in the covariance, with explicit matrices of all rows."""
    y, added = 1e3 * (EQUAL_Y + 2.0), 1e-3
    with jax.enable_x64(True):
        problem = problem_of(apart(form=pgm.Dense()).resolve(EQUAL_X), Data(EQUAL_X, y))
        first, second = problem.prior.groups
        coarse = PriorCollection((first, replace(second, jitter=jnp.asarray(added))), problem.prior.copies)
        rows = as_array(pad_rows(y, problem.prior.num_rows))[:, None] * problem.row_weights[:, None]
        state = run(CAVI.state_of, problem, Sites(rows / NOISE, problem.row_weights[:, None] / NOISE))
        lost = neglect(replace(problem, prior=coarse), *state[:3])
    pull = np.linalg.solve(covariance(EQUAL_X, EQUAL_X) + NOISE * np.eye(20), y - MEAN)
    # The second group's variance is added, and no other's. What is taken off the precisions is next to nothing here.
    square = pull @ np.equal.outer(EQUAL_X[:, 1], EQUAL_X[:, 1]) @ pull
    np.testing.assert_allclose(lost, 0.5 * added * square, rtol=1e-4)


def test_the_bound_that_is_learned_on_is_that_of_all_rows():
    gp = pgm.GP(pgm.On(pgm.RBF(1.3, 0.8), [0]) + pgm.On(pgm.White(0.7), [1]), mean=pgm.Fixed(MEAN))
    model = pgm.Model(pgm.Gaussian(pgm.Fixed(0.2)), gp)
    with jax.enable_x64(True):
        learnable = trainable(model)
        point = MarginalBound.of(learnable, Data(EQUAL_X, EQUAL_Y)).at(learnable.start())
    np.testing.assert_allclose(-point.value, regression(EQUAL_X)[2], atol=1e-8)
    for place, (name, start) in enumerate({"variance": 1.3, "lengthscale": 0.8, "level": 0.7}.items()):
        ends = [regression(EQUAL_X, **{name: start * np.exp(step)})[2] for step in (1e-4, -1e-4)]
        np.testing.assert_allclose(-point.slope[place], (ends[0] - ends[1]) / 2e-4, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_draws_of_copies_are_one():
    draws = pgm.gibbs(apart(), EQUAL_X, EQUAL_Y, num_samples=400, num_warmup=25, num_chains=2, progress=False)
    mean, variance, _ = regression(EQUAL_X)
    total = draws.latents.sum(axis=-1)
    # Draws of a Gaussian model are nearly independent: five standard errors.
    np.testing.assert_allclose(total.mean(axis=(0, 1)), mean, atol=5 * np.sqrt(variance.max() / 400))
    np.testing.assert_allclose(total.var(axis=(0, 1)) / variance, 1.0, atol=5 * np.sqrt(2 / 400))
    copy = np.flatnonzero((EQUAL_X[ROW] == EQUAL_X).all(axis=1))
    assert len(copy) > 1
    assert np.all(draws.latents[:, :, copy] == draws.latents[:, :, [ROW]])
    np.testing.assert_allclose(draws.predict_latent(EQUAL_X)[0], draws.mean, atol=1e-6)


@pytest.mark.slow
def test_the_model_behind_inducing_inputs_shares_what_coordinates_leave():
    """By explicit matrices of all coordinates: v of each group, and e of each distinct row."""
    Z = EQUAL_X[:5]
    with jax.enable_x64(True):
        prior = apart(form=pgm.Inducing(Z)).prior(EQUAL_X).for_sampling()
        h = jnp.asarray(rng.normal(size=(20, 2)))
        root = rng.normal(size=(20, 2, 2))
        posterior = run(condition_blocks, prior, Sites(h, jnp.asarray(root @ root.transpose(0, 2, 1))), ((0, 1),))
        G = np.asarray(jax.vmap(lambda v: prior.latents(prior.unflatten(v)) - prior.means())(np.eye(sum(prior.ranks))))
        mean, V = (np.asarray(part) for part in run(posterior.marginals))
        spread = np.asarray(jax.vmap(posterior.deviation)(jnp.eye(sum(prior.ranks))))
    W = root @ root.transpose(0, 2, 1)
    P = np.eye(len(G)) + np.einsum("dil,ilk,eik->de", G, W, G)
    shifted = np.asarray(h) - np.einsum("ilk,k->il", W, [MEAN, 0.0])
    centre = np.linalg.solve(P, np.einsum("dil,il->d", G, shifted))
    np.testing.assert_allclose(mean, np.array([MEAN, 0.0]) + np.einsum("dil,d->il", G, centre), atol=1e-9)
    np.testing.assert_allclose(V, np.einsum("dil,de,eik->ilk", G, np.linalg.inv(P), G), atol=1e-9)
    np.testing.assert_allclose(spread.T @ spread, np.linalg.inv(P), atol=1e-9)


def test_a_prior_a_hundred_million_times_wider_than_the_noise_is_sampled_as_it_is():
    """Two rows at one input: what whitens them has neither jitter nor a difference between them."""
    model = pgm.Model(pgm.Gaussian(1.0), pgm.GP(pgm.RBF(1e8, 1.0), mean=0.3))
    twice, y = np.zeros((2, 1)), np.array([0.5, 0.5])
    with jax.enable_x64(True):
        prior = Program(model, Data(twice, y)).prior(model)
        assert prior.shapes == [(1, 1)]
        f = np.asarray(prior.latents([jnp.array([[0.7]])]))
        # As where hyperparameters are sampled: what is left at a copy of the data was 1.0.
        residual = model.prior(twice, traced=True).groups[0].conditional(jnp.zeros((1, 1)), jnp.zeros((8, 1)))[1]
    np.testing.assert_allclose(f, 0.3 + 0.7e4, rtol=1e-15)
    assert float(residual[0]) < 2e-4


@pytest.mark.slow
def test_engines_agree_on_two_rows_at_one_input():
    import numpyro.distributions as dist

    kernel, twice, y = pgm.RBF(1e8, 1.0), np.zeros((2, 1)), np.array([0.5, 0.5])
    fixed = pgm.Model(pgm.Gaussian(1.0), pgm.GP(kernel))
    draws = pgm.nuts(fixed, twice, y, num_samples=2000, num_warmup=500, progress=False)
    np.testing.assert_array_equal(draws.latents[:, :, 0], draws.latents[:, :, 1])
    np.testing.assert_allclose(draws.variance, 0.5, rtol=0.15)
    sampled = pgm.Model(pgm.Gaussian(1.0), pgm.GP(kernel, mean=dist.Normal(0.0, 1.0)))
    result = pgm.integrate(sampled, twice, y, progress=False)
    for at in (twice, np.zeros((1, 1))):
        np.testing.assert_allclose(result.predict_latent(at)[1], 0.5, rtol=1e-3)


@pytest.mark.slow
def test_fifty_thousand_rows_at_a_hundred_inputs():
    draws = np.random.default_rng(0)
    inputs = draws.permutation(np.repeat(np.linspace(-3.0, 3.0, 101), 500))[:, None]
    y = (draws.random(len(inputs)) < 1.0 / (1.0 + np.exp(-2.0 * np.sin(2.0 * inputs[:, 0])))).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0)))
    result = pgm.gaussian_vi(model, inputs, y)
    places, where = np.unique(inputs, return_inverse=True)
    both, ones = np.concatenate([places, places])[:, None], np.bincount(where.ravel(), y)
    weights = np.concatenate([ones, np.bincount(where.ravel()) - ones])
    weighted = pgm.gaussian_vi(model, both, np.repeat([1.0, 0.0], 101), weights=weights)
    np.testing.assert_allclose(result.elbo, weighted.elbo, atol=1e-5)
    for ours, theirs in ((result, weighted), (pgm.correct(result), pgm.correct(weighted))):
        np.testing.assert_allclose(ours.predict_latent(both)[1], theirs.predict_latent(both)[1], rtol=1e-6)
    assert pgm.fit(model, inputs, y).converged


def test_a_lengthscale_left_open_counts_distinct_rows():
    places = np.array([[0.0], [1.0], [5.0]])
    assert median_distance(np.repeat(places, [50, 40, 1], axis=0)) == 4.0


def test_more_memory_than_there_is_is_refused_before_any_work(monkeypatch):
    monkeypatch.setattr(jit, "available_memory", lambda: 24.0 * 30**2)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0)))
    many = np.linspace(0.0, 1.0, 31)[:, None]
    monkeypatch.setattr(pgm.Model, "prior", None)
    for engine in (pgm.cavi, pgm.gaussian_vi, pgm.fit, pgm.gibbs, pgm.nuts):
        with pytest.raises(MemoryError, match=r"31 distinct inputs need 0\.0 GB .* available.*Inducing\(300\).*svi"):
            engine(model, many, (many[:, 0] > 0.5).astype(float))
    check_memory(model.resolve(many), np.concatenate([many[:30], many[:30]]))


def test_a_covariance_is_made_and_factorised_in_place():
    n, kernel = 700, pgm.Matern12(1.0, 0.5)
    inputs = np.random.default_rng(1).uniform(-2.0, 2.0, (n, 2))
    with jax.enable_x64(True):
        Auto().bind(kernel, 0.0, inputs, 1)
        tracemalloc.start()
        pgm.Dense().bind(kernel, 0.0, inputs, 1)
        dense = tracemalloc.get_traced_memory()[1]
        # What the first left behind does not count.
        gc.collect()
        tracemalloc.reset_peak()
        Auto().bind(kernel, 0.0, inputs, 1)
        cheapest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    # Of NumPy's arrays, beside one of JAX's at a time; and a few strips of 128 rows.
    strips = 4 * 8 * 128 * n
    assert dense < 16 * n**2 + strips
    assert cheapest < 24 * n**2 + strips


def test_results_at_repeated_inputs_come_back_from_a_file(tmp_path):
    result = pgm.cavi(apart(), EQUAL_X, EQUAL_Y)
    again = pgm.load(result.save(tmp_path / "fit.npz"), two_parts)
    np.testing.assert_allclose(result.predict_latent(EQUAL_NEW), again.predict_latent(EQUAL_NEW), rtol=0, atol=1e-12)


def test_chains_that_differ_are_warned_of():
    means = np.array([[[0.0], [0.0]], [[0.1], [4.0]]])
    with pytest.warns(pgm.MixingWarning, match=r"gibbs: R-hat is 3\.00 \(latent 0 at row 1\)"):
        warn_unmixed("gibbs", 500, means, np.full(means.shape, 500 / 499))
    warn_unmixed("gibbs", 500, 0.1 * means, np.ones(means.shape))
    # Two draws say nothing.
    warn_unmixed("gibbs", 2, means, np.ones(means.shape))
