"""The posterior marginal of a hyperparameter, as weighted points."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from pgmodels.data.arrays import as_numbers
from pgmodels.results.grid_density import GRID, GridDensity, check_levels

# Bandwidth of the density, in standard deviations: that of the points of a grid in three dimensions, whose projections
# on an axis may be a third of a standard deviation apart.
BANDWIDTH = 0.15
# Points contract by this factor about their mean, so that smoothing does not change mean and variance (West 1993).
CONTRACTION = np.sqrt(1.0 - BANDWIDTH**2)


@dataclass(frozen=True, eq=False)
class Marginal:
    """A posterior marginal: ``values`` (points, ...) of a hyperparameter, with the ``mass`` (points,) of each.

    Moments and quantiles are computed for each entry of the hyperparameter. Quantiles and densities are those of the
    points smoothed on the unconstrained scale, where smoothing changes neither mean nor variance. ``bounds`` are the
    lower and upper bounds of all entries, infinite where there is none; None stands for (0, infinity) if all values
    are positive, else for no bounds.
    """

    values: np.ndarray
    mass: np.ndarray
    bounds: tuple[ArrayLike, ArrayLike] | None = None

    @property
    def mean(self) -> np.ndarray:
        """The posterior mean."""
        return np.tensordot(self.mass, self.values, axes=1)

    @property
    def deviation(self) -> np.ndarray:
        """The posterior standard deviation."""
        return np.sqrt(np.tensordot(self.mass, (self.values - self.mean) ** 2, axes=1))

    @property
    def logarithm(self) -> "Marginal":
        """The marginal of the hyperparameter's logarithm."""
        return self.of(np.log)

    def of(self, function: Callable[[Any], Any]) -> "Marginal":
        """The marginal of an increasing function of the hyperparameter, which is positive."""
        with np.errstate(divide="ignore"):
            low, high = (function(np.maximum(bound, 0.0)) for bound in self.bounds or (0.0, np.inf))
        return Marginal(function(self.values), self.mass, (low, high))

    def quantiles(self, levels: ArrayLike) -> np.ndarray:
        """Quantiles of the smoothed marginal at levels between 0 and 1, (levels, ...)."""
        levels_checked, shape = check_levels(levels), self.values.shape[1:]
        bounds = np.broadcast_arrays(*self._bounds(), np.empty(shape))[:2]
        entries = zip(self.values.reshape(len(self.values), -1).T, *map(np.ravel, bounds), strict=True)
        quantiles = [
            _constrained(self._smoothed(values, low, high).quantiles(levels_checked), low, high)
            for values, low, high in entries
        ]
        return np.reshape(np.transpose(quantiles), (len(levels_checked), *shape))

    def density(self, at: ArrayLike) -> np.ndarray:
        """The smoothed density of a scalar hyperparameter at the values ``at``.

        Raises ValueError for a hyperparameter with several entries: take one, as in
        ``pgm.Marginal(marginal.values[:, 0], marginal.mass)``.
        """
        at = as_numbers(at, "at")
        if self.values.size != len(self.values):
            raise ValueError(
                f"density needs a scalar hyperparameter; this one has shape {self.values.shape[1:]}: take one entry, "
                "as in pgm.Marginal(marginal.values[:, 0], marginal.mass)."
            )
        low, high = (float(np.ravel(bound)[0]) for bound in self._bounds())
        values, inside = self.values.ravel(), (at > low) & (at < high)
        at = np.where(inside, at, values[0])
        density = self._smoothed(values, low, high).pdf(_unconstrained(at.ravel(), low, high)).reshape(at.shape)
        return np.where(inside, density * _slope(at, low, high), 0.0)

    def _bounds(self) -> tuple[ArrayLike, ArrayLike]:
        if self.bounds is not None:
            return self.bounds
        return (0.0 if np.all(self.values > 0) else -np.inf), np.inf

    def _smoothed(self, values: np.ndarray, low: float, high: float) -> GridDensity:
        """The density of one entry on the unconstrained scale."""
        x = _unconstrained(values, low, high)
        mean = self.mass @ x
        deviation = np.sqrt(self.mass @ (x - mean) ** 2)
        centres = CONTRACTION * (x - mean) / (deviation or 1.0)
        density = np.exp(-0.5 * ((GRID[:, None] - centres) / BANDWIDTH) ** 2) @ self.mass
        return GridDensity(mean, deviation, np.log(np.maximum(density, 1e-300)))


def _unconstrained(values: np.ndarray, low: float, high: float) -> np.ndarray:
    # Rounding may put a value on its bound.
    values = np.clip(values, np.nextafter(low, np.inf), np.nextafter(high, -np.inf))
    if np.isfinite(low) and np.isfinite(high):
        return np.log(values - low) - np.log(high - values)
    if np.isfinite(low):
        return np.log(values - low)
    return -np.log(high - values) if np.isfinite(high) else values


def _constrained(x: np.ndarray, low: float, high: float) -> np.ndarray:
    if np.isfinite(low) and np.isfinite(high):
        return low + (high - low) * scipy.special.expit(x)
    if np.isfinite(low):
        return low + np.exp(x)
    return high - np.exp(-x) if np.isfinite(high) else x


def _slope(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """The derivative of the unconstrained values by the values."""
    if not (np.isfinite(low) or np.isfinite(high)):
        return np.ones_like(values)
    return 1.0 / (values - low) + 1.0 / (high - values)
