"""Labels of classes: text, booleans and categories of y have one coding, which results keep."""

import re

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import pgmodels as pgm

X = np.linspace(0.0, 3.0, 12)[:, None]
CODES = np.tile([0.0, 1.0, 1.0, 0.0], 3)
TEXT = np.array(["no", "yes"])[CODES.astype(int)]
MODEL = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0), mean=0.3))
SOFTMAX = pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(pgm.RBF(2.0, 1.0), size=3))
LEVELS = np.array(["lo", "mid", "hi"])[[0, 2, 1, 0, 2, 1, 0, 0, 2, 1, 1, 2]]


# y, and the labels that it must have.
KINDS = {
    "array": (TEXT, ("no", "yes")),
    "objects": (TEXT.astype(object), ("no", "yes")),
    "list": (TEXT.tolist(), ("no", "yes")),
    "series": (pd.Series(TEXT), ("no", "yes")),
    "series of strings": (pd.Series(TEXT, dtype="string"), ("no", "yes")),
    "categorical": (pd.Categorical(TEXT, ["no", "yes"]), ("no", "yes")),
    "ordered series": (pd.Series(pd.Categorical(TEXT, ["no", "yes"], ordered=True)), ("no", "yes")),
    "categories of numbers": (pd.Categorical(CODES + 1, [1.0, 2.0]), (1.0, 2.0)),
    "polars": (pl.Series(TEXT.tolist()), ("no", "yes")),
    "polars enumeration": (pl.Series(TEXT.tolist(), dtype=pl.Enum(["no", "yes"])), ("no", "yes")),
    "pyarrow": (pa.chunked_array([TEXT.tolist()]), ("no", "yes")),
    "booleans": (CODES > 0, (False, True)),
    "list of booleans": ((CODES > 0).tolist(), (False, True)),
    "booleans of pandas": (pd.Series(CODES > 0, dtype="boolean"), (False, True)),
    "booleans of polars": (pl.Series(CODES > 0), (False, True)),
    "numbers": (CODES, None),
    "categories 0 and 1": (pd.Categorical(CODES.astype(int), [1, 0]), None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_coded(kind):
    y, labels = KINDS[kind]
    data = MODEL.check(X, y)
    assert data.labels == labels
    np.testing.assert_array_equal(data.y, CODES)
    assert data.y.dtype == np.float64


def test_categories_keep_their_order():
    order = ["hi", "mid", "lo"]
    categorical = pd.Categorical(LEVELS, order)
    for y in (categorical, pd.Series(categorical), pl.Series(LEVELS).cast(pl.Enum(order))):
        data = SOFTMAX.check(X, y)
        assert data.labels == ("hi", "mid", "lo")
        np.testing.assert_array_equal(data.y, [order.index(level) for level in LEVELS])
    data = SOFTMAX.check(X, LEVELS)
    assert data.labels == ("hi", "lo", "mid")


def test_a_class_without_rows_is_named():
    some = np.where(LEVELS == "hi", "lo", LEVELS)
    with pytest.warns(pgm.DataWarning, match=r"no observation of class 2 \('hi'\) out of 3"):
        data = SOFTMAX.check(X, pd.Categorical(some, ["lo", "mid", "hi"]))
    assert set(data.y) == {0.0, 1.0}
    # One class only, of two: the posterior is that of the numbers.
    both = pd.Categorical(np.full(12, "yes"), ["no", "yes"])
    np.testing.assert_array_equal(pgm.cavi(MODEL, X, both).mean, pgm.cavi(MODEL, X, np.ones(12)).mean)


def test_rows_of_weight_0_have_no_label():
    y, weights = TEXT.astype(object), np.where(np.arange(12) < 2, 0.0, 1.0)
    y[0], y[1] = "unknown", None
    data = MODEL.prepare(X, y, weights)[1]
    assert data.labels == ("no", "yes")
    np.testing.assert_array_equal(data.y, CODES[2:])


@pytest.fixture(scope="module")
def result():
    return pgm.cavi(MODEL, X, TEXT)


def test_predictions_have_labels(result, tmp_path):
    expected = pgm.cavi(MODEL, X, CODES)
    predictive, plain = result.predict(X), expected.predict(X)
    np.testing.assert_array_equal(predictive.log_density(TEXT), plain.log_density(CODES))
    np.testing.assert_array_equal(predictive.log_density(pl.Series(TEXT.tolist())), plain.log_density(CODES))
    np.testing.assert_array_equal(predictive.mode, np.where(plain.probabilities[:, 1] > 0.5, "yes", "no"))
    np.testing.assert_array_equal(plain.mode, plain.probabilities[:, 1] > 0.5)
    loaded = pgm.load(result.save(tmp_path / "fit.npz"))
    assert loaded.labels == ("no", "yes")
    np.testing.assert_array_equal(loaded.predict(X).log_density(TEXT), predictive.log_density(TEXT))
    assert pgm.correct(result).labels == ("no", "yes")


@pytest.mark.parametrize("y", [np.where(CODES > 0, "yes", "perhaps"), CODES])
def test_unknown_labels_are_refused(result, y):
    got = repr(y.tolist()[0])
    with pytest.raises(ValueError, match=rf"y_new has {re.escape(got)} in row 0, which is not a label .*'no', 'yes'"):
        result.predict(X).log_density(y)


@pytest.mark.slow
def test_comparisons_read_labels():
    draws = pgm.gibbs(MODEL, X, TEXT, num_samples=4, num_warmup=0, num_chains=1)
    assert draws.labels == ("no", "yes")
    table = pgm.compare(draws=draws, cavi=pgm.cavi(MODEL, X, CODES), X=X, y=TEXT).to_dataframe()
    expected = pgm.compare(draws=draws, cavi=pgm.cavi(MODEL, X, TEXT), X=X, y=TEXT).to_dataframe()
    assert table.loc["cavi", "negative_log_density"] == expected.loc["cavi", "negative_log_density"]
    with pytest.raises(ValueError, match="y has 'perhaps' in row 11, which is not a label"):
        pgm.compare(draws=draws, X=X, y=[*TEXT[:-1], "perhaps"])


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (["1", "2"] * 6, "y must be numeric; got '1' of type str in row 0"),
        ([*TEXT[:-1], 3.0], "y must be numeric; got 'no' of type str in row 0"),
        (["2020-01-01", "2021-01-01"] * 6, "y holds dates or times"),
    ],
)
def test_what_is_no_label_is_refused(y, message):
    with pytest.raises(ValueError, match=message):
        MODEL.check(X, y)
