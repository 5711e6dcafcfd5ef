"""Importance sampling of the latents from Gaussian approximations to their posterior."""

from typing import NamedTuple

import numpy as np

from pgmodels.interop.log_densities import pointwise_log_likelihood
from pgmodels.numerics.psis import SmoothedWeights, smoothed
from pgmodels.results.approximation import GaussianResult


class WeightedDraws(NamedTuple):
    """Draws (draws, n, latents), and their importance weights p(y, f) / density."""

    f: np.ndarray
    weights: SmoothedWeights


def weigh(approximation: GaussianResult, share: float, num_draws: int, seed: int) -> WeightedDraws:
    """Weighted draws of the Gaussian with the approximation's mean and the precisions of its sites times ``share``.

    By linear response it is the corrected Gaussian, wider where the ``share`` of the data's precisions is below 1, and
    q itself where the response is no covariance.
    """
    f, _, log_density = approximation.draw_with_density(num_draws, seed, share)
    log_likelihood = pointwise_log_likelihood(approximation, f).sum(axis=-1)
    return WeightedDraws(f, smoothed(log_likelihood - log_density))
