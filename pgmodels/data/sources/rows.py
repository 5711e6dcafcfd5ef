"""The interface of data sources that are read in blocks, and the standardisation of their inputs."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float

# The number of rows per block, where it can be chosen.
BLOCK = 16_384

# Raw inputs (m, d) and observations (m,) or (m, columns), and row weights (m,) if there are any.
Block: TypeAlias = tuple[np.ndarray, ...]


class Rows(ABC):
    """Rows of data that can be read repeatedly, block by block, as ``pgm.svi`` does.

    With ``standardise``, a first pass computes the mean and standard deviation to standardise inputs; predictions take
    raw inputs. A user-defined source implements ``blocks``, and may have ``columns``.
    """

    columns: tuple[str, ...] | None = None
    standardise: bool = False

    @abstractmethod
    def blocks(self, rng: np.random.Generator | None) -> Iterator[Block]:
        """All rows once: in order if ``rng`` is None, else in a random order, as far as that is cheap."""


class Scaling(NamedTuple):
    """The standardisation of inputs, (X - location) / scale, with location and scale (d,)."""

    location: Float[np.ndarray, " d"]
    scale: Float[np.ndarray, " d"]

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """Standardised inputs."""
        return (X - self.location) / self.scale
