"""Importance sampling of the latents from Gaussian approximations to their posterior."""

from typing import NamedTuple

import jax
import numpy as np

from pgmodels.inference.evidence.blocks import block_log_ratios, starts_of_blocks
from pgmodels.inference.evidence.particles import layout_along
from pgmodels.interop.log_densities import pointwise_log_likelihood
from pgmodels.numerics.psis import SmoothedWeights, smoothed
from pgmodels.priors.row_chains import chain_column
from pgmodels.results.approximation import GaussianResult
from pgmodels.runtime.x64 import as_array, double_precision

# Rows from which on a series is long.
_LONG = 1000


class WeightedDraws(NamedTuple):
    """Draws (draws, n, latents), and their importance weights p(y, f) / density."""

    f: np.ndarray
    weights: SmoothedWeights


class BlockWeights(NamedTuple):
    """Pareto k-hat of the weights of each block of a long series, ``rows`` (blocks,) the block's first row of X."""

    k_hats: np.ndarray
    rows: np.ndarray
    limit: float

    @property
    def k(self) -> float:
        """The k-hat that nine of ten blocks are below: the largest of many is large by chance."""
        return float(np.quantile(self.k_hats, 0.9))


@double_precision
def weigh_blocks(approximation: GaussianResult, num_draws: int, seed: int) -> BlockWeights | None:
    """The weights of q's draws in blocks of a long series; None unless the latents are Markov processes along it.

    The weights of whole draws would differ by more the longer the series, however close q is.
    """
    q = approximation.uncorrected
    prior, n, layout = q.posterior.prior, len(q.y), layout_along(q.posterior.prior, q.posterior.is_coupled)
    if n < _LONG or layout is None:
        return None
    y, row_weights = q.data.padded(prior.num_rows)
    starts = starts_of_blocks(n)
    key = jax.random.key(seed)
    ratios = block_log_ratios(q.model.bare(), q.posterior, y, row_weights, as_array(starts), key, num_draws, layout)
    weights = [smoothed(np.asarray(block)) for block in ratios]
    rows = np.argsort(q.X[:, chain_column(prior)], kind="stable")[starts]
    return BlockWeights(np.array([block.k for block in weights]), rows, weights[0].limit)


def weigh(approximation: GaussianResult, share: float, num_draws: int, seed: int) -> WeightedDraws:
    """Weighted draws of the Gaussian with the approximation's mean and the precisions of its sites times ``share``.

    By linear response it is the corrected Gaussian, wider where the ``share`` of the data's precisions is below 1, and
    q itself where the response is no covariance.
    """
    f, _, log_density = approximation.draw_with_density(num_draws, seed, share)
    log_likelihood = pointwise_log_likelihood(approximation, f).sum(axis=-1)
    return WeightedDraws(f, smoothed(log_likelihood - log_density))
