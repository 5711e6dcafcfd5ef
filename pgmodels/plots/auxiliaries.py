"""Posterior means of the auxiliary variables."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pgmodels.diagnostics.auxiliaries import auxiliary_means
from pgmodels.diagnostics.compare import Comparison
from pgmodels.plots.inputs import labelled
from pgmodels.plots.style import RASTERISED, Style, legend_below, literal, new_figure, open_axes, styles

# Auxiliaries of up to so many latents have a panel each; those of more share one.
_SEPARATE = 4


def plot_auxiliaries(results: Any) -> Figure:
    """The posterior mean of each auxiliary variable at each datum, data in the order of the first result's means.

    ``results`` is a result, a dict of results of one data set by label, or a Comparison, whose reference comes first.
    Of draws E[a | f, y] is averaged, of approximations it is the optimal q's mean (see
    ``pgmodels.diagnostics.auxiliaries``), of ``fit`` before its correction; results of ``correct`` are left out. Raises
    ValueError where no result has auxiliaries, or results are of different models.
    """
    given = labelled(results)
    reference = results.reference if isinstance(results, Comparison) else None
    means = {k: auxiliary_means(r) for k, r in given.items() if not getattr(r, "corrects_another", False)}
    first = _check(means, given, reference)
    looks = styles(given, reference)
    panels = [panel for name in means[first] for panel in _panels(name, means, first)]
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    figure = new_figure(max(5.0, 3.8 * columns), 3.0 * rows + 0.7)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, (name, values) in zip(grid, panels, strict=False):
        _panel(axes, name, values, first, looks)
    for axes in grid[len(panels) :]:
        axes.remove()
    left_out = [label for label in given if label not in means]
    infinite = [
        f"{label}: the posterior mean of {name} is infinite."
        for label, found in means.items()
        for name, value in found.items()
        if np.isposinf(value).all()
    ]
    notes = [f"Corrected results have no auxiliaries: {', '.join(left_out)}."] if left_out else []
    handles = [Line2D([], [], color=looks[k].colour, marker=looks[k].marker, linestyle="") for k in means]
    legend_below(figure, handles, [*map(literal, means)], notes + infinite)
    return figure


def _check(means: dict[str, dict[str, np.ndarray]], given: dict[str, Any], reference: str | None) -> str:
    """The label of the result that the others are drawn against."""
    if not means:
        raise ValueError(f"{', '.join(given)} is corrected and has no auxiliaries: give cavi's or gibbs's result.")
    first = reference or next(iter(means))
    shapes = {name: value.shape for name, value in means[first].items()}
    if not shapes:
        raise ValueError(
            f"{given[first].model.likelihood.name} is Gaussian in f as it stands: there are no auxiliary variables."
        )
    for label, found in means.items():
        if {name: value.shape for name, value in found.items()} != shapes:
            raise ValueError(
                f"{label} and {first} have different auxiliaries or data: give results of one model and one data set."
            )
    return first


def _panels(name: str, means: dict[str, dict[str, np.ndarray]], first: str) -> list[tuple[str, dict[str, np.ndarray]]]:
    """What one panel shows: a name and values by result."""
    values = {label: found[name] for label, found in means.items() if not np.isposinf(found[name]).all()}
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
    there = np.flatnonzero(np.isfinite(leading))
    order = there[np.argsort(leading[there], kind="stable")]
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
    if leading[there].size and leading[there].min() > 0 and np.ptp(np.log(leading[there])) > np.log(50):
        axes.set_yscale("log")
    data = "data" if len(there) == len(leading) else f"the {len(there)} of {len(leading)} data that have {name}"
    open_axes(axes, title=name, xlabel=f"{data}, in order", ylabel="posterior mean")
