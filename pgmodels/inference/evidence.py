"""The log evidence of a model by weighting draws of a corrected Gaussian."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from pgmodels.inference.correction import correct_by_response
from pgmodels.inference.smoothing import SmoothedWeights, smoothed
from pgmodels.integration import equal_chunks, power_of_two
from pgmodels.interop.arviz import pointwise_log_likelihood
from pgmodels.latent.coupled import CoupledPosterior, together
from pgmodels.latent.joint import JointPosterior, JointPrior
from pgmodels.latent.sequential import ASCENT_OPTIONS
from pgmodels.options import check_whole_number
from pgmodels.portable import Module
from pgmodels.precision import double_precision
from pgmodels.results.approximation import Approximation, LinearResponse
from pgmodels.warning import warn

# Draws at a time: larger numbers of them share one program.
_DRAWS = 512
# Below this many draws k-hat is fitted to fewer than 20 of them.
_FEWEST_DRAWS = 100
# Where k-hat is above its limit, wider Gaussians are tried, with so much of the data's precisions.
_SHARES = (1.0, 0.9, 0.7, 0.5, 0.35)


class EvidenceWarning(UserWarning):
    """A log evidence rests on weights that miss too much of the posterior."""


@dataclass(frozen=True)
class Evidence:
    """An estimate of log p(y), in nats, by the formula as it stands, hyperparameters held.

    ``standard_error`` is that of ``value`` by the weights' spread, and ``k_hat`` Pareto's of their tail: above
    ``limit`` neither is to be trusted. ``elbo`` is the bound of the result, which log p(y) is above. ``proposal`` says
    what was drawn from.
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
        verdict = "" if self.is_reliable else f", above {self.limit:.2f}: not to be trusted"
        return (
            f"log p(y) = {self.value:.4f} +- {self.standard_error:.2g} nats, {self.value - self.elbo:.4f} above the "
            f"ELBO; Pareto k-hat {self.k_hat:.2f}{verdict} ({self.num_draws} draws of {self.proposal})"
        )


class Proposal(Module):
    """A Gaussian of the latents' whitened coordinates, v = centre + half u with u standard normal.

    ``log_determinant`` is that of ``half``.
    """

    prior: JointPrior
    centre: Float[Array, " D"]
    half: Float[Array, "D D"]
    log_determinant: Float[Array, ""]

    def place(self, keys: Any, noise: Float[Array, "S D"]) -> tuple[Float[Array, "S n L"], Float[Array, " S"]]:
        """The latents at the data for standard normal u, and log p(f) less the log density of what was drawn.

        With ``keys`` (S,), which may have drawn u, goes what coordinates leave of the latents.
        """
        v = self.centre + noise @ self.half.T
        log_ratio = 0.5 * jnp.sum(noise**2 - v**2, axis=1) + self.log_determinant
        return jax.vmap(self.prior.scatter)(keys, jax.vmap(self.prior.unflatten)(v)), log_ratio


def propose(posterior: JointPosterior | CoupledPosterior, shift: Any, response: Any, share: Any = 1.0) -> Proposal:
    """The Gaussian whose mean and covariance are corrected by linear response (math: section 5b).

    Of the coordinates, whose mean moves by ``shift`` and whose covariance under q, P^-1, by ``response``. With a
    ``share`` below 1 of the data's precisions it is wider: tails are the prior's where the data say little.
    """
    (whole,), gaussian = together(posterior).roots, together(posterior, share)
    (R,) = gaussian.roots
    turned = solve_triangular(R, whole @ whole.T, lower=True)
    S = jnp.eye(len(R), dtype=R.dtype) + turned @ response @ turned.T
    root = jnp.linalg.cholesky(0.5 * (S + S.T))
    half = solve_triangular(R, jnp.column_stack([turned @ shift, root]), trans="T", lower=True)
    log_determinant = jnp.sum(jnp.log(jnp.diagonal(root))) - jnp.sum(jnp.log(jnp.diagonal(R)))
    return Proposal(gaussian.prior, gaussian.centre + half[:, 0], half[:, 1:], log_determinant)


_propose = partial(jax.jit, compiler_options=ASCENT_OPTIONS)(propose)


@partial(jax.jit, compiler_options=ASCENT_OPTIONS)
def _draw(proposal: Proposal, key: Any, numbers: Any) -> tuple[Array, Array]:
    keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(numbers)
    return proposal.place(keys, jax.vmap(lambda k: jax.random.normal(k, proposal.centre.shape))(keys))


@double_precision
def log_evidence(result: Approximation, *, num_draws: int = 4000, seed: int = 0) -> Evidence:
    """log p(y) of a result of ``cavi``, ``gaussian_vi``, ``fit`` or ``correct``, hyperparameters held at its values.

    By ``num_draws`` draws, made from ``seed``, of the Gaussian with the result's mean and its covariance by linear
    response, each weighted by p(y, f) over its density, the weights Pareto-smoothed (Vehtari et al. 2024). Where the
    response is no covariance, a CorrectionWarning says so and the draws are of q itself. Where k-hat of the weights is
    above its limit, 0.7 or, with fewer than 2,000 draws, less, wider Gaussians are tried, and an EvidenceWarning says
    that none was near enough. The formula is taken as it stands: what it leaves out is missing here too. Raises
    ValueError for draws.
    """
    if not isinstance(result, Approximation):
        raise ValueError(
            f"result must be what cavi, gaussian_vi, fit or correct return; got {type(result).__name__}. Of draws, "
            "take pgm.log_evidence(pgm.gaussian_vi(model.fixed(), X, y))."
        )
    check_whole_number(num_draws, "num_draws", _FEWEST_DRAWS)
    check_whole_number(seed, "seed", 0)
    corrected = result if isinstance(result, LinearResponse) else correct_by_response(result)
    own = float(corrected.is_positive)
    posterior = corrected.posterior.filled()
    about = tuple(own * part for part in corrected.in_coordinates_of(posterior))
    tried: list[SmoothedWeights] = []
    for share in _SHARES:
        tried.append(_weigh(corrected, _propose(posterior, *about, share), num_draws, seed))
        if tried[-1].k <= tried[-1].limit:
            break
    best = min(tried, key=lambda weights: weights.k)
    found = Evidence(
        value=best.log_mean,
        standard_error=best.log_mean_error,
        k_hat=best.k,
        limit=best.limit,
        elbo=result.elbo,
        num_draws=num_draws,
        proposal="the corrected Gaussian" if corrected.is_positive else "q, whose response is no covariance",
    )
    if not found.is_reliable:
        remedy = "Take gaussian_vi's result, whose Gaussian is closer" if result.objective == "cavi" else "Draw more"
        warn(
            f"log_evidence: Pareto k-hat of the weights is {found.k_hat:.2f}, above {found.limit:.2f}: draws like the "
            f"Gaussian's miss too much of the posterior, and {found.value:.4f} is more likely too small than its "
            f"standard error says. {remedy}, or compare models by their predictions.",
            EvidenceWarning,
        )
    return found


def _weigh(result: Approximation, proposal: Proposal, num_draws: int, seed: int) -> SmoothedWeights:
    """The weights p(y, f) / proposal(f) of draws, which have a key each: that of the seed, folded with its number."""
    key, parts = jax.random.key(seed), []
    for numbers in equal_chunks(np.arange(num_draws), min(_DRAWS, power_of_two(num_draws))):
        f, log_ratio = (np.asarray(part) for part in _draw(proposal, key, numbers))
        parts.append(pointwise_log_likelihood(result, f[:, : len(result.y)]).sum(axis=-1) + log_ratio)
    return smoothed(np.concatenate(parts)[:num_draws])
