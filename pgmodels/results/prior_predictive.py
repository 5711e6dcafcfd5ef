"""Draws from the prior predictive distribution of a model."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from pgmodels.model import Model
from pgmodels.runtime.pickling import Picklable
from pgmodels.runtime.x64 import DoublePrecision

if TYPE_CHECKING:
    from xarray import DataTree


@dataclass(eq=False, kw_only=True, repr=False)
class PriorPredictive(DoublePrecision, Picklable):
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
        from pgmodels.interop.arviz import prior_to_arviz

        return prior_to_arviz(self)

    def shares_below(self, y: ArrayLike) -> dict[str, float]:
        """Where data lie among the prior draws: a prior predictive check.

        Parameters
        ----------
        y : array_like, shape (n,)
            Observations at X, the first column.

        Returns
        -------
        dict
            The shares of draws whose "mean", and whose "standard deviation", is below that of y; ties count half.

        Raises
        ------
        ValueError
            If y has another shape.
        """
        values = np.asarray(y, dtype=np.float64)
        if values.shape != self.observations.shape[1:]:
            raise ValueError(f"y must have shape {self.observations.shape[1:]}, as at X; got {values.shape}.")
        shares = {}
        for name, figure in (("mean", np.mean), ("standard deviation", np.std)):
            drawn, observed = figure(self.observations, axis=1), figure(values)
            shares[name] = float(np.mean(drawn < observed) + 0.5 * np.mean(drawn == observed))
        return shares

    def __repr__(self) -> str:
        drawn = ", ".join(["latents", "observations", *self.hyperparameters])
        return f"<PriorPredictive: {len(self.latents)} draws of {drawn} at {len(self.X)} rows>"
