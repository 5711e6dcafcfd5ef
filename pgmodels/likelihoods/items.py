"""The data of all draws in one list, evaluated a chunk at a time at candidates for y."""

from collections.abc import Callable, Mapping

import numpy as np

from pgmodels.likelihoods.density import log_density
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.likelihoods.pieces import Piece, cover
from pgmodels.numerics.quadrature import chunk_length, equal_chunks, power_of_two, slices
from pgmodels.runtime.x64 import as_array

# Draws of a sampler at a time: 16 MB an array.
_VALUES = 2_000_000
# Densities are evaluated for so many rows at so many points at a time: one program for lists and grids of any length.
_ROWS, _POINTS = 256, 64
# The least probability of an interval; less is the rounding of what is elsewhere.
_LEAST = 1e-12


class Items:
    """Data of all draws: latents f (..., n, L), ``covariates`` (n, columns - 1) and parameters that go with them."""

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

    def by_chunk(self, rows: np.ndarray, of: Callable[[np.ndarray], np.ndarray], most: int = _ROWS) -> np.ndarray:
        """``of(rows)`` (..., rows) on padded chunks of ``rows``, all of one length, ``most`` at most."""
        chunks = equal_chunks(rows, min(power_of_two(self.count), most))
        return np.concatenate([of(chunk) for chunk in chunks], axis=-1)[..., : len(rows)]

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """A draw of y for each by the likelihood's sampler."""
        parts = []
        for rows in slices(self.count, self.f.shape[-1], _VALUES):
            own = np.arange(self.count)[rows]
            parts.append(self._given(own).draw(rng, self._observations(np.full(len(own), np.nan), own), self.f[own]))
        return np.concatenate(parts)

    def gaussian_moments(self) -> np.ndarray:
        """Mean and variance (2, items) of a formula that is Gaussian in y."""

        def moments(rows: np.ndarray) -> np.ndarray:
            y = as_array(self._observations(np.zeros(len(rows)), rows))
            return np.stack([np.asarray(v) for v in self._given(rows).gaussian_moments(y, as_array(self.f[rows]))])

        return self.by_chunk(np.arange(self.count), moments, chunk_length(self.f.shape[-1], _VALUES))

    def log_density(self, first: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """log p of candidates (points, rows) for the first column of y."""
        f, given = self.f[rows], self._given(rows)
        padded = np.pad(first, ((0, -len(first) % _POINTS), (0, 0)), mode="edge")
        blocks = padded.reshape(-1, _POINTS, len(rows))
        parts = [log_density(given, self._observations(block, rows), f) for block in blocks]
        return np.concatenate([np.broadcast_to(part, blocks[0].shape) for part in parts])[: len(first)]

    def listed(self, rows: np.ndarray, points: np.ndarray, there: np.ndarray) -> np.ndarray:
        """The probabilities of numbers (points, rows), 0 where they are not ``there``."""
        return np.where(there, np.exp(self.log_density(points, rows)), 0.0)

    def interval(
        self, rows: np.ndarray, low: np.ndarray, high: np.ndarray, standard: np.ndarray, elsewhere: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Points that cover what is ``elsewhere`` not of the probability, log p and log dy/ds there: see ``cover``.

        Without mass where low >= high.
        """
        empty = low >= high
        y, log_p, log_slope = cover(
            lambda y: self.log_density(y, rows),
            low,
            np.where(empty, low + 1.0, high),
            standard,
            mass=np.maximum(1.0 - elsewhere, _LEAST),
        )
        return y, np.where(empty, -np.inf, log_p), log_slope

    def ends(self, piece: Piece, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ends of a piece for some rows; data follow each other in every draw."""
        low, high = piece.ends(self.num_data)
        return low[rows % self.num_data], high[rows % self.num_data]

    def _observations(self, first: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """y (..., rows) or (..., rows, columns) with numbers in its first column."""
        if self.covariates is None:
            return first
        others = self.covariates[rows % self.num_data]
        return np.concatenate([first[..., None], np.broadcast_to(others, (*first.shape, others.shape[1]))], axis=-1)

    def _given(self, rows: np.ndarray) -> Likelihood:
        """The likelihood with the parameters of some rows."""
        return self.likelihood.with_values({name: v[rows] for name, v in self.parameters.items()})
