"""Figures of latents over inputs, and on maps."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from scipy.special import ndtri

from pgmodels.likelihoods.supports import SuccessesOfTrials
from pgmodels.numerics.quadrature import sobol_normals
from pgmodels.plots import style
from pgmodels.priors.inducing import Inducing
from pgmodels.results.gaussian import CorrectionWarning, is_invalid
from pgmodels.results.nested import require_result
from pgmodels.results.predictive import DrawNodes, Predictive
from pgmodels.results.result import Result
from pgmodels.runtime.messages import shorten, suppress_warnings

_TICK: dict[str, Any] = {"color": "black", "linestyle": "", "marker": "|", "markersize": 8}
# Quantile levels of the central 50 % and 90 % intervals.
_LEVELS = (0.05, 0.25, 0.75, 0.95)


class _Curves(NamedTuple):
    """A result on a grid of inputs: latent means (m, latents), quantiles (4, m, latents), predictive mean (m,)."""

    mean: np.ndarray
    quantiles: np.ndarray
    predicted: np.ndarray | None


def plot_latent(results: style.Results, X_new: ArrayLike | None = None, covariates: ArrayLike | None = None) -> Figure:
    """Plot the posterior mean and central 50 % and 90 % bands of each latent function of a one-dimensional X.

    Parameters
    ----------
    results : Result, Comparison or mapping of str to Result
        A result, results of one data set by label, or a comparison.
    X_new : array_like, shape (m, 1), optional
        Inputs of the curves. The default is 200 inputs across the data and slightly beyond, if all models are defined
        there. For a long series these are too few to follow it. Data outside the range are not shown.
    covariates : array_like, shape (m, columns - 1), optional
        The columns of y after the first for the predictive mean; by default one trial.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        If X has more than one column.

    Notes
    -----
    Ticks at the bottom are inducing inputs. The last panel shows the data and, unless y is one of several classes, each
    result's predictive mean. At most about 2,000 posterior draws are used, as noted in the figure.
    """
    by_label, reference = style.labelled(results)
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
    notes: list[str] = []
    if X_new is not None:
        x = np.sort(first.check_inputs(X_new), axis=0)
    else:
        x = np.linspace(*style.around(first.X, list(by_label.values()), margin=0.05), 200)
        if len(first.X) > 100 * len(x):
            notes.append(f"Curves at {len(x)} inputs may miss changes between them: X_new shows a part of the series.")
    covariate_rows = style.fixed_covariates(first, covariates, len(x))
    curves = {label: _curves(label, result, x, covariate_rows, notes) for label, result in by_label.items()}
    looks = style.styles(by_label, reference)
    size = first.model.num_latents
    columns = 1 if size <= 3 else 3
    figure, panels = style.new_panels(size + 1, columns, 7.0 if columns == 1 else 10.0, 2.3, 0.8, sharex=True)
    sparse = [result for result in by_label.values() if any(isinstance(gp.form, Inducing) for gp in result.model.gps)]
    inducing = np.unique(np.concatenate([np.zeros((0, 1)), *(style.inducing_inputs(result)[0] for result in sparse)]))
    for latent, axes in enumerate(panels[:-1]):
        _latent(axes, x[:, 0], curves, looks, latent, size)
        if inducing.size:
            axes.plot(inducing, np.full(len(inducing), 0.02), transform=axes.get_xaxis_transform(), **_TICK)
    _data(panels[-1], x[:, 0], first, curves, looks)
    for axes in panels[-columns:]:
        axes.set_xlabel("x")
        axes.tick_params(labelbottom=True)
    bands = [Patch(color="0.5", alpha=alpha) for alpha in (0.45, 0.2)]
    ticks = {"inducing inputs": Line2D([], [], **_TICK)} if inducing.size else {}
    style.legend_below(
        figure,
        [*(style.line_handle(looks[label]) for label in by_label), *bands, *ticks.values()],
        [*map(style.literal, by_label), "central 50 %", "central 90 %", *ticks],
        notes,
    )
    return figure


def _curves(label: str, result: Result, x: np.ndarray, covariates: np.ndarray | None, notes: list[str]) -> _Curves:
    if result.draws is not None:
        f, predictive = style.smooth_draws(style.thin(result.draws, 2000, notes, f"{label}: "), x, covariates)
        predicted = _predicted(label, lambda: predictive, notes)
        return _Curves(f.mean(axis=0), np.quantile(f, _LEVELS, axis=0), predicted)
    # A note in the figure replaces the warning.
    with suppress_warnings(CorrectionWarning):
        mean, variance = result.predict_latent(x)
        predicted = _predicted(label, lambda: result.predict(x, covariates), notes)
    invalid = is_invalid(variance)
    if invalid.any():
        notes.append(f"{label}: no band at inputs whose corrected variance is not positive.")
    scale = np.sqrt(np.where(invalid, np.nan, variance))
    return _Curves(mean, mean + ndtri(_LEVELS)[:, None, None] * scale, predicted)


def _predicted(label: str, predict: Callable[[], Predictive], notes: list[str]) -> np.ndarray | None:
    """Return E[y], or None if y is one of several classes or the result has no predictive mean."""
    try:
        predictive = predict()
        values = predictive.support.values()
        return predictive.mean if values is None or len(values) == 2 else None
    except ValueError as error:
        notes.append(f"{label}: no predictive mean. {error}")
        return None


def _latent(
    axes: Axes, x: np.ndarray, curves: dict[str, _Curves], looks: dict[str, style.Style], latent: int, size: int
) -> None:
    for label, curve in curves.items():
        look, (low, lower, upper, high) = looks[label], curve.quantiles[:, :, latent]
        axes.fill_between(x, low, high, color=look.colour, alpha=0.12, linewidth=0)
        axes.fill_between(x, lower, upper, color=look.colour, alpha=0.2, linewidth=0)
        for edge in (low, high):
            axes.plot(x, edge, **look.of_line, linewidth=0.7)
        axes.plot(x, curve.mean[:, latent], **look.of_line, linewidth=1.8, label=label)
    symbol = "f" if size == 1 else f"f[{latent}]"
    style.open_axes(axes, title=f"Latent function {symbol}", ylabel=f"latent value {symbol}")


def _data(axes: Axes, x: np.ndarray, result: Result, curves: dict[str, _Curves], looks: dict[str, style.Style]) -> None:
    classes, y, symbol = result.model.support.values(), *_observed(result)
    marker, size = ("|", 7) if classes is not None else ("o", 3)
    shown = (result.X[:, 0] >= x[0]) & (result.X[:, 0] <= x[-1])
    axes.plot(
        result.X[shown, 0], y[shown], color="0.45", linestyle="", marker=marker, markersize=size, zorder=1,
        label="data", rasterized=len(y) > style.RASTERISED,
    )  # fmt: skip
    for label, curve in curves.items():
        if curve.predicted is not None:
            axes.plot(x, curve.predicted, **looks[label].of_line, linewidth=1.8, label=label)
    several = classes is not None and len(classes) > 2
    style.open_axes(
        axes, title="Data" if several else "Data and predictive mean", ylabel="class y" if several else symbol
    )
    if classes is not None and len(classes) <= 8:
        axes.set_yticks(classes)


def _observed(result: Result) -> tuple[np.ndarray, str]:
    """Return the shown part of y, the first column or the share of successes, and its name."""
    if result.y.ndim == 1:
        return result.y, "y"
    if isinstance(result.model.support, SuccessesOfTrials):
        return result.y[:, 0] / np.maximum(result.y[:, 1], 1.0), "share of successes"
    return result.y[:, 0], "y[0]"


# Maps of predictions over two inputs.

_COLOURS = "Blues"
# Colours and markers of the two classes.
_TWO = (("white", "s"), ("#E69F00", "o"))
# Numbers of quadrature nodes for one latent (True) and for several latents (False).
_NODES = {True: 64, False: 512}


class _Map(NamedTuple):
    """A quantity on the grid, (rows, columns), and the index of the highlighted class, or None."""

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
        The only class to draw. By default, each class has a panel; of two classes, only the second.
    covariates : array_like, optional
        The values of the columns of y after the first; by default one trial.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        If X does not have two columns, or the class is invalid.

    Notes
    -----
    If y is not a class, the figure shows the predictive mean of y. Crosses are inducing inputs, or the pivots of a
    low-rank prior's factor. At most about 1,000 posterior draws are used, as noted in the figure.
    """
    require_result(result, "result must be a result of an engine such as cavi, correct, fit or gibbs")
    if result.X.shape[1] != 2:
        raise ValueError(
            f"X has {result.X.shape[1]} columns; plot_probability_map needs two. Train on two of the columns, or use "
            "plot_latent for one column."
        )
    classes = result.model.support.values()
    shown = _shown_classes(classes, class_index)
    notes: list[str] = []
    used = result if result.draws is None else style.thin(result.draws, 1000, notes)
    # 24 to 80 points along a side: evaluations of the likelihood cost about ten seconds.
    size, max_evaluations = used.model.num_latents, 6e7
    nodes = _NODES[size == 1] if used.draws is None else used.draws.log_likelihood_trace.size
    work = nodes * size * (1 if classes is None else len(classes))
    side = int(np.clip(np.sqrt(max_evaluations / work), 24, 80 if len(shown) == 1 else 50))
    first, second = np.meshgrid(*np.linspace(*style.around(result.X, [result], margin=0.08), side).T)
    inputs = np.column_stack([first.ravel(), second.ravel()])
    predictive = _predictive(used, inputs, style.fixed_covariates(result, covariates, len(inputs)))
    if classes is None:
        maps = [_Map("E[y]", predictive.mean.reshape(first.shape), None)]
    else:
        p = predictive.probabilities.reshape(*first.shape, -1)
        maps = [_Map(f"p(y = {classes[c]:g})", p[..., c], c) for c in shown]
    figure = _draw(result, maps, first, second, classes, notes)
    figure.suptitle(
        f"{'Predictive mean' if classes is None else 'Predictive probability'} by {style.literal(result.method)}"
    )
    return figure


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


def _predictive(result: Result, inputs: np.ndarray, covariates: np.ndarray | None) -> Predictive:
    if result.draws is not None:
        return style.smooth_draws(result.draws, inputs, covariates)[1]
    size = result.model.num_latents
    if size == 1:
        return result.predict(inputs, covariates)
    mean, variance = result.predict_latent(inputs)
    if is_invalid(variance).any():
        return result.predict(inputs, covariates)  # raises with the reason
    standard = sobol_normals(size, _NODES[False])
    return Predictive(result.likelihood, DrawNodes(mean + np.sqrt(variance) * standard[:, None, :]), covariates)


def _draw(
    result: Result, maps: list[_Map], first: np.ndarray, second: np.ndarray, classes: np.ndarray | None,
    notes: list[str],
) -> Figure:  # fmt: skip
    columns = min(len(maps), 3 if len(maps) <= 6 else 6)
    side = {1: 4.6, 2: 3.8, 3: 3.2}.get(columns, 2.0)
    figure, shown = style.new_panels(len(maps), columns, side * columns + 1.3, side, 1.1, sharex=True, sharey=True)
    y, _ = _observed(result)
    # With many classes, all probabilities may be far below 1.
    top = 1.0 if len(maps) == 1 else min(1.0, np.ceil(10.0 * max(one.values.max() for one in maps)) / 10.0)
    levels: Any = np.linspace(0.0, top, 11)
    if classes is None:
        every = np.concatenate([maps[0].values.ravel(), y])
        levels = MaxNLocator(20).tick_values(every.min(), every.max())
    pivots, name = style.inducing_inputs(result)
    for axes, one in zip(shown, maps, strict=True):
        contours = axes.contourf(first, second, one.values, levels=levels, cmap=_COLOURS)
        if classes is not None and one.values.min() < 0.5 < one.values.max():
            axes.contour(first, second, one.values, levels=[0.5], colors="black", linewidths=1.4)
        _points(axes, result.X, y, one, classes, contours.norm)
        axes.plot(*pivots.T, linestyle="", color="black", marker="x", markersize=4, markeredgewidth=0.8)
        axes.set(title=one.title)
    for axes in shown[-columns:]:
        axes.set_xlabel("x[0]")
        axes.tick_params(labelbottom=True)
    for axes in shown[::columns]:
        axes.set_ylabel("x[1]")
    figure.colorbar(contours, ax=shown, label="predictive mean of y" if classes is None else "predictive probability")
    handles = _legend(classes, len(maps), top)
    if len(pivots):
        handles[name] = Line2D([], [], linestyle="", color="black", marker="x", markersize=4)
    style.legend_below(figure, list(handles.values()), list(handles), notes)
    return figure


def _points(axes: Axes, X: np.ndarray, y: np.ndarray, one: _Map, classes: np.ndarray | None, norm: Normalize) -> None:
    options: dict[str, Any] = {
        "edgecolors": "black",
        "linewidths": 0.6,
        "s": 22 if len(X) <= 500 else 6,
        "rasterized": len(X) > style.RASTERISED,
    }
    if classes is None:
        axes.scatter(X[:, 0], X[:, 1], c=y, cmap=_COLOURS, norm=norm, **options)
        return
    if len(classes) == 2:
        for label, (colour, marker) in zip(classes, _TWO, strict=True):
            axes.scatter(*X[y == label].T, facecolor=colour, marker=marker, **options)
        return
    in_class = y == classes[one.label]
    axes.scatter(*X[~in_class].T, **options | {"s": 6, "linewidths": 0, "facecolor": "0.55"})
    axes.scatter(*X[in_class].T, facecolor=_TWO[1][0], marker=_TWO[1][1], **options)


def _legend(classes: np.ndarray | None, num_panels: int, top: float) -> dict[str, Line2D]:
    # Colours, markers and sizes by name.
    if classes is None:
        shown = {"data, filled by y": ("0.8", "o", 6)}
    elif len(classes) == 2:
        shown = {f"y = {label:g}": (*look, 6) for label, look in zip(classes, _TWO, strict=True)}
    else:
        name = "data of the panel's class" if num_panels > 1 else "data of the class"
        shown = {"data of other classes": ("0.55", "o", 3), name: (*_TWO[1], 6)}
    handles = {
        name: Line2D([], [], linestyle="", color="black", marker=marker, markersize=size, markerfacecolor=colour)
        for name, (colour, marker, size) in shown.items()
    }
    if classes is not None and top > 0.5:
        handles["probability 1/2"] = Line2D([], [], color="black", linewidth=1.4)
    return handles
