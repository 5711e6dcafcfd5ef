"""Drawing of the augmented graphical model."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch

from pgmodels.augmentation.graph import AugmentedGraph, Node, Plate
from pgmodels.derivation import Derivation, derive
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.likelihoods.notation import Indexed, Tree, split_name
from pgmodels.likelihoods.printers.text import to_text
from pgmodels.model import Model
from pgmodels.plots.layout import DOT, RADIUS, Box, Layout, is_dot, label_box, lay_out, node_box
from pgmodels.plots.style import literal, new_figure, settle

_INCHES = 0.62
_OBSERVED = "0.8"
_SYMBOLS = {"ω": r"\omega", "λ": r"\lambda", "θ": r"\theta", "GP": r"\mathrm{GP}"}


def plot_graph(model: Model | Likelihood | Derivation | AugmentedGraph) -> Figure:
    """Draw the augmented graph of a model, a likelihood or a derivation.

    Parameters
    ----------
    model : Model, Likelihood, Derivation or AugmentedGraph
        The object to draw.

    Returns
    -------
    matplotlib.figure.Figure
        The figure.

    Notes
    -----
    Observed variables are shaded, latent functions and auxiliary variables open circles, Gaussian processes squares,
    hyperparameters and parameters dots; the nodes of a plate are repeated.

    References
    ----------
    Galy-Fajou et al. 2019, figure 2.
    """
    if isinstance(model, AugmentedGraph):
        graph = model
    else:
        graph = (model if isinstance(model, Derivation) else derive(model)).graph
    layout = lay_out(graph)
    extent = _extent(graph, layout)
    width, height = extent.x_max - extent.x_min, extent.y_max - extent.y_min
    figure = new_figure(max(4.2, _INCHES * width + 0.3), _INCHES * height + 1.3)
    axes = figure.subplots()
    axes.set(xlim=(extent.x_min, extent.x_max), ylim=(extent.y_min, extent.y_max), aspect="equal")
    axes.set_title(f"Augmented graph of {literal(graph.name)}")
    axes.set_axis_off()
    for plate in graph.plates:
        _draw_plate(axes, plate, layout.plates[plate.id])
    nodes = {node.id: node for node in graph.nodes}
    for node in graph.nodes:
        _draw_node(axes, node, *layout.nodes[node.id])
    for edge in graph.edges:
        _draw_edge(axes, nodes[edge.source], nodes[edge.target], layout)
    handles, names = _key(graph)
    figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False, fontsize="small")
    return settle(figure)


def _extent(graph: AugmentedGraph, layout: Layout) -> Box:
    """The rectangle around the drawing, with a margin."""
    boxes = [*layout.plates.values(), *(node_box(node, *layout.nodes[node.id]) for node in graph.nodes)]
    x_min, y_min, x_max, y_max = zip(*boxes, strict=True)
    return Box(min(x_min) - 0.15, min(y_min) - 0.15, max(x_max) + 0.15, max(y_max) + 0.15)


def _draw_plate(axes: Axes, plate: Plate, box: Box) -> None:
    style = "round,pad=0,rounding_size=0.18"
    size = (box.x_max - box.x_min, box.y_max - box.y_min)
    axes.add_patch(
        FancyBboxPatch((box.x_min, box.y_min), *size, boxstyle=style, facecolor="none", edgecolor="0.35", zorder=1)
    )
    label = label_box(plate, box)
    axes.text(box.x_max - 0.14, label.y_min + 0.1, literal(plate.label), ha="right", va="bottom", fontsize=9)


def _draw_node(axes: Axes, node: Node, x: float, y: float) -> None:
    if is_dot(node):
        axes.add_patch(Circle((x, y), DOT, facecolor="black", zorder=3))
        # Names of parameters are user-defined, and shown literally.
        text = literal(node.label) if node.kind == "parameter" else _mathematics(node.symbol)
        axes.text(x, y + DOT + 0.06, text, ha="center", va="bottom", fontsize=11)
        return
    face = _OBSERVED if node.kind == "observed" else "white"
    if node.kind == "process":
        corner, side = (x - 0.85 * RADIUS, y - 0.85 * RADIUS), 1.7 * RADIUS
        style = "round,pad=0,rounding_size=0.05"
        axes.add_patch(FancyBboxPatch(corner, side, side, boxstyle=style, facecolor=face, edgecolor="black", zorder=3))
    else:
        axes.add_patch(Circle((x, y), RADIUS, facecolor=face, edgecolor="black", zorder=3))
    axes.text(x, y, _mathematics(node.symbol), ha="center", va="center", fontsize=12, zorder=4)


def _draw_edge(axes: Axes, source: Node, target: Node, layout: Layout) -> None:
    """An arrow from the rim of one node to the rim of the other."""
    (a, b), (c, d) = layout.nodes[source.id], layout.nodes[target.id]
    length = ((c - a) ** 2 + (d - b) ** 2) ** 0.5
    start, end = ((DOT if is_dot(node) else RADIUS) / length for node in (source, target))
    axes.add_patch(
        FancyArrowPatch(
            (a + start * (c - a), b + start * (d - b)),
            (c - end * (c - a), d - end * (d - b)),
            arrowstyle="-|>",
            mutation_scale=11,
            shrinkA=0,
            shrinkB=0,
            linewidth=0.9,
            color="black",
            zorder=2,
        )
    )


def _mathematics(tree: Tree) -> str:
    """A symbol of the derivation, such as f[c] or u2, with indices as subscripts."""
    base, index = (to_text(tree.base), to_text(tree.index)) if isinstance(tree, Indexed) else (to_text(tree), "")
    symbol, number = split_name(base)
    below = ",".join(part for part in (number, index) if part)
    return f"${_SYMBOLS.get(symbol, symbol)}_{{{below}}}$" if below else f"${_SYMBOLS.get(symbol, symbol)}$"


def _key(graph: AugmentedGraph) -> tuple[list[Line2D], list[str]]:
    """Legend handles and names of the kinds of nodes in the graph."""
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
