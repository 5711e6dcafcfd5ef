"""What every result holds."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from pgmodels.data.arrays import check_column_names
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.model import Model
from pgmodels.parameters.parameter import bare
from pgmodels.priors.collection import PriorCollection
from pgmodels.runtime import hooks
from pgmodels.runtime.pickling import Picklable


@dataclass(eq=False, repr=False)
class Result(Picklable):
    """What every result holds: the model with its hyperparameters resolved, and the data.

    ``columns`` are the names of X's columns where it was a data frame. Where rows have weights, they are the last
    column of y, and ``model`` is the model of such rows.
    """

    model: Model
    X: np.ndarray
    y: np.ndarray
    seconds: float
    method: str
    columns: tuple[str, ...] | None = None

    @property
    def weights(self) -> np.ndarray | None:
        """The weight of each row (n,), None where none were given."""
        return self.y[:, -1] if self.model.is_weighted else None

    @property
    def observations(self) -> np.ndarray:
        """y as it was given, without weights."""
        if not self.model.is_weighted:
            return self.y
        return self.y[:, 0] if self.y.shape[1] == 2 else self.y[:, :-1]

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood of a row by itself, which predictions are by."""
        return self.model.likelihood.unweighted

    def check_inputs(self, X_new: Any, name: str = "X_new") -> np.ndarray:
        """New inputs as a float64 array (m, d), or ValueError where they are not columns like those of X."""
        check_column_names(X_new, self.columns, name)
        return self.model.check_inputs(X_new, name, self.X.shape[1])

    def _inputs_at(self, X_new: Any, jointly: bool = False) -> np.ndarray:
        """Checked inputs to predict at, by rows or jointly, where the kernels are covariances too."""
        inputs = self.check_inputs(X_new)
        self.prior.check_new_inputs(inputs, jointly=jointly)
        return inputs

    if TYPE_CHECKING:

        @property
        def prior(self) -> PriorCollection:
            """The latents' prior at the data."""

    def to_arviz(self, **options: Any) -> Any:
        """An xarray.DataTree for ArviZ; see ``pgmodels.interop.arviz.to_arviz``."""
        return hooks.arviz(self, **options)

    def save(self, path: Any) -> Path:
        """Write the result to one file, ``fit.npz`` say, which ``pgm.load`` reads; its path.

        Arrays and text, no pickle: data, values, factors and draws. A formula of one's own is saved by its text, to be
        given again at load; draws lose the chains that ``extend`` goes on from. Raises ValueError for kernels, forms
        and priors of one's own, which pickle takes.
        """
        return hooks.save(self, path)

    def __repr__(self) -> str:
        return hooks.line(self)

    def __str__(self) -> str:
        return hooks.text(self)

    def _repr_html_(self) -> str:
        return hooks.html(self)

    @property
    def jitter(self) -> tuple[float, ...]:
        """What was added to the diagonal of each group's covariance to factorise it; 0 where nothing was."""
        return tuple(float(getattr(group, "jitter", 0.0)) for group in self.prior.groups)


def same_hyperparameters(one: Result, other: Result) -> bool:
    """Whether two results hold the same hyperparameters at the same values, or sample the same ones."""
    sampled = [list(getattr(result, "hyperparameters", {})) for result in (one, other)]
    if any(sampled):
        return sampled[0] == sampled[1]
    leaves = [jax.tree.leaves(bare(result.model)) for result in (one, other)]
    return len(leaves[0]) == len(leaves[1]) and all(map(np.array_equal, *leaves))
