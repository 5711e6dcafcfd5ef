"""Marginals of approximations against those of posterior draws."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from pgmodels.data.arrays import in_units_of
from pgmodels.diagnostics.compare import Comparison, HeldOutData
from pgmodels.diagnostics.predictions import prediction_errors
from pgmodels.plots.inputs import require_comparison
from pgmodels.plots.style import (
    RASTERISED,
    Style,
    legend_below,
    line_handle,
    literal,
    new_figure,
    open_axes,
    settle,
    styles,
)
from pgmodels.results.correction import is_invalid
from pgmodels.results.draws import Draws
from pgmodels.results.result import Result
from pgmodels.runtime.formatting import shorten

_GREY = "0.8"


class _Panel(NamedTuple):
    """A quantity by label of the result, and its standard errors in the reference."""

    title: str
    quantity: str
    values: dict[str, np.ndarray]
    error: np.ndarray


def plot_marginals(comparison: Comparison) -> Figure:
    """Plot posterior means and variances of each result against the reference's, and their predictions.

    Parameters
    ----------
    comparison : Comparison
        The result of ``pgm.compare``.

    Returns
    -------
    matplotlib.figure.Figure
        The figure.

    Notes
    -----
    Each point is a latent at a training row; with test data, a further panel shows predictive probabilities by test row
    and class (predictive means by row, if y is not a class). Grey bars around the diagonal are plus and minus two
    Monte-Carlo standard errors of the reference.

    References
    ----------
    Wenzel et al. 2019, figure 1; Galy-Fajou et al. 2019, figure 5.
    """
    results, reference = require_comparison(comparison).results, comparison.reference
    panels = [
        _Panel("Posterior mean", "E[f]", {k: r.mean for k, r in results.items()}, comparison.mcse_mean),
        _Panel("Posterior variance", "Var[f]", {k: r.variance for k, r in results.items()}, comparison.mcse_variance),
    ]
    if comparison.test is not None and reference in comparison.test.predictions:
        panels.append(_predicted(results[reference], reference, comparison.test))
    looks = styles(results, reference)
    figure = new_figure(4.0 * len(panels), 4.6)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _scatter(axes, panel, reference, looks)
    others = [label for label in results if label != reference]
    points = [
        Line2D([], [], color=looks[label].colour, marker=looks[label].marker, linestyle="", markersize=5)
        for label in others
    ]
    diagonal = Line2D([], [], color="0.4", linewidth=0.9, linestyle="--")
    legend_below(
        figure,
        [*points, diagonal, Patch(color=_GREY)],
        [*map(literal, others), "equal", f"±2 Monte-Carlo standard errors of {literal(reference)}"],
    )
    return settle(figure)


def _predicted(draws: Draws, reference: str, test: HeldOutData) -> _Panel:
    """Predictions of the test data with the reference's standard errors; for two classes, of class 1."""
    error = prediction_errors(draws, test.X, test.y)
    if not test.is_class:
        return _Panel("Predictive mean", "E[y]", test.predictions, error)
    values = {k: p[:, 1] if p.shape[1] == 2 else p for k, p in test.predictions.items()}
    two = values[reference].ndim == 1
    return _Panel("Predictive probability", "p(y = 1)" if two else "p(y = c)", values, error)


def _scatter(axes: Axes, panel: _Panel, reference: str, looks: dict[str, Style]) -> None:
    x = panel.values[reference].ravel()
    rasterised = x.size > RASTERISED
    for label, value in panel.values.items():
        if label != reference:
            axes.scatter(
                x,
                value.ravel(),
                s=float(np.clip(3000 / x.size, 3, 20)),
                alpha=0.65,
                linewidths=0,
                color=looks[label].colour,
                marker=looks[label].marker,
                label=label,
                rasterized=rasterised,
            )
    bars = 2.0 * panel.error.ravel()
    axes.vlines(x, x - bars, x + bars, color=_GREY, linewidth=2.0, zorder=0, rasterized=rasterised)
    every = np.concatenate([value.ravel() for value in panel.values.values()] + [x - bars, x + bars])
    low, high = np.nanmin(every), np.nanmax(every)
    margin = 0.04 * (high - low) or 0.5
    ends = (low - margin, high + margin)
    axes.plot(ends, ends, color="0.4", linewidth=0.9, linestyle="--", zorder=0.5)
    open_axes(
        axes,
        xlim=ends,
        ylim=ends,
        title=panel.title,
        xlabel=f"{panel.quantity} by {literal(reference)} (reference)",
        ylabel=f"{panel.quantity} by the others",
    )
    axes.set_aspect("equal")


def plot_densities(comparison: Comparison, num_points: int = 6) -> Figure:
    """Plot marginal densities of the latents at which results differ most from the reference.

    Parameters
    ----------
    comparison : Comparison
        The result of ``pgm.compare``.
    num_points : int
        Number of latents.

    Returns
    -------
    matplotlib.figure.Figure
        The figure.

    Raises
    ------
    ValueError
        If ``num_points`` is not a whole number >= 1, or for a comparison of one result.

    Notes
    -----
    The reference's draws are a histogram, other draws outlines, approximations curves. Latents are ranked by
    the largest 2-Wasserstein distance of a result from the reference, for Gaussians with their means and variances, in
    posterior standard deviations of the reference.
    """
    comparison = require_comparison(comparison)
    if isinstance(num_points, bool) or not isinstance(num_points, (int, np.integer)) or num_points < 1:
        raise ValueError(f"num_points must be a whole number >= 1; got {shorten(num_points)}.")
    draws = comparison.results[comparison.reference]
    others = {label: result for label, result in comparison.results.items() if label != comparison.reference}
    if not others:
        raise ValueError("comparison has only the reference: compare it with another result, such as cavi=....")
    places = _furthest(draws, list(others.values()))[:num_points]
    looks = styles(comparison.results, comparison.reference)
    columns = min(3, len(places))
    rows = -(-len(places) // columns)
    figure = new_figure(3.6 * columns, 2.7 * rows + 0.6)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, (row, latent) in zip(grid, places, strict=False):
        _densities(axes, draws, others, looks, row, latent)
    for axes in grid[len(places) :]:
        axes.remove()
    invalid = [label for label, r in others.items() if not isinstance(r, Draws) and is_invalid(r.variance).any()]
    legend_below(
        figure,
        [Patch(facecolor="0.85", edgecolor="0.6"), *(line_handle(looks[label]) for label in others)],
        [f"{literal(comparison.reference)} (reference)", *map(literal, others)],
        [f"{label} has no density where its corrected variance is not positive." for label in invalid],
    )
    return figure


def _furthest(draws: Draws, others: list[Result]) -> list[tuple[int, int]]:
    """The rows and latents, in decreasing order of the largest distance of a result from the draws."""
    scale = np.sqrt(draws.variance)
    distances = [
        in_units_of(scale, np.hypot(result.mean - draws.mean, np.sqrt(np.maximum(result.variance, 0.0)) - scale))
        for result in others
    ]
    worst = np.max(distances, axis=0)
    order = np.argsort(-worst, axis=None, kind="stable")
    return [(int(row), int(latent)) for row, latent in zip(*np.unravel_index(order, worst.shape), strict=True)]


def _densities(
    axes: Axes, draws: Draws, others: dict[str, Any], looks: dict[str, Style], row: int, latent: int
) -> None:
    sample = draws.latents[:, :, row, latent].ravel()
    axes.hist(sample, bins=_bins(sample), density=True, histtype="stepfilled", facecolor="0.85", edgecolor="0.6")
    ends = [sample.min(), sample.max()]
    for label, result in others.items():
        look = looks[label]
        if isinstance(result, Draws):
            values = result.latents[:, :, row, latent].ravel()
            outline = {"histtype": "step", "color": look.colour, "linestyle": look.line}
            axes.hist(values, bins=_bins(values), density=True, label=label, **outline)
            ends += [values.min(), values.max()]
        elif result.variance[row, latent] > 0:
            mean, deviation = result.mean[row, latent], np.sqrt(result.variance[row, latent])
            x = mean + deviation * np.linspace(-4.0, 4.0, 201)
            curve = result.marginals[row, latent].pdf(x)
            axes.plot(x, curve, color=look.colour, linestyle=look.line, linewidth=1.8, label=label)
            ends += [x[0], x[-1]]
    name = f"row {row}" if draws.model.num_latents == 1 else f"row {row}, latent {latent}"
    symbol = "f" if draws.model.num_latents == 1 else f"f[{latent}]"
    open_axes(axes, title=name, xlabel=f"latent value {symbol}", ylabel="density", xlim=(min(ends), max(ends)))


def _bins(values: np.ndarray) -> list[float]:
    """Edges by Freedman and Diaconis's rule, at most 60 bins."""
    edges = np.histogram_bin_edges(values, bins="fd")
    return np.linspace(edges[0], edges[-1], min(len(edges), 61)).tolist()
