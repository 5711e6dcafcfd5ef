"""HTML elements for notebooks and reports; text is escaped and elements are closed."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Html(str):
    """A string of HTML, which is not escaped; all other text is."""


# Resolution of PNG images, for print and high-resolution screens.
_DPI = 144
# SVG images above this number of bytes may be replaced by PNG.
_LARGE = 200_000
_PIXELS_PER_INCH = 96
_VOID = {"img", "meta", "br", "hr"}


def html(value: Any) -> Html:
    """A value as HTML: escaped, unless it is already HTML."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def join(values: Iterable[Any], between: str = "") -> Html:
    """Values as HTML, concatenated."""
    return Html(between.join(html(part) for part in values))


def element(tag: str, *children: Any, **attributes: Any) -> Html:
    """An element with its children; ``class_`` is the attribute ``class``, None leaves an attribute out."""
    present = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    opening = " ".join([tag, *(f'{name}="{escape(str(value))}"' for name, value in present.items())])
    if tag in _VOID:
        return Html(f"<{opening}>")
    return Html(f"<{opening}>{join(children)}</{tag}>")


def table(header: Sequence[Any], rows: Iterable[Sequence[Any]], caption: Any = None) -> Html:
    """A table whose first column contains row headers; cells may be complete <td> or <th> elements."""
    head = element("tr", *(_cell("th", cell, scope="col") for cell in header))
    body = [
        element(
            "tr", _cell("th", row[0], scope="row", style="text-align:left"), *(_cell("td", cell) for cell in row[1:])
        )
        for row in rows
    ]
    titled = [element("caption", caption)] if caption is not None else []
    return element(
        "div",
        element("table", *titled, *([element("thead", head)] if header else []), element("tbody", *body)),
        class_="pgm-table" if header else "pgm-table pgm-facts",
        style="overflow-x:auto",
    )


def picture(figure: Figure, alt: str) -> Html:
    """A figure as embedded SVG, or PNG if SVG is large and PNG smaller, with alternative text ``alt``.

    The figure's layout is fixed afterwards.
    """
    from pgmodels.plots.style import settle

    # Otherwise the layout would be computed again for each saved file.
    settle(figure).set_layout_engine("none")
    kind, drawn = "svg+xml", _saved(figure, format="svg", metadata={"Date": None, "Creator": None})
    if len(drawn) > _LARGE:
        kind, drawn = min((kind, drawn), ("png", _saved(figure, format="png", dpi=_DPI)), key=lambda file: len(file[1]))
    source = f"data:image/{kind};base64,{base64.b64encode(drawn).decode()}"
    width, height = (round(_PIXELS_PER_INCH * inches) for inches in figure.get_size_inches())
    return element("img", src=source, alt=alt, width=width, height=height, style="max-width:100%;height:auto")


def _saved(figure: Figure, **options: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, **options)
    return file.getvalue()


def bullets(items: Iterable[Any]) -> Html:
    """A list of points."""
    return element("ul", *(element("li", item) for item in items))


def _cell(tag: str, value: Any, **attributes: Any) -> Html:
    is_cell = isinstance(value, Html) and value.startswith(("<td", "<th"))
    return value if is_cell else element(tag, value, **attributes)
