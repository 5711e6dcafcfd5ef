"""Tables of a result: its hyperparameters and latents."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pgmodels.model import Model
from pgmodels.parameters.vector import trainable
from pgmodels.results import intervals
from pgmodels.runtime.x64 import DoublePrecision

if TYPE_CHECKING:
    import pandas as pd

Functions: TypeAlias = Mapping[str, Callable[[Any], Any]]


class Summarised(DoublePrecision):
    """What has a model with hyperparameters: a table of their values."""

    if TYPE_CHECKING:

        @property
        def model(self) -> Model:
            """The model."""

    @property
    def estimates(self) -> "dict[str, pd.DataFrame]":
        """The table of each hyperparameter that is not fixed, by name, with a row for each entry."""
        return self.estimates_of({})

    def estimates_of(self, functions: Functions) -> "dict[str, pd.DataFrame]":
        """``estimates``, of increasing functions of some hyperparameters, by the names of these."""
        unknowns = trainable(self.model)
        pairs = zip(unknowns.names, unknowns.parameters, strict=True)
        return {name: intervals.of_value(functions.get(name, np.asarray)(p.value)) for name, p in pairs}

    def summary(self, latents: bool = False) -> "pd.DataFrame":
        """A table of the hyperparameters, as ``az.summary`` has it.

        Parameters
        ----------
        latents : bool
            Whether to add the latents at the data, as ``f[row, latent]``.

        Returns
        -------
        pandas.DataFrame
            A row for each number that is not fixed: ``mean``, ``sd`` and the ends of the equal-tailed interval of
            ArviZ's probability ``stats.ci_prob``; of draws ``ess_bulk``, ``ess_tail`` and ``r_hat``. A hyperparameter
            that was learned has a normal density on its unconstrained scale; without one, or if it kept its start
            value, it has no ``sd``.

        Raises
        ------
        ValueError
            If latents were not stored.
        """
        import pandas as pd

        tables = [table.set_axis([name + entry for entry in table.index]) for name, table in self.estimates.items()]
        tables += [self._latent_table()] if latents else []
        return pd.concat(tables) if tables else intervals.of_value([])

    def _latent_table(self) -> "pd.DataFrame":
        raise NotImplementedError
