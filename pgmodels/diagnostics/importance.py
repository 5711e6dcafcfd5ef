"""Importance weights from an approximation to the posterior, and what they say of it."""

import numpy as np
from arviz_stats.base import array_stats

from pgmodels.interop import pointwise_log_likelihood
from pgmodels.results import Approximation


def pareto_k(approximation: Approximation, num_draws: int = 2000, seed: int = 0) -> float:
    """Pareto k-hat of the importance weights from q(f) to the posterior (Yao et al. 2018; Vehtari et al. 2024).

    q(f) is p(f) times the sites exp(h f - w f^2 / 2), normalised, so the log weight of a draw is
    sum log p(y | f) - sum (h f - w f^2 / 2) up to a constant, without p(f).
    """
    f, _ = approximation.draw_latents(num_draws, seed)
    sites = approximation.potential * f - 0.5 * approximation.precision * f**2
    log_weights = pointwise_log_likelihood(approximation, f).sum(axis=-1) - sites.sum(axis=(-2, -1))
    # Equal weights to rounding: q is the posterior, and there is no tail to fit.
    if np.ptp(log_weights) < 1e-6 * max(1.0, float(np.abs(log_weights).max())):
        return -np.inf
    # psislw takes the log likelihood of leave-one-out, the negative of a log weight.
    return float(array_stats.psislw(-log_weights)[1])
