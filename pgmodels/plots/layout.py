"""Layout of a graph with plates: nodes in layers, each plate a rectangle around its nodes and no others."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from pgmodels.augmentation.graph import AugmentedGraph, Node, Plate
from pgmodels.plots.geometry import Box, Segment, enters

# Lengths are in units of about 0.6 inches.
LAYER = 1.7
RADIUS = 0.36
DOT = 0.07
_GAP = 0.3
_STEP = 0.5
_PLATE_SIDE, _PLATE_TOP, _PLATE_BOTTOM = 0.22, 0.18, 0.42
_CHARACTER = 0.155
_RESTARTS = 20
# Costs of a layout: overlaps, arrows through nodes, crossings of arrows, and nodes of one kind out of order. Slanted
# arrows cost about 1.
_OVERLAP, _HIDDEN, _CROSSING, _ORDER = 1000.0, 100.0, 12.0, 0.5


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


def label_width(plate: Plate) -> float:
    """The width of a plate's label with its margin."""
    return _CHARACTER * len(plate.label) + 0.14


def label_box(plate: Plate, box: Box) -> Box:
    """The rectangle of a plate's label, in the lower right corner."""
    return Box(box.x_max - label_width(plate), box.y_min, box.x_max, box.y_min + 0.36)


def lay_out(graph: AugmentedGraph) -> Layout:
    """Layers by longest paths, and positions within them by coordinate descent from several starts.

    Deterministic. Ancestors of a plate's nodes are above its rectangle, descendants below.
    """
    layers = _layers(graph)
    search = _Search(graph, layers)
    x = search.run()
    return search.layout(x)


def _layers(graph: AugmentedGraph) -> dict[str, int]:
    """The layer of each node, 0 at the top: below all its parents; ancestors of a plate's nodes are above the plate."""
    ids = [node.id for node in graph.nodes]
    descendants = {i: _reachable(i, graph) for i in ids}
    before = {i: {edge.source for edge in graph.edges if edge.target == i} for i in ids}
    for plate in graph.plates:
        inside = {node.id for node in graph.nodes if plate in graph.plates_of(node)}
        for i in set(ids) - inside:
            leads_in, follows = bool(descendants[i] & inside), any(i in descendants[j] for j in inside)
            for j in inside:
                if leads_in and not follows:
                    before[j].add(i)
                elif follows and not leads_in:
                    before[i].add(j)
    layers: dict[str, int] = {}
    while len(layers) < len(ids):
        ready = [i for i in ids if i not in layers and before[i] <= layers.keys()]
        for i in ready:
            layers[i] = max((layers[j] + 1 for j in before[i]), default=0)
    # Nodes without parents go just above their highest child.
    for i in ids:
        if not before[i]:
            layers[i] = max(0, min(layers[j] for j in ids if i in before[j]) - 1)
    return layers


def _reachable(start: str, graph: AugmentedGraph) -> set[str]:
    reachable: set[str] = set()
    front = [start]
    while front:
        at = front.pop()
        new = {edge.target for edge in graph.edges if edge.source == at} - reachable
        reachable |= new
        front += new
    return reachable


class _Search:
    """Horizontal positions of nodes in fixed layers, by coordinate descent from several starts at once."""

    def __init__(self, graph: AugmentedGraph, layers: Mapping[str, int]):
        self.graph, self.layers = graph, layers
        self.nodes = graph.nodes
        self.place = {node.id: k for k, node in enumerate(self.nodes)}
        self.y = np.array([-LAYER * layers[node.id] for node in self.nodes])
        # The rectangle of each node, relative to its centre horizontally.
        self.cover = Box(*np.array([node_box(node, 0.0, y) for node, y in zip(self.nodes, self.y, strict=True)]).T)
        joined = [(self.place[edge.source], self.place[edge.target]) for edge in graph.edges]
        self.edges = np.array(joined).reshape(-1, 2)
        self.members = {
            plate.id: [k for k, node in enumerate(self.nodes) if plate in graph.plates_of(node)]
            for plate in graph.plates
        }
        self.inner = {plate.id: [p for p in graph.plates if p.parent == plate.id] for plate in graph.plates}
        # Inner plates first, since outer rectangles contain them.
        self.order = sorted(graph.plates, key=lambda plate: -self._depth(plate))
        self.siblings = [
            (one.id, other.id)
            for i, one in enumerate(graph.plates)
            for other in graph.plates[:i]
            if one.parent == other.parent
        ]
        kinds = ("process", "latent", "hyperparameter")
        self.leading = [k for k, node in enumerate(self.nodes) if node.kind in kinds]
        alike = [(node.kind, layers[node.id]) for node in self.nodes]
        self.pairs = _pairs(len(alike), lambda i, j: True)
        self.ordered = _pairs(len(alike), lambda i, j: alike[i] == alike[j])
        self.apart = _pairs(len(self.edges), lambda i, j: not set(self.edges[i]) & set(self.edges[j]))
        # The nodes that an arrow does not join, (edges, nodes).
        self.others = np.array([[k not in edge for k in range(len(alike))] for edge in self.edges.tolist()])
        widest = max(np.bincount(list(layers.values())))
        labels = max(len(node.label) for node in self.nodes)
        self.grid = np.arange(0.0, 1.6 * widest + 0.5 * _CHARACTER * labels + 1.0, _STEP)

    def _depth(self, plate: Plate) -> int:
        parents = {p.id: p.parent for p in self.graph.plates}
        depth, at = 0, plate.parent
        while at is not None:
            depth, at = depth + 1, parents[at]
        return depth

    def run(self) -> np.ndarray:
        """The positions of lowest cost."""
        rng = np.random.default_rng(0)
        x = np.stack([self._barycentres(), *rng.choice(self.grid, (_RESTARTS, len(self.nodes)))])
        best = self.cost(x)
        improved = np.ones(len(x), dtype=bool)
        while improved.any():
            moving = np.flatnonzero(improved)
            improved[:] = False
            for k in range(len(self.nodes)):
                tried = np.repeat(x[moving, None, :], len(self.grid), axis=1)
                tried[:, :, k] = self.grid
                costs = self.cost(tried)
                at = costs.argmin(axis=1)
                least = costs[np.arange(len(moving)), at]
                better = least < best[moving] - 1e-9
                x[moving[better], k] = self.grid[at[better]]
                best[moving[better]], improved[moving[better]] = least[better], True
        return x[best.argmin()]

    def _barycentres(self) -> np.ndarray:
        """Nodes of each layer in the order of the mean position of their parents."""
        x = np.zeros(len(self.nodes))
        for layer in sorted(set(self.layers.values())):
            here = [k for k, node in enumerate(self.nodes) if self.layers[node.id] == layer]
            parents = {k: [x[s] for s, t in self.edges if t == k] for k in here}
            here.sort(key=lambda k: float(np.mean(parents[k])) if parents[k] else 0.0)
            for rank, k in enumerate(here):
                x[k] = self.grid[min(3 * rank, len(self.grid) - 1)]
        return x

    def layout(self, x: np.ndarray) -> Layout:
        """The layout of positions (nodes,)."""
        nodes = {node.id: (float(a), float(b)) for node, a, b in zip(self.nodes, x, self.y, strict=True)}
        plates = self._plates(x, self._boxes(x))
        return Layout(nodes, {name: Box(*map(float, box)) for name, box in plates.items()})

    def _boxes(self, x: np.ndarray) -> Box:
        """The rectangles of the nodes: a Box with coordinates (..., nodes)."""
        return Box(x + self.cover.x_min, self.cover.y_min, x + self.cover.x_max, self.cover.y_max)

    def _plates(self, x: np.ndarray, boxes: Box) -> dict[str, Box]:
        plates: dict[str, Box] = {}
        for plate in self.order:
            inside = self.members[plate.id]
            content = Box(
                boxes.x_min[..., inside].min(-1),
                boxes.y_min[inside].min(),
                boxes.x_max[..., inside].max(-1),
                boxes.y_max[inside].max(),
            )
            for inner in self.inner[plate.id]:
                content = content.union(plates[inner.id])
            x_max = np.maximum(content.x_max + _PLATE_SIDE, self._clear_of_arrows(plate, x) + label_width(plate))
            x_min = np.minimum(content.x_min - _PLATE_SIDE, x_max - label_width(plate))
            plates[plate.id] = Box(x_min, content.y_min - _PLATE_BOTTOM, x_max, content.y_max + _PLATE_TOP)
        return plates

    def _clear_of_arrows(self, plate: Plate, x: np.ndarray) -> np.ndarray:
        """The smallest x of a plate's label that is right of all arrows leaving its lowest nodes."""
        members = self.members[plate.id]
        lowest = self.y[members].min()
        leading = [s for s, t in self.edges if s in members and t not in members and self.y[s] == lowest]
        return x[..., leading].max(-1, initial=-np.inf) + 0.12

    def cost(self, x: np.ndarray) -> np.ndarray:
        """The cost of positions (..., nodes)."""
        boxes = self._boxes(x)
        source, target = self.edges.T
        lean = x[..., source] - x[..., target]
        # Prefer vertical arrows, latents on the left, auxiliaries on the right, and a narrow figure.
        total = (np.abs(lean) + 0.1 * lean**2).sum(-1)
        total = total + 0.3 * np.ptp(x, axis=-1) + 0.05 * x[..., self.leading].sum(-1) + 0.01 * x.sum(-1)
        total += _ORDER * (x[..., self.ordered[0]] > x[..., self.ordered[1]]).sum(-1)
        near = boxes.grow(_GAP / 2, 0.0)
        total += _OVERLAP * near.take(self.pairs[0]).overlaps(near.take(self.pairs[1])).sum(-1)
        plates = self._plates(x, boxes)
        lines = Segment(x[..., source], self.y[source], x[..., target], self.y[target])
        obstacles = [(boxes, self.others)]
        for plate in self.graph.plates:
            outside = [k for k in range(len(self.nodes)) if k not in self.members[plate.id]]
            box = plates[plate.id]
            label = label_box(plate, box)
            total += _OVERLAP * boxes.take(outside).overlaps(box.expand(-1)).sum(-1)
            total += _OVERLAP * boxes.overlaps(label.expand(-1)).sum(-1)
            obstacles.append((label.expand(-1), np.ones((len(self.edges), 1), dtype=bool)))
        for one, other in self.siblings:
            total += _OVERLAP * plates[one].overlaps(plates[other])
        total += _CROSSING * lines.take(self.apart[0]).crosses(lines.take(self.apart[1])).sum(-1)
        for box, counted in obstacles:
            total += _HIDDEN * (enters(lines.expand(-1), box.expand(-2)) & counted).sum((-2, -1))
        return total


def _pairs(count: int, wanted: Callable[[int, int], bool]) -> tuple[np.ndarray, np.ndarray]:
    """The first and second indices of the pairs i < j that are wanted."""
    indices = [(i, j) for j in range(count) for i in range(j) if wanted(i, j)]
    first, second = np.array(indices, dtype=int).reshape(-1, 2).T
    return first, second
