"""Install the package in fresh environments, oldest and newest, alone and beside other libraries, and test it there."""

import argparse
import json
import re
import shutil
import subprocess
import tempfile
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

from table import write_table

ROOT = Path(__file__).parents[1]
# What a user of another library meets first: every call once, both libraries loaded, text and figures.
SHORT = ("test_public_calls.py", "test_cavi.py", "test_gibbs.py", "test_compare.py", "test_interop.py", "test_plots.py")
SHOWN = ("numpy", "scipy", "jax", "numpyro", "equinox", "scikit-learn", "pandas", "xarray", "matplotlib", "arviz-base")


class Environment(NamedTuple):
    """A version of Python, whether the oldest releases of the dependencies, and another library that is there too.

    ``all_tests`` runs all default tests there.
    """

    python: str
    oldest: bool = False
    beside: str | None = None
    all_tests: bool = False

    @property
    def name(self) -> str:
        """A word without spaces."""
        return f"{self.beside or ('lowest' if self.oldest else 'newest')}-{self.python}"


ENVIRONMENTS = [
    Environment("3.11", oldest=True, all_tests=True),
    Environment("3.11", all_tests=True),
    # Its newest releases are those of 3.13.
    Environment("3.12"),
    Environment("3.13", all_tests=True),
    *(Environment("3.12", beside=library) for library in ("bambi", "pymc")),
    # GPflow 2.9 imports pkg_resources, which fresh environments have up to Python 3.11 only.
    *(Environment("3.11", beside=library) for library in ("gpflow", "gpytorch")),
    Environment("3.13", beside="blackjax"),
]


def oldest_releases() -> list[str]:
    """The lower bound of each dependency, and of each that the tests need, as the one release to install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    return [re.sub(r"^([\w.-]+)>=([\w.]+).*", r"\1==\2", bound) for bound in bounds]


def run(*command: object, cwd: Path, log: Path) -> tuple[bool, str]:
    """Whether a command succeeds, and what it prints, which the log keeps."""
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with log.open("a") as file:
        file.write(f"$ {' '.join(map(str, command))}\n{done.stdout}\n")
    return done.returncode == 0, done.stdout


def installed(python: Path, cwd: Path, log: Path) -> dict[str, str]:
    """The version of everything in an environment."""
    _, listed = run(python, "-m", "pip", "--disable-pip-version-check", "list", "--format=json", cwd=cwd, log=log)
    rows = json.loads(listed[listed.index("[") :].splitlines()[0])
    return {canonical(row["name"]): row["version"] for row in rows}


def resolved(pip: list[object], wanted: str, cwd: Path, log: Path) -> dict[str, str]:
    """The versions that pip takes for one thing alone, without installing them; raises KeyError where it finds none."""
    report = cwd / "report.json"
    run(*pip, "--dry-run", "--ignore-installed", f"--report={report}", wanted, cwd=cwd, log=log)
    items = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {canonical(item["metadata"]["name"]): item["metadata"]["version"] for item in items}


def canonical(name: str) -> str:
    """A package's name in the one spelling of the index."""
    return re.sub(r"[-_.]+", "-", name).lower()


def changed(alone: dict[str, str], together: dict[str, str]) -> list[str]:
    """What is in another version than where one thing is installed alone."""
    pairs = ((name, version, together.get(name)) for name, version in alone.items())
    return [f"{name} {version} to {now}" for name, version, now in pairs if version != now]


def try_environment(environment: Environment, folder: Path, log: Path, all_tests: bool) -> dict[str, object]:
    """The row of the table: what was installed, what passed, and in how many seconds."""
    row: dict[str, object] = {"environment": environment.name, **dict.fromkeys(SHOWN, ""), "changed": "", "tests": ""}
    interpreter = shutil.which(f"python{environment.python}")
    if interpreter is None or not run(interpreter, "-m", "venv", folder / "venv", cwd=folder, log=log)[0]:
        return row | {"tests": f"not run: no python{environment.python}"}
    python = folder / "venv" / "bin" / "python"
    # A copy: nothing of a checkout is imported, and nothing is written into it.
    copy = folder / "copy"
    ignored = shutil.ignore_patterns(".git", "build", "*.egg-info", "__pycache__", "pgmodels-results")
    shutil.copytree(ROOT, copy, ignore=ignored)
    pip: list[object] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    wanted = [environment.beside] if environment.beside else oldest_releases() if environment.oldest else []
    if not run(*pip, f"{copy}[test]", *wanted, cwd=folder, log=log)[0]:
        return row | {"tests": "does not install"}
    after = installed(python, folder, log)
    row |= {name: after[name] for name in SHOWN}
    if environment.beside is not None:
        alone = [resolved(pip, thing, folder, log) for thing in (environment.beside, str(copy))]
        row["changed"] = ", ".join(dict.fromkeys(line for each in alone for line in changed(each, after))) or "nothing"
        imported, _ = run(python, "-c", f"import {environment.beside}, pgmodels", cwd=folder, log=log)
        row["environment"] = f"{environment.name} ({environment.beside} {after[environment.beside]})"
        if not imported:
            return row | {"tests": f"{environment.beside} and pgmodels are not imported together"}
    chosen = [] if all_tests or environment.all_tests else [f"tests/{name}" for name in SHORT]
    start = time.perf_counter()
    passed, printed = run(python, "-m", "pytest", *chosen, cwd=copy, log=log)
    closing = re.findall(r"^(?:=+ )?(\d+ (?:passed|failed).*?) in ", printed, re.MULTILINE)
    verdict = closing[-1] if closing else "no closing line"
    row |= {"tests": verdict if passed else f"FAILED: {verdict}", "seconds": round(time.perf_counter() - start)}
    return row


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("names", nargs="*", help=f"some of {', '.join(e.name for e in ENVIRONMENTS)}; all unless given")
parser.add_argument("--all-tests", action="store_true", help="the whole default tests beside other libraries too")
parser.add_argument("--logs", type=Path, help="folder for what each environment printed, and for its row")
options = parser.parse_args()
unknown = set(options.names) - {environment.name for environment in ENVIRONMENTS}
if unknown:
    parser.error(f"there is no environment {', '.join(sorted(unknown))}")

# Rows that a folder of logs has of an earlier call are in the table too: all of them take an hour.
rows = []
for environment in ENVIRONMENTS:
    with tempfile.TemporaryDirectory(prefix=f"pgmodels-{environment.name}-") as scratch:
        logs = options.logs or Path(scratch)
        logs.mkdir(parents=True, exist_ok=True)
        kept = logs / f"{environment.name}.json"
        if not options.names or environment.name in options.names:
            log = logs / f"{environment.name}.log"
            log.unlink(missing_ok=True)
            row = try_environment(environment, Path(scratch), log, options.all_tests)
            kept.write_text(json.dumps(row), encoding="utf-8")
            print(" ".join(f"{name}={value}" for name, value in row.items()), flush=True)
        if kept.exists():
            rows.append(json.loads(kept.read_text(encoding="utf-8")))
write_table(
    "Environments",
    rows,
    "Each environment is fresh. `lowest` has the lower bound of every dependency in `pyproject.toml`, `newest` what "
    "pip takes by itself; they run the default tests, but newest-3.12 and those beside another library, installed by "
    f"the same command, the files {', '.join(SHORT)}. *changed* names what is in another version than where that "
    "library, or pgmodels, is installed alone. GPflow from 2.10 on asks for numpy below 2, JAX and arviz-stats ask "
    "for numpy 2.",
    seed=0,
)
kept = all(row["changed"] in ("", "nothing") or str(row["environment"]).startswith("gpflow") for row in rows)
raise SystemExit(not kept or any(not re.match(r"\d+ passed", str(row["tests"])) for row in rows))
