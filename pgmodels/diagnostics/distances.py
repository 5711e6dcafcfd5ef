"""Wasserstein distance of draws from a Gaussian."""

import numpy as np
from scipy.special import ndtr, ndtri

from pgmodels.data.arrays import in_units_of


def wasserstein_to_gaussian(sorted_draws: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Exact Wasserstein-1 distances of sorted draws (draws, k) from N(mean, scale^2), (k,).

    The integral of |x_(i) - mean - scale Phi^-1(u)| over u in ((i - 1) / S, i / S), summed over the S draws.
    """
    size = len(sorted_draws)
    edges = np.linspace(0.0, 1.0, size + 1)[:, None]
    heights = np.exp(-0.5 * ndtri(edges) ** 2) / np.sqrt(2.0 * np.pi)
    offset = sorted_draws - mean
    # The integrand changes sign where the Gaussian's quantile equals the draw.
    with np.errstate(divide="ignore"):
        z = np.clip(in_units_of(scale, offset), ndtri(edges[:-1]), ndtri(edges[1:]))
    at_sign_change = 2.0 * (offset * ndtr(z) + scale * np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi))
    ends = offset * (edges[:-1] + edges[1:]) + scale * (heights[:-1] + heights[1:])
    return np.maximum(at_sign_change - ends, 0.0).sum(axis=0)
