"""The variational Gaussian: its optimum by brute force, and its linear response by differences of tilted optima."""

import warnings
from contextlib import nullcontext
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq, minimize
from scipy.special import gammaln

import pgmodels as pgm
from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.inference import cavi as module
from pgmodels.inference import linear_response, loop
from pgmodels.inference.cavi import CAVI, at_best_mean, can_ascend
from pgmodels.inference.linear_response import check_covariance
from pgmodels.inference.loop import maximise
from pgmodels.inference.objectives import objective_of
from pgmodels.inference.problem import problem_of
from pgmodels.inference.vi import variance_ratio
from pgmodels.likelihoods.expression import Environment
from pgmodels.objectives.expected import MeanField, Quadrature
from pgmodels.priors import collection
from tests.covering import some
from tests.own_likelihoods import log_poisson
from tests.programs import run
from tests.referees import hermite_grid, rbf
from tests.registry import CASES, EVERY


def problem(name, n=12):
    """A model with unequal lengthscales and nonzero means, and data of it."""
    return EVERY[name].unequal(), *EVERY[name].data(n, seed=3)


def expected_log_density(model, nodes, weights, m, V, y):
    """Σ E log p(y | f) over N(m, V) of each datum by a rule of one's own."""
    half = jnp.linalg.cholesky(V)
    f = m + jnp.einsum("ilk,sk->sil", half, nodes)
    formula = model.likelihood.formula(model.num_latents)
    return weights @ formula.log_evaluate(Environment(y, f, model.parameters))[..., 0].sum(axis=-1)


@pytest.mark.parametrize(
    "name", some(["bernoulli", "log_poisson", "student_t", "heteroscedastic", "additive"], "log_poisson")
)
def test_it_is_the_closest_of_all_gaussians(name):
    """L-BFGS over the mean and the root of one joint Gaussian of all latents, from a start of its own."""
    model, X, y = problem(name, n=4)
    result = pgm.gaussian_vi(model, X, y, tolerance=1e-14)
    size, n = model.num_latents, len(X)
    total = size * n
    nodes, weights = hermite_grid(24, size)
    kept = weights > 1e-10
    with jax.enable_x64(True):
        nodes, weights = jnp.asarray(nodes[kept]), jnp.asarray(weights[kept] / weights[kept].sum())
        roots = [np.linalg.cholesky(rbf(X, 1.5 + 0.5 * k, 0.8 + 0.4 * k)) for k in range(size)]
        root = jax.scipy.linalg.block_diag(*map(jnp.asarray, roots))
        mean = np.repeat([0.3 - 0.2 * k for k in range(size)], n)
        lower = np.tril_indices(total, -1)

        def loss(x):
            a = x[:total]
            R = jnp.zeros((total, total)).at[lower].set(x[2 * total :]) + jnp.diag(jnp.exp(x[total : 2 * total]))
            m, S = mean + root @ a, root @ R
            V = (S @ S.T).reshape(size, n, size, n)
            rows = jnp.arange(n)
            each = V[:, rows, :, rows]
            divergence = 0.5 * (a @ a + jnp.sum(R**2) - total) - jnp.sum(x[total : 2 * total])
            expected = expected_log_density(model, nodes, weights, m.reshape(size, n).T, each, jnp.asarray(y))
            return divergence - expected, (m, V)

        step = jax.jit(jax.value_and_grad(lambda x: loss(x)[0]))
        start = np.zeros(2 * total + len(lower[0]))
        options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-16, "gtol": 1e-9}
        best = minimize(lambda x: tuple(map(np.asarray, step(x))), start, jac=True, method="L-BFGS-B", options=options)
        m, V = jax.jit(loss)(best.x)[1]
    np.testing.assert_allclose(result.elbo, -best.fun, rtol=1e-7)
    np.testing.assert_allclose(result.mean, np.asarray(m).reshape(size, n).T, atol=1e-4)
    np.testing.assert_allclose(result.variance, np.diagonal(np.asarray(V).reshape(total, total)).reshape(size, n).T,
                               atol=1e-4)  # fmt: skip


def test_counts_of_any_size_with_a_log_link():
    """Rows that know nothing of each other: log r = m + v / 2, m = mu + k (y - r), 1 / v = 1 / k + r by bisection."""
    y, k, mu = np.array([0.0, 3.0, 40.0, 500.0, 26_000.0, 2e6]), 16.0, 0.3
    X = 100.0 * np.arange(len(y))[:, None]
    result = pgm.gaussian_vi(pgm.Model(log_poisson(), pgm.GP(pgm.RBF(k, 1.0), mean=mu)), X, y)
    variance = lambda r: 1.0 / (1.0 / k + r)  # noqa: E731
    excess = lambda r, y: np.log(r) - mu - k * (y - r) - 0.5 * variance(r)  # noqa: E731
    r = np.array([brentq(excess, 1e-12, count + 10.0, args=(count,), xtol=1e-14) for count in y])
    m, v = mu + k * (y - r), variance(r)
    elbo = y * m - r - gammaln(y + 1.0) - 0.5 * ((v + (m - mu) ** 2) / k - 1.0 - np.log(v / k))
    assert result.converged
    # Half of the prior's jitter, 1e-9, times the largest precision; moments by the root of the tolerance.
    np.testing.assert_allclose(result.elbo, elbo.sum(), atol=2e-3)
    np.testing.assert_allclose(result.mean[:, 0] / np.sqrt(v), m / np.sqrt(v), atol=1e-3)
    np.testing.assert_allclose(result.variance[:, 0], v, rtol=1e-3)


@pgm.likelihood(support=pgm.Counts())
def additive_poisson(y, f):
    z = f[0] + 0.7 * f[1] - 0.2
    return pgm.exp(y * z - pgm.exp(z)) / pgm.gamma(y + 1)


@pytest.mark.slow
def test_without_an_augmentation_a_sum_of_latents_is_one_gp_with_the_sum_of_the_kernels():
    rng = np.random.default_rng(2)
    X, y = rng.uniform(-2.0, 2.0, (15, 2)), rng.poisson(2.0, 15).astype(float)
    gps = [pgm.GP(pgm.RBF(1.5, 0.8), mean=0.5), pgm.GP(pgm.RBF(2.0, 1.7), mean=-0.4)]
    result = pgm.gaussian_vi(pgm.Model(additive_poisson(), gps), X, y, tolerance=1e-14)
    summed = pgm.GP(pgm.RBF(1.5, 0.8) + pgm.RBF(0.98, 1.7), mean=0.5 - 0.7 * 0.4 - 0.2)
    twin = pgm.gaussian_vi(pgm.Model(log_poisson(), summed), X, y, tolerance=1e-14)
    np.testing.assert_allclose(result.elbo, twin.elbo, rtol=1e-7)
    new, weights = np.array([[0.3, -0.4], [1.9, 0.2]]), np.array([1.0, 0.7])
    for one, other in ((result, twin), (pgm.correct(result), pgm.correct(twin))):
        # The optimum is flat to the rounding of the bound.
        np.testing.assert_allclose(one.mean @ weights - 0.2, other.mean[:, 0], atol=1e-4)
        np.testing.assert_allclose(one.predict(new).log_density([1.0, 4.0]), other.predict(new).log_density([1.0, 4.0]),
                                   atol=1e-4)  # fmt: skip
    fixed, other = pgm.correct(result), pgm.correct(twin)
    sums = np.einsum("a,iab,b->i", weights, fixed.covariance, weights)
    np.testing.assert_allclose(sums, other.variance[:, 0], rtol=1e-4)


@cache
def corrected(name):
    model, X, y = problem(name)
    result = pgm.gaussian_vi(model, X, y)
    return X, y, result, pgm.correct(result)


@pytest.mark.filterwarnings("ignore:correct. .* corrected variances are above the prior")
@pytest.mark.parametrize("name", some(["bernoulli", "softmax", "additive"], "bernoulli"))
def test_at_the_data_predictions_are_the_corrected_moments(name):
    X, _, result, fixed = corrected(name)
    mean, variance = fixed.predict_latent(X)
    np.testing.assert_allclose(mean, fixed.mean, atol=1e-6)
    np.testing.assert_allclose(variance, fixed.variance, rtol=1e-5)
    np.testing.assert_allclose(fixed.mean, result.mean)
    assert fixed.is_positive
    assert fixed.num_nonpositive == 0
    # Far away nothing is left but the prior.
    mean, variance = fixed.predict_latent(np.full((1, 2), 60.0))
    np.testing.assert_allclose(mean[0], [gp.mean.value for gp in result.model.gps], atol=1e-9)
    np.testing.assert_allclose(variance[0], [gp.kernel.variance.value for gp in result.model.gps], rtol=1e-9)


def test_of_a_gaussian_likelihood_all_are_the_exact_posterior():
    model, X, y = problem("gaussian")
    vi, result = pgm.cavi(model, X, y), pgm.gaussian_vi(model, X, y)
    np.testing.assert_allclose(result.elbo, vi.elbo, rtol=1e-9)
    for other in (result, pgm.correct(result), pgm.correct(vi)):
        np.testing.assert_allclose(other.mean, vi.mean, atol=1e-7)
        np.testing.assert_allclose(other.variance, vi.variance, rtol=1e-6)


@pytest.mark.slow
def test_latents_of_a_datum_depend_on_each_other():
    _, y, result, fixed = corrected("softmax")
    posterior = result.posterior
    with jax.enable_x64(True):
        covariance = np.asarray(run(posterior.marginals)[1])
    assert np.abs(covariance[:, 0, 1] / np.sqrt(covariance[:, 0, 0] * covariance[:, 1, 1])).max() > 0.1
    probabilities = fixed.predict(np.zeros((2, 2))).probabilities
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-3)
    assert result.draw_at_data(5)[0].shape == (5, len(y), 3)


@pytest.mark.slow
def test_against_draws():
    """Several thousand Gibbs draws: variances within a few of their standard errors, where CAVI's are off by half."""
    case = CASES["bernoulli"]
    X, y = case.data(30, seed=5)
    model = case.model(variance=4.0, lengthscale=0.8)
    draws = pgm.gibbs(model, X, y, num_samples=2000, num_warmup=200, num_chains=4, seed=2)
    vi, result = pgm.cavi(model, X, y), pgm.gaussian_vi(model, X, y)
    error = {name: abs(r.variance - draws.variance).mean() / draws.variance.mean()
             for name, r in {"cavi": vi, "corrected": pgm.correct(vi), "gaussian": result,
                             "both": pgm.correct(result)}.items()}  # fmt: skip
    # The draws' own error of a variance is 2 to 3 %.
    assert error["both"] < 0.04
    assert error["corrected"] < 0.4 * error["cavi"]
    assert error["both"] < error["gaussian"] < error["cavi"]
    assert abs(result.mean - draws.mean).mean() < 0.03 * np.sqrt(draws.variance).mean()


@pytest.mark.slow
def test_too_many_coordinates_are_taken_by_latent_and_said(monkeypatch):
    monkeypatch.setattr(collection, "MAX_BLOCK", 20)
    model, X, y = problem("softmax")
    with pytest.warns(pgm.MeanFieldWarning, match="treats the latents of a datum as independent"):
        result = pgm.gaussian_vi(model, X, y)
    assert result.converged


@pytest.mark.slow
def test_an_ascent_that_stalls_short_of_its_optimum_has_not_converged(monkeypatch):
    monkeypatch.setattr(collection, "MAX_BLOCK", 50)
    rng = np.random.default_rng(7)
    X = np.sort(rng.uniform(-3.0, 3.0, (80, 1)), axis=0)
    y = np.sin(2.0 * X[:, 0]) + 0.3 * np.exp(X[:, 0] / 2.0) * rng.standard_t(2, 80)

    def optimum(**form):
        kernel = pgm.RBF(4.0, 0.5)
        return pgm.gaussian_vi(pgm.Model(pgm.HeteroscedasticGaussian(8.0), pgm.GP(kernel, size=2, **form)), X, y)

    with (
        pytest.warns(pgm.MeanFieldWarning),
        pytest.warns(pgm.ConvergenceWarning, match="no step raises the ELBO.*pgm.Inducing"),
    ):
        stalled = optimum()
    assert not stalled.converged
    # The remedy of the warning: few coordinates, factorised together, have precisions of any sign.
    remedied = optimum(form=pgm.Inducing(15, "variance"))
    assert remedied.converged


@pytest.mark.slow
def test_diagnostics_and_exports_take_it():
    _, _, result, fixed = corrected("bernoulli")
    diagnosis = pgm.diagnose(result, num_replicates=3, num_draws=200)
    assert "without auxiliary variables" in str(diagnosis)
    assert np.all(diagnosis.gap == 0.0)
    assert diagnosis.importance.pareto_k < 0.7
    assert "variational Gaussian" in str(result)
    assert "Linear-response correction" in str(fixed)
    assert set(result.to_arviz(num_draws=5)["posterior"].data_vars) == set(
        pgm.cavi(result.model, result.X, result.y).to_arviz(num_draws=5)["posterior"].data_vars
    )


def test_a_second_call_compiles_nothing():
    model, X, y = problem("bernoulli")
    pgm.correct(pgm.gaussian_vi(model, X, y))
    programs = (loop._run_block, linear_response._respond)
    sizes = [program.cache_size() for program in programs]
    rng = np.random.default_rng(1)
    pgm.correct(pgm.gaussian_vi(model, X + 0.1 * rng.normal(size=X.shape), 1.0 - y))
    assert [program.cache_size() for program in programs] == sizes


def test_a_tilt_that_turns_the_optimum_is_reported():
    """Bimodal posteriors: at the ridge between two modes the response has no bound."""

    def response_with(least):
        return linear_response.Response(np.zeros(4), np.zeros((4, 4)), np.diag([1.0, 0.5, least, 2.0]), np.zeros(()))

    half = np.zeros((4, 3, 2))
    half[2, 1], half[2, 2] = [0.1, -0.8], [0.5, 0.5]
    padded = np.pad(half[:, [0, 2, 1]], ((0, 0), (0, 1), (0, 0)))
    with pytest.warns(pgm.CorrectionWarning, match=r"1 directions, most in row 2"):
        assert not check_covariance(response_with(-0.1), lambda: padded, 3)
    assert check_covariance(response_with(0.1), lambda: half, 3)
    with pytest.warns(pgm.CorrectionWarning, match="not positive definite: the variational optimum"):
        assert not check_covariance(response_with(0.1)._replace(residual=np.inf), lambda: half, 3)


def test_wrong_calls_are_refused():
    model, X, y = problem("bernoulli")
    with pytest.raises(ValueError, match="tolerance"):
        pgm.gaussian_vi(model, X, y, tolerance=-1.0)
    with pytest.raises(ValueError, match=r"model must be a pgm\.Model"):
        pgm.gaussian_vi(model.likelihood, X, y)
    with pytest.raises(ValueError, match=r"got the objective 'expected'"):
        pgm.correct(pgm.gaussian_vi(model, X, y), method="perturbative")


@pytest.mark.slow
def test_a_formula_without_an_augmentation_is_learned():
    rng = np.random.default_rng(3)
    X = np.sort(rng.uniform(-2.0, 2.0, 40))[:, None]
    y = rng.poisson(np.exp(1.5 + np.sin(2.0 * X[:, 0]))).astype(float)
    result = pgm.fit(pgm.Model(log_poisson(), pgm.GP(pgm.RBF(1.0, 1.0), mean=0.0)), X, y, objective="expected")
    assert result.converged
    assert "variational Gaussian at learned" in str(result)
    assert 0.8 < float(result.model.gps[0].mean.value) < 2.2
    # No neighbour is better.
    for name in ("variance", "lengthscale"):
        values = {part: float(getattr(result.model.gps[0].kernel, part).value) for part in ("variance", "lengthscale")}
        for factor in (0.9, 1.1):
            kernel = pgm.RBF(**values | {name: factor * values[name]})
            other = pgm.Model(log_poisson(), pgm.GP(kernel, mean=float(result.model.gps[0].mean.value)))
            assert pgm.gaussian_vi(other, X, y).elbo < result.elbo
    with pytest.raises(ValueError, match=r"objective must be one of 'auto', 'augmented', 'expected', .*; got 'svi'"):
        pgm.fit(result.model, X, y, objective="svi")
    with pytest.raises(pgm.NoAugmentationError, match=r"pgm\.gaussian_vi"):
        pgm.fit(result.model, X, y, objective="augmented")


def test_a_damped_step_past_the_optimum_is_not_convergence():
    # Twelve steps in the search of fit end where the ELBO is the same to 2e-8 nats, 8e-4 below the optimum.
    x = np.repeat([0.0, 1.0], 125)
    y = np.where(x == 1.0, 0, np.random.default_rng(0).random(250) < 0.4).astype(int)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Linear(variance=pgm.Fixed([100.0, 100.0])), mean=pgm.Fixed(0.0)))
    X = np.column_stack([np.ones(250), x])
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    weights = weights / weights.sum()

    def loss(point):
        mean, root = point[:2], np.array([[np.exp(point[2]), 0.0], [point[3], np.exp(point[4])]])
        total = 0.5 * (np.sum(root**2) + mean @ mean) / 100.0 - 1.0 + np.log(100.0) - point[2] - point[4]
        for row, ones, count in (([1.0, 0.0], y.sum(), 125), ([1.0, 1.0], 0, 125)):
            z = row @ mean + np.linalg.norm(row @ root) * nodes
            total += weights @ (ones * np.logaddexp(0.0, -z) + (count - ones) * np.logaddexp(0.0, z))
        return total

    best = minimize(loss, [-0.6, -10.0, -1.7, -0.2, 1.1], method="BFGS", options={"gtol": 1e-7})
    result = pgm.fit(model, X, y, correct=False)
    assert result.elbo == pytest.approx(-best.fun, abs=1e-6)
    root = np.array([[np.exp(best.x[2]), 0.0], [best.x[3], np.exp(best.x[4])]])
    np.testing.assert_allclose(result.variance[-1], np.sum(np.sum(root, axis=0) ** 2), rtol=1e-3)


# The estimate of how much too small CAVI's variances are, against exact posteriors by quadrature.


# Elsewhere the warning is ignored: tests of other things have rare events and few coordinates.

X = np.zeros((1000, 1))


def shared(likelihood, size=1):
    """All rows have the same latents, each with a prior variance of 4."""
    return pgm.Model(likelihood, pgm.GP(pgm.Constant(pgm.Fixed(4.0)), mean=pgm.Fixed(0.0), size=size))


def first(ones):
    return (np.arange(len(X)) < ones).astype(int)


def quietly(call, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pgm.CorrectionWarning)
        return call(*args, **kwargs)


def variances(logs, *values):
    """Those of functions on a grid, given the log density there."""
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    return np.array([np.sum(weights * f**2) - np.sum(weights * f) ** 2 for f in values])


def binomial(f, ones, trials):
    return ones * f - trials * np.logaddexp(0.0, f)


def of_a_level(ones):
    f = np.linspace(-20.0, 20.0, 20_001)
    return variances(binomial(f, ones, len(X)) - f**2 / 8.0, f)


# Rare ones, less rare and frequent.
@pytest.mark.filterwarnings("error:.*the variances.* are estimated to be")
@pytest.mark.parametrize(("ones", "narrow"), [(5, True), (50, True), (300, False)])
def test_a_shared_level(ones, narrow):
    # Warnings are errors where none is expected.
    with (
        pytest.warns(pgm.CorrectionWarning, match="^cavi: the variances.* are estimated to be")
        if narrow
        else nullcontext() as caught
    ):
        result = pgm.cavi(shared(pgm.Bernoulli()), X, first(ones))
    assert not narrow or len(caught) == 1
    ratio = variance_ratio(result)
    # The posterior of 5 ones is skewed, with a variance a tenth above what the curvature says.
    np.testing.assert_allclose(ratio, np.full_like(ratio, result.variance[0] / of_a_level(ones)), rtol=0.12)
    assert bool(np.all(ratio < 0.5)) is narrow


@pytest.mark.filterwarnings("error:.*the variances.* are estimated to be")
def test_a_slope_row_by_row():
    x, ones = np.linspace(-2.0, 2.0, 7), np.array([0, 1, 5, 40, 90, 118, 120])
    kernel = pgm.Linear(pgm.Fixed(25.0)) + pgm.Constant(pgm.Fixed(25.0))
    model = pgm.Model(pgm.Binomial(), pgm.GP(kernel, mean=pgm.Fixed(0.0)))
    result = quietly(pgm.cavi, model, x[:, None], np.column_stack([ones, np.full(7, 120)]))
    a, b = np.meshgrid(np.linspace(-4.0, 4.0, 401), np.linspace(0.0, 8.0, 401), indexing="ij")
    f = [a + b * place for place in x]
    logs = sum(binomial(margin, count, 120) for margin, count in zip(f, ones, strict=True)) - (a**2 + b**2) / 50.0
    ratio, exact = variance_ratio(result)[:, 0], result.variance[:, 0] / variances(logs, *f)
    assert exact.min() < 0.15 < 0.35 < exact.max()
    np.testing.assert_allclose(ratio, exact, rtol=0.03)


@pytest.mark.filterwarnings("error:.*the variances.* are estimated to be")
@pytest.mark.slow
def test_several_latents_have_at_least_the_right_ratio():
    counts = (2, 30, 68)
    result = quietly(pgm.cavi, shared(pgm.LogisticSoftmax(3), size=3), X[:100], np.repeat(np.arange(3), counts))
    g = np.linspace(-14.0, 10.0, 100)
    f = np.meshgrid(g, g, g, indexing="ij")
    each = sum(count * -np.logaddexp(0.0, -latent) - latent**2 / 8.0 for count, latent in zip(counts, f, strict=True))
    exact = result.variance[0] / variances(each - 100 * np.log(sum(1 / (1 + np.exp(-latent)) for latent in f)), *f)
    ratio = variance_ratio(result)[0]
    assert np.all((exact < ratio) & (ratio < 0.5))


@pytest.mark.filterwarnings("error:.*the variances.* are estimated to be")
@pytest.mark.slow
def test_each_engine_says_so_once_and_in_its_own_name():
    y = first(5)
    rare = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Constant(4.0), form=pgm.Inducing(X[:1])))
    for name, call in (
        ("cavi", lambda: pgm.cavi(rare.fixed(), X, y)),
        ("fit", lambda: pgm.fit(rare.fixed(), X, y, objective="augmented", correct=False)),
        ("svi", lambda: pgm.svi(rare.fixed(), X, y, batch_size=1000)),
    ):
        with pytest.warns(
            pgm.CorrectionWarning, match=rf"^{name}: .* variances are estimated to be 0\.066 times"
        ) as caught:
            call()
        assert len(caught) == 1
        assert caught[0].filename == __file__


@pytest.mark.filterwarnings("error:.*the variances.* are estimated to be")
@pytest.mark.slow
def test_nothing_is_said_where_there_is_nothing_to_correct():
    # Warnings are errors: of engines that begin at CAVI's sites, and of an exact bound.
    pgm.gibbs(shared(pgm.Bernoulli()), X, first(5), num_samples=2, num_warmup=0, num_chains=1)
    exact = pgm.cavi(shared(pgm.Gaussian(0.5)), X[:3], [0.1, 0.2, 0.4])
    np.testing.assert_array_equal(variance_ratio(exact), np.ones((3, 1)))
    pgm.fit(shared(pgm.Bernoulli()), X, first(5), objective="augmented")
    # Learned as by default, variances are right before they are corrected.
    result = pgm.fit(shared(pgm.Bernoulli()), X, first(5), correct=False)
    assert "learned on the expected log density" in " ".join(str(result).split())
    np.testing.assert_allclose(result.variance[0], of_a_level(5), rtol=0.08)
    np.testing.assert_array_equal(variance_ratio(result), np.ones((1000, 1)))


@pgm.likelihood
def two_effects(y, f):
    return pgm.sigmoid(f[0] + y[1] * f[1]) ** y[0] * pgm.sigmoid(-f[0] - y[1] * f[1]) ** (1 - y[0])


@pgm.likelihood
def counts(y, f):
    return pgm.exp(y * f - pgm.exp(f))


@pytest.mark.filterwarnings("error:.*the variances.* are estimated to be")
@pytest.mark.parametrize(
    ("likelihood", "size", "learned_on"),
    [
        (pgm.Bernoulli(), 1, Quadrature),
        (two_effects(), 2, Quadrature),
        (counts(), 1, Quadrature),
        (pgm.Gaussian(1.0), 1, Augmentation),
        (pgm.LogisticSoftmax(3), 3, MeanField),
        (pgm.Softmax(3), 3, MeanField),
        (pgm.HeteroscedasticGaussian(1.0), 2, MeanField),
    ],
    ids=["one latent", "one of two", "no augmentation", "exact bound", "three latents", "softmax", "two latents"],
)
def test_the_bound_that_is_learned_on(likelihood, size, learned_on):
    model = pgm.Model(likelihood, pgm.GP(pgm.RBF(), size=size))
    assert isinstance(objective_of(model, "auto"), learned_on)


# The best mean beside given variances: against a general optimiser, where it must not lead, and what it spares.


Z = np.random.default_rng(5).uniform(-2.0, 2.0, (6, 2))
# Of one latent and several, with sites that share a datum's, updated by turns, combined, and a bound that is not
# concave in the mean.
NAMES = ["bernoulli", "logistic_softmax", "heteroscedastic", "additive", "varying", "student_t", "sigmoid_poisson"]


def sparse(name, n=21, **data):
    """A case's model over latents of unequal kernels and means with inducing inputs, and data that three rows fill."""
    case = CASES[name]
    X, y = case.data(n, seed=3, **data)
    model, data = case.unequal(form=pgm.Inducing(Z)).prepare(X, y, None)
    return model.resolve(data.X), data


def converged(problem, tolerance=1e-12, step=CAVI.step):
    """Where sweeps end."""
    return maximise(step, problem, CAVI.init(problem), tolerance, 3000)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_mean_is_best(name):
    """Where a general optimiser ends, given the bound of the case, which knows nothing of ours; the rest stays."""
    # Near by, for there may be other optima where the bound is not concave.
    model, data = sparse(name)
    problem = problem_of(model, data)
    assert can_ascend(problem)
    assert problem.row_weights is not None
    state = CAVI.state_of(problem, CAVI.init(problem).sites)
    mean, sites = jax.jit(partial(at_best_mean, max_steps=100, tolerance=1e-12))(problem, *state[:3])
    rows = len(data.y)
    case, y = CASES[name], data.y
    G = np.stack([np.asarray(A)[:, :rows] for A in problem.prior.factors()])
    Phi, prior_mean = np.asarray(case.matrix(y)), np.asarray(problem.prior.means())
    variance = state.variance[:rows]

    def predictors(x):
        return jnp.einsum("ipl,il->ip", Phi, prior_mean + jnp.einsum("lrn,lr->nl", G, x.reshape(G.shape[:2])))

    def loss(x):
        return 0.5 * x @ x - jnp.sum(case.bound(predictors(x), variance, y))

    begun = np.linalg.lstsq(_design(G, Phi), np.ravel(mean[:rows] - predictors(0.0 * G[:, :, 0])), rcond=None)[0]
    best = minimize(jax.jit(jax.value_and_grad(loss)), begun + 0.01, jac=True, method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(mean[:rows], predictors(best.x), atol=2e-6)
    # The sites imply that mean, and the variances of before.
    natural_target = problem.moments(sites)
    np.testing.assert_allclose(natural_target[0][:rows], mean[:rows], atol=1e-6)
    np.testing.assert_allclose(natural_target[1], state.variance, rtol=1e-12)
    assert CAVI.state_of(problem, sites).elbo > state.elbo


def _design(G, Phi):
    """The linear map from all coordinates to all predictors, a row each."""
    return np.einsum("npl,lrn->nplr", Phi, G).reshape(-1, G[:, :, 0].size)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_sweeps_end_where_plain_ones_do(name, monkeypatch):
    """And the bound never falls on the way."""
    model, data = sparse(name, scale=3.0, shift=-0.7)
    problem = problem_of(model, data)
    ascent = converged(problem)
    assert ascent.converged
    assert np.diff(ascent.trace).min() > -1e-11 * abs(ascent.trace[-1])
    monkeypatch.setattr(module, "can_ascend", lambda problem: False)
    # A function of its own has programs of its own.
    plain = converged(problem, step=lambda problem, state: CAVI.step(problem, state))
    np.testing.assert_allclose(ascent.trace[-1], plain.trace[-1], rtol=1e-9)
    np.testing.assert_allclose(ascent.state.mean, plain.state.mean, atol=1e-4)
    assert len(ascent.trace) <= len(plain.trace)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.slow
def test_classes_that_are_sure():
    """Few sweeps where precisions are far above the bound's curvature; plain ones take 120."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = np.where(X[:, 0] > 1.2, 1, np.where(X[:, 1] > 1.0, 2, 0))
    kernel = pgm.RBF(variance=2000.0, lengthscale=2.0)
    latent = pgm.GP(kernel, mean=0.0, size=3, form=pgm.Inducing(X[:20]))
    model, data = pgm.Model(pgm.LogisticSoftmax(3), latent).prepare(X, y, None)
    ascent = converged(problem_of(model.resolve(data.X), data), 1e-9)
    assert ascent.converged
    assert len(ascent.trace) < 25


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("y", [[1.0], [40.0]])
def test_one_datum(y):
    """And one far out, whose bound is not concave: with itself as inducing input, what the dense prior gives."""
    gps = [pgm.GP(pgm.RBF(3.0, 1.0), mean=0.5, form=form) for form in (pgm.Inducing([[0.1]]), pgm.Dense())]
    models = [pgm.Model(pgm.StudentT(4.0, 1.0), gp) for gp in gps]
    result, dense = (pgm.cavi(model, [[0.1]], y, tolerance=1e-14) for model in models)
    assert result.converged
    np.testing.assert_allclose(result.elbo, dense.elbo, rtol=1e-10)
    # To the root of the ELBO's tolerance.
    np.testing.assert_allclose(result.mean, dense.mean, atol=1e-6)


@pytest.mark.usefixtures("double_precision")
def test_what_is_held_of_each_row_has_a_limit(monkeypatch):
    """Dense priors and curvatures beyond the limit have plain sweeps."""
    model, data = sparse("logistic_softmax")
    problem = problem_of(model, data)
    assert can_ascend(problem)
    monkeypatch.setattr(module, "HELD", problem.prior.num_rows * 9 - 1)
    assert not can_ascend(problem)
    X, y = CASES["bernoulli"].data(9, seed=0)
    model, data = CASES["bernoulli"].model().prepare(X, y, None)
    assert not can_ascend(problem_of(model, data))


@pytest.mark.usefixtures("double_precision")
@pytest.mark.slow
def test_a_start_says_nothing_of_the_mean():
    """Its moments are no sites': the first step is a sweep from them."""
    model, data = sparse("bernoulli")
    problem = problem_of(model, data)
    start = CAVI.init(problem)
    expected = CAVI.state_of(problem, problem.sites(*start[:2]))
    np.testing.assert_allclose(CAVI.step(problem, start).mean, expected.mean, rtol=1e-12)
