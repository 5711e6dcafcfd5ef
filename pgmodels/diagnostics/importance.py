"""Importance weights from an approximation to the posterior, and what they say of it."""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from pgmodels.inference.evidence.log_evidence import weigh
from pgmodels.interop.arviz import pointwise_log_likelihood
from pgmodels.numerics.psis import SmoothedWeights, smoothed
from pgmodels.priors.collection import IndependentPosterior
from pgmodels.results.approximation import Approximation, LinearResponse
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.seeds import NUM_SEEDS
from pgmodels.runtime.x64 import double_precision

# Proposals tried: the sites' precisions are multiplied by these. q is often too narrow, and weights need the tails.
_WIDENINGS = (1.0, 0.7, 0.5, 0.35, 0.25)
_PILOT = 500


@dataclass(frozen=True, eq=False)
class ImportanceEstimate:
    """The posterior by Pareto-smoothed importance sampling from q(f), or from q widened (Vehtari et al. 2024).

    ``pareto_k`` is k-hat of the weights from q itself, and says how far q is from the posterior. The estimates rest on
    ``num_draws`` draws of a Gaussian with q's mean and the precisions of its sites times ``widening``, the best of a
    few by its effective size; ``proposal_k`` is k-hat of their weights and ``effective_size`` what these leave.

    ``mean`` and ``variance`` are posterior moments of f at the data, (n, latents), ``log_evidence`` is log p(y) by the
    formula as it stands and ``divergence`` KL(q(f) ‖ p(f | y)), in nats; each has a Monte-Carlo standard error of its
    own, up to 1.4 times too small against long Gibbs runs where ``proposal_k`` was below 0.5, and up to 2.5 times
    above. All of them are None where it is above ``limit``: the standard errors would be worthless too, and ``reason``
    says so.
    """

    pareto_k: float
    proposal_k: float
    limit: float
    widening: float
    num_draws: int
    effective_size: float
    reason: str | None = None
    mean: Any = field(default=None, repr=False)
    mean_error: Any = field(default=None, repr=False)
    variance: Any = field(default=None, repr=False)
    variance_error: Any = field(default=None, repr=False)
    log_evidence: Any = None
    log_evidence_error: Any = None
    divergence: Any = None
    divergence_error: Any = None


def pareto_k(approximation: Approximation, num_draws: int = 2000, seed: int = 0) -> float:
    """Pareto k-hat of the importance weights from q(f) to the posterior (Yao et al. 2018; Vehtari et al. 2024)."""
    return _weigh(approximation, 1.0, num_draws, seed).weights.k


def importance_estimate(approximation: Approximation, num_draws: int, seed: int = 0) -> ImportanceEstimate:
    """Estimate the posterior by weighting ``num_draws`` draws, made from ``seed``."""
    own = _weigh(approximation, 1.0, num_draws, seed)
    widening = _best_widening(approximation, (seed + 1) % NUM_SEEDS)
    # Fresh draws for the proposal chosen; q's own serve where it is q.
    used = own if widening == 1.0 else _weigh(approximation, widening, num_draws, (seed + 2) % NUM_SEEDS)
    limit, size = used.weights.limit, used.weights.effective_size
    about = (own.weights.k, used.weights.k, limit, widening, num_draws, size)
    if not used.weights.k <= limit:
        reason = (
            f"Pareto k-hat of the weights is {used.weights.k:.2f}, above {limit:.2f}: draws like q's miss too much of "
            "the posterior for their weighted averages to be reliable. Draw from the posterior with gibbs."
        )
        return ImportanceEstimate(*about, reason)
    weights = np.exp(used.weights.log_weights)
    mean = np.einsum("s,snl->nl", weights, used.f)
    centred = (used.f - mean) ** 2
    variance = np.einsum("s,snl->nl", weights, centred)
    log_evidence, log_evidence_error = used.weights.log_mean, used.weights.log_mean_error
    return ImportanceEstimate(
        *about,
        mean=mean,
        mean_error=np.sqrt(np.einsum("s,snl->nl", weights**2, centred)),
        variance=variance,
        variance_error=np.sqrt(np.einsum("s,snl->nl", weights**2, (centred - variance) ** 2)),
        log_evidence=log_evidence,
        log_evidence_error=log_evidence_error,
        divergence=log_evidence - float(own.weights.log_ratios.mean()),
        divergence_error=_divergence_error(own, used, log_evidence_error),
    )


class _Weighted(NamedTuple):
    """Draws (draws, n, latents), and their weights by p(y, f) over their density."""

    f: np.ndarray
    weights: SmoothedWeights


@double_precision
def _weigh(approximation: Approximation, share: float, num_draws: int, seed: int) -> _Weighted:
    """Draws of the Gaussian with the approximation's mean and a share of the precisions of its sites."""
    if isinstance(approximation, LinearResponse):
        f, log_ratios = weigh(approximation, share, num_draws, seed)
        return _Weighted(f, smoothed(log_ratios))
    proposal = approximation if share == 1.0 else _widened(approximation, share)
    f, coordinates = proposal.draw_at_data(num_draws, seed)
    # The proposal is p(f) times the sites over their normaliser, which makes the ratios those of p(y, f) to it.
    log_ratios = _log_ratios(proposal, f, coordinates) + float(_log_normalizer(proposal.posterior.padded()))
    return _Weighted(f, smoothed(log_ratios))


@double_precision
def _widened(approximation: Approximation, share: float) -> Approximation:
    """An approximation with the precisions of its sites times ``share``; only its posterior is set."""
    posterior = approximation.posterior
    return replace(approximation, posterior=_tempered(posterior.padded(), share).resized(len(approximation.y)))


def _divergence_error(own: _Weighted, used: _Weighted, log_evidence_error: float) -> float:
    """The standard error of log p(y) less the average log ratio, whose draws are the same where q was not widened."""
    log_ratios, count = own.weights.log_ratios, len(own.f)
    if used is own:
        return float((np.exp(own.weights.log_weights) * count - log_ratios).std() / np.sqrt(count))
    return float(np.hypot(log_evidence_error, log_ratios.std() / np.sqrt(count)))


def _best_widening(approximation: Approximation, seed: int) -> float:
    """The least widening whose effective size, of a few draws, is within 5 % of the largest."""
    sizes = [_weigh(approximation, share, _PILOT, seed).weights.effective_size for share in _WIDENINGS]
    return _WIDENINGS[int(np.argmax(np.array(sizes) >= 0.95 * max(sizes)))]


@compiled
def _tempered(posterior: IndependentPosterior, share: Any) -> IndependentPosterior:
    return posterior.tempered(share)


@compiled
def _log_normalizer(posterior: IndependentPosterior) -> Any:
    return posterior.log_normalizer()


@compiled
def _log_factor(posterior: IndependentPosterior, f: Any, coordinates: Any) -> Any:
    # What coordinates leave of f no site moves, and the proposal has it as the prior does.
    own = f if posterior.prior.residual_variances() is None else posterior.prior.latents(coordinates)
    return posterior.log_factor(own)


@double_precision
def _log_ratios(approximation: Approximation, f: np.ndarray, coordinates: tuple[np.ndarray, ...]) -> np.ndarray:
    """sum log p(y | f) - sum (h f - w f^2 / 2) of draws f (draws, n, latents): log p(f | y) / q(f) up to a constant.

    q(f) is p(f) times the sites exp(h f - w f^2 / 2), normalised, so that p(f) drops out.
    """
    posterior = approximation.posterior.padded()
    # Rows that fill up have no factor, whatever f is there, and coordinates of their own have none.
    padded = np.pad(f, ((0, 0), (0, posterior.prior.num_rows - f.shape[1]), (0, 0)))
    ranks = [group.rank for group in posterior.prior.groups]
    whitened = tuple(np.pad(v, ((0, 0), (0, r - v.shape[1]), (0, 0))) for v, r in zip(coordinates, ranks, strict=True))
    log_factor = np.asarray(_log_factor(posterior, padded, whitened))
    return pointwise_log_likelihood(approximation, f).sum(axis=-1) - log_factor
