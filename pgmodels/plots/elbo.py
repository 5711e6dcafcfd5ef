"""The evidence lower bound as the iterations raise it."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pgmodels.plots.inputs import labelled
from pgmodels.plots.style import legend_below, line_handle, literal, new_figure, open_axes, styles
from pgmodels.results.approximation import Approximation


def plot_elbo(results: Any) -> Figure:
    """The ELBO of each approximation against its iterations, and its gap to the last value on a logarithmic scale.

    ``results`` is an approximation, a dict of results by label or a Comparison; of the latter two those without an ELBO
    of their own, draws and corrected results, are left out. Raises ValueError where none has one.
    """
    given = labelled(results)
    found = {
        label: result
        for label, result in given.items()
        if isinstance(result, Approximation) and not result.corrects_another
    }
    if not found:
        raise ValueError(
            f"none of the results ({', '.join(given)}) has an ELBO of its own: give what cavi or fit return. Draws "
            "have none, and a corrected result is no density that has one."
        )
    looks = styles(found)
    figure = new_figure(8.0, 3.8)
    values, gaps = figure.subplots(1, 2)
    for label, result in found.items():
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
    left_out = [label for label in given if label not in found]
    legend_below(
        figure,
        [line_handle(looks[label], marker=True) for label in found],
        [*map(literal, found)],
        [f"Without an ELBO of their own: {', '.join(left_out)}."] if left_out else [],
    )
    return figure
