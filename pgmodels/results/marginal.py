"""The posterior marginal of a hyperparameter, as weighted points."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pgmodels.data.arrays import as_numbers
from pgmodels.runtime.formatting import shorten

# Bandwidth of the density, in standard deviations of the marginal: smoothing adds 2 % to the variance.
_BANDWIDTH = 0.15


@dataclass(frozen=True, eq=False)
class Marginal:
    """A posterior marginal: ``values`` (points, ...) of a hyperparameter, with the ``mass`` (points,) of each.

    Moments and quantiles are computed for each entry of the hyperparameter.
    """

    values: np.ndarray
    mass: np.ndarray

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
        return Marginal(np.log(self.values), self.mass)

    def quantiles(self, levels: ArrayLike) -> np.ndarray:
        """Quantiles at levels between 0 and 1, (levels, ...)."""
        levels_checked = check_levels(levels)
        flat = self.values.reshape(len(self.values), -1)
        quantiles = np.empty((len(levels_checked), flat.shape[1]))
        for entry, values in enumerate(flat.T):
            order = np.argsort(values)
            mass = self.mass[order]
            quantiles[:, entry] = np.interp(levels_checked, np.cumsum(mass) - 0.5 * mass, values[order])
        return quantiles.reshape(len(levels_checked), *self.values.shape[1:])

    def density(self, at: ArrayLike) -> np.ndarray:
        """The density of a scalar hyperparameter at the values ``at``, smoothed on the log scale if it is positive.

        Raises ValueError for a hyperparameter with several entries: take one, as in
        ``pgm.Marginal(marginal.values[:, 0], marginal.mass)``.
        """
        at = as_numbers(at, "at")
        if self.values.size != len(self.values):
            raise ValueError(
                f"density needs a scalar hyperparameter; this one has shape {self.values.shape[1:]}: take one entry, "
                "as in pgm.Marginal(marginal.values[:, 0], marginal.mass)."
            )
        values, is_positive = self.values.ravel(), bool(np.all(self.values > 0))
        inside = at > 0 if is_positive else np.full(at.shape, True)
        x = np.log(np.where(inside, at, 1.0)) if is_positive else at
        centres = np.log(values) if is_positive else values
        width = _BANDWIDTH * float(Marginal(centres, self.mass).deviation)
        scores = (x[..., None] - centres) / width
        density = np.exp(-0.5 * scores**2) @ self.mass / (width * np.sqrt(2.0 * np.pi))
        return np.where(inside, density / np.where(inside, at, 1.0) if is_positive else density, 0.0)


def check_levels(levels: ArrayLike) -> np.ndarray:
    """Levels of quantiles as numbers (levels,); raises ValueError unless all are between 0 and 1."""
    checked = np.atleast_1d(as_numbers(levels, "levels"))
    if checked.ndim != 1 or not ((checked > 0) & (checked < 1)).all():
        raise ValueError(f"levels must be numbers between 0 and 1, such as [0.05, 0.5, 0.95]; got {shorten(levels)}.")
    return checked
