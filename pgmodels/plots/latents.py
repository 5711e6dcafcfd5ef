"""Figures of latents over inputs and on maps."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from scipy.special import ndtri

from pgmodels.diagnostics.compare import Comparison
from pgmodels.likelihoods.supports import SuccessesOfTrials
from pgmodels.numerics.quadrature import sobol_normals
from pgmodels.plots.style import (
    RASTERISED,
    Style,
    around,
    fixed_covariates,
    inducing_inputs,
    labelled,
    legend_below,
    line_handle,
    literal,
    new_figure,
    open_axes,
    smooth_draws,
    styles,
    thin,
)
from pgmodels.priors.inducing import Inducing
from pgmodels.results.draws import Draws
from pgmodels.results.gaussian import CorrectionWarning, is_invalid
from pgmodels.results.nested import name_type
from pgmodels.results.predictive import DrawNodes, Predictive
from pgmodels.results.result import Result
from pgmodels.runtime.messages import shorten, suppress_warnings

# Of the curves, and the share of the data's range by which they go on beyond it.
_NUM_POINTS, _MARGIN = 200, 0.05
# Rows for each point of the curves above which a note says that they may miss what is between.
_MANY_ROWS = 100
_TICK: dict[str, Any] = {"color": "black", "linestyle": "", "marker": "|", "markersize": 8}
_MAX_DRAWS = 2000
# Quantile levels of the central 50 % and 90 % intervals.
_LEVELS = (0.05, 0.25, 0.75, 0.95)


class _Curves(NamedTuple):
    """A result on a grid of inputs: latent means (m, latents), quantiles (4, m, latents), predictive mean (m,)."""

    mean: np.ndarray
    quantiles: np.ndarray
    predicted: np.ndarray | None


def plot_latent(
    results: Result | Mapping[str, Result] | Comparison,
    X_new: ArrayLike | None = None,
    covariates: ArrayLike | None = None,
) -> Figure:
    """Plot the posterior mean and central 50 % and 90 % bands of each latent function of a one-dimensional X.

    Parameters
    ----------
    results : Result, Comparison or mapping of str to Result
        A result, results of one data set by label, or a comparison.
    X_new : array_like, shape (m, 1), optional
        The inputs of the curves; by default 200 across the data and a little beyond, as far as all models are
        defined; of a long series too few to follow it. Data outside their range are not shown.
    covariates : array_like, shape (m, columns - 1), optional
        The columns of y after the first for the predictive mean; by default one trial.

    Returns
    -------
    matplotlib.figure.Figure
        The figure.

    Raises
    ------
    ValueError
        If X has more than one column.

    Notes
    -----
    Ticks at the bottom are inducing inputs. The last panel shows the data and, unless y is one of several classes, each
    result's predictive mean. At most about 2,000 posterior draws are used, as noted in the figure.
    """
    by_label = labelled(results)
    reference = results.reference if isinstance(results, Comparison) else None
    first = by_label[reference or next(iter(by_label))]
    for label, result in by_label.items():
        if result.X.shape[1] != 1:
            raise ValueError(
                f"X of {label} has {result.X.shape[1]} columns; plot_latent needs one. plot_probability_map shows "
                "predictions over two."
            )
        if result.model.num_latents != first.model.num_latents:
            raise ValueError(
                f"{label} has {result.model.num_latents} latents and another result {first.model.num_latents}: "
                "plot_latent needs results of one model."
            )
    x = _inputs(first, list(by_label.values()), X_new)
    covariate_rows = fixed_covariates(first, covariates, len(x))
    notes: list[str] = []
    if X_new is None and len(first.X) > _MANY_ROWS * len(x):
        notes.append(
            f"Curves at {len(x)} inputs, which may miss what is between them: X_new shows a part of the series."
        )
    curves = {label: _curves(label, result, x, covariate_rows, notes) for label, result in by_label.items()}
    looks = styles(by_label, reference)
    size = first.model.num_latents
    columns = 1 if size <= 3 else 3
    rows = -(-(size + 1) // columns)
    figure = new_figure(7.0 if columns == 1 else 10.0, 2.3 * rows + 0.8)
    grid = figure.subplots(rows, columns, sharex=True, squeeze=False).ravel()
    inducing = _inducing(by_label)
    for latent in range(size):
        _latent(grid[latent], x[:, 0], curves, looks, latent, size)
        if inducing.size:
            grid[latent].plot(*inducing, transform=grid[latent].get_xaxis_transform(), **_TICK)
    _data(grid[size], x[:, 0], first, curves, looks)
    for axes in grid[size + 1 :]:
        axes.remove()
    for axes in grid[max(0, size + 1 - columns) : size + 1]:
        axes.set_xlabel("x")
        axes.tick_params(labelbottom=True)
    bands = [Patch(color="0.5", alpha=alpha) for alpha in (0.45, 0.2)]
    ticks = {"inducing inputs": Line2D([], [], **_TICK)} if inducing.size else {}
    legend_below(
        figure,
        [*(line_handle(looks[label]) for label in by_label), *bands, *ticks.values()],
        [*map(literal, by_label), "central 50 %", "central 90 %", *ticks],
        notes,
    )
    return figure


def _inducing(results: dict[str, Result]) -> np.ndarray:
    sparse = [result for result in results.values() if any(isinstance(gp.form, Inducing) for gp in result.model.gps)]
    inputs = [inducing_inputs(result)[0] for result in sparse]
    x = np.unique(np.concatenate([np.zeros((0, 1)), *inputs]))
    return np.stack([x, np.full(len(x), 0.02)])


def _inputs(first: Result, results: Sequence[Result], X_new: Any) -> np.ndarray:
    if X_new is not None:
        return np.sort(first.check_inputs(X_new), axis=0)
    return np.linspace(*around(first.X, results, _MARGIN), _NUM_POINTS)


def _curves(label: str, result: Any, x: np.ndarray, covariates: np.ndarray | None, notes: list[str]) -> _Curves:
    if isinstance(result, Draws):
        kept = thin(result, _MAX_DRAWS)
        if kept.num_samples < result.num_samples:
            total = result.num_chains * result.num_samples
            notes.append(f"{label}: {kept.num_chains * kept.num_samples} of {total} draws.")
        f, predictive = smooth_draws(kept, x, covariates)
        predicted = _predicted(label, lambda: predictive, notes)
        return _Curves(f.mean(axis=0), np.quantile(f, _LEVELS, axis=0), predicted)
    # The figure has a note instead of the warning.
    with suppress_warnings(CorrectionWarning):
        mean, variance = result.predict_latent(x)
        predicted = _predicted(label, lambda: result.predict(x, covariates), notes)
    invalid = is_invalid(variance)
    if invalid.any():
        notes.append(f"{label}: no band where the corrected variance is not positive.")
    scale = np.sqrt(np.where(invalid, np.nan, variance))
    return _Curves(mean, mean + ndtri(_LEVELS)[:, None, None] * scale, predicted)


def _predicted(label: str, predict: Callable[[], Predictive], notes: list[str]) -> np.ndarray | None:
    """E[y], None if y is one of several classes or the result has no predictive mean."""
    try:
        predictive = predict()
        values = predictive.support.values()
        return predictive.mean if values is None or len(values) == 2 else None
    except ValueError as error:
        notes.append(f"{label}: no predictive mean. {error}")
        return None


def _latent(
    axes: Axes, x: np.ndarray, curves: dict[str, _Curves], looks: dict[str, Style], latent: int, size: int
) -> None:
    for label, curve in curves.items():
        look, (low, lower, upper, high) = looks[label], curve.quantiles[:, :, latent]
        axes.fill_between(x, low, high, color=look.colour, alpha=0.12, linewidth=0)
        axes.fill_between(x, lower, upper, color=look.colour, alpha=0.2, linewidth=0)
        for edge in (low, high):
            axes.plot(x, edge, color=look.colour, linestyle=look.line, linewidth=0.7)
        axes.plot(x, curve.mean[:, latent], color=look.colour, linestyle=look.line, linewidth=1.8, label=label)
    symbol = "f" if size == 1 else f"f[{latent}]"
    open_axes(axes, title=f"Latent function {symbol}", ylabel=f"latent value {symbol}")


def _data(axes: Axes, x: np.ndarray, result: Result, curves: dict[str, _Curves], looks: dict[str, Style]) -> None:
    support = result.likelihood.support(result.model.num_latents)
    y, symbol = (result.y[:, 0], "y[0]") if result.y.ndim == 2 else (result.y, "y")
    if isinstance(support, SuccessesOfTrials):
        y, symbol = y / np.maximum(result.y[:, 1], 1.0), "share of successes"
    classes = support.values()
    marker, size = ("|", 7) if classes is not None else ("o", 3)
    shown = (result.X[:, 0] >= x[0]) & (result.X[:, 0] <= x[-1])
    points = axes.plot(
        result.X[shown, 0], y[shown], color="0.45", linestyle="", marker=marker, markersize=size, zorder=1
    )
    points[0].set(label="data", rasterized=len(y) > RASTERISED)
    for label, curve in curves.items():
        if curve.predicted is not None:
            look = looks[label]
            axes.plot(x, curve.predicted, color=look.colour, linestyle=look.line, linewidth=1.8, label=label)
    several = classes is not None and len(classes) > 2
    open_axes(axes, title="Data" if several else "Data and predictive mean", ylabel="class y" if several else symbol)
    if classes is not None and len(classes) <= 8:
        axes.set_yticks(classes)


# Maps of predictions over two inputs.

_MAX_MAP_DRAWS = 1000
# The share of the data's range by which the grid goes on beyond it.
_MAP_MARGIN = 0.08
# Maximum number of likelihood evaluations on the grid: about ten seconds.
_EVALUATIONS = 60_000_000
_COLOURS = "Blues"
# Colour and marker of the two classes.
_TWO = (("white", "s"), ("#E69F00", "o"))
# Number of quadrature nodes for one latent (True) and for several (False).
_NODES = {True: 64, False: 512}


class _Map(NamedTuple):
    """A quantity on the grid, (rows, columns), and the index of the highlighted class, None for no highlight."""

    title: str
    values: np.ndarray
    label: int | None


def plot_probability_map(result: Result, class_index: int | None = None, covariates: ArrayLike | None = None) -> Figure:
    """Plot predictive probabilities over a two-dimensional X, with the data and the contour of probability 1/2.

    Parameters
    ----------
    result : Result
        The result.
    class_index : int, optional
        Draw only the panel of this class; by default one panel for each class, or only the second of two classes.
    covariates : array_like, optional
        The values of the columns of y after the first; by default one trial.

    Returns
    -------
    matplotlib.figure.Figure
        The figure.

    Raises
    ------
    ValueError
        If X does not have two columns, or for an invalid class.

    Notes
    -----
    If y is not a class, the predictive mean of y. Crosses are inducing inputs, or the pivots of a low-rank prior's
    factor. At most about 1,000 posterior draws are used, as noted in the figure.
    """
    _check(result)
    classes = result.likelihood.support(result.model.num_latents).values()
    shown = _shown_classes(classes, class_index)
    notes: list[str] = []
    used: Any = result
    if isinstance(result, Draws):
        used = thin(result, _MAX_MAP_DRAWS)
        total, kept = (one.num_chains * one.num_samples for one in (result, used))
        notes += [f"{kept} of {total} draws."] if kept < total else []
    first, second, inputs = _grid(result, _side(used, len(shown)))
    predictive = _predictive(used, inputs, fixed_covariates(result, covariates, len(inputs)))
    if classes is None:
        maps = [_Map("E[y]", predictive.mean.reshape(first.shape), None)]
    else:
        p = predictive.probabilities.reshape(*first.shape, -1)
        maps = [_Map(f"p(y = {classes[c]:g})", p[..., c], c) for c in shown]
    figure = _draw(result, maps, first, second, classes, notes)
    figure.suptitle(f"{'Predictive mean' if classes is None else 'Predictive probability'} by {literal(result.method)}")
    return figure


def _check(result: Any) -> None:
    if not isinstance(result, Result):
        raise ValueError(
            f"result must be a result, such as those of cavi, correct, fit or gibbs; got {name_type(result)}."
        )
    if result.X.shape[1] != 2:
        raise ValueError(
            f"X has {result.X.shape[1]} columns; plot_probability_map needs two. Train on two of the columns, or use "
            "plot_latent for one column."
        )


def _shown_classes(classes: np.ndarray | None, class_index: int | None) -> list[int]:
    if classes is None:
        if class_index is not None:
            raise ValueError(f"class_index is {class_index!r}, but y is not a class: leave it out for the mean of y.")
        return [0]
    if class_index is None:
        return [1] if len(classes) == 2 else list(range(len(classes)))
    is_whole = isinstance(class_index, (int, np.integer)) and not isinstance(class_index, bool)
    if not is_whole or not 0 <= class_index < len(classes):
        raise ValueError(
            f"class_index must be a whole number from 0 to {len(classes) - 1}; got {shorten(class_index)}."
        )
    return [int(class_index)]


def _predictive(result: Any, inputs: np.ndarray, covariates: np.ndarray | None) -> Predictive:
    if isinstance(result, Draws):
        return smooth_draws(result, inputs, covariates)[1]
    size = result.model.num_latents
    if size == 1:
        return result.predict(inputs, covariates)
    mean, variance = result.predict_latent(inputs)
    if is_invalid(variance).any():
        return result.predict(inputs, covariates)  # raises with the reason
    standard = sobol_normals(size, _NODES[False])
    return Predictive(result.likelihood, DrawNodes(mean + np.sqrt(variance) * standard[:, None, :]), covariates)


def _side(result: Any, num_panels: int) -> int:
    """The number of points along one side of the grid, 24 to 80, limited by _EVALUATIONS."""
    size = result.model.num_latents
    nodes = result.num_chains * result.num_samples if isinstance(result, Draws) else _NODES[size == 1]
    values = result.likelihood.support(size).values()
    work = nodes * size * (1 if values is None else len(values))
    return int(np.clip(np.sqrt(_EVALUATIONS / work), 24, 80 if num_panels == 1 else 50))


def _grid(result: Result, side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    first, second = np.meshgrid(*np.linspace(*around(result.X, [result], _MAP_MARGIN), side).T)
    return first, second, np.column_stack([first.ravel(), second.ravel()])


def _draw(
    result: Result, maps: list[_Map], first: np.ndarray, second: np.ndarray, classes: Any, notes: list[str]
) -> Figure:
    columns = min(len(maps), 3 if len(maps) <= 6 else 6)
    rows = -(-len(maps) // columns)
    side = {1: 4.6, 2: 3.8, 3: 3.2}.get(columns, 2.0)
    figure = new_figure(side * columns + 1.3, side * rows + 1.1)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    shown = grid.ravel()[: len(maps)]
    y = _observed(result)
    # With many classes, probabilities may all be far below 1.
    top = 1.0 if len(maps) == 1 else min(1.0, np.ceil(10.0 * max(one.values.max() for one in maps)) / 10.0)
    levels: Any = np.linspace(0.0, top, 11)
    if classes is None:
        every = np.concatenate([maps[0].values.ravel(), y])
        levels = MaxNLocator(20).tick_values(every.min(), every.max())
    pivots, name = inducing_inputs(result)
    for axes, one in zip(shown, maps, strict=True):
        contours = axes.contourf(first, second, one.values, levels=levels, cmap=_COLOURS)
        if classes is not None and one.values.min() < 0.5 < one.values.max():
            axes.contour(first, second, one.values, levels=[0.5], colors="black", linewidths=1.4)
        _points(axes, result.X, y, one, classes, contours.norm)
        axes.plot(*pivots.T, linestyle="", color="black", marker="x", markersize=4, markeredgewidth=0.8)
        axes.set(title=one.title)
    for axes in grid.ravel()[len(maps) :]:
        axes.remove()
    for axes in shown[max(0, len(maps) - columns) :]:
        axes.set_xlabel("x[0]")
        axes.tick_params(labelbottom=True)
    for axes in shown[::columns]:
        axes.set_ylabel("x[1]")
    label = "predictive mean of y" if classes is None else "predictive probability"
    figure.colorbar(contours, ax=list(shown), label=label)
    handles = _legend(classes, len(maps), top)
    if len(pivots):
        cross = Line2D([], [], linestyle="", color="black", marker="x", markersize=4)
        handles[name] = cross
    legend_below(figure, list(handles.values()), list(handles), notes)
    return figure


def _observed(result: Result) -> np.ndarray:
    if result.y.ndim == 1:
        return result.y
    support = result.likelihood.support(result.model.num_latents)
    share = isinstance(support, SuccessesOfTrials)
    return result.y[:, 0] / (np.maximum(result.y[:, 1], 1.0) if share else 1.0)


def _points(axes: Axes, X: np.ndarray, y: np.ndarray, one: _Map, classes: Any, norm: Any) -> None:
    style: dict[str, Any] = {
        "edgecolors": "black",
        "linewidths": 0.6,
        "s": 22 if len(X) <= 500 else 6,
        "rasterized": len(X) > RASTERISED,
    }
    if classes is None:
        axes.scatter(X[:, 0], X[:, 1], c=y, cmap=_COLOURS, norm=norm, **style)
        return
    if len(classes) == 2:
        for label, (colour, marker) in zip(classes, _TWO, strict=True):
            axes.scatter(*X[y == label].T, facecolor=colour, marker=marker, **style)
        return
    in_class = y == classes[one.label]
    axes.scatter(*X[~in_class].T, **style | {"s": 6, "linewidths": 0, "facecolor": "0.55"})
    axes.scatter(*X[in_class].T, facecolor=_TWO[1][0], marker=_TWO[1][1], **style)


def _legend(classes: Any, num_panels: int, top: float) -> dict[str, Line2D]:
    if classes is None:
        return {"data, filled by y": Line2D([], [], linestyle="", color="black", marker="o", markerfacecolor="0.8")}
    names = [f"y = {label:g}" for label in classes]
    if len(classes) > 2:
        class_name = "data of the panel's class" if num_panels > 1 else "data of the class"
        names = ["data of other classes", class_name]
    sizes = (6, 6) if len(classes) == 2 else (3, 6)
    handles = {
        name: Line2D([], [], linestyle="", color="black", marker=marker, markersize=size, markerfacecolor=colour)
        for name, (colour, marker), size in zip(
            names, _TWO if len(classes) == 2 else (("0.55", "o"), _TWO[1]), sizes, strict=True
        )
    }
    return handles | ({"probability 1/2": Line2D([], [], color="black", linewidth=1.4)} if top > 0.5 else {})
