"""The skewness of marginals over the inputs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pgmodels.data.arrays import in_units_of
from pgmodels.diagnostics.compare import Comparison
from pgmodels.plots.inputs import labelled
from pgmodels.plots.style import RASTERISED, legend_below, literal, new_figure, open_axes, styles
from pgmodels.results.draws import Draws
from pgmodels.results.result import Result

# Columns of X with a panel of their own.
_MAX_PANELS = 6


def plot_skewness(results: Result | Mapping[str, Result] | Comparison) -> Figure:
    """Plot the skewness of each latent at the data against each column of the inputs.

    Parameters
    ----------
    results : Result, Comparison or mapping of str to Result
        A result, results of one data set by label, or a comparison.

    Returns
    -------
    matplotlib.figure.Figure
        The figure; of more than six columns the first six.

    Notes
    -----
    The skewness is the third central moment in units of the standard deviation: 0 for Gaussian marginals. That of draws
    has a Monte-Carlo error of about sqrt(6 / S) for S independent draws.
    """
    by_label = labelled(results)
    looks, X = styles(by_label), next(iter(by_label.values())).X
    count = min(X.shape[1], _MAX_PANELS)
    figure = new_figure(3.6 * max(count, 2), 3.8)
    panels = figure.subplots(1, count, squeeze=False, sharey=True)[0]
    for label, result in by_label.items():
        skewness, look = _skewness(result), looks[label]
        for column, axes in enumerate(panels):
            at = np.repeat(result.X[:, column], skewness.shape[1])
            axes.plot(
                at, skewness.ravel(), look.marker, color=look.colour, markersize=4, alpha=0.6,
                rasterized=len(at) > RASTERISED,
            )  # fmt: skip
    for column, axes in enumerate(panels):
        axes.axhline(0.0, color="black", linewidth=0.6)
        open_axes(axes, xlabel=f"column {column} of X" if X.shape[1] > 1 else "X")
    panels[0].set_ylabel("skewness")
    notes = [f"The first {count} of {X.shape[1]} columns."] if count < X.shape[1] else []
    handles = [panels[0].lines[number] for number in range(len(by_label))]
    legend_below(figure, handles, [*map(literal, by_label)], notes)
    return figure


def _skewness(result: Any) -> np.ndarray:
    """The skewness of the latents at the data, (n, latents)."""
    if not isinstance(result, Draws):
        return result.marginals.skewness
    third = np.mean((result.latents - result.mean) ** 3, axis=(0, 1))
    return in_units_of(result.variance**1.5, third)
