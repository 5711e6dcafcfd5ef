"""Importance weights from an approximation to the posterior, and what they say of it."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from arviz_stats.base import array_stats

from pgmodels.interop import pointwise_log_likelihood
from pgmodels.latent.joint import JointPrior
from pgmodels.precision import double_precision
from pgmodels.results import Approximation


@dataclass(frozen=True, eq=False)
class ImportanceEstimate:
    """The posterior by Pareto-smoothed importance sampling from q(f) (Vehtari et al. 2024).

    ``mean`` and ``variance`` are posterior moments of f at the data, (n, latents), ``log_evidence`` is log p(y) and
    ``divergence`` KL(q(f) ‖ p(f | y)), in nats; each has a Monte-Carlo standard error of its own. All of them are None
    where ``pareto_k`` is above ``limit``: q then misses so much of the posterior that the standard errors would be
    wrong too, and ``reason`` says so. ``effective_size`` is how many of the ``num_draws`` draws the weights leave.
    """

    pareto_k: float
    limit: float
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
    f, _ = approximation.draw_latents(num_draws, seed)
    return _smoothed(_log_ratios(approximation, f))[1]


@double_precision
def importance_estimate(approximation: Approximation, num_draws: int, seed: int = 0) -> ImportanceEstimate:
    """Estimate the posterior by weighting ``num_draws`` draws from q, made from ``seed``."""
    f, _ = approximation.draw_latents(num_draws, seed)
    h, w = jnp.asarray(approximation.potential), jnp.asarray(approximation.precision)
    # q(f) is p(f) times the sites over their normaliser, which makes the ratios those of p(y, f) to q(f).
    log_ratios = _log_ratios(approximation, f) + float(_log_normalizer(approximation.prior, h, w))
    log_weights, k = _smoothed(log_ratios)
    weights = np.exp(log_weights)
    effective_size = float(1.0 / np.sum(weights**2))
    limit = min(1.0 - 1.0 / np.log10(num_draws), 0.7)
    if not k <= limit:
        reason = (
            f"Pareto k-hat is {k:.2f}, above {limit:.2f}: q misses so much of the posterior that weighted draws of it "
            "say nothing reliable. Draw from the posterior with gibbs."
        )
        return ImportanceEstimate(k, limit, num_draws, effective_size, reason)
    mean = np.einsum("s,snl->nl", weights, f)
    centred = (f - mean) ** 2
    variance = np.einsum("s,snl->nl", weights, centred)
    log_evidence = _log_mean(log_ratios, log_weights)
    error = np.sqrt(max(1.0 / effective_size - 1.0 / num_draws, 0.0))
    # The average under q of log q / p(. | y), whose two parts move together.
    deviations = weights * num_draws - 1.0 - (log_ratios - log_ratios.mean())
    return ImportanceEstimate(
        pareto_k=k,
        limit=limit,
        num_draws=num_draws,
        effective_size=effective_size,
        mean=mean,
        mean_error=np.sqrt(np.einsum("s,snl->nl", weights**2, centred)),
        variance=variance,
        variance_error=np.sqrt(np.einsum("s,snl->nl", weights**2, (centred - variance) ** 2)),
        log_evidence=log_evidence,
        log_evidence_error=float(error),
        divergence=log_evidence - float(log_ratios.mean()),
        divergence_error=float(np.std(deviations) / np.sqrt(num_draws)),
    )


@jax.jit
def _log_normalizer(prior: JointPrior, h: Any, w: Any) -> Any:
    return prior.moments(h, w)[2]


def _log_ratios(approximation: Approximation, f: np.ndarray) -> np.ndarray:
    """sum log p(y | f) - sum (h f - w f^2 / 2) of draws f (draws, n, latents): log p(f | y) / q(f) up to a constant.

    q(f) is p(f) times the sites exp(h f - w f^2 / 2), normalised, so that p(f) drops out.
    """
    sites = approximation.potential * f - 0.5 * approximation.precision * f**2
    return pointwise_log_likelihood(approximation, f).sum(axis=-1) - sites.sum(axis=(-2, -1))


def _smoothed(log_ratios: np.ndarray) -> tuple[np.ndarray, float]:
    """Logarithms of the smoothed weights, which sum to 1, and Pareto k-hat."""
    # Equal weights to rounding: q is the posterior, and there is no tail to fit.
    if np.ptp(log_ratios) < 1e-6 * max(1.0, float(np.abs(log_ratios).max())):
        return np.full(len(log_ratios), -np.log(len(log_ratios))), -np.inf
    # psislw takes the log likelihood of leave-one-out, the negative of a log weight.
    log_weights, k = array_stats.psislw(-log_ratios)
    return log_weights, float(k)


def _log_mean(log_ratios: np.ndarray, log_weights: np.ndarray) -> float:
    """log of the mean smoothed ratio. Smoothing leaves the middle ratio as it is, which tells the scale."""
    middle = int(np.argsort(log_ratios)[len(log_ratios) // 2])
    return float(log_ratios[middle] - log_weights[middle] - np.log(len(log_ratios)))
