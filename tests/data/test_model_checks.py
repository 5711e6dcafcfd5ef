"""Bad input raises a ValueError that names the argument, what was got and the remedy, before any work."""

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

from pgmodels.inference import moves as refits
from pgmodels.inference import vi as vi_module
from pgmodels.inference.gibbs import gibbs
from pgmodels.inference.vi import cavi
from pgmodels.kernels.others import White
from pgmodels.kernels.stationary import RBF
from pgmodels.likelihoods.named import (
    Bernoulli,
    Binomial,
    Gaussian,
    HeteroscedasticGaussian,
    LogisticSoftmax,
    NegativeBinomial,
    SigmoidPoisson,
    StickBreaking,
    StudentT,
)
from pgmodels.model import GP, Model
from pgmodels.parameters.parameter import Fixed, bare
from pgmodels.parameters.vector import trainable, with_priors
from tests.own_likelihoods import offset

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
    return Model(likelihood or Bernoulli(), GP(kernel or RBF(1.0, 1.0), size=size))


SOFTMAX = model(LogisticSoftmax(3), size=3)
REAL = model(Gaussian(1.0))
TRIALS = np.column_stack([COUNTS, np.full(6, 5.0)])

# model, X, y, and what the message must contain: the argument, what was got, the remedy.
BAD_DATA = {
    "X one-dimensional": (model(), X[:, 0], LABELS, ["X must have shape (n, d)", "got shape (6,)", "X[:, None]"]),
    "X a scalar": (model(), 3.0, LABELS, ["X must have shape (n, d)", "got shape ()"]),
    "X three-dimensional": (
        model(),
        X.reshape(6, 2, 1),
        LABELS,
        ["X must have shape (n, d)", "(6, 2, 1)", "X.reshape(len(X), -1)"],
    ),
    "different lengths": (model(), X, LABELS[:5], ["X and y", "same length", "6 rows of X and 5 of y"]),
    "NaN in X": (
        model(),
        at(at(X, 4, np.nan, 0), 2, np.nan, 1),
        LABELS,
        ["X must be finite", "nan in row 2, column 1", "2 such values", "Drop or impute"],
    ),
    "infinity in X": (model(), at(X, 3, -np.inf, 0), LABELS, ["X must be finite", "-inf in row 3, column 0"]),
    "text in X": (
        model(),
        X.astype(str).astype(object) + "a",
        LABELS,
        ["X must be numeric", "Text is never converted"],
    ),
    "no rows": (model(), np.empty((0, 2)), np.empty(0), ["X is empty", "(0, 2)", "at least one row"]),
    "no columns": (model(), np.empty((6, 0)), LABELS, ["X is empty", "(6, 0)", "one column"]),
    "y a column": (model(), X, LABELS[:, None], ["y must have shape (n,)", "got shape (6, 1)", "y.ravel()"]),
    "y a matrix": (model(), X, np.column_stack([LABELS] * 2), ["y must have shape (n,)", "got shape (6, 2)"]),
    "NaN in y": (
        model(),
        X,
        at(LABELS, 3, np.nan),
        ["y must be finite", "nan in row 3", "missing='drop'", "missing='predict'", "impute"],
    ),
    "NaN in real y": (REAL, X, at(COUNTS, 1, np.nan), ["y must be finite", "nan in row 1"]),
    "infinity in real y": (REAL, X, at(COUNTS, 1, np.inf), ["y must be finite", "inf in row 1"]),
    "labels -1 and 1": (model(), X, 2 * LABELS - 1, ["y must hold the labels 0 and 1", "{-1, 1}", "asarray(y) == 1)"]),
    "labels 1 and 2": (model(), X, LABELS + 1, ["y must hold the labels 0 and 1", "{1, 2}", "asarray(y) == 2)"]),
    "three labels in text": (
        model(),
        X,
        np.array(["no", "so", "yes"])[CLASSES.astype(int)],
        ["y has 3 labels, 'no', 'so', 'yes'", "the likelihood takes 2", "pgm.Softmax(3)"],
    ),
    "one label in text": (
        model(),
        X,
        np.full(6, "no"),
        ["y has 1 label, 'no'", "the likelihood takes 2", "a categorical of all", "['no', 'another 1']"],
    ),
    "too few labels in text": (
        SOFTMAX,
        X,
        np.array(["no", "yes"])[LABELS.astype(int)],
        ["y has 2 labels, 'no', 'yes'", "takes 3", "['no', 'yes', 'another 1']", "one of 2 classes"],
    ),
    "counts in text": (
        model(NegativeBinomial(2.0)),
        X,
        np.array(["no", "yes"])[LABELS.astype(int)],
        ["y must be numeric", "'no'", "in row 0", "the same codes"],
    ),
    "three labels": (model(), X, CLASSES, ["y must hold the labels 0 and 1", "2 in row 2", "LogisticSoftmax"]),
    "probabilities": (model(), X, LABELS * 0.5 + 0.1, ["y must hold the labels 0 and 1", "{0.1, 0.6}"]),
    "negative count": (
        model(NegativeBinomial(2.0)),
        X,
        at(COUNTS, 4, -1.0),
        ["y must hold counts", "-1 in row 4", "real values"],
    ),
    "fractional count": (model(SigmoidPoisson(2.0)), X, at(COUNTS, 2, 0.5), ["y must hold counts", "0.5 in row 2"]),
    "successes above trials": (
        model(Binomial()),
        X,
        at(TRIALS, 1, 6.0, 0),
        ["y must hold successes <= trials", "6 successes of 5 trials in row 1", "(successes, trials)"],
    ),
    "negative successes": (model(Binomial()), X, at(TRIALS, 1, -1.0, 0), ["successes in its first column", "row 1"]),
    "fractional trials": (model(Binomial()), X, at(TRIALS, 5, 5.5, 1), ["trials in its second column", "row 5"]),
    "successes without trials": (
        model(Binomial()),
        X,
        COUNTS,
        ["y must have shape (n, 2)", "y[0] to y[1]", "got shape (6,)", "np.column_stack"],
    ),
    "no offset column": (model(offset()), X, LABELS, ["y must have shape (n, 2)", "got shape (6,)"]),
    "class beyond the last": (SOFTMAX, X, at(CLASSES, 2, 3.0), ["y must hold class indices 0 to 2", "3 in row 2"]),
    "class below zero": (SOFTMAX, X, at(CLASSES, 0, -1.0), ["y must hold class indices 0 to 2", "-1 in row 0"]),
    "class not an integer": (SOFTMAX, X, at(CLASSES, 1, 0.5), ["indices 0 to 2", "0.5 in row 1", "set num_classes"]),
    "class beyond the last stick": (
        model(StickBreaking(3), size=2),
        X,
        at(CLASSES, 2, 3.0),
        ["y must hold class indices 0 to 2", "3 in row 2"],
    ),
    "lengthscales of other columns": (
        model(kernel=RBF(1.0, np.ones(3))),
        X,
        LABELS,
        ["lengthscale of RBF has shape (3,)", "X has 2 column(s)", "1-D array of 2 number(s)"],
    ),
}


@pytest.mark.parametrize("engine", [cavi, gibbs])
@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data(name, engine, monkeypatch):
    model, X, y, phrases = BAD_DATA[name]

    def working(*args, **kwargs):
        raise AssertionError("work began before the data were checked")

    monkeypatch.setattr(Model, "prior", working)
    monkeypatch.setattr(vi_module, "init", working)
    monkeypatch.setattr(refits, "fit_surrogate", working)
    with pytest.raises(ValueError) as raised:
        engine(model, X, y)
    for part in phrases:
        assert part in str(raised.value)


BAD_MODELS = {
    "negative lengthscale": (lambda: RBF(1.0, -1.0), ["lengthscale", "must be positive", "-1.0"]),
    "zero lengthscale": (lambda: RBF(1.0, 0.0), ["lengthscale", "must be positive", "0.0"]),
    "NaN lengthscale": (lambda: RBF(1.0, np.nan), ["lengthscale", "must be finite", "nan"]),
    "one bad lengthscale of two": (lambda: RBF(1.0, [1.0, -2.0]), ["lengthscale", "must be positive", "-2.0"]),
    "negative variance": (lambda: RBF(-1.0, 1.0), ["variance", "must be positive", "-1.0"]),
    "zero variance": (lambda: RBF(0.0, 1.0), ["variance", "must be positive", "0.0"]),
    "NaN variance": (lambda: RBF(np.nan, 1.0), ["variance", "must be finite", "nan"]),
    "variance in text": (lambda: RBF("large", 1.0), ["variance", "must be a number", "'large'"]),
    "infinite mean": (lambda: GP(RBF(1.0, 1.0), mean=np.inf), ["mean of a GP", "must be finite"]),
    "size zero": (lambda: GP(RBF(1.0, 1.0), size=0), ["size of a GP", "whole number >= 1", "got 0"]),
    "negative scale": (lambda: Gaussian(-1.0), ["scale of Gaussian", "must be positive", "-1.0"]),
    "zero df": (lambda: StudentT(0.0, 1.0), ["df of StudentT", "must be positive"]),
    "scale for each datum": (lambda: model(Gaussian(np.ones(3))), ["scale as one number", "3 entries", "columns of y"]),
    "missing scale": (lambda: Gaussian(), ["Gaussian needs a value for scale", "Gaussian(scale=...)"]),
    "unknown parameter": (lambda: Gaussian(sigma=1.0), ["no parameter 'sigma'", "it has scale"]),
    "one class": (lambda: LogisticSoftmax(1), ["num_classes", "whole number >= 2", "got 1"]),
    "classes not whole": (lambda: StickBreaking(2.5), ["num_classes", "whole number >= 2", "2.5"]),
    "too few latents": (lambda: model(HeteroscedasticGaussian(1.0)), ["needs 2 latent GPs; got 1", "size=2"]),
    "too many latents": (lambda: model(Bernoulli(), size=2), ["Bernoulli needs 1 latent GP; got 2", "size=1"]),
    "too few for the classes": (lambda: model(LogisticSoftmax(3), size=2), ["needs 3 latent GPs; got 2"]),
    "not called": (lambda: model(Bernoulli), ["likelihood is the family Bernoulli", "Bernoulli()"]),
    "not a likelihood": (lambda: model("logit"), ["likelihood must be a pgmodels likelihood", "'logit'"]),
    "a bare kernel": (lambda: Model(Bernoulli(), [RBF(1.0, 1.0)]), ["gps must be a GP or a list of GPs", "pgm.GP("]),
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
        cavi(model(), X, LABELS, **kwargs)


def test_indefinite_kernel():
    with pytest.raises(ValueError, match="not positive semi-definite"):
        cavi(model(kernel=lambda X, Z: -1.0 + 2.0 * (X[:, :1] == Z[:, :1].T)), X[:3], LABELS[:3])


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
    results = cavi(model(), X, LABELS), gibbs(model(), X, LABELS, num_samples=2, num_warmup=0)
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
    gp = GP(RBF(dist.LogNormal(0.3, 1.0), 0.7) + White(0.1), mean=dist.Normal(0.2, 1.0))
    model = Model(StudentT(df=Fixed(4.0), scale=dist.LogNormal()), gp)
    assert with_priors(model).names == ["scale", "RBF.variance", "mean"]
    assert trainable(model.fixed()).names == with_priors(model.fixed()).names == []
    values = [np.asarray(leaf) for leaf in jax.tree.leaves(bare(model.fixed()))]
    assert np.array_equal(values, [np.asarray(leaf) for leaf in jax.tree.leaves(bare(model))])
