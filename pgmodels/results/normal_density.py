"""Normal densities of one variable each: quantiles and distances of draws."""

from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from pgmodels.data.arrays import in_units_of
from pgmodels.results.grid_density import check_levels


class NormalDensity:
    """Normal densities (...) with means and variances (...); NaN for a variance that is not positive."""

    def __init__(self, mean: np.ndarray, variance: np.ndarray):
        self.mean, self.variance = mean, variance
        self.deviation = np.sqrt(np.where(variance >= 0.0, variance, np.nan))

    def __getitem__(self, where: Any) -> "NormalDensity":
        """Some of the densities."""
        return NormalDensity(self.mean[where], self.variance[where])

    @property
    def skewness(self) -> np.ndarray:
        """Third central moments in units of the standard deviation: 0."""
        return np.zeros_like(self.mean)

    def pdf(self, values: np.ndarray) -> np.ndarray:
        """The densities at values (k, ...), broadcast against the densities."""
        return np.exp(-0.5 * ((values - self.mean) / self.deviation) ** 2) / (np.sqrt(2.0 * np.pi) * self.deviation)

    def quantiles(self, levels: ArrayLike) -> np.ndarray:
        """Quantiles (levels, ...) at levels between 0 and 1."""
        return self.mean + self.deviation * scipy.special.ndtri(check_levels(levels)).reshape(-1, *[1] * self.mean.ndim)

    def wasserstein(self, sorted_draws: np.ndarray) -> np.ndarray:
        """Exact Wasserstein-1 distances (...) from sorted draws (draws, ...).

        The integral of |x_(i) - mean - deviation Phi^-1(u)| over u in ((i - 1) / S, i / S), summed over the S draws.
        """
        edges = np.linspace(0.0, 1.0, len(sorted_draws) + 1).reshape(-1, *[1] * self.mean.ndim)
        heights = np.exp(-0.5 * scipy.special.ndtri(edges) ** 2) / np.sqrt(2.0 * np.pi)
        offset = sorted_draws - self.mean
        # The integrand changes sign where the normal's quantile equals the draw.
        with np.errstate(divide="ignore"):
            z = np.clip(
                in_units_of(self.deviation, offset), scipy.special.ndtri(edges[:-1]), scipy.special.ndtri(edges[1:])
            )
        at_sign_change = 2.0 * (
            offset * scipy.special.ndtr(z) + self.deviation * np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
        )
        ends = offset * (edges[:-1] + edges[1:]) + self.deviation * (heights[:-1] + heights[1:])
        return np.maximum(at_sign_change - ends, 0.0).sum(axis=0)
