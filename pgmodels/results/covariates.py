"""The columns of y that predictions are given, checked as those of data are."""

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
    """Covariates as a float64 array (num_rows, columns), or ValueError where y could not have them; None of None.

    ``size`` is the number of latents. One column may have shape (num_rows,).
    """
    if covariates is None:
        return None
    support = likelihood.support(size)
    columns = support.num_covariates
    if columns == 0:
        raise ValueError(f"covariates: y of {likelihood.name} has no column that is given; leave covariates out.")
    given = as_numbers(covariates, "covariates", as_column=columns == 1, is_new=True)
    if given.shape == (num_rows,) and columns == 1:
        given = given[:, None]
    if given.shape != (num_rows, columns):
        first = support.num_columns - columns
        raise ValueError(
            f"covariates must have shape ({num_rows}, {columns}), a row for each of X and the columns of y from "
            f"y[{first}] on; got {given.shape}."
        )
    check_finite(given, "covariates")
    support.check_covariates(given)
    _check_allowed(likelihood, size, support, given)
    return given


@double_precision
def _check_allowed(likelihood: Likelihood, size: int, support: Support, given: np.ndarray) -> None:
    """ValueError where covariates choose entries that there are not, or give a coefficient without a value."""
    formula, first = likelihood.formula(size), support.num_columns - support.num_covariates
    # Rows that fill up are the first again, and no fault is found in them before it is found there.
    given = pad_rows(given, padded_size(len(given)))
    y = np.column_stack([np.ones(len(given)), support.others(given)])
    env = Environment(as_array(y), as_array(np.zeros((len(y), size))), likelihood.values)

    def is_given(expression: Expression) -> bool:
        return all(column >= first for column in columns_of(expression))

    for symbol, rows in entries_out_of_range(formula, env):
        if is_given(symbol):
            raise ValueError(
                f"covariates are outside what the formula allows: {symbol.text()} chooses among the {symbol.length} "
                f"entries of {symbol.name}, 0 to {symbol.length - 1}, and none in row {np.flatnonzero(rows)[0]}."
            )
    for coefficient, rows in undefined_coefficients(formula, env):
        if is_given(coefficient):
            raise ValueError(
                f"covariates are outside what the formula allows: {coefficient.text()}, beside a latent, has no finite "
                f"value in row {np.flatnonzero(rows)[0]}."
            )
