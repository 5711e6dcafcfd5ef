"""Records of iterations, running moments, and which draws are stored."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

# Iterations compiled as one loop. Its trip count is an argument, so that any number of draws reuses it.
CHUNK = 50
# The first quantity that was not finite, in the words of the error.
BLOCKS = ("", "auxiliaries", "latents", "log likelihood")


@dataclass(frozen=True)
class Keep:
    """What a run stores of the latents: all of them, those of some rows, or running moments alone."""

    what: str
    rows: tuple[int, ...] = ()

    @classmethod
    def read(cls, keep: Any, num_rows: int) -> "Keep":
        """From what a user says; ValueError where it is neither "all", "moments" nor rows of X."""
        if isinstance(keep, str) and keep in ("all", "moments"):
            return cls(keep)
        try:
            rows = np.asarray(keep)
        except ValueError:
            rows = np.zeros(0)
        if isinstance(keep, str) or rows.ndim != 1 or not rows.size or rows.dtype.kind not in "iu":
            raise ValueError(f'keep must be "all", "moments" or a list of rows of X; got {keep!r}.')
        if rows.min() < 0 or rows.max() >= num_rows:
            raise ValueError(
                f"keep names row {rows.max() if rows.min() >= 0 else rows.min()}; X has rows 0 to {num_rows - 1}."
            )
        return cls("rows", tuple(int(row) for row in rows))


class Moments(NamedTuple):
    """Running means and sums of squared deviations of the latents, a chain each (chains, n, latents)."""

    count: Any
    mean: Any
    squares: Any

    def add(self, latents: Any) -> "Moments":
        """With one more draw (Welford 1962)."""
        count = self.count + 1
        mean = self.mean + (latents - self.mean) / count
        return Moments(count, mean, self.squares + (latents - self.mean) * (latents - mean))


class Record(NamedTuple):
    """Records of iterations, along the first axis: coordinates and latents as far as they are stored."""

    coordinates: Any
    latents: Any
    unknowns: Any
    log_likelihood: Any
    failed: Any


def no_moments(shape: tuple[int, ...]) -> Moments:
    """Before any draw of latents of a shape (chains, n, latents)."""
    return Moments(np.zeros(()), np.zeros(shape), np.zeros(shape))
