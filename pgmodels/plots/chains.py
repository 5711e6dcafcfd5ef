"""Figures of runs: traces, ranks, bounds, auxiliary variables."""

from itertools import chain, cycle
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.stats import gaussian_kde, rankdata

from pgmodels.diagnostics.compare import ESS_LIMITS, RHAT_LIMITS, convergence_by_latent, of_draws
from pgmodels.diagnostics.vsbc import auxiliary_means
from pgmodels.plots.style import (
    COLOURS,
    LINES,
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
    require_chains,
    styles,
)
from pgmodels.results.draws import Draws
from pgmodels.results.result import Result

# Drawn with matplotlib directly: arviz_plots creates figures with pyplot, which keeps all of them in memory.


class _Series(NamedTuple):
    """A scalar for each draw, (chains, draws)."""

    name: str
    unit: str
    values: np.ndarray


def plot_trace(draws: Draws) -> Figure:
    """Plot traces, and densities by chain, of log p(y | f), of sampled hyperparameters and of four latents.

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
    The latents are the stored ones with the smallest effective sample size, bulk or tail. Traces show at most 2,000
    draws per chain, evenly spaced; densities use all.
    """
    series, looks = _worst_mixing(require_chains(draws)), _looks(draws)
    step = -(-draws.num_samples // 2000)
    figure = new_figure(9.0, 1.6 * len(series) + 1.0)
    grid = figure.subplots(len(series), 2, width_ratios=(3, 1), sharex="col", sharey="row", squeeze=False)
    at = np.arange(0, draws.num_samples, step)
    for (trace, density_axes), one in zip(grid, series, strict=True):
        heights = np.linspace(one.values.min(), one.values.max(), 200)
        for look, values in zip(looks, one.values, strict=True):
            trace.plot(at, values[at], color=look.colour, linewidth=0.6, alpha=0.8, rasterized=True)
            density = gaussian_kde(values)(heights)
            density_axes.plot(density / density.max(), heights, **look.of_line, linewidth=1.4)
        open_axes(trace, title=one.name, ylabel=one.unit)
        open_axes(density_axes)
    grid[0, 1].set_title("by chain")
    grid[-1, 0].set_xlabel("draw" if step == 1 else f"draw (one in {step} is shown)")
    grid[-1, 1].set_xlabel("density / its largest")
    legend_below(figure, [*map(line_handle, looks)], [f"chain {number}" for number in range(draws.num_chains)])
    return figure


def plot_rank(draws: Draws) -> Figure:
    """Plot histograms of each chain's ranks among all draws, for the quantities of ``plot_trace``.

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
    Chains that explore the same distribution have flat histograms.

    References
    ----------
    Vehtari et al. 2021, section 6.
    """
    series, looks, num_bins = _worst_mixing(require_chains(draws)), _looks(draws), 20
    figure = new_figure(1.9 * draws.num_chains + 1.2, 1.5 * len(series) + 0.8)
    grid = figure.subplots(len(series), draws.num_chains, sharex=True, sharey="row", squeeze=False)
    edges = np.linspace(0.0, draws.num_chains * draws.num_samples, num_bins + 1).tolist()
    expected: dict[str, Any] = {"color": "black", "linewidth": 1.0, "linestyle": "--"}
    for row, one in zip(grid, series, strict=True):
        ranks = rankdata(one.values).reshape(one.values.shape) - 0.5
        for axes, look, of_chain in zip(row, looks, ranks, strict=True):
            axes.hist(of_chain, bins=edges, color=look.colour, edgecolor="white", linewidth=0.3)
            axes.axhline(draws.num_samples / num_bins, **expected)
            open_axes(axes)
        row[0].set_ylabel(f"{one.name}\ndraws")
    for number, column in enumerate(grid.T):
        column[0].set_title(f"chain {number}")
        column[-1].set_xlabel("rank among all draws")
    legend_below(figure, [Line2D([], [], **expected)], ["expected where chains agree"])
    return figure


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
    bulk, tail, rhat = of_draws(convergence_by_latent, require_chains(draws))
    size = "effective draws of a latent"
    # Title, values, limits and unit.
    panels: list[tuple[str, np.ndarray, tuple[float, float], str]] = [
        ("Bulk ESS", bulk, ESS_LIMITS, size),
        ("Tail ESS", tail, ESS_LIMITS, size),
    ]
    notes = []
    if draws.num_chains > 1:
        panels.append(("R-hat", rhat, RHAT_LIMITS, "R-hat of a latent"))
    else:
        notes.append("R-hat needs two chains, and there is one.")
    figure, lines = new_figure(3.6 * len(panels), 3.8), ("--", ":")
    for axes, (name, values, limits, unit) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        finite = values[np.isfinite(values)]
        every = [*finite, *limits]
        axes.hist(finite, bins=np.linspace(min(every), max(every), 41).tolist(), color=COLOURS[0])
        for limit, line in zip(limits, lines, strict=True):
            axes.axvline(limit, color="black", linestyle=line)
        open_axes(axes, title=name, ylabel="latents", xlabel=unit)
        if finite.size < values.size:
            notes.append(f"{name} is not defined for {values.size - finite.size} of {values.size} latents.")
    legend_below(
        figure,
        [Line2D([], [], color="black", linestyle=line) for line in lines],
        [
            f"recommended: ESS {ESS_LIMITS[0]}, R-hat {RHAT_LIMITS[0]}",
            f"unusable beyond: ESS {ESS_LIMITS[1]}, R-hat {RHAT_LIMITS[1]}",
        ],
        notes,
    )
    return figure


def _worst_mixing(draws: Draws, num_latents: int = 4) -> list[_Series]:
    series = [_Series("log p(y | f)", "nats", draws.log_likelihood_trace)]
    for name, values in draws.hyperparameters.items():
        flat = values.reshape(*values.shape[:2], -1)
        indices = [""] if values.ndim == 2 else [f"[{i}]" for i in range(flat.shape[-1])]
        series += [_Series(f"{literal(name)}{i}", "value", flat[..., j]) for j, i in enumerate(indices)]
    if draws.whitened is None and draws.stored_latents is None:
        return series
    bulk, tail, _ = of_draws(convergence_by_latent, draws)
    rows = np.arange(len(draws.X)) if draws.rows is None else draws.rows
    size = np.fmin(bulk, tail)
    order = np.argsort(np.nan_to_num(size, nan=np.inf), axis=None, kind="stable")[:num_latents]
    for row, latent in zip(*np.unravel_index(order, size.shape), strict=True):
        symbol = f"f[{latent}]" if draws.model.num_latents > 1 else "f"
        series.append(_Series(f"{symbol} at row {rows[row]}", "latent value", draws.latents[:, :, row, latent]))
    return series


def _looks(draws: Draws) -> list[Style]:
    """A style for each chain."""
    looks = zip(range(draws.num_chains), cycle(COLOURS), chain("-", cycle(LINES)), strict=False)
    return [Style(colour, "", line) for _, colour, line in looks]


def plot_elbo(results: Results) -> Figure:
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
    by_label, _ = labelled(results)
    approximations: dict[str, Any] = {label: result for label, result in by_label.items() if result.has_elbo}
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
        every = max(1, len(iterations) // 15)
        options: Any = {**look.of_line, "marker": look.marker, "markersize": 4, "markevery": every, "label": label}
        values.plot(iterations, result.elbo_trace, **options)
        gap = result.elbo - result.elbo_trace
        gaps.plot(iterations[gap > 0], gap[gap > 0], **options)
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


def plot_auxiliaries(results: Results) -> Figure:
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
    ``pgmodels.diagnostics.vsbc``), for ``fit`` before its correction. Results of ``correct`` are omitted. The
    reference of a comparison comes first.
    """
    by_label, reference = labelled(results)
    means = {k: auxiliary_means(r) for k, r in by_label.items() if r.has_elbo or not r.is_corrected}
    first = _check(means, by_label, reference)
    looks = styles(by_label, reference)
    shown = [panel for name in means[first] for panel in _panels(name, means, first)]
    columns = min(len(shown), 3)
    figure, grid = new_panels(len(shown), columns, max(5.0, 3.8 * columns), 3.0, 0.7)
    for axes, (name, values) in zip(grid, shown, strict=True):
        _panel(axes, name, values, first, looks)
    left_out = [label for label in by_label if label not in means]
    infinite = [
        f"{label}: the posterior mean of {name} is infinite."
        for label, by_name in means.items()
        for name, value in by_name.items()
        if np.isposinf(value).all()
    ]
    notes = [f"Corrected results have no auxiliaries: {', '.join(left_out)}."] if left_out else []
    handles = [Line2D([], [], **looks[k].of_points) for k in means]
    legend_below(figure, handles, [*map(literal, means)], notes + infinite)
    return figure


def _check(means: dict[str, dict[str, np.ndarray]], results: dict[str, Result], reference: str | None) -> str:
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
    """Titles and values by label: up to four latents have their own panel, more share one."""
    values = {label: by_name[name] for label, by_name in means.items() if not np.isposinf(by_name[name]).all()}
    if not values:
        return []
    shape = means[first][name].shape
    if len(shape) == 1:
        return [(name, values)]
    if shape[1] > 4:
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
            **looks[label].of_points,
            markersize=4 if len(order) <= 200 else 2,
            zorder=3 if label == first else 2,
            label=label,
            rasterized=len(order) > RASTERISED,
        )
    if leading[finite].size and leading[finite].min() > 0 and np.ptp(np.log(leading[finite])) > np.log(50):
        axes.set_yscale("log")
    data = "data" if len(finite) == len(leading) else f"the {len(finite)} of {len(leading)} data that have {name}"
    open_axes(axes, title=name, xlabel=f"{data}, in order", ylabel="posterior mean")
