"""Rectangles and segments: what overlaps, passes and crosses."""

from collections.abc import Sequence
from typing import NamedTuple

Segment = tuple[float, float, float, float]


class Box(NamedTuple):
    """A rectangle."""

    left: float
    bottom: float
    right: float
    top: float

    def union(self, other: "Box") -> "Box":
        """The smallest rectangle that holds both."""
        return Box(*map(min, self[:2], other[:2]), *map(max, self[2:], other[2:]))

    def overlaps(self, other: "Box") -> bool:
        """Whether the two share more than an edge."""
        return (
            self.left < other.right and other.left < self.right and self.bottom < other.top and other.bottom < self.top
        )


def count_overlaps(boxes: Sequence[Box], gap: float) -> int:
    """Pairs of rectangles that overlap, or are nearer to each other sideways than the gap."""
    grown = [Box(box.left - gap / 2, box.bottom, box.right + gap / 2, box.top) for box in boxes]
    return sum(grown[i].overlaps(grown[j]) for i in range(len(grown)) for j in range(i))


def passes(line: Segment, box: Box, margin: float = 0.08) -> bool:
    """Whether a segment enters a rectangle (Liang and Barsky 1984)."""
    x, y, dx, dy = line[0], line[1], line[2] - line[0], line[3] - line[1]
    low, high = 0.0, 1.0
    for start, step, near, far in ((x, dx, box.left, box.right), (y, dy, box.bottom, box.top)):
        if step == 0:
            if not near - margin < start < far + margin:
                return False
            continue
        ends = sorted(((near - margin - start) / step, (far + margin - start) / step))
        low, high = max(low, ends[0]), min(high, ends[1])
    return low < high


def count_crossings(edges: Sequence[tuple[int, int]], lines: Sequence[Segment]) -> int:
    """Pairs of segments that cross, without those whose edges share a node."""
    found = 0
    for i, (edge, line) in enumerate(zip(edges, lines, strict=True)):
        for other, second in zip(edges[:i], lines[:i], strict=True):
            if not set(edge) & set(other):
                found += _cross(line, second)
    return found


def _cross(first: Segment, second: Segment) -> bool:
    (a, b, c, d), (e, f, g, h) = first, second

    def side(x: float, y: float, line: Segment) -> float:
        return (line[2] - line[0]) * (y - line[1]) - (line[3] - line[1]) * (x - line[0])

    return side(a, b, second) * side(c, d, second) < 0 and side(e, f, first) * side(g, h, first) < 0
