"""Rows without an observation: refused, left out, or kept for predictions."""

from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

MissingChoice = Literal["raise", "drop", "predict"]
_CHOICES = ("raise", "drop", "predict")


class Missing(NamedTuple):
    """Rows of the data without an observation, which ``missing="predict"`` keeps.

    ``rows`` (m,) are their numbers, ``X`` (m, d) their inputs, and ``covariates`` the columns of y after the first,
    None if there are none: arguments of ``predict`` and ``predict_latent``.
    """

    rows: Int[np.ndarray, " m"]
    X: Float[np.ndarray, "m d"]
    covariates: Float[np.ndarray, "m _"] | None = None


def check_missing(missing: Any) -> None:
    """Raise ValueError for an unknown choice."""
    if not isinstance(missing, str) or missing not in _CHOICES:
        raise ValueError(f"missing must be one of {', '.join(map(repr, _CHOICES))}; got {missing!r}.")


def without_value(y: np.ndarray, num_covariates: int, num_rows: int) -> np.ndarray:
    """Whether an observation is missing, (n,): NaN in a column of y before its covariates; False for y of no (n, k)."""
    if y.ndim not in (1, 2) or len(y) != num_rows:
        return np.zeros(num_rows, dtype=bool)
    columns = y[:, None] if y.ndim == 1 else y
    return np.isnan(columns[:, : max(1, columns.shape[1] - num_covariates)]).any(axis=1)


def check_covariates_of(rows: np.ndarray, y: np.ndarray, num_covariates: int) -> None:
    """Raise ValueError, naming row and column, if covariates of rows that are to be predicted are not finite."""
    first = y.shape[1] - num_covariates
    bad = np.argwhere(~np.isfinite(y[rows, first:]))
    if bad.size:
        row, column = rows[bad[0][0]], first + bad[0][1]
        raise ValueError(
            f"y[{column}] is a covariate and must be finite in rows that are to be predicted; got {y[row, column]} in "
            f"row {row}, column {column} of y. Impute it, or leave rows without y out with missing='drop'."
        )


def name_rows(rows: np.ndarray) -> str:
    """Row numbers in words, at most ten."""
    shown = ", ".join(map(str, rows[:10])) + (f" and {len(rows) - 10} more" if len(rows) > 10 else "")
    return f"row{'s' * (len(rows) > 1)} {shown}"
