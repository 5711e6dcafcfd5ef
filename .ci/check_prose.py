"""Check the prose of pages and public docstrings: long sentences, unclear words. --list prints docstrings' too."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

LENGTH = 25  # words of a sentence
ALLOWED = 25  # faults in docstrings: lower the number when the count falls, never raise it
BUILT = ("docs/gallery/", "docs/reference/api/")
KINDS = {
    "code does not speak": r"\b(says|tells|asks|goes on|goes by)\b",
    "write next to, with or besides": r"\bbeside\b",
    "write instead of": r"\bin (the )?place of\b",
    "repeat the noun": r"\b(those|that) of\b",
    "write the number": r"\bso many\b",
    "write accepts, needs or uses": r"\btakes\b",
    "write except for or without": r"\bbut for\b",
    "write a zero before the point": r"(?<![\w.)*])\.\d",
}
# What is no prose, with what stands for it in a sentence.
MARKDOWN = [
    (r"(?s)\A---\n.*?\n---\n", "\n"), (r"(?ms)^ *(```|~~~).*?^ *\1$", "\n\n"), (r"(?s)\$\$.*?\$\$", "\n\n"),
    (r"(?m)^ *\|.*$", "\n"), (r"(?s)<!--.*?-->", ""), (r"(?m)^\(.*\)=$", ""), (r"(?m)^#+ .*$", "\n"),
    (r"!\[[^\]]*\]\([^)]*\)", ""), (r"\[([^\]]*)\]\([^)]*\)", r"\1"), (r"(?s)(\{[\w:]+\})?(`+).+?\2", "code"),
    (r"\$[^$]+\$", "math"), (r"(?m)^ *([-*]|\d+\.) ", "\n"), (r"(?m)^(    |:).*$", "\n"), (r"\*\*|^> ", ""),
]  # fmt: skip
DOCSTRING = [
    (r"(?ms)^ *>>> .*?(?=^ *$|\Z)", "\n"), (r"(?m)^( *)\.\. \w+::.*\n(\1 +.*\n| *\n)*", "\n"),
    (r"(?ms)::\n\n    .*?(?=^\S|\Z)", ".\n\n"), (r"(?m)^.*\n *(-{3,}|={3,})$", "\n"), (r"(?m)^ *[\w*, ]+ : .*$", "\n"),
    (r"(?s)(:[\w:]+:)?(`+).+?\2", "code"), (r"(?m)^ *([-*]|\d+\.) ", "\n"), (r"(?m)^ *\|.*$", "\n"), (r"\*\*", ""),
]  # fmt: skip


def sentences(text: str, cuts: list[tuple[str, str]]) -> Iterator[str]:
    """The sentences of a text without what its cuts remove."""
    for pattern, stand_in in cuts:
        text = re.sub(pattern, stand_in, text)
    for paragraph in re.split(r"\n\s*\n", text):
        yield from re.split(r"(?<=[.?!])[\"')]*\s+(?=[\"'(]*[A-Z0-9σψξλωαδν]|code|math)", " ".join(paragraph.split()))


def faults(text: str, cuts: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Kind and sentence of each fault."""
    for sentence in sentences(text, cuts):
        if sum(re.search(r"\w", word) is not None for word in sentence.split()) > LENGTH:
            yield f"more than {LENGTH} words", sentence
        yield from ((kind, sentence) for kind, pattern in KINDS.items() if re.search(pattern, sentence))


def docstrings(node: ast.AST) -> Iterator[str]:
    """Of a module and of its public classes, functions and methods."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and not getattr(node, "name", "").startswith("_"):
        yield ast.get_docstring(node) or ""
        for child in [] if isinstance(node, ast.FunctionDef) else node.body:
            yield from docstrings(child)


def main() -> int:
    """Print the faults; 1 if a page has one, or docstrings have more than allowed."""
    folders = Path("docs"), Path("validation/results/papers")
    pages = [
        Path("README.md"),
        Path("CONTRIBUTING.md"),
        *(page for one in folders for page in sorted(one.rglob("*.md"))),
    ]
    texts = [(page, page.read_text("utf-8")) for page in pages if not page.as_posix().startswith(BUILT)]
    found = [(page, *fault) for page, text in texts for fault in faults(text, MARKDOWN)]
    trees = [(path, ast.parse(path.read_text("utf-8"))) for path in sorted(Path("pgmodels").rglob("*.py"))]
    allowed = [(p, *fault) for p, tree in trees for text in docstrings(tree) for fault in faults(text, DOCSTRING)]
    too_many = len(allowed) > ALLOWED
    for path, kind, sentence in found + (allowed if too_many or "--list" in sys.argv else []):
        print(f"{path}: {kind}: {sentence}")
    print(f"{len(found)} faults in pages, {len(allowed)} in docstrings ({ALLOWED} allowed).")
    return bool(found) or too_many


if __name__ == "__main__":
    sys.exit(main())
