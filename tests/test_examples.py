import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
FIGURES = EXAMPLES / "figures"

# What each example must print: the lines that carry what it shows.
SHOWN = {
    "binary": ["Learned: RBF", "gibbs (ref.)", "corrected: the latent variance"],
    "multiclass": ["logistic-softmax: 3 latents", "stick-breaking: 2 latents", "gibbs (ref.)"],
    "counts": ["true rate", "NegativeBinomial(dispersion=", "gibbs (ref.)"],
    "robust_regression": ["Student-t", "Laplace", "corrected against gibbs"],
    "heteroscedastic_regression": ["Held-out data", "corrected:"],
    "own_likelihood": ["λ | f, y ~ Gamma(1, rate", "the ELBO rises", "gibbs (ref.)", "no augmentation for the factor"],
    "additive": ["where z = f[0] + f[1] + f[2]", "f[2].variance", "gibbs (ref.)"],
    "ordered_ratings": ["Learned: ordered(cuts=Parameter([", "gibbs (ref.)"],
    "zero_inflated_counts": ["zero-inflated: ELBO", "gibbs (ref.)"],
    "survival": ["of the times are censored", "the ELBO rises", "Learned: log_logistic(shape=", "gibbs (ref.)"],
    "tobit": ["are at the limit", "Tobit: tobit(scale=", "gibbs (ref.)"],
    "exposure": ["Learned: events(dispersion=", "gibbs (ref.)", "test RMSE"],
    "preferences": ["Learned: Difference(RBF", "gibbs (ref.)", "Best item by the posterior mean"],
    "hyperparameters": ["dispersion", "lengthscale", "nuts (ref.)", "It agrees with nuts"],
}
# And the figures it must write, each "<example>_<name>.png".
DRAWN = {
    "binary": {"marginals", "reliability", "map"},
    "multiclass": {"marginals", "densities", "graph"},
    "counts": {"latent"},
    "robust_regression": {"latent"},
    "heteroscedastic_regression": {"latent"},
    "own_likelihood": {"graph", "marginals"},
    "additive": {"effects"},
    "ordered_ratings": {"grades"},
    "zero_inflated_counts": {"occupied"},
    "survival": {"median"},
    "tobit": {"latent"},
    "exposure": {"rate"},
    "preferences": {"utility"},
    "hyperparameters": {"rank", "latent"},
}
LARGEST_FIGURE = 120_000  # bytes: they are in the repository


def test_every_example_is_listed():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SHOWN) == set(DRAWN)


def test_committed_figures_are_those_of_the_examples_and_small():
    expected = {f"{example}_{name}.png" for example, names in DRAWN.items() for name in names}
    assert {path.name for path in FIGURES.iterdir()} == expected
    for name in expected:
        assert (FIGURES / name).stat().st_size < LARGEST_FIGURE, name


def test_readme_shows_figures_that_exist():
    pictures = re.findall(r"!\[([^\]]*)\]\(([^)]*)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(pictures) >= 3
    for alternative, path in pictures:
        assert len(alternative.split()) >= 5, f"{path} needs words for those who do not see it"
        assert (ROOT / path).is_file(), path


# 20 to 40 s each, compilation for the most part; README's first model is an example too (test_readme.py).
@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_example_runs_as_it_stands(name, tmp_path):
    environment = dict(os.environ, PYTHONPATH=str(ROOT), PYTHONIOENCODING="utf-8")
    # A copy: figures are written beside the script.
    script = shutil.copy(EXAMPLES / f"{name}.py", tmp_path)
    run = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:pgmodels", script],
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
    written = {path.name: imread(path) for path in (tmp_path / "figures").iterdir()}
    assert set(written) == {f"{name}_{figure}.png" for figure in DRAWN[name]}
    for file, picture in written.items():
        committed = imread(FIGURES / file)
        stale = f"{file} has changed: run the example and commit its figures"
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
