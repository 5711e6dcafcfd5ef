"""The variational Gaussian: its optimum by brute force, and its linear response by differences of tilted optima."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq, minimize
from scipy.special import gammaln

import pgmodels as pgm
from pgmodels.likelihoods.expression import Environment
from tests.covering import some
from tests.own_likelihoods import log_poisson
from tests.programs import run
from tests.referees import rbf
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
    line, weight = np.polynomial.hermite_e.hermegauss(24)
    nodes = np.stack(np.meshgrid(*[line] * size, indexing="ij"), axis=-1).reshape(-1, size)
    weights = np.prod(np.stack(np.meshgrid(*[weight / weight.sum()] * size, indexing="ij"), axis=-1), axis=-1).ravel()
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
    from pgmodels.priors import collection as blocks

    monkeypatch.setattr(blocks, "MAX_BLOCK", 20)
    model, X, y = problem("softmax")
    with pytest.warns(pgm.MeanFieldWarning, match="treats the latents of a datum as independent"):
        result = pgm.gaussian_vi(model, X, y)
    assert result.converged


@pytest.mark.slow
def test_an_ascent_that_stalls_short_of_its_optimum_has_not_converged(monkeypatch):
    from pgmodels.priors import collection as blocks

    monkeypatch.setattr(blocks, "MAX_BLOCK", 50)
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
    from pgmodels.inference import linear_response as correction
    from pgmodels.inference import loop as drive

    model, X, y = problem("bernoulli")
    pgm.correct(pgm.gaussian_vi(model, X, y))
    programs = (drive._run_block, correction._respond)
    sizes = [program.cache_size() for program in programs]
    rng = np.random.default_rng(1)
    pgm.correct(pgm.gaussian_vi(model, X + 0.1 * rng.normal(size=X.shape), 1.0 - y))
    assert [program.cache_size() for program in programs] == sizes


def test_a_tilt_that_turns_the_optimum_is_reported():
    """Bimodal posteriors: at the ridge between two modes the response has no bound."""
    from pgmodels.inference.linear_response import Response, _is_positive

    def response_with(least):
        return Response(np.zeros(4), np.zeros((4, 4)), np.diag([1.0, 0.5, least, 2.0]), np.zeros(()))

    half = np.zeros((4, 3, 2))
    half[2, 1], half[2, 2] = [0.1, -0.8], [0.5, 0.5]
    with pytest.warns(pgm.CorrectionWarning, match=r"1 directions, most in row 2"):
        assert not _is_positive(response_with(-0.1), lambda: np.pad(half[:, [0, 2, 1]], ((0, 0), (0, 1), (0, 0))), 3)
    assert _is_positive(response_with(0.1), lambda: half, 3)
    with pytest.warns(pgm.CorrectionWarning, match="not positive definite: the variational optimum"):
        assert not _is_positive(response_with(0.1)._replace(residual=np.inf), lambda: half, 3)


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
