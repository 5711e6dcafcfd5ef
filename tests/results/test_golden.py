"""Files saved by earlier code still load, and predict the numbers that it predicted."""

import json
from pathlib import Path

import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.priors.inducing.chunked import ChunkedInducingPrior
from pgmodels.priors.inducing.fic import FICPrior
from pgmodels.results import saving
from pgmodels.results.stored_names import objective_of
from tests.covering import some
from tests.results.golden.make import FORMULAS, predictions

FOLDER = Path(__file__).parent / "golden"
PREDICTIONS = json.loads((FOLDER / "predictions.json").read_text())


def test_every_golden_file_is_tested():
    assert {path.stem for path in FOLDER.glob("*.npz")} == set(PREDICTIONS)


def load(path):
    return pgm.load(path, likelihood=FORMULAS.get(path.stem))


def contents(path):
    """A file's document without its version, and the shapes of its arrays."""
    with np.load(path) as stored:
        document = json.loads(stored["pgmodels"].tobytes())
        report = document["fields"].get("fit")
        if report is not None:
            # A field that these files are older than.
            report["fit"]["dict"].pop("correction", None)
        if "objective" in document["fields"]:
            document["fields"]["objective"] = objective_of(document["fields"]["objective"])
        return document | {"version": None}, {name: stored[name].shape for name in stored.files if name != "pgmodels"}


@pytest.mark.parametrize("name", PREDICTIONS)
def test_a_golden_file_loads_and_is_saved_with_the_same_names(name, tmp_path):
    path = FOLDER / f"{name}.npz"
    assert contents(load(path).save(tmp_path / path.name)) == contents(path)


@pytest.mark.parametrize("name", some(PREDICTIONS, "cavi_dense_arrays", "gibbs", "svi", "svi_coupled"))
def test_a_golden_file_predicts_the_same(name):
    for figure, values in predictions(load(FOLDER / f"{name}.npz")).items():
        # Rounding on other machines, times the condition number of the precise data's posterior, is below 1e-8.
        np.testing.assert_allclose(values, PREDICTIONS[name][figure], rtol=1e-8, atol=1e-8, err_msg=figure)


def test_names_of_priors_in_files_have_not_changed():
    # Small results do not save arrays of these.
    assert saving._PRIORS["StreamedPrior"] is ChunkedInducingPrior
    assert saving._PRIORS["SparsePrior"] is FICPrior
