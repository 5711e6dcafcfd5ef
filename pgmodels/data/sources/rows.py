"""What a source of rows can do, and how its inputs are standardised."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np

# Rows read at a time, where that is to be chosen.
BLOCK = 16_384

# Inputs (m, d) and observations (m,) or (m, columns), as they are found.
Block: TypeAlias = tuple[np.ndarray, np.ndarray]


class Rows(ABC):
    """Rows of data that are read block after block, as often as asked for: what ``pgm.svi`` learns from.

    Where they are to be ``standardised``, inputs have mean 0 and standard deviation 1 in the model, by what a first
    pass finds; predictions take raw inputs. A source of one's own gives ``blocks``, and may have ``columns``.
    """

    columns: tuple[str, ...] | None = None
    standardise: bool = False

    @abstractmethod
    def blocks(self, rng: np.random.Generator | None) -> Iterator[Block]:
        """All rows once: in their order where ``rng`` is None, else in one that it draws, as far as that is cheap."""


class Scaling(NamedTuple):
    """What inputs are standardised by: (X - location) / scale, (d,) each."""

    location: np.ndarray
    scale: np.ndarray

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """Standardised inputs."""
        return (X - self.location) / self.scale
