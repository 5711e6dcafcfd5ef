"""Run the slow tests, a file at a time, and record at which commit each passed; other files keep their rows."""

import argparse
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from table import write_table

ROOT = Path(__file__).parents[1]
RECORD = Path(__file__).parent / "results" / "slow_tests.md"


def slow_files() -> list[str]:
    """The files of tests that have slow ones, the statistical ones last."""
    command = [sys.executable, "-m", "pytest", "-m", "slow", "-n", "0", "--collect-only", "-q"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    files = re.findall(r"^(tests/\S+\.py): \d+$", listed, re.MULTILINE)
    return sorted(files, key=lambda name: ("statistical" in name, name))


def commit() -> str:
    """The commit, with + if files differ from it."""
    described = subprocess.run(["git", "describe", "--always", "--dirty=+"], cwd=ROOT, capture_output=True, text=True)
    return described.stdout.strip()


def run(file: str, limit: float) -> dict[str, object]:
    """The row of a file: how many of its slow tests passed and failed, and the names of those that failed."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "slow", "-n", "0", f"--junitxml={report}", file]
        row: dict[str, object] = {"file": file, "commit": commit()}
        try:
            subprocess.run(command, cwd=ROOT, capture_output=True, timeout=limit)
            suite = ElementTree.parse(report).getroot()[0]
        except (subprocess.TimeoutExpired, FileNotFoundError) as error:
            return row | {"passed": 0, "failed": f"no result ({type(error).__name__})"}
    count = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    bad = [case.attrib["name"] for case in suite if case.find("failure") is not None or case.find("error") is not None]
    passed = count["tests"] - count["failures"] - count["errors"] - count["skipped"]
    row |= {"passed": passed, "failed": "; ".join(bad).replace("|", "/") or 0, "skipped": count["skipped"]}
    return row | {"seconds": round(time.perf_counter() - start)}


def recorded() -> dict[str, dict[str, object]]:
    """The rows of the record, by file."""
    lines = RECORD.read_text("utf-8").splitlines() if RECORD.exists() else []
    table = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    return {row[0]: dict(zip(table[0], row, strict=True)) for row in table[1:] if row[0].startswith("tests/")}


def main() -> None:
    """Run files, and write the record after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="files of tests; by default all that have slow ones")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds after which a file is given up")
    arguments = parser.parse_args()
    existing = slow_files()
    for file in arguments.files or existing:
        rows = recorded() | {file: run(file, arguments.limit)}
        write_table(
            "Slow tests",
            [rows[name] for name in existing if name in rows],
            "The slow tests of each file (`python -m pytest -m slow -n 0 FILE`) at the commit where they last ran. "
            "Other work may have run beside them: the seconds are no measurement.",
            seed=0,
        )


if __name__ == "__main__":
    main()
