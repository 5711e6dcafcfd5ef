"""Checks of covariates: the columns of y after the first, which predictions need."""

from typing import Any

import numpy as np

from pgmodels.data.arrays import as_numbers, check_finite
from pgmodels.likelihoods.density import entries_out_of_range, undefined_coefficients
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.likelihood import Likelihood, columns_of
from pgmodels.likelihoods.supports import Support
from pgmodels.priors.padding import pad_rows, padded_size
from pgmodels.runtime.x64 import as_array, double_precision


def check_covariates(likelihood: Likelihood, size: int, covariates: Any, num_rows: int) -> np.ndarray | None:
    """Covariates as a float64 array (num_rows, columns); None for None.

    ``size`` is the number of latents. A single column may have shape (num_rows,). Raises ValueError for covariates that
    the likelihood does not allow.
    """
    if covariates is None:
        return None
    support = likelihood.support(size)
    columns = support.num_covariates
    if columns == 0:
        raise ValueError(f"covariates: y of {likelihood.name} has no covariates; leave covariates out.")
    values = as_numbers(covariates, "covariates")
    if values.shape == (num_rows,) and columns == 1:
        values = values[:, None]
    if values.shape != (num_rows, columns):
        first = support.num_columns - columns
        raise ValueError(
            f"covariates must have shape ({num_rows}, {columns}), one row for each row of X and the columns of y from "
            f"y[{first}] on; got {values.shape}."
        )
    check_finite(values, "covariates")
    support.check_covariates(values)
    _check_allowed(likelihood, size, support, values)
    return values


@double_precision
def _check_allowed(likelihood: Likelihood, size: int, support: Support, covariates: np.ndarray) -> None:
    """Raise ValueError if covariates index entries out of range, or make a coefficient infinite or NaN."""
    formula, first = likelihood.formula(size), support.num_columns - support.num_covariates
    # Padding repeats the first row, so that the first invalid row is never padding.
    covariates = pad_rows(covariates, padded_size(len(covariates)))
    y = np.column_stack([np.ones(len(covariates)), support.others(covariates)])
    env = Environment(as_array(y), as_array(np.zeros((len(y), size))), likelihood.values)

    def reads_covariates(expression: Expression) -> bool:
        return all(column >= first for column in columns_of(expression))

    for symbol, rows in entries_out_of_range(formula, env):
        if reads_covariates(symbol):
            raise ValueError(
                f"covariates are outside what the formula allows: {symbol.text()} needs an index of the entries of "
                f"{symbol.name}, 0 to {symbol.length - 1}, and is out of range in row {np.flatnonzero(rows)[0]}."
            )
    for coefficient, rows in undefined_coefficients(formula, env):
        if reads_covariates(coefficient):
            raise ValueError(
                f"covariates are outside what the formula allows: {coefficient.text()}, which multiplies a latent, is "
                f"not finite in row {np.flatnonzero(rows)[0]}."
            )
