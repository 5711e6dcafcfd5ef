"""Whether what a claim runs changed since it was measured: its script, and what that imports of the package."""

import ast
import subprocess
from collections.abc import Iterable
from functools import cache
from itertools import product
from pathlib import Path

import pgmodels as pgm
from validation.papers.claim import Claim

ROOT = Path(__file__).parents[2]
# What counts of the package. All else has tests of its own figures.
WATCHED = ("pgmodels/inference/", "pgmodels/objectives/", "pgmodels/systems")
# What keeps and judges records, and measures nothing.
FRAME = {f"validation/papers/{name}.py" for name in ("claim", "record", "freshness")}
# Parts of a script that judge and describe what is measured.
TEXTS = {
    "judge",
    "derive",
    "draw",
    "written",
    "title",
    "statement",
    "criterion",
    "settings",
    "ran",
    "meaning",
    "SETTINGS",
    "RECOMPUTED",
    "_judge_at",
}
# Claims that were measured before the watched code took its present form: its modules were arranged anew since. A
# claim that is measured again leaves the list; one that is not in it has to be measured again, or entered here, when
# what it runs changes.
MEASURED_BEFORE = frozenset(
    (
        "W1", "W2", "W3", "W4", "W5", "G1", "G2", "G3", "G4", "G5", "G6", "G7", "G8", "L1", "L2", "L3", "L4", "L5",
        "L6", "L7", "P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9", "I1", "I2", "I3", "I4", "I5",
    )
)  # fmt: skip


def changed_since(claim: Claim, commits: Iterable[str]) -> str | None:
    """A file that a claim runs and that differs from that of a commit in more than comments and descriptions."""
    files = _reached(type(claim).__module__.replace(".", "/") + ".py")
    for commit, file in product(sorted(commits), sorted(files)):
        if file in _touched(commit) and not _flat(_at(commit, file), claim) <= _flat((ROOT / file).read_text(), claim):
            return file
    return None


@cache
def _touched(commit: str) -> frozenset[str]:
    """Files that differ from those of the commit, or were not there."""
    return frozenset(_git("diff", "--name-only", "--no-renames", commit).splitlines())


@cache
def _at(commit: str, file: str) -> str:
    """The file at the commit; what no file has, if it was not there."""
    there = _git("ls-tree", "--name-only", commit, file)
    return _git("show", f"{commit}:{file}") if there else "raise FileNotFoundError"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _flat(source: str, claim: Claim) -> set[str]:
    """Statements without comments, descriptions, imports and other claims."""
    mine, found = {base.__name__ for base in type(claim).__mro__}, set()
    for node in ast.parse(source).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        if isinstance(node, ast.ClassDef) and _is_claim(node) and node.name not in mine:
            continue
        for member in members:
            if not isinstance(member, ast.Import | ast.ImportFrom | ast.Expr) and not _names(member) & TEXTS:
                found.add(f"{getattr(node, 'name', '')} {ast.dump(_bare(member))}")
    return found


def _is_claim(node: ast.ClassDef) -> bool:
    return any(isinstance(base, ast.Name) and base.id in {"Claim", "Race"} for base in node.bases)


def _names(node: ast.stmt) -> set[str]:
    targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
    return {getattr(node, "name", ""), *(target.id for target in targets if isinstance(target, ast.Name))}


def _bare(node: ast.AST) -> ast.AST:
    """The node without the descriptions of its functions and classes."""
    for part in ast.walk(node):
        if isinstance(part, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(part) is not None:
            part.body = part.body[1:] or [ast.Pass()]
    return node


@cache
def _reached(script: str) -> frozenset[str]:
    """The script, the modules of these claims that it imports, and what they import of the watched code."""
    reached, todo = {script}, [script]
    while todo:
        new = _imports(todo.pop()) - reached
        reached |= new
        todo.extend(new)
    return frozenset(file for file in reached - FRAME if file.startswith(("validation/", *WATCHED)))


@cache
def _imports(file: str) -> frozenset[str]:
    names = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pgm":
            names.add(getattr(getattr(pgm, node.attr, None), "__module__", "") or "")
    paths = (name.replace(".", "/") + ".py" for name in names if name.startswith(("pgmodels.", "validation.papers.")))
    return frozenset(path for path in paths if (ROOT / path).is_file())
