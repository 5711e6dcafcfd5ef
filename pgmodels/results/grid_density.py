"""Densities of one variable each on standardised grids: moments, quantiles, and maps from a standard normal."""

from functools import cache, cached_property
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from pgmodels.data.arrays import as_numbers
from pgmodels.numerics.quadrature import gauss_hermite
from pgmodels.runtime.formatting import shorten

# A density's grid, in units of its scale.
REACH = 7.0
GRID = np.linspace(-REACH, REACH, 193)
_STEP = GRID[1] - GRID[0]
# Nodes of a narrow normal, and the least density.
_FEW_NODES, _TINY = 8, 1e-300
# Standard normal scores of the map's knots.
_SCORES = np.linspace(-8.0, 8.0, 129)


@cache
def interpolation(num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Evenly spaced nodes, and the matrix (grid, nodes) of cubic spline interpolation from these."""
    from scipy.interpolate import CubicSpline

    nodes = np.linspace(-REACH, REACH, num_nodes)
    return nodes, CubicSpline(nodes, np.eye(num_nodes))(GRID)


class GridDensity:
    """Densities (...) at ``location + scale * GRID``, from their unnormalised logarithms (..., grid).

    ``scale`` may be 0: the density is then a point mass. ``log_masses`` are the logarithms of the integrals.
    """

    def __init__(self, location: np.ndarray, scale: np.ndarray, log_density: np.ndarray):
        # An element of an array of densities is one density, whose arrays have no axis.
        self.location, self.scale, self.log_density = np.asarray(location), np.asarray(scale), log_density
        peak = log_density.max(axis=-1, keepdims=True)
        density = np.exp(log_density - peak)
        mass = _STEP * (density.sum(axis=-1, keepdims=True) - 0.5 * (density[..., :1] + density[..., -1:]))
        self.density = density / mass
        self.log_masses = (peak + np.log(mass))[..., 0] + np.log(np.where(scale > 0, scale, 1.0))

    def __getitem__(self, where: Any) -> "GridDensity":
        """Some of the densities."""
        return GridDensity(self.location[where], self.scale[where], self.log_density[where])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array of densities."""
        return self.location.shape

    def moved(self, by: np.ndarray) -> "GridDensity":
        """The densities of the variables plus constants (...)."""
        return GridDensity(self.location + by, self.scale, self.log_density)

    def widened(self, variance: Any) -> "GridDensity":
        """The densities of the variables plus independent normal ones with these variances (...)."""
        if not np.any(variance):
            return self
        scale = np.sqrt(self.scale**2 + variance)
        # Deviations of both in units of the new scale.
        added, share = (np.ravel(part / scale) for part in (np.sqrt(variance * np.ones(self.shape)), self.scale))
        total, nodes = np.empty((added.size, len(GRID))), gauss_hermite(_FEW_NODES)
        for row, density in enumerate(self.density.reshape(-1, len(GRID))):
            if added[row] < _STEP * share[row]:
                # A normal that is narrow against the grid.
                places = (GRID[:, None] - added[row] * nodes[0]) / share[row]
                total[row] = np.interp(places, GRID, density, 0.0, 0.0) @ nodes[1]
            else:
                scores = (GRID[:, None] - share[row] * GRID) / added[row]
                total[row] = np.exp(-0.5 * scores**2) @ density
        log_density = np.log(np.maximum(total, _TINY)).reshape(self.density.shape)
        return GridDensity(self.location, scale, log_density)

    @cached_property
    def mean(self) -> np.ndarray:
        """Means (...)."""
        return self.location + self.scale * self._standard[0]

    @cached_property
    def variance(self) -> np.ndarray:
        """Variances (...)."""
        return self.scale**2 * self._standard[1]

    @cached_property
    def skewness(self) -> np.ndarray:
        """Third central moments in units of the standard deviation (...)."""
        centre, variance = self._standard
        third = self._integral((GRID - centre[..., None]) ** 3)
        return third / variance**1.5

    def pdf(self, values: np.ndarray) -> np.ndarray:
        """The densities at values (k, ...), broadcast against the densities; zero beyond the grid."""
        with np.errstate(divide="ignore", invalid="ignore"):
            z = (values - self.location) / self.scale
        flat = np.broadcast_to(z, (len(z), *self.shape)).reshape(len(z), self.location.size)
        rows = zip(flat.T, self.density.reshape(-1, len(GRID)), strict=True)
        at = np.stack([np.interp(row, GRID, density, 0.0, 0.0) for row, density in rows], axis=1)
        return at.reshape(len(z), *self.shape) / self.scale

    def quantiles(self, levels: ArrayLike) -> np.ndarray:
        """Quantiles (levels, ...) at levels between 0 and 1."""
        scores = scipy.special.ndtri(check_levels(levels))
        return self.transport(np.broadcast_to(scores.reshape(-1, *[1] * len(self.shape)), (len(scores), *self.shape)))

    def wasserstein(self, sorted_draws: np.ndarray) -> np.ndarray:
        """Wasserstein-1 distances (...) from sorted draws (draws, ...), by the quantiles in the middle of each step."""
        levels = (np.arange(len(sorted_draws)) + 0.5) / len(sorted_draws)
        return np.mean(abs(sorted_draws - self.quantiles(levels)), axis=0)

    def transport(self, scores: np.ndarray, rows: Any = ...) -> np.ndarray:
        """The increasing maps of standard normal variables to ones with these densities.

        ``scores`` are (k, ...), for the densities at ``rows`` of the first axis.
        """
        step, spline = _SCORES[1] - _SCORES[0], self._map[:, rows]
        interval = np.clip(((scores - _SCORES[0]) / step).astype(int), 0, len(_SCORES) - 2)
        inside = np.clip(scores, _SCORES[0], _SCORES[-1])
        offset = inside - _SCORES[interval]
        a, b, c, d = (np.take_along_axis(part[None], interval[..., None], axis=-1)[..., 0] for part in spline)
        z = d + offset * (c + offset * (b + offset * a))
        # Beyond the scores of the map, the scores themselves, moved: these have less than 1e-14 of the mass.
        return self.location[rows] + self.scale[rows] * (z + scores - inside)

    @cached_property
    def _standard(self) -> tuple[np.ndarray, np.ndarray]:
        mean = self._integral(GRID)
        return mean, self._integral((GRID - mean[..., None]) ** 2)

    def _integral(self, values: np.ndarray) -> np.ndarray:
        product = self.density * values
        return _STEP * (product.sum(axis=-1) - 0.5 * (product[..., 0] + product[..., -1]))

    @cached_property
    def _map(self) -> np.ndarray:
        """Coefficients (4, ..., intervals) of the spline of the map from scores to the grid's units."""
        from scipy.interpolate import CubicSpline

        between = 0.5 * _STEP * (self.density[..., 1:] + self.density[..., :-1])
        below, above = np.cumsum(between, axis=-1), np.cumsum(between[..., ::-1], axis=-1)[..., ::-1]
        edge = np.zeros((*self.shape, 1))
        with np.errstate(divide="ignore"):
            low = scipy.special.ndtri_exp(np.log(np.minimum(np.concatenate([edge, below], axis=-1), 1.0)))
            high = -scipy.special.ndtri_exp(np.log(np.minimum(np.concatenate([above, edge], axis=-1), 1.0)))
        scores = np.where(low < 0.0, low, high).reshape(-1, len(GRID))
        table = np.empty((len(scores), len(_SCORES)))
        for row, known in enumerate(scores):
            kept = np.flatnonzero(np.isfinite(known))
            kept = kept[np.diff(known[kept], prepend=-np.inf) > 0.0]
            table[row] = _monotone(known[kept], GRID[kept]) if len(kept) else np.nan
        coefficients = CubicSpline(_SCORES, table, axis=1).c
        return np.moveaxis(coefficients, 1, -1).reshape(4, *self.shape, len(_SCORES) - 1)


def check_levels(levels: ArrayLike) -> np.ndarray:
    """Levels of quantiles as numbers (levels,); raises ValueError unless all are between 0 and 1."""
    checked = np.atleast_1d(as_numbers(levels, "levels"))
    if checked.ndim != 1 or not ((checked > 0) & (checked < 1)).all():
        raise ValueError(f"levels must be numbers between 0 and 1, such as [0.05, 0.5, 0.95]; got {shorten(levels)}.")
    return checked


def _monotone(scores: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Values at _SCORES by linear interpolation, and beyond the known scores with slope one."""
    inside = np.interp(_SCORES, scores, values)
    return inside + np.minimum(_SCORES - scores[0], 0.0) + np.maximum(_SCORES - scores[-1], 0.0)
