"""Gaussian approximations at inducing inputs, which do not store the data."""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pgmodels.data.arrays import check_column_names
from pgmodels.data.sources.rows import Scaling
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.model import Model
from pgmodels.priors.block_posterior import BlockPosterior
from pgmodels.priors.collection import IndependentPosterior
from pgmodels.results.approximation import FitReport
from pgmodels.results.gaussian import GaussianPredictions
from pgmodels.runtime import hooks
from pgmodels.runtime.pickling import Picklable


@dataclass(eq=False, kw_only=True, repr=False)
class SparseApproximation(Picklable, GaussianPredictions):
    """A Gaussian approximation q of the latents at inducing inputs, from ``num_rows`` rows that it does not store.

    It predicts at inputs on their original scale; ``scaling`` standardised those of the data. Corrections, diagnoses
    and comparisons need the data and do not accept it. ``elbo_trace`` holds the ELBO of each window of steps, a noisy
    estimate averaged over its batches, followed by the exact ELBO of each pass over all rows.
    """

    model: Model
    posterior: IndependentPosterior | BlockPosterior
    scaling: Scaling
    num_rows: int
    columns: tuple[str, ...] | None
    elbo_trace: np.ndarray
    converged: bool
    tolerance: float
    seconds: float
    fit: FitReport | Any = None
    method: str = "svi"
    objective: str = "augmented"

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood of one row without its weight; predictions use it."""
        return self.model.likelihood.unweighted

    @property
    def elbo(self) -> float:
        """The last entry of ``elbo_trace``."""
        return float(self.elbo_trace[-1])

    def check_inputs(self, X_new: ArrayLike, name: str = "X_new") -> np.ndarray:
        """New inputs as a float64 array (m, d); raises ValueError where their columns do not match the data's."""
        check_column_names(X_new, self.columns, name)
        return self.model.check_inputs(X_new, name, len(self.scaling.location))

    def _inputs_at(self, X_new: ArrayLike, jointly: bool = False) -> np.ndarray:
        inputs = self.scaling(self.check_inputs(X_new))
        self.posterior.prior.check_new_inputs(inputs, jointly=jointly)
        return inputs

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the result to one file, such as ``fit.npz``, that ``pgm.load`` reads; see ``Result.save``."""
        return hooks.save(self, path)

    def __repr__(self) -> str:
        state = "converged" if self.converged else "not converged"
        return (
            f"<SparseApproximation of {self.model!r}, {self.num_rows:,} rows, ELBO {self.elbo:.4f}, {state}, "
            f"{self.seconds:.3g} s>"
        )
