"""Importance sampling of the latents from Gaussian approximations to their posterior."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from pgmodels.interop.arviz import pointwise_log_likelihood
from pgmodels.numerics.psis import SmoothedWeights, smoothed
from pgmodels.numerics.quadrature import equal_chunks, power_of_two
from pgmodels.priors.collection import IndependentPosterior
from pgmodels.priors.corrected_gaussian import CorrectedGaussian
from pgmodels.priors.drawing import BATCH
from pgmodels.results.approximation import Approximation, LinearResponse
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import double_precision


class WeightedDraws(NamedTuple):
    """Draws (draws, n, latents), and their importance weights p(y, f) / density."""

    f: np.ndarray
    weights: SmoothedWeights


@double_precision
def weigh(approximation: Approximation, share: float, num_draws: int, seed: int) -> WeightedDraws:
    """Weighted draws of the Gaussian with the approximation's mean and the precisions of its sites times ``share``.

    By linear response it is the corrected Gaussian, wider where the ``share`` of the data's precisions is below 1, and
    q itself where the response is no covariance.
    """
    if isinstance(approximation, LinearResponse):
        return _weigh_corrected(approximation, share, num_draws, seed)
    proposal = approximation if share == 1.0 else _widened(approximation, share)
    f, coordinates = proposal.draw_at_data(num_draws, seed)
    # The proposal is p(f) times the sites over their normaliser; adding it gives the ratios of p(y, f) to the proposal.
    log_ratios = _log_ratios(proposal, f, coordinates) + float(_log_normalizer(proposal.posterior.padded()))
    return WeightedDraws(f, smoothed(log_ratios))


@double_precision
def _widened(approximation: Approximation, share: float) -> Approximation:
    """An approximation with the precisions of its sites times ``share``; only its posterior is valid."""
    posterior = approximation.posterior
    return replace(approximation, posterior=_tempered(posterior.padded(), share).resized(len(approximation.y)))


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
def _tempered(posterior: IndependentPosterior, share: Any) -> IndependentPosterior:
    return posterior.tempered(share)


@compiled
def _log_normalizer(posterior: IndependentPosterior) -> Any:
    return posterior.log_normalizer()


@compiled
def _log_factor(posterior: IndependentPosterior, f: Any, coordinates: Any) -> Any:
    # Sites act on the part of f in the coordinates; the rest has its prior distribution in the proposal.
    projected = f if posterior.prior.residual_variances() is None else posterior.prior.latents(coordinates)
    return posterior.log_factor(projected)


@double_precision
def _log_ratios(approximation: Approximation, f: np.ndarray, coordinates: tuple[np.ndarray, ...]) -> np.ndarray:
    """sum log p(y | f) - sum (h f - w f^2 / 2) of draws f (draws, n, latents): log p(f | y) / q(f) up to a constant.

    q(f) is p(f) times the sites exp(h f - w f^2 / 2), normalised, so that p(f) drops out.
    """
    posterior = approximation.posterior.padded()
    # Padding rows have no site and no coordinates.
    padded = np.pad(f, ((0, 0), (0, posterior.prior.num_rows - f.shape[1]), (0, 0)))
    ranks = [group.rank for group in posterior.prior.groups]
    whitened = tuple(np.pad(v, ((0, 0), (0, r - v.shape[1]), (0, 0))) for v, r in zip(coordinates, ranks, strict=True))
    log_factor = np.asarray(_log_factor(posterior, padded, whitened))
    return pointwise_log_likelihood(approximation, f).sum(axis=-1) - log_factor
