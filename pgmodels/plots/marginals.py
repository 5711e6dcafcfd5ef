"""Figures of marginals, calibration and diagnosis."""

import textwrap
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from scipy.special import ndtri

from pgmodels.data.arrays import check_whole_number, first_column, in_units_of
from pgmodels.diagnostics.compare import (
    Comparison,
    HeldOutData,
    moment_errors,
    prediction_errors,
    reliability_bins,
    require_comparison,
)
from pgmodels.diagnostics.diagnose import Diagnosis
from pgmodels.diagnostics.vsbc import Calibration
from pgmodels.plots.style import (
    COLOURS,
    RASTERISED,
    Results,
    Style,
    labelled,
    legend_below,
    line_handle,
    literal,
    new_figure,
    new_panels,
    open_axes,
    settle,
    styles,
)
from pgmodels.results.draws import Draws
from pgmodels.results.gaussian import is_invalid
from pgmodels.results.result import Result


def plot_skewness(results: Results) -> Figure:
    """Plot the skewness of each latent at the data against each column of the inputs.

    Parameters
    ----------
    results : Result, Comparison or mapping of str to Result
        A result, results of one data set by label, or a comparison.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, with at most six columns of the inputs.

    Notes
    -----
    The skewness is the third central moment in units of the standard deviation, 0 for Gaussian marginals. The skewness
    of draws has a Monte-Carlo error of about sqrt(6 / S) for S independent draws.
    """
    by_label, _ = labelled(results)
    looks, X = styles(by_label), next(iter(by_label.values())).X
    count = min(X.shape[1], 6)
    figure, grid = new_panels(count, count, 3.6 * max(count, 2), 3.8, sharey=True)
    for label, result in by_label.items():
        look, draws = looks[label], result.draws
        if draws is None:
            skewness = result.marginals.skewness
        else:
            skewness = in_units_of(result.variance**1.5, np.mean((draws.latents - result.mean) ** 3, axis=(0, 1)))
        for column, axes in enumerate(grid):
            at = np.repeat(result.X[:, column], skewness.shape[1])
            axes.plot(
                at, skewness.ravel(), look.marker, color=look.colour, markersize=4, alpha=0.6,
                rasterized=len(at) > RASTERISED,
            )  # fmt: skip
    for column, axes in enumerate(grid):
        axes.axhline(0.0, color="black", linewidth=0.6)
        open_axes(axes, xlabel=f"column {column} of X" if X.shape[1] > 1 else "X")
    grid[0].set_ylabel("skewness")
    notes = [f"The first {count} of {X.shape[1]} columns."] if count < X.shape[1] else []
    legend_below(figure, [grid[0].lines[number] for number in range(len(by_label))], [*map(literal, by_label)], notes)
    return figure


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

    Notes
    -----
    Each point is a latent at a training row. With test data, another panel shows predictive probabilities by test row
    and class, or predictive means by row if y is not a class. Grey bars around the diagonal are plus and minus two
    Monte-Carlo standard errors of the reference.

    References
    ----------
    Wenzel et al. 2019, figure 1; Galy-Fajou et al. 2019, figure 5.
    """
    results, reference = require_comparison(comparison).results, comparison.reference
    shown = [
        _Panel("Posterior mean", "E[f]", {k: r.mean for k, r in results.items()}, comparison.mcse_mean),
        _Panel("Posterior variance", "Var[f]", {k: r.variance for k, r in results.items()}, comparison.mcse_variance),
    ]
    if comparison.test is not None and reference in comparison.test.predictions:
        shown.append(_predicted(comparison.draws, reference, comparison.test))
    looks = styles(results, reference)
    figure, grid = new_panels(len(shown), len(shown), 4.0 * len(shown), 4.6)
    for axes, panel in zip(grid, shown, strict=True):
        _scatter(axes, panel, reference, looks)
    points = [Line2D([], [], **looks[label].of_points, markersize=5) for label in comparison.others]
    legend_below(
        figure,
        [*points, Line2D([], [], color="0.4", linewidth=0.9, linestyle="--"), Patch(color=_GREY)],
        [*map(literal, comparison.others), "equal", f"±2 Monte-Carlo standard errors of {literal(reference)}"],
    )
    return settle(figure)


def _predicted(draws: Draws, reference: str, test: HeldOutData) -> _Panel:
    """Return predictions of the test data with the reference's standard errors; for two classes, of class 1."""
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
            size = float(np.clip(3000 / x.size, 3, 20))
            axes.scatter(
                x, value.ravel(), s=size, alpha=0.65, label=label, rasterized=rasterised, **looks[label].of_dots
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
        ylabel=f"{panel.quantity} by the other results",
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

    Raises
    ------
    ValueError
        If ``num_points`` is not a whole number >= 1, or the comparison has only one result.

    Notes
    -----
    The reference's draws are a histogram, other draws are outlines, and approximations are curves. Latents are ranked
    by the largest 2-Wasserstein distance of a result from the reference, in posterior standard deviations of the
    reference. It is the distance of Gaussians with the same means and variances.
    """
    draws, others = require_comparison(comparison).draws, comparison.others
    check_whole_number(num_points, "num_points", 1)
    if not others:
        raise ValueError("comparison has only the reference: compare it with another result, such as cavi=....")
    errors = [moment_errors(result, draws.mean, draws.variance) for result in others.values()]
    furthest = np.max([np.hypot(shift, ratio - 1.0) for shift, ratio in errors], axis=0)
    order = np.argsort(-furthest, axis=None, kind="stable")[:num_points]
    places = [(int(row), int(latent)) for row, latent in zip(*np.unravel_index(order, furthest.shape), strict=True)]
    looks = styles(comparison.results, comparison.reference)
    columns = min(3, len(places))
    figure, grid = new_panels(len(places), columns, 3.6 * columns, 2.7, 0.6)
    for axes, (row, latent) in zip(grid, places, strict=True):
        _densities(axes, draws, others, looks, row, latent)
    invalid = [label for label, r in others.items() if r.draws is None and is_invalid(r.variance).any()]
    legend_below(
        figure,
        [Patch(facecolor="0.85", edgecolor="0.6"), *(line_handle(looks[label]) for label in others)],
        [f"{literal(comparison.reference)} (reference)", *map(literal, others)],
        [f"{label} has no density at latents whose corrected variance is not positive." for label in invalid],
    )
    return figure


def _densities(
    axes: Axes, draws: Draws, others: dict[str, Result], looks: dict[str, Style], row: int, latent: int
) -> None:
    sample = draws.latents[:, :, row, latent].ravel()
    axes.hist(sample, bins=_bins(sample), density=True, histtype="stepfilled", facecolor="0.85", edgecolor="0.6")
    ends = [sample.min(), sample.max()]
    for label, result in others.items():
        look = looks[label]
        if result.draws is not None:
            values = result.draws.latents[:, :, row, latent].ravel()
            outline = {"histtype": "step", "color": look.colour, "linestyle": look.line}
            axes.hist(values, bins=_bins(values), density=True, label=label, **outline)
            ends += [values.min(), values.max()]
        elif result.variance[row, latent] > 0:
            mean, deviation = result.mean[row, latent], np.sqrt(result.variance[row, latent])
            x = mean + deviation * np.linspace(-4.0, 4.0, 201)
            axes.plot(x, result.marginals[row, latent].pdf(x), **look.of_line, linewidth=1.8, label=label)
            ends += [x[0], x[-1]]
    name = f"row {row}" if draws.model.num_latents == 1 else f"row {row}, latent {latent}"
    symbol = "f" if draws.model.num_latents == 1 else f"f[{latent}]"
    open_axes(axes, title=name, xlabel=f"latent value {symbol}", ylabel="density", xlim=(min(ends), max(ends)))


def _bins(values: np.ndarray) -> list[float]:
    """Return edges by Freedman and Diaconis's rule, for at most 60 bins."""
    edges = np.histogram_bin_edges(values, bins="fd")
    return np.linspace(edges[0], edges[-1], min(len(edges), 61)).tolist()


def plot_reliability(comparison: Comparison) -> Figure:
    """Plot the reliability diagram of each result on the test data, with a histogram of confidences below.

    Parameters
    ----------
    comparison : Comparison
        The result of ``pgm.compare``, with test data.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        If there are no test data, or y is not a class.

    Notes
    -----
    The diagram shows accuracy against mean confidence, in 15 bins of the probability of the most probable class. The
    legend has the expected calibration errors.

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
        options: dict[str, Any] = {**look.of_line, "marker": look.marker, "markersize": 6}
        above.plot(bins.confidence[full], bins.accuracy[full], **options, label=label)
        below.stairs(bins.counts, bins.edges, **look.of_line, linewidth=1.6, label=label)
        lowest = min(lowest, float(bins.edges[:-1][full].min()))
        handles.append(Line2D([], [], **options))
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


def plot_diagnosis(diagnosis: Diagnosis) -> Figure:
    """Plot p = P_q(f* < f) over simulated data for each latent, the gaps, and weighted moments against q's moments.

    For an exact q, each bar of the histograms is within the band with probability 99 %. Differences of moments are in
    standard deviations of q, with error bars of two standard errors.
    """
    latents = diagnosis.result.mean.shape[1]
    count = (latents if diagnosis.vsbc is not None else 1) + 3
    columns = 2 if count <= 4 else 3
    figure, grid = new_panels(count, columns, 4.2 * columns, 3.4)
    if diagnosis.vsbc is None:
        _write(grid[0], "Simulated data", "Left out: see the notes of the diagnosis.")
    else:
        for latent in range(latents):
            _histogram(grid[latent], diagnosis.vsbc, latent)
    _gaps(grid[count - 3], diagnosis)
    _moments(grid[count - 2], diagnosis, "mean")
    _moments(grid[count - 1], diagnosis, "sd")
    return figure


def _histogram(axes: Axes, vsbc: Calibration, latent: int, num_bins: int = 10) -> None:
    share, error = (part[:, latent] for part in vsbc.histogram(num_bins))
    edges = np.linspace(0.0, 1.0, num_bins + 1)
    # The central 99 % of a normal distribution.
    half = ndtri(0.995) * error
    low, high = np.maximum(1.0 / num_bins - half, 0.0), 1.0 / num_bins + half
    axes.stairs(share, edges, fill=True, color=COLOURS[5])
    axes.fill_between(
        edges, np.append(low, low[-1]), np.append(high, high[-1]), step="post", color="0.3", alpha=0.3, linewidth=0
    )
    axes.axhline(1.0 / num_bins, color="black", linewidth=0.9, linestyle="--")
    name = f"Simulated data, latent {latent}" if vsbc.z.shape[2] > 1 else "Simulated data"
    open_axes(axes, title=name, xlabel="p = P(f* < f) under q; grey: 99 % for an exact q", ylabel="share", xlim=(0, 1))
    axes.set_ylim(bottom=0.0)


def _gaps(axes: Axes, diagnosis: Diagnosis) -> None:
    gap, mean = diagnosis.gap, diagnosis.result.mean
    rasterised = gap.size > RASTERISED
    if mean.shape[1] == 1:
        axes.scatter(mean[:, 0], gap, s=12, color=COLOURS[0], linewidths=0, alpha=0.7, rasterized=rasterised)
        label = "mean of q"
    else:
        axes.plot(np.arange(len(gap)), np.sort(gap)[::-1], ".", color=COLOURS[0], rasterized=rasterised)
        label = "data, by decreasing gap"
    open_axes(axes, title="Augmentation gap", xlabel=label, ylabel="gap of a datum [nats]")
    axes.set_ylim(bottom=min(0.0, float(np.nanmin(gap))))


def _moments(axes: Axes, diagnosis: Diagnosis, which: str) -> None:
    importance, result = diagnosis.importance, diagnosis.result
    title = f"Posterior {which} by importance sampling"
    if importance.reason is not None:
        _write(axes, title, importance.reason)
        return
    deviation = np.sqrt(result.variance)
    x = result.mean
    if which == "mean":
        y, error = (in_units_of(deviation, part) for part in (importance.mean - x, importance.mean_error))
        expected, label = 0.0, "(weighted mean - mean of q) / sd of q"
    else:
        y = in_units_of(deviation, np.sqrt(importance.variance), known=1.0)
        error = in_units_of(2.0 * importance.variance, importance.variance_error) * y
        expected, label = 1.0, "weighted sd / sd of q"
    rasterised, looks = x.size > RASTERISED, styles(f"latent {latent}" for latent in range(x.shape[1]))
    for latent in range(x.shape[1]):
        at, value, bar = x[:, latent], y[:, latent], 2.0 * error[:, latent]
        axes.vlines(at, value - bar, value + bar, color=_GREY, linewidth=1.5, zorder=0, rasterized=rasterised)
        look = looks[f"latent {latent}"].of_dots
        axes.scatter(at, value, s=12, alpha=0.7, label=f"latent {latent}", rasterized=rasterised, **look)
    if x.shape[1] > 1:
        axes.legend(frameon=False, fontsize="small")
    axes.axhline(expected, color="0.4", linewidth=0.9, linestyle="--", zorder=0.5)
    open_axes(axes, title=title, xlabel="mean of q", ylabel=label)


def _write(axes: Axes, title: str, words: str) -> None:
    axes.text(0.5, 0.5, textwrap.fill(words, 36), ha="center", va="center", transform=axes.transAxes, color="0.3")
    axes.set(title=title, xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
