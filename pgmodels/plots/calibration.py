"""Reliability diagrams of predicted class probabilities."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pgmodels.data.arrays import first_column
from pgmodels.diagnostics.calibration import reliability_bins
from pgmodels.diagnostics.compare import Comparison, HeldOutData
from pgmodels.plots.inputs import require_comparison
from pgmodels.plots.style import legend_below, literal, new_figure, open_axes, styles


def plot_reliability(comparison: Comparison) -> Figure:
    """Plot the reliability diagram of each result on the test data, with a histogram of confidences below.

    Parameters
    ----------
    comparison : Comparison
        The result of ``pgm.compare``, with test data.

    Returns
    -------
    matplotlib.figure.Figure
        The figure.

    Raises
    ------
    ValueError
        Without test data, or if y is not a class.

    Notes
    -----
    The accuracy in 15 bins of the probability of the most probable class against its mean confidence. The legend has
    the expected calibration errors.

    References
    ----------
    Guo et al. 2017, figure 1.
    """
    test = _class_probabilities(require_comparison(comparison))
    looks = styles(comparison.results, comparison.reference)
    figure = new_figure(4.8, 6.4)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    place = np.searchsorted(np.arange(next(iter(test.predictions.values())).shape[1]), first_column(test.y))
    handles, labels, lowest = [], [], 1.0
    for label, probabilities in test.predictions.items():
        bins, look = reliability_bins(probabilities, place), looks[label]
        full = bins.counts > 0
        above.plot(
            bins.confidence[full],
            bins.accuracy[full],
            color=look.colour,
            linestyle=look.line,
            marker=look.marker,
            markersize=6,
            label=label,
        )
        below.stairs(bins.counts, bins.edges, color=look.colour, linestyle=look.line, linewidth=1.6, label=label)
        lowest = min(lowest, float(bins.edges[:-1][full].min()))
        handles.append(Line2D([], [], color=look.colour, linestyle=look.line, marker=look.marker, markersize=6))
        labels.append(f"{literal(label)} (calibration error {bins.error:.3f})")
    above.plot([0, 1], [0, 1], color="0.6", linewidth=0.9, zorder=0)
    open_axes(above, title="Reliability on test data", ylabel="accuracy", ylim=(-0.03, 1.03))
    open_axes(
        below, xlabel="confidence: probability of the most probable class", ylabel="test rows", xlim=(lowest, 1.0)
    )
    legend_below(figure, [*handles, Line2D([], [], color="0.6", linewidth=0.9)], [*labels, "perfectly calibrated"])
    return figure


def _class_probabilities(comparison: Comparison) -> HeldOutData:
    test = comparison.test
    if test is None:
        raise ValueError(
            "comparison has no test data, which a reliability diagram needs: pgm.compare(..., X=X_test, y=y_test)."
        )
    if not test.is_class:
        raise ValueError(
            "y is not a class, so there are no class probabilities: plot_marginals shows predictive means, and the "
            "comparison's table the test log density."
        )
    if not test.predictions:
        raise ValueError(f"no result predicts the test data: {' '.join(comparison.notes)}")
    return test
