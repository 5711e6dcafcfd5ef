"""The base class of results of inference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from pgmodels.data.frames import Columns
from pgmodels.data.labels import Labels
from pgmodels.data.missing import Missing
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.model import Data, Model
from pgmodels.parameters.parameter import bare
from pgmodels.priors.collection import PriorCollection
from pgmodels.results import intervals
from pgmodels.results.summary import Summarised
from pgmodels.runtime.pickling import Picklable
from pgmodels.runtime.seeds import Seed

if TYPE_CHECKING:
    import pandas as pd
    from xarray import DataTree

    from pgmodels.results.grid_density import GridDensity
    from pgmodels.results.normal_density import NormalDensity
    from pgmodels.results.predictive import Predictive
    from pgmodels.results.prior_predictive import PriorPredictive


class Result(Summarised, Picklable):
    """Base class of results: the model with its hyperparameters resolved, and the data.

    ``columns`` are the names of X's columns, and how they became numbers, if it was a data frame. ``weights`` (n,) are
    the powers of the rows' likelihoods, None if all are 1; rows of weight 0 are left out. ``labels`` are those of y in
    the order of their codes, None if y was numbers, and ``missing`` are the rows without y, kept by
    ``missing="predict"``.
    """

    if TYPE_CHECKING:

        @property
        def model(self) -> Model:
            """The model."""

        @property
        def X(self) -> np.ndarray:
            """The inputs, (n, d)."""

        @property
        def y(self) -> np.ndarray:
            """The observations, (n,) or (n, columns)."""

        @property
        def seconds(self) -> float:
            """The time that it took."""

        @property
        def method(self) -> str:
            """The name of the engine or correction."""

        @property
        def columns(self) -> Columns | None:
            """The names of the columns of X."""

        @property
        def prior(self) -> PriorCollection:
            """The prior of the latents at the data."""

        @property
        def mean(self) -> np.ndarray:
            """Posterior means of the latents at the data, (n, latents)."""

        @property
        def variance(self) -> np.ndarray:
            """Posterior variances of the latents at the data, (n, latents)."""

        @property
        def marginals(self) -> "NormalDensity | GridDensity":
            """The marginals of the latents at the data; draws have none."""

        @property
        def weights(self) -> np.ndarray | None:
            """The powers of the rows' likelihoods, (n,); None if all are 1."""

        @property
        def labels(self) -> Labels | None:
            """The labels of y in the order of their codes."""

        @property
        def missing(self) -> Missing | None:
            """The rows without y that are kept for predictions."""

        def predict(self, X_new: ArrayLike, covariates: ArrayLike | None = None) -> Predictive:
            """The predictive distribution of y at new inputs."""

    @property
    def data(self) -> Data:
        """X, y, and the rows' weights."""
        return Data(self.X, self.y, self.columns, self.weights, self.labels, self.missing)

    @property
    def num_rows(self) -> int:
        """The number of rows of the data."""
        return len(self.X)

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood of one row without its weight; predictions use it."""
        return self.model.likelihood

    def check_inputs(self, X_new: ArrayLike, name: str = "X_new") -> np.ndarray:
        """New inputs as a float64 array (m, d); raises ValueError if their columns do not match X."""
        return self.model.check_new_inputs(X_new, name, self.X.shape[1], self.columns)

    def predict_missing(self) -> "Predictive":
        """The predictive distribution of y in the rows without y, ``missing.rows``.

        Returns
        -------
        Predictive
            As of ``predict`` at ``missing.X`` with ``missing.covariates``.

        Raises
        ------
        ValueError
            If no row without y was kept.
        """
        if self.missing is None:
            raise ValueError("predict_missing: no rows without y were kept. Pass missing='predict' to the engine.")
        return self.predict(self.missing.X, self.missing.covariates)

    def _inputs_at(self, X_new: ArrayLike, jointly: bool = False) -> np.ndarray:
        """Checked inputs for predictions, by row or joint; kernels must be valid covariances there."""
        inputs = self.check_inputs(X_new)
        self.prior.check_new_inputs(inputs, jointly=jointly)
        return inputs

    def _latent_table(self) -> "pd.DataFrame":
        ends = self.marginals.quantiles(intervals.bounds())
        # A corrected variance may be negative.
        with np.errstate(invalid="ignore"):
            deviation = np.sqrt(self.variance)
        rows = intervals.table(self.mean.ravel(), deviation.ravel(), ends.reshape(2, -1))
        return rows.set_axis([f"f{entry}" for entry in intervals.entries(self.mean.shape)])

    def to_arviz(
        self,
        num_draws: int = 1000,
        seed: Seed = 0,
        *,
        coords: Mapping[str, Sequence[Any]] | None = None,
        prior: "PriorPredictive | None" = None,
    ) -> "DataTree":
        """The result for ArviZ; see ``pgmodels.to_arviz``."""
        from pgmodels.interop.arviz import to_arviz

        return to_arviz(self, num_draws=num_draws, seed=seed, coords=coords, prior=prior)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the result to one file that ``pgm.load`` reads.

        The file holds arrays and text without pickles: data, hyperparameters, Gaussian factors and draws. Of a custom
        likelihood it holds only the text of the formula, so pass the likelihood to ``pgm.load``. ``extend`` does not
        work on loaded draws.

        Parameters
        ----------
        path : str or path
            The file, such as ``fit.npz``, in an existing folder.

        Returns
        -------
        Path
            The path of the file.

        Raises
        ------
        ValueError
            For custom kernels, forms and priors: pickle such results.
        """
        from pgmodels.results.storage import save_result

        return save_result(self, path)

    def __repr__(self) -> str:
        from pgmodels.report.summaries import result_line

        return result_line(self)

    def __str__(self) -> str:
        from pgmodels.report.summaries import result_text

        return result_text(self)

    def _repr_html_(self) -> str:
        from pgmodels.report.summaries import result_html

        return result_html(self)

    @property
    def jitter(self) -> tuple[float, ...]:
        """Jitter added to the diagonal of each group's covariance to factorise it; 0 if none was needed."""
        return tuple(float(getattr(group, "jitter", 0.0)) for group in self.prior.groups)


@dataclass(eq=False, kw_only=True, repr=False)
class DataResult(Result):
    """A result that holds the model and the data itself: see Result."""

    model: Model
    X: Float[np.ndarray, "n d"]
    y: Float[np.ndarray, "n ..."]
    seconds: float
    method: str
    columns: Columns | None = None
    weights: Float[np.ndarray, " n"] | None = None
    labels: Labels | None = None
    missing: Missing | None = None


def same_hyperparameters(one: Result, other: Result) -> bool:
    """Whether two results have the same hyperparameter values, or sample the same hyperparameters."""
    sampled = [list(getattr(result, "hyperparameters", {})) for result in (one, other)]
    if any(sampled):
        return sampled[0] == sampled[1]
    leaves = [jax.tree.leaves(bare(result.model)) for result in (one, other)]
    return len(leaves[0]) == len(leaves[1]) and all(map(np.array_equal, *leaves))
