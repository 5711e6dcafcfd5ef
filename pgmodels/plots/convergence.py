"""Convergence diagnostics of all latents."""

from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pgmodels.diagnostics.convergence import convergence_by_latent, of_draws
from pgmodels.plots.inputs import require_chains
from pgmodels.plots.style import COLOURS, legend_below, new_figure, open_axes
from pgmodels.results.draws import Draws

# Thresholds of effective sample sizes and of R-hat: recommended, and beyond which draws are unusable.
_MARKS = {"ESS": (400.0, 100.0), "R-hat": (1.01, 1.05)}
_MARK_LINES: tuple[Literal["--", ":"], ...] = ("--", ":")


def plot_convergence(draws: Draws) -> Figure:
    """Plot histograms over all latents of bulk and tail effective sample sizes and of R-hat, with their thresholds.

    Parameters
    ----------
    draws : Draws
        Draws of ``gibbs`` or ``nuts``, at least four per chain.

    Returns
    -------
    matplotlib.figure.Figure
        The figure.

    Raises
    ------
    ValueError
        For fewer than four draws per chain.

    Notes
    -----
    An effective sample size above 400 and an R-hat below 1.01 are recommended; below 100 and above 1.05 the draws are
    unusable. R-hat needs two chains.

    References
    ----------
    Vehtari et al. 2021.
    """
    draws = require_chains(draws)
    bulk, tail, rhat = of_draws(convergence_by_latent, draws)
    panels = [("Bulk ESS", "ESS", bulk), ("Tail ESS", "ESS", tail)]
    if draws.num_chains > 1:
        panels.append(("R-hat", "R-hat", rhat))
    figure = new_figure(3.6 * len(panels), 3.8)
    notes = [] if draws.num_chains > 1 else ["R-hat needs two chains, and there is one."]
    for axes, (name, figure_of, values) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        _histogram(axes, values.ravel(), _MARKS[figure_of])
        unit = "effective draws of a latent" if figure_of == "ESS" else "R-hat of a latent"
        open_axes(axes, title=name, ylabel="latents", xlabel=unit)
        undefined = int((~np.isfinite(values)).sum())
        notes += [f"{name} is not defined for {undefined} of {values.size} latents."] if undefined else []
    legend_below(
        figure,
        [Line2D([], [], color="black", linestyle=line) for line in _MARK_LINES],
        ["recommended: ESS 400, R-hat 1.01", "unusable beyond: ESS 100, R-hat 1.05"],
        notes,
    )
    return figure


def _histogram(axes: Axes, values: np.ndarray, marks: tuple[float, float]) -> None:
    finite = values[np.isfinite(values)]
    every = [*finite, *marks]
    axes.hist(finite, bins=np.linspace(min(every), max(every), 41).tolist(), color=COLOURS[0])
    for mark, line in zip(marks, _MARK_LINES, strict=True):
        axes.axvline(mark, color="black", linestyle=line)
