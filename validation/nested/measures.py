"""Moments of marginals, and files of tables with what is needed to make them again."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.integrate import trapezoid

from pgmodels.results.result import GRID
from validation.table import markdown_rows, provenance

FOLDER = Path(__file__).resolve().parents[1] / "results" / "nested"


def exponential_moments(marginals: Any) -> np.ndarray:
    """E exp f under densities (...), by quadrature on their grids or in closed form."""
    if not hasattr(marginals, "log_density"):
        return np.exp(marginals.mean + 0.5 * marginals.variance)
    f = marginals.location[..., None] + marginals.scale[..., None] * GRID
    return trapezoid(marginals.density * np.exp(f), GRID, axis=-1)


def errors(marginals: Any, exact: Any) -> list[float]:
    """Of means, in posterior deviations, of variances and of E exp f, relative: the largest of all latents.

    ``marginals`` are of (rows, latents), or of (rows,) with one latent each.
    """
    shape = exact.mean.shape
    mean, variance, exponential = (
        np.reshape(part, shape) for part in (marginals.mean, marginals.variance, exponential_moments(marginals))
    )
    return [
        largest((mean - exact.mean) / np.sqrt(exact.variance)),
        largest(variance / exact.variance - 1.0),
        largest(exponential / exact.exponential - 1.0),
    ]


def triple(values: Any) -> str:
    """Three errors in one cell."""
    return " ".join(f"{value:.3f}" for value in values)


def summary(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[list[dict[str, Any]]]:
    """A table of the means and largest values of the errors by ``names``, and one of all rows."""
    averages = {"mean": np.mean, "median": np.median, "largest": np.max}
    short = [
        {"of all rows": label} | {name: triple(average([row[name] for row in rows], axis=0)) for name in names}
        for label, average in averages.items()
    ]
    return [short, [{key: triple(value) if key in names else value for key, value in row.items()} for row in rows]]


def largest(values: np.ndarray) -> float:
    """The largest absolute value."""
    return float(np.max(np.abs(values)))


def kept(name: str, keys: Iterable[str], measure: Callable[[str], Any], again: bool) -> dict[str, Any]:
    """Measurements by key; those that are not in the file ``name``.json yet are taken, and written one by one."""
    path = FOLDER / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    there = json.loads(path.read_text()) if path.is_file() and not again else {}
    for key in keys:
        if key not in there:
            there[key] = measure(key)
            path.write_text(json.dumps(there, indent=1) + "\n")
            print(name, key, there[key], flush=True)
    return {key: there[key] for key in keys}


def write(name: str, title: str, notes: str, tables: Sequence[list[dict[str, Any]]], seed: int = 0) -> None:
    """Write the page ``name``.md of tables."""
    lines = [f"# {title}", "", notes, ""]
    for rows in tables:
        lines += [*markdown_rows(rows, digits=3), ""]
    if (FOLDER / f"{name}.png").is_file():
        lines += [f"![{title}]({name}.png)", ""]
    lines += provenance(seed, f"python -m validation.nested {name}")
    (FOLDER / f"{name}.md").write_text("\n".join(lines) + "\n")
