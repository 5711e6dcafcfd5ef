"""Bad input raises a ValueError that names the argument, what was got and the remedy, before any work."""

import pickle
import warnings
from functools import cache
from itertools import product

import jax
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy.special import expit

import pgmodels as pgm
from pgmodels.data.arrays import read_inputs
from pgmodels.diagnostics.diagnose import augmentation_gap
from pgmodels.diagnostics.vsbc import simulate_calibration
from pgmodels.inference import moves, prepare
from pgmodels.likelihoods.likelihood import log_density
from pgmodels.model import with_powers
from pgmodels.parameters.parameter import bare
from pgmodels.parameters.vector import trainable, with_priors
from tests.covering import some
from tests.own_likelihoods import exposed, label_noise, offset

X = np.arange(12.0).reshape(6, 2)
LABELS = np.array([0.0, 1.0, 0.0, 1.0, 1.0, 0.0])
COUNTS = np.array([0.0, 3.0, 1.0, 2.0, 0.0, 5.0])
CLASSES = np.array([0.0, 1.0, 2.0, 2.0, 1.0, 0.0])


def at(values, row, value, column=None):
    """A copy with one entry replaced."""
    values = np.array(values, dtype=float)
    values[row if column is None else (row, column)] = value
    return values


def model(likelihood=None, size=1, kernel=None):
    return pgm.Model(likelihood or pgm.Bernoulli(), pgm.GP(kernel or pgm.RBF(1.0, 1.0), size=size))


SOFTMAX = model(pgm.LogisticSoftmax(3), size=3)
REAL = model(pgm.Gaussian(1.0))
TRIALS = np.column_stack([COUNTS, np.full(6, 5.0)])
TEXT = np.array(["no", "yes"])[LABELS.astype(int)]

# What the message must contain: the argument, what was got, the remedy.
BAD_INPUTS = {
    "X one-dimensional": (X[:, 0], ["X must have shape (n, d)", "got shape (6,)", "X[:, None]"]),
    "X a scalar": (3.0, ["X must have shape (n, d)", "got shape ()"]),
    "X three-dimensional": (X.reshape(6, 2, 1), ["X must have shape (n, d)", "(6, 2, 1)", "X.reshape(len(X), -1)"]),
    "NaN in X": (
        at(at(X, 4, np.nan, 0), 2, np.nan, 1),
        ["X must be finite", "nan in row 2, column 1", "2 such values", "Drop or impute"],
    ),
    "infinity in X": (at(X, 3, -np.inf, 0), ["X must be finite", "-inf in row 3, column 0"]),
    "text in X": (X.astype(str).astype(object) + "a", ["X must be numeric", "Text is never converted"]),
    "no columns": (np.empty((6, 0)), ["X is empty", "(6, 0)", "one column"]),
}
BAD_LABELS = {
    "different lengths": (LABELS[:5], ["X and y", "same length", "6 rows of X and 5 of y"]),
    "y a column": (LABELS[:, None], ["y must have shape (n,)", "got shape (6, 1)", "y.ravel()"]),
    "y a matrix": (np.column_stack([LABELS] * 2), ["y must have shape (n,)", "got shape (6, 2)"]),
    "NaN in y": (
        at(LABELS, 3, np.nan),
        ["y must be finite", "nan in row 3", "missing='drop'", "missing='predict'", "impute"],
    ),
    "labels -1 and 1": (2 * LABELS - 1, ["y must hold the labels 0 and 1", "{-1, 1}", "asarray(y) == 1)"]),
    "labels 1 and 2": (LABELS + 1, ["y must hold the labels 0 and 1", "{1, 2}", "asarray(y) == 2)"]),
    "three labels in text": (
        np.array(["no", "so", "yes"])[CLASSES.astype(int)],
        ["y has 3 labels, 'no', 'so', 'yes'", "the likelihood needs 2", "pgm.Softmax(3)"],
    ),
    "one label in text": (
        np.full(6, "no"),
        ["y has 1 label, 'no'", "the likelihood needs 2", "a categorical of all", "['no', 'another 1']"],
    ),
    "three labels": (CLASSES, ["y must hold the labels 0 and 1", "2 in row 2", "LogisticSoftmax"]),
    "probabilities": (LABELS * 0.5 + 0.1, ["y must hold the labels 0 and 1", "{0.1, 0.6}"]),
}
BAD_OBSERVATIONS = {
    "NaN in real y": (REAL, at(COUNTS, 1, np.nan), ["y must be finite", "nan in row 1"]),
    "infinity in real y": (REAL, at(COUNTS, 1, np.inf), ["y must be finite", "inf in row 1"]),
    "too few labels in text": (
        *(SOFTMAX, TEXT),
        ["y has 2 labels, 'no', 'yes'", "needs 3", "['no', 'yes', 'another 1']", "one of 2 classes"],
    ),
    "counts in text": (
        model(pgm.NegativeBinomial(2.0)),
        TEXT,
        ["y must be numeric", "'no'", "in row 0", "the same codes"],
    ),
    "negative count": (
        *(model(pgm.NegativeBinomial(2.0)), at(COUNTS, 4, -1.0)),
        ["y must hold counts", "-1 in row 4", "real values"],
    ),
    "fractional count": (model(pgm.SigmoidPoisson(2.0)), at(COUNTS, 2, 0.5), ["y must hold counts", "0.5 in row 2"]),
    "successes above trials": (
        *(model(pgm.Binomial()), at(TRIALS, 1, 6.0, 0)),
        ["y must hold successes <= trials", "6 successes of 5 trials in row 1", "(successes, trials)"],
    ),
    "negative successes": (model(pgm.Binomial()), at(TRIALS, 1, -1.0, 0), ["successes in its first column", "row 1"]),
    "fractional trials": (model(pgm.Binomial()), at(TRIALS, 5, 5.5, 1), ["trials in its second column", "row 5"]),
    "successes without trials": (
        *(model(pgm.Binomial()), COUNTS),
        ["y must have shape (n, 2)", "y[0] to y[1]", "got shape (6,)", "np.column_stack"],
    ),
    "no offset column": (model(offset()), LABELS, ["y must have shape (n, 2)", "got shape (6,)"]),
    "class beyond the last": (SOFTMAX, at(CLASSES, 2, 3.0), ["y must hold class indices 0 to 2", "3 in row 2"]),
    "class below zero": (SOFTMAX, at(CLASSES, 0, -1.0), ["y must hold class indices 0 to 2", "-1 in row 0"]),
    "class not an integer": (SOFTMAX, at(CLASSES, 1, 0.5), ["indices 0 to 2", "0.5 in row 1", "set num_classes"]),
    "class beyond the last stick": (
        *(model(pgm.StickBreaking(3), size=2), at(CLASSES, 2, 3.0)),
        ["y must hold class indices 0 to 2", "3 in row 2"],
    ),
    "lengthscales of other columns": (
        *(model(kernel=pgm.RBF(1.0, np.ones(3))), LABELS),
        ["lengthscale of RBF has shape (3,)", "X has 2 column(s)", "1-D array of 2 number(s)"],
    ),
}
BAD_DATA = {name: (model(), inputs, LABELS, phrases) for name, (inputs, phrases) in BAD_INPUTS.items()}
BAD_DATA |= {name: (model(), X, y, phrases) for name, (y, phrases) in BAD_LABELS.items()}
BAD_DATA |= {name: (likelihood, X, y, phrases) for name, (likelihood, y, phrases) in BAD_OBSERVATIONS.items()}
BAD_DATA |= {"no rows": (model(), np.empty((0, 2)), np.empty(0), ["X is empty", "(0, 2)", "at least one row"])}


@pytest.mark.parametrize("engine", [pgm.cavi, pgm.gibbs])
@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data(name, engine, monkeypatch):
    model, X, y, phrases = BAD_DATA[name]

    def working(*args, **kwargs):
        raise AssertionError("work began before the data were checked")

    monkeypatch.setattr(pgm.Model, "prior", working)
    monkeypatch.setattr(prepare, "init", working)
    monkeypatch.setattr(moves, "fit_surrogate", working)
    with pytest.raises(ValueError) as raised:
        engine(model, X, y)
    for part in phrases:
        assert part in str(raised.value)


BAD_MODELS = {
    "negative lengthscale": (lambda: pgm.RBF(1.0, -1.0), ["lengthscale", "must be positive", "-1.0"]),
    "zero lengthscale": (lambda: pgm.RBF(1.0, 0.0), ["lengthscale", "must be positive", "0.0"]),
    "NaN lengthscale": (lambda: pgm.RBF(1.0, np.nan), ["lengthscale", "must be finite", "nan"]),
    "one bad lengthscale of two": (lambda: pgm.RBF(1.0, [1.0, -2.0]), ["lengthscale", "must be positive", "-2.0"]),
    "negative variance": (lambda: pgm.RBF(-1.0, 1.0), ["variance", "must be positive", "-1.0"]),
    "zero variance": (lambda: pgm.RBF(0.0, 1.0), ["variance", "must be positive", "0.0"]),
    "NaN variance": (lambda: pgm.RBF(np.nan, 1.0), ["variance", "must be finite", "nan"]),
    "variance in text": (lambda: pgm.RBF("large", 1.0), ["variance", "must be a number", "'large'"]),
    "infinite mean": (lambda: pgm.GP(pgm.RBF(1.0, 1.0), mean=np.inf), ["mean of a GP", "must be finite"]),
    "size zero": (lambda: pgm.GP(pgm.RBF(1.0, 1.0), size=0), ["size of a GP", "whole number >= 1", "got 0"]),
    "negative scale": (lambda: pgm.Gaussian(-1.0), ["scale of Gaussian", "must be positive", "-1.0"]),
    "zero df": (lambda: pgm.StudentT(0.0, 1.0), ["df of StudentT", "must be positive"]),
    "scale for each datum": (
        lambda: model(pgm.Gaussian(np.ones(3))),
        ["scale as one number", "3 entries", "columns of y"],
    ),
    "missing scale": (lambda: pgm.Gaussian(), ["Gaussian needs a value for scale", "Gaussian(scale=...)"]),
    "unknown parameter": (lambda: pgm.Gaussian(sigma=1.0), ["no parameter 'sigma'", "it has scale"]),
    "one class": (lambda: pgm.LogisticSoftmax(1), ["num_classes", "whole number >= 2", "got 1"]),
    "classes not whole": (lambda: pgm.StickBreaking(2.5), ["num_classes", "whole number >= 2", "2.5"]),
    "too few latents": (lambda: model(pgm.HeteroscedasticGaussian(1.0)), ["needs 2 latent GPs; got 1", "size=2"]),
    "too many latents": (lambda: model(pgm.Bernoulli(), size=2), ["Bernoulli needs 1 latent GP; got 2", "size=1"]),
    "too few for the classes": (lambda: model(pgm.LogisticSoftmax(3), size=2), ["needs 3 latent GPs; got 2"]),
    "not called": (lambda: model(pgm.Bernoulli), ["likelihood is the family Bernoulli", "Bernoulli()"]),
    "not a likelihood": (lambda: model("logit"), ["likelihood must be a pgmodels likelihood", "'logit'"]),
    "a bare kernel": (
        lambda: pgm.Model(pgm.Bernoulli(), [pgm.RBF(1.0, 1.0)]),
        ["gps must be a GP or a list of GPs", "pgm.GP("],
    ),
}


@pytest.mark.parametrize("name", BAD_MODELS)
def test_bad_models(name):
    build, phrases = BAD_MODELS[name]
    with pytest.raises(ValueError) as raised:
        build()
    for part in phrases:
        assert part in str(raised.value)


@pytest.mark.parametrize("kwargs", [{"max_iterations": 0}, {"tolerance": 0.0}, {"tolerance": np.nan}])
def test_bad_options_of_cavi(kwargs):
    with pytest.raises(ValueError, match=f"{next(iter(kwargs))} must be a"):
        pgm.cavi(model(), X, LABELS, **kwargs)


def test_indefinite_kernel():
    with pytest.raises(ValueError, match="not positive semi-definite"):
        pgm.cavi(model(kernel=lambda X, Z: -1.0 + 2.0 * (X[:, :1] == Z[:, :1].T)), X[:3], LABELS[:3])


@pytest.mark.parametrize(
    ("X_new", "phrases"),
    [
        (X[:, 0], ["X_new must have shape (n, d)", "X_new[:, None]"]),
        (at(X, 1, np.nan, 0), ["X_new must be finite", "row 1"]),
        (np.empty((0, 2)), ["X_new is empty"]),
        (X[:, :1], ["X_new must have the 2 column(s)", "got shape (6, 1)"]),
    ],
)
def test_bad_new_inputs(X_new, phrases):
    results = pgm.cavi(model(), X, LABELS), pgm.gibbs(model(), X, LABELS, num_samples=2, num_warmup=0)
    for result in results:
        with pytest.raises(ValueError) as raised:
            result.predict_latent(X_new)
        for part in phrases:
            assert part in str(raised.value)


@pytest.mark.parametrize("y", [LABELS.astype(int), LABELS.astype(bool), list(LABELS), LABELS.astype(np.float32)])
def test_labels_of_every_kind_are_read_alike(y):
    checked = model().check(X.tolist(), y)
    assert checked.X.dtype == checked.y.dtype == np.float64
    assert np.array_equal(checked.y, LABELS)


def test_a_fixed_model_has_nothing_left_to_learn_or_sample():
    gp = pgm.GP(pgm.RBF(dist.LogNormal(0.3, 1.0), 0.7) + pgm.White(0.1), mean=dist.Normal(0.2, 1.0))
    model = pgm.Model(pgm.StudentT(df=pgm.Fixed(4.0), scale=dist.LogNormal()), gp)
    assert with_priors(model).names == ["scale", "RBF.variance", "mean"]
    assert trainable(model.fixed()).names == with_priors(model.fixed()).names == []
    values = [np.asarray(leaf) for leaf in jax.tree.leaves(bare(model.fixed()))]
    assert np.array_equal(values, [np.asarray(leaf) for leaf in jax.tree.leaves(bare(model))])


# Several outputs with holes as long rows, against rows left out and a process of each output alone.


RNG = np.random.default_rng(3)
OUTPUTS_X = RNG.uniform(0.0, 3.0, (7, 1))
Y = RNG.normal(size=(7, 3))
Y[1, 0] = Y[2, 1] = Y[2, 2] = Y[6, 2] = np.nan
ROWS = np.array([(row, output) for row in range(7) for output in range(3) if np.isfinite(Y[row, output])])
LIBRARIES = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}
OUTPUTS = {"zinc": Y[:, 0], "lead": Y[:, 1], "tin": Y[:, 2]}


def test_holes_are_rows_left_out():
    stacked = pgm.stack_outputs(OUTPUTS_X, Y)
    np.testing.assert_array_equal(stacked.X, np.column_stack([OUTPUTS_X[ROWS[:, 0], 0], ROWS[:, 1]]))
    np.testing.assert_array_equal(stacked.y, Y[ROWS[:, 0], ROWS[:, 1]])
    np.testing.assert_array_equal(stacked.wide(stacked.y), Y)
    np.testing.assert_array_equal(stacked.wide(np.stack([stacked.y] * 2, axis=1))[:, :, 1], Y)


def test_independent_outputs_are_processes_of_their_own():
    kernel = pgm.On(pgm.RBF(1.3, 0.7), [0]) * pgm.On(pgm.White(1.0), [1])
    stacked = pgm.stack_outputs(OUTPUTS_X, Y)
    result = pgm.cavi(pgm.Model(pgm.Gaussian(0.4), pgm.GP(kernel)), stacked.X, stacked.y)
    new = stacked.at(X_new := np.array([[0.2], [1.1]]))
    mean, variance = (new.wide(part[:, 0]) for part in result.predict_latent(new.X))
    alone = pgm.Model(pgm.Gaussian(0.4), pgm.GP(pgm.RBF(1.3, 0.7)))
    for output in range(3):
        there = np.isfinite(Y[:, output])
        expected = pgm.cavi(alone, OUTPUTS_X[there], Y[there, output]).predict_latent(X_new)
        np.testing.assert_allclose([mean[:, output], variance[:, output]], np.array(expected)[:, :, 0], rtol=1e-8)


@pytest.mark.parametrize("library", LIBRARIES)
def test_frames_name_outputs(library):
    frame = LIBRARIES[library]
    stacked = pgm.stack_outputs(frame({"depth": OUTPUTS_X[:, 0]}), frame(OUTPUTS))
    assert stacked.names == ("zinc", "lead", "tin")
    values, columns = read_inputs(stacked.X, "X")
    # Codes are the numbers of the outputs, not in the order of the alphabet.
    np.testing.assert_array_equal(values, pgm.stack_outputs(OUTPUTS_X, Y).X)
    new = stacked.at(frame({"depth": [0.5, 2.0]}))
    expected = np.column_stack([np.repeat([0.5, 2.0], 3), np.tile([0, 1, 2], 2)])
    np.testing.assert_array_equal(read_inputs(new.X, "X_new", columns)[0], expected)
    assert new.y is None
    kernel = pgm.On(pgm.RBF(1.3, 0.7), ["depth"]) * pgm.On(pgm.White(1.0), ["output"])
    result = pgm.cavi(pgm.Model(pgm.Gaussian(0.4), pgm.GP(kernel)), stacked.X, stacked.y)
    assert new.wide(result.predict(new.X).mean).shape == (2, 3)


@pytest.mark.parametrize(
    ("inputs", "y", "message"),
    [
        (OUTPUTS_X, Y[:, 0], r"y must have shape \(7, outputs\), a row for each of X; got shape \(7,\)"),
        (OUTPUTS_X, Y[:5], r"got shape \(5, 3\)"),
        (OUTPUTS_X, np.where(np.arange(3) == 1, np.nan, Y), "y has no value in column 1: leave this output out"),
        (
            OUTPUTS_X,
            pd.DataFrame(OUTPUTS).assign(tin="much"),
            "y must have numbers in each column; got text or categories in column 'tin'",
        ),
        (pd.DataFrame({"output": OUTPUTS_X[:, 0]}), Y, "X has a column 'output'"),
    ],
)
def test_what_cannot_be_stacked_is_named(inputs, y, message):
    with pytest.raises(ValueError, match=message):
        pgm.stack_outputs(inputs, y)


def test_values_of_other_rows_are_refused():
    with pytest.raises(ValueError, match="values must have 17 rows"):
        pgm.stack_outputs(OUTPUTS_X, Y).wide(np.zeros(21))


# Weights of rows: powers of the likelihood, against repeated rows, rows left out, and quadrature.


WEIGHTS_RNG = np.random.default_rng(2)
N = 10
WEIGHTS_X = WEIGHTS_RNG.uniform(-2.0, 2.0, (N, 1))
X_NEW = np.array([[-2.5], [0.3], [1.2]])
WEIGHTS = np.array([1.0, 3.0, 2.0, 1.0, 0.0, 1.0, 2.0, 1.0, 0.0, 1.0])
OFTEN = np.repeat(np.arange(N), WEIGHTS.astype(int))
KEPT = WEIGHTS > 0
CENTRE = np.sin(2.0 * WEIGHTS_X[:, 0]) + 0.4


@pgm.likelihood(support=pgm.Binary(), num_latents=2)
def added(y, f):
    return pgm.sigmoid(f[0] + 0.7 * f[1]) ** y * pgm.sigmoid(-f[0] - 0.7 * f[1]) ** (1 - y)


def kernel():
    return pgm.RBF(1.7, 0.8)


WEIGHTS_COUNTS = WEIGHTS_RNG.poisson(np.exp(CENTRE)).astype(float)
WEIGHTS_LABELS = (WEIGHTS_RNG.random(N) < expit(CENTRE)).astype(float)
CASES = {
    "Bernoulli": (pgm.Model(pgm.Bernoulli(), pgm.GP(kernel(), mean=0.4)), WEIGHTS_LABELS),
    "StudentT": (
        pgm.Model(pgm.StudentT(4.0, 0.5), pgm.GP(kernel(), mean=0.4)),
        CENTRE + WEIGHTS_RNG.normal(0.0, 0.4, N),
    ),
    "LogisticSoftmax": (pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(kernel(), size=3)), np.arange(N) % 3.0),
    "NegativeBinomial": (pgm.Model(pgm.NegativeBinomial(1.5), pgm.GP(kernel(), mean=-0.3)), WEIGHTS_COUNTS),
    "exposed": (
        pgm.Model(exposed(), pgm.GP(kernel(), mean=-0.3)),
        np.column_stack([WEIGHTS_COUNTS, WEIGHTS_RNG.uniform(0.5, 2.0, N)]),
    ),
    "Gaussian": (
        pgm.Model(pgm.Gaussian(0.5), pgm.GP(pgm.RBF(1.7, pgm.Fixed(0.8)))),
        CENTRE + WEIGHTS_RNG.normal(0.0, 0.4, N),
    ),
    "Probit": (pgm.Model(pgm.Probit(), pgm.GP(kernel(), mean=0.4)), WEIGHTS_LABELS),
    "mixture": (pgm.Model(label_noise(pgm.Fixed(0.05)), pgm.GP(kernel(), mean=0.4)), WEIGHTS_LABELS),
    "added": (pgm.Model(added(), [pgm.GP(kernel(), mean=0.3), pgm.GP(kernel(), mean=-0.2)]), WEIGHTS_LABELS),
}


@cache
def result_of(name, way, engine="cavi"):
    model, y = CASES[name]
    call, options = getattr(pgm, engine), {"tolerance": 1e-13} if engine != "fit" else {}
    if way == "repeated":
        return call(model, WEIGHTS_X[OFTEN], y[OFTEN], **options)
    if way == "left out":
        return call(model, WEIGHTS_X[KEPT], y[KEPT], weights=WEIGHTS[KEPT], **options)
    return call(model, WEIGHTS_X, y, weights=WEIGHTS, **options)


def predicted(result, name):
    covariates = np.array([0.7, 1.0, 2.0]) if name == "exposed" else None
    predictive = result.predict(X_NEW, covariates)
    y = np.array([1.0, 0.0, 1.0])
    return predictive.log_density(y if covariates is None else np.column_stack([y, covariates]))


@pytest.mark.parametrize("name", some(CASES, "Bernoulli"))
def test_whole_weights_are_repeated_rows(name):
    weighted, repeated = result_of(name, "weighted"), result_of(name, "repeated")
    places = np.unique(OFTEN, return_index=True)[1]
    # The same optimum, by iterations that end within 1e-13 of the bound: means to its root.
    assert weighted.elbo == pytest.approx(repeated.elbo, rel=1e-9)
    np.testing.assert_allclose(weighted.mean, repeated.mean[places], atol=1e-5)
    np.testing.assert_allclose(weighted.variance, repeated.variance[places], atol=1e-5)
    np.testing.assert_allclose(weighted.predict_latent(X_NEW), repeated.predict_latent(X_NEW), atol=1e-5)
    np.testing.assert_allclose(predicted(weighted, name), predicted(repeated, name), atol=1e-5)


def test_a_weight_of_zero_leaves_the_row_out():
    weighted, without = result_of("Bernoulli", "weighted"), result_of("Bernoulli", "left out")
    np.testing.assert_array_equal(weighted.X, WEIGHTS_X[KEPT])
    np.testing.assert_array_equal(weighted.weights, WEIGHTS[KEPT])
    np.testing.assert_array_equal(weighted.y, WEIGHTS_LABELS[KEPT])
    assert weighted.elbo == without.elbo
    np.testing.assert_array_equal(weighted.mean, without.mean)


@pgm.likelihood(support=pgm.Given(pgm.Binary(), pgm.Positive()))
def powered(y, f):
    return (pgm.sigmoid(f) ** y[0] * pgm.sigmoid(-f) ** (1 - y[0])) ** y[1]


STEPS = [{}, {"objective": "expected"}, {"rate": "adaptive"}, {"train_hyperparameters": True}]


POWERS = [("Bernoulli", "cavi"), *product(["StudentT", "LogisticSoftmax", "added"], ["cavi", "gaussian_vi"])]


@pytest.mark.parametrize(("name", "engine"), some(POWERS, ("Bernoulli", "cavi"), ("added", "gaussian_vi")))
def test_a_formula_to_the_power_of_its_own_column_says_the_same(name, engine):
    weights, call = WEIGHTS_RNG.uniform(0.3, 2.5, N), getattr(pgm, engine)
    model, y = CASES[name]
    power, data = with_powers(*model.prepare(WEIGHTS_X, y, weights))
    one, other = call(model, WEIGHTS_X, y, weights=weights), call(power, data.X, data.y)
    assert one.elbo == pytest.approx(other.elbo, rel=1e-11)
    np.testing.assert_allclose((one.mean, one.variance), (other.mean, other.variance), atol=1e-8)


@pytest.mark.parametrize("options", some(STEPS, {}))
def test_batches_carry_the_weights_of_their_rows(options):
    weights = WEIGHTS_RNG.uniform(0.3, 2.5, N)
    gp = pgm.GP(kernel(), mean=0.4, form=pgm.Inducing(WEIGHTS_X[:3]))
    settings = {"batch_size": 4, "max_epochs": 3, "tolerance": 1e9} | options
    with warnings.catch_warnings():
        # Of steps that are too few, and of inducing inputs that are.
        warnings.simplefilter("ignore")
        one = pgm.svi(pgm.Model(pgm.Bernoulli(), gp), WEIGHTS_X, WEIGHTS_LABELS, weights=weights, **settings)
        other = pgm.svi(pgm.Model(powered(), gp), WEIGHTS_X, np.column_stack([WEIGHTS_LABELS, weights]), **settings)
    assert one.elbo == pytest.approx(other.elbo, rel=1e-12)
    np.testing.assert_allclose(one.predict_latent(X_NEW), other.predict_latent(X_NEW), atol=1e-9)


@pytest.mark.parametrize("name", some(["StudentT", "mixture", "LogisticSoftmax", "added"], "StudentT"))
def test_the_closest_gaussian_of_whole_weights_is_that_of_repeated_rows(name):
    weighted, repeated = (result_of(name, way, "gaussian_vi") for way in ("weighted", "repeated"))
    assert weighted.elbo == pytest.approx(repeated.elbo, rel=1e-9)
    np.testing.assert_allclose(weighted.predict_latent(X_NEW), repeated.predict_latent(X_NEW), atol=1e-5)


@pytest.mark.slow
def test_values_are_learned_as_of_repeated_rows():
    weighted, repeated = (result_of("Gaussian", way, "fit") for way in ("weighted", "repeated"))
    # To the tolerance of the optimiser.
    assert weighted.elbo == pytest.approx(repeated.elbo, abs=1e-5)
    for name, value in repeated.fit.values.items():
        assert weighted.fit.values[name] == pytest.approx(value, rel=1e-3)


@pytest.mark.slow
def test_corrections_and_gaps_are_those_of_repeated_rows():
    weighted, repeated = result_of("Bernoulli", "weighted"), result_of("Bernoulli", "repeated")
    new = [pgm.correct(result).predict_latent(X_NEW) for result in (weighted, repeated)]
    np.testing.assert_allclose(*new, atol=1e-5)
    places = np.unique(OFTEN, return_index=True)[1]
    gaps = augmentation_gap(weighted).value, WEIGHTS[KEPT] * augmentation_gap(repeated).value[places]
    np.testing.assert_allclose(*gaps, atol=1e-5)


# Fractional powers: conditionals and bounds of the derivation itself, at data with weights.
@pytest.mark.parametrize(
    "name", some(["Bernoulli", "StudentT", "LogisticSoftmax", "NegativeBinomial", "exposed"], "exposed")
)
def test_the_derivation_of_a_power_holds(name):
    model, y = CASES[name]
    model, data = with_powers(*model.prepare(WEIGHTS_X[:4], y[:4], [0.3, 2.0, 1.7, 1.0]))
    assert pgm.derive(model).verify(seed=0, y=data.y).figures


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "effective"), [("gibbs", 1500), ("nuts", 400)])
def test_draws_of_a_fractional_weight_follow_the_power(engine, effective):
    # One row: the posterior is an integral.
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0), mean=-0.5))
    x, y, weight = np.zeros((1, 1)), np.ones(1), 2.6
    f = np.linspace(-9.0, 11.0, 4001)
    p = expit(f) ** weight * np.exp(-0.25 * (f + 0.5) ** 2)
    mean = (f * p).sum() / p.sum()
    variance = ((f - mean) ** 2 * p).sum() / p.sum()
    sizes = {"num_samples": 1000, "num_warmup": 100, "num_chains": 2, "seed": 1, "progress": False}
    draws = getattr(pgm, engine)(model, x, y, weights=[weight], **sizes)
    # Five standard errors at this number of effective draws.
    assert abs(draws.mean[0, 0] - mean) < 5 * np.sqrt(variance / effective)
    assert abs(draws.variance[0, 0] / variance - 1) < 5 * np.sqrt(2 / effective)
    exact = (expit(f) * p).sum() / p.sum()
    assert draws.predict(x).probabilities[0, 1] == pytest.approx(exact, abs=0.03)


@pytest.mark.slow
def test_results_with_weights_travel_and_are_shown(tmp_path):
    result = result_of("exposed", "weighted")
    back = pickle.loads(pickle.dumps(result))
    saved = pgm.load(result.save(tmp_path / "fit.npz"), likelihood=exposed)
    for other in (back, saved):
        assert other.model == result.model
        np.testing.assert_array_equal(predicted(other, "exposed"), predicted(result, "exposed"))
    assert "weights of rows" in result._repr_html_()
    tree = result.to_arviz(num_draws=20)
    np.testing.assert_array_equal(tree.constant_data.weights, WEIGHTS[KEPT])
    np.testing.assert_array_equal(tree.constant_data.covariates[:, 0], CASES["exposed"][1][KEPT, 1])
    np.testing.assert_array_equal(tree.observed_data.y, WEIGHTS_COUNTS[KEPT])
    f = tree.posterior.f.values[0, :, :, 0]
    likelihood = result.likelihood
    expected = [log_density(likelihood, result.y, row[:, None]) for row in f]
    np.testing.assert_allclose(tree.log_likelihood.y[0], WEIGHTS[KEPT] * np.array(expected), rtol=1e-9)
    assert tree.posterior_predictive.y.shape == (1, 20, KEPT.sum())


def test_what_weights_cannot_do_is_refused():
    for name in ("Probit", "mixture"):
        with pytest.raises(pgm.NoAugmentationError, match=r"gibbs supports only weights 0 and 1 for"):
            pgm.gibbs(CASES[name][0], WEIGHTS_X, WEIGHTS_LABELS, weights=WEIGHTS)
    result = result_of("Bernoulli", "weighted")
    with pytest.raises(ValueError, match="rows have weights, and data simulated from the model have none"):
        simulate_calibration(result, 2)


HOLES = np.flatnonzero(~KEPT)


@pytest.mark.parametrize("name", ["Bernoulli", "LogisticSoftmax", "exposed", "StudentT"])
@pytest.mark.parametrize("hole", [np.nan, np.inf, -7.5])
def test_rows_of_weight_0_may_hold_anything(name, hole):
    model, y = CASES[name]
    X_holed, y_holed = WEIGHTS_X.copy(), y.copy()
    X_holed[HOLES[0]] = hole
    y_holed[HOLES] = hole
    prepared, data = model.prepare(X_holed, y_holed, WEIGHTS)
    assert prepared is model
    np.testing.assert_array_equal(data.weights, WEIGHTS[KEPT])
    expected = model.prepare(WEIGHTS_X, y, WEIGHTS)[1]
    np.testing.assert_array_equal(data.X, expected.X)
    np.testing.assert_array_equal(data.y, expected.y)
    # Elsewhere they are looked at, and rows are counted as they were given.
    row = int(np.flatnonzero(KEPT)[-1])
    y_holed[row] = np.nan
    count = np.isnan(y_holed[row]).sum()
    with pytest.raises(ValueError, match=rf"y must be finite; got nan in row {row}.*\({count} such"):
        model.prepare(X_holed, y_holed, WEIGHTS)
    X_holed[row] = np.nan
    with pytest.raises(ValueError, match=rf"X must be finite; got nan in row {row}, column 0 \(1 such"):
        model.prepare(X_holed, y_holed, WEIGHTS)
    with pytest.raises(ValueError, match="y must be finite"):
        model.prepare(WEIGHTS_X, y_holed)


def test_engines_leave_holes_out():
    model, y = CASES["Bernoulli"]
    holed = np.where(KEPT, y, np.nan)
    few = {"num_samples": 3, "num_warmup": 0, "num_chains": 1}
    for engine, options in ((pgm.cavi, {}), (pgm.gibbs, few)):
        result, expected = (engine(model, WEIGHTS_X, labels, weights=WEIGHTS, **options) for labels in (holed, y))
        np.testing.assert_array_equal(result.mean, expected.mean)


def test_a_class_of_rows_of_weight_0_is_unseen():
    model, y = CASES["LogisticSoftmax"]
    weights = np.where(y == 1, 0.0, 1.0)
    with pytest.warns(pgm.DataWarning, match="y has no observation of class 1 out of 3"):
        model.prepare(WEIGHTS_X, y, weights)
    # A class with such rows only is unseen.
    model.prepare(WEIGHTS_X, np.append(y[:-1], 9.0), np.append(np.ones(N - 1), 0.0))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.append(np.ones(N - 1), np.nan), "weights must be finite and >= 0; got nan in row 9"),
        ([*np.ones(N - 1), None], "weights must be finite and >= 0; got nan in row 9"),
        (np.append(np.ones(N - 1), -0.5), "weights must be finite and >= 0; got -0.5 in row 9.*weight 0 is ignored"),
        (np.append(np.ones(N - 1), np.inf), "weights must be finite and >= 0; got inf in row 9"),
        (np.ones(N - 1), r"weights must have shape \(10,\), one for each row of X; got shape \(9,\)\.$"),
        (np.ones((N, 1)), r"weights must have shape \(10,\).*got shape \(10, 1\)\. Use weights.ravel\(\)"),
        (2.0, r"weights must have shape \(10,\).*got shape \(\)"),
        (np.zeros(N), "weights are all 0"),
        (["1"] * N, "weights must be numeric; got '1' of type str in row 0"),
        (np.ones(N, dtype="timedelta64[D]"), "weights holds dates or times"),
    ],
)
def test_weights_that_are_none_say_so(weights, message):
    model, y = CASES["Bernoulli"]
    with pytest.raises(ValueError, match=message):
        model.prepare(WEIGHTS_X, y, weights)
    for call in (pgm.cavi, pgm.gaussian_vi, pgm.svi, pgm.fit, pgm.integrate, pgm.gibbs, pgm.nuts):
        with pytest.raises(ValueError, match=message):
            call(model, WEIGHTS_X, y, weights=weights)
