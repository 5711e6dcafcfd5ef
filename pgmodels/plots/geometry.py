"""Rectangles and line segments, and whether they overlap or cross. Coordinates are numbers or arrays of any shapes."""

from typing import Any, NamedTuple

import numpy as np

Coordinate = Any  # a number, or an array of any shape


class Segment(NamedTuple):
    """A line segment from (x, y) to (to_x, to_y)."""

    x: Coordinate
    y: Coordinate
    to_x: Coordinate
    to_y: Coordinate

    def take(self, indices: np.ndarray) -> "Segment":
        """The segments at indices of the last axis."""
        return Segment(*(np.asarray(c)[..., indices] for c in self))

    def expand(self, axis: int) -> "Segment":
        """The segments with a new axis."""
        return Segment(*(np.expand_dims(c, axis) for c in self))

    def side(self, x: Coordinate, y: Coordinate) -> Coordinate:
        """Positive on one side of the line, negative on the other."""
        return (self.to_x - self.x) * (y - self.y) - (self.to_y - self.y) * (x - self.x)

    def crosses(self, other: "Segment") -> np.ndarray:
        """Whether the segments intersect: the ends of each are on different sides of the other."""
        here = self.side(other.x, other.y) * self.side(other.to_x, other.to_y)
        there = other.side(self.x, self.y) * other.side(self.to_x, self.to_y)
        return np.less(here, 0) & np.less(there, 0)


class Box(NamedTuple):
    """A rectangle."""

    x_min: Coordinate
    y_min: Coordinate
    x_max: Coordinate
    y_max: Coordinate

    def take(self, indices: np.ndarray | list[int]) -> "Box":
        """The rectangles at indices of the last axis."""
        return Box(*(np.asarray(c)[..., indices] for c in self))

    def expand(self, axis: int) -> "Box":
        """The rectangles with a new axis."""
        return Box(*(np.expand_dims(c, axis) for c in self))

    def grow(self, x: float, y: float) -> "Box":
        """The rectangle with margins x and y on both sides."""
        return Box(self.x_min - x, self.y_min - y, self.x_max + x, self.y_max + y)

    def union(self, other: "Box") -> "Box":
        """The smallest rectangle that contains both."""
        low = [np.minimum(a, b) for a, b in zip(self[:2], other[:2], strict=True)]
        return Box(*low, *(np.maximum(a, b) for a, b in zip(self[2:], other[2:], strict=True)))

    def overlaps(self, other: "Box") -> np.ndarray:
        """Whether the interiors of the two intersect."""
        sideways = np.less(self.x_min, other.x_max) & np.less(other.x_min, self.x_max)
        return sideways & np.less(self.y_min, other.y_max) & np.less(other.y_min, self.y_max)


def enters(line: Segment, box: Box, margin: float = 0.08) -> np.ndarray:
    """Whether a segment enters a rectangle (Liang and Barsky 1984)."""
    low, high = np.zeros(()), np.ones(())
    wide = box.grow(margin, margin)
    # A segment parallel to an axis is always within its limits (-inf to inf), or never.
    with np.errstate(divide="ignore", invalid="ignore"):
        sides = ((line.x, line.to_x, wide.x_min, wide.x_max), (line.y, line.to_y, wide.y_min, wide.y_max))
        for start, end, near, far in sides:
            step = np.subtract(end, start)
            first, second = np.divide(near - start, step), np.divide(far - start, step)
            low, high = np.maximum(low, np.minimum(first, second)), np.minimum(high, np.maximum(first, second))
        return low < high
