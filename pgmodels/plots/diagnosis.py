"""Figure of a diagnosis: calibration on simulated data, gaps, and moments against importance sampling."""

import textwrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import ndtri

from pgmodels.data.arrays import in_units_of
from pgmodels.diagnostics.diagnose import Diagnosis
from pgmodels.diagnostics.vsbc import Calibration
from pgmodels.plots.style import COLOURS, MARKERS, RASTERISED, new_figure, open_axes

_BINS = 10
_BAND = 0.99
_GREY = "0.8"


def plot_diagnosis(diagnosis: Diagnosis) -> Figure:
    """Histograms of p = P_q(f* < f) over simulated data for each latent, the gaps, and weighted moments against q's.

    For an exact q, each bar is within the band with probability 99 %. Differences of moments are in standard deviations
    of q, with error bars of two standard errors.
    """
    latents = diagnosis.result.mean.shape[1]
    count = (latents if diagnosis.vsbc is not None else 1) + 3
    columns = 2 if count <= 4 else 3
    rows = -(-count // columns)
    figure = new_figure(4.2 * columns, 3.4 * rows)
    grid = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for axes in grid[count:]:
        axes.remove()
    if diagnosis.vsbc is None:
        _write(grid[0], "Simulated data", "Left out: see the notes of the diagnosis.")
    else:
        for latent in range(latents):
            _histogram(grid[latent], diagnosis.vsbc, latent)
    _gaps(grid[count - 3], diagnosis)
    _moments(grid[count - 2], diagnosis, "mean")
    _moments(grid[count - 1], diagnosis, "sd")
    return figure


def _histogram(axes: Axes, vsbc: Calibration, latent: int) -> None:
    share, error = (part[:, latent] for part in vsbc.histogram(_BINS))
    edges = np.linspace(0.0, 1.0, _BINS + 1)
    half = ndtri(0.5 + _BAND / 2) * error
    low, high = np.maximum(1.0 / _BINS - half, 0.0), 1.0 / _BINS + half
    axes.stairs(share, edges, fill=True, color=COLOURS[5])
    axes.fill_between(
        edges, np.append(low, low[-1]), np.append(high, high[-1]), step="post", color="0.3", alpha=0.3, linewidth=0
    )
    axes.axhline(1.0 / _BINS, color="black", linewidth=0.9, linestyle="--")
    several = vsbc.z.shape[2] > 1
    name = f"Simulated data, latent {latent}" if several else "Simulated data"
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
    rasterised = x.size > RASTERISED
    for latent in range(x.shape[1]):
        at, value, bar = x[:, latent], y[:, latent], 2.0 * error[:, latent]
        axes.vlines(at, value - bar, value + bar, color=_GREY, linewidth=1.5, zorder=0, rasterized=rasterised)
        axes.scatter(
            at,
            value,
            s=12,
            color=COLOURS[latent % len(COLOURS)],
            marker=MARKERS[latent % len(MARKERS)],
            linewidths=0,
            alpha=0.7,
            label=f"latent {latent}",
            rasterized=rasterised,
        )
    if x.shape[1] > 1:
        axes.legend(frameon=False, fontsize="small")
    axes.axhline(expected, color="0.4", linewidth=0.9, linestyle="--", zorder=0.5)
    open_axes(axes, title=title, xlabel="mean of q", ylabel=label)


def _write(axes: Axes, title: str, words: str) -> None:
    axes.text(0.5, 0.5, textwrap.fill(words, 36), ha="center", va="center", transform=axes.transAxes, color="0.3")
    axes.set(title=title, xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
