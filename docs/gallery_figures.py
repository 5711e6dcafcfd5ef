"""Figures of the gallery: those that an example binds to names, drawn with pyplot or without."""

from typing import Any
from weakref import WeakSet

from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst

_saved: WeakSet[Figure] = WeakSet()


def save_figures(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Save the figures that a cell has made; return their reStructuredText."""
    figures = [value for value in block_vars["example_globals"].values() if isinstance(value, Figure)]
    paths = []
    for figure in figures:
        if figure not in _saved:
            _saved.add(figure)
            path = next(block_vars["image_path_iterator"])
            figure.savefig(path, dpi=100)
            paths.append(path)
    return figure_rst(paths, gallery_conf["src_dir"])
