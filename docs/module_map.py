"""Write the list of modules in explanation/architecture.md from the first sentences of their docstrings.

``python docs/module_map.py`` rewrites it in place.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
BEGIN, END = "<!-- module map: written by docs/module_map.py -->\n", "<!-- end of the module map -->\n"


def module_map() -> str:
    """The folders of the package in their order, each with its modules, one line each."""
    package = ROOT / "pgmodels"
    folders = [package, *sorted(path for path in package.rglob("*") if (path / "__init__.py").is_file())]
    return "\n".join(_folder(folder) for folder in folders)


def page() -> str:
    """The page with its list of modules written anew."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + module_map() + "\n" + END + rest.split(END)[1]


def _folder(folder: Path) -> str:
    modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
    title = f"### {folder.relative_to(ROOT).as_posix()}/\n\n{_first_paragraph(folder / '__init__.py')}\n"
    lines = "".join(f"- `{path.name}`: {_first_paragraph(path)}\n" for path in modules)
    return f"{title}\n{lines}" if modules else title


def _first_paragraph(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
