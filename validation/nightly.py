"""Run the slow tests, a file at a time, and record at which commit each passed; other files keep their rows."""

import argparse
import ast
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from functools import cache
from pathlib import Path

from table import write_table

ROOT = Path(__file__).parents[1]
RECORD = Path(__file__).parent / "results" / "nightly.md"


def slow_files() -> list[str]:
    """The files of tests that have slow ones, the statistical ones last."""
    command = [sys.executable, "-m", "pytest", "-m", "slow", "-n", "0", "--collect-only", "-q"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    files = re.findall(r"^(tests/\S+\.py): \d+$", listed, re.MULTILINE)
    return sorted(files, key=lambda name: ("statistical" in name, name))


def git(*arguments: str) -> str:
    """What a command of git prints; ValueError if it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def run(file: str, limit: float) -> dict[str, object]:
    """The row of a file: how many of its slow tests passed and failed, and the names of those that failed."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "slow", "-n", "0", f"--junitxml={report}", file]
        # A + marks files that differ from the commit.
        row: dict[str, object] = {"file": file, "commit": git("describe", "--always", "--dirty=+")}
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


def is_current(row: dict[str, object], since: str) -> bool:
    """Whether the file passed at ``since`` or later, and nothing that it imports has changed after that pass."""
    commit = str(row["commit"])
    if str(row["failed"]) != "0" or commit.endswith("+"):
        return False
    try:
        git("merge-base", "--is-ancestor", since, commit)
        changed = set(git("diff", "--name-only", commit).splitlines())
    except ValueError:  # an earlier commit, or one that is no longer there
        return False
    return not changed & {str(path.relative_to(ROOT)) for path in closure(ROOT / str(row["file"]))}


def closure(file: Path) -> set[Path]:
    """The file, the configuration of the tests, and all modules of this repository that they import."""
    todo = [file, *(parent / "conftest.py" for parent in file.parents if parent.is_relative_to(ROOT / "tests"))]
    reached: set[Path] = set()
    while todo:
        path = todo.pop()
        if path.exists() and path not in reached:
            reached.add(path)
            todo.extend(imported(path))
    return reached


@cache
def imported(path: Path) -> frozenset[Path]:
    """The modules that a file imports, also in functions; of the package itself only those of the names used."""
    if path == ROOT / "pgmodels" / "__init__.py":
        return frozenset()
    tree = ast.parse(path.read_text("utf-8"))
    modules: set[Path | None] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules |= {module(node.module), *(module(f"{node.module}.{alias.name}") for alias in node.names)}
            if node.module == "pgmodels":
                modules |= {public().get(alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            modules |= {module(alias.name) for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pgm":
            modules.add(public().get(node.attr))
    return frozenset(path for path in modules if path)


def module(name: str) -> Path | None:
    """The file of a module of the package or of the tests."""
    base = ROOT.joinpath(*name.split("."))
    files = [base.with_suffix(".py"), base / "__init__.py", ROOT / "tests" / f"{name}.py"]
    return next((file for file in files if file.is_file()), None)


@cache
def public() -> dict[str, Path | None]:
    """The modules of the public names."""
    tree = ast.parse((ROOT / "pgmodels" / "__init__.py").read_text("utf-8"))
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                submodule = module(f"{node.module}.{alias.name}")
                modules[alias.asname or alias.name] = submodule or module(node.module)
    return modules


def main() -> None:
    """Run files, and write the record after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="files of tests; by default all that have slow ones")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds after which a file is given up")
    parser.add_argument("--part", default="1/1", help="k/n: the k-th of n parts of the files")
    parser.add_argument("--since", help="a commit: without files that passed then or later and import nothing changed")
    arguments = parser.parse_args()
    which, count = map(int, arguments.part.split("/"))
    if not 1 <= which <= count:
        parser.error(f"--part is k/n with 1 <= k <= n; got {arguments.part}")
    existing, rows = slow_files(), recorded()
    for file in (arguments.files or existing)[which - 1 :: count]:
        if arguments.since and file in rows and is_current(rows[file], arguments.since):
            print(f"{file}: passed at {rows[file]['commit']}, and what it imports has not changed")
            continue
        rows = recorded() | {file: run(file, arguments.limit)}
        write_table(
            "Slow tests",
            [rows[name] for name in existing if name in rows],
            "The slow tests of each file (`python -m pytest -m slow -n 0 FILE`) at the commit where they last ran. "
            "Other work may have run next to them: the seconds are no measurement.",
            seed=0,
        )
    if any(str(row["failed"]) != "0" for row in recorded().values()):
        sys.exit("some slow tests failed")


if __name__ == "__main__":
    main()
