"""Draws from the prior predictive distribution of a model."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pgmodels.model import Model
from pgmodels.runtime import hooks
from pgmodels.runtime.pickling import Picklable

if TYPE_CHECKING:
    from xarray import DataTree


@dataclass(eq=False, kw_only=True, repr=False)
class PriorPredictive(Picklable):
    """Joint draws of hyperparameters, latents and observations from the prior, at inputs X (n, d).

    ``latents`` (draws, n, latents) are joint over rows and latents; ``observations`` (draws, n) are the first column
    of y given ``covariates`` (n, columns - 1), which is None if y has one column; ``hyperparameters`` holds draws of
    those with a prior, by name, (draws, ...).
    """

    model: Model
    X: np.ndarray
    covariates: np.ndarray | None
    latents: np.ndarray
    observations: np.ndarray
    hyperparameters: dict[str, np.ndarray]

    def to_arviz(self) -> "DataTree":
        """An xarray.DataTree for ArviZ, with the groups prior and prior_predictive."""
        return hooks.arviz(self)

    def __repr__(self) -> str:
        drawn = ", ".join(["latents", "observations", *self.hyperparameters])
        return f"<PriorPredictive: {len(self.latents)} draws of {drawn} at {len(self.X)} rows>"
