"""Files saved by earlier code still load, and predict the numbers that it predicted."""

import json
from pathlib import Path

import numpy as np
import pytest

import pgmodels as pgm
from tests.covering import some
from tests.results.golden.make import FORMULAS, predictions

FOLDER = Path(__file__).parent / "golden"
PREDICTIONS = json.loads((FOLDER / "predictions.json").read_text())


def test_every_golden_file_is_tested():
    assert {path.stem for path in FOLDER.glob("*.npz")} == set(PREDICTIONS)


def load(path):
    return pgm.load(path, likelihood=FORMULAS.get(path.stem))


def contents(path):
    """A file's document, with the shapes of its arrays, without its version."""
    with np.load(path) as stored:
        return json.loads(stored["pgmodels"].tobytes()) | {"version": None}


@pytest.mark.parametrize("name", PREDICTIONS)
def test_a_golden_file_loads_and_is_saved_with_the_same_names(name, tmp_path):
    path = FOLDER / f"{name}.npz"
    assert contents(load(path).save(tmp_path / path.name)) == contents(path)


@pytest.mark.parametrize("name", some(PREDICTIONS, "cavi_dense_arrays", "gibbs", "svi", "svi_coupled"))
def test_a_golden_file_predicts_the_same(name):
    for figure, values in predictions(load(FOLDER / f"{name}.npz")).items():
        # Rounding on other machines, times the condition number of the precise data's posterior, is below 1e-8.
        np.testing.assert_allclose(values, PREDICTIONS[name][figure], rtol=1e-8, atol=1e-8, err_msg=figure)
