"""README's blocks of Python run as they stand, in order, and print what it says that they print."""

import re
from itertools import groupby
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

import pgmodels as pgm

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
FENCED = re.compile(r"^(?:#+ (?P<heading>[^\n]+)|```(?P<language>\w*)\n(?P<block>.*?)^```)$", re.MULTILINE | re.DOTALL)


def blocks(language):
    """(heading, block) of the blocks of a language, in order."""
    heading = None
    for found in FENCED.finditer(README):
        heading = found["heading"] or heading
        if found["block"] is not None and found["language"] == language:
            yield heading, found["block"]


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


@pytest.mark.slow
def test_size(run):
    rng = np.random.default_rng(0)
    columns = {
        "month": rng.integers(1, 13, 900),
        "hour": rng.integers(0, 24, 900),
        "distance": rng.gamma(2.0, 400.0, 900),
    }
    late = rng.random(900) < 1 / (1 + np.exp(-0.3 * (columns["hour"] - 12.0)))
    pd.DataFrame({**columns, "late": late.astype(int)}).to_parquet("flights.parquet")
    X = rng.uniform(-2.0, 2.0, (2000, 2))
    names = run("Size", X_new=np.array([[6.0, 20.0, 700.0]]), X=X, y=np.arange(2000) % 1000.0)
    assert names["vi"].model.num_latents == 1000
