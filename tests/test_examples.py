import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"

# What each example must print: the lines that carry what it shows.
SHOWN = {
    "binary": ["Learned: RBF", "gibbs (ref.)", "corrected: the latent variance"],
    "multiclass": ["logistic-softmax: 3 latents", "stick-breaking: 2 latents", "gibbs (ref.)"],
    "counts": ["true rate", "NegativeBinomial(dispersion=", "gibbs (ref.)"],
    "robust_regression": ["Student-t", "Laplace", "fit against gibbs"],
    "heteroscedastic_regression": ["Held-out data", "corrected:"],
    "own_likelihood": ["λ | f, y ~ Gamma(1, rate", "the ELBO rises", "gibbs (ref.)", "no augmentation for the factor"],
    "additive": ["where z = f[0] + f[1] + f[2]", "f[2].variance", "gibbs (ref.)"],
    "ordered_ratings": ["Learned: ordered(cuts=Parameter([", "gibbs (ref.)"],
    "zero_inflated_counts": ["zero-inflated: ELBO", "gibbs (ref.)"],
    "survival": ["of the times are censored", "the ELBO rises", "Learned: log_logistic(shape=", "gibbs (ref.)"],
    "tobit": ["are at the limit", "Tobit: tobit(scale=", "gibbs (ref.)"],
    "exposure": ["Learned: events(dispersion=", "gibbs (ref.)", "test RMSE"],
    "multi_output": ["Learned: SwitchedLikelihood(", "gibbs (ref.)", "RMSE in the hole of the counts, together"],
    "preferences": ["Learned: Difference(RBF", "gibbs (ref.)", "Best item by the posterior mean"],
    "ratings": ["Learned: Matern32", "90 % bands cover", "Best player by the posterior: 3; by the true ratings: 3"],
    "event_counts": ["40,907 days, 191 events, at most 2 a day", "gibbs (ref.)", "corrected: standard deviations"],
    "births": ["Learned: NegativeBinomial2(", "90 % bands of the season cover", "Held-out year"],
    "hyperparameters": ["dispersion", "lengthscale", "nuts (ref.)", "It agrees with nuts"],
}
# And the figures it must draw, by the names that they are bound to: the gallery shows these.
DRAWN = {
    "binary": {"marginals", "reliability", "probability_map"}, "multiclass": {"marginals", "densities", "graph"},
    "counts": {"figure"}, "robust_regression": {"figure"}, "heteroscedastic_regression": {"figure"},
    "own_likelihood": {"graph", "marginals"}, "additive": {"figure"}, "ordered_ratings": {"figure"},
    "zero_inflated_counts": {"figure"}, "survival": {"figure"}, "tobit": {"figure"}, "exposure": {"figure"},
    "multi_output": {"figure"}, "preferences": {"figure"}, "ratings": {"figure"}, "event_counts": {"figure"},
    "births": {"figure"}, "hyperparameters": {"convergence", "latent"},
}  # fmt: skip
# README's figure, and how it is drawn.
PICTURE, SOURCE = ROOT / "docs" / "images" / "binary_marginals.png", ("binary", "marginals")
# Runs a script and saves its figures, each by its name.
SAVE_FIGURES = """
import runpy, sys
from matplotlib.figure import Figure
for name, value in runpy.run_path(sys.argv[1]).items():
    if isinstance(value, Figure):
        value.savefig(f"{name}.png", dpi=100)
"""


def test_every_example_is_listed():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SHOWN) == set(DRAWN)


@pytest.mark.parametrize("name", SHOWN)
def test_examples_have_a_title_and_cells(name):
    """What the gallery needs: a title, a sentence below it, and text in cells."""
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    _, title, line, empty, text, *_ = source.splitlines()
    assert set(line) == {"="}
    assert len(line) == len(title)
    assert not empty
    assert len(text.split()) >= 5
    cells = re.findall(r"^# %%\n(.*)$", source, re.MULTILINE)
    assert len(cells) >= 3
    assert all(cell.startswith("# ") for cell in cells)


# 20 to 40 s each, compilation for the most part; README's first model is an example too (test_docs.py).
@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_example_runs_as_it_stands(name, tmp_path):
    environment = dict(os.environ, PYTHONPATH=str(ROOT), PYTHONIOENCODING="utf-8")
    run = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:pgmodels", "-c", SAVE_FIGURES, EXAMPLES / f"{name}.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    for line in SHOWN[name]:
        assert line in run.stdout
    # Warnings of the package go to stderr: an example that needs one explained is no example.
    assert "Warning" not in run.stderr
    written = {path.stem: imread(path) for path in tmp_path.glob("*.png")}
    assert set(written) == DRAWN[name]
    # A graph has no colours; an empty figure has nothing dark.
    assert all(sum(_shares(picture)) > 0.01 for picture in written.values())
    if name == SOURCE[0]:
        picture, committed = written[SOURCE[1]], imread(PICTURE)
        stale = f"{PICTURE.name} has changed: run the example and save its figure there"
        # The bounding box of text differs by a pixel with the version of matplotlib.
        assert np.abs(np.subtract(picture.shape, committed.shape)).max() <= 2, stale
        # Pixels differ with the machine's arithmetic. What is missing takes nearly all of its colour with it.
        for share, expected in zip(_shares(picture), _shares(committed), strict=True):
            assert abs(share - expected) <= expected / 2, stale


def _shares(picture):
    """The shares of coloured pixels and of grey or black ones."""
    colours = picture[..., :3]
    coloured = np.ptp(colours, axis=-1) > 0.2
    return coloured.mean(), (~coloured & (colours.min(axis=-1) < 0.9)).mean()
