"""Gaussian approximations at inducing inputs, which do not store the data."""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from pgmodels.data.frames import Columns
from pgmodels.data.labels import Labels
from pgmodels.data.missing import Missing
from pgmodels.data.sources.rows import Scaling
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.model import Model
from pgmodels.objectives.base import Objective
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.posterior import Posterior
from pgmodels.results.approximation import FitReport
from pgmodels.results.gaussian import GaussianPredictions
from pgmodels.results.summary import Summarised
from pgmodels.runtime.pickling import Picklable
from pgmodels.runtime.seeds import Seed


@dataclass(eq=False, kw_only=True, repr=False)
class SparseApproximation(Summarised, Picklable, GaussianPredictions):
    """A Gaussian approximation q of the latents at inducing inputs, from ``num_rows`` rows that it does not store.

    It predicts at inputs on their original scale; ``scaling`` standardised those of the data. ``correct``,
    ``log_evidence``, ``diagnose``, ``compare``, ``to_arviz`` and plots need the data: run ``pgm.cavi(result.model,
    result.scaling(X), y)`` (``gaussian_vi`` for the objective "expected") on rows that fit into memory. ``elbo_trace``
    holds the ELBO of each window of steps, a noisy estimate averaged over its batches, followed by the exact ELBO of
    each pass over all rows.
    """

    model: Model
    posterior: Posterior
    scaling: Scaling
    num_rows: int
    columns: Columns | None
    elbo_trace: Float[np.ndarray, " iterations"]
    converged: bool
    tolerance: float
    seconds: float
    fit: FitReport | Any = None
    method: str = "svi"
    objective: str = "augmented"
    custom_objective: Objective | None = None
    labels: Labels | None = None
    missing: Missing | None = None

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood of one row without its weight; predictions use it."""
        return self.model.likelihood

    @property
    def prior(self) -> PriorCollection:
        """The prior of the latents, factorised at the inducing inputs; it has no rows of the data."""
        return self.posterior.prior

    @property
    def weights(self) -> None:
        """None: weights are not stored, as rows are not."""
        return None

    @property
    def elbo(self) -> float:
        """The last entry of ``elbo_trace``."""
        return float(self.elbo_trace[-1])

    @property
    def jitter(self) -> tuple[float, ...]:
        """See ``Result.jitter``."""
        return tuple(float(getattr(group, "jitter", 0.0)) for group in self.prior.groups)

    @property
    def remedy(self) -> str:
        """The remedy where a call needs the rows, for messages."""
        return (
            f"stores no rows: take pgm.vi(result.model, X, y, objective={self.objective!r}) of rows that fit into "
            "memory, with X scaled by result.scaling"
        )

    def check_inputs(self, X_new: ArrayLike, name: str = "X_new") -> np.ndarray:
        """New inputs as a float64 array (m, d); raises ValueError if their columns do not match the data's."""
        return self.model.check_new_inputs(X_new, name, len(self.scaling.location), self.columns)

    def _inputs_at(self, X_new: ArrayLike, jointly: bool = False) -> np.ndarray:
        inputs = self.scaling(self.check_inputs(X_new))
        self.posterior.prior.check_new_inputs(inputs, jointly=jointly)
        return inputs

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the result to one file, such as ``fit.npz``, that ``pgm.load`` reads; see ``Result.save``."""
        from pgmodels.results.storage import save_result

        return save_result(self, path)

    def to_arviz(self, num_draws: int = 1000, seed: Seed = 0, **options: Any) -> NoReturn:
        """Raise ValueError: ArviZ gets draws at the data, which the result does not store."""
        raise ValueError(f"to_arviz needs the data, and a SparseApproximation {self.remedy}.")

    def _latent_table(self) -> NoReturn:
        raise ValueError(f"summary: latents are those at the data, and a SparseApproximation {self.remedy}.")

    def __repr__(self) -> str:
        from pgmodels.report.summaries import result_line

        return result_line(self)

    def __str__(self) -> str:
        from pgmodels.report.summaries import result_text

        return result_text(self)

    def _repr_html_(self) -> str:
        from pgmodels.report.summaries import result_html

        return result_html(self)


def name_type(value: object) -> str:
    """The type of a value that is no result at data, for messages; with a remedy, if it has one."""
    name = type(value).__name__
    return f"{name}, which {value.remedy}" if isinstance(value, SparseApproximation) else name
