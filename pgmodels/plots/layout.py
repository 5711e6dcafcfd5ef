"""Layout of a graph with plates: nodes in layers, each plate a rectangle around its nodes and no others."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from pgmodels.augmentation.graph import AugmentedGraph, Node, Plate

# Lengths are in units of about 0.6 inches.
LAYER = 1.7
RADIUS = 0.36
DOT = 0.07
_STEP = 0.5
_CHARACTER = 0.155
# Distances: between neighbours, from arrows, and of a plate to its content, at the sides, the bottom and the top.
_GAP, _CLEARANCE, _SIDE, _BOTTOM, _TOP, _LABEL = 0.3, 0.08, 0.22, 0.42, 0.18, 0.36
# Costs of overlaps, arrows through nodes or labels, crossings of arrows, and nodes of one kind out of order. Slanted
# arrows cost about 1.
_OVERLAP, _HIDDEN, _CROSSING, _ORDER = 1000.0, 100.0, 12.0, 3.0
_RESTARTS = 6


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


def node_box(node: Node, x: float, y: float) -> Box:
    """The rectangle of a node with its label, which is above the node for a dot."""
    if is_dot(node):
        half = max(DOT, 0.5 * _CHARACTER * len(node.label))
        return Box(x - half, y - DOT, x + half, y + 0.42)
    return Box(x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS)


def is_dot(node: Node) -> bool:
    """Whether a node is drawn as a dot, as fixed quantities are."""
    return node.kind in ("parameter", "hyperparameter")


def label_box(plate: Plate, box: Box) -> Box:
    """The rectangle of a plate's label, in the lower right corner."""
    return Box(box.x_max - _label_width(plate), box.y_min, box.x_max, box.y_min + _LABEL)


def _label_width(plate: Plate) -> float:
    return _CHARACTER * len(plate.label) + 0.14


def lay_out(graph: AugmentedGraph) -> Layout:
    """Layers by longest paths, and positions within them of low cost, by coordinate descent from several starts.

    Deterministic. Ancestors of a plate's nodes are above its rectangle, descendants below.
    """
    search = _Search(graph)
    x = min((search.descend(start) for start in search.starts()), key=search.cost)
    boxes = search.boxes(x)[len(graph.nodes) :].tolist()
    centres = zip(x.tolist(), search.y.tolist(), strict=True)
    return Layout(
        {node.id: centre for node, centre in zip(graph.nodes, centres, strict=True)},
        {plate.id: Box(*box) for plate, box in zip(search.plates, boxes, strict=False)},
    )


def _layers(edges: Int[np.ndarray, "e 2"], inside: np.ndarray) -> np.ndarray:
    """The layer of each node, 0 at the top: below all its parents; ancestors of a plate's nodes are above the plate."""
    count = inside.shape[1]
    after = np.zeros((count, count), dtype=bool)
    after[tuple(edges.T)] = True
    follows = np.linalg.matrix_power(np.eye(count, dtype=int) + after, count) > 0
    for members in inside:
        leads_in, leads_out = follows[:, members].any(axis=1), follows[members].any(axis=0)
        after |= np.outer(leads_in & ~leads_out, members) | np.outer(members, leads_out & ~leads_in)
    layers = np.zeros(count, dtype=int)
    for _ in range(count):
        layers = np.max(after * (layers[:, None] + 1), axis=0)
    # Nodes without parents go just above their highest child.
    highest = np.min(np.where(after, layers, count), axis=1) - 1
    return np.where(after.any(axis=0), layers, highest)


class _Search:
    """Horizontal positions of the nodes of a graph in fixed layers."""

    def __init__(self, graph: AugmentedGraph):
        nodes, n = graph.nodes, len(graph.nodes)
        index = {node.id: k for k, node in enumerate(nodes)}
        # Inner plates first, since outer rectangles contain them: they have fewer nodes, or come later.
        inside = np.array([[plate in graph.plates_of(node) for node in nodes] for plate in graph.plates])
        order = sorted(range(len(inside)), key=lambda p: (inside[p].sum(), -p))
        self.plates, inside = [graph.plates[p] for p in order], inside[order]
        self.widths = [_label_width(plate) for plate in self.plates]
        self.edges = np.array([(index[edge.source], index[edge.target]) for edge in graph.edges])
        self.y = -LAYER * _layers(self.edges, inside).astype(np.float64)
        self.covers = np.array([node_box(node, 0.0, y) for node, y in zip(nodes, self.y, strict=True)])
        # The nodes and plates in each plate, and its nodes with arrows that leave it.
        nested = [[plate.id == other.parent for other in self.plates] for plate in self.plates]
        self.members = np.hstack([inside, np.array(nested)])
        source, target = self.edges.T
        self.leaving = [source[members[source] & ~members[target]] for members in inside]
        # Pairs of nodes, plates and labels that must not overlap, and nodes and labels that an arrow must not cross.
        size = n + 2 * len(self.plates)
        apart = np.triu(np.ones((size, size), dtype=bool), 1)
        apart[: n + len(self.plates), n : n + len(self.plates)] &= ~self.members.T
        apart[n:, n + len(self.plates) :] = False
        self.apart = apart
        self.obstacles = np.ones((len(self.edges), size), dtype=bool)
        self.obstacles[:, n : n + len(self.plates)] = False
        self.obstacles[np.arange(len(self.edges))[:, None], self.edges] = False
        self.disjoint = ~(self.edges[:, None, :, None] == self.edges[None, :, None, :]).any(axis=(2, 3))
        kinds = np.array([node.kind for node in nodes])
        self.leading = np.isin(kinds, ("process", "latent", "hyperparameter"))
        self.ordered = np.triu((kinds[:, None] == kinds) & (self.y[:, None] == self.y), 1)
        widest = np.unique(self.y, return_counts=True)[1].max()
        longest = max(len(node.label) for node in nodes)
        self.grid = np.arange(0.0, 1.6 * widest + 0.5 * _CHARACTER * longest + 1.0, _STEP)

    def starts(self) -> np.ndarray:
        """Positions to start from: each layer in the order of the graph, and random ones."""
        rank = np.tril(self.y[:, None] == self.y, -1).sum(axis=1)
        rng = np.random.default_rng(0)
        return np.vstack(
            [self.grid[np.minimum(3 * rank, len(self.grid) - 1)], rng.choice(self.grid, (_RESTARTS, len(rank)))]
        )

    def descend(self, x: np.ndarray) -> np.ndarray:
        """Positions with a locally minimal cost: moving any single node does not lower it."""
        least = np.inf
        while float(self.cost(x)) < least - 1e-9:
            least = float(self.cost(x))
            for k in range(len(x)):
                tried = np.repeat(x[None], len(self.grid), axis=0)
                tried[:, k] = self.grid
                x = tried[np.argmin(self.cost(tried))]
        return x

    def boxes(self, x: Float[np.ndarray, "*tried nodes"]) -> Float[np.ndarray, "*tried boxes 4"]:
        """The rectangles of nodes, plates and the plates' labels at some positions."""
        zero = np.zeros_like(x)
        boxes = np.stack([x, zero, x, zero], axis=-1) + self.covers
        for plate, width in enumerate(self.widths):
            content = boxes[..., self.members[plate, : boxes.shape[-2]], :]
            x_min, y_min, _, _ = np.moveaxis(content.min(axis=-2), -1, 0)
            _, _, x_max, y_max = np.moveaxis(content.max(axis=-2), -1, 0)
            # The label is right of the arrows.
            leaving = x[..., self.leaving[plate]].max(axis=-1, initial=-np.inf) + 0.12 + width
            right = np.maximum(x_max + _SIDE, leaving)
            box = np.stack([np.minimum(x_min - _SIDE, right - width), y_min - _BOTTOM, right, y_max + _TOP], axis=-1)
            boxes = np.concatenate([boxes, box[..., None, :]], axis=-2)
        labels = boxes[..., len(self.y) :, :].copy()
        labels[..., 0], labels[..., 3] = labels[..., 2] - self.widths, labels[..., 1] + _LABEL
        return np.concatenate([boxes, labels], axis=-2)

    def cost(self, x: Float[np.ndarray, "*tried nodes"]) -> Float[np.ndarray, " *tried"]:
        """The cost of positions."""
        boxes, lean = self.boxes(x), x[..., self.edges[:, 0]] - x[..., self.edges[:, 1]]
        # Prefer vertical arrows, latents on the left, auxiliaries on the right, and a narrow figure.
        total = (np.abs(lean) + 0.1 * lean**2).sum(-1) + 0.3 * np.ptp(x, axis=-1)
        total += 0.05 * x[..., self.leading].sum(-1) + 0.01 * x.sum(-1)
        total += _ORDER * (self.ordered & (x[..., :, None] > x[..., None, :])).sum((-1, -2))
        low, high = boxes[..., :2], boxes[..., 2:] + [_GAP, 0.0]
        before = (low[..., :, None, :] < high[..., None, :, :]).all(-1)
        total += _OVERLAP * (before & np.swapaxes(before, -1, -2) & self.apart).sum((-1, -2))
        places = np.stack(np.broadcast_arrays(x, self.y), axis=-1)
        start, end = places[..., self.edges[:, 0], :], places[..., self.edges[:, 1], :]
        low, high = boxes[..., None, :, :2] - _CLEARANCE, boxes[..., None, :, 2:] + _CLEARANCE
        # Where each arrow, from 0 to 1, enters and leaves each rectangle (Liang and Barsky 1984).
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = [(side - start[..., None, :]) / (end - start)[..., None, :] for side in (low, high)]
        meets = np.maximum(np.minimum(*ends).max(-1), 0.0) < np.minimum(np.maximum(*ends).min(-1), 1.0)
        total += _HIDDEN * (meets & self.obstacles).sum((-1, -2))
        sides = [_sides(start, end, points) for points in (start, end)]
        parted = sides[0] * sides[1] < 0
        crossing = parted & np.swapaxes(parted, -1, -2) & self.disjoint
        return total + 0.5 * _CROSSING * crossing.sum((-1, -2))


def _sides(start: np.ndarray, end: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The side of each line on which each point lies, as a sign, (..., lines, points)."""
    step, away = (end - start)[..., :, None, :], points[..., None, :, :] - start[..., :, None, :]
    return step[..., 0] * away[..., 1] - step[..., 1] * away[..., 0]
