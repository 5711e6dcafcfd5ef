"""The log evidence of a model by importance sampling from a corrected Gaussian."""

from dataclasses import dataclass

import jax
import numpy as np

from pgmodels.data.options import check_whole_number
from pgmodels.inference.corrections.response import correct_by_response
from pgmodels.inference.evidence.importance import weigh
from pgmodels.inference.evidence.particles import NUM_RUNS, ParticleEstimate, estimate, particle_runs, require_line
from pgmodels.inference.objectives import objective_of_result
from pgmodels.numerics.psis import FEWEST_DRAWS, SmoothedWeights
from pgmodels.results.approximation import Approximation, CorrectedApproximation, GaussianResult, LinearResponse
from pgmodels.results.sparse import name_type
from pgmodels.runtime.memory import require_memory
from pgmodels.runtime.seeds import Seed, as_seed
from pgmodels.runtime.warnings import PgmodelsWarning, warn
from pgmodels.runtime.x64 import as_array, double_precision

# Standard error of particles, in nats, up to which the estimate is reliable.
_LARGEST_ERROR = 0.5
# Bytes for each entry of a matrix of a state at a row: some eight matrices.
_MATRICES = 64.0
# Shares of the data's precisions in the proposals: wider Gaussians are tried while k-hat is above its limit.
_SHARES = (1.0, 0.9, 0.7, 0.5, 0.35)


class EvidenceWarning(PgmodelsWarning):
    """A log evidence is unreliable: its importance weights miss too much of the posterior."""


@dataclass(frozen=True)
class Evidence:
    """An estimate of log p(y), in nats, at fixed hyperparameters and with the formula's own normalisation.

    ``standard_error`` of ``value`` is estimated from the spread of the weights, and ``k_hat`` is Pareto k-hat of their
    tail: above ``limit`` neither is reliable. For GPs with ``pgm.Markov()``, ``standard_error`` is from the spread of
    independent runs of particles, and k-hat is None. ``elbo`` is the result's lower bound on log p(y). ``proposal``
    describes the distribution of the draws.
    """

    value: float
    standard_error: float
    k_hat: float | None
    limit: float
    elbo: float
    num_draws: int
    proposal: str

    @property
    def is_reliable(self) -> bool:
        """Whether k-hat is within its limit; without one, whether the standard error is."""
        return (self.standard_error if self.k_hat is None else self.k_hat) <= self.limit

    def __str__(self) -> str:
        k_hat = "" if self.k_hat is None else f"; Pareto k-hat {self.k_hat:.2f}"
        verdict = "" if self.is_reliable else f", above {self.limit:.2f}: not reliable"
        return (
            f"log p(y) = {self.value:.4f} +- {self.standard_error:.2g} nats, {self.value - self.elbo:.4f} above the "
            f"ELBO{k_hat}{verdict} ({self.num_draws} draws of {self.proposal})"
        )


@double_precision
def log_evidence(result: Approximation | CorrectedApproximation, *, num_draws: int = 4000, seed: Seed = 0) -> Evidence:
    """Estimate log p(y), hyperparameters fixed, by importance sampling from the corrected Gaussian of a result.

    Parameters
    ----------
    result : Approximation
        A result of ``cavi``, ``gaussian_vi``, ``fit`` or ``correct``.
    num_draws : int
        Importance draws, or particles in all of 8 independent runs, at least 100.
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
    Gaussians are tried. For GPs with ``pgm.Markov()`` particles move along the series by q's own
    transitions, and are resampled where their weights differ: O(n) time, and an unbiased estimate of p(y). The formula
    is used as it is: factors that it omits are missing from the estimate too.

    References
    ----------
    Vehtari et al. 2024; Guarniero, Johansen and Lee 2017.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 6.0, 30)[:, None]
    >>> y = np.random.default_rng(0).random(30) < 1.0 / (1.0 + np.exp(-3.0 * np.sin(X[:, 0])))
    >>> model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0)))
    >>> vi = pgm.gaussian_vi(model, X, y)
    >>> evidence = pgm.log_evidence(vi)
    >>> bool(evidence.value > vi.elbo), bool(evidence.standard_error < 0.05)
    (True, True)
    """
    if not isinstance(result, GaussianResult):
        raise ValueError(
            f"result must be what cavi, gaussian_vi, fit or correct return; got {name_type(result)}. For draws "
            "use pgm.log_evidence(pgm.gaussian_vi(model.fixed(), X, y))."
        )
    check_whole_number(num_draws, "num_draws", FEWEST_DRAWS)
    seed = as_seed(seed)
    if not result.model.has_factors:
        return _by_particles(result.uncorrected, num_draws, seed)
    corrected = result if isinstance(result, LinearResponse) else correct_by_response(result.uncorrected)
    tried: list[SmoothedWeights] = []
    for share in _SHARES:
        tried.append(weigh(corrected, share, num_draws, seed).weights)
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
            "Draw more"
            if objective_of_result(result).is_exact
            else "Take gaussian_vi's result, whose Gaussian is closer"
        )
        warn(
            f"log_evidence: Pareto k-hat of the weights is {evidence.k_hat:.2f}, above {evidence.limit:.2f}: the "
            f"Gaussian misses too much of the posterior, and {evidence.value:.4f} may be too small by more than "
            f"its standard error. {remedy}, or compare models by their predictions.",
            EvidenceWarning,
        )
    return evidence


def _by_particles(result: Approximation, num_draws: int, seed: int) -> Evidence:
    posterior, model = result.posterior, result.model
    layout = require_line(posterior.prior, posterior.is_coupled, "log_evidence")
    require_memory(
        _MATRICES * posterior.prior.num_rows * len(layout.blocks) * layout.size**2,
        "the matrices of the states at all rows",
        "Use kernels with a smaller state, such as pgm.Periodic with fewer harmonics, or fewer linear effects.",
    )
    y, row_weights = result.data.padded(posterior.prior.num_rows)
    keys, count = jax.random.split(jax.random.key(seed), NUM_RUNS), -(-num_draws // NUM_RUNS)
    tried: list[ParticleEstimate] = []
    for share in _SHARES:
        runs = particle_runs(model.bare(), posterior, as_array(share), y, row_weights, keys, count, layout)
        tried.append(estimate(np.asarray(runs)))
        if tried[-1].standard_error <= _LARGEST_ERROR:
            break
    value, error = min(tried, key=lambda one: one.standard_error)
    drawn_from = "q's transitions, resampled along the series"
    evidence = Evidence(value, error, None, _LARGEST_ERROR, result.elbo, NUM_RUNS * count, drawn_from)
    if not evidence.is_reliable:
        warn(
            f"log_evidence: the {NUM_RUNS} runs of {count} particles differ too much, and {value:.4f} may be too small "
            f"by more than its standard error of {error:.2g} nats. Draw more, or compare models by their predictions.",
            EvidenceWarning,
        )
    return evidence
