"""The picture of a model's graph."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch

from pgmodels.augmentation.explain import AugmentedGraph, Node
from pgmodels.derivation import Derivation, derive
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.likelihoods.printing import Indexed, Tree, split_name, to_text
from pgmodels.model import Model
from pgmodels.plots.style import literal, new_figure, settle


class Sizes(NamedTuple):
    """Lengths in a drawn graph, in units of ``inches``, except ``inches`` itself."""

    inches: float = 0.62
    # Sizes of a node, and of the dot of a parameter.
    radius: float = 0.36
    dot: float = 0.07
    # Distances between layers and between nodes, and the width of a character.
    layer: float = 1.7
    gap: float = 0.5
    character: float = 0.155
    # Distances from a plate to its content.
    side: float = 0.22
    bottom: float = 0.42
    top: float = 0.18


SIZES = Sizes()
# The largest bend of an arrow, as a fraction of its length.
_BENDS = (0.0, -0.1, 0.1, -0.2, 0.2, -0.3, 0.3, -0.45, 0.45)
_OBSERVED = "0.8"
_SYMBOLS = {"ω": r"\omega", "λ": r"\lambda", "θ": r"\theta", "GP": r"\mathrm{GP}"}


class Box(NamedTuple):
    """A rectangle."""

    x_min: float
    y_min: float
    x_max: float
    y_max: float


class Layout(NamedTuple):
    """Centres of nodes and rectangles of plates, by id."""

    nodes: dict[str, tuple[float, float]]
    plates: dict[str, Box]


def plot_graph(model: Model | Likelihood | Derivation | AugmentedGraph) -> Figure:
    """Draw the augmented graph of a model, a likelihood or a derivation.

    Parameters
    ----------
    model : Model, Likelihood, Derivation or AugmentedGraph
        The object to draw.

    Returns
    -------
    matplotlib.figure.Figure

    Notes
    -----
    Observed variables are shaded. Latent functions and auxiliary variables are open circles, Gaussian processes
    squares, and hyperparameters and parameters dots. The nodes of a plate are repeated.

    References
    ----------
    Galy-Fajou et al. 2019, figure 2.
    """
    if isinstance(model, AugmentedGraph):
        graph = model
    else:
        graph = (model if isinstance(model, Derivation) else derive(model)).graph
    layout = lay_out(graph)
    boxes = {node.id: _node_box(node, *layout.nodes[node.id]) for node in graph.nodes}
    extent = _around([*layout.plates.values(), *boxes.values()], 0.15, 0.15, 0.15)
    width, height = extent.x_max - extent.x_min, extent.y_max - extent.y_min
    figure = new_figure(max(4.2, SIZES.inches * width + 0.3), SIZES.inches * height + 1.3)
    axes = figure.subplots()
    axes.set(xlim=(extent.x_min, extent.x_max), ylim=(extent.y_min, extent.y_max), aspect="equal")
    axes.set_title(f"Augmented graph of {literal(graph.name)}")
    axes.set_axis_off()
    for plate in graph.plates:
        box = layout.plates[plate.id]
        _draw_rectangle(axes, box, 0.18, facecolor="none", edgecolor="0.35", zorder=1)
        place = (box.x_max - 0.14, box.y_min + 0.1)
        axes.text(*place, literal(plate.label), ha="right", va="bottom", fontsize=9)
    for node in graph.nodes:
        _draw_node(axes, node, *layout.nodes[node.id])
    nodes = {node.id: node for node in graph.nodes}
    for edge in graph.edges:
        obstacles = [box for node, box in boxes.items() if node not in (edge.source, edge.target)]
        for plate in graph.plates:
            _, bottom, right, _ = layout.plates[plate.id]
            obstacles.append(Box(right - SIZES.character * len(plate.label) - 0.14, bottom, right, bottom + 0.36))
        start, end = (np.array(layout.nodes[node]) for node in (edge.source, edge.target))
        radii = [SIZES.dot if is_dot(nodes[node]) else SIZES.radius for node in (edge.source, edge.target)]
        _draw_edge(axes, start, end, radii, obstacles)
    handles, names = _key(graph)
    figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False, fontsize="small")
    return settle(figure)


def lay_out(graph: AugmentedGraph) -> Layout:
    """Return layers by longest paths: ancestors of a plate's nodes above its rectangle, and descendants below."""
    layers = _layers(graph)
    places: dict[str, tuple[float, float]] = {}
    plates: dict[str, Box] = {}
    # Inner plates come first; nodes that are in no plate come last.
    for plate in [*sorted(graph.plates, key=lambda plate: -len(_inside(graph, plate.parent))), None]:
        members = [node for node in graph.nodes if node.plate == (plate.id if plate else None)]
        for layer in sorted({layers[node.id] for node in members}):
            y = -SIZES.layer * layer
            beside = [box.x_max + SIZES.side for box in plates.values() if box.y_min < y < box.y_max]
            x = max(beside, default=-SIZES.gap)
            for node in members:
                if layers[node.id] == layer:
                    half = max(0.5 * SIZES.character * len(node.label) * is_dot(node), SIZES.radius)
                    places[node.id] = (x + SIZES.gap + half, y)
                    x += SIZES.gap + 2.0 * half
        if plate is not None:
            content = [plates[other.id] for other in graph.plates if other.parent == plate.id]
            content += [_node_box(node, *places[node.id]) for node in members]
            box = _around(content, SIZES.side, SIZES.bottom, SIZES.top)
            # The label is to the right of the arrows.
            plates[plate.id] = box._replace(x_max=box.x_max + SIZES.character * len(plate.label))
    return Layout(places, plates)


def _inside(graph: AugmentedGraph, plate: str | None) -> list[str]:
    parents = {each.id: each.parent for each in graph.plates}
    return [] if plate is None else [plate, *_inside(graph, parents[plate])]


def _layers(graph: AugmentedGraph) -> dict[str, int]:
    """Return the layer of each node, 0 at the top: below its parents, with ancestors of a plate's nodes above it."""
    index = {node.id: number for number, node in enumerate(graph.nodes)}
    count = len(index)
    after = np.zeros((count, count), dtype=bool)
    for edge in graph.edges:
        after[index[edge.source], index[edge.target]] = True
    follows = np.linalg.matrix_power(np.eye(count, dtype=int) + after, count) > 0
    for plate in graph.plates:
        members = np.array([plate in graph.plates_of(node) for node in graph.nodes])
        leads_in, leads_out = follows[:, members].any(axis=1), follows[members].any(axis=0)
        after |= np.outer(leads_in & ~leads_out, members) | np.outer(members, leads_out & ~leads_in)
    layers = np.zeros(count, dtype=int)
    for _ in range(count):
        layers = np.max(after * (layers[:, None] + 1), axis=0)
    # A node without parents is placed just above its highest child.
    highest = np.min(np.where(after, layers, count), axis=1) - 1
    return dict(zip(index, np.where(after.any(axis=0), layers, highest).tolist(), strict=True))


def is_dot(node: Node) -> bool:
    """Return whether a node is drawn as a dot, like fixed quantities."""
    return node.kind in ("parameter", "hyperparameter")


def _node_box(node: Node, x: float, y: float) -> Box:
    if is_dot(node):
        half = max(SIZES.dot, 0.5 * SIZES.character * len(node.label))
        return Box(x - half, y - SIZES.dot, x + half, y + 0.42)
    return Box(x - SIZES.radius, y - SIZES.radius, x + SIZES.radius, y + SIZES.radius)


def _around(boxes: Iterable[Box], side: float, bottom: float, top: float) -> Box:
    x_min, y_min, x_max, y_max = zip(*boxes, strict=True)
    return Box(min(x_min) - side, min(y_min) - bottom, max(x_max) + side, max(y_max) + top)


def _draw_rectangle(axes: Axes, box: Box, rounding: float, **style: Any) -> None:
    shape = f"round,pad=0,rounding_size={rounding}"
    size = (box.x_max - box.x_min, box.y_max - box.y_min)
    axes.add_patch(FancyBboxPatch((box.x_min, box.y_min), *size, boxstyle=shape, **style))


def _draw_node(axes: Axes, node: Node, x: float, y: float) -> None:
    if is_dot(node):
        axes.add_patch(Circle((x, y), SIZES.dot, facecolor="black", zorder=3))
        # Parameter names are user-defined and are shown literally.
        text = literal(node.label) if node.kind == "parameter" else _mathematics(node.symbol)
        axes.text(x, y + SIZES.dot + 0.06, text, ha="center", va="bottom", fontsize=11)
        return
    style = {"facecolor": _OBSERVED if node.kind == "observed" else "white", "edgecolor": "black", "zorder": 3}
    if node.kind == "process":
        half = 0.85 * SIZES.radius
        _draw_rectangle(axes, Box(x - half, y - half, x + half, y + half), 0.05, **style)
    else:
        axes.add_patch(Circle((x, y), SIZES.radius, **style))
    axes.text(x, y, _mathematics(node.symbol), ha="center", va="center", fontsize=12, zorder=4)


def _draw_edge(axes: Axes, start: np.ndarray, end: np.ndarray, radii: list[float], obstacles: list[Box]) -> None:
    """Draw an arrow from rim to rim of two nodes, with the least bend that avoids all other nodes and labels."""
    across = np.array([end[1] - start[1], start[0] - end[0]])
    t = np.linspace(0.0, 1.0, 50)[:, None]
    low, high = np.array(obstacles)[:, None, :2], np.array(obstacles)[:, None, 2:]
    hidden = []
    for bend in _BENDS:
        # Matplotlib's arc3 is the Bezier curve with this control point.
        control = 0.5 * (start + end) + bend * across
        curve = (1.0 - t) ** 2 * start + 2.0 * t * (1.0 - t) * control + t**2 * end
        hidden.append(np.sum(np.all((curve > low) & (curve < high), axis=-1)))
    bend = _BENDS[int(np.argmin(hidden))]
    shrink = [72 * SIZES.inches * radius for radius in radii]
    axes.add_patch(
        FancyArrowPatch(
            tuple(start), tuple(end), arrowstyle="-|>", mutation_scale=11, linewidth=0.9, color="black", zorder=2,
            connectionstyle=f"arc3,rad={bend}", shrinkA=shrink[0], shrinkB=shrink[1],
        )
    )  # fmt: skip


def _mathematics(tree: Tree) -> str:
    """Return a symbol of the derivation, such as f[c] or u2, with indices as subscripts."""
    base, index = (to_text(tree.base), to_text(tree.index)) if isinstance(tree, Indexed) else (to_text(tree), "")
    symbol, number = split_name(base)
    below = ",".join(part for part in (number, index) if part)
    return f"${_SYMBOLS.get(symbol, symbol)}_{{{below}}}$" if below else f"${_SYMBOLS.get(symbol, symbol)}$"


def _key(graph: AugmentedGraph) -> tuple[list[Line2D], list[str]]:
    kinds = {node.kind for node in graph.nodes}
    shapes = {
        "observed": ("observed", "o", _OBSERVED),
        "latent or auxiliary" if "auxiliary" in kinds else "latent": ("latent", "o", "white"),
        "Gaussian process": ("process", "s", "white"),
        "parameter or hyperparameter" if "parameter" in kinds else "hyperparameter": ("hyperparameter", ".", "black"),
    }
    shown = {name: shape for name, shape in shapes.items() if shape[0] in kinds}
    handles = [
        Line2D([], [], linestyle="", color="black", marker=marker, markerfacecolor=face, markersize=8)
        for _, marker, face in shown.values()
    ]
    return handles, list(shown)
