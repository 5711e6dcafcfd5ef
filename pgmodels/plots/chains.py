"""Figures of runs: convergence, bounds and auxiliary variables. ArviZ has traces and ranks."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pgmodels.diagnostics.compare import ESS_LIMITS, RHAT_LIMITS, convergence_by_latent, of_draws
from pgmodels.diagnostics.vsbc import auxiliary_means
from pgmodels.plots import style
from pgmodels.results.draws import Draws
from pgmodels.results.nested import require_result
from pgmodels.results.result import Result

# Drawn with matplotlib directly, since arviz_plots creates figures with pyplot, which keeps all of them in memory.


def plot_convergence(draws: Draws) -> Figure:
    """Plot histograms over all latents of bulk and tail effective sample sizes and of R-hat, with their thresholds.

    Parameters
    ----------
    draws : Draws
        Draws of ``gibbs`` or ``nuts``, at least four per chain.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        If there are fewer than four draws per chain.

    Notes
    -----
    Recommended are an effective sample size above 400 and an R-hat below 1.01. Below 100 and above 1.05, the draws are
    unusable. R-hat needs two chains.

    References
    ----------
    Vehtari et al. 2021.
    """
    require_result(draws, "draws must be a result of gibbs or nuts", kind=Draws)
    if draws.num_samples < 4:
        raise ValueError(
            f"draws has {draws.num_samples} draws per chain, too few to assess convergence: draw at least 4, and "
            "preferably some hundreds."
        )
    bulk, tail, rhat = of_draws(convergence_by_latent, draws)
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
        notes.append("R-hat needs two chains, but there is only one.")
    figure, lines = style.new_figure(3.6 * len(panels), 3.8), ("--", ":")
    for axes, (name, values, limits, unit) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        finite = values[np.isfinite(values)]
        every = [*finite, *limits]
        axes.hist(finite, bins=np.linspace(min(every), max(every), 41).tolist(), color=style.COLOURS[0])
        for limit, line in zip(limits, lines, strict=True):
            axes.axvline(limit, color="black", linestyle=line)
        style.open_axes(axes, title=name, ylabel="latents", xlabel=unit)
        if finite.size < values.size:
            notes.append(f"{name} is not defined for {values.size - finite.size} of {values.size} latents.")
    style.legend_below(
        figure,
        [Line2D([], [], color="black", linestyle=line) for line in lines],
        [
            f"recommended: ESS {ESS_LIMITS[0]}, R-hat {RHAT_LIMITS[0]}",
            f"unusable beyond: ESS {ESS_LIMITS[1]}, R-hat {RHAT_LIMITS[1]}",
        ],
        notes,
    )
    return figure


def plot_elbo(results: style.Results) -> Figure:
    """Plot the ELBO of each approximation by iteration, and its distance to the last value on a logarithmic scale.

    Parameters
    ----------
    results : Result, Comparison or mapping of str to Result
        A result, results of one data set by label, or a comparison.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        If no result has an ELBO.

    Notes
    -----
    Draws and corrected results have no ELBO and are omitted.
    """
    by_label, _ = style.labelled(results)
    approximations: dict[str, Any] = {label: result for label, result in by_label.items() if result.has_elbo}
    if not approximations:
        raise ValueError(
            f"none of the results ({', '.join(by_label)}) has an ELBO: pass a result of cavi or fit. Draws and "
            "corrected results have none."
        )
    looks = style.styles(approximations)
    figure = style.new_figure(8.0, 3.8)
    values, gaps = figure.subplots(1, 2)
    for label, result in approximations.items():
        look, iterations = looks[label], np.arange(len(result.elbo_trace))
        every = max(1, len(iterations) // 15)
        options: Any = {**look.of_line, "marker": look.marker, "markersize": 4, "markevery": every, "label": label}
        values.plot(iterations, result.elbo_trace, **options)
        gap = result.elbo - result.elbo_trace
        gaps.plot(iterations[gap > 0], gap[gap > 0], **options)
    gaps.set_yscale("log")
    style.open_axes(values, title="Evidence lower bound", xlabel="iteration", ylabel="ELBO [nats]")
    style.open_axes(gaps, title="Gap to the last value", xlabel="iteration", ylabel="last ELBO − ELBO [nats]")
    left_out = [label for label in by_label if label not in approximations]
    style.legend_below(
        figure,
        [style.line_handle(looks[label], marker=True) for label in approximations],
        [*map(style.literal, approximations)],
        [f"Without an ELBO: {', '.join(left_out)}."] if left_out else [],
    )
    return figure


def plot_auxiliaries(results: style.Results) -> Figure:
    """Plot posterior means of auxiliary variables at each datum, in the order of the first result's means.

    Parameters
    ----------
    results : Result, Comparison or mapping of str to Result
        A result, results of one data set by label, or a comparison.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        If no result has auxiliary variables, or the results are of different models.

    Notes
    -----
    Draws show the average of E[a | f, y]. Approximations show the mean of the optimal q (see
    ``pgmodels.diagnostics.vsbc``), and ``fit`` shows the mean before its correction. Results of ``correct`` are
    omitted. The reference of a comparison comes first.
    """
    by_label, reference = style.labelled(results)
    means = {k: auxiliary_means(r) for k, r in by_label.items() if r.has_elbo or not r.is_corrected}
    first = _check(means, by_label, reference)
    looks = style.styles(by_label, reference)
    shown = [panel for name in means[first] for panel in _panels(name, means, first)]
    columns = min(len(shown), 3)
    figure, grid = style.new_panels(len(shown), columns, max(5.0, 3.8 * columns), 3.0, 0.7)
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
    style.legend_below(figure, handles, [*map(style.literal, means)], notes + infinite)
    return figure


def _check(means: dict[str, dict[str, np.ndarray]], results: dict[str, Result], reference: str | None) -> str:
    """Return the label of the reference. Raise ValueError without auxiliaries, or if results do not match."""
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
    """Return titles and values by label. Up to four latents have separate panels; more share one panel."""
    values = {label: by_name[name] for label, by_name in means.items() if not np.isposinf(by_name[name]).all()}
    if not values:
        return []
    shape = means[first][name].shape
    if len(shape) == 1:
        return [(name, values)]
    if shape[1] > 4:
        return [(f"{name}[c], every c", {label: value.ravel() for label, value in values.items()})]
    return [(f"{name}[{c}]", {label: value[:, c] for label, value in values.items()}) for c in range(shape[1])]


def _panel(axes: Axes, name: str, values: dict[str, np.ndarray], first: str, looks: dict[str, style.Style]) -> None:
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
            rasterized=len(order) > style.RASTERISED,
        )
    if leading[finite].size and leading[finite].min() > 0 and np.ptp(np.log(leading[finite])) > np.log(50):
        axes.set_yscale("log")
    data = "data" if len(finite) == len(leading) else f"the {len(finite)} of {len(leading)} data that have {name}"
    style.open_axes(axes, title=name, xlabel=f"{data}, in order", ylabel="posterior mean")
