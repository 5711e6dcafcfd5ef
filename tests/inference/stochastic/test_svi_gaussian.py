"""Steps on batches with expected log densities, against the variational Gaussian on all rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import pgmodels as pgm
from pgmodels.inference.objectives import expected_objective
from pgmodels.inference.svi_step import NaturalParameters, natural_step, retraction_step
from pgmodels.objectives.expected import ShiftedQuadrature
from pgmodels.priors.dense import WHITENING_JITTER
from pgmodels.runtime.precision import as_array
from tests.covering import some
from tests.own_likelihoods import log_poisson, shared
from tests.programs import run
from tests.referees import rbf

RNG = np.random.default_rng(31)
X = np.sort(RNG.uniform(-3.0, 3.0, (90, 1)), axis=0)
WAVE = np.sin(1.7 * X[:, 0])
LABELS = (RNG.random(90) < 1.0 / (1.0 + np.exp(-6.0 * WAVE))).astype(float)
# Far out, where the log density of Student's t is convex.
OUTLYING = 1.5 * WAVE + 0.2 * RNG.standard_t(3.0, 90) + np.where(np.arange(90) % 17 == 3, 2.5, 0.0)
Z = np.linspace(-3.0, 3.0, 7)[:, None]


def gp(mean=0.3, variance=2.0, lengthscale=0.9, size=1):
    return pgm.GP(pgm.RBF(variance, lengthscale), mean=mean, size=size, form=pgm.Inducing(Z))


CASES = {
    "bernoulli": (pgm.Model(pgm.Bernoulli(), gp()), LABELS),
    "student_t": (pgm.Model(pgm.StudentT(3.0, 0.2), gp()), OUTLYING),
    "log_poisson": (pgm.Model(log_poisson(), gp(0.8, 0.5)), RNG.poisson(np.exp(0.8 + WAVE)).astype(float)),
    "shared": (
        pgm.Model(shared(), [gp(0.2), gp(-0.4, 0.8, 1.5)]),
        np.column_stack([LABELS, WAVE + RNG.normal(0, 0.8, 90)]),
    ),
}


@pytest.mark.filterwarnings("ignore:the inducing inputs, [0-9]+ in all, are too few")
@pytest.mark.parametrize("size", some([90, 30], 30))
@pytest.mark.parametrize("name", some(CASES, "log_poisson"))
def test_steps_end_at_the_variational_gaussian(name, size):
    model, y = CASES[name]
    exact = pgm.gaussian_vi(model, X, y, tolerance=1e-12)
    result = pgm.svi(model, X, y, batch_size=size, objective="expected", tolerance=0.01, max_epochs=4000)
    assert result.converged
    assert result.objective == "expected"
    deviation = np.sqrt(exact.predict_latent(X[::9])[1])
    # The rule of several predictors has noise, which steps leave some of.
    atol = 0.005 if model.num_latents == 1 else 0.08
    for ours, theirs, power in zip(result.predict_latent(X[::9]), exact.predict_latent(X[::9]), (1, 2), strict=True):
        np.testing.assert_allclose((ours - theirs) / deviation**power, 0.0, atol=atol)


@pytest.mark.filterwarnings("ignore:the inducing inputs, [0-9]+ in all, are too few")
@pytest.mark.slow
def test_precisions_below_zero_are_among_them():
    model, y = CASES["student_t"]
    exact = pgm.gaussian_vi(model, X, y)
    sites = expected_objective(model).local_sites(exact.mean, exact.variance, y, model.parameters)
    assert np.min(sites[1]) < -0.05


def closest_independent(model, y):
    """Means and roots of whitened values at Z, of each latent by itself, of the largest bound: by L-BFGS."""
    terms, size, count = expected_objective(model), model.num_latents, len(Z)
    K = rbf(Z, 2.0, 0.9) + WHITENING_JITTER * 2.0 * np.eye(count)
    A = np.linalg.solve(np.linalg.cholesky(K), 2.0 * np.exp(-0.5 * ((Z - X.T) / 0.9) ** 2))
    lower = np.tril_indices(count)

    def moments(vector):
        a, entries = vector[: size * count].reshape(size, count), vector[size * count :].reshape(size, -1)
        R = jnp.zeros((size, count, count)).at[:, *lower].set(entries)
        spread = jnp.einsum("lij,in->ljn", R, A)
        return -0.2 + a @ A, 2.0 - jnp.sum(A**2, axis=0) + jnp.sum(spread**2, axis=1), a, R

    def loss(vector):
        m, v, a, R = moments(vector)
        determinant = jnp.sum(jnp.log(jnp.abs(jnp.diagonal(R, axis1=1, axis2=2))))
        divergence = 0.5 * (jnp.sum(R**2) + jnp.sum(a**2) - size * count) - determinant
        return divergence - jnp.sum(terms.local_bound(m.T, v.T, as_array(y), {}))

    start = np.concatenate([np.zeros(size * count), np.tile(np.eye(count)[lower], size)])
    with jax.enable_x64(True):
        slope = jax.jit(jax.value_and_grad(loss))
        optimum = minimize(lambda x: tuple(map(np.asarray, slope(x))), start, jac=True, method="L-BFGS-B",
                         options={"maxiter": 2000, "gtol": 1e-8, "ftol": 1e-15})  # fmt: skip
        return tuple(np.asarray(part).T for part in moments(jnp.asarray(optimum.x))[:2])


@pytest.mark.slow
def test_latents_of_a_datum_are_independent():
    model = pgm.Model(pgm.LogisticSoftmax(3), gp(-0.2, size=3))
    y = LABELS + (X[:, 0] > 1.0)
    result = pgm.svi(model, X, y, batch_size=30, objective="expected", tolerance=0.01)
    mean, variance = closest_independent(model, y)
    for ours, theirs, power in zip(result.predict_latent(X), (mean, variance), (1, 2), strict=True):
        np.testing.assert_allclose((ours - theirs) / np.sqrt(variance) ** power, 0.0, atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("predictors", [1, 3])
def test_shifted_nodes_have_the_integral_as_their_mean(predictors):
    model = pgm.Model(pgm.Bernoulli() if predictors == 1 else pgm.LogisticSoftmax(3), gp(size=predictors))
    exact = expected_objective(model)
    shifted = ShiftedQuadrature.of(exact)
    # As wide as 33 nodes, or 16, are too few for and those of the exact rule enough.
    widest = 90.0 if predictors == 1 else 4.0
    m, v = RNG.normal(0.0, 2.0, (2, predictors)), np.array([[widest], [1.0]]) * np.linspace(1.0, 0.5, predictors)
    y, count = np.array([1.0, 0.0]), 4000

    def each(rows_before):
        after = shifted.for_batch(rows_before)
        return after.local_bound(*map(as_array, (m, v, y)), {}), *after.local_sites(*map(as_array, (m, v, y)), {})

    with jax.enable_x64(True):
        every = [np.asarray(part) for part in run(lambda: jax.lax.map(each, 2.0 * jnp.arange(count)))]
        expected = exact.local_bound(m, v, y, {}), *exact.local_sites(m, v, y, {})
    for ours, theirs in zip(every, map(np.asarray, expected), strict=True):
        # Evenly placed shifts average errors out faster than random ones would.
        error = np.std(ours, axis=0) / np.sqrt(count)
        assert np.all(np.abs(np.mean(ours, axis=0) - theirs) <= 4.0 * error + 1e-6 * np.abs(theirs))


def test_shifts_go_by_the_place_of_a_datum():
    """So that devices which share the rows of a batch shift each of them alike."""
    shifted = ShiftedQuadrature.of(expected_objective(CASES["bernoulli"][0]))
    m, v, y = RNG.normal(size=(6, 1)), np.full((6, 1), 60.0), LABELS[:6]
    with jax.enable_x64(True):
        every = run(lambda: shifted.for_batch(14.0).local_bound(m, v, y, {}))
        last = run(lambda: shifted.for_batch(16.0).local_bound(m[2:], v[2:], y[2:], {}))
        other = run(lambda: shifted.for_batch(17.0).local_bound(m[2:], v[2:], y[2:], {}))
        np.testing.assert_allclose(last, every[2:], rtol=1e-12)
        assert np.all(np.abs(other - last) > 1e-6)


def test_a_step_that_leaves_no_precision_is_bent():
    with jax.enable_x64(True):
        root = as_array(np.array([[1.0, 0.0], [0.4, 0.8]]))
        now = NaturalParameters(root @ root.T, as_array(np.array([0.3, -0.7])))
        mild = NaturalParameters(as_array(np.array([[0.2, 0.1], [0.1, -0.4]])), as_array(np.array([0.5, 0.2])))
        steep = NaturalParameters(-40.0 * jnp.eye(2), mild.potential)
        straight, kept = natural_step(now, mild, 0.5), retraction_step(now, mild, jnp.asarray(0.5))
        bent = retraction_step(now, steep, jnp.asarray(0.5))
        now, steep, bent = (NaturalParameters(*map(np.asarray, each)) for each in (now, steep, bent))
    for ours, theirs in zip(kept, straight, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    P, G = np.eye(2) + now.precision, 0.5 * steep.precision
    moved = P + G + 0.5 * G @ np.linalg.inv(P) @ G
    np.testing.assert_allclose(np.eye(2) + bent.precision, moved, rtol=1e-12)
    assert np.min(np.linalg.eigvalsh(P + G)) < 0.0 < np.min(np.linalg.eigvalsh(moved))
    # The mean moves along the gradient in the mean, at the new precision.
    mean = np.linalg.solve(P, now.potential)
    gradient = 0.5 * (steep.potential - steep.precision @ mean)
    np.testing.assert_allclose(
        np.linalg.solve(moved, bent.potential), mean + np.linalg.solve(moved, gradient), rtol=1e-12
    )


@pytest.mark.slow
def test_steps_across_a_jump_do_not_lower_the_bound():
    # Full steps lead from -3,200 to -17,600 here: below its jump the log density is flat.
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(600, 2))
    y = np.digitize(inputs[:, 0] + 0.1 * rng.normal(size=600), [-1.0, -0.3, 0.3, 1.0]).astype(float)
    kernel = pgm.RBF(variance=1.0, lengthscale=1.5)
    model = pgm.Model(pgm.RobustMax(5, 1e-3), pgm.GP(kernel, size=5, form=pgm.Inducing(15, "kmeans"))).fixed()
    with pytest.warns(pgm.ConvergenceWarning):
        result = pgm.svi(model, inputs, y, objective="expected", batch_size=100, max_epochs=8, seed=0, progress=False)
    assert np.all(np.diff(result.elbo_trace) > -0.1 * np.abs(result.elbo_trace[1:]))


@pytest.mark.slow
def test_values_are_those_that_fit_learns():
    model, y = pgm.Model(pgm.Bernoulli(), gp()), LABELS
    exact = pgm.fit(model, X, y, objective="expected")
    result = pgm.svi(model, X, y, batch_size=45, train_hyperparameters=True, objective="expected", tolerance=0.02)
    again = pgm.gaussian_vi(result.model, X, y)
    assert exact.elbo - 0.01 < again.elbo <= exact.elbo
    # The derived bound has its optimum elsewhere.
    other = pgm.gaussian_vi(pgm.fit(model, X, y, objective="augmented").model, X, y)
    assert other.elbo < exact.elbo - 0.1


@pytest.mark.slow
def test_weights_are_powers_and_predictions_are_of_one_row():
    weights = RNG.integers(0, 3, 90)
    model = pgm.Model(pgm.Bernoulli(), gp())
    options = {"objective": "expected", "batch_size": 1000, "tolerance": 1e-4}
    result = pgm.svi(model, X, LABELS, weights=weights, **options)
    again = pgm.svi(model, np.repeat(X, weights, axis=0), np.repeat(LABELS, weights), **options)
    for ours, theirs in zip(result.predict_latent(X[:5]), again.predict_latent(X[:5]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    densities = [each.predict(X[:5]).log_density(LABELS[:5]) for each in (result, again)]
    np.testing.assert_allclose(*densities, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"objective": "laplace"},
            "objective must be one of 'augmented', 'expected', 'mean_field', 'factorised', 'additive_noise', 'gumbel', "
            "'taylor', or an instance of a subclass of pgm.Objective; got 'lap",
        ),
        ({"objective": "expected", "rate": "adaptive"}, "rate='adaptive' needs objective='augmented'"),
        (
            {"objective": "expected", "class_batch_size": 2},
            "class_batch_size cannot be combined with objective='expected'",
        ),
    ],
)
def test_wrong_calls_say_what_is_expected(options, words):
    model = pgm.Model(pgm.LogisticSoftmax(3), gp(size=3))
    with pytest.raises(ValueError, match=words):
        pgm.svi(model, X, LABELS, **options)


def test_dense_latents_are_refused():
    with pytest.raises(ValueError, match=r"objective='expected' needs GPs"):
        pgm.svi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0))), X, LABELS, objective="expected")
