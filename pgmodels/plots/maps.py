"""Maps of predictions over two inputs."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from pgmodels.likelihoods.supports import SuccessesOfTrials
from pgmodels.numerics.quadrature import sobol_normals
from pgmodels.plots.inputs import around, fixed_covariates, inducing_inputs, smooth_draws, thin
from pgmodels.plots.style import RASTERISED, legend_below, literal, new_figure
from pgmodels.results.correction import is_invalid
from pgmodels.results.draws import Draws
from pgmodels.results.nodes import DrawNodes
from pgmodels.results.predictive import Predictive
from pgmodels.results.result import Result
from pgmodels.results.sparse import name_type
from pgmodels.runtime.formatting import shorten

_MAX_DRAWS = 1000
# The share of the data's range by which the grid goes on beyond it.
_MARGIN = 0.08
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
        used = thin(result, _MAX_DRAWS)
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
    """The predictive distribution; few quadrature nodes for several latents, since two digits suffice for a figure."""
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
    first, second = np.meshgrid(*np.linspace(*around(result.X, [result], _MARGIN), side).T)
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
    """The observed y, successes as a share of trials."""
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
    """Handles by label."""
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
