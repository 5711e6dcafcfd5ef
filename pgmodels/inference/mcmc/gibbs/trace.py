"""Records of iterations, running moments, and which draws are stored."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pgmodels.runtime.formatting import shorten

# Iterations compiled as one loop. Its trip count is an argument, so that any number of draws reuses it.
CHUNK = 50
# Names of the first quantity that was not finite, for the error.
BLOCKS = ("", "auxiliaries", "latents", "log likelihood")


@dataclass(frozen=True)
class Keep:
    """Which draws of the latents a run stores: all, those of some rows, or only running moments."""

    what: str
    rows: tuple[int, ...] = ()

    @classmethod
    def read(cls, keep: Any, num_rows: int) -> "Keep":
        """Read the argument ``keep``. Raises ValueError unless it is "all", "moments" or rows of X."""
        if isinstance(keep, str) and keep in ("all", "moments"):
            return cls(keep)
        try:
            rows = np.asarray(keep)
        except ValueError:
            rows = np.zeros(0)
        if isinstance(keep, str) or rows.ndim != 1 or not rows.size or rows.dtype.kind not in "iu":
            raise ValueError(f'keep must be "all", "moments" or a list of rows of X; got {shorten(keep)}.')
        if rows.min() < 0 or rows.max() >= num_rows:
            raise ValueError(
                f"keep names row {rows.max() if rows.min() >= 0 else rows.min()}; X has rows 0 to {num_rows - 1}."
            )
        return cls("rows", tuple(int(row) for row in rows))


class Moments(NamedTuple):
    """Running means and sums of squared deviations of the latents of each chain, (chains, n, latents)."""

    count: Any
    mean: Any
    squares: Any

    def add(self, latents: Any) -> "Moments":
        """Updated with one more draw (Welford 1962)."""
        count = self.count + 1
        mean = self.mean + (latents - self.mean) / count
        return Moments(count, mean, self.squares + (latents - self.mean) * (latents - mean))


class Record(NamedTuple):
    """Records of iterations along the first axis; coordinates and latents only if stored."""

    coordinates: Any
    latents: Any
    unknowns: Any
    log_likelihood: Any
    failed: Any


def no_moments(shape: tuple[int, ...]) -> Moments:
    """Moments before the first draw, for latents of shape (chains, n, latents)."""
    return Moments(np.zeros(()), np.zeros(shape), np.zeros(shape))
