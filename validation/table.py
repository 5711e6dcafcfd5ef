"""Write a validation table with what is needed to make it again."""

import datetime
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import pandas as pd

VERSIONED = ("pgmodels", "numpy", "scipy", "jax", "numpyro", "polyagamma", "scikit-learn")


def write_table(title: str, rows: list[dict[str, object]], notes: str, seed: int, part: str = "") -> Path:
    """Print the rows as a table and write them to validation/results/SCRIPT.md, or SCRIPT_PART.md."""
    frame = pd.DataFrame(rows)
    script = Path(sys.argv[0])
    command = " ".join(["python", f"validation/{script.name}", *sys.argv[1:]])
    lines = [f"# {title}", "", notes, "", "| " + " | ".join(frame.columns) + " |", "|" + " --- |" * frame.shape[1]]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in frame.itertuples(index=False)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    lines += [
        "",
        f"- date: {datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        f"- command: `{command}`",
        f"- seed: {seed}",
        f"- machine: {platform.machine()}, {cores} cores, {platform.system()}, Python {platform.python_version()}",
        f"- versions: {', '.join(f'{name} {version(name)}' for name in VERSIONED)}",
    ]
    path = script.resolve().parent / "results" / f"{script.stem}{part and '_'}{part}.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    print(frame.to_string(index=False))
    print(f"written to {path}")
    return path


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
