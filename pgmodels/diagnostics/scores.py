"""Proper scores of predictions by their draws."""

from typing import Literal

import numpy as np

# The central interval of the interval score.
LEVEL = 0.9


def crps(draws: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The continuous ranked probability score of each row, (m,), in units of y, from draws (draws, m): unbiased.

    E|x - y| - E|x - x'| / 2 of independent draws x, x' (Gneiting and Raftery 2007, equation 21).
    """
    count = len(draws)
    # Sorted, the i-th of count draws is the larger one in i pairs and the smaller one in count - 1 - i.
    signs = 2.0 * np.arange(count) - (count - 1.0)
    spread = signs @ np.sort(draws, axis=0) / (count * (count - 1.0))
    return np.abs(draws - y).mean(axis=0) - spread


def interval_score(draws: np.ndarray, y: np.ndarray, level: float = LEVEL, is_discrete: bool = False) -> np.ndarray:
    """The interval score of each row's central interval, (m,), in units of y, from draws (draws, m).

    Its width, plus 2 / (1 - level) times the distance of y from it (Gneiting and Raftery 2007, equation 43).
    """
    tail = 0.5 * (1.0 - level)
    method: Literal["inverted_cdf", "linear"] = "inverted_cdf" if is_discrete else "linear"
    low, high = np.quantile(draws, [tail, 1.0 - tail], axis=0, method=method)
    return high - low + (np.maximum(low - y, 0.0) + np.maximum(y - high, 0.0)) / tail
