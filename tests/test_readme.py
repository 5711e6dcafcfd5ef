"""README's blocks of Python run as they stand, in order, and print what it says that they print."""

import re
from itertools import groupby
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import pgmodels as pgm

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
FENCED = re.compile(r"^(?:#+ (?P<heading>[^\n]+)|```(?P<language>\w*)\n(?P<block>.*?)^```)$", re.MULTILINE | re.DOTALL)


def blocks(language):
    """(heading, block) of the blocks of a language, in order."""
    heading = None
    for match in FENCED.finditer(README):
        heading = match["heading"] or heading
        if match["block"] is not None and match["language"] == language:
            yield heading, match["block"]


SECTIONS = {
    heading: [block for _, block in pairs] for heading, pairs in groupby(blocks("python"), lambda pair: pair[0])
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A section's blocks with what its reader has: the package, and data in the folder and at hand."""
    monkeypatch.chdir(tmp_path)

    def run(heading, **at_hand):
        names = {"pgm": pgm, **at_hand}
        for block in SECTIONS[heading]:
            exec(compile(block, f"README.md, {heading}", "exec"), names)
        return names

    yield run
    plt.close("all")


def test_every_section_is_run_below():
    tested = re.findall(r"run\(\"(.+?)\"", Path(__file__).read_text(encoding="utf-8"))
    assert sorted(tested) == sorted(SECTIONS)
    assert {language for language in re.findall(r"^```(\w*)$", README, re.MULTILINE) if language} <= {"python", "text"}


def test_a_first_model(run, capsys, tmp_path):
    run("A first model")
    shown, printed = dict(blocks("text"))["A first model"].splitlines(), capsys.readouterr().out.splitlines()
    labels = [line[:34].rstrip() for line in shown if not line.startswith(("*", "  "))]
    assert [line[:34].rstrip() for line in printed if line[:34].rstrip() in labels] == labels
    # What does not depend on draws or on the clock.
    (elbo,) = (line for line in shown if line.startswith("ELBO"))
    assert elbo.split() == next(line.split() for line in printed if line.startswith("ELBO"))
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_likelihood_of_your_own(run, capsys):
    names = run("A likelihood of your own")
    printed = capsys.readouterr().out.splitlines()
    lines = iter(printed)
    shown = [line for line in dict(blocks("text"))["A likelihood of your own"].splitlines() if line]
    # In this order, among others.
    missing = [line for line in shown if line not in lines]
    assert not missing, printed
    assert isinstance(names["model"], pgm.Model)


def test_what_y_can_be(run):
    names = run("What y can be")
    for name in ("log_logistic", "tobit", "exposed", "attempts"):
        assert pgm.derive(names[name]()).augmentation.rules, name


def test_predictors_that_combine_latents(run):
    assert "z = f[0] + y[1] f[1] + f[2]" in str(pgm.derive(run("Predictors that combine latents")["model"]))


def test_the_rules(run):
    names = run("The rules")
    for name, size in (("ordered", 1), ("zero_inflated", 2), ("label_noise", 1)):
        assert pgm.derive(pgm.Model(names[name](), pgm.GP(pgm.RBF(1.0, 1.0), size=size))).verify(seed=0).figures, name


def test_a_kernel_of_your_own(run):
    names = run("A kernel of your own")
    kernel = names["Projected"](pgm.Parameter(np.array([[1.0, -2.0], [0.5, 0.3]]), positive=False))
    x = np.array([[0.7, 0.2]])
    np.testing.assert_allclose(kernel(x, x + 0.5), np.exp(-0.5 * (0.5**2 + 0.4**2)), rtol=1e-6)


# Half a minute. There are fewer rows than classes, and steps enough for few.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pgmodels.DataWarning", "ignore::pgmodels.ConvergenceWarning")
def test_size(run, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal([6.0, 12.0, 900.0], [3.0, 5.0, 400.0], (600, 3))
    late = (X[:, 1] + rng.standard_normal(600) > 14.0).astype(int)
    pd.DataFrame({"month": X[:, 0], "hour": X[:, 1], "distance": X[:, 2], "late": late}).to_parquet(
        tmp_path / "flights.parquet"
    )
    names = run("Size", X=X, y=rng.integers(0, 1000, 600), X_new=X[:5])
    assert names["vi"].predict(X[:2]).probabilities.shape == (2, 1000)
