"""All pairs of draw and datum as one list of items, evaluated in chunks at candidate values of y."""

from collections.abc import Callable, Mapping

import numpy as np

from pgmodels.likelihoods.density import log_density
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.likelihoods.pieces import Piece, cover
from pgmodels.numerics.quadrature import CHUNK_VALUES, chunk_length, equal_chunks, power_of_two, slices
from pgmodels.runtime.x64 import as_array

# Rows and points per density evaluation: one compiled program for lists and grids of any length.
_ROWS, _POINTS = 256, 64
# y = centre + scale * sinh(s): spacing 5 % of the scale at the centre, and ends 600,000 scales away. The trapezoid rule
# is exact to rounding for smooth densities, and to a thousandth of the variance across a kink.
COORDINATES = np.linspace(-14.0, 14.0, 512)
# The smallest probability of an interval; less is rounding error of the probability elsewhere.
_MIN_MASS = 1e-12


class Items:
    """Data of all draws: latents f (..., n, L), ``covariates`` (n, columns - 1), and parameters that differ by draw."""

    def __init__(
        self, likelihood: Likelihood, f: np.ndarray, covariates: np.ndarray | None, parameters: Mapping[str, np.ndarray]
    ):
        self.likelihood = likelihood
        self.parameters = {
            name: np.broadcast_to(v, (*f.shape[:-1], v.shape[-1])).reshape(-1, v.shape[-1])
            for name, v in parameters.items()
        }
        self.f = f.reshape(-1, f.shape[-1])
        self.count = len(self.f)
        self.num_data = f.shape[-2]
        self.covariates = covariates

    def by_chunk(
        self, rows: np.ndarray, function: Callable[[np.ndarray], np.ndarray], max_rows: int = _ROWS
    ) -> np.ndarray:
        """``function(rows)`` (..., rows), evaluated on padded chunks of equal length, at most ``max_rows``."""
        chunks = equal_chunks(rows, min(power_of_two(self.count), max_rows))
        return np.concatenate([function(chunk) for chunk in chunks], axis=-1)[..., : len(rows)]

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """A draw of y for each item by the likelihood's sampler."""
        draws = []
        for chunk in slices(self.count, self.f.shape[-1], CHUNK_VALUES // 2):
            rows = np.arange(self.count)[chunk]
            y = self._observations(np.full(len(rows), np.nan), rows)
            draws.append(self._likelihood_of(rows).draw(rng, y, self.f[rows]))
        return np.concatenate(draws)

    def gaussian_moments(self) -> np.ndarray:
        """Mean and variance (2, items) of a formula that is Gaussian in y."""

        def moments(rows: np.ndarray) -> np.ndarray:
            y = as_array(self._observations(np.zeros(len(rows)), rows))
            mean, variance = self._likelihood_of(rows).gaussian_moments(y, as_array(self.f[rows]))
            return np.stack([np.asarray(mean), np.asarray(variance)])

        return self.by_chunk(np.arange(self.count), moments, chunk_length(self.f.shape[-1], CHUNK_VALUES // 2))

    def log_density(self, first: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """log p of candidates (points, rows) for the first column of y."""
        f, likelihood = self.f[rows], self._likelihood_of(rows)
        padded = np.pad(first, ((0, -len(first) % _POINTS), (0, 0)), mode="edge")
        blocks = padded.reshape(-1, _POINTS, len(rows))
        values = [log_density(likelihood, self._observations(block, rows), f) for block in blocks]
        return np.concatenate([np.broadcast_to(value, blocks[0].shape) for value in values])[: len(first)]

    def listed(self, rows: np.ndarray, points: np.ndarray, exists: np.ndarray) -> np.ndarray:
        """The probabilities of discrete values (points, rows), 0 where ``exists`` is False."""
        return np.where(exists, np.exp(self.log_density(points, rows)), 0.0)

    def interval(
        self, rows: np.ndarray, low: np.ndarray, high: np.ndarray, elsewhere: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Points of intervals at ``COORDINATES``, log p and log dy/ds there; ``elsewhere`` is the probability outside.

        Intervals with low >= high have no mass.
        """
        empty = low >= high
        y, log_p, log_slope = cover(
            lambda y: self.log_density(y, rows),
            low,
            np.where(empty, low + 1.0, high),
            COORDINATES,
            mass=np.maximum(1.0 - elsewhere, _MIN_MASS),
        )
        return y, np.where(empty, -np.inf, log_p), log_slope

    def ends(self, piece: Piece, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ends of a piece for some rows; items are ordered by draw, then by datum."""
        low, high = piece.ends(self.num_data)
        return low[rows % self.num_data], high[rows % self.num_data]

    def _observations(self, first: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """y (..., rows) or (..., rows, columns) with ``first`` as its first column."""
        if self.covariates is None:
            return first
        others = self.covariates[rows % self.num_data]
        return np.concatenate([first[..., None], np.broadcast_to(others, (*first.shape, others.shape[1]))], axis=-1)

    def _likelihood_of(self, rows: np.ndarray) -> Likelihood:
        """The likelihood with the parameters of some rows."""
        return self.likelihood.with_values({name: v[rows] for name, v in self.parameters.items()})
