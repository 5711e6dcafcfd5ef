"""The log evidence of a model by importance sampling from a corrected Gaussian."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from pgmodels.data.options import check_whole_number
from pgmodels.inference.corrections.correct import correct_by_response
from pgmodels.interop.arviz import pointwise_log_likelihood
from pgmodels.numerics.psis import SmoothedWeights, smoothed
from pgmodels.numerics.quadrature import equal_chunks, power_of_two
from pgmodels.priors.corrected_gaussian import CorrectedGaussian
from pgmodels.results.approximation import Approximation, LinearResponse
from pgmodels.results.sparse import name_type
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.seeds import Seed, as_seed
from pgmodels.runtime.warnings import PgmodelsWarning, warn
from pgmodels.runtime.x64 import double_precision

# Draws per batch, so that larger numbers share one program.
_DRAWS = 512
# With fewer draws k-hat is fitted to a tail of fewer than 20.
_FEWEST_DRAWS = 100
# Shares of the data's precisions in the proposals: wider Gaussians are tried while k-hat is above its limit.
_SHARES = (1.0, 0.9, 0.7, 0.5, 0.35)


class EvidenceWarning(PgmodelsWarning):
    """A log evidence is unreliable: its importance weights miss too much of the posterior."""


@dataclass(frozen=True)
class Evidence:
    """An estimate of log p(y), in nats, at fixed hyperparameters and with the formula's own normalisation.

    ``standard_error`` of ``value`` is estimated from the spread of the weights, and ``k_hat`` is Pareto k-hat of their
    tail: above ``limit`` neither is reliable. ``elbo`` is the result's lower bound on log p(y). ``proposal`` describes
    the distribution of the draws.
    """

    value: float
    standard_error: float
    k_hat: float
    limit: float
    elbo: float
    num_draws: int
    proposal: str

    @property
    def is_reliable(self) -> bool:
        """Whether k-hat is within its limit."""
        return self.k_hat <= self.limit

    def __str__(self) -> str:
        verdict = "" if self.is_reliable else f", above {self.limit:.2f}: not reliable"
        return (
            f"log p(y) = {self.value:.4f} +- {self.standard_error:.2g} nats, {self.value - self.elbo:.4f} above the "
            f"ELBO; Pareto k-hat {self.k_hat:.2f}{verdict} ({self.num_draws} draws of {self.proposal})"
        )


@compiled
def _draw(proposal: CorrectedGaussian, key: Any, numbers: Any) -> tuple[Array, Array]:
    keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(numbers)
    return proposal.place(keys, jax.vmap(lambda k: jax.random.normal(k, proposal.centre.shape))(keys))


@double_precision
def log_evidence(result: Approximation, *, num_draws: int = 4000, seed: Seed = 0) -> Evidence:
    """Estimate log p(y), hyperparameters fixed, by importance sampling from the corrected Gaussian of a result.

    Parameters
    ----------
    result : Approximation
        A result of ``cavi``, ``gaussian_vi``, ``fit`` or ``correct``.
    num_draws : int
        Importance draws, at least 100.
    seed : int or jax.Array
        An int or a JAX key, for the draws.

    Returns
    -------
    Evidence
        The estimate, its standard error, and Pareto k-hat of the weights.

    Raises
    ------
    ValueError
        For results of ``gibbs`` or ``nuts``, and bad options.

    Warns
    -----
    EvidenceWarning
        If k-hat of every proposal is above its limit, so that the estimate is unreliable.
    CorrectionWarning
        If the linear response is not a covariance; the draws are then from q itself.

    Notes
    -----
    The proposal is the Gaussian with the result's mean and its covariance by linear response; the weights are p(y, f)
    over its density, Pareto-smoothed. While k-hat is above its limit (0.7, or less for fewer than 2,000 draws), wider
    Gaussians are tried. The formula is used as it is: factors that it omits are missing from the estimate too.

    References
    ----------
    Vehtari et al. 2024.
    """
    if not isinstance(result, Approximation):
        raise ValueError(
            f"result must be what cavi, gaussian_vi, fit or correct return; got {name_type(result)}. For draws "
            "use pgm.log_evidence(pgm.gaussian_vi(model.fixed(), X, y))."
        )
    check_whole_number(num_draws, "num_draws", _FEWEST_DRAWS)
    seed = as_seed(seed)
    corrected = result if isinstance(result, LinearResponse) else correct_by_response(result)
    tried: list[SmoothedWeights] = []
    for share in _SHARES:
        tried.append(smoothed(weigh(corrected, share, num_draws, seed)[1]))
        if tried[-1].k <= tried[-1].limit:
            break
    best = min(tried, key=lambda weights: weights.k)
    evidence = Evidence(
        value=best.log_mean,
        standard_error=best.log_mean_error,
        k_hat=best.k,
        limit=best.limit,
        elbo=result.elbo,
        num_draws=num_draws,
        proposal="the corrected Gaussian" if corrected.is_positive else "q, whose linear response is not a covariance",
    )
    if not evidence.is_reliable:
        remedy = (
            "Take gaussian_vi's result, whose Gaussian is closer" if result.objective == "augmented" else "Draw more"
        )
        warn(
            f"log_evidence: Pareto k-hat of the weights is {evidence.k_hat:.2f}, above {evidence.limit:.2f}: the "
            f"Gaussian misses too much of the posterior, and {evidence.value:.4f} may be too small by more than "
            f"its standard error. {remedy}, or compare models by their predictions.",
            EvidenceWarning,
        )
    return evidence


@double_precision
def weigh(result: LinearResponse, share: float, num_draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws (draws, n, latents) of a corrected Gaussian, and the logarithms of p(y, f) over their density.

    A ``share`` of the data's precisions below 1 widens it; it is q itself if the linear response is not a covariance.
    The key of each draw is the seed's, folded with the number of the draw.
    """
    proposal, key, chunks = result.gaussian(share), jax.random.key(seed), []
    for numbers in equal_chunks(np.arange(num_draws), min(_DRAWS, power_of_two(num_draws))):
        f, log_ratio = (np.asarray(part) for part in _draw(proposal, key, numbers))
        f = f[:, : len(result.y)]
        chunks.append((f, pointwise_log_likelihood(result, f).sum(axis=-1) + log_ratio))
    latents, log_ratios = (np.concatenate(part)[:num_draws] for part in zip(*chunks, strict=True))
    return latents, log_ratios
