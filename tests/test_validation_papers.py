"""Claims of the papers: measured part by part, kept, judged, and written as pages."""

import json

import pytest

from validation.papers import galy_fajou, izmailov, liu, passerello, record, wenzel
from validation.papers.claim import Claim, Verdict

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
        return Verdict(total == 3.0, f"the sum is {total}.")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    return tmp_path


def test_a_run_that_was_cut_off_goes_on(folder):
    claim = Sum()
    first = record.Record(claim, full=False, seed=0)
    first.measure("one")
    record.write_pages({"paper": [claim]})
    assert first.verdict is None
    assert "**Not finished**: two" in (folder / "paper.md").read_text()
    second = record.Record(claim, full=False, seed=0)
    assert second.unmeasured == ["two"]
    second.measure("two")
    record.write_pages({"paper": [claim]})
    assert claim.measured == ["one", "two"]
    assert "**Reproduced**: the sum is 3.0." in (folder / "paper.md").read_text()
    assert "| Z1 | A sum | reproduced | the sum is 3.0. |" in (folder / "index.md").read_text()


def test_another_seed_or_size_is_measured_anew(folder):
    claim = Sum()
    record.Record(claim, full=False, seed=0).measure("one")
    assert record.Record(claim, full=False, seed=1).unmeasured == ["one", "two"]
    assert record.Record(claim, full=True, seed=0).unmeasured == ["one", "two"]
    assert record.Record(claim, full=False, seed=0, again=True).unmeasured == ["one", "two"]


def test_what_is_otherwise_is_refuted(folder):
    claim = Sum()
    other = record.Record(claim, full=False, seed=0)
    other.measured = {part: {"rows": [{"part": part, "number": 2.0}]} for part in claim.part_names(False)}
    assert other.verdict == Verdict(False, "the sum is 4.0.")


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
    assert all(text in said for text in (claim.title, claim.statement, claim.criterion))
