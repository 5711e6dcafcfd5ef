"""Pareto-smoothed importance sampling (PSIS)."""

from typing import NamedTuple

import numpy as np

# With fewer draws, k-hat is fitted to a tail of fewer than 20.
FEWEST_DRAWS = 100


class SmoothedWeights(NamedTuple):
    """Log density ratios (draws,), log smoothed weights (draws,), which sum to 1, and Pareto k-hat of their tail."""

    log_ratios: np.ndarray
    log_weights: np.ndarray
    k: float

    @property
    def effective_size(self) -> float:
        """The effective number of draws, 1 / sum w^2."""
        return float(1.0 / np.sum(np.exp(2.0 * self.log_weights)))

    @property
    def log_mean(self) -> float:
        """Log of the mean smoothed ratio. Smoothing does not change the median ratio, which gives the scale."""
        median = int(np.argsort(self.log_ratios)[len(self.log_ratios) // 2])
        return float(self.log_ratios[median] - self.log_weights[median] - np.log(len(self.log_ratios)))

    @property
    def log_mean_error(self) -> float:
        """The standard error of ``log_mean``, by the delta method."""
        return float(np.sqrt(max(1.0 / self.effective_size - 1.0 / len(self.log_ratios), 0.0)))

    @property
    def limit(self) -> float:
        """The k-hat up to which averages over this number of draws are reliable (Vehtari et al. 2024)."""
        return min(1.0 - 1.0 / np.log10(len(self.log_ratios)), 0.7)


def smoothed(log_ratios: np.ndarray) -> SmoothedWeights:
    """Pareto-smoothed weights of draws with these log density ratios (Vehtari et al. 2024)."""
    # Weights equal to rounding: the proposal is the target, and there is no tail to fit.
    if np.ptp(log_ratios) < 1e-6 * max(1.0, float(np.abs(log_ratios).max())):
        return SmoothedWeights(log_ratios, np.full(len(log_ratios), -np.log(len(log_ratios))), -np.inf)
    from arviz_stats.base import array_stats

    # psislw takes leave-one-out log likelihoods, which are negative log ratios.
    log_weights, k = array_stats.psislw(-log_ratios)
    return SmoothedWeights(log_ratios, log_weights, float(k))
