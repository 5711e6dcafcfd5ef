"""Rectangles and segments: what overlaps, passes and crosses. Coordinates are numbers or arrays of any shapes."""

from typing import Any, NamedTuple

import numpy as np

Coordinate = Any  # a number, or an array of any shape


class Segment(NamedTuple):
    """A line from a first point to a second."""

    x: Coordinate
    y: Coordinate
    to_x: Coordinate
    to_y: Coordinate

    def at(self, places: np.ndarray) -> "Segment":
        """Those at places of the last axis."""
        return Segment(*(np.asarray(c)[..., places] for c in self))

    def over(self) -> "Segment":
        """With an axis more at the end."""
        return Segment(*(np.asarray(c)[..., None] for c in self))

    def side(self, x: Coordinate, y: Coordinate) -> Coordinate:
        """Positive on one side of the line, negative on the other."""
        return (self.to_x - self.x) * (y - self.y) - (self.to_y - self.y) * (x - self.x)

    def crosses(self, other: "Segment") -> np.ndarray:
        """Whether each has its ends on both sides of the other."""
        here = self.side(other.x, other.y) * self.side(other.to_x, other.to_y)
        there = other.side(self.x, self.y) * other.side(self.to_x, self.to_y)
        return np.less(here, 0) & np.less(there, 0)


class Box(NamedTuple):
    """A rectangle."""

    left: Coordinate
    bottom: Coordinate
    right: Coordinate
    top: Coordinate

    def at(self, places: np.ndarray | list[int]) -> "Box":
        """Those at places of the last axis."""
        return Box(*(np.asarray(c)[..., places] for c in self))

    def over(self) -> "Box":
        """With an axis more at the end."""
        return Box(*(np.asarray(c)[..., None] for c in self))

    def across(self) -> "Box":
        """With an axis more before the last."""
        return Box(*(np.asarray(c)[..., None, :] for c in self))

    def grow(self, left: float = 0.0, bottom: float = 0.0, right: float = 0.0, top: float = 0.0) -> "Box":
        """The rectangle with a margin."""
        return Box(self.left - left, self.bottom - bottom, self.right + right, self.top + top)

    def union(self, other: "Box") -> "Box":
        """The smallest rectangle that holds both."""
        low = [np.minimum(a, b) for a, b in zip(self[:2], other[:2], strict=True)]
        return Box(*low, *(np.maximum(a, b) for a, b in zip(self[2:], other[2:], strict=True)))

    def overlaps(self, other: "Box") -> np.ndarray:
        """Whether the two share more than an edge."""
        sideways = np.less(self.left, other.right) & np.less(other.left, self.right)
        return sideways & np.less(self.bottom, other.top) & np.less(other.bottom, self.top)


def passes(line: Segment, box: Box, margin: float = 0.08) -> np.ndarray:
    """Whether a segment enters a rectangle (Liang and Barsky 1984)."""
    low, high = np.zeros(()), np.ones(())
    wide = box.grow(margin, margin, margin, margin)
    # A segment along an axis is inside for ever (-inf to inf), or never.
    with np.errstate(divide="ignore", invalid="ignore"):
        sides = ((line.x, line.to_x, wide.left, wide.right), (line.y, line.to_y, wide.bottom, wide.top))
        for start, end, near, far in sides:
            step = np.subtract(end, start)
            first, second = np.divide(near - start, step), np.divide(far - start, step)
            low, high = np.maximum(low, np.minimum(first, second)), np.minimum(high, np.maximum(first, second))
        return low < high
