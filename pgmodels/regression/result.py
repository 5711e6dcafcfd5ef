"""Results of regression formulas: coefficients, effects of terms, predictions and comparisons."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from scipy.special import ndtri

from pgmodels.regression.columns import Design, Levels
from pgmodels.results.marginal import Marginal
from pgmodels.results.nodes import DrawNodes
from pgmodels.results.predictive import Predictive
from pgmodels.runtime.seeds import Seed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pgmodels.regression.formula import Regression

_DRAWS = 1000
# The step of a slope, in standard deviations of the column.
_STEP = 1e-3
Target = Literal["mean", "linear"]


class RegressionResult:
    """The result of an engine for a regression formula.

    ``result`` is the engine's, for ``pgmodels.compare``, ``diagnose``, ArviZ and files, and ``regression`` the model of
    the formula. Intervals are equal-tailed, with ArviZ's default probability ``stats.ci_prob``. All tables are data
    frames of pandas.
    """

    def __init__(self, regression: "Regression", result: Any):
        self.regression, self.result = regression, result

    def summary(self) -> pd.DataFrame:
        """Coefficients of linear terms and hyperparameters: mean, sd and the bounds of an interval.

        Hyperparameters that were learned have no sd.
        """
        rows: dict[str, Any] = {}
        design = self.regression.terms[0].columns[0]
        if isinstance(design, Design):
            X = np.zeros((len(design.names), self.regression.X.shape[1]))
            X[:, : len(design.names)] = np.eye(len(design.names))
            shift = np.array([0.0 if name == "Intercept" else self.regression.terms[0].mean for name in design.names])
            table = self._table(X, 0, shift)
            rows |= {name: table.loc[number] for number, name in enumerate(design.names)}
        return pd.DataFrame(rows | self._hyperparameters()).T

    def effects(self, term: str, newdata: Any = None) -> pd.DataFrame:
        """The contribution of one term to the predictor, less its mean over the rows.

        Parameters
        ----------
        term : str
            The text of the term, as in the formula; "linear" for all linear terms together.
        newdata : data frame, optional
            By default the data.
        """
        number = self._number(term)
        X, frame = self._inputs(newdata)
        f = self._latents(X).draws[:, :, number]
        table = self._intervals(f - f.mean(axis=1, keepdims=True))
        names = [name for part in self.regression.terms[number].columns for name in part.names if name in frame.columns]
        return pd.concat([frame[names], table], axis=1)

    def plot_effects(self) -> "Figure":
        """The contribution of each term of one column, with intervals: lines of numbers, points of levels.

        Returns
        -------
        matplotlib.figure.Figure
            A panel for each term.

        Raises
        ------
        ValueError
            If all terms have several columns.
        """
        from pgmodels.plots.style import new_figure, open_axes

        terms = [term for term in self.regression.terms if len(term.columns) == 1 and len(term.columns[0].names) == 1]
        terms = [term for term in terms if not isinstance(term.columns[0], Design)]
        if not terms:
            raise ValueError("plot_effects shows terms of one column, such as s(x) and (1|g); the formula has none.")
        count = min(3, len(terms))
        rows = -(-len(terms) // count)
        figure = new_figure(3.8 * count, 2.9 * rows)
        panels = figure.subplots(rows, count, squeeze=False).ravel()
        for axes, term in zip(panels, terms, strict=False):
            x = term.read(self.regression.data)[:, 0]
            table = self.effects(term.text).assign(x=x).drop_duplicates("x").sort_values("x")
            low, high = (table[name] for name in _names())
            column = term.columns[0]
            if isinstance(column, Levels):
                axes.errorbar(table["mean"], table["x"], xerr=[table["mean"] - low, high - table["mean"]], fmt="o")
                axes.set_yticks(range(len(column.codes)), [":".join(map(str, key)) for key in column.codes])
                open_axes(axes, title=term.text, xlabel="effect")
            else:
                axes.fill_between(table["x"], low, high, alpha=0.25, linewidth=0.0)
                axes.plot(table["x"], table["mean"])
                open_axes(axes, title=term.text, xlabel=column.names[0], ylabel="effect")
        for axes in panels[len(terms) :]:
            axes.set_visible(False)
        return figure

    def predictions(
        self, newdata: Any = None, *, target: Target = "mean", exclude: Sequence[str] = (), average_by: Any = None
    ) -> pd.DataFrame:
        """The mean of y, or the predictor, at new data, with an interval.

        Parameters
        ----------
        newdata : data frame, optional
            By default the data.
        target : {"mean", "linear"}
            The mean of y given the latents (for one trial), or the predictor.
        exclude : sequence of str
            Terms that are left out, at their prior means, such as ``"(1|herd)"``.
        average_by : str or sequence of str, optional
            Columns: predictions are averaged over the rows of each combination of their values.
        """
        X, frame = self._inputs(newdata)
        values = self._target(X, frame, target, exclude)
        if average_by is None:
            return pd.concat([frame, self._intervals(values)], axis=1)
        names = [average_by] if isinstance(average_by, str) else list(average_by)
        groups = frame.groupby(names, sort=True, observed=True).indices
        table = self._intervals(np.stack([values[:, rows].mean(axis=1) for rows in groups.values()], axis=1))
        keys = [key if isinstance(key, tuple) else (key,) for key in groups]
        return pd.concat([pd.DataFrame(keys, columns=names), table], axis=1)

    def comparisons(
        self,
        contrast: dict[str, Sequence[Any]],
        newdata: Any = None,
        *,
        comparison: Literal["diff", "ratio"] = "diff",
        target: Target = "mean",
    ) -> pd.DataFrame:
        """The average difference, or ratio, between predictions at two values of a column, all else as it is.

        Parameters
        ----------
        contrast : dict
            A column and its two values, as in ``{"treat": ["no", "yes"]}``: the second is compared with the first.
        newdata : data frame, optional
            By default the data.
        comparison : {"diff", "ratio"}
            Of the averages over the rows.
        target : {"mean", "linear"}
            As in ``predictions``.
        """
        if len(contrast) != 1 or len(pair := list(next(iter(contrast.values())))) != 2:
            raise ValueError(f"contrast must be a dict of one column and its two values; got {contrast!r}.")
        if comparison not in ("diff", "ratio"):
            raise ValueError(f"comparison must be 'diff' or 'ratio'; got {comparison!r}.")
        name = next(iter(contrast))
        low, high = self._both(name, [lambda column, value=value: value for value in pair], newdata, target)
        values = high - low if comparison == "diff" else high / low
        table = self._intervals(values[:, None])
        table.insert(0, "contrast", [f"{name}: {pair[1]} {'-' if comparison == 'diff' else '/'} {pair[0]}"])
        return table

    def slopes(self, name: str, newdata: Any = None, *, target: Target = "mean") -> pd.DataFrame:
        """The average derivative of predictions in a column of numbers."""
        frame = self.regression.data
        if name not in frame.columns or not pd.api.types.is_numeric_dtype(frame[name]):
            raise ValueError(f"slopes needs a column of numbers; got {name!r}, of {list(frame.columns)}.")
        step = _STEP * (float(frame[name].std()) or 1.0)
        moves = [lambda column: column - step, lambda column: column + step]
        low, high = self._both(name, moves, newdata, target)
        table = self._intervals(((high - low) / (2.0 * step))[:, None])
        table.insert(0, "slope", [name])
        return table

    def draws(self, newdata: Any = None, num_draws: int = _DRAWS, seed: Seed = 0) -> np.ndarray:
        """Draws of y at new data, (num_draws, m), for one trial, with latents drawn jointly over the rows."""
        X, frame = self._inputs(newdata)
        return self._predictive(frame, self._latents(X, num_draws, seed)).draw(num_draws, seed)

    def __repr__(self) -> str:
        return f"{self.regression!r}\n{self.summary()}"

    def _both(self, name: str, changes: Iterable[Any], newdata: Any, target: Target) -> list[np.ndarray]:
        """Averages over the rows of predictions after each change of a column, by the same draws."""
        _, frame = self._inputs(newdata)
        if name not in frame.columns:
            raise ValueError(f"the data have no column {name!r}; they have {list(frame.columns)}.")
        frames = [frame.assign(**{name: change(frame[name])}) for change in changes]
        both = pd.concat(frames, ignore_index=True)
        values = self._target(self.regression.read(both)[0], both, target, ())
        return [part.mean(axis=1) for part in np.split(values, 2, axis=1)]

    def _inputs(self, newdata: Any) -> tuple[np.ndarray, pd.DataFrame]:
        return (self.regression.X, self.regression.data) if newdata is None else self.regression.read(newdata)

    def _latents(self, X: np.ndarray, num_draws: int = _DRAWS, seed: Seed = 0) -> DrawNodes:
        """Joint draws (draws, m, terms) of the latents, with their likelihood parameters; equal rows share theirs."""
        rows, places = np.unique(X, axis=0, return_inverse=True)
        nodes = self.result.joint_nodes(rows, num_draws, seed)
        return DrawNodes(nodes.draws[:, places.ravel()], nodes.values)

    def _predictive(self, frame: pd.DataFrame, nodes: DrawNodes) -> Predictive:
        return Predictive(self.result.likelihood, nodes, self.regression.covariates(frame))

    def _target(self, X: np.ndarray, frame: pd.DataFrame, target: Target, exclude: Sequence[str]) -> np.ndarray:
        if target not in ("mean", "linear"):
            raise ValueError(f"target must be 'mean' or 'linear'; got {target!r}.")
        nodes = self._latents(X)
        f = nodes.draws
        for term in exclude:
            number = self._number(term)
            f[:, :, number] = self.regression.terms[number].mean
        if target == "mean":
            return np.asarray(self._predictive(frame, nodes).moments_given(slice(None), f)[0])
        offsets = [offset.read(frame, "newdata")[:, 0] for offset in self.regression.offsets]
        return f.sum(axis=2) + sum(offsets, np.zeros(len(X)))

    def _number(self, term: str) -> int:
        texts = ["linear" if isinstance(one.columns[0], Design) else one.text for one in self.regression.terms]
        plain = [text.replace(" ", "") for text in texts]
        if str(term).replace(" ", "") not in plain:
            raise ValueError(f"there is no term {term!r}; the terms are {', '.join(map(repr, texts))}.")
        return plain.index(str(term).replace(" ", ""))

    def _table(self, X: np.ndarray, latent: int, shift: np.ndarray) -> pd.DataFrame:
        """Means, deviations and intervals of a latent at inputs, less a shift."""
        mean, variance = (part[:, latent] for part in self.result.predict_latent(X))
        low, high = _levels()
        if hasattr(self.result, "quantiles"):
            bounds = self.result.quantiles([low, high], X)[:, :, latent]
        elif hasattr(self.result, "posterior"):
            bounds = mean + np.sqrt(variance) * ndtri([[low], [high]])
        else:
            bounds = np.quantile(self._latents(X).draws[:, :, latent], [low, high], axis=0)
        columns = {"mean": mean - shift, "sd": np.sqrt(variance)}
        return pd.DataFrame(columns | dict(zip(_names(), bounds - shift, strict=True)))

    def _intervals(self, values: np.ndarray) -> pd.DataFrame:
        """Means, deviations and intervals of draws (draws, m)."""
        bounds = np.quantile(values, _levels(), axis=0)
        columns = {"mean": values.mean(axis=0), "sd": values.std(axis=0)}
        return pd.DataFrame(columns | dict(zip(_names(), bounds, strict=True)))

    def _hyperparameters(self) -> dict[str, dict[str, float]]:
        """A row of the summary for each number that was learned, drawn or integrated out."""
        rows = {}
        for name, values in (getattr(self.result, "hyperparameters", None) or self._learned()).items():
            mean, sd, bounds = _moments(values)
            # Entries of vectors have rows of their own.
            for entry in np.ndindex(np.shape(mean)):
                label = self._label(name) + ("" if not entry else f"[{', '.join(map(str, entry))}]")
                cells = (mean[entry], sd[entry], *bounds[(slice(None), *entry)])
                rows[label] = dict(zip(("mean", "sd", *_names()), map(float, cells), strict=True))
        return rows

    def _learned(self) -> dict[str, Any]:
        report = getattr(self.result, "fit", None)
        return {} if report is None else report.values

    def _label(self, name: str) -> str:
        """A hyperparameter's name with the term for the number of its latent."""
        match = re.fullmatch(r"f\[(\d+)\]\.(.*)", name)
        if match is None:
            # With a single latent names of kernels have no number; those of the likelihood have no dot.
            return f"{self.regression.terms[0].text} {name}" if "." in name else name
        return f"{self.regression.terms[int(match[1])].text} {match[2]}"


def _moments(values: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, deviation and interval of a marginal, of draws (chains, draws, ...), or of one learned value."""
    if isinstance(values, Marginal):
        return values.mean, values.deviation, values.quantiles(_levels())
    array = np.asarray(values, dtype=np.float64)
    if array.ndim < 2:
        unknown = np.full(array.shape, np.nan)
        return array, unknown, np.stack([unknown, unknown])
    flat = array.reshape(-1, *array.shape[2:])
    return flat.mean(axis=0), flat.std(axis=0), np.quantile(flat, _levels(), axis=0)


def _levels() -> tuple[float, float]:
    from arviz_base import rcParams

    tail = 0.5 * (1.0 - float(rcParams["stats.ci_prob"]))
    return tail, 1.0 - tail


def _names() -> tuple[str, str]:
    low, high = _levels()
    return f"eti_{100 * low:.3g}%", f"eti_{100 * high:.3g}%"
