"""Row weights: their checks, and the formula to the power of a weight, an additional column of y."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pgmodels.data.arrays import as_numbers
from pgmodels.data.text_and_dates import as_array_code
from pgmodels.likelihoods.expression import Expression
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.likelihoods.supports import Given, Positive
from pgmodels.likelihoods.symbols import Observation


@dataclass(frozen=True)
class Weighted:
    """A formula to the power of the weight, the column of y after the formula's ``num_columns``."""

    formula: Callable[..., Expression]
    num_columns: int

    @property
    def __name__(self) -> str:
        return self.formula.__name__

    def __call__(self, y: Observation, f: Any, **parameters: Any) -> Expression:
        observation = y[0] if self.num_columns == 1 else y
        return self.formula(observation, f, **parameters) ** y[self.num_columns]


def to_power(likelihood: Likelihood, size: int) -> Likelihood:
    """The likelihood over ``size`` latents to the power of a weight, one more column of y."""
    support = likelihood.support(size)
    formula = Weighted(likelihood.function, support.num_columns)
    return replace(likelihood, function=formula, declared_support=Given(support, Positive()))


def check_weights(value: Any, num_rows: int) -> np.ndarray:
    """Weights as a float64 array (n,); ValueError unless they are one number >= 0 per row, not all 0."""
    weights = as_numbers(value, "weights")
    if weights.shape != (num_rows,):
        hint = f" Use {as_array_code(value, 'weights')}.ravel()." if weights.shape == (num_rows, 1) else ""
        raise ValueError(
            f"weights must have shape ({num_rows},), one for each row of X; got shape {weights.shape}.{hint}"
        )
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if bad.size:
        raise ValueError(
            f"weights must be finite and >= 0; got {weights[bad[0]]:g} in row {bad[0]}. A weight is how often a row "
            "counts: a row of weight 0 is ignored."
        )
    if not weights.any():
        raise ValueError("weights are all 0, so that every row is ignored: give some of them a weight above 0.")
    return weights
