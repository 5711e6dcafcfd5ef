"""The evidence lower bound by iteration."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from pgmodels.diagnostics.compare import Comparison
from pgmodels.plots.inputs import labelled
from pgmodels.plots.style import legend_below, line_handle, literal, new_figure, open_axes, styles
from pgmodels.results.approximation import GaussianResult
from pgmodels.results.result import Result


def plot_elbo(results: Result | Mapping[str, Result] | Comparison) -> Figure:
    """Plot the ELBO of each approximation by iteration, and its difference from the last value on a logarithmic scale.

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
        If no result has an ELBO.

    Notes
    -----
    Draws and corrected results have no ELBO and are omitted.
    """
    by_label = labelled(results)
    approximations = {
        label: result
        for label, result in by_label.items()
        if isinstance(result, GaussianResult) and not result.corrects_another
    }
    if not approximations:
        raise ValueError(
            f"none of the results ({', '.join(by_label)}) has an ELBO: pass a result of cavi or fit. Draws and "
            "corrected results have none."
        )
    looks = styles(approximations)
    figure = new_figure(8.0, 3.8)
    values, gaps = figure.subplots(1, 2)
    for label, result in approximations.items():
        look, iterations = looks[label], np.arange(len(result.elbo_trace))
        values.plot(
            iterations,
            result.elbo_trace,
            color=look.colour,
            linestyle=look.line,
            marker=look.marker,
            markersize=4,
            markevery=max(1, len(iterations) // 15),
            label=label,
        )
        gap = result.elbo - result.elbo_trace
        gaps.plot(
            iterations[gap > 0],
            gap[gap > 0],
            color=look.colour,
            linestyle=look.line,
            marker=look.marker,
            markersize=4,
            markevery=max(1, len(iterations) // 15),
            label=label,
        )
    gaps.set_yscale("log")
    open_axes(values, title="Evidence lower bound", xlabel="iteration", ylabel="ELBO [nats]")
    open_axes(gaps, title="Gap to the last value", xlabel="iteration", ylabel="last ELBO − ELBO [nats]")
    left_out = [label for label in by_label if label not in approximations]
    legend_below(
        figure,
        [line_handle(looks[label], marker=True) for label in approximations],
        [*map(literal, approximations)],
        [f"Without an ELBO: {', '.join(left_out)}."] if left_out else [],
    )
    return figure
