"""Several outputs with holes as long rows, against rows left out and a process of each output alone."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import pgmodels as pgm
from pgmodels.data.arrays import read_inputs

RNG = np.random.default_rng(3)
X = RNG.uniform(0.0, 3.0, (7, 1))
Y = RNG.normal(size=(7, 3))
Y[1, 0] = Y[2, 1] = Y[2, 2] = Y[6, 2] = np.nan
ROWS = np.array([(row, output) for row in range(7) for output in range(3) if np.isfinite(Y[row, output])])
LIBRARIES = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}
OUTPUTS = {"zinc": Y[:, 0], "lead": Y[:, 1], "tin": Y[:, 2]}


def test_holes_are_rows_left_out():
    stacked = pgm.stack_outputs(X, Y)
    np.testing.assert_array_equal(stacked.X, np.column_stack([X[ROWS[:, 0], 0], ROWS[:, 1]]))
    np.testing.assert_array_equal(stacked.y, Y[ROWS[:, 0], ROWS[:, 1]])
    np.testing.assert_array_equal(stacked.wide(stacked.y), Y)
    np.testing.assert_array_equal(stacked.wide(np.stack([stacked.y] * 2, axis=1))[:, :, 1], Y)


def test_independent_outputs_are_processes_of_their_own():
    kernel = pgm.On(pgm.RBF(1.3, 0.7), [0]) * pgm.On(pgm.White(1.0), [1])
    stacked = pgm.stack_outputs(X, Y)
    result = pgm.cavi(pgm.Model(pgm.Gaussian(0.4), pgm.GP(kernel)), stacked.X, stacked.y)
    new = stacked.at(X_new := np.array([[0.2], [1.1]]))
    mean, variance = (new.wide(part[:, 0]) for part in result.predict_latent(new.X))
    alone = pgm.Model(pgm.Gaussian(0.4), pgm.GP(pgm.RBF(1.3, 0.7)))
    for output in range(3):
        there = np.isfinite(Y[:, output])
        expected = pgm.cavi(alone, X[there], Y[there, output]).predict_latent(X_new)
        np.testing.assert_allclose([mean[:, output], variance[:, output]], np.array(expected)[:, :, 0], rtol=1e-8)


@pytest.mark.parametrize("library", LIBRARIES)
def test_frames_name_outputs(library):
    frame = LIBRARIES[library]
    stacked = pgm.stack_outputs(frame({"depth": X[:, 0]}), frame(OUTPUTS))
    assert stacked.names == ("zinc", "lead", "tin")
    values, columns = read_inputs(stacked.X, "X")
    # Codes are the numbers of the outputs, not in the order of the alphabet.
    np.testing.assert_array_equal(values, pgm.stack_outputs(X, Y).X)
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
        (X, Y[:, 0], r"y must have shape \(7, outputs\), a row for each of X; got shape \(7,\)"),
        (X, Y[:5], r"got shape \(5, 3\)"),
        (X, np.where(np.arange(3) == 1, np.nan, Y), "y has no value in column 1: leave this output out"),
        (
            X,
            pd.DataFrame(OUTPUTS).assign(tin="much"),
            "y must have numbers in each column; got text or categories in column 'tin'",
        ),
        (pd.DataFrame({"output": X[:, 0]}), Y, "X has a column 'output'"),
    ],
)
def test_what_cannot_be_stacked_is_named(inputs, y, message):
    with pytest.raises(ValueError, match=message):
        pgm.stack_outputs(inputs, y)


def test_values_of_other_rows_are_refused():
    with pytest.raises(ValueError, match="values must have 17 rows"):
        pgm.stack_outputs(X, Y).wide(np.zeros(21))
