"""Check names: no all-purpose words as names, no identifiers that were renamed, and no dispatch on classes or names.

In engines, diagnostics and reports nothing asks for the class of a prior, posterior, objective, kernel or
representation, or compares with the name of an engine or objective. Prints each place and exits with 1 if there is one.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORDS = {"found", "own", "given", "parts", "left", "whole", "held", "seen"}
# Public names: the operands of sums, products and differences of kernels.
ALLOWED = {("pgmodels/kernels/kernel.py", "left"), ("pgmodels/kernels/columns.py", "left")}
RENAMED = set((ROOT / ".ci" / "renamed.txt").read_text(encoding="utf-8").split())
# Where engines, diagnostics and reports must not ask for classes or names.
GENERIC = ("pgmodels/inference", "pgmodels/diagnostics", "pgmodels/report")
CLASSES = re.compile(r"(Prior|Posterior|Objective|Kernel|Representation|Quadrature|Inducing|Dense|Auto|Augmentation)$")
NAMES = {"augmented", "expected", "cavi", "gaussian_vi", "fit", "svi"}
# The registry of objectives.
REGISTRY = {"pgmodels/inference/objectives.py"}


def sources(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    """The syntax trees of files, with their paths."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def all_purpose(tree: ast.Module, path: str) -> Iterator[tuple[int, str]]:
    """Variables, arguments, functions and fields that are called by an all-purpose word."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                pass
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                pass
            case ast.Attribute(attr=name, ctx=ast.Store()):
                pass
            case _:
                continue
        if name.strip("_") in WORDS and (path, name) not in ALLOWED:
            yield node.lineno, f"{name}: name what it holds"


def renamed(tree: ast.Module, path: str) -> Iterator[tuple[int, str]]:
    """Identifiers that were renamed."""
    for node in ast.walk(tree):
        name = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "name", None)
        if isinstance(name, str) and name in RENAMED:
            yield getattr(node, "lineno", 0), f"{name}: an old name"


def dispatch(tree: ast.Module, path: str) -> Iterator[tuple[int, str]]:
    """Questions for the class of a prior, posterior, objective or kernel, and comparisons with an engine's name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in {"isinstance", "issubclass"}:
            classes = [n for n in ast.walk(node.args[1]) if isinstance(n, (ast.Name, ast.Attribute))]
            names = [getattr(n, "id", None) or getattr(n, "attr", "") for n in classes]
            for name in filter(CLASSES.search, names):
                yield node.lineno, f"isinstance of {name}: ask for what it can do"
        if isinstance(node, ast.Compare):
            for side in [node.left, *node.comparators]:
                constants = [n.value for n in ast.walk(side) if isinstance(n, ast.Constant)]
                for value in constants:
                    if isinstance(value, str) and value in NAMES:
                        yield node.lineno, f"comparison with {value!r}: ask for what it can do"


def main() -> int:
    """All faults, a line each."""
    faults = []
    for path, tree in sources("pgmodels", "tests", "validation", "examples"):
        checks = [all_purpose, renamed]
        if path.startswith(GENERIC) and path not in REGISTRY:
            checks.append(dispatch)
        faults += [f"{path}:{line}: {fault}" for check in checks for line, fault in check(tree, path)]
    print("\n".join(faults))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
