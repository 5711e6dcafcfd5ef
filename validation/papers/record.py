"""What was measured of a claim, kept in a JSON file part by part, and written as pages with their verdicts."""

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from validation.papers.claim import FINDING, WORDS, Claim, Row, Verdict
from validation.papers.freshness import MEASURED_BEFORE
from validation.table import markdown_rows, provenance

FOLDER = Path(__file__).parents[1] / "results" / "papers"
EXPLAINED = (
    'A verdict is one of four words. "Reproduced in part" names the part. "Not reproduced here" names what differs',
    'from print: size, rival, data or steps. "Refuted" rests on a counterexample, a proof or the published protocol. A',
    '"finding" is not said by the paper. Further conditions have verdicts of their own, on the paper\'s page.',
)


class Record:
    """The measured parts of a claim, of one size and seed."""

    def __init__(self, claim: Claim, full: bool, seed: int, again: bool = False):
        self.claim, self.full, self.seed = claim, full, seed
        self.path = FOLDER / f"{claim.identifier}.json"
        kept = None if again or not self.path.is_file() else json.loads(self.path.read_text())
        same = kept is not None and (kept["full"], kept["seed"]) == (full, seed)
        self.measured: dict[str, dict[str, Any]] = kept["parts"] if same else {}

    @property
    def unmeasured(self) -> list[str]:
        """Parts that are not measured yet."""
        return [part for part in self.claim.part_names(self.full) if part not in self.measured]

    @property
    def rows(self) -> list[Row]:
        """The rows of the measured parts, in their order."""
        names = self.claim.part_names(self.full)
        return list(self.claim.derive([row for part in names for row in self.measured.get(part, {"rows": []})["rows"]]))

    @property
    def commits(self) -> list[str]:
        """The commits with which the parts were recorded."""
        return list(dict.fromkeys(part["commit"] for part in self.measured.values()))

    @property
    def verdict(self) -> Verdict | None:
        """The verdict, once all parts are measured."""
        return None if self.unmeasured else self.claim.judge(self.rows)

    def measure(self, part: str) -> None:
        """Measure a part and keep it."""
        start = time.perf_counter()
        rows = self.claim.measure(part, self.full, self.seed)
        seconds = round(time.perf_counter() - start, 1)
        self.measured[part] = {
            "rows": rows, "seconds": seconds, "provenance": provenance(self.seed, self.command), "commit": commit(),
        }  # fmt: skip
        FOLDER.mkdir(parents=True, exist_ok=True)
        kept = {"full": self.full, "seed": self.seed, "parts": self.measured}
        self.path.write_text(json.dumps(kept, indent=1, default=float) + "\n")

    @property
    def command(self) -> str:
        """The command that measures the claim."""
        extra = [*(["--full"] if self.full else []), *(["--seed", str(self.seed)] if self.seed else [])]
        return " ".join(["python -m validation.papers", self.claim.identifier, *extra])

    @property
    def picture(self) -> Path:
        """The file of the claim's picture, if it has one."""
        return FOLDER / f"{self.claim.identifier}.png"

    def draw(self) -> None:
        """Draw the claim's picture, if it has one."""
        figure = self.claim.draw(self.rows)
        if figure is not None:
            figure.savefig(self.picture, dpi=110, bbox_inches="tight")

    def section(self) -> list[str]:
        """The lines of the claim's section, with its verdict, table and picture."""
        claim, verdict = self.claim, self.verdict
        lines = [f"## {claim.identifier}: {claim.title}", ""]
        if verdict is None:
            lines += [f"**Not finished**: {', '.join(self.unmeasured)} to be measured.", ""]
        else:
            lines += [f"**{_sentence(_said(verdict))}**", ""]
        told = [claim.statement, claim.ran, "" if verdict is None else verdict.reason, claim.meaning]
        lines += [" ".join(_sentence(part) for part in told if part), ""]
        if verdict is not None:
            lines += [f"- {side.condition}: **{side.word}**. {side.reason}" for side in verdict.sides]
            lines += [""] if verdict.sides else []
        lines += [
            f"Reproduced if: {claim.criterion}",
            "",
            f"Settings: {claim.settings}",
            "",
            *markdown_rows([_cells(row) for row in self.rows], claim.digits),
            "",
        ]
        if self.picture.is_file():
            lines += [f"![{claim.title}]({self.picture.name})", ""]
        seconds = sum(part["seconds"] for part in self.measured.values())
        latest = list(self.measured.values())[-1]["provenance"]
        before = ", before the present code" if claim.identifier in MEASURED_BEFORE else ""
        return [*lines, *latest, f"- commit: {', '.join(self.commits)}{before}", f"- seconds: {seconds:.0f}", ""]


def kept_rows(identifier: str) -> list[Row]:
    """The kept rows of a claim, none if there are none."""
    path = FOLDER / f"{identifier}.json"
    parts = json.loads(path.read_text())["parts"] if path.is_file() else {}
    return [row for part in parts.values() for row in part["rows"]]


def commit() -> str:
    """The commit that is checked out."""
    shown = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=FOLDER, capture_output=True, text=True)
    return shown.stdout.strip() or "unknown"


def _cells(row: Row) -> Row:
    return {name: cell for name, cell in row.items() if not isinstance(cell, list)}


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def kept_record(claim: Claim) -> Record | None:
    """What is kept of a claim, of any size and seed."""
    path = FOLDER / f"{claim.identifier}.json"
    if not path.is_file():
        return None
    kept = json.loads(path.read_text())
    return Record(claim, kept["full"], kept["seed"])


def write_pages(papers: Mapping[str, Sequence[Claim]]) -> None:
    """Write a page for each paper, of its claims that are measured, and the list of all claims with their verdicts."""
    for paper, claims in papers.items():
        sections = ["# Claims", ""]
        for record in filter(None, map(kept_record, claims)):
            sections += record.section()
        (FOLDER / f"{paper}.md").write_text("\n".join(sections).rstrip() + "\n")
    (FOLDER / "index.md").write_text(index(papers))


def index(papers: Mapping[str, Sequence[Claim]]) -> str:
    """All claims with their verdicts, and the count of each word."""
    lines = ["# Claims of the papers", "", *EXPLAINED, "", "| claim | the paper says | verdict | measured at |"]
    lines.append("|" + " --- |" * 4)
    words: list[str] = []
    for claim in (claim for claims in papers.values() for claim in claims):
        record = kept_record(claim)
        verdict = None if record is None else record.verdict
        said = "not measured" if verdict is None else _said(verdict)
        at = "" if record is None else ", ".join(record.commits)
        lines.append(f"| {claim.identifier} | {claim.title} | {said} | {at} |")
        words += [] if verdict is None else [verdict.word]
    counts = [f"{words.count(word)} {word}" for word in (*WORDS, FINDING) if word in words]
    return "\n".join([*lines, "", f"Of {len(words)} rows: {', '.join(counts)}.", *_before(papers)]) + "\n"


def _before(papers: Mapping[str, Sequence[Claim]]) -> list[str]:
    names = [c.identifier for claims in papers.values() for c in claims if c.identifier in MEASURED_BEFORE]
    count = (
        f"{len(names)} of {sum(map(len, papers.values()))} claims were measured before the present code of inference,"
    )
    return ["", f"{count} objectives and systems. Their pages mark them."] if names else []


def _said(verdict: Verdict) -> str:
    return f"{verdict.word}: {verdict.scope}" if verdict.scope else verdict.word
