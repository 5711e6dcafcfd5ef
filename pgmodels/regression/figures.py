"""Figures of regression results: effects of terms, and predictions over a grid."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from pgmodels.plots.style import literal, new_figure, open_axes, styles
from pgmodels.regression.columns import Levels
from pgmodels.results import intervals

if TYPE_CHECKING:
    from pgmodels.regression.result import RegressionResult

_NUMBERS = ("mean", "sd")
# Inches of a level on an axis.
_A_LEVEL = 0.2
# Panels in a row.
_ACROSS = 3


def figure_of_effects(result: "RegressionResult") -> Figure:
    """See ``RegressionResult.plot_effects``."""
    terms = [
        term
        for number, term in enumerate(result.regression.terms)
        if len(term.columns) == 1 and len(term.columns[0].names) == 1 and not term.is_linear
    ]
    if not terms:
        raise ValueError("plot_effects shows terms of one column, such as s(x) and (1|g); the formula has none.")
    most = max((len(term.columns[0].codes) for term in terms if isinstance(term.columns[0], Levels)), default=0)
    figure, panels = _panels(len(terms), max(2.9, 0.8 + _A_LEVEL * most))
    for axes, term in zip(panels, terms, strict=False):
        column = term.columns[0]
        data, by = result.regression.data, "level" if len(result.regression.classes) > 1 else None
        x = term.read(data)[:, 0]
        # Dates are shown as such.
        shown = data[column.names[0]] if column.names[0] in data.columns else x
        table = result.effects(term.name)
        repeated = {
            name: np.repeat(np.asarray(part), len(table) // len(x)) for name, part in (("x", x), ("shown", shown))
        }
        table = table.assign(**repeated).drop_duplicates(["x", *[by] * (by is not None)])
        if isinstance(column, Levels):
            _points(axes, table, [":".join(map(str, key)) for key in column.codes], by, is_upright=False)
            open_axes(axes, title=literal(term.name), xlabel="effect")
        else:
            _lines(axes, table.sort_values("x").assign(x=lambda rows: rows["shown"]), by)
            open_axes(axes, title=literal(term.name), xlabel=literal(column.names[0]), ylabel="effect")
    return figure


def figure_over_grid(table: pd.DataFrame, label: str) -> Figure:
    """Values over a grid of one to three columns: along the axis, by colour, and by panel."""
    by = [name for name in table.columns if name not in (*_NUMBERS, *intervals.names())]
    if len(by) > 3:
        raise ValueError(f"a figure shows up to three columns of a grid, levels included; got {by}.")
    panel = by[2] if len(by) == 3 else None
    values = [None] if panel is None else list(pd.unique(table[panel]))
    figure, panels = _panels(len(values), tall=3.2)
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


def _panels(count: int, tall: float = 2.9) -> tuple[Figure, list[Axes]]:
    across = min(_ACROSS, count)
    rows = -(-count // across)
    figure = new_figure(max(3.8 * across, 4.6), tall * rows)
    panels = list(figure.subplots(rows, across, squeeze=False).ravel())
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels


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
    series = list(_series(table, by))
    shifts = np.linspace(-0.15, 0.15, len(series)) if len(series) > 1 else [0.0]
    for shift, (name, rows, style) in zip(shifts, series, strict=True):
        low, high = (rows[end] for end in intervals.names())
        ends = [rows["mean"] - low, high - rows["mean"]]
        options: dict[str, Any] = {"fmt": style.marker, "color": style.colour, "label": name}
        if is_upright:
            axes.errorbar(rows["x"] + shift, rows["mean"], yerr=ends, **options)
        else:
            axes.errorbar(rows["mean"], rows["x"] + shift, xerr=ends, **options)
    if is_upright:
        axes.set_xticks(range(len(names)), [literal(name) for name in names])
        axes.set_xlim(-0.5, len(names) - 0.5)
    else:
        axes.set_yticks(range(len(names)), [literal(name) for name in names])
    _legend(axes, by)


def _series(table: pd.DataFrame, by: str | None) -> Any:
    """Label, rows and style of each line."""
    if by is None:
        yield "", table, styles([""])[""]
        return
    values = list(pd.unique(table[by]))
    chosen = styles([_text(value) for value in values])
    for value in values:
        yield _text(value), table[table[by] == value], chosen[_text(value)]


def _legend(axes: Axes, by: str | None) -> None:
    if by is not None:
        axes.legend(title=literal(by), frameon=False, fontsize="small", title_fontsize="small")


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
