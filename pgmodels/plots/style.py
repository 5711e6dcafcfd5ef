"""Style of figures, and inputs on their axes."""

import io
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from pgmodels.data.arrays import as_numbers
from pgmodels.diagnostics.compare import Comparison
from pgmodels.kernels.kernel import intersection
from pgmodels.likelihoods.supports import SuccessesOfTrials
from pgmodels.results.draws import Draws
from pgmodels.results.nested import require_result
from pgmodels.results.predictive import DrawNodes, Predictive
from pgmodels.results.result import BaseResult, Result

# Okabe and Ito's colours, which colour-blind readers can distinguish. Dark and light colours alternate for greyscale
# prints. The reference is black.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
MARKERS = "osD^vPX"
LINES: tuple[Any, ...] = ("--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 2)), (0, (4, 3)))
# More points than this are rasterised, so that vector files stay small.
RASTERISED = 2000
# The results in a figure: one result, several by label, or the results of a comparison.
Results: TypeAlias = Result | Mapping[str, Result] | Comparison


class Style(NamedTuple):
    """The style of one result in all figures: a colour, and a marker and line for greyscale."""

    colour: str
    marker: str
    line: Any

    @property
    def of_line(self) -> dict[str, Any]:
        """The options of a line."""
        return {"color": self.colour, "linestyle": self.line}

    @property
    def of_points(self) -> dict[str, Any]:
        """The options of points without a line."""
        return {"color": self.colour, "marker": self.marker, "linestyle": ""}

    @property
    def of_dots(self) -> dict[str, Any]:
        """The options of a scatter plot."""
        return {"color": self.colour, "marker": self.marker, "linewidths": 0}


REFERENCE = Style("#000000", ".", "-")


def styles(labels: Iterable[str], reference: str | None = None) -> dict[str, Style]:
    """Return a style for each label; the reference is black and solid."""
    by_label: dict[str, Style] = {}
    for label in labels:
        turn, index = divmod(len(by_label.keys() - {reference}), len(COLOURS))
        marker, line = MARKERS[(index + turn) % len(MARKERS)], LINES[(index + turn) % len(LINES)]
        by_label[label] = REFERENCE if label == reference else Style(COLOURS[index], marker, line)
    return by_label


def literal(label: object, width: int = 32) -> str:
    """Return a user-defined label, wrapped, with dollar signs escaped so that matplotlib shows it literally."""
    return textwrap.fill(str(label), width, break_long_words=True).replace("$", r"\$")


def image(figure: Figure, **options: Any) -> bytes:
    """Return the file of a figure; ``options`` are passed to ``savefig``."""
    file = io.BytesIO()
    figure.savefig(file, **options)
    return file.getvalue()


class ShownFigure(Figure):
    """A figure that notebooks display. Otherwise they display only figures of pyplot."""

    def _repr_png_(self) -> bytes:
        return image(self, format="png")


def new_figure(width: float, height: float) -> Figure:
    """Return a new figure, with width and height in inches and constrained layout."""
    return ShownFigure(figsize=(width, height), layout="constrained")


def new_panels(
    count: int,
    columns: int,
    width: float,
    height: float,
    below: float = 0.0,
    *,
    sharex: bool = False,
    sharey: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Return a figure of ``count`` panels in rows of ``columns``, and the panels; ``height`` of a row is in inches."""
    rows = -(-count // columns)
    figure = new_figure(width, height * rows + below)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey).ravel()
    for axes in grid[count:]:
        axes.remove()
    return figure, list(grid[:count])


def open_axes(axes: Axes, **labels: Any) -> None:
    """Set title and labels, and hide the top and right spines."""
    axes.set(**labels)
    axes.spines[["top", "right"]].set_visible(False)


def legend_below(figure: Figure, handles: Sequence[Artist], labels: Sequence[str], notes: Sequence[str] = ()) -> None:
    """Add one legend for all panels, below them, with notes above it."""
    width = figure.get_figwidth()
    # A character is about 0.08 inches at the default size. A handle and its gaps need 0.7 inches.
    needed = [0.7 + 0.08 * max(map(len, label.split("\n"))) for label in labels]
    columns = len(labels) if sum(needed) <= width else max(1, int(width / max(needed)))
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    if notes:
        lines = [line for note in notes for line in textwrap.wrap(note, int(width / 0.07))]
        legend.set_title("\n".join(lines).replace("$", r"\$"), prop=FontProperties(size="small"))


def settle(figure: Figure) -> Figure:
    """Return the figure after one run of its layout engine: with axes of fixed aspect, only a second run is right."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    return figure


def line_handle(style: Style, marker: bool = False) -> Line2D:
    """Return the legend handle of a line."""
    return Line2D([], [], color=style.colour, linestyle=style.line, marker=style.marker if marker else "")


# Checks and conversions of the arguments of plotting functions.


def labelled(results: Results) -> tuple[dict[str, Result], str | None]:
    """Return results by label, and the label of a comparison's reference. Raise ValueError unless all are results."""
    if isinstance(results, Comparison):
        return dict(results.results), results.reference
    if isinstance(results, BaseResult):
        require_result(results, "results must have data to plot")
        return {results.method: results}, None
    if not isinstance(results, Mapping):
        raise ValueError(
            f"results must be a result, a dict of results by label or a Comparison; got {type(results).__name__}. Use "
            "{'cavi': approximation}, for example."
        )
    if not results:
        raise ValueError("results is empty: pass at least one result of cavi, correct, fit or gibbs.")
    for label, result in results.items():
        require_result(result, f"results[{label!r}] must be a result of an engine such as cavi, correct, fit or gibbs")
    return {str(label): result for label, result in results.items()}, None


def thin(draws: Draws, count: int, notes: list[str], label: str = "") -> Draws:
    """Return about ``count`` of the draws, evenly spaced in each chain, with a note; all if there are fewer."""
    step = max(1, -(-draws.num_chains * draws.num_samples // count))
    if step == 1:
        return draws
    thinned = replace(
        draws,
        whitened=None if draws.whitened is None else tuple(v[:, ::step] for v in draws.whitened),
        log_likelihood_trace=draws.log_likelihood_trace[:, ::step],
        hyperparameters={name: v[:, ::step] for name, v in draws.hyperparameters.items()},
        statistics={name: v[:, ::step] for name, v in draws.statistics.items()},
        stored_latents=None if draws.stored_latents is None else draws.stored_latents[:, ::step],
    )
    total, kept = draws.log_likelihood_trace.size, thinned.log_likelihood_trace.size
    notes.append(f"{label}{kept} of {total} draws.")
    return thinned


def fixed_covariates(result: Result, covariates: ArrayLike | None, num_rows: int) -> np.ndarray | None:
    """Return the columns of y after the first, fixed at ``covariates`` for a grid of inputs; None if unknown.

    The default is one trial if y is successes of trials, so that the mean is a probability. Raises ValueError for
    another number of covariates.
    """
    support = result.model.support
    if covariates is None:
        return np.ones((num_rows, 1)) if isinstance(support, SuccessesOfTrials) else None
    values = np.atleast_1d(as_numbers(covariates, "covariates"))
    if values.shape != (support.num_covariates,):
        raise ValueError(
            f"covariates of a figure must have shape ({support.num_covariates},), one value for each column of y after "
            f"the first; got shape {values.shape}."
        )
    return np.tile(values, (num_rows, 1))


def around(X: np.ndarray, results: Sequence[Result], margin: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of each column's range in X, (d,), widened by a share of it if all results are defined there."""
    low, high = X.min(axis=0), X.max(axis=0)
    beyond = np.where(high > low, margin * (high - low), 1.0)
    parts = [part for result in results for gp in result.model.gps for part in (gp.kernel, gp.form)]
    lowest, highest = intersection([part.limits(X.shape[1]) for part in parts]).T
    return np.maximum(low - beyond, lowest), np.minimum(high + beyond, highest)


def smooth_draws(draws: Draws, X: np.ndarray, covariates: ArrayLike | None = None) -> tuple[np.ndarray, Predictive]:
    """Return latents at X, (draws, m, latents), and the predictive distribution given them, both smooth in X."""
    f = draws.draw_marginals(X, common_noise=True)
    return f, Predictive(draws.likelihood, DrawNodes(f, draws.flat_likelihood_values), covariates)


def inducing_inputs(result: Result) -> tuple[np.ndarray, str]:
    """Return distinct inducing inputs, or pivots, of the priors, (k, d), and their name in legends; none if dense."""
    priors: list[Any] = [group for group in result.prior.spans().groups if group.has_points]
    Z = [np.asarray(prior.Z)[np.asarray(prior.active) > 0] for prior in priors]
    exact = all(prior.residual_variance() is None for prior in priors)
    distinct = np.unique(np.concatenate([np.zeros((0, result.X.shape[1])), *Z]), axis=0)
    return distinct, "inducing inputs (pivots of the factor)" if exact else "inducing inputs"
