"""Where the nodes of a graph with plates go: in layers, each plate a rectangle that holds its own nodes alone."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from pgmodels.augmentation.graph import AugmentedGraph, Node, Plate
from pgmodels.plots.geometry import Box, Segment, passes

# Lengths are in units of about 0.6 inches.
LAYER = 1.7
RADIUS = 0.36
DOT = 0.07
_GAP = 0.3
_STEP = 0.5
_PLATE_SIDE, _PLATE_TOP, _PLATE_BOTTOM = 0.22, 0.18, 0.42
_CHARACTER = 0.155
_RESTARTS = 20
# What a layout costs: overlaps most, then arrows through nodes, then crossings, then arrows that lean and
# nodes of a kind out of their order.
_OVERLAP, _HIDDEN, _CROSSING, _ORDER = 1000.0, 100.0, 12.0, 0.5


class Layout(NamedTuple):
    """Centres of nodes and rectangles of plates, by id."""

    nodes: dict[str, tuple[float, float]]
    plates: dict[str, Box]


def node_box(node: Node, x: float, y: float) -> Box:
    """What a node covers, with its label: a dot's stands above it."""
    if is_dot(node):
        half = max(DOT, 0.5 * _CHARACTER * len(node.label))
        return Box(x - half, y - DOT, x + half, y + 0.42)
    return Box(x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS)


def is_dot(node: Node) -> bool:
    """Whether a node is drawn as a dot: what is not random."""
    return node.kind in ("parameter", "hyperparameter")


def label_width(plate: Plate) -> float:
    """How wide a plate's label is, with its margin."""
    return _CHARACTER * len(plate.label) + 0.14


def label_box(plate: Plate, box: Box) -> Box:
    """What a plate's label covers, in its lower right corner."""
    return Box(box.right - label_width(plate), box.bottom, box.right, box.bottom + 0.36)


def lay_out(graph: AugmentedGraph) -> Layout:
    """Layers by longest paths; within them the positions that a descent from several starts finds best.

    Deterministic. What is above a plate's nodes in the graph is above its rectangle, what is below them below.
    """
    layers = _layers(graph)
    search = _Search(graph, layers)
    x = search.run()
    return search.layout(x)


def _layers(graph: AugmentedGraph) -> dict[str, int]:
    """The layer of each node, 0 at the top: below all its parents, outside nodes not beside a plate they lead into."""
    ids = [node.id for node in graph.nodes]
    below = {i: _reachable(i, graph) for i in ids}
    before = {i: {edge.source for edge in graph.edges if edge.target == i} for i in ids}
    for plate in graph.plates:
        inside = {node.id for node in graph.nodes if plate in graph.plates_of(node)}
        for i in set(ids) - inside:
            leads_in, follows = bool(below[i] & inside), any(i in below[j] for j in inside)
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
    # What nothing leads to stands just above what it leads to first.
    for i in ids:
        if not before[i]:
            layers[i] = max(0, min(layers[j] for j in ids if i in before[j]) - 1)
    return layers


def _reachable(start: str, graph: AugmentedGraph) -> set[str]:
    found: set[str] = set()
    front = [start]
    while front:
        at = front.pop()
        new = {edge.target for edge in graph.edges if edge.source == at} - found
        found |= new
        front += new
    return found


class _Search:
    """Horizontal positions of nodes in given layers, improved one node at a time, from several starts at once."""

    def __init__(self, graph: AugmentedGraph, layers: Mapping[str, int]):
        self.graph, self.layers = graph, layers
        self.nodes = graph.nodes
        self.place = {node.id: k for k, node in enumerate(self.nodes)}
        self.y = np.array([-LAYER * layers[node.id] for node in self.nodes])
        # What each node covers beside its centre.
        self.cover = Box(*np.array([node_box(node, 0.0, y) for node, y in zip(self.nodes, self.y, strict=True)]).T)
        joined = [(self.place[edge.source], self.place[edge.target]) for edge in graph.edges]
        self.edges = np.array(joined).reshape(-1, 2)
        self.members = {
            plate.id: [k for k, node in enumerate(self.nodes) if plate in graph.plates_of(node)]
            for plate in graph.plates
        }
        self.inner = {plate.id: [p for p in graph.plates if p.parent == plate.id] for plate in graph.plates}
        # Inner plates first, so that outer rectangles can hold them.
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
        found, at = 0, plate.parent
        while at is not None:
            found, at = found + 1, parents[at]
        return found

    def run(self) -> np.ndarray:
        """The best positions found."""
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
        """Nodes below the mean of their parents, those of a layer side by side in that order."""
        x = np.zeros(len(self.nodes))
        for layer in sorted(set(self.layers.values())):
            here = [k for k, node in enumerate(self.nodes) if self.layers[node.id] == layer]
            parents = {k: [x[s] for s, t in self.edges if t == k] for k in here}
            here.sort(key=lambda k: float(np.mean(parents[k])) if parents[k] else 0.0)
            for rank, k in enumerate(here):
                x[k] = self.grid[min(3 * rank, len(self.grid) - 1)]
        return x

    def layout(self, x: np.ndarray) -> Layout:
        """The rectangles that positions (nodes,) make."""
        nodes = {node.id: (float(a), float(b)) for node, a, b in zip(self.nodes, x, self.y, strict=True)}
        plates = self._plates(x, self._boxes(x))
        return Layout(nodes, {name: Box(*map(float, box)) for name, box in plates.items()})

    def _boxes(self, x: np.ndarray) -> Box:
        """What the nodes cover: a box whose coordinates are (..., nodes)."""
        return Box(x + self.cover.left, self.cover.bottom, x + self.cover.right, self.cover.top)

    def _plates(self, x: np.ndarray, boxes: Box) -> dict[str, Box]:
        plates: dict[str, Box] = {}
        for plate in self.order:
            inside = self.members[plate.id]
            held = Box(
                boxes.left[..., inside].min(-1),
                boxes.bottom[inside].min(),
                boxes.right[..., inside].max(-1),
                boxes.top[inside].max(),
            )
            for inner in self.inner[plate.id]:
                held = held.union(plates[inner.id])
            right = np.maximum(held.right + _PLATE_SIDE, self._clear_of_arrows(plate, x) + label_width(plate))
            left = np.minimum(held.left - _PLATE_SIDE, right - label_width(plate))
            plates[plate.id] = Box(left, held.bottom - _PLATE_BOTTOM, right, held.top + _PLATE_TOP)
        return plates

    def _clear_of_arrows(self, plate: Plate, x: np.ndarray) -> np.ndarray:
        """Where a plate's label may start, so that arrows down from its lowest nodes pass it on the left."""
        members = self.members[plate.id]
        lowest = self.y[members].min()
        leading = [s for s, t in self.edges if s in members and t not in members and self.y[s] == lowest]
        return x[..., leading].max(-1, initial=-np.inf) + 0.12

    def cost(self, x: np.ndarray) -> np.ndarray:
        """How bad positions (..., nodes) look."""
        boxes = self._boxes(x)
        source, target = self.edges.T
        lean = x[..., source] - x[..., target]
        # Arrows upright, latents on the left and auxiliaries on the right, and the whole narrow.
        total = (np.abs(lean) + 0.1 * lean**2).sum(-1)
        total = total + 0.3 * np.ptp(x, axis=-1) + 0.05 * x[..., self.leading].sum(-1) + 0.01 * x.sum(-1)
        total += _ORDER * (x[..., self.ordered[0]] > x[..., self.ordered[1]]).sum(-1)
        near = boxes.grow(left=_GAP / 2, right=_GAP / 2)
        total += _OVERLAP * near.at(self.pairs[0]).overlaps(near.at(self.pairs[1])).sum(-1)
        plates = self._plates(x, boxes)
        lines = Segment(x[..., source], self.y[source], x[..., target], self.y[target])
        obstacles = [(boxes, self.others)]
        for plate in self.graph.plates:
            outside = [k for k in range(len(self.nodes)) if k not in self.members[plate.id]]
            box = plates[plate.id]
            label = label_box(plate, box)
            total += _OVERLAP * boxes.at(outside).overlaps(box.over()).sum(-1)
            total += _OVERLAP * boxes.overlaps(label.over()).sum(-1)
            obstacles.append((label.over(), np.ones((len(self.edges), 1), dtype=bool)))
        for one, other in self.siblings:
            total += _OVERLAP * plates[one].overlaps(plates[other])
        total += _CROSSING * lines.at(self.apart[0]).crosses(lines.at(self.apart[1])).sum(-1)
        for box, counted in obstacles:
            total += _HIDDEN * (passes(lines.over(), box.across()) & counted).sum((-2, -1))
        return total


def _pairs(count: int, wanted: Callable[[int, int], bool]) -> tuple[np.ndarray, np.ndarray]:
    """The first and the second places of the pairs i < j that are wanted."""
    found = [(i, j) for j in range(count) for i in range(j) if wanted(i, j)]
    first, second = np.array(found, dtype=int).reshape(-1, 2).T
    return first, second
