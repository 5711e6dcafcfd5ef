"""Posterior means of the auxiliary variables."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pgmodels.diagnostics.auxiliaries import auxiliary_means
from pgmodels.diagnostics.compare import Comparison
from pgmodels.plots.inputs import labelled
from pgmodels.plots.style import RASTERISED, Style, legend_below, literal, new_figure, open_axes, styles
from pgmodels.results.result import Result

# Up to this many latents, the auxiliaries of each have their own panel; otherwise all share one.
_SEPARATE = 4


def plot_auxiliaries(results: Result | Mapping[str, Result] | Comparison) -> Figure:
    """Plot the posterior mean of each auxiliary variable at each datum, data in the order of the first result's means.

    Parameters
    ----------
    results : Result, Comparison or mapping of str to Result
        A result, results of one data set by label, or a comparison.

    Returns
    -------
    matplotlib.figure.Figure
        The figure.

    Raises
    ------
    ValueError
        If no result has auxiliary variables, or for results of different models.

    Notes
    -----
    For draws the average of E[a | f, y], for approximations the mean of the optimal q (see
    ``pgmodels.diagnostics.auxiliaries``), for ``fit`` before its correction. Results of ``correct`` are omitted. The
    reference of a comparison comes first.
    """
    by_label = labelled(results)
    reference = results.reference if isinstance(results, Comparison) else None
    means = {k: auxiliary_means(r) for k, r in by_label.items() if not getattr(r, "corrects_another", False)}
    first = _check(means, by_label, reference)
    looks = styles(by_label, reference)
    panels = [panel for name in means[first] for panel in _panels(name, means, first)]
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    figure = new_figure(max(5.0, 3.8 * columns), 3.0 * rows + 0.7)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, (name, values) in zip(grid, panels, strict=False):
        _panel(axes, name, values, first, looks)
    for axes in grid[len(panels) :]:
        axes.remove()
    left_out = [label for label in by_label if label not in means]
    infinite = [
        f"{label}: the posterior mean of {name} is infinite."
        for label, by_name in means.items()
        for name, value in by_name.items()
        if np.isposinf(value).all()
    ]
    notes = [f"Corrected results have no auxiliaries: {', '.join(left_out)}."] if left_out else []
    handles = [Line2D([], [], color=looks[k].colour, marker=looks[k].marker, linestyle="") for k in means]
    legend_below(figure, handles, [*map(literal, means)], notes + infinite)
    return figure


def _check(means: dict[str, dict[str, np.ndarray]], results: dict[str, Any], reference: str | None) -> str:
    """The label of the reference result. Raises ValueError without auxiliaries, or if results do not match."""
    if not means:
        raise ValueError(
            f"{', '.join(results)} is corrected and has no auxiliaries: pass the uncorrected result, or draws of gibbs."
        )
    first = reference or next(iter(means))
    shapes = {name: value.shape for name, value in means[first].items()}
    if not shapes:
        raise ValueError(
            f"{results[first].model.likelihood.name} is Gaussian in f without augmentation and has no auxiliary "
            "variables."
        )
    for label, values in means.items():
        if {name: value.shape for name, value in values.items()} != shapes:
            raise ValueError(
                f"{label} and {first} have different auxiliaries or data: pass results of one model and one data set."
            )
    return first


def _panels(name: str, means: dict[str, dict[str, np.ndarray]], first: str) -> list[tuple[str, dict[str, np.ndarray]]]:
    """The panels of an auxiliary: a title and values by result."""
    values = {label: by_name[name] for label, by_name in means.items() if not np.isposinf(by_name[name]).all()}
    if not values:
        return []
    shape = means[first][name].shape
    if len(shape) == 1:
        return [(name, values)]
    if shape[1] > _SEPARATE:
        return [(f"{name}[c], every c", {label: value.ravel() for label, value in values.items()})]
    return [(f"{name}[{c}]", {label: value[:, c] for label, value in values.items()}) for c in range(shape[1])]


def _panel(axes: Axes, name: str, values: dict[str, np.ndarray], first: str, looks: dict[str, Style]) -> None:
    leading = values.get(first, next(iter(values.values())))
    finite = np.flatnonzero(np.isfinite(leading))
    order = finite[np.argsort(leading[finite], kind="stable")]
    for label, value in values.items():
        axes.plot(
            np.arange(len(order)),
            value[order],
            color=looks[label].colour,
            marker=looks[label].marker,
            linestyle="",
            markersize=4 if len(order) <= 200 else 2,
            zorder=3 if label == first else 2,
            label=label,
            rasterized=len(order) > RASTERISED,
        )
    if leading[finite].size and leading[finite].min() > 0 and np.ptp(np.log(leading[finite])) > np.log(50):
        axes.set_yscale("log")
    data = "data" if len(finite) == len(leading) else f"the {len(finite)} of {len(leading)} data that have {name}"
    open_axes(axes, title=name, xlabel=f"{data}, in order", ylabel="posterior mean")
