"""How inducing inputs are chosen: by the prior, by chance, and by what the data say."""

import re
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.inference.bound import MarginalBound
from pgmodels.kernels.kernel import CallableKernel
from pgmodels.model import Data
from pgmodels.parameters.vector import trainable
from pgmodels.priors import inducing as selection
from pgmodels.priors.inducing import Inducing, greedy
from pgmodels.runtime.precision import as_array
from tests.priors.test_inducing import KERNEL, LABELS, N, X, bernoulli, one_scale

pytestmark = pytest.mark.usefixtures("double_precision")


def test_greedy_selection_takes_the_largest_variance_that_is_left():
    weights = np.random.default_rng(7).gamma(1.0, 1.0, N)
    weights[:4] = 0.0
    for w in (np.ones(N), weights):
        chosen = greedy(KERNEL, X, 6, w)
        for count, z in enumerate(chosen):
            Z = chosen[:count]
            residual = np.asarray(KERNEL.diagonal(X))
            if count:
                residual = residual - np.sum(
                    np.asarray(KERNEL(Z, X)) * np.linalg.solve(KERNEL(Z, Z), KERNEL(Z, X)), axis=0
                )
            np.testing.assert_array_equal(z, X[np.argmax(w * residual)])
        assert count == 5
    # Rows that nothing is said of are never taken.
    assert not (greedy(KERNEL, X, N, weights)[:, None] == X[:4]).all(axis=2).any()


def test_where_no_row_is_worth_it_one_is_taken():
    """As of a latent that noise leaves without variance, whose form still needs an input."""
    np.testing.assert_array_equal(greedy(KERNEL, X, 6, np.full(N, 1e-6), enough=0.05), X[:1])


def test_a_greedy_choice_among_more_rows_than_fit_into_memory_is_of_a_sample(monkeypatch):
    rows, weights = np.random.default_rng(5).uniform(-2.0, 2.0, (600, 2)), np.full(600, 3.0)
    of_all_rows = greedy(KERNEL, rows, 40, weights, enough=30.0)
    monkeypatch.setattr(selection, "HELD", 40 * 200)
    some = greedy(KERNEL, rows, 40, weights, enough=30.0)
    assert (some[:, None] == rows).all(axis=2).any(axis=1).all()
    assert not np.array_equal(some, of_all_rows)
    # What a third of the rows leaves stands for what all of them leave, to about a row.
    assert abs(len(some) - len(of_all_rows)) <= 2 < len(of_all_rows) < 40


@pytest.mark.parametrize("select", ["kmeans", "uniform", "variance"])
def test_selections_cover_inputs_that_they_have_not_seen(select):
    rng = np.random.default_rng(4)
    rows, new_rows = rng.normal(size=(400, 2)), rng.normal(size=(50, 2))
    Z = pgm.Inducing(40, select).choose(KERNEL, rows)
    assert Z.shape == (40, 2)
    prior = pgm.Inducing(Z).bind(KERNEL, 0.0, rows, 1)
    # Forty inputs span 3 x 2 lengthscales with little left; a tenth of the variance, where 400 rows have 1.7.
    assert np.mean(np.asarray(prior.factor_at(jnp.asarray(new_rows))[1])) < 0.17
    np.testing.assert_array_equal(Z, pgm.Inducing(40, select).choose(KERNEL, rows))


@pytest.mark.slow
def test_another_choice_of_inducing_inputs_never_lowers_the_bound(monkeypatch):
    bound = MarginalBound(trainable(one_scale(pgm.Inducing(5))), Data(X, LABELS))
    bound.inputs = (X[:2],)
    bound(bound.vector)
    before = bound.best
    assert bound.choose_again(1e-5)
    assert len(bound.inputs[0]) == 5
    assert bound.best < before
    inputs, before = bound.inputs[0], bound.best
    monkeypatch.setattr(Inducing, "choose", lambda *arguments: X[:1])
    assert not bound.choose_again(1e-5)
    np.testing.assert_array_equal(bound.inputs[0], inputs)
    assert bound(bound.vector)[0] == pytest.approx(before, abs=1e-8)


def test_selection_by_what_the_data_say_is_no_worse_than_by_variance():
    by_variance, by_data = (
        pgm.cavi(bernoulli(pgm.Inducing(5, how)), X, LABELS) for how in ("variance", "heteroscedastic")
    )
    assert by_data.elbo >= by_variance.elbo
    assert by_data.model != by_variance.model


def rough(form):
    """A lengthscale at which the data are two dozen nearly unrelated values."""
    return pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.7, 0.25), mean=0.4, form=form))


def count(model):
    return len(model.gps[0].form.inputs)


@pytest.mark.slow
def test_as_many_inducing_inputs_as_the_data_gain_by(monkeypatch):
    monkeypatch.setattr(selection, "_FIRST", 3)
    for of in (bernoulli, rough):
        enough, dense = (pgm.cavi(of(form), X, LABELS) for form in (pgm.Inducing("auto"), pgm.Dense()))
        # More of them gained less than 0.05 nats.
        assert dense.elbo - 0.1 < enough.elbo < dense.elbo + 1e-9
        fewer = pgm.cavi(of(pgm.Inducing(count(enough.model) // 2, "variance")), X, LABELS)
        assert fewer.elbo < enough.elbo - 0.05
    smooth = pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.7, 3.0), form=pgm.Inducing("auto"))), X, LABELS)
    assert count(smooth.model) < 15 < count(enough.model) <= N


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["fit", "svi", "svi with weights", "gibbs"])
def test_every_engine_finds_how_many_inducing_inputs_are_enough(monkeypatch, engine):
    monkeypatch.setattr(selection, "_FIRST", 3)
    model, fixed = one_scale(pgm.Inducing("auto")), bernoulli(pgm.Inducing("auto"))
    if engine == "fit":
        sparse, dense = pgm.fit(model, X, LABELS), pgm.fit(one_scale(pgm.Dense()), X, LABELS)
        assert dense.elbo - 0.1 < sparse.elbo < dense.elbo + 1e-6
    elif engine == "gibbs":
        sparse = pgm.gibbs(fixed, X, LABELS, num_samples=2, num_warmup=0, num_chains=1)
    else:
        dense = pgm.fit(one_scale(pgm.Dense()), X, LABELS, objective="augmented")
        weights = np.ones(N) if "weights" in engine else None
        sparse = pgm.svi(model, X, LABELS, weights=weights, batch_size=N, train_hyperparameters=True)
        assert dense.elbo - 0.2 < sparse.elbo < dense.elbo + 1e-6
    assert 3 < count(sparse.model) <= N


@pytest.mark.slow
def test_what_little_variance_is_left_for_may_still_gain_a_lot():
    """Sharp edges that a smooth kernel leaves hardly any variance for, and precise data that want them."""
    inputs = np.linspace(-3.0, 3.0, 120)[:, None]
    y = np.sign(np.sin(4.0 * inputs[:, 0])) + 0.02 * np.random.default_rng(3).normal(size=120)

    def wave(form):
        return pgm.Model(pgm.Gaussian(pgm.Fixed(0.05)), pgm.GP(pgm.RBF(pgm.Fixed(1.0), pgm.Fixed(0.3)), form=form))

    dense = pgm.cavi(wave(pgm.Dense()), inputs, y)
    for engine in (pgm.cavi, pgm.fit):
        enough = engine(wave(pgm.Inducing("auto")), inputs, y)
        assert dense.elbo - 0.1 < enough.elbo < dense.elbo + 1e-6


@pytest.mark.slow
def test_a_kernel_so_smooth_that_no_sharper_choice_is_another_ends_the_search():
    """Rounding leaves no variance for more than a few rows: the bound is asked of a handful of choices."""
    line = np.linspace(-2.0, 2.0, 60)[:, None]
    labels = (np.arange(60) % 7 < 3).astype(float)
    smooth = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 30.0), mean=0.1, form=pgm.Inducing("auto")))
    bound = MarginalBound(trainable(smooth), Data(line, labels))
    bound(bound.vector)
    vector, best = bound.vector, bound.best
    for _ in range(3):
        bound.choose_again(1e-5)
    assert bound.evaluations < 15
    # What is best is known of the inputs that are held.
    assert bound.best <= best
    assert bound(bound.vector)[0] == pytest.approx(bound.best, abs=1e-9)
    np.testing.assert_array_equal(bound.vector, vector)
    assert count(pgm.cavi(smooth, line, labels).model) <= 60


@pytest.mark.slow
def test_more_inducing_inputs_than_are_allowed_are_asked_for():
    with pytest.warns(
        pgm.InducingWarning, match=r"Inducing\(5, 'auto'\) took its maximum of 5 .*Inducing\(10, 'auto'\)"
    ):
        result = pgm.cavi(rough(pgm.Inducing(5, "auto")), X, LABELS)
    assert count(result.model) == 5
    with pytest.warns(pgm.InducingWarning):
        pgm.fit(rough(pgm.Inducing(4, "auto")), X, LABELS, max_iterations=30)
    # Where there are no more than are taken, there are none to ask for.
    few = np.repeat(X[:6], 4, axis=0)
    exact = pgm.cavi(rough(pgm.Inducing(6, "auto")), few, LABELS)
    assert exact.elbo == pytest.approx(pgm.cavi(rough(pgm.Dense()), few, LABELS).elbo, abs=1e-6)


def test_a_form_that_chooses_says_so():
    assert repr(pgm.Inducing("auto")) == "Inducing('auto')"
    assert repr(pgm.Inducing(500, "auto")) == "Inducing(500, 'auto')"
    assert pgm.Inducing("auto") == pgm.Inducing(1000, "auto")
    with pytest.raises(ValueError, match="whole number"):
        pgm.Inducing("kmeans")


WIDE = np.array([1.0, 1000.0])


def test_centres_are_the_same_places_in_other_units():
    X = np.random.default_rng(0).normal(size=(300, 2))
    form = pgm.Inducing(12, "kmeans")
    Z = form.choose(pgm.RBF(4.0, [0.8, 800.0]), WIDE * X)
    np.testing.assert_allclose(Z, WIDE * form.choose(pgm.RBF(4.0, [0.8, 0.8]), X), rtol=1e-6)
    assert len(np.unique(Z[:, 0])) == 12


def test_centres_go_by_the_columns_that_the_kernel_reads():
    """Of rows of a second column a thousand times as wide they would be means of the first, a deviation from most."""
    X = np.random.default_rng(0).normal(size=(300, 2))
    for kernel in (pgm.On(pgm.RBF(4.0, 0.7), [0]), pgm.On(pgm.Matern12(4.0, 0.7), [0]) + pgm.White(0.1)):
        Z = pgm.Inducing(12, "kmeans").choose(kernel, WIDE * X)
        assert np.abs(X[:, :1] - Z[:, 0]).min(axis=1).mean() < 0.1


GROUPS = np.column_stack([np.random.default_rng(3).uniform(0.0, 3.0, 120), np.arange(120) % 4])
INTERCEPTS = pgm.On(pgm.RBF(1.0, 0.5), [0]) + pgm.On(pgm.White(4.0), [1])
# Covariances of three outputs, looked up by an index.
OUTPUTS = jnp.array([[1.0, 0.6, -0.4], [0.6, 1.5, 0.1], [-0.4, 0.1, 0.8]])


def looked_up(A, B):
    here, there = (part[:, 1].astype(int) % 3 for part in (A, B))
    return OUTPUTS[here[:, None], there] * jnp.exp(-0.5 * ((A[:, :1] - B[:, 0]) / 0.7) ** 2)


@pytest.mark.parametrize(
    ("kernel", "count", "most"), [(INTERCEPTS, 24, 0.02), (CallableKernel(looked_up), 12, 0.1)], ids=["groups", "index"]
)
def test_inducing_inputs_by_kmeans_have_levels_that_rows_have(kernel, count, most):
    Z = pgm.Inducing(count, "kmeans").choose(kernel, GROUPS)
    assert (Z[:, None] == GROUPS).all(axis=2).any(axis=1).all()
    K, across = (np.asarray(kernel(as_array(Z), as_array(to))) for to in (Z, GROUPS))
    explained = np.sum(across * np.linalg.solve(K + 1e-9 * np.eye(len(Z)), across), axis=0)
    variances = np.diagonal(np.asarray(kernel(as_array(GROUPS), as_array(GROUPS))))
    # Centres left 0.43 of the variance in both.
    assert np.sum(variances - explained) < most * np.sum(variances)


def test_inducing_inputs_by_kmeans_are_centres_where_these_tell_as_much():
    rows = np.random.default_rng(4).normal(size=(300, 2))
    for kernel in (KERNEL, pgm.Matern12(1.0, 0.5), pgm.RBF(1.0, 0.05)):
        Z = pgm.Inducing(40, "kmeans").choose(kernel, rows)
        # That of a single row is the row itself.
        assert (Z[:, None] == rows).all(axis=2).any(axis=1).mean() < 0.5


@pytest.mark.slow
def test_steps_on_batches_know_groups():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(0.0, 3.0, 200), rng.integers(0, 4, 200)])
    y = np.sin(3.0 * X[:, 0]) + np.array([2.0, -1.0, 0.5, -2.0])[X[:, 1].astype(int)] + 0.3 * rng.standard_normal(200)
    smooth = np.exp(-0.5 * ((X[:, :1] - X[:, 0]) / 0.5) ** 2)
    C = smooth + 4.0 * (X[:, 1:] == X[:, 1]) + 0.09 * np.eye(200)
    exact = -0.5 * (y @ np.linalg.solve(C, y) + np.linalg.slogdet(2.0 * np.pi * C)[1])
    model = pgm.Model(pgm.Gaussian(pgm.Fixed(0.3)), pgm.GP(INTERCEPTS, mean=0.0, form=pgm.Inducing(30)))
    for result in (pgm.svi(model, X, y), pgm.svi(model, pgm.ArrayRows(X, y))):
        assert exact - 0.2 < result.elbo < exact + 1e-3


@pytest.mark.slow
def test_too_few_inducing_inputs_are_said_with_what_they_cost():
    rng = np.random.default_rng(8)
    # Off the grid, on which rounding decides between rows that leave the same.
    X = (np.arange(300.0) + rng.uniform(-0.3, 0.3, 300))[:, None]
    K = 0.5 * np.exp(-0.5 * ((X - X.T) / 3.0) ** 2)
    y = np.linalg.cholesky(K + 1e-9 * np.eye(300)) @ rng.standard_normal(300) + 0.5 * rng.standard_normal(300)
    C = K + 0.25 * np.eye(300)
    exact = -0.5 * (y @ np.linalg.solve(C, y) + np.linalg.slogdet(2.0 * np.pi * C)[1])

    def at(Z):
        return pgm.Model(pgm.Gaussian(0.5), pgm.GP(pgm.RBF(0.5, 3.0), mean=0.0, form=pgm.Inducing(Z)))

    def model(count):
        return at(X[:: 300 // count])

    def streamed(model, X, y):
        return pgm.svi(model, pgm.ArrayRows(X, y), batch_size=300)

    found_enough = None
    for engine in (pgm.cavi, pgm.gaussian_vi, streamed):
        with pytest.warns(pgm.InducingWarning, match=r"50 in all, are too few") as warnings:
            result = engine(model(50), X, y)
        (nats,) = (float(re.search(r"about (\d+) nats", str(each.message))[1]) for each in warnings)
        # The term that is known beside what the other terms make of it.
        assert nats == pytest.approx(exact - result.elbo, rel=0.5)
        number = re.search(r"About (\d+) greedily|More than 50 are needed", str(warnings[0].message))[1]
        assert (number is None) == (engine is streamed)
        found_enough = number or found_enough
    # With as many rows as are said to do nothing is said, and with far fewer of them it is.
    enough = greedy(pgm.RBF(0.5, 3.0), X, int(found_enough))
    assert 64 < len(enough) < 100
    assert exact - 12.0 < pgm.cavi(at(enough), X, y).elbo
    with pytest.warns(pgm.InducingWarning):
        pgm.cavi(at(enough[:64]), X, y)
    with pytest.warns(pgm.InducingWarning, match="Even 64 inputs lose more than 10 nats"):
        pgm.cavi(at(X[::9][:32]), X, y)
    # Spaced by two thirds of a lengthscale they leave next to nothing, and nothing is said.
    assert exact - 1.0 < pgm.cavi(model(150), X, y).elbo < exact


def test_values_that_few_inducing_inputs_pull_are_named_by_how_far():
    rng = np.random.default_rng(3)
    X = np.arange(150.0)[:, None]

    def log_density(log_lengthscale):
        C = 0.5 * np.exp(-0.5 * ((X - X.T) / np.exp(log_lengthscale)) ** 2) + 0.25 * np.eye(150)
        return -0.5 * (y @ np.linalg.solve(C, y) + np.linalg.slogdet(2.0 * np.pi * C)[1])

    y = np.linalg.cholesky(0.5 * np.exp(-0.5 * ((X - X.T) / 4.0) ** 2) + 0.25 * np.eye(150)) @ rng.standard_normal(150)
    grid = np.linspace(0.5, 3.5, 301)
    exact = grid[np.argmax([log_density(each) for each in grid])]
    deviation = (0.02**2 / (2.0 * log_density(exact) - log_density(exact - 0.02) - log_density(exact + 0.02))) ** 0.5

    gp = pgm.GP(pgm.RBF(pgm.Fixed(0.5), 4.0), mean=pgm.Fixed(0.0), form=pgm.Inducing(X[::6]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = pgm.fit(pgm.Model(pgm.Gaussian(pgm.Fixed(0.5)), gp), X, y)
    (message,) = (str(each.message) for each in caught if "to learn the hyperparameters" in str(each.message))
    off = (np.log(fitted.fit.values["lengthscale"]) - exact) / deviation
    named = float(re.search(r"25 in all.*at least: lengthscale by ([\d.]+)\. ", message)[1])
    assert off > 1.0
    assert 0.3 * off < named < off
