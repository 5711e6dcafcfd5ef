"""Shared style of all figures: colours, markers, line styles, literal labels, legends."""

import io
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D

# Okabe and Ito's colours, which are distinct for colour-blind readers; dark and light ones alternate for greyscale
# prints. The reference is black.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
MARKERS = "osD^vPX"
LINES: tuple[Any, ...] = ("--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 2)), (0, (4, 3)))
# Above this number of points they are rasterised, so that vector files stay small.
RASTERISED = 2000


class Style(NamedTuple):
    """The style of one result in all figures: a colour, and a marker and line for greyscale."""

    colour: str
    marker: str
    line: Any


REFERENCE = Style("#000000", ".", "-")


def styles(labels: Iterable[str], reference: str | None = None) -> dict[str, Style]:
    """A style for each label; the reference is black and solid."""
    by_label = {}
    others = 0
    for label in labels:
        if label == reference:
            by_label[label] = REFERENCE
            continue
        turn, index = divmod(others, len(COLOURS))
        by_label[label] = Style(
            COLOURS[index], MARKERS[(index + turn) % len(MARKERS)], LINES[(index + turn) % len(LINES)]
        )
        others += 1
    return by_label


def literal(label: Any, width: int = 32) -> str:
    """A user-defined label, wrapped, with dollar signs escaped so that matplotlib shows it literally."""
    return textwrap.fill(str(label), width, break_long_words=True).replace("$", r"\$")


class ShownFigure(Figure):
    """A figure that notebooks display, which they otherwise do only for figures of pyplot."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def new_figure(width: float, height: float) -> Figure:
    """A new figure, width and height in inches, with constrained layout."""
    return ShownFigure(figsize=(width, height), layout="constrained")


def open_axes(axes: Axes, **labels: Any) -> None:
    """Set title and labels, and hide the top and right spines."""
    axes.set(**labels)
    axes.spines[["top", "right"]].set_visible(False)


def legend_below(figure: Figure, handles: Sequence[Any], labels: Sequence[str], notes: Sequence[str] = ()) -> None:
    """One legend for all panels, below them, with notes above it."""
    width = figure.get_figwidth()
    # A character is about 0.08 inches at the default size; a handle and its gaps take 0.7.
    needed = [0.7 + 0.08 * max(map(len, label.split("\n"))) for label in labels]
    columns = len(labels) if sum(needed) <= width else max(1, int(width / max(needed)))
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    if notes:
        lines = [line for note in notes for line in textwrap.wrap(note, int(width / 0.07))]
        legend.set_title("\n".join(lines).replace("$", r"\$"), prop=FontProperties(size="small"))


def settle(figure: Figure) -> Figure:
    """The figure after one run of its layout engine: with axes of fixed aspect, only a second run is right."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    return figure


def line_handle(style: Style, marker: bool = False) -> Line2D:
    """The legend handle of a line."""
    return Line2D([], [], color=style.colour, linestyle=style.line, marker=style.marker if marker else "")
