"""Tables of a report: observations, classes, and unreliable latents."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pgmodels.data.arrays import first_column
from pgmodels.diagnostics.compare import Comparison
from pgmodels.report.html import Html, element, table
from pgmodels.report.verdicts import Verdict
from pgmodels.results.result import Result
from pgmodels.runtime.formatting import shorten

# Maximum number of unreliable latents listed for each result.
_LISTED = 10


def check_class_names(comparison: Comparison, class_names: Sequence[str] | None) -> list[str] | None:
    """Class names as text, None without names; raises ValueError unless there is one for each class."""
    if class_names is None:
        return None
    values = class_values(comparison)
    if values is None:
        likelihood = _reference(comparison).likelihood
        raise ValueError(f"class_names need classes, but y of {likelihood.name} is not a class: leave them out.")
    if isinstance(class_names, str) or len(class_names) != len(values):
        raise ValueError(
            f"class_names must be {len(values)} names, in the order of the classes; got {shorten(class_names)}."
        )
    return [str(name) for name in class_names]


def class_values(comparison: Comparison) -> np.ndarray | None:
    """The values of y if it is a class, else None."""
    model = _reference(comparison).model
    return model.likelihood.support(model.num_latents).values()


def observation_table(comparison: Comparison) -> Html:
    """The number of rows and columns, and the range and median of y."""
    result, test = _reference(comparison), comparison.test
    header = ["", "rows", "columns of X", "y: smallest", "median", "largest"]
    rows = [["training", *_described(result.X, result.y)]]
    if test is not None:
        rows.append(["test", *_described(test.X, test.y)])
    return table(header, rows)


def _described(X: np.ndarray, y: np.ndarray) -> list[str]:
    first = first_column(y)
    figures = (np.min(first), np.median(first), np.max(first))
    return [str(len(X)), str(X.shape[1]), *(f"{figure:.5g}" for figure in figures)]


def class_table(comparison: Comparison, names: Sequence[str] | None) -> Html | None:
    """The number of rows of each class and each result's accuracy on its test rows; None without classes."""
    values, test = class_values(comparison), comparison.test
    if values is None:
        return None
    header: list[Any] = ["class", *(["name"] if names else []), "training rows"]
    predictions = {} if test is None else test.predictions
    if test is not None:
        header += ["test rows", *(f"accuracy: {label}" for label in predictions)]
    rows, trained = [], first_column(_reference(comparison).y)
    for place, value in enumerate(values):
        row = [f"{value:g}", *([names[place]] if names else []), str(np.sum(trained == value))]
        if test is not None:
            of_class = first_column(test.y) == value
            row.append(str(of_class.sum()))
            row += [_share(p.argmax(axis=1)[of_class] == place) for p in predictions.values()]
        rows.append(row)
    return table(header, rows, caption="Classes, and the accuracy of the most probable class on test rows")


def _share(correct: np.ndarray) -> str:
    return f"{correct.mean():.3f}" if correct.size else "-"


def worst_latents(comparison: Comparison, label: str, verdict: Verdict, names: Sequence[str] | None) -> Html:
    """The least reliable latents, with their posterior moments and the reference's; empty if there are none."""
    if not len(verdict.latents):
        return Html("")
    result, reference = comparison.results[label], _reference(comparison)
    other = result is not reference
    several = reference.model.num_latents > 1
    header = [
        "row",
        *(["latent"] if several else []),
        "y",
        f"mean ± sd of {label}",
        *([f"of {comparison.reference}"] if other else []),
    ]
    rows = []
    for row, latent in verdict.latents[:_LISTED]:
        y = np.atleast_1d(reference.y[row])
        moments = [_moments(one, row, latent) for one in (result, *([reference] if other else []))]
        place = [str(row), *([_latent(reference, latent, names)] if several else [])]
        rows.append([*place, ", ".join(f"{v:.4g}" for v in y), *moments])
    count = len(verdict.latents)
    shown = f"the worst {_LISTED} of {count}" if count > _LISTED else str(count)
    return table(header, rows, caption=element("span", f"Unreliable latents: {shown}"))


def _moments(result: Any, row: int, latent: int) -> str:
    variance = result.variance[row, latent]
    spread = f"{np.sqrt(variance):.3g}" if variance > 0 else "no variance"
    return f"{result.mean[row, latent]:.3g} ± {spread}"


def _latent(result: Result, latent: int, names: Sequence[str] | None) -> str:
    """The latent's index, with the name of its class if each class has its own latent."""
    if names is not None and len(names) == result.model.num_latents:
        return f"{latent} ({names[latent]})"
    return str(latent)


def _reference(comparison: Comparison) -> Any:
    return comparison.results[comparison.reference]
