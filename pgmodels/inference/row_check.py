"""Validation of data that are read in blocks of rows, with the checks of data in memory."""

from typing import Any

import numpy as np

from pgmodels.data.sources.rows import Block
from pgmodels.kernels.kernel import check_traced
from pgmodels.kernels.lookups import check_lookups
from pgmodels.model import Model


class RowCheck:
    """A model's checks of successive blocks of rows; ``unseen`` are the classes without an observation."""

    def __init__(self, model: Model):
        self.model = model
        self.unseen: list[int] = []
        self.num_columns: int | None = None

    def __call__(self, X: Any, y: Any) -> Block:
        """A block as float64. Raises ValueError with the row within the block."""
        inputs = self.model.check_inputs(X, "X")
        is_first = self.num_columns is None
        if is_first:
            self.num_columns = inputs.shape[1]
            for gp in self.model.gps:
                check_traced(gp.kernel, self.num_columns)
                gp.form.check(gp.kernel, self.num_columns)
        elif inputs.shape[1] != self.num_columns:
            raise ValueError(f"X must have {self.num_columns} column(s), as the first rows; got shape {np.shape(X)}.")
        for gp in self.model.gps:
            check_lookups(gp.kernel, inputs, "X")
        observations = self.model.check_observations(y, len(inputs))
        unseen = self.model.unseen(observations)
        self.unseen = unseen if is_first else sorted(set(unseen) & set(self.unseen))
        return inputs, observations
