"""The expected log density of independent latents, and where fit maximises it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize
from scipy.special import log_expit, logsumexp

import pgmodels as pgm
from pgmodels.inference.cavi import NATURAL_GRADIENT, with_responses
from pgmodels.inference.objectives import MOST_PREDICTORS, expected_objective, mean_field_objective, objective_of
from pgmodels.inference.prepare import variational_problem
from pgmodels.objectives import expected
from pgmodels.objectives.expected import MeanField, independent_nodes

pytestmark = pytest.mark.usefixtures("double_precision")

MEANS = np.array([[0.5, -1.0, 2.0], [3.0, 2.0, -4.0]])
VARIANCES = np.array([[0.4, 2.0, 1.0], [5.0, 0.1, 9.0]])
LABELS = np.array([1.0, 0.0])
SQUASHED = {"logistic softmax": (pgm.LogisticSoftmax(3), log_expit), "softmax": (pgm.Softmax(3), np.asarray)}


def of_classes(likelihood, variance=4.0):
    return pgm.Model(likelihood, pgm.GP(pgm.RBF(variance, 1.0), mean=0.3, size=3))


@pytest.mark.parametrize("name", SQUASHED)
def test_terms_are_averages_over_independent_latents(name):
    likelihood, squash = SQUASHED[name]
    z = MEANS + np.sqrt(VARIANCES) * np.random.default_rng(0).standard_normal((200_000, 2, 3))
    scores = squash(z)
    log_p = scores[:, [0, 1], LABELS.astype(int)] - logsumexp(scores, axis=-1)
    terms = mean_field_objective(of_classes(likelihood)).local_bound(*map(jnp.asarray, (MEANS, VARIANCES, LABELS)), {})
    error = log_p.std(axis=0) / len(log_p) ** 0.5
    # Beside the sampling error, that of 256 points: at most 0.016 (see the module).
    assert (abs(np.asarray(terms) - log_p.mean(axis=0)) < 4.0 * error + 0.016).all()


def test_two_latents_are_on_a_grid():
    model = pgm.Model(pgm.HeteroscedasticGaussian(1.5), pgm.GP(pgm.RBF(), size=2))
    arguments = *map(jnp.asarray, (MEANS[:, :2], VARIANCES[:, 1:], [0.7, -2.0])), model.parameters
    terms, reference = (
        objective(model).local_bound(*arguments) for objective in (mean_field_objective, expected_objective)
    )
    np.testing.assert_allclose(terms, reference, rtol=1e-3)


def test_the_optimum_is_that_of_independent_gaussians():
    """Against a search over the means and roots of one covariance for each latent."""
    X, y = np.array([[0.0], [0.4], [1.5]]), np.array([0.0, 2.0, 1.0])
    model = of_classes(pgm.LogisticSoftmax(3))
    result = pgm.vi(model, X, y, objective="mean_field", tolerance=1e-12)
    objective = mean_field_objective(model)
    K = 4.0 * np.exp(-0.5 * (X - X.T) ** 2)
    lower = np.tril_indices(3)

    def unpack(vector):
        means, roots = (
            vector[:9].reshape(3, 3),
            jnp.zeros((3, 3, 3)).at[:, lower[0], lower[1]].set(vector[9:].reshape(3, 6)),
        )
        return means, roots

    def negative_elbo(vector):
        means, roots = unpack(vector)
        covariances = roots @ jnp.swapaxes(roots, 1, 2)
        terms = objective.local_bound(means, jnp.diagonal(covariances, axis1=1, axis2=2).T, jnp.asarray(y), {})
        spread, away = jnp.einsum("ij,cij->", np.linalg.inv(K), covariances), means - 0.3
        logs = 3 * np.linalg.slogdet(K)[1] - jnp.sum(jnp.log(jnp.diagonal(roots, axis1=1, axis2=2) ** 2))
        return 0.5 * (spread + jnp.sum(away * (np.linalg.inv(K) @ away)) - 9 + logs) - jnp.sum(terms)

    with jax.enable_x64(True):
        start = np.concatenate([np.full(9, 0.3), np.tile(np.linalg.cholesky(K)[lower], 3)])
        value_and_slope = jax.jit(jax.value_and_grad(negative_elbo))
        best = minimize(lambda x: tuple(map(np.asarray, value_and_slope(x))), start, jac=True, method="BFGS", tol=1e-8)
        means, roots = map(np.asarray, unpack(best.x))
    np.testing.assert_allclose(result.elbo, -best.fun, atol=1e-6)
    np.testing.assert_allclose(result.mean, means, atol=2e-4)
    np.testing.assert_allclose(result.variance, np.einsum("cij,cij->ic", roots, roots), rtol=2e-4)


def test_the_bounds_are_ordered():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(25, 2))
    y = np.argmax(X @ np.array([[1.0, -1.0, 0.0], [0.5, 0.5, -2.0]]) + 0.5 * rng.normal(size=(25, 3)), axis=1)
    model = of_classes(pgm.LogisticSoftmax(3), 1.5)
    augmented, apart, joint = (pgm.vi(model, X, y, objective=name) for name in ("augmented", "mean_field", "expected"))
    # Quadrature errors of 25 terms are below a tenth.
    assert augmented.elbo + 0.3 < apart.elbo < joint.elbo + 0.1
    assert (apart.variance < joint.variance + 0.02).all()


@pytest.mark.parametrize(
    ("likelihood", "size", "num_rows", "name"),
    [
        (pgm.Bernoulli(), 1, 10**6, "expected"),
        (pgm.Gaussian(1.0), 1, 10, "augmented"),
        (pgm.LogisticSoftmax(4), 4, MOST_PREDICTORS // 4, "mean_field"),
        (pgm.LogisticSoftmax(4), 4, MOST_PREDICTORS // 4 + 1, "augmented"),
        (pgm.Softmax(4), 4, 10**6, "mean_field"),
        (pgm.ZeroInflatedPoisson(), 2, 10, "expected"),
        (pgm.RobustMax(3), 3, 10, "expected"),
    ],
    ids=str,
)
def test_the_choice_of_fit(likelihood, size, num_rows, name):
    assert objective_of(pgm.Model(likelihood, pgm.GP(pgm.RBF(), size=size)), "auto", num_rows).name == name


def test_fit_records_its_choice():
    X = np.linspace(-2.0, 2.0, 30)[:, None]
    y = (X[:, 0] > 0.3).astype(int) + (X[:, 0] > 1.0)
    with pytest.warns(pgm.ConvergenceWarning):
        result = pgm.fit(of_classes(pgm.LogisticSoftmax(3)), X, y, max_iterations=3, correct=False)
    assert result.objective == "mean_field"
    assert "mean-field" in str(result)


def test_linear_response_restores_covariances_of_latents_that_a_factor_combines():
    @pgm.likelihood
    def two_sums(y, f):
        return pgm.normal_pdf(y, f[0] + f[1], pgm.exp(0.1 * f[1] + 0.1 * f[2]))

    rng = np.random.default_rng(0)
    X, kernels = np.arange(12.0)[:, None] % 5, (pgm.Constant(9.0), pgm.White(1.0), pgm.White(0.5))
    model, y = pgm.Model(two_sums(), [pgm.GP(kernel) for kernel in kernels]), rng.normal(size=12)
    joint, apart = pgm.gaussian_vi(model, X, y), pgm.vi(model, X, y, objective="mean_field")
    assert np.all(apart.variance[:, 0] < 0.5 * joint.variance[:, 0])
    np.testing.assert_allclose(pgm.correct(apart).variance, joint.variance, rtol=0.1)


def test_one_latent_is_the_expected_log_density():
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF()))
    assert mean_field_objective(model) == expected_objective(model)
    assert not isinstance(mean_field_objective(model), MeanField)


def test_derivatives_pass_by_nodes_without_a_density():
    """log(1 - exp(f)) has none above 0; derivatives are those of the average over the other nodes."""

    @pgm.likelihood
    def bounded(y, f, slope=0.7):
        return (1.0 - pgm.exp(slope * f)) ** y * pgm.exp(slope * f) ** (1 - y)

    objective = expected_objective(pgm.Model(bounded(), pgm.GP(pgm.RBF())))
    m, v, y = jnp.asarray([[-2.0], [-6.0]]), jnp.asarray([[1.5], [2.0]]), jnp.asarray([1.0, 1.0])

    def total(m, v, slope):
        return jnp.sum(objective.local_bound(m, v, y, {"slope": slope}))

    arguments = m, v, jnp.asarray(0.7)
    value = float(total(*arguments))
    z, weight = np.linspace(-8.0, 8.0, 129), stats.norm.pdf(np.linspace(-8.0, 8.0, 129)) * 0.125
    at = 0.7 * (np.asarray(m) + np.sqrt(np.asarray(v)) * z)
    inside = at < 0
    np.testing.assert_allclose(
        value, np.sum(weight * np.log(-np.expm1(np.where(inside, at, -1.0))) * inside), rtol=1e-6
    )
    slopes = jax.grad(total, (0, 1, 2))(*arguments)
    bends = jax.hessian(lambda m: total(m, *arguments[1:]))(m)
    assert np.isfinite(np.asarray(bends)).all()
    # Steps so short that no node crosses 0.
    for place, slope in enumerate(slopes):
        for entry in np.ndindex(np.shape(slope)):
            step = np.zeros(np.shape(slope))
            step[entry] = 1e-7
            up, down = (
                float(total(*[a + s * step if i == place else a for i, a in enumerate(arguments)])) for s in (1, -1)
            )
            np.testing.assert_allclose(np.asarray(slope)[entry], (up - down) / 2e-7, rtol=1e-4)


@pytest.mark.parametrize("chunk", [False, True])
@pytest.mark.parametrize("name", SQUASHED)
def test_sites_and_couplings_are_derivatives(name, chunk, monkeypatch):
    if chunk:
        monkeypatch.setattr(expected, "chunk_length", lambda width: 100)
    objective = mean_field_objective(of_classes(SQUASHED[name][0]))
    m, v, y = map(jnp.asarray, (MEANS, VARIANCES, LABELS))

    def bound(m, v):
        return jnp.sum(objective.local_bound(m, v, y, {}))

    values, h, w, coupling = objective.local_bound_sites_and_coupling(m, v, y, {})
    np.testing.assert_allclose(jnp.sum(values), bound(m, v), rtol=1e-12)
    by_mean, by_variance = jax.grad(bound, (0, 1))(m, v)
    np.testing.assert_allclose(h - w * m, by_mean, atol=1e-12)
    np.testing.assert_allclose(w, -2.0 * by_variance, atol=1e-12)
    for row, hessian in enumerate(jnp.einsum("ipiq->ipq", jax.hessian(bound)(m, v))):
        # Stein's identity, exact for a normal distribution, at 256 points of it.
        np.testing.assert_allclose(coupling[row], -(hessian - jnp.diag(jnp.diag(hessian))), atol=0.01)


def test_means_of_all_classes_move_by_one_newton_step():
    """Target sites with responses, against the dense Newton equations of all classes."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(12, 2))
    y = rng.integers(0, 3, 12).astype(float)
    model, data = of_classes(pgm.LogisticSoftmax(3), 9.0).prepare(X, y, None)
    objective = mean_field_objective(model)
    problem = variational_problem(model, data, objective, model.prior(X))
    # After a few steps from the start, with which target precisions are those of a proper posterior.
    state = NATURAL_GRADIENT.init(problem)
    for _ in range(3):
        state = NATURAL_GRADIENT.step(problem, state)
    sites = state.sites
    mean, variance, _, divergence = problem.moments(sites)
    _, target, coupling = problem.elbo_and_sites(mean, variance, divergence, sites)
    moved = problem.moments(with_responses(problem, target, sites, mean, coupling)).mean - mean

    K = np.kron(np.eye(3), np.asarray(model.gps[0].kernel(X, X)))
    rows = slice(0, 12)
    full = np.asarray(target.precision + coupling)[rows]
    curvature = np.einsum("ipq,ij->piqj", full, np.eye(12)).reshape(36, 36)
    gradient = np.asarray(target.potential - jnp.einsum("ipq,iq->ip", target.precision, mean))[rows]
    # K^-1 (m - mean of the prior) is what the sites' gradient is at m.
    gradient = gradient - np.asarray(sites.potential - jnp.einsum("ipq,iq->ip", sites.precision, mean))[rows]
    expected_move = np.linalg.solve(np.linalg.inv(K) + curvature, gradient.T.ravel()).reshape(3, 12).T
    scale = abs(expected_move).max()
    # To the relative residual at which conjugate gradients end.
    np.testing.assert_allclose(np.asarray(moved)[rows], expected_move, atol=0.05 * scale)
    plain = problem.moments(target).mean - mean
    assert abs(np.asarray(plain)[rows] - expected_move).max() > 0.2 * scale


@pytest.mark.parametrize("size", [2, 3])
def test_latents_without_variance_have_no_curvature(size):
    model = pgm.Model(pgm.LogisticSoftmax(size), pgm.GP(pgm.RBF(), size=size))
    m, v = jnp.asarray(MEANS[:, :size]), jnp.zeros((2, size)).at[1].set(1.0)
    values, h, w, coupling = mean_field_objective(model).local_bound_sites_and_coupling(m, v, jnp.asarray(LABELS), {})
    assert np.isfinite(np.concatenate([np.ravel(part) for part in (values, h, w, coupling)])).all()
    np.testing.assert_array_equal(np.concatenate([np.ravel(w[0]), np.ravel(coupling[0])]), 0.0)
    assert (abs(np.asarray(coupling[1])).sum(axis=1) > 0.0).all()


def test_a_row_without_prior_variance():
    """A line through zero: the first row has no variance, and the bound is that of a dense prior."""
    X = np.arange(12.0)[:, None] / 4.0
    y = np.array([0.0, 1.0, 2.0] * 4)
    linear = pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(pgm.Linear(2.0), mean=0.3, size=3))
    result = pgm.vi(linear, X, y, objective="mean_field", tolerance=1e-11)
    nearly = pgm.Model(
        pgm.LogisticSoftmax(3), pgm.GP(pgm.Linear(2.0) + pgm.Constant(1e-8), mean=0.3, size=3, form=pgm.Dense())
    )
    dense = pgm.vi(nearly, X, y, objective="mean_field", tolerance=1e-11)
    np.testing.assert_allclose(result.elbo, dense.elbo, atol=1e-5)
    np.testing.assert_allclose(result.variance[1:], dense.variance[1:], rtol=1e-3)


def test_more_predictors_than_points():
    nodes, weights = independent_nodes(200)
    np.testing.assert_allclose(nodes.T @ (weights[:, None] * nodes), np.eye(200), atol=1e-12)
    np.testing.assert_allclose(weights @ nodes, 0.0, atol=1e-12)
