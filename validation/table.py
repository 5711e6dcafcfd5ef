"""Write a validation table with what is needed to make it again."""

import datetime
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import pandas as pd

VERSIONED = ("pgmodels", "numpy", "scipy", "jax", "numpyro", "polyagamma", "scikit-learn")


def write_table(title: str, rows: list[dict[str, object]], notes: str, seed: int, part: str = "") -> Path:
    """Print the rows as a table and write them to validation/results/SCRIPT.md, or SCRIPT_PART.md."""
    script = Path(sys.argv[0])
    command = " ".join(["python", f"validation/{script.name}", *sys.argv[1:]])
    lines = [f"# {title}", "", notes, "", *markdown_rows(rows), "", *provenance(seed, command)]
    path = script.resolve().parent / "results" / f"{script.stem}{part and '_'}{part}.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    print(pd.DataFrame(rows).to_string(index=False))
    print(f"written to {path}")
    return path


def markdown_rows(rows: Sequence[Mapping[str, object]], digits: int = 4) -> list[str]:
    """Rows as the lines of a Markdown table, with a column for each key; numbers to so many significant digits."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    return lines + ["| " + " | ".join(_cell(row.get(key), digits) for key in columns) + " |" for row in rows]


def provenance(seed: int, command: str) -> list[str]:
    """Date, command, seed, machine and versions, as lines of a list."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [
        f"- date: {datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        f"- command: `{command}`",
        f"- seed: {seed}",
        f"- machine: {platform.machine()}, {cores} cores, {platform.system()}, Python {platform.python_version()}",
        f"- versions: {', '.join(f'{name} {version(name)}' for name in VERSIONED)}",
    ]


def _cell(value: object, digits: int) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)
