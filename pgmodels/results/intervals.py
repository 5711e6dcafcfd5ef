"""Means, deviations and equal-tailed intervals as tables, with the columns of ArviZ's summary."""

from typing import TYPE_CHECKING, Any

import numpy as np

from pgmodels.results.marginal import Marginal

if TYPE_CHECKING:
    import pandas as pd


def bounds() -> tuple[float, float]:
    """The probabilities of the ends of an interval of ArviZ's default probability."""
    from arviz_base import rcParams

    tail = 0.5 * (1.0 - float(rcParams["stats.ci_prob"]))
    return tail, 1.0 - tail


def names() -> tuple[str, str]:
    """The names of the columns with the ends, as in ArviZ."""
    low, high = bounds()
    percent = int(round(100 * (high - low), 6))
    return f"eti{percent}_lb", f"eti{percent}_ub"


def table(mean: np.ndarray, deviation: np.ndarray, ends: np.ndarray) -> "pd.DataFrame":
    """Means (m,), deviations (m,) and ends (2, m) as a table."""
    import pandas as pd

    return pd.DataFrame({"mean": mean, "sd": deviation} | dict(zip(names(), ends, strict=True)))


def of_draws(values: np.ndarray) -> "pd.DataFrame":
    """The table of draws (draws, m)."""
    return table(values.mean(axis=0), values.std(axis=0), np.quantile(values, bounds(), axis=0))


def of_chains(values: np.ndarray) -> "pd.DataFrame":
    """The table of draws (chains, draws, ...), with effective sample sizes and, of several chains, R-hat."""
    from arviz_stats.base import array_stats

    flat, axes = values.reshape(*values.shape[:2], -1), {"chain_axis": 0, "draw_axis": 1}
    rows = of_draws(flat.reshape(-1, flat.shape[2])).set_axis(entries(values.shape[2:]))
    if values.shape[1] < 4:
        return rows
    rows["ess_bulk"] = array_stats.ess(flat, **axes, method="bulk")
    # As az.summary has it, by the quantiles at stats.ci_prob and its complement.
    low, high = bounds()
    rows["ess_tail"] = array_stats.ess(flat, **axes, method="tail", prob=high - low)
    if len(values) > 1:
        rows["r_hat"] = array_stats.rhat(flat, **axes)
    return rows


def of_marginal(marginal: Marginal) -> "pd.DataFrame":
    """The table of a marginal, with a row for each entry of the hyperparameter."""
    ends = marginal.quantiles(bounds()).reshape(2, -1)
    return table(marginal.mean.ravel(), marginal.deviation.ravel(), ends).set_axis(entries(marginal.mean.shape))


def of_value(value: Any) -> "pd.DataFrame":
    """The table of a value without a distribution, with a row for each entry."""
    array = np.asarray(value, dtype=np.float64)
    unknown = np.full(array.size, np.nan)
    return table(array.ravel(), unknown, np.stack([unknown, unknown])).set_axis(entries(array.shape))


def entries(shape: tuple[int, ...]) -> list[str]:
    """The indices of the entries of an array as text, "[0, 1]"; "" for a number."""
    return [f"[{', '.join(map(str, entry))}]" if entry else "" for entry in np.ndindex(shape)]
