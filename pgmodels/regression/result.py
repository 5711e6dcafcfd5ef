"""Results of a formula by term, and their figures."""

import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import combinations, product
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from scipy.special import ndtri

from pgmodels.data.arrays import DATE, DURATION, NUMBER, ZONED, kind_of_column
from pgmodels.inference.correct import marginals
from pgmodels.inference.objectives import is_joint, objective_of_result
from pgmodels.likelihoods.supports import Classes, Given
from pgmodels.plots.style import Style, literal, new_panels, open_axes, styles
from pgmodels.regression.terms import FormulaTerm, Levels
from pgmodels.report.summaries import result_status
from pgmodels.results import result as intervals
from pgmodels.results.approximation import GaussianResult, LinearResponse
from pgmodels.results.draws import Draws, PriorPredictive
from pgmodels.results.integrated import IntegratedApproximation
from pgmodels.results.predictive import DrawNodes, Predictive
from pgmodels.results.result import GridDensity
from pgmodels.runtime.messages import shorten
from pgmodels.runtime.precision import DoublePrecision
from pgmodels.runtime.seeds import Seed

if TYPE_CHECKING:
    from xarray import DataTree

    from pgmodels.regression.formula import Regression


Conditional = str | Sequence[str] | Mapping[str, Any]
EngineResult = GaussianResult | Draws | IntegratedApproximation


def conditional_grid(
    frame: pd.DataFrame, conditional: Conditional, used: Collection[str] | None = None,
    compared: Collection[str] = (), counts: np.ndarray | None = None,
) -> tuple[pd.DataFrame, list[str]]:  # fmt: skip
    """Return a grid over the columns ``conditional``, with all other ``used`` columns (by default all), and its names.

    Numbers in columns ``compared`` are levels. Means and most frequent levels are weighted by the rows' weights. A dict
    has the values of columns, or None for the default. The default is all levels, 50 points of the first column of
    numbers, and quartiles of further columns of numbers.
    """
    wanted = {conditional: None} if isinstance(conditional, str) else conditional
    wanted = dict(wanted) if isinstance(wanted, Mapping) else dict.fromkeys(wanted)
    unknown = [name for name in wanted if name not in frame.columns]
    if not wanted or unknown:
        wrong = unknown[0] if unknown else wanted
        raise ValueError(f"conditional must name columns of the data, {list(frame.columns)}; got {wrong!r}.")
    numbers = [name for name in wanted if name not in compared and _is_continuous(frame[name])]
    values = []
    for name, chosen in wanted.items():
        if chosen is None:
            chosen = _values(frame[name], name in numbers, is_first=name in numbers[:1])
        values.append([chosen] if np.ndim(chosen) == 0 else list(chosen))
    grid = pd.DataFrame(list(product(*values)), columns=list(wanted))
    names = [name for name in frame.columns if name in wanted or used is None or name in used]
    others = {
        name: [_typical(frame[name], name in compared, counts)] * len(grid) for name in names if name not in wanted
    }
    grid = pd.concat([grid, pd.DataFrame(others, index=grid.index)], axis=1)
    return grid[names], list(wanted)


def _is_continuous(column: pd.Series) -> bool:
    kinds = pd.api.types
    is_number = kinds.is_numeric_dtype(column) and not kinds.is_bool_dtype(column)
    return is_number or kind_of_column(column) in (DATE, ZONED, DURATION)


def _values(column: pd.Series, is_continuous: bool, is_first: bool) -> list[Any]:
    if not is_continuous:
        # Levels that do not occur have no coefficient.
        has_categories = hasattr(column, "cat")
        return list(column.cat.remove_unused_categories().cat.categories) if has_categories else sorted(set(column))
    distinct, num_points, quartiles = sorted(column.unique()), 50, (0.0, 0.25, 0.5, 0.75, 1.0)
    if is_first and len(distinct) > num_points:
        return list(column.min() + (column.max() - column.min()) * np.linspace(0.0, 1.0, num_points))
    return distinct if is_first or len(distinct) <= len(quartiles) else list(column.quantile(quartiles))


def _typical(column: pd.Series, is_compared: bool, counts: np.ndarray | None) -> Any:
    counts = np.ones(len(column)) if counts is None else counts
    if is_compared or not _is_continuous(column):
        return pd.Series(counts).groupby(column.to_numpy(dtype=object)).sum().idxmax()
    if kind_of_column(column) == NUMBER:
        return float(np.average(column[column.notna()], weights=counts[column.notna()]))
    first = column.min()
    return first + pd.Timedelta(days=1) * float(np.average((column - first) / pd.Timedelta(days=1), weights=counts))


# Figures of regression results: effects of terms, and predictions over a grid.


def figure_of_effects(result: "RegressionResult") -> Figure:
    """Draw the figure of ``RegressionResult.plot_effects``."""
    regression, rows = result.regression, _rows(result.regression, None)
    # A panel of each term or of each effect of groups: its title, what draws it, and the axis of effects.
    drawn: list[tuple[str, Callable[[Axes], None], str]] = []
    most, groups = 0, result.ranef() if any(term.is_group for term in regression.terms) else pd.DataFrame()
    for term in regression.terms:
        first = term.columns[0]
        if term.is_linear:
            continue
        if term.is_group and isinstance(first, Levels):
            table, by = groups[groups["term"] == term.name], "level" if len(regression.classes) > 1 else None
            names = [":".join(map(str, key)) for key in first.codes]
            table = table.assign(x=table["group"].astype(str).map({name: x for x, name in enumerate(names)}))
            most = max(most, len(names))
            for effect in dict.fromkeys(table["effect"]):
                title = term.name if len(set(table["effect"])) == 1 else f"{term.name}, {effect}"
                some = table[table["effect"] == effect]
                drawn.append((title, partial(_points, table=some, names=names, by=by, is_upright=False), "x"))
        else:
            table = result.effects(term.name)
            is_surface = sum(len(part.names) for part in term.columns if not isinstance(part, Levels)) > 1
            drawn.append((term.name, partial(_effect, term=term, table=table, rows=rows), "" if is_surface else "y"))
    if not drawn:
        raise ValueError("plot_effects needs terms such as s(x) and (1|g); the formula has none. Use summary().")
    inches_of_level = 0.2
    figure, panels = _panels(len(drawn), max(2.9, 0.8 + inches_of_level * most))
    for axes, (title, draw, axis) in zip(panels, drawn, strict=True):
        draw(axes)
        open_axes(axes, title=literal(title), **({"xlabel": "effect"} if axis == "x" else {}))
    pairs = [(axes, axis) for axes, (_, _, axis) in zip(panels, drawn, strict=True) if axis]
    limits = np.array([getattr(axes, f"get_{axis}lim")() for axes, axis in pairs]).reshape(-1, 2)
    for axes, axis in pairs:
        getattr(axes, f"set_{axis}lim")(limits[:, 0].min(), limits[:, 1].max())
    return figure


def _effect(axes: Axes, term: FormulaTerm, table: pd.DataFrame, rows: "NewRows") -> None:
    """The effect of a term of numbers: lines, of each level with a factor, or colours at two columns."""
    # Levels after numbers.
    columns = sorted(term.columns, key=lambda part: isinstance(part, Levels))
    frame, names = rows.frame, [name for part in columns for name in part.names]
    parts = np.concatenate([part.read(frame) for part in columns], axis=1)
    each = len(table) // len(frame)
    # Dates are shown as such.
    shown = frame[names[0]] if names[0] in frame.columns else pd.Series(parts[:, 0])
    table = table.assign(x=np.repeat(shown.to_numpy(), each), at=np.repeat(parts[:, 0], each))
    # A column of the data may be called "level" too.
    by = "level" if each > 1 else None
    if len(columns) == 2 and isinstance(columns[1], Levels):
        by = names[1]
    elif parts.shape[1] > 1:
        z = np.repeat(frame[names[1]].to_numpy() if names[1] in frame.columns else parts[:, 1], each)
        points = axes.scatter(table["x"], z, c=table["mean"], s=12.0, cmap="viridis")
        axes.figure.colorbar(points, ax=axes, label="effect")
        open_axes(axes, xlabel=literal(names[0]), ylabel=literal(names[1]))
        return
    keys = [*([] if by is None else [by]), "at"]
    _lines(axes, table.drop_duplicates(keys).sort_values(keys), by)
    open_axes(axes, xlabel=literal(names[0]), ylabel="effect")


def figure_over_grid(table: pd.DataFrame, label: str) -> Figure:
    """Draw values over a grid of one to three columns: along the axis, by colour, and by panel."""
    by = [name for name in table.columns if name not in ("mean", "sd", *intervals.names())]
    if len(by) > 3:
        raise ValueError(f"conditional must have at most three columns for a figure, levels included; got {by}.")
    panel = by[2] if len(by) == 3 else None
    values = [None] if panel is None else list(pd.unique(table[panel]))
    figure, panels = _panels(len(values), 3.2)
    for axes, value in zip(panels, values, strict=False):
        rows = table if panel is None else table[table[panel] == value]
        is_number = pd.api.types.is_numeric_dtype(rows[by[0]]) or pd.api.types.is_datetime64_any_dtype(rows[by[0]])
        colours = by[1] if len(by) > 1 else None
        if is_number and rows[by[0]].nunique() > 5:
            _lines(axes, rows.assign(x=rows[by[0]]), colours)
        else:
            levels = list(pd.unique(rows[by[0]]))
            codes = rows[by[0]].map({level: place for place, level in enumerate(levels)}).astype(float)
            _points(axes, rows.assign(x=codes), [_text(level) for level in levels], colours)
        title = "" if panel is None else f"{panel} = {_text(value)}"
        open_axes(axes, title=literal(title), xlabel=literal(by[0]), ylabel=literal(label))
    return figure


def _panels(count: int, height: float) -> tuple[Figure, list[Axes]]:
    columns = min(3, count)
    return new_panels(count, columns, max(3.8 * columns, 4.6), height)


def _lines(axes: Axes, table: pd.DataFrame, by: str | None = None) -> None:
    for name, rows, style in _series(table, by):
        low, high = (rows[end] for end in intervals.names())
        axes.fill_between(rows["x"], low, high, alpha=0.2, linewidth=0.0, color=style.colour)
        axes.plot(rows["x"], rows["mean"], color=style.colour, linestyle=style.line if name else "-", label=name)
    if pd.api.types.is_datetime64_any_dtype(table["x"]):
        locator = AutoDateLocator()
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    _legend(axes, by)


def _points(axes: Axes, table: pd.DataFrame, names: list[str], by: str | None = None, is_upright: bool = True) -> None:
    series = _series(table, by)
    shifts = np.linspace(-0.15, 0.15, len(series)) if len(series) > 1 else [0.0]
    for shift, (name, rows, style) in zip(shifts, series, strict=True):
        low, high = (rows[end] for end in intervals.names())
        at, ends = [rows["x"] + shift, rows["mean"]], [rows["mean"] - low, high - rows["mean"]]
        options: dict[str, Any] = {"yerr" if is_upright else "xerr": ends, "fmt": style.marker, "color": style.colour}
        axes.errorbar(*(at if is_upright else at[::-1]), **options, label=name)
    (axes.set_xticks if is_upright else axes.set_yticks)(range(len(names)), [*map(literal, names)])
    if is_upright:
        axes.set_xlim(-0.5, len(names) - 0.5)
    _legend(axes, by)


def _series(table: pd.DataFrame, by: str | None) -> list[tuple[str, pd.DataFrame, Style]]:
    parts = [("", table)]
    if by is not None:
        parts = [(_text(value), table[table[by] == value]) for value in pd.unique(table[by])]
    chosen = styles(name for name, _ in parts)
    return [(name, rows, chosen[name]) for name, rows in parts]


def _legend(axes: Axes, by: str | None) -> None:
    if by is not None:
        axes.legend(title=literal(by), frameon=False, fontsize="small", title_fontsize="small")


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


_DRAWS = 1000


class NewRows(NamedTuple):
    """New data: the inputs of the model, the data frame, and terms that are left out at their prior means.

    ``by`` are the columns of a grid, None for data that are no grid. ``counts`` are weights of the rows.
    """

    X: np.ndarray
    frame: pd.DataFrame
    exclude: tuple[int, ...]
    by: list[str] | None = None
    counts: np.ndarray | None = None


class Values(NamedTuple):
    """Draws (draws, m, levels), and the names of the levels; None for one number a row."""

    draws: np.ndarray
    levels: list[Any] | None = None

    def averaged(self, groups: Sequence[np.ndarray], counts: np.ndarray | None) -> "Values":
        """Return averages over groups of rows, weighted by ``counts``."""
        chosen = [None if counts is None else counts[rows] for rows in groups]
        means = [np.average(self.draws[:, rows], 1, some) for rows, some in zip(groups, chosen, strict=True)]
        return Values(np.stack(means, axis=1), self.levels)

    def as_table(self, labels: pd.DataFrame, **constants: str) -> pd.DataFrame:
        """Return a table of the values, with columns of constants, labels of the rows, and a row for each level.

        Labels with the name of another column of the table have the prefix "data_".
        """
        draws, count = self.draws, self.draws.shape[2]
        table = intervals.of_draws(draws.reshape(len(draws), -1))
        labels = labels.loc[labels.index.repeat(count)].reset_index(drop=True)
        levels = {} if self.levels is None else {"level": self.levels * draws.shape[1]}
        reserved = {*constants, *levels, *table.columns}
        renamed = {}
        for name in reserved & set(labels.columns):
            other = name
            while other in reserved or other in labels.columns:
                other = f"data_{other}"
            renamed[name] = other
        labels = labels.rename(columns=renamed)
        return pd.concat([pd.DataFrame(constants, index=labels.index), labels.assign(**levels), table], axis=1)


class Skewed(NamedTuple):
    """A coefficient with a skewed marginal.

    It is the value of a ``latent`` at the input ``X`` (1, d), with this mean and deviation by linear response. The
    product of another input with ``factors`` (d,) is its share in the latent there.
    """

    latent: int
    X: np.ndarray
    factors: np.ndarray
    mean: float
    deviation: float
    marginal: GridDensity

    def moved(self, values: np.ndarray) -> np.ndarray:
        """Return the shift from values of the Gaussian to values of the marginal."""
        return self.marginal.transport((values - self.mean) / self.deviation) - values


class LatentSampler:
    """Draws of the latents of a result at new inputs, and of quantities that depend on them.

    Tables are computed in parts of ``max_numbers`` drawn numbers, 64 MB, or of ``max_joint`` latents if these are drawn
    jointly. ``class_names`` are the names of the response's classes, None without classes.
    """

    max_numbers = 2**23
    max_joint = 1000

    def __init__(self, regression: "Regression", result: EngineResult):
        self.regression, self.result = regression, result
        support = result.likelihood.support(regression.model.num_latents)
        has_classes = isinstance(support.observed if isinstance(support, Given) else support, Classes)
        codes = support.values() if has_classes else None
        self.class_names = None if codes is None else list(regression.response.levels or range(len(codes)))

    @cached_property
    def skewed(self) -> list[Skewed]:
        """The coefficients of a corrected result whose marginals are skewed."""
        result = self.result
        skewed: list[Skewed] = []
        # Where q has independent latents, linear response widens them whatever their skew.
        if not isinstance(result, LinearResponse) or not is_joint(objective_of_result(result)):
            return skewed
        # Of the variances by linear response and of the variational Gaussian: 2.8 where a column separates the labels,
        # 1.01 for the others in the same model.
        largest_ratio = 1.25
        for line in _coefficients(self.regression):
            X, block = line.X, self.regression.blocks[line.number]
            factors = np.zeros(X.shape)
            factors[:, block] = np.linalg.solve(X[:, block].T, np.eye(len(X)))
            (mean, variance), (_, before) = result.predict_latent(X), result.uncorrected.predict_latent(X)
            _, conditional = result.conditional.predict_latent(X)
            for latent in self.regression.latents[line.number]:
                for row in np.flatnonzero(conditional[:, latent] > largest_ratio * before[:, latent]):
                    functional = np.eye(mean.shape[1])[[latent]]
                    at = X[[row]]
                    marginal = marginals(result, functional if mean.shape[1] > 1 else [1.0], X_new=at, progress=False)
                    moments = float(mean[row, latent]), float(np.sqrt(variance[row, latent]))
                    skewed.append(Skewed(latent, at, factors[row], *moments, marginal))
        return skewed

    def parts(self, rows: NewRows) -> list[NewRows]:
        """Return the rows in parts that fit into memory."""
        size = self.regression.model.num_latents
        width = max(size, len(self.class_names or [""]))
        length = max(1, self.max_joint // size if self.skewed else self.max_numbers // (_DRAWS * width))
        return [
            rows._replace(X=rows.X[at : at + length], frame=rows.frame[at : at + length].reset_index(drop=True))
            for at in range(0, max(len(rows.X), 1), length)
        ]

    def latents(
        self, X: np.ndarray, num_draws: int = _DRAWS, seed: Seed = 0, jointly: bool = True, has_moments: bool = True
    ) -> DrawNodes:
        """Return draws (draws, m, latents) with their likelihood parameters, joint or independent over the rows.

        Equal rows share their draws. With ``has_moments`` the draws of each latent have its exact mean and, if
        independent, its exact variance.
        """
        rows, places = np.unique(X, axis=0, return_inverse=True)
        inputs = np.concatenate([rows, *(coefficient.X for coefficient in self.skewed)])
        # Skewed coefficients are moved jointly with the rows.
        draw = self.result.joint_nodes if jointly or self.skewed else self.result.marginal_nodes
        nodes = draw(inputs, num_draws, seed)
        drawn = nodes.draws
        if has_moments:
            mean, variance = self.result.predict_latent(inputs)
            drawn = drawn - drawn.mean(axis=0)
            # Scaled apart, rows that are drawn jointly would have noisier differences.
            if not jointly:
                spread = drawn.std(axis=0)
                drawn *= np.sqrt(variance) / np.where(spread > 0.0, spread, 1.0)
            drawn += mean
        draws = drawn[:, places.ravel()]
        for number, coefficient in enumerate(self.skewed):
            latent, values = coefficient.latent, drawn[:, len(rows) + number, coefficient.latent]
            draws[:, :, latent] += coefficient.moved(values)[:, None] * (X @ coefficient.factors)
        return DrawNodes(draws, nodes.values)

    def responses(self, rows: NewRows, num_draws: int, seed: Seed, nodes: DrawNodes | None = None) -> np.ndarray:
        """Return draws of y (draws, m)."""
        drawn = self.latents(rows.X, num_draws, seed, has_moments=False) if nodes is None else nodes
        nodes = self._excluded(drawn, rows)
        return self._predictive(rows, nodes).draw(num_draws, seed)

    def values(self, rows: NewRows, target: str, nodes: DrawNodes | None = None) -> Values:
        """Return draws of a target: see ``RegressionResult``."""
        regression = self.regression
        named = {term.latent: term.predictor for term in regression.terms if term.latent}
        named |= {f"f[{number}]": number for number in range(len(regression.sums))}
        if target == "response":
            return Values(self.responses(rows, _DRAWS, 0, nodes)[:, :, None])
        if target not in ("mean", "linear", *named):
            names = ", ".join(map(repr, ("mean", "linear", "response", *named)))
            raise ValueError(f"target must be one of {names}; got {target!r}.")
        nodes = self._excluded(self.latents(rows.X) if nodes is None else nodes, rows)
        if target == "mean":
            predictive = self._predictive(rows, nodes)
            if self.class_names is not None:
                return Values(predictive.probabilities_given(nodes.draws), self.class_names)
            return Values(np.asarray(predictive.moments_given(slice(None), nodes.draws)[0])[:, :, None])
        number = named.get(target, 0)
        return Values(regression.linear_predictor(rows.frame, nodes.draws, number)[:, :, None])

    def moments(self, rows: NewRows) -> tuple[np.ndarray, np.ndarray]:
        """Return draws (draws, m) of the mean of y and of its variance given the latents."""
        nodes = self.latents(rows.X)
        mean, variance = self._predictive(rows, nodes).moments_given(slice(None), nodes.draws)
        return np.asarray(mean), np.asarray(variance)

    def _predictive(self, rows: NewRows, nodes: DrawNodes) -> Predictive:
        return Predictive(self.result.likelihood, nodes, self.regression.covariates(rows.frame))

    def _excluded(self, nodes: DrawNodes, rows: NewRows) -> DrawNodes:
        for number in rows.exclude:
            nodes.draws[:, :, list(self.regression.latents[number])] = self.regression.terms[number].mean
        return nodes


class RegressionResult(DoublePrecision):
    """The result of an engine for a regression formula.

    ``result`` is the engine's result, for ``pgmodels.compare``, ``diagnose``, ArviZ and files; ``regression`` is the
    formula's model. Intervals are equal-tailed, with ArviZ's default probability ``stats.ci_prob``. All tables are data
    frames of pandas, with a row for each level if y has more than two. A column of the data with the name of a column
    of the table, such as "mean" or "sd", is renamed to "data_mean" or "data_sd".

    Several methods have the same arguments for new data. ``newdata`` is a data frame, by default the data.
    ``conditional`` names columns that vary over a grid: a name, names, or a dict with values, such as
    ``{"age": [20, 40], "sex": None}``. All other columns stay at their means or most frequent levels; groups that a
    grid does not name are left out. ``target`` is "mean", the mean of y given the latents (of one trial; the
    probability of a class), or "linear", the first predictor. Other names are "f[1]" or "sigma", a log.

    Predictions of rows need memory for only a part of the rows at a time. Averages over rows, comparisons, slopes and
    effects need joint draws over distinct rows: their memory grows with the square of the number of rows. They raise
    MemoryError if it does not fit. Then pass a sample of the rows, as in ``newdata=data.sample(1000)``.
    """

    def __init__(self, regression: "Regression", result: EngineResult):
        self.regression, self.result = regression, result
        self._sampler = LatentSampler(regression, result)

    def summary(self) -> pd.DataFrame:
        """Return mean, sd and the bounds of an interval of each linear coefficient and hyperparameter.

        Roots replace variances: ``sd(Intercept | g)`` of a group, ``sd(x | g)`` of its slopes, ``sd(s(x))`` of a
        smooth. ``cor(Intercept, x | g)`` is a correlation, and ``sigma`` the scale of the noise.
        The delta method computes the intervals of hyperparameters that ``fit`` learned. Without it they have no
        interval.
        """
        regression = self.regression
        rows: dict[str, pd.Series] = {}
        for line in _coefficients(regression):
            term = regression.terms[line.number]
            for latent, level in zip(regression.latents[line.number], regression.classes, strict=True):
                table = _table_of_line(self._sampler, line, latent)
                suffix = f"[{level}]" if len(regression.classes) > 1 else ""
                rows |= {
                    f"{term.prefix}{name}{suffix}": table.loc[place] for place, name in enumerate(term.columns[0].names)
                }
        return pd.concat([pd.DataFrame(rows).T, *_hyperparameters(regression, self.result)])

    def effects(self, term: str, newdata: Any = None) -> pd.DataFrame:
        """Return the contribution of one term to the predictor, minus its mean over the rows.

        Parameters
        ----------
        term : str
            The text of the term, as in the formula. A smooth includes its line. "linear" means all linear terms
            together. Terms of a further predictor have its name, as in ``"f[1]: s(t)"``.
        newdata : data frame, optional
            New data; by default the data.
        """
        regression = self.regression
        number = _number(regression, term)
        rows = _rows(regression, newdata)
        X, parts = rows.X.copy(), {number, *_lines_of(regression, number)}
        for line in parts - {number}:
            X[:, np.delete(np.array(regression.blocks[line]), regression.terms[number].lines)] = 0.0
        draws = self._sampler.latents(X).draws
        f = np.sum([draws[:, :, list(regression.latents[part])] for part in parts], axis=0)
        for part in parts:
            coefficients = regression.terms[part].coefficients
            if coefficients is not None:
                f += (X[:, regression.blocks[part]] @ coefficients.means)[:, None]
        columns = [name for part in regression.terms[number].columns for name in part.names]
        labels = rows.frame[[name for name in columns if name in rows.frame.columns]]
        levels = regression.classes
        middle = np.average(f, axis=1, weights=rows.counts)[:, None]
        return Values(f - middle, levels if len(levels) > 1 else None).as_table(labels)

    def ranef(self) -> pd.DataFrame:
        """Return the effects of the levels of groups, ``(1|g)`` or ``(1 + x|g)``, about their prior mean 0.

        The table has a row for each term, level and effect, which is "Intercept" or the text of a slope.

        Raises
        ------
        ValueError
            If the formula has no term of groups.
        """
        return _effects_of_groups(self._sampler, [])

    def coef(self) -> pd.DataFrame:
        """Return the coefficients of each level of groups: effects, as in ``ranef``, plus the coefficient of that name.

        Raises
        ------
        ValueError
            If the formula has no term of groups.
        """
        return _effects_of_groups(self._sampler, _coefficients(self.regression))

    def VarCorr(self) -> pd.DataFrame:
        """Return the rows of ``summary`` for standard deviations and correlations of groups, and for the noise."""
        groups = [term for term in self.regression.terms if term.is_group]
        several = [(term.prefix, names) for term in groups for names in term.names.values()]
        names = ["sigma", *(prefix + name for prefix, each in several for name in np.atleast_1d(each))]
        rows = pd.concat([intervals.of_value([]), *_hyperparameters(self.regression, self.result)])
        return rows[rows.index.isin(names)]

    def predictions(
        self,
        newdata: Any = None,
        *,
        conditional: Conditional | None = None,
        target: str = "mean",
        exclude: Sequence[str] = (),
        average_by: str | Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Return the mean of y, a predictor, or y itself at new data, with intervals.

        Parameters
        ----------
        newdata, conditional
            New data, or a grid: see the class.
        target : str
            See the class; "response" for draws of y, of one trial.
        exclude : sequence of str
            Terms that are left out, at their prior means, such as ``"(1|herd)"``.
        average_by : str or sequence of str, optional
            Columns; predictions are averaged over the rows of each combination of their values.
        """
        rows = _rows(self.regression, newdata, conditional, exclude)
        if average_by is not None:
            labels, groups = _groups(rows.frame, average_by)
            return self._sampler.values(rows, target).averaged(groups, rows.counts).as_table(labels)
        tables = []
        for part in self._sampler.parts(rows):
            values = self._sampler.values(part, target, self._sampler.latents(part.X, jointly=False))
            tables.append(values.as_table(part.frame if part.by is None else part.frame[part.by]))
        return pd.concat(tables, ignore_index=True)

    def comparisons(
        self,
        contrast: Mapping[str, Sequence[Any] | None],
        newdata: Any = None,
        *,
        conditional: Conditional | None = None,
        comparison: Literal["diff", "ratio", "lift"] = "diff",
        target: str = "mean",
        average_by: str | Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Compare predictions at two values of a column, with all other columns unchanged, averaged over the rows.

        Parameters
        ----------
        contrast : dict
            A column and its values, as in ``{"treat": ["no", "yes"]}``: the second is compared with the first. Of
            several values, or of all in the data with ``{"treat": None}``, each pair is compared. Intervals are not
            adjusted for the number of pairs.
        newdata, conditional
            New data, or a grid with a comparison in each row: see the class.
        comparison : {"diff", "ratio", "lift"}
            The difference of the averages, their ratio, or their difference over the first.
        target : str
            See the class.
        average_by : str or sequence of str, optional
            Columns; averages are over the rows of each combination of their values, not over all rows.
        """
        operations: dict[str, tuple[str, Any]] = {
            "diff": ("-", lambda low, high: high - low),
            "ratio": ("/", lambda low, high: high / low),
            "lift": ("over", lambda low, high: (high - low) / low),
        }
        if comparison not in operations:
            raise ValueError(f"comparison must be 'diff', 'ratio' or 'lift'; got {comparison!r}.")
        if len(contrast) != 1:
            raise ValueError(f"contrast must be a dict of one column and its values; got {shorten(contrast)}.")
        (name, chosen), (sign, operation) = next(iter(contrast.items())), operations[comparison]
        rows = _rows(self.regression, newdata, conditional, changed=name)
        if name not in rows.frame.columns:
            raise ValueError(f"contrast must name a column of the data, {list(rows.frame.columns)}; got {name!r}.")
        if chosen is None:
            column = self.regression.data[name]
            chosen = _values(column, name not in self.regression.compared and _is_continuous(column), False)
        if len(points := list(chosen)) < 2:
            raise ValueError(f"contrast must be a dict of one column and two values or more; got {shorten(contrast)}.")
        every = pd.concat([rows.frame.assign(**{name: value}) for value in points], ignore_index=True)
        values = self._sampler.values(rows._replace(X=self.regression.read(every)[0], frame=every), target)
        labels, groups = _averages(rows, average_by)
        sides = [
            Values(side, values.levels).averaged(groups, rows.counts).draws
            for side in np.split(values.draws, len(points), axis=1)
        ]
        tables = [
            Values(operation(low, high), values.levels).as_table(labels, contrast=f"{name}: {after} {sign} {before}")
            for (before, low), (after, high) in combinations(zip(points, sides, strict=True), 2)
        ]
        return pd.concat(tables, ignore_index=True) if len(tables) > 1 else tables[0]

    def r2(self) -> pd.DataFrame:
        """Return the share of y's variance, of one trial and weight 1, that its mean explains (Gelman et al. 2019)."""
        if self._sampler.class_names is not None:
            raise ValueError("r2 needs y with a mean; the response has levels. Use predictions() instead.")
        rows = _rows(self.regression, None)
        mean, noise = self._sampler.moments(rows)
        middle = np.average(mean, axis=1, weights=rows.counts)[:, None]
        explained, left = (np.average(part, axis=1, weights=rows.counts) for part in (np.square(mean - middle), noise))
        return Values((explained / (explained + left))[:, None, None]).as_table(pd.DataFrame(index=[0]))

    def slopes(
        self,
        name: str,
        newdata: Any = None,
        *,
        conditional: Conditional | None = None,
        target: str = "mean",
        average_by: str | Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Return the derivative of predictions in a column of numbers, averaged over the rows.

        It is exact for linear terms, and otherwise the difference over 0.001 column deviations in both directions.

        Parameters
        ----------
        name : str
            A column of numbers.
        newdata, conditional, target, average_by
            As in ``comparisons``.
        """
        frame = self.regression.data
        if name not in frame.columns or not pd.api.types.is_numeric_dtype(frame[name]):
            raise ValueError(f"slopes needs a column of numbers among {list(frame.columns)}; got {name!r}.")
        if target == "response":
            raise ValueError("slopes: target must be 'mean', 'linear' or a predictor; got 'response', draws of y.")
        rows = _rows(self.regression, newdata, conditional)
        labels, groups = _averages(rows, average_by)
        return _slopes(self._sampler, rows, name, target).averaged(groups, rows.counts).as_table(labels, slope=name)

    def draws(self, newdata: Any = None, num_draws: int = _DRAWS, seed: Seed = 0) -> np.ndarray:
        """Return draws of y at new data, (num_draws, m), for one trial, with latents drawn jointly over the rows."""
        return self._sampler.responses(_rows(self.regression, newdata), num_draws, seed)

    def to_arviz(self, num_draws: int = _DRAWS, seed: Seed = 0, *, prior: PriorPredictive | None = None) -> "DataTree":
        """Convert the result for ArviZ, with the data's index and terms as labels: see ``pgmodels.to_arviz``.

        Latents have the names of the terms, with the level if y has several. Hyperparameters have their names in the
        model and also the names of ``summary``, with standard deviations for variances.
        """
        regression, result = self.regression, self.result
        levels = regression.classes
        suffixes = [f"[{level}]" for level in levels] if len(levels) > 1 else [""]
        names = [f"{term.name}{suffix}" for term in regression.terms for suffix in suffixes]
        # Rows without y, or of weight 0, are not in the result.
        is_used = ~np.isnan(regression.y.reshape(len(regression.X), -1)).any(axis=1)
        if regression.weights is not None and len(regression.weights) == len(is_used):
            is_used &= np.asarray(regression.weights) > 0.0
        coords = {"datum": regression.index[is_used], "latent": names}
        tree = result.to_arviz(num_draws, seed, coords=coords, prior=prior)
        for group in {"posterior", "prior"} & set(tree.children):
            drawn = tree[group].to_dataset()
            for path, printed in regression.names.items():
                if path not in drawn or printed.name == path:
                    continue
                values, dims = printed.function(drawn[path].to_numpy()), drawn[path].dims
                parts: Any = [values]
                named = [printed.name] if isinstance(printed.name, str) else printed.name
                if not isinstance(printed.name, str):
                    parts = np.moveaxis(values.reshape(*values.shape[:2], -1), 2, 0)
                for name, part in zip(named, parts, strict=True):
                    if name:
                        # Files of netCDF have no slash in names.
                        drawn = drawn.assign({name.replace("/", " over "): (dims[: part.ndim], part)})
            tree[group] = drawn
        return tree

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the result to a file that ``pgm.load_formula`` reads, without pickles or code; return its path.

        The file has the columns of the data that the formula reads.
        """
        from pgmodels.regression.formula import save_formula

        return save_formula(self, path)

    def plot_effects(self) -> Figure:
        """Draw the contribution of each term that is not linear: lines, points of levels, or colours at two columns.

        Returns
        -------
        matplotlib.figure.Figure
            A panel for each term, or for each effect of groups; intervals are ArviZ's.

        Raises
        ------
        ValueError
            If all terms are linear.
        """
        return figure_of_effects(self)

    def plot_predictions(self, conditional: Conditional, *, target: str = "mean") -> Figure:
        """Draw predictions over a grid of up to three columns: along the axis, by colour, and by panel.

        Parameters
        ----------
        conditional, target
            See the class.

        Returns
        -------
        matplotlib.figure.Figure
        """
        table = self.predictions(conditional=conditional, target=target)
        return figure_over_grid(table, _label(self._sampler, target))

    def plot_comparisons(
        self, contrast: Mapping[str, Sequence[Any]], conditional: Conditional, *, target: str = "mean"
    ) -> Figure:
        """Draw the differences of ``comparisons`` over a grid; see ``plot_predictions``."""
        table = self.comparisons(contrast, conditional=conditional, target=target)
        return figure_over_grid(table.iloc[:, 1:], f"{_label(self._sampler, target)}, {table['contrast'].iloc[0]}")

    def plot_slopes(self, name: str, conditional: Conditional, *, target: str = "mean") -> Figure:
        """Draw the derivatives of ``slopes`` over a grid; see ``plot_predictions``."""
        table = self.slopes(name, conditional=conditional, target=target)
        return figure_over_grid(table.iloc[:, 1:], f"slope of {_label(self._sampler, target)} in {name}")

    def __repr__(self) -> str:
        lines = [
            textwrap.fill(f"  {line}", 100, subsequent_indent="  ") for line in result_status(self.result).split("\n")
        ]
        return "\n".join([repr(self.regression), *lines, str(self.summary())])


def _rows(
    regression: "Regression", newdata: Any, conditional: Conditional | None = None, exclude: Sequence[str] = (),
    changed: str = "",
) -> NewRows:  # fmt: skip
    """The rows of new data, or of a grid; its groups are left out but for those that it names or that are changed."""
    left_out, by = {_number(regression, term) for term in exclude}, None
    X, frame = (regression.X, regression.data) if newdata is None else regression.read(newdata)
    counts = regression.weights if newdata is None else None
    if conditional is not None:
        grid, by = conditional_grid(frame, conditional, regression.kinds, regression.compared, counts)
        for number, term in enumerate(regression.terms):
            factor = term.columns[0]
            if term.is_group and isinstance(factor, Levels) and not set(factor.factors) <= {*by, changed}:
                left_out.add(number)
        (X, frame), counts = regression.read(grid), None
    # The lines of smooths that are left out are at their means.
    X = X.copy()
    for number in left_out:
        for line in _lines_of(regression, number):
            X[:, np.array(regression.blocks[line])[list(regression.terms[number].lines)]] = 0.0
    return NewRows(X, frame, tuple(left_out), by, counts)


def _number(regression: "Regression", term: str) -> int:
    texts = [one.name for one in regression.terms]
    plain = [text.replace(" ", "") for text in texts]
    if str(term).replace(" ", "") not in plain:
        raise ValueError(f"term must be one of {', '.join(map(repr, texts))}; got {term!r}.")
    return plain.index(str(term).replace(" ", ""))


def _label(sampler: LatentSampler, target: str) -> str:
    response, has_classes = sampler.regression.response, sampler.class_names is not None
    if target == "mean":
        which = f" = {response.levels[-1]}" if len(response.levels) == 2 and not has_classes else ""
        return f"{'probability' if which or has_classes else 'mean'} of {response.text}{which}"
    return {"linear": "linear predictor", "response": response.text}.get(target, target)


def _slopes(sampler: LatentSampler, rows: NewRows, name: str, target: str) -> Values:
    """Draws of the derivative of a target in a column, by joint draws of latents at values on either side."""
    regression, step = sampler.regression, 1e-3
    move = step * (float(regression.data[name].std()) or 1.0)
    at = rows.frame[name].astype(float)
    low, high = (rows._replace(frame=rows.frame.assign(**{name: at + shift})) for shift in (-move, move))
    X = np.stack([regression.read(part.frame)[0] for part in (low, high)])
    lines = [number for number, term in enumerate(regression.terms) if term.is_linear]
    # The change of linear terms is a multiple of their value at the slopes of their columns, without rounding.
    for number in lines:
        block = list(regression.blocks[number])
        X[0, :, block], X[1, :, block] = rows.X[:, block].T, (X[1, :, block] - X[0, :, block]) / (2.0 * step)
    nodes = sampler.latents(X.reshape(-1, X.shape[2]))
    first, second = np.split(nodes.draws, 2, axis=1)
    middle, half = 0.5 * (first + second), 0.5 * (second - first)
    for number in lines:
        latents = list(regression.latents[number])
        middle[:, :, latents] = first[:, :, latents]
        half[:, :, latents] = step * (second[:, :, latents] - regression.terms[number].mean)
    # Of a predictor only changes are needed.
    middle = middle if target == "mean" else np.zeros_like(middle)
    ends = [
        sampler.values(part, target, DrawNodes(middle + change, nodes.values))
        for part, change in ((low, -half), (high, half))
    ]
    widths = (high.frame[name] - low.frame[name]).to_numpy()
    return Values((ends[1].draws - ends[0].draws) / widths[:, None], ends[0].levels)


class LinearCoefficients(NamedTuple):
    """The coefficients of the linear term with a ``number``: its latents at the inputs ``X`` less ``shift``."""

    number: int
    X: np.ndarray
    shift: np.ndarray


def _coefficients(regression: "Regression") -> list[LinearCoefficients]:
    """The coefficients of each linear term."""
    lines = []
    for number, term in enumerate(regression.terms):
        if term.coefficients is not None:
            centre, is_constant, means, _ = term.coefficients
            X = np.zeros((len(centre), regression.X.shape[1]))
            # The constant is the line at the origin of its columns.
            X[:, regression.blocks[number]] = np.eye(len(centre)) - np.outer(is_constant, centre)
            shift = np.where(is_constant, 0.0, term.mean) - X[:, regression.blocks[number]] @ means
            lines.append(LinearCoefficients(number, X, shift))
    return lines


def _table_of_line(sampler: LatentSampler, line: LinearCoefficients, latent: int) -> pd.DataFrame:
    """The table of the coefficients of one latent."""
    X = line.X
    result: Any = sampler.result
    mean, variance = (part[:, latent].copy() for part in result.predict_latent(X))
    low, high = intervals.bounds()
    if hasattr(result, "quantiles"):
        ends = result.quantiles([low, high], X)[:, :, latent]
    elif hasattr(result, "posterior"):
        ends = mean + np.sqrt(variance) * ndtri([[low], [high]])
    else:
        ends = np.quantile(sampler.latents(X).draws[:, :, latent], [low, high], axis=0)
    for skewed in sampler.skewed:
        if skewed.latent == latent:
            at, marginal = (X == skewed.X).all(axis=1), skewed.marginal
            mean[at], variance[at] = marginal.mean, marginal.variance
            ends[:, at] = marginal.quantiles([low, high])[:, None]
    return intervals.table(mean - line.shift, np.sqrt(variance), ends - line.shift)


def _lines_of(regression: "Regression", number: int) -> list[int]:
    """The number of the linear terms that have the line of a smooth."""
    terms, term = regression.terms, regression.terms[number]
    return [
        place for place, one in enumerate(terms) if term.lines and one.is_linear and one.predictor == term.predictor
    ]


def _hyperparameters(regression: "Regression", result: EngineResult) -> list[pd.DataFrame]:
    """The tables of hyperparameters that were sampled, integrated out or learned."""
    names, report = regression.names, getattr(result, "fit", None)
    changed = {name: printed.function for name, printed in names.items() if printed.function is not np.asarray}
    estimates = result.estimates_of(changed)
    uncertain = getattr(result, "hyperparameters", None) or ({} if report is None else report.values)
    columns = ["mean", "sd", *intervals.names()]
    tables = [estimates[name][columns].set_axis(names[name].of(estimates[name].index)) for name in uncertain]
    return [table[table.index != ""] for table in tables]


def _effects_of_groups(sampler: LatentSampler, coefficients: Sequence[LinearCoefficients]) -> pd.DataFrame:
    """The effects of the levels of all groups, plus the coefficients of the same predictor and name."""
    terms = sampler.regression.terms
    lines = {terms[line.number].predictor: line for line in coefficients}
    tables = [
        table
        for number, term in enumerate(terms)
        if term.is_group
        for table in _effects_of_levels(sampler, number, lines.get(term.predictor))
    ]
    if not tables:
        names = ", ".join(repr(term.name) for term in terms)
        raise ValueError(f"ranef and coef need a term of groups, such as (1|g); the terms are {names}.")
    return pd.concat(tables, ignore_index=True)


def _effects_of_levels(sampler: LatentSampler, number: int, line: LinearCoefficients | None) -> Iterator[pd.DataFrame]:
    """Tables of the effects of some levels each, plus the coefficients of a line."""
    regression, term, num_draws = sampler.regression, sampler.regression.terms[number], 4000
    members = [part for part in term.columns if isinstance(part, Levels)]
    block, slopes, factor = list(regression.blocks[number]), term.columns[len(members) :], members[0]
    of_slopes = block[len(members) :]
    # The latent at these ends is the effects times ``design``.
    far = np.abs(regression.X[:, of_slopes]).max(axis=0, initial=0.0)
    names = [name for slope in slopes for name in slope.names] or ["Intercept"]
    design = np.diag(np.where(far > 0.0, far, 1.0)) if slopes else np.ones((1, 1))
    ends = design[:, : len(far)]
    inputs, size = np.zeros((len(ends), regression.X.shape[1])), len(regression.classes)
    inputs[:, of_slopes] = ends
    fixed, shifts = np.zeros(len(ends)), np.zeros(len(ends))
    if line is not None:
        for place, name in enumerate(regression.terms[line.number].columns[0].names):
            if name in names:
                row = names.index(name)
                inputs[row] += line.X[place]
                fixed[row], shifts[row] = 1.0, line.shift[place]
    step = max(1, sampler.max_joint // (regression.model.num_latents * len(ends)))
    for at in range(0, len(factor.codes), step):
        keys = list(factor.codes)[at : at + step]
        X = np.tile(inputs, (len(keys), 1))
        X[:, block[: len(members)]] = np.repeat([factor.codes[key] for key in keys], len(ends))[:, None]
        f = sampler.latents(X, num_draws).draws.reshape(num_draws, len(keys), len(ends), -1)
        values = np.linalg.solve(design, f[..., list(regression.latents[number])])
        if line is not None:
            values += fixed[:, None] * (f[..., list(regression.latents[line.number])] - shifts[:, None])
        levels = [key[0] if len(key) == 1 else ":".join(map(str, key)) for key in keys]
        frame = pd.DataFrame({"term": term.name, "group": np.repeat(levels, len(ends)), "effect": names * len(keys)})
        yield Values(values.reshape(len(f), -1, size), regression.classes if size > 1 else None).as_table(frame)


def _averages(rows: NewRows, by: str | Sequence[str] | None) -> tuple[pd.DataFrame, list[np.ndarray]]:
    """The labels of averages and the rows of each: of columns, else of the rows of a grid, else of all rows."""
    if by is not None:
        return _groups(rows.frame, by)
    if rows.by is not None:
        return rows.frame[rows.by], [np.array([row]) for row in range(len(rows.frame))]
    return pd.DataFrame(index=[0]), [np.arange(len(rows.frame))]


def _groups(frame: pd.DataFrame, by: str | Sequence[str]) -> tuple[pd.DataFrame, list[np.ndarray]]:
    names = [by] if isinstance(by, str) else list(by)
    groups = frame.groupby(names, sort=True, observed=True).indices
    keys = [key if isinstance(key, tuple) else (key,) for key in groups]
    return pd.DataFrame(keys, columns=names), list(groups.values())
