"""Means, deviations and equal-tailed intervals of draws, as tables."""

from typing import Any

import numpy as np
import pandas as pd

from pgmodels.results.marginal import Marginal


def bounds() -> tuple[float, float]:
    """The probabilities of the ends of an interval of ArviZ's default probability."""
    from arviz_base import rcParams

    tail = 0.5 * (1.0 - float(rcParams["stats.ci_prob"]))
    return tail, 1.0 - tail


def names() -> tuple[str, str]:
    """The names of the columns with the ends, as in ArviZ."""
    low, high = bounds()
    return f"eti_{100 * low:.3g}%", f"eti_{100 * high:.3g}%"


def table(mean: np.ndarray, deviation: np.ndarray, ends: np.ndarray) -> pd.DataFrame:
    """Means (m,), deviations (m,) and ends (2, m) as a table."""
    return pd.DataFrame({"mean": mean, "sd": deviation} | dict(zip(names(), ends, strict=True)))


def of_draws(values: np.ndarray) -> pd.DataFrame:
    """The table of draws (draws, m)."""
    return table(values.mean(axis=0), values.std(axis=0), np.quantile(values, bounds(), axis=0))


def of_hyperparameter(values: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, deviation and interval of a marginal, of draws (chains, draws, ...), or of one learned value."""
    if isinstance(values, Marginal):
        return values.mean, values.deviation, values.quantiles(bounds())
    array = np.asarray(values, dtype=np.float64)
    if array.ndim < 2:
        unknown = np.full(array.shape, np.nan)
        return array, unknown, np.stack([unknown, unknown])
    flat = array.reshape(-1, *array.shape[2:])
    return flat.mean(axis=0), flat.std(axis=0), np.quantile(flat, bounds(), axis=0)
