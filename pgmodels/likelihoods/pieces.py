"""Pieces of a support: intervals and sequences of unit steps, and quadrature points that cover them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

# The range in which the mode of a density is searched first, in coordinates of an interval: y itself (-1e43 to 1e43),
# the log distance from one end, or the logit of the relative position between two ends.
_WIDE = 100.0
_LOGIT_REACH = 36.0  # σ(36) is the last that differs from 1 in double precision
# The number of refinements of the search, and of points in each.
_REFINEMENTS, _POINTS = 8, 64
_LARGEST = 1e300

LogDensity = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Piece:
    """A piece of a support: the interval from ``low`` to ``high``, or if ``is_discrete`` low, low + 1, ..., high.

    If y has several columns, the piece contains values of the first, and ``others`` are the columns after it; None
    means the datum's own columns. Ends may be infinite; ends and others are numbers, or arrays with an entry for each
    datum.
    """

    low: float | np.ndarray
    high: float | np.ndarray
    is_discrete: bool = False
    others: ArrayLike | None = None

    def ends(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The ends for each of n data, (n,) each."""
        low, high = (np.broadcast_to(np.asarray(end, dtype=np.float64), (n,)) for end in (self.low, self.high))
        return low, high

    def inside(self, n: int) -> np.ndarray:
        """A value in the piece for each of n data, (n,): the smallest of a sequence, or one inside an interval."""
        low, high = self.ends(n)
        below, above = np.isfinite(low), np.isfinite(high)
        if self.is_discrete:
            return np.select([below, above], [low, high], default=0.0)
        with np.errstate(invalid="ignore"):
            return np.select([below & above, below, above], [0.5 * (low + high), low + 1.0, high - 1.0], default=0.0)

    def holds(self, y: np.ndarray) -> np.ndarray:
        """Whether the first column of each datum of y is in the piece, (n,)."""
        first = y if y.ndim == 1 else y[:, 0]
        low, high = self.ends(len(first))
        return (first >= low) & (first <= high) & (not self.is_discrete or (first - low) % 1.0 == 0.0)

    def columns(self, first: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Observations (points, n) or (points, n, columns) with ``first`` (points, n) as the first column of y."""
        if y.ndim == 1:
            return first
        others = y[:, 1:] if self.others is None else np.broadcast_to(self.others, y[:, 1:].shape)
        return np.concatenate([first[..., None], np.broadcast_to(others, (*first.shape, others.shape[-1]))], axis=-1)


def steps(low: np.ndarray, high: np.ndarray, max_points: float = np.inf) -> tuple[np.ndarray, np.ndarray]:
    """low, low + 1, ... up to high, at most ``max_points``: points (points, n), and a mask of existing points."""
    length = np.max(np.minimum(high - low, max_points - 1.0), initial=0.0)
    points = low + np.arange(length + 1.0)[:, None]
    return np.minimum(points, high), points <= high


def outermost(low: np.ndarray, high: np.ndarray, max_points: int) -> tuple[np.ndarray, ...]:
    """Up to ``max_points`` unit steps up from low and down from high, if that is finite, and the interval in between.

    Returns points (points, n), a mask of existing points, and the ends of the interval, (n,) each, with low >= high if
    it is empty.
    """
    points, exists = steps(low, high, max_points)
    last = low + max_points - 1.0
    beyond = np.max(high - last, initial=0.0, where=np.isfinite(high))
    top = high - np.arange(min(beyond, float(max_points)))[:, None]
    inside = np.isfinite(top) & (top > last)
    points, exists = np.concatenate([points, np.where(inside, top, low)]), np.concatenate([exists, inside])
    return points, exists, last + 0.5, high - max_points + 0.5


def cover(
    log_density: LogDensity,
    low: np.ndarray,
    high: np.ndarray,
    standard: np.ndarray,
    centre: Any = None,
    mass: Any = 1.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Quadrature points of intervals, dense near the mode and out to the far tails: y, log p, log dy/ds (points, n).

    In the coordinate y, log|y - end| or the logit of y between its ends, the points are centre + scale sinh(s) with s
    from ``standard``. The centre is the mode by default, and the scale follows from the mass and the density at the
    centre. Points rounded onto an end have log p = log dy/ds = -inf.
    """

    def evaluate(t: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        y, log_slope = _place(low, high, t)
        log_p = np.where(np.isfinite(log_slope), np.nan_to_num(log_density(y), nan=-np.inf, neginf=-np.inf), -np.inf)
        return y, log_p, log_slope

    def log_mass(t: np.ndarray) -> np.ndarray:
        _, log_p, log_slope = evaluate(t)
        return log_p + log_slope

    if centre is None:
        centre, height = _mode(log_mass, low, high, len(standard))
    else:
        centre = np.broadcast_to(centre, low.shape)
        height = log_mass(centre[None, :])[0]
    # The log standard deviation of a Gaussian with this height and mass; densities themselves may over- or underflow.
    log_scale = np.clip(np.nan_to_num(np.log(0.4 * mass) - height, neginf=0.0, posinf=0.0), -600.0, 600.0)
    s = standard[:, None]
    y, log_p, log_slope = evaluate(centre + np.exp(log_scale) * np.sinh(s))
    return y, log_p, log_slope + log_scale + np.log(np.cosh(s))


def _mode(log_mass: LogDensity, low: np.ndarray, high: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The mode of the density in the coordinate and its log density, (n,), by grid search with ``count`` points."""
    line, columns = np.linspace(-1.0, 1.0, count)[:, None], np.arange(len(low))
    below, above = np.isfinite(low), np.isfinite(high)
    points = np.select(
        [below & above, below | above], [_LOGIT_REACH * line, _WIDE * line], default=np.sinh(_WIDE * line)
    )
    spacing = np.gradient(points, axis=0)
    line = np.linspace(-1.0, 1.0, _POINTS)[:, None]
    for _ in range(_REFINEMENTS):
        best = log_mass(points).argmax(axis=0)
        t, step = points[best, columns], spacing[best, columns]
        points = t + step * line
        spacing = np.broadcast_to(step * (line[1] - line[0]), points.shape)
    height = log_mass(points)
    best = height.argmax(axis=0)
    return points[best, columns], height[best, columns]


def _place(low: np.ndarray, high: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """y and log dy/dt at coordinates t (points, n) of intervals."""
    below, above = np.isfinite(low), np.isfinite(high)
    with np.errstate(over="ignore", invalid="ignore"):
        width = np.where(below & above, high - low, 1.0)
        y = np.select(
            [below & above, below, above],
            [low + width * scipy.special.expit(t), low + np.exp(t), high - np.exp(t)],
            default=t,
        )
        between = np.log(width) + scipy.special.log_expit(t) + scipy.special.log_expit(-t)
    log_slope = np.select([below & above, below | above], [between, t], default=0.0)
    # Points rounded onto an end or to infinity have weight 0.
    return np.clip(y, -_LARGEST, _LARGEST), np.where((y > low) & (y < high), log_slope, -np.inf)
