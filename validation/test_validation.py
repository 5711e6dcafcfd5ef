"""Tests of the measurements: `python -m pytest -m "" validation/test_validation.py`, which the nightly run calls."""

import importlib
import json
import math
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import jax
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.datasets import Split
from pgmodels.likelihoods.likelihood import log_density
from pgmodels.numerics.iteration import Adam
from validation.nested import quadrature
from validation.nested.cases import CASES
from validation.papers import freshness, galy_fajou, izmailov, liu, passerello, record, wenzel
from validation.papers.claim import (
    FINDING,
    IN_PART,
    NOT_HERE,
    REFUTED,
    REPRODUCED,
    WORDS,
    Claim,
    Side,
    Verdict,
    reproduced_if,
)
from validation.papers.curves import JITTER, Curve, Look, first_time, score_at
from validation.papers.measures import scores
from validation.papers.rival import AdaDelta, adadelta_step, follow, rival_of

LOOKS = [Look(0.1, 0.5, 0.7), Look(0.2, 0.2, 0.4), Look(0.4, 0.3, 0.5)]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    y = (X[:, 0] + 0.5 * rng.normal(size=30) > 0.3).astype(float)
    Z = np.array([[-1.0, 0.2], [0.1, 0.9], [0.8, -0.6], [1.7, 0.4]])
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.3) + pgm.White(0.2), form=pgm.Inducing(Z)))
    return model, Split(X[:20], y[:20], X[20:], y[20:]), Z


@pytest.mark.slow
def test_a_look_and_the_rivals_bound_are_those_of_the_variational_gaussian(data):
    model, split, Z = data
    curve = Curve(model.fixed(), split, Z)
    result = pgm.vi(model.fixed(), split.X, split.y, objective="expected", callback=curve.after_sweep, progress=False)
    taken = scores(result.predict(split.X_test), split.y_test)
    assert curve.looks[-1][1:] == pytest.approx((taken.error, taken.nll), abs=1e-6)
    # q(u) from its definition, for the rival in either parametrisation.
    kernel, (h, w) = model.gps[0].kernel, (np.asarray(part)[:20, 0] for part in result.posterior.sites)
    K = np.asarray(kernel(Z, Z))
    L = np.linalg.cholesky(K + JITTER * np.mean(np.diag(K)) * np.eye(4))
    A = np.linalg.solve(L, np.asarray(kernel(Z, split.X)))
    S = np.linalg.inv(np.eye(4) + (A * w) @ A.T)
    mean, root = S @ A @ h, np.linalg.cholesky(S)
    with jax.enable_x64(True):
        for whitened in (True, False):
            rival = rival_of(model, split, Z, Adam, whitened=whitened, moves=True)
            moments = (mean, root) if whitened else (L @ mean, L @ root)
            vector = np.concatenate([np.asarray(rival.start())[:3], *map(np.ravel, moments), Z.ravel()])
            assert float(rival.bound(vector, np.arange(20))) == pytest.approx(result.elbo, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "rate"), [(AdaDelta, 1.0), (Adam, 0.05)])
def test_the_rival_learns(data, rule, rate):
    model, split, Z = data
    looks = follow(model, split, Z, rule, rate, 20, 1.0, whitened=True)
    assert looks[0].nll == pytest.approx(np.log(2.0))
    assert looks[-1].nll < looks[0].nll
    assert all(after.seconds >= before.seconds for before, after in pairwise(looks))


def test_steps_of_adadelta():
    state = adadelta_step(AdaDelta(np.array([1.0]), np.array([0.0]), np.array([0.0])), np.array([-2.0]), 0.5)
    move = -0.5 * 2.0 * np.sqrt(1e-4) / np.sqrt(0.4 + 1e-4)
    assert np.asarray(state).ravel() == pytest.approx([1.0 + move, 0.4, 0.1 * move**2])


def test_times_and_scores_of_looks():
    assert first_time(LOOKS, 0.4, "nll") == 0.2
    assert first_time(LOOKS, 0.1, "error") == np.inf
    np.testing.assert_array_equal(score_at(LOOKS, np.array([0.05, 0.1, 0.3, 9.0]), "error"), [np.nan, 0.5, 0.2, 0.3])


# Cases of the validation of nested marginals: their log densities are those of their likelihoods.


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{case.name} {case.y}" for case in CASES])
def test_log_densities_are_those_of_the_likelihoods(number):
    case = CASES[number]
    f = np.random.default_rng(number).normal(size=(len(case.y), case.num_latents))
    values = log_density(case.likelihood, case.observations, f)
    expected = [case.log_density(y, latents) for y, latents in zip(case.observations, f, strict=True)]
    np.testing.assert_allclose(values, expected, rtol=2e-5, atol=2e-5)


def test_quadrature_of_a_gaussian_is_exact():
    case = next(case for case in CASES if case.name.startswith("Gaussian"))
    exact = quadrature.truth(case, 9.0)
    K = 9.0 * np.exp(-0.5 * (case.inputs - case.inputs.T) ** 2)
    S = K + 0.25 * np.eye(3)
    mean = 0.3 + K @ np.linalg.solve(S, case.observations - 0.3)
    np.testing.assert_allclose(exact.mean[:, 0], mean, atol=1e-8)
    np.testing.assert_allclose(exact.variance[:, 0], np.diag(K - K @ np.linalg.solve(S, K)), rtol=1e-7)
    residual = case.observations - 0.3
    log_evidence = -0.5 * (residual @ np.linalg.solve(S, residual) + np.linalg.slogdet(2.0 * np.pi * S)[1])
    assert exact.log_evidence == pytest.approx(log_evidence, abs=1e-8)


# Claims of the papers: measured part by part, kept, judged, and written as pages.


CLAIMS = [claim for module in (galy_fajou, izmailov, liu, passerello, wenzel) for claim in module.CLAIMS]


class Sum(Claim):
    identifier = "Z1"
    title = "A sum"
    statement = "it is three."
    criterion = "it is three."
    settings = "two parts."

    def __init__(self):
        self.measured = []

    def part_names(self, full):
        return ("one", "two")

    def measure(self, part, full, seed):
        self.measured.append(part)
        return [{"part": part, "number": {"one": 1.0, "two": 2.0}[part]}]

    def judge(self, rows):
        total = sum(row["number"] for row in rows)
        word, scope = reproduced_if(total == 3.0, "the numbers")
        return Verdict(word, f"the sum is {total}.", scope, (Side("Both are positive", NOT_HERE, "One is not."),))


@pytest.fixture
def validation_papers_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    return tmp_path


def test_a_run_that_was_cut_off_goes_on(validation_papers_folder):
    claim = Sum()
    first = record.Record(claim, full=False, seed=0)
    first.measure("one")
    record.write_pages({"paper": [claim]})
    assert first.verdict is None
    assert "**Not finished**: two" in (validation_papers_folder / "paper.md").read_text()
    second = record.Record(claim, full=False, seed=0)
    assert second.unmeasured == ["two"]
    second.measure("two")
    record.write_pages({"paper": [claim]})
    assert claim.measured == ["one", "two"]
    page = (validation_papers_folder / "paper.md").read_text()
    assert "**Reproduced**\n\nIt is three. The sum is 3.0.\n\n- Both are positive: **not reproduced here**" in page
    listed = (validation_papers_folder / "index.md").read_text()
    assert f"| Z1 | A sum | reproduced | {record.commit()} |" in listed
    assert "Of 1 rows: 1 reproduced." in listed


def test_another_seed_or_size_is_measured_anew(validation_papers_folder):
    claim = Sum()
    record.Record(claim, full=False, seed=0).measure("one")
    assert record.Record(claim, full=False, seed=1).unmeasured == ["one", "two"]
    assert record.Record(claim, full=True, seed=0).unmeasured == ["one", "two"]
    assert record.Record(claim, full=False, seed=0, again=True).unmeasured == ["one", "two"]


def test_what_is_otherwise_is_not_refuted(validation_papers_folder):
    claim = Sum()
    other = record.Record(claim, full=False, seed=0)
    other.measured = {part: {"rows": [{"part": part, "number": 2.0}]} for part in claim.part_names(False)}
    assert other.verdict[:3] == (NOT_HERE, "the sum is 4.0.", "the numbers")


def test_claims_are_numbered_once():
    names = [claim.identifier for claim in CLAIMS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.identifier)
def test_what_is_kept_is_of_the_claim_as_it_stands(claim):
    path = record.FOLDER / f"{claim.identifier}.json"
    if not path.is_file():
        pytest.skip("not measured")
    kept = json.loads(path.read_text())
    assert set(kept["parts"]) <= set(claim.part_names(kept["full"]))
    page = record.kept_record(claim)
    said = "\n".join(page.section())
    assert all(text in said for text in (claim.title, claim.statement[1:], claim.criterion))
    assert all(part["commit"] for part in kept["parts"].values())


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.identifier)
def test_a_verdict_has_one_of_four_words_and_says_of_what(claim):
    verdict = record.kept_record(claim).verdict
    assert verdict.word in (*WORDS, FINDING)
    assert bool(verdict.scope) == (verdict.word != REPRODUCED)
    assert all(side.word in (REPRODUCED, IN_PART, NOT_HERE, REFUTED) and side.reason for side in verdict.sides)
    sentences = re.split(r"(?<=[.;:!?])\s", " ".join((claim.statement, claim.ran, claim.meaning)))
    assert all(len(sentence.split()) <= 25 for sentence in sentences)


def test_pages_are_those_of_the_records():
    papers = {"wenzel": wenzel, "galy-fajou": galy_fajou, "liu": liu, "passerello": passerello, "izmailov": izmailov}
    claims = {name: module.CLAIMS for name, module in papers.items()}
    written = record.FOLDER / "index.md"
    assert written.read_text() == record.index(claims)
    for name, kept in claims.items():
        page = (record.FOLDER / f"{name}.md").read_text()
        assert all("\n".join(record.kept_record(claim).section()).rstrip() in page for claim in kept)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.identifier)
def test_a_record_is_of_the_present_code_or_listed_as_measured_before(claim):
    try:
        changed = freshness.changed_since(claim, record.kept_record(claim).commits)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no history")
    listed = claim.identifier in freshness.MEASURED_BEFORE
    assert listed or changed is None, f"{changed} changed: measure {claim.identifier} again, or list it"
    assert not listed or changed is not None, f"{claim.identifier} is of the present code: take it off the list"


def test_what_is_measured_changes_with_its_statements_and_not_with_its_texts():
    source = (
        'SIZE = {size}\nclass Sum(Claim):\n    title = "{text}"\n'
        '    def measure(self):\n        "{text}"\n        return SIZE\n'
    )
    before, told, other = (
        freshness._flat(source.format(size=size, text=text), Sum()) for size, text in ((1, "a"), (1, "b"), (2, "a"))
    )
    assert before == told
    assert not before <= other


# The race's reading of its runs.


VALIDATION = Path(__file__).parent


@pytest.fixture
def race(monkeypatch):
    monkeypatch.syspath_prepend(str(VALIDATION))
    return importlib.import_module("race")


def test_a_contestant_stands_where_its_losses_first_reach_the_level(race):
    # The peer is there, rises again and ends at 0.40: the level is 0.405, and of two points below it the first counts.
    peer = {"contestant": "GPflow", "compile": [4.0, 2.0], "before": [3.0, 3.5]}
    runs = [
        peer | {"curve": [[5.0, 3.0, 0.5], [6.0, 4.0, 0.404], [7.0, 5.0, 0.41], [8.0, 6.0, 0.40]], "rate": 0.01},
        peer | {"curve": [[5.0, 3.5, 0.5], [9.0, 9.0, 0.403]], "rate": 0.05},
        {"contestant": "fit", "compile": [6.0, 6.0], "curve": [[7.0, 8.0, 0.405]], "before": [1.0, 2.0]},
        {"contestant": "svi", "curve": [[1.0, 1.0, 0.406]]},
    ]
    standings = race.standings(runs)
    assert standings["GPflow"].run["rate"] == 0.01
    assert standings["GPflow"][1:] == (6.0, 4.0, 2.0, 7.5)
    assert standings["fit"][1:] == (7.0, 8.0, 2.0, 10.0)
    assert standings["svi"].total == math.inf
    ratios = [race.ratio(standings, part) for part in ("total", "compiled", "process")]
    assert ratios == [0.5, 1.0, 0.75]


# Which slow tests `.ci/nightly --since` runs again: those whose imports changed after their last pass.

ROOT, FILE = Path(__file__).parents[1], "tests/numerics/test_quadrature.py"


@pytest.fixture
def nightly(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "validation"))
    import nightly

    yield nightly
    sys.modules.pop("nightly")


def test_closure_has_what_a_test_imports_and_the_modules_of_public_names(nightly):
    names = {str(path.relative_to(ROOT)) for path in nightly.closure(ROOT / FILE)}
    assert {FILE, "pgmodels/numerics/quadrature.py", "tests/conftest.py"} <= names
    assert str(nightly.public()["svi"].relative_to(ROOT)) == "pgmodels/inference/svi.py"
    assert str(nightly.public()["nuts"].relative_to(ROOT)) == "pgmodels/inference/nuts.py"


@pytest.mark.parametrize(
    ("changed", "failed", "commit", "current"),
    [
        ("README.md", "0", "abc", True),
        ("pgmodels/numerics/quadrature.py", "0", "abc", False),
        ("README.md", "test_a", "abc", False),
        ("README.md", "0", "abc+", False),
    ],
)
def test_is_current_by_what_changed_since_the_pass(nightly, monkeypatch, changed, failed, commit, current):
    monkeypatch.setattr(nightly, "git", lambda *arguments: changed if arguments[0] == "diff" else "")
    assert nightly.is_current({"file": FILE, "commit": commit, "failed": failed}, "abc") is current
