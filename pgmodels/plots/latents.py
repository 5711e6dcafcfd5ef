"""Plots of latent functions of one input with uncertainty bands."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import ArrayLike
from scipy.special import ndtri

from pgmodels.diagnostics.compare import Comparison
from pgmodels.likelihoods.supports import SuccessesOfTrials
from pgmodels.plots.inputs import around, fixed_covariates, inducing_inputs, labelled, smooth_draws, thin
from pgmodels.plots.style import RASTERISED, Style, legend_below, line_handle, literal, new_figure, open_axes, styles
from pgmodels.priors.inducing.representation import Inducing
from pgmodels.results.correction import CorrectionWarning, is_invalid
from pgmodels.results.draws import Draws
from pgmodels.results.predictive import Predictive
from pgmodels.results.result import Result
from pgmodels.runtime.warnings import suppress_warnings

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
    """Positions of the ticks for the inducing inputs of all results, (2, k); none for exact priors."""
    sparse = [result for result in results.values() if any(isinstance(gp.form, Inducing) for gp in result.model.gps)]
    inputs = [inducing_inputs(result)[0] for result in sparse]
    x = np.unique(np.concatenate([np.zeros((0, 1)), *inputs]))
    return np.stack([x, np.full(len(x), 0.02)])


def _inputs(first: Result, results: Sequence[Result], X_new: Any) -> np.ndarray:
    """The sorted inputs of the curves."""
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
    """Plot the data, successes as a share of trials, and predictive means."""
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
