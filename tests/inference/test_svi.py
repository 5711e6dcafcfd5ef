"""Steps on batches against CAVI on all rows."""

import os
import socket
import subprocess
import sys
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.optimize import minimize

import pgmodels as pgm
from pgmodels.inference import bound, svi_convergence
from pgmodels.inference.bound import MarginalBound
from pgmodels.inference.checkpoint_folder import EngineCheckpoint
from pgmodels.inference.objectives import expected_objective
from pgmodels.inference.svi_convergence import is_flat, make_settings
from pgmodels.inference.svi_step import (
    DataBatch,
    GradientStatistics,
    NaturalParameters,
    Rates,
    StochasticProblem,
    adapt,
    first_state,
    natural_step,
    penalised_bound,
    retraction_step,
)
from pgmodels.model import Data
from pgmodels.numerics.iteration import adam_step, initial_adam
from pgmodels.objectives.expected import ShiftedQuadrature
from pgmodels.parameters.vector import trainable
from pgmodels.priors.dense import WHITENING_JITTER
from pgmodels.runtime.io import read_arrays
from pgmodels.runtime.precision import as_array
from tests.covering import some
from tests.own_likelihoods import log_poisson, shared
from tests.programs import run
from tests.referees import rbf

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
    monkeypatch.setattr("pgmodels.inference.svi.make_settings", partial(make_settings, window_steps=window))
    rows, options = pgm.ArrayRows(X, LABELS), {"train_hyperparameters": train_hyperparameters, "checkpoint": checkpoint}
    with pytest.warns(pgm.ConvergenceWarning, match=f"after {max_epochs} passes"):
        return pgm.svi(MODEL, rows, batch_size=40, tolerance=1e-9, max_epochs=max_epochs, **options)


def assert_alike(ours, theirs):
    np.testing.assert_allclose(ours.predict_latent(X[:5]), theirs.predict_latent(X[:5]), rtol=1e-10)
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


class StepsAreShapesOnly:
    """Steps that are not to be computed."""

    def __init__(self, advance):
        self.shapes = advance.shapes

    def __call__(self, *arguments):
        raise AssertionError("the steps were saved")


# Within the first window, and after two of them.
@pytest.mark.parametrize(("window", "max_epochs", "others"), some([(200, 2, (1, 3)), (16, 3, (4,))], (200, 2, (1, 3))))
def test_the_steps_after_the_last_full_window_are_saved(monkeypatch, tmp_path, window, max_epochs, others):
    first, full = few_steps(monkeypatch, window, max_epochs, tmp_path), 12 * max_epochs // window
    assert (first.fit.num_steps, len(first.elbo_trace)) == (12 * max_epochs, full + 1)
    with monkeypatch.context() as patched:
        patched.setattr(svi_convergence, "advance", StepsAreShapesOnly(svi_convergence.advance))
        again = few_steps(monkeypatch, window, max_epochs, tmp_path)
    np.testing.assert_array_equal(again.elbo_trace, first.elbo_trace)
    np.testing.assert_array_equal(again.predict_latent(X[:5]), first.predict_latent(X[:5]))
    # Fewer and more steps are those of a run of their own.
    for number in others:
        ours, theirs = (few_steps(monkeypatch, window, number, folder) for folder in (tmp_path, None))
        np.testing.assert_array_equal(ours.elbo_trace, theirs.elbo_trace)
        np.testing.assert_array_equal(ours.elbo_trace[:full], first.elbo_trace[:full])
        np.testing.assert_array_equal(ours.predict_latent(X[:5]), theirs.predict_latent(X[:5]))


def test_results_are_those_that_every_other_call_takes(exact):
    result = pgm.svi(MODEL, (X, LABELS), batch_size=480, tolerance=1e-7)
    assert result.elbo == pytest.approx(exact.elbo, abs=1e-7)
    np.testing.assert_allclose(result.predict_latent(X[:5] + 0.1), exact.predict_latent(X[:5] + 0.1), atol=1e-5)
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
def test_the_bound_of_all_rows_and_its_gradient_are_those_written_out(double_precision, inputs_move):
    problem, vector = learning(LEARNED, X[::16], inputs_move)
    assert len(vector) == 4 + 4 * inputs_move
    assert problem.parameters.names == ["dispersion", "variance", "lengthscale", "mean"]
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
def test_at_the_optimal_q_the_gradient_is_that_of_the_collapsed_bound(double_precision):
    rows = X[::16]
    problem, vector = learning(LEARNED, rows)
    every, rates = DataBatch(as_array(rows)[None], as_array(COUNTS)[None]), Rates(*map(as_array, [1.0, 0.0, 0.0]))
    state = run(first_state, problem, vector, every)
    for _ in range(100):
        state, _ = svi_convergence.advance(problem, state, every, rates, 0, 1)
    (value, _), slope = run(
        jax.value_and_grad(lambda v: penalised_bound(problem, state.naturals, v, every.number(0)), has_aux=True), vector
    )
    collapsed = MarginalBound.of(trainable(LEARNED), Data(rows, COUNTS)).at(np.asarray(vector))
    # The other has no jitter at Z, here 1e-8 of the variance.
    assert float(value) == pytest.approx(-collapsed.value, abs=1e-5)
    np.testing.assert_allclose(slope, -collapsed.slope, atol=1e-4)


def test_adam_is_that_of_its_paper(double_precision):
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
    fitted, before = pgm.fit(model, X, LABELS, objective="augmented"), svi_convergence.advance.cache_size()
    result = pgm.svi(model, X, LABELS, batch_size=60, train_hyperparameters=True, max_epochs=1000)
    assert result.converged
    # Hundreds of windows, and four starts before them, in one program.
    assert svi_convergence.advance.cache_size() == before + 1
    # The ELBO is flat about its optimum, to which steps on 60 rows come within a fraction of a deviation.
    assert fitted.elbo - 0.1 < result.elbo < fitted.elbo + 1e-3
    ours, theirs = (each.model.gps[0].kernel for each in (result, fitted))
    assert float(ours.lengthscale.value) == pytest.approx(float(theirs.lengthscale.value), rel=0.1)
    assert float(result.model.gps[0].mean.value) == 0.3
    assert set(result.fit.values) == set(fitted.fit.values)
    assert result.fit.start in result.fit.start_elbos
    assert model.gps[0].kernel == kernel


LEARNING_ALL = {"train_hyperparameters": True, "train_inducing": True}


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
                pgm.svi(model, X[rows], LABELS[rows], batch_size=60, max_epochs=1, **LEARNING_ALL)
        return (svi_convergence.advance if learns == "svi" else bound._ascend).cache_size()

    programs = learn(slice(0, 240), np.array([[-2.0], [0.3], [2.4]]))
    assert learn(slice(240, 480), np.array([[0.4], [1.3], [2.9]])) == programs


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pgmodels.InducingWarning")
def test_inducing_inputs_are_learned_along_where_asked():
    start = np.array([[-2.9], [-2.7], [0.1], [0.2], [2.6]])
    kernel = pgm.RBF(pgm.Fixed(3.0), pgm.Fixed(0.9))
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(kernel, mean=pgm.Fixed(0.3), form=pgm.Inducing(start)))
    result = pgm.svi(model, X, LABELS, batch_size=120, tolerance=0.3, max_epochs=1000, **LEARNING_ALL)
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
    assert is_flat(noise)
    assert not is_flat(noise + 3.0 * np.arange(9))
    # What was gained before does not count, and of five windows nothing can be said.
    assert is_flat(np.array([-80.0, -40.0, -20.0, *noise[3:]]))
    assert not is_flat(np.zeros(5))


@pytest.mark.parametrize("options", [{"train_hyperparameters": True}, {"objective": "expected"}])
def test_dense_latents_are_refused(options):
    ((name, value),) = options.items()
    with pytest.raises(ValueError, match=rf"svi with {name}={value!r} needs GPs with inducing inputs; got GP\(RBF"):
        pgm.svi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF())), X, LABELS, **options)


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
        (
            {"objective": "laplace"},
            "objective must be one of 'augmented', 'expected', 'mean_field', 'factorised', 'additive_noise', 'gumbel', "
            "'taylor', or an instance of a subclass of pgm.Objective; got 'lap",
        ),
        ({"objective": "expected", "rate": "adaptive"}, "rate='adaptive' needs objective='augmented'"),
        (
            {"objective": "expected", "class_batch_size": 1},
            "class_batch_size cannot be combined with objective='expected'",
        ),
    ],
)
def test_wrong_options_are_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        pgm.svi(MODEL, X, LABELS, **options)


@pytest.mark.parametrize("source", ["rows.parquet", X, (X,), [(X, LABELS)]])
def test_data_without_y_are_refused(source):
    with pytest.raises(ValueError, match=r"y is missing, and X, of type .*pgm\.ParquetRows\(files, target\)"):
        pgm.svi(MODEL, source)


# Where steps on batches stand still far from the optimum: rare events and classes that can be told apart.


def rare(num_rows, ones):
    """A shared level of which few rows say that it is not far down: the last of them is in no batch of 100."""
    y = np.zeros(num_rows)
    y[np.linspace(3, num_rows - 2, ones).astype(int)] = 1.0
    return np.linspace(0.0, 1.0, num_rows)[:, None], y


LEVEL = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Constant(4.0), form=pgm.Inducing(1)))


def best_level(y):
    """Mean, variance and bound of the best q of one N(0, 4) level beside Polya-Gamma variables: in two dimensions."""

    def loss(at):
        m, v = at[0], np.exp(at[1])
        bound = np.sum((y - 0.5) * m) - len(y) * np.log(2.0 * np.cosh(0.5 * np.sqrt(m**2 + v)))
        return 0.5 * ((m**2 + v) / 4.0 - 1.0 - np.log(v / 4.0)) - bound

    optimum = minimize(loss, [-3.0, -3.0], method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-12})
    return optimum.x[0], np.exp(optimum.x[1]), -optimum.fun


@pytest.mark.parametrize(
    ("num_rows", "ones", "batch_size"), some([(250, 2, 100), (1000, 5, 1000), (5000, 25, 1000)], (250, 2, 100))
)
@pytest.mark.parametrize("source", [lambda *data: data, lambda *data: (pgm.ArrayRows(*data),)], ids=["arrays", "rows"])
def test_rare_events_end_at_the_optimum(num_rows, ones, batch_size, source):
    X, y = rare(num_rows, ones)
    mean, variance, bound = best_level(y)
    result = pgm.svi(LEVEL, *source(X, y), batch_size=batch_size)
    assert result.converged
    assert bound - 1e-4 * num_rows / 20.0 < result.elbo <= bound + 1e-4
    m, v = (part.item() for part in result.predict_latent(X[:1]))
    assert abs(m - mean) < 0.2 * np.sqrt(variance)
    assert v == pytest.approx(variance, rel=0.01)


@pytest.mark.parametrize(
    ("max_epochs", "complaint"),
    [
        (4, "none remains to measure the gain of a step on all rows"),
        (5, r"a step on all rows still gains [0-9.]+ nats"),
    ],
)
def test_an_optimum_that_is_not_reached_is_said(max_epochs, complaint):
    X, y = rare(250, 2)
    for source in ((X, y), (pgm.ArrayRows(X, y),)):
        with pytest.warns(pgm.ConvergenceWarning, match=f"after {max_epochs} passes {complaint}. Raise max_epochs"):
            assert not pgm.svi(LEVEL, *source, batch_size=250, max_epochs=max_epochs).converged


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [100, 60])
def test_separable_classes_end_at_the_optimum(batch_size):
    X = np.linspace(-3.0, 3.0, 100)[:, None]
    y = (X[:, 0] > 0.0).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(100.0, 1.0), form=pgm.Inducing(7, "kmeans")))
    exact = pgm.cavi(model, X, y, tolerance=1e-12)
    for source in ((X, y), (pgm.ArrayRows(X, y),)):
        result = pgm.svi(model, *source, batch_size=batch_size)
        assert result.converged
        assert exact.elbo - 1e-3 < result.elbo <= exact.elbo + 1e-6
        moved = result.predict_latent(X)[0] - exact.predict_latent(X)[0]
        assert np.max(np.abs(moved) / np.sqrt(exact.variance)) < 0.2


@pytest.mark.slow
def test_ten_blobs_have_the_loss_of_all_rows():
    rng = np.random.default_rng(0)
    centres = rng.uniform(-10.0, 10.0, (10, 2))
    y = rng.integers(10, size=600)
    X = centres[y] + 0.8 * rng.standard_normal((600, 2))
    model = pgm.Model(pgm.LogisticSoftmax(10), pgm.GP(pgm.RBF(40.0, 3.0), size=10, form=pgm.Inducing(30, "kmeans")))
    exact, result = pgm.cavi(model, X, y), pgm.svi(model, X, y)
    assert result.converged
    assert result.elbo == pytest.approx(exact.elbo, abs=1e-3)
    losses = [-np.mean(each.predict(X).log_density(y)) for each in (exact, result)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-3)


# Rows of batches shared by devices and processes: the same numbers as on one, computed where the rows are.


SHARDING_RNG = np.random.default_rng(21)
SHARDING_X = SHARDING_RNG.normal([0.4, -0.2], size=(610, 2))
Y = SHARDING_X[:, 0] - np.sin(2.0 * SHARDING_X[:, 1]) + 0.3 * SHARDING_RNG.standard_t(4.0, 610)
Z = np.array([[-1.5, -1.0], [-0.5, 0.7], [0.4, -0.6], [1.3, 0.9], [0.1, 0.2]])
SHARDING_MODEL = pgm.Model(pgm.StudentT(4.0, 0.5), pgm.GP(pgm.RBF(2.0, 1.2), mean=0.3, form=pgm.Inducing(Z)))
# On four devices three rows fill up each batch, on two one.
SIZE, FILLED = 61, 64
SCRIPT = "from tests.inference import test_svi as t; getattr(t, sys.argv[1])(*sys.argv[2:])"
# Before anything is computed, as the models of this module are.
JOINED = "if sys.argv[1] == 'work': jax.distributed.initialize(sys.argv[3], 2, int(sys.argv[4]))"


def figures(y=Y, checkpoint=None):
    """What two short windows of steps learn on whatever devices there are."""
    rows = pgm.ArrayRows(SHARDING_X, y, standardise=True)
    options = {"batch_size": SIZE, "rate": "adaptive", "train_hyperparameters": True, "max_epochs": 8}
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("pgmodels.inference.svi.make_settings", partial(make_settings, window_steps=40))
        warnings.simplefilter("ignore", pgm.ConvergenceWarning)
        result = pgm.svi(SHARDING_MODEL, rows, checkpoint=checkpoint, **options)
    mean, variance = result.predict_latent(SHARDING_X[:7])
    return {"trace": result.elbo_trace, "mean": mean, "variance": variance, **result.fit.values}


def save(path):
    """The figures, and the program of the steps."""
    advance, programs = svi_convergence.advance, []

    def compiled(*arguments):
        if not programs:
            programs.append(advance.program(*arguments).lower(*arguments).compile())
        return programs[0](*arguments)

    svi_convergence.advance = compiled
    values = figures()
    np.savez(path, program=programs[0].as_text(), **values)


def work(folder, address, process):
    """One of two processes. It saves the figures, is given other rows than the other one, and the second ends early."""
    np.savez(f"{folder}/{process}.npz", **figures())
    with pytest.raises(ValueError, match="or checkpoint of process 1 differ from"):
        figures(Y + int(process))
    EngineCheckpoint.interval = 0.0
    following, calls = svi_convergence.next_window, []

    def ending(*arguments):
        calls.append(arguments)
        if process == "1" and len(calls) == 2:
            os._exit(3)
        return following(*arguments)

    svi_convergence.next_window = ending
    with pytest.raises(RuntimeError, match="process 0 has lost the others: one of them has ended"):
        figures(checkpoint=f"{folder}/steps")
    # JAX would wait for the other one.
    os._exit(4)


@pytest.fixture(scope="module")
def alone():
    return figures()


def start(name, *arguments, flags=""):
    """A function of this module in a process of its own."""
    environment = dict(os.environ, XLA_FLAGS=f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip())
    command = [sys.executable, "-c", f"import sys, jax\n{JOINED}\n{SCRIPT}", name, *map(str, arguments)]
    root = Path(__file__).parents[2]
    return subprocess.Popen(command, cwd=root, env=environment, stderr=subprocess.PIPE, encoding="utf-8")


def assert_close(ours, theirs):
    for name, value in theirs.items():
        # Sums in another order, whose rounding 80 steps carry on.
        np.testing.assert_allclose(ours[name], value, rtol=1e-8, atol=1e-8, err_msg=name)


@pytest.mark.slow
def test_four_devices_give_the_numbers_of_one(alone, tmp_path):
    process = start("save", tmp_path / "four.npz", flags="--xla_force_host_platform_device_count=4")
    errors = process.communicate(timeout=600)[1]
    assert process.returncode == 0, errors
    by_four = np.load(tmp_path / "four.npz")
    assert len(alone["trace"]) == 2
    assert_close(by_four, alone)
    program = str(by_four["program"])
    assert "all-reduce" in program
    assert f"f64[{len(Z)},{FILLED // 4}]" in program
    sizes = [size for rows in (SIZE, FILLED) for size in (f"f64[{len(Z)},{rows}]", f"f64[{rows},")]
    for unsharded in ("all-gather", *sizes):
        assert unsharded not in program


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one_and_one_that_ends_is_named(alone, tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    processes = [start("work", tmp_path, address, process) for process in range(2)]
    try:
        errors = [process.communicate(timeout=600)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [4, 3], errors
    for process in range(2):
        assert_close(np.load(tmp_path / f"{process}.npz"), alone)
    # The first window was saved, and is gone on from.
    assert len(read_arrays(tmp_path / "steps" / "svi.npz")[1]["states.full.leaves.0"]) == 1
    assert_close(figures(checkpoint=tmp_path / "steps"), alone)


# Steps on batches with expected log densities, against the variational Gaussian on all rows.


WAVE_RNG = np.random.default_rng(31)
WAVE_X = np.sort(WAVE_RNG.uniform(-3.0, 3.0, (90, 1)), axis=0)
WAVE = np.sin(1.7 * WAVE_X[:, 0])
WAVE_LABELS = (WAVE_RNG.random(90) < 1.0 / (1.0 + np.exp(-6.0 * WAVE))).astype(float)
# Far out, where the log density of Student's t is convex.
OUTLYING = 1.5 * WAVE + 0.2 * WAVE_RNG.standard_t(3.0, 90) + np.where(np.arange(90) % 17 == 3, 2.5, 0.0)
WAVE_Z = np.linspace(-3.0, 3.0, 7)[:, None]


def gp(mean=0.3, variance=2.0, lengthscale=0.9, size=1):
    return pgm.GP(pgm.RBF(variance, lengthscale), mean=mean, size=size, form=pgm.Inducing(WAVE_Z))


CASES = {
    "bernoulli": (pgm.Model(pgm.Bernoulli(), gp()), WAVE_LABELS),
    "student_t": (pgm.Model(pgm.StudentT(3.0, 0.2), gp()), OUTLYING),
    "log_poisson": (pgm.Model(log_poisson(), gp(0.8, 0.5)), WAVE_RNG.poisson(np.exp(0.8 + WAVE)).astype(float)),
    "shared": (
        pgm.Model(shared(), [gp(0.2), gp(-0.4, 0.8, 1.5)]),
        np.column_stack([WAVE_LABELS, WAVE + WAVE_RNG.normal(0, 0.8, 90)]),
    ),
}


@pytest.mark.filterwarnings("ignore:the inducing inputs, [0-9]+ in all, are too few")
@pytest.mark.parametrize("size", some([90, 30], 30))
@pytest.mark.parametrize("name", some(CASES, "log_poisson"))
def test_steps_end_at_the_variational_gaussian(name, size):
    model, y = CASES[name]
    exact = pgm.gaussian_vi(model, WAVE_X, y, tolerance=1e-12)
    result = pgm.svi(model, WAVE_X, y, batch_size=size, objective="expected", tolerance=0.01, max_epochs=4000)
    assert result.converged
    assert result.objective == "expected"
    with jax.enable_x64(True):
        _, precision = expected_objective(model).local_sites(exact.mean, exact.variance, y, model.parameters)
    # Precisions below zero are among the optima.
    assert name != "student_t" or np.min(np.asarray(precision)) < -0.05
    deviation = np.sqrt(exact.predict_latent(WAVE_X[::9])[1])
    # The rule of several predictors has noise, which steps leave some of.
    atol = 0.005 if model.num_latents == 1 else 0.08
    for ours, theirs, power in zip(
        result.predict_latent(WAVE_X[::9]), exact.predict_latent(WAVE_X[::9]), (1, 2), strict=True
    ):
        np.testing.assert_allclose((ours - theirs) / deviation**power, 0.0, atol=atol)


def closest_independent(model, y):
    """Means and roots of whitened values at Z, of each latent by itself, of the largest bound: by L-BFGS."""
    terms, size, count = expected_objective(model), model.num_latents, len(WAVE_Z)
    K = rbf(WAVE_Z, 2.0, 0.9) + WHITENING_JITTER * 2.0 * np.eye(count)
    A = np.linalg.solve(np.linalg.cholesky(K), 2.0 * np.exp(-0.5 * ((WAVE_Z - WAVE_X.T) / 0.9) ** 2))
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
    y = WAVE_LABELS + (WAVE_X[:, 0] > 1.0)
    result = pgm.svi(model, WAVE_X, y, batch_size=30, objective="expected", tolerance=0.01)
    mean, variance = closest_independent(model, y)
    for ours, theirs, power in zip(result.predict_latent(WAVE_X), (mean, variance), (1, 2), strict=True):
        np.testing.assert_allclose((ours - theirs) / np.sqrt(variance) ** power, 0.0, atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("predictors", [1, 3])
def test_shifted_nodes_have_the_integral_as_their_mean(predictors):
    model = pgm.Model(pgm.Bernoulli() if predictors == 1 else pgm.LogisticSoftmax(3), gp(size=predictors))
    exact = expected_objective(model)
    shifted = ShiftedQuadrature.of(exact)
    # As wide as 33 nodes, or 16, are too few for and those of the exact rule enough.
    widest = 90.0 if predictors == 1 else 4.0
    m, v = (WAVE_RNG.normal(0.0, 2.0, (2, predictors)), np.array([[widest], [1.0]]) * np.linspace(1.0, 0.5, predictors))
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
    m, v, y = WAVE_RNG.normal(size=(6, 1)), np.full((6, 1), 60.0), WAVE_LABELS[:6]
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
    model, y = pgm.Model(pgm.Bernoulli(), gp()), WAVE_LABELS
    exact = pgm.fit(model, WAVE_X, y, objective="expected")
    result = pgm.svi(model, WAVE_X, y, batch_size=45, train_hyperparameters=True, objective="expected", tolerance=0.02)
    again = pgm.gaussian_vi(result.model, WAVE_X, y)
    assert exact.elbo - 0.01 < again.elbo <= exact.elbo
    # The derived bound has its optimum elsewhere.
    other = pgm.gaussian_vi(pgm.fit(model, WAVE_X, y, objective="augmented").model, WAVE_X, y)
    assert other.elbo < exact.elbo - 0.1


@pytest.mark.slow
def test_weights_are_powers_and_predictions_are_of_one_row():
    weights = WAVE_RNG.integers(0, 3, 90)
    model = pgm.Model(pgm.Bernoulli(), gp())
    options = {"objective": "expected", "batch_size": 1000, "tolerance": 1e-4}
    result = pgm.svi(model, WAVE_X, WAVE_LABELS, weights=weights, **options)
    again = pgm.svi(model, np.repeat(WAVE_X, weights, axis=0), np.repeat(WAVE_LABELS, weights), **options)
    np.testing.assert_allclose(result.predict_latent(WAVE_X[:5]), again.predict_latent(WAVE_X[:5]), rtol=1e-6)
    densities = [each.predict(WAVE_X[:5]).log_density(WAVE_LABELS[:5]) for each in (result, again)]
    np.testing.assert_allclose(*densities, rtol=1e-6)
