"""What users give as arrays: data frames, masked and sparse arrays, dates."""

from datetime import date

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import pgmodels as pgm
from pgmodels.data.arrays import as_numbers, column_names

X = np.array([[0.3, -1.0], [1.2, 0.4], [-0.7, 2.0], [0.1, 0.1]])
Y = np.array([0.0, 1.0, 1.0, 0.0])
DAYS = np.array(["2024-01-01", "2024-03-01", "2024-05-01", "2024-07-01"], dtype="datetime64[D]")

REFUSED = {
    "None": (None, ["X is None"]),
    "sparse": (sparse.csr_matrix(X), ["X is a sparse matrix", "X.toarray()"]),
    "masked": (np.ma.masked_less(X, -0.8), ["masked array, with 1 masked value(s), the first in row 0", "X.filled"]),
    "dates": (DAYS, ["X holds dates or times", "Give days from a fixed day"]),
    "differences": (DAYS - DAYS[0], ["X holds dates or times"]),
    "dates among numbers": (pd.DataFrame({"day": DAYS, "x": X[:, 0]}), ["X holds dates or times"]),
    "Python's dates": ([[date(2024, 1, 1)], [date(2024, 1, 2)]], ["X holds dates or times"]),
    "complex": (X + 1j, ["X holds complex numbers", "numpy.real(X)"]),
    "text": ([[1.0, "a"], [2.0, "b"]], ["X must be numeric", "'a'", "in row 0, column 1", "codes"]),
    "text further down": (np.array([[1.0], [2.0], ["high"]], object), ["X must be numeric", "'high'", "in row 2"]),
    "ragged": ([[1.0, 2.0], [3.0]], ["X cannot be read as an array", "all rows of one length"]),
    "objects": ([[object()]], ["X must be numeric", "of type object in row 0"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_array_of_numbers_is_refused(name):
    value, words = REFUSED[name]
    with pytest.raises(ValueError) as caught:
        as_numbers(value, "X")
    for word in words:
        assert word in str(caught.value)


def test_what_is_one_is_read():
    frame = pd.DataFrame({"a": [1, 2], "b": [True, False]})
    np.testing.assert_array_equal(as_numbers(frame, "X"), [[1.0, 1.0], [2.0, 0.0]])
    np.testing.assert_array_equal(as_numbers(np.ma.masked_less(X, -5.0), "X"), X)
    assert column_names(frame) == ("a", "b")
    assert column_names(X) is None
    assert column_names(pd.DataFrame(X)) is None


@pytest.mark.slow
def test_columns_keep_their_names_and_their_order():
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0)))
    frame = pd.DataFrame(X, columns=["width", "height"])
    vi = pgm.cavi(model, frame, Y)
    for result in (vi, pgm.correct(vi), pgm.gibbs(model, frame, Y, num_samples=4, num_warmup=0, num_chains=1)):
        assert [column.name for column in result.columns] == ["width", "height"]
        expected = result.predict_latent(X)[0]
        np.testing.assert_array_equal(result.predict_latent(frame)[0], expected)
        np.testing.assert_array_equal(result.predict_latent(frame[["height", "width"]])[0], expected)
        with pytest.raises(ValueError, match=r"missing \['height'\], got \['width', 'depth'\]"):
            result.predict_latent(frame.rename(columns={"height": "depth"}))
    without = pgm.cavi(model, X, Y)
    assert without.columns is None
    np.testing.assert_array_equal(without.predict_latent(frame)[0], without.predict_latent(X)[0])
