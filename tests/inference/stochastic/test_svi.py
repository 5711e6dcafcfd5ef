"""Steps on batches against CAVI on all rows."""

import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import pgmodels as pgm
from pgmodels.inference import bound as bound_module
from pgmodels.inference import svi_convergence as windows
from pgmodels.inference.bound import MarginalBound
from pgmodels.inference.svi_step import (
    DataBatch,
    GradientStatistics,
    NaturalParameters,
    Rates,
    StochasticProblem,
    adapt,
    first_state,
    penalised_bound,
)
from pgmodels.model import Data
from pgmodels.numerics.iteration import adam_step, initial_adam
from pgmodels.parameters.vector import trainable
from pgmodels.priors.dense import WHITENING_JITTER
from pgmodels.runtime.precision import as_array
from tests.covering import some
from tests.programs import run

RNG = np.random.default_rng(6)
X = np.sort(RNG.uniform(-3.0, 3.0, (480, 1)), axis=0)
LABELS = (RNG.random(480) < 1.0 / (1.0 + np.exp(-2.5 * np.sin(1.5 * X[:, 0])))).astype(float)
MODEL = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 0.9), mean=0.3, form=pgm.Inducing(12, "variance")))


@pytest.fixture(scope="module")
def exact():
    return pgm.cavi(MODEL, X, LABELS)


# The last step is of CAVI, from where the noise of the steps left q: a share of a deviation, and as much of an adaptive
# rate, whose steps are short too soon.
@pytest.mark.parametrize(
    ("rate", "gap", "error"),
    some([("adaptive", 0.1, 0.2), ("robbins-monro", 1e-3, 0.02)], ("robbins-monro", 1e-3, 0.02)),
)
def test_batches_find_the_optimum_of_all_rows(exact, rate, gap, error):
    result = pgm.svi(MODEL, X, LABELS, batch_size=60, rate=rate, tolerance=0.03)
    assert result.converged
    assert exact.elbo - gap < result.elbo <= exact.elbo + 1e-9
    np.testing.assert_allclose(result.mean, exact.mean, atol=error)
    again = pgm.svi(MODEL, X, LABELS, batch_size=60, rate=rate, tolerance=0.03)
    np.testing.assert_array_equal(again.mean, result.mean)


@pytest.mark.slow
def test_passes_of_few_steps_are_averaged_until_their_noise_is_gone(exact, tmp_path):
    options = {"batch_size": 160, "tolerance": 0.01}
    result = pgm.svi(MODEL, X, LABELS, **options)
    assert result.converged
    assert exact.elbo - 1e-3 < result.elbo <= exact.elbo + 1e-9
    # Interrupted between two comparisons, which are some 67 passes of 3 steps each apart.
    with pytest.warns(pgm.ConvergenceWarning):
        pgm.svi(MODEL, X, LABELS, max_epochs=100, checkpoint=tmp_path, **options)
    again = pgm.svi(MODEL, X, LABELS, checkpoint=tmp_path, **options)
    np.testing.assert_array_equal(again.mean, result.mean)


def few_steps(monkeypatch, window, max_epochs, checkpoint=None, train_hyperparameters=True):
    """What so many passes of 12 batches lead to, by windows of so many steps."""
    monkeypatch.setattr(windows, "_WINDOW", window)
    rows, options = pgm.ArrayRows(X, LABELS), {"train_hyperparameters": train_hyperparameters, "checkpoint": checkpoint}
    with pytest.warns(pgm.ConvergenceWarning, match=f"after {max_epochs} passes"):
        return pgm.svi(MODEL, rows, batch_size=40, tolerance=1e-9, max_epochs=max_epochs, **options)


def assert_alike(ours, theirs):
    for one, other in zip(ours.predict_latent(X[:5]), theirs.predict_latent(X[:5]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)
    for name, value in theirs.fit.values.items() if theirs.fit else ():
        np.testing.assert_allclose(ours.fit.values[name], value, rtol=1e-12)


@pytest.mark.slow
def test_passes_that_fill_no_window_are_all_that_are_made(monkeypatch):
    result = few_steps(monkeypatch, 200, 1)
    assert (result.fit.num_steps, len(result.elbo_trace)) == (12, 1)
    # The later half of them is the second of two windows.
    assert_alike(result, few_steps(monkeypatch, 6, 1))
    # After a window, q is the average of all: 8 and 4 steps.
    one_window = few_steps(monkeypatch, 12, 1, train_hyperparameters=False)
    short = few_steps(monkeypatch, 8, 1, train_hyperparameters=False)
    assert (len(one_window.elbo_trace), len(short.elbo_trace)) == (1, 2)
    assert one_window.elbo_trace[0] == pytest.approx(short.elbo_trace @ [2.0, 1.0] / 3.0, rel=1e-12)
    assert_alike(short, one_window)


def test_a_run_that_ends_within_the_first_window_saves_its_last_step(monkeypatch, tmp_path):
    # 24 steps of a window of 200.
    first = few_steps(monkeypatch, 200, 2, tmp_path)
    assert len(first.elbo_trace) == 1
    with monkeypatch.context() as patched:
        patched.setattr(windows, "advance", StepsAreShapesOnly(windows.advance))
        again = few_steps(monkeypatch, 200, 2, tmp_path)
    np.testing.assert_array_equal(again.elbo_trace, first.elbo_trace)
    for one, other in zip(again.predict_latent(X[:5]), first.predict_latent(X[:5]), strict=True):
        np.testing.assert_array_equal(one, other)
    # Fewer and more steps are those of a run of their own.
    for max_epochs in (1, 3):
        ours, theirs = (few_steps(monkeypatch, 200, max_epochs, folder) for folder in (tmp_path, None))
        np.testing.assert_array_equal(ours.elbo_trace, theirs.elbo_trace)


class StepsAreShapesOnly:
    """Steps that are not to be computed."""

    def __init__(self, advance):
        self.shapes = advance.shapes

    def __call__(self, *arguments):
        raise AssertionError("the steps were saved")


@pytest.mark.slow
def test_more_passes_go_on_from_the_last_window_that_was_filled(monkeypatch, tmp_path):
    first = few_steps(monkeypatch, 16, 3, tmp_path)
    assert (first.fit.num_steps, len(first.elbo_trace)) == (36, 3)
    # The steps after the last full window are saved too.
    with monkeypatch.context() as patched:
        patched.setattr(windows, "advance", StepsAreShapesOnly(windows.advance))
        again = few_steps(monkeypatch, 16, 3, tmp_path)
    np.testing.assert_array_equal(again.elbo_trace, first.elbo_trace)
    ours, theirs = few_steps(monkeypatch, 16, 4, tmp_path), few_steps(monkeypatch, 16, 4)
    np.testing.assert_array_equal(ours.elbo_trace, theirs.elbo_trace)
    np.testing.assert_array_equal(ours.elbo_trace[:2], first.elbo_trace[:2])
    for one, other in zip(ours.predict_latent(X[:5]), theirs.predict_latent(X[:5]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_results_are_those_that_every_other_call_takes(exact):
    result = pgm.svi(MODEL, (X, LABELS), batch_size=480, tolerance=1e-7)
    assert result.elbo == pytest.approx(exact.elbo, abs=1e-7)
    for ours, theirs in zip(result.predict_latent(X[:5] + 0.1), exact.predict_latent(X[:5] + 0.1), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert "Stochastic CAVI of Bernoulli()" in repr(result)


def test_the_adaptive_rate_goes_by_how_much_of_the_gradient_is_noise():
    with jax.enable_x64(True):
        noise = np.random.default_rng(0).normal(size=(2000, 2))
        steady, noisy, ten_times = (rates(gradients) for gradients in (np.full((40, 2), 0.7), noise, 10.0 * noise))
    # A gradient that stays leads to whole steps, and to no memory.
    assert steady[0][0] < 0.5
    np.testing.assert_allclose(steady[0][-10:], 1.0, rtol=1e-3)
    assert steady[1] == pytest.approx(1.0, abs=0.01)
    # An average of k steps of noise has a k-th of its square: ever smaller steps, with nearly all of them remembered.
    assert noisy[0][-1000:].max() < 0.01
    assert 500 < noisy[1] < 2004
    # In whatever units.
    np.testing.assert_allclose(ten_times[0], noisy[0], rtol=1e-9)


def rates(gradients):
    """The rates that follow on gradients, and the memory at the end."""
    averages, lengths = GradientStatistics([jnp.zeros(2)], jnp.zeros(()), jnp.asarray(4.0)), []
    step = jax.jit(adapt)
    for gradient in gradients:
        rate, averages = step(averages, [jnp.asarray(gradient)])
        lengths.append(float(rate))
    return np.array(lengths), float(averages.memory)


@pytest.fixture
def doubles():
    with jax.enable_x64(True):
        yield


def learning(model, X, inputs_move=False):
    """What steps that learn work on, and its vector."""
    unknowns, prior = trainable(model), model.prior(X[:1])
    Z, units = as_array(np.array(model.gps[0].form.inputs)), as_array(np.ones(len(unknowns.start())))
    problem = StochasticProblem(
        model.augmentation, unknowns, model.bare(), prior, (Z,), units, as_array(float(len(X))), False
    )
    problem = replace(problem, inputs_move=inputs_move)
    return problem, as_array(problem.start())


LEARNED = pgm.Model(
    pgm.NegativeBinomial(1.7),
    pgm.GP(
        pgm.RBF(dist.LogNormal(0.5, 1.0), 0.8), mean=-0.4, form=pgm.Inducing(np.array([[-2.1], [-0.7], [0.4], [2.2]]))
    ),
)
COUNTS = RNG.poisson(1.5, 30).astype(float)


def some_q():
    root = np.tril(RNG.normal(size=(4, 4)))
    return [NaturalParameters(as_array(root @ root.T), as_array(RNG.normal(size=4)))]


def written_out(vector, naturals, X, y):
    """The sparse bound by the values u at Z, with covariance matrices and inverses; Z may be in the vector."""
    dispersion, variance, lengthscale = jnp.exp(vector[:3])
    mean = vector[3]
    kernel = lambda a, b: variance * jnp.exp(-0.5 * ((a - b.T) / lengthscale) ** 2)  # noqa: E731
    Z = vector[4:, None] if len(vector) > 4 else np.array(LEARNED.gps[0].form.inputs)
    K = kernel(Z, Z) + WHITENING_JITTER * variance * jnp.eye(4)
    root, P = jnp.linalg.cholesky(K), jnp.eye(4) + naturals.precision
    location, S = root @ jnp.linalg.solve(P, naturals.potential), root @ jnp.linalg.inv(P) @ root.T
    weights = kernel(X, Z) @ jnp.linalg.inv(K)
    m = mean + weights @ location
    v = variance - jnp.sum(weights * kernel(X, Z), axis=1) + jnp.sum((weights @ S) * weights, axis=1)
    c = jnp.sqrt(m**2 + v)
    # log Γ(y + r) / (Γ(r) y!) + (y - r) m / 2 - (y + r) log 2cosh(c / 2)
    terms = jax.lax.lgamma(y + dispersion) - jax.lax.lgamma(dispersion) - jax.lax.lgamma(y + 1.0)
    terms = terms + 0.5 * (y - dispersion) * m - (y + dispersion) * jnp.log(2.0 * jnp.cosh(0.5 * c))
    ratio = jnp.linalg.slogdet(K)[1] - jnp.linalg.slogdet(S)[1]
    divergence = 0.5 * (jnp.trace(jnp.linalg.solve(K, S)) + location @ jnp.linalg.solve(K, location) - 4.0 + ratio)
    # The density of the logarithm.
    log_prior = -0.5 * (vector[1] - 0.5) ** 2 - 0.5 * jnp.log(2.0 * jnp.pi)
    return jnp.sum(terms) - divergence + log_prior


@pytest.mark.parametrize("inputs_move", some([False, True], False))
def test_the_bound_of_all_rows_and_its_gradient_are_those_written_out(doubles, inputs_move):
    problem, vector = learning(LEARNED, X[::16], inputs_move)
    assert len(vector) == 4 + 4 * inputs_move
    assert problem.learnable.names == ["dispersion", "variance", "lengthscale", "mean"]
    rows, naturals = as_array(X[::16]), some_q()
    ours = lambda vector: penalised_bound(problem, naturals, vector, DataBatch(rows, COUNTS))[0]  # noqa: E731
    theirs = lambda vector: written_out(vector, naturals[0], rows, COUNTS)  # noqa: E731
    (value, slope), (expected, its_slope) = (run(jax.value_and_grad(f), vector) for f in (ours, theirs))
    # Inverses of a matrix with condition number 1e2 lose as many digits.
    assert float(value) == pytest.approx(float(expected), rel=1e-10)
    np.testing.assert_allclose(slope, its_slope, rtol=1e-9)
    # Batches average to it, the log prior and KL included.
    batch = jax.value_and_grad(lambda *arguments: penalised_bound(problem, naturals, *arguments)[0])
    by_batch = [run(batch, vector, DataBatch(rows[i::3], as_array(COUNTS)[i::3])) for i in range(3)]
    assert np.mean([value for value, _ in by_batch]) == pytest.approx(float(expected), rel=1e-10)
    np.testing.assert_allclose(np.mean([slope for _, slope in by_batch], axis=0), its_slope, rtol=1e-9)


@pytest.mark.slow
def test_at_the_optimal_q_the_gradient_is_that_of_the_collapsed_bound(doubles):
    rows = X[::16]
    problem, vector = learning(LEARNED, rows)
    every, rates = DataBatch(as_array(rows)[None], as_array(COUNTS)[None]), Rates(*map(as_array, [1.0, 0.0, 0.0]))
    state = run(first_state, problem, vector, every)
    for _ in range(100):
        state, _ = windows.advance(problem, state, every, rates, 0, 1)
    (value, _), slope = run(
        jax.value_and_grad(lambda v: penalised_bound(problem, state.naturals, v, every.number(0)), has_aux=True), vector
    )
    collapsed, its_slope = MarginalBound(trainable(LEARNED), Data(rows, COUNTS))(np.asarray(vector))
    # The other has no jitter at Z, here 1e-8 of the variance.
    assert float(value) == pytest.approx(-collapsed, abs=1e-5)
    np.testing.assert_allclose(slope, -its_slope, atol=1e-4)


def test_adam_is_that_of_its_paper(doubles):
    state, m, v, x = initial_adam(jnp.array([0.3, -1.0])), 0.0, 0.0, np.array([0.3, -1.0])
    for t, slope in enumerate([np.array([2.0, -0.1]), np.array([-1.0, 0.4])], start=1):
        state = adam_step(state, as_array(slope), as_array(0.05), as_array(np.array([1.0, 3.0])))
        m, v = 0.9 * m + 0.1 * slope, 0.999 * v + 0.001 * slope**2
        x = x + 0.05 * np.array([1.0, 3.0]) * (m / (1.0 - 0.9**t)) / (np.sqrt(v / (1.0 - 0.999**t)) + 1e-8)
    np.testing.assert_allclose(state.vector, x, rtol=1e-12)


@pytest.mark.slow
def test_values_are_learned_along_and_what_is_fixed_stays():
    kernel = pgm.RBF(2.0, 0.9)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(kernel, mean=pgm.Fixed(0.3), form=pgm.Inducing(12, "kmeans")))
    fitted, before = pgm.fit(model, X, LABELS, objective="augmented"), windows.advance.cache_size()
    result = pgm.svi(model, X, LABELS, batch_size=60, train_hyperparameters=True, max_epochs=1000)
    assert result.converged
    # Hundreds of windows, and four starts before them, in one program.
    assert windows.advance.cache_size() == before + 1
    # The ELBO is flat about its optimum, to which steps on 60 rows come within a fraction of a deviation.
    assert fitted.elbo - 0.1 < result.elbo < fitted.elbo + 1e-3
    ours, theirs = (each.model.gps[0].kernel for each in (result, fitted))
    assert float(ours.lengthscale.value) == pytest.approx(float(theirs.lengthscale.value), rel=0.1)
    assert float(result.model.gps[0].mean.value) == 0.3
    assert set(result.fit.values) == set(fitted.fit.values)
    assert result.fit.start in result.fit.start_elbos
    assert model.gps[0].kernel == kernel


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pgmodels.InducingWarning")
@pytest.mark.parametrize("learns", ["svi", "fit"])
def test_other_inputs_and_data_are_learned_from_by_the_same_program(learns):
    def learn(rows, Z):
        model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 0.9), form=pgm.Inducing(Z)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pgm.ConvergenceWarning)
            if learns == "fit":
                pgm.fit(model, X[rows], LABELS[rows], max_iterations=2)
            else:
                pgm.svi(
                    model,
                    X[rows],
                    LABELS[rows],
                    batch_size=60,
                    train_hyperparameters=True,
                    train_inducing=True,
                    max_epochs=1,
                )
        return (windows.advance if learns == "svi" else bound_module._ascend).cache_size()

    programs = learn(slice(0, 240), np.array([[-2.0], [0.3], [2.4]]))
    assert learn(slice(240, 480), np.array([[0.4], [1.3], [2.9]])) == programs


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pgmodels.InducingWarning")
def test_inducing_inputs_are_learned_along_where_asked():
    start = np.array([[-2.9], [-2.7], [0.1], [0.2], [2.6]])
    kernel = pgm.RBF(pgm.Fixed(3.0), pgm.Fixed(0.9))
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(kernel, mean=pgm.Fixed(0.3), form=pgm.Inducing(start)))
    result = pgm.svi(
        model,
        X,
        LABELS,
        batch_size=120,
        train_hyperparameters=True,
        train_inducing=True,
        tolerance=0.3,
        max_epochs=1000,
    )
    Z = np.array(result.model.gps[0].form.inputs)
    assert Z.shape == start.shape
    # Five inputs in two clumps leave most of the data to the prior; spread out they tell nearly all.
    fixed, exact = pgm.cavi(model, X, LABELS), pgm.cavi(model.with_form(pgm.Dense()), X, LABELS)
    assert result.elbo > fixed.elbo + 0.8 * (exact.elbo - fixed.elbo)
    # The result is that of its inducing inputs, for every other call.
    again = pgm.cavi(result.model, X, LABELS)
    assert again.elbo == pytest.approx(result.elbo, abs=1e-2)
    np.testing.assert_allclose(result.predict_latent(X[:5])[0], again.predict_latent(X[:5])[0], atol=0.05)


def test_a_bound_gains_nothing_where_its_noise_hides_it():
    noise = np.array([0.3, -0.2, 0.5, -0.4, 0.1, -0.3, 0.2, 0.4, -0.5])
    # Two thirds of nine are compared: a gain of 3 a window times three windows, and standard errors of 0.4.
    assert windows._bound_is_flat(tuple(noise))
    assert not windows._bound_is_flat(tuple(noise + 3.0 * np.arange(9)))
    # What was gained before does not count, and of five windows nothing can be said.
    assert windows._bound_is_flat((-80.0, -40.0, -20.0, *noise[3:]))
    assert not windows._bound_is_flat((0.0,) * 5)


def test_learning_needs_inducing_inputs():
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF()))
    with pytest.raises(
        ValueError, match=r"svi with train_hyperparameters=True needs GPs with inducing inputs; got GP\(RBF"
    ):
        pgm.svi(model, X, LABELS, train_hyperparameters=True)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number >= 1"),
        ({"rate": "slow"}, "rate must be 'adaptive', 'robbins-monro' or delay and power"),
        ({"rate": (0.0, 0.7)}, "the delay of rate"),
        ({"rate": (0.5, 0.7)}, "at least 1"),
        ({"rate": (1.0, 0.4)}, "the power of rate"),
        ({"tolerance": -1.0}, "tolerance"),
        ({"train_inducing": True}, "train_inducing=True needs train_hyperparameters=True"),
    ],
)
def test_wrong_options_are_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        pgm.svi(MODEL, X, LABELS, **options)


@pytest.mark.parametrize("source", ["rows.parquet", X, (X,), [(X, LABELS)]])
def test_data_without_y_are_refused(source):
    with pytest.raises(ValueError, match=r"y is missing, and X, of type .*pgm\.ParquetRows\(files, target\)"):
        pgm.svi(MODEL, source)
