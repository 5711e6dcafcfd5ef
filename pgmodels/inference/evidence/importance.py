"""Importance sampling of the latents from Gaussian approximations to their posterior."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from pgmodels.interop.arviz import pointwise_log_likelihood
from pgmodels.numerics.psis import SmoothedWeights, smoothed
from pgmodels.numerics.quadrature import equal_chunks, power_of_two
from pgmodels.priors.corrected_gaussian import CorrectedGaussian
from pgmodels.priors.drawing import BATCH, draw_latents
from pgmodels.priors.posterior import Posterior
from pgmodels.results.approximation import Approximation, GaussianResult, LinearResponse
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import double_precision


class WeightedDraws(NamedTuple):
    """Draws (draws, n, latents), and their importance weights p(y, f) / density."""

    f: np.ndarray
    weights: SmoothedWeights


@double_precision
def weigh(approximation: GaussianResult, share: float, num_draws: int, seed: int) -> WeightedDraws:
    """Weighted draws of the Gaussian with the approximation's mean and the precisions of its sites times ``share``.

    By linear response it is the corrected Gaussian, wider where the ``share`` of the data's precisions is below 1, and
    q itself where the response is no covariance.
    """
    if isinstance(approximation, LinearResponse):
        return _weigh_corrected(approximation, share, num_draws, seed)
    q = approximation.uncorrected
    proposal = q if share == 1.0 else _widened(q, share)
    f, coordinates = draw_latents(proposal.posterior, num_draws, seed)
    # The proposal is p(f) times the sites over their normaliser; adding it gives the ratios of p(y, f) to the proposal.
    log_ratios = _log_ratios(proposal, f, coordinates) + float(_log_normalizer(proposal.posterior))
    return WeightedDraws(f[:, : len(approximation.y)], smoothed(log_ratios))


@double_precision
def _widened(approximation: Approximation, share: float) -> Approximation:
    """An approximation with the precisions of its sites times ``share``; only its posterior is valid."""
    return replace(approximation, posterior=_tempered(approximation.posterior, share))


@compiled
def _draw(proposal: CorrectedGaussian, key: Any, numbers: Any) -> tuple[Array, Array]:
    keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(numbers)
    return proposal.place(keys, jax.vmap(lambda k: jax.random.normal(k, proposal.centre.shape))(keys))


def _weigh_corrected(result: LinearResponse, share: float, num_draws: int, seed: int) -> WeightedDraws:
    """Weighted draws, each with a key: that of the seed, folded with its number."""
    proposal, key, chunks = result.gaussian(share), jax.random.key(seed), []
    for numbers in equal_chunks(np.arange(num_draws), min(BATCH, power_of_two(num_draws))):
        f, log_ratio = (np.asarray(part) for part in _draw(proposal, key, numbers))
        f = f[:, : len(result.y)]
        chunks.append((f, pointwise_log_likelihood(result, f).sum(axis=-1) + log_ratio))
    latents, log_ratios = (np.concatenate(part)[:num_draws] for part in zip(*chunks, strict=True))
    return WeightedDraws(latents, smoothed(log_ratios))


@compiled
def _tempered(posterior: Posterior, share: Any) -> Posterior:
    return posterior.tempered(share)


@compiled
def _log_normalizer(posterior: Posterior) -> Any:
    return posterior.log_normalizer()


@compiled
def _log_factor(posterior: Posterior, f: Any, coordinates: Any) -> Any:
    # Sites act on the part of f in the coordinates; the rest has its prior distribution in the proposal.
    projected = f if posterior.prior.residual_variances() is None else posterior.prior.latents(coordinates)
    return posterior.log_factor(projected)


@double_precision
def _log_ratios(approximation: Approximation, f: np.ndarray, coordinates: tuple[np.ndarray, ...]) -> np.ndarray:
    """sum log p(y | f) - sum (h f - w f^2 / 2) of draws f at the posterior's rows: log p(f | y) / q(f) and a constant.

    q(f) is p(f) times the sites exp(h f - w f^2 / 2), normalised, so that p(f) drops out.
    """
    log_factor = np.asarray(_log_factor(approximation.posterior, f, coordinates))
    at_data = f[:, : len(approximation.y)]
    return pointwise_log_likelihood(approximation, at_data).sum(axis=-1) - log_factor
