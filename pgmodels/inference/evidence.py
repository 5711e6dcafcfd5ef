"""Estimates of the evidence."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pgmodels.data.arrays import check_whole_number
from pgmodels.inference.linear_response import correct_by_response
from pgmodels.inference.objectives import objective_of_result
from pgmodels.interop.arviz import pointwise_log_likelihood
from pgmodels.likelihoods.expression import Environment
from pgmodels.model import Model, has_factors
from pgmodels.numerics.elementary import FEWEST_DRAWS, SmoothedWeights, smoothed
from pgmodels.priors.chain import apply, roots_of, times
from pgmodels.priors.chain_posterior import Layout, chain_column, moves_along
from pgmodels.priors.collection import Posterior, PriorCollection, has_chain
from pgmodels.results.approximation import Approximation, CorrectedApproximation, GaussianResult
from pgmodels.results.nested import require_result
from pgmodels.runtime.jit import compiled, require_memory
from pgmodels.runtime.messages import PgmodelsWarning, warn
from pgmodels.runtime.precision import as_array, double_precision
from pgmodels.runtime.seeds import Seed, as_seed

# The evidence of latents that are Markov processes by particles, which move by the Gaussian posterior given sites.
#
# The estimate of p(y) is unbiased, and the variance of its logarithm grows with the number of rows, where that of
# weights of whole draws grows exponentially. Source: Del Moral 2004; Guarniero, Johansen and Lee 2017 (twisted
# proposals).

# Independent runs, whose spread gives the standard error.
NUM_RUNS = 8
# Coefficients of effects up to which particles take seconds: products of 64 entries for each of them and row.
_MOST_COEFFICIENTS = 64
# Shares of the data's precisions in the proposals: wider Gaussians are tried while an estimate is not reliable.
_SHARES = (1.0, 0.9, 0.7, 0.5, 0.35)
# States of particles (particles, blocks, entries), log weights (particles,), and the log evidence so far.
Particles: TypeAlias = tuple[Array, Array, Array]


class ParticleEstimate(NamedTuple):
    """log p(y), and its standard error from independent runs."""

    value: float
    standard_error: float


def layout_along(prior: PriorCollection, is_coupled: bool) -> Layout | None:
    """Return the blocks of latents along the chains' one column; None for several columns, or with many effects."""
    if not has_chain(prior) or prior.residual_variances() is not None:
        return None
    try:
        layout = Layout.of(prior, is_coupled)
    except ValueError:
        return None
    coefficients = sum(len(member.coefficients) for member in layout.members)
    return layout if coefficients <= _MOST_COEFFICIENTS else None


def estimate(log_evidences: np.ndarray) -> ParticleEstimate:
    """Return the estimate from the log evidences of independent runs, (runs,)."""
    largest = log_evidences.max()
    evidences = np.exp(log_evidences - largest)
    error = evidences.std(ddof=1) / evidences.mean() / np.sqrt(len(evidences))
    return ParticleEstimate(float(largest + np.log(evidences.mean())), float(error))


@partial(compiled, static_argnames=("num_particles", "layout"), on_one_thread=True)
def particle_runs(
    model: Model,
    posterior: Posterior,
    y: Array,
    row_weights: Array | None,
    keys: Array,
    num_particles: int,
    layout: Layout,
) -> Float[Array, " runs"]:
    """Return log p(y) under a model without priors, for each key, by particles that the sites' posterior moves."""
    formula, parameters = model.likelihood.formula(model.num_latents), model.parameters
    weights = jnp.ones(len(y)) if row_weights is None else row_weights
    order, moves = moves_along(posterior, weights, layout)
    mean, (h, w) = posterior.moments()[0], posterior.sites
    rows = (moves, *(part[order] for part in (mean, h, w, y, weights)), jnp.arange(len(y)))

    def run(key: Array) -> Array:
        def step(before: Particles, row: tuple[Any, ...]) -> tuple[Particles, None]:
            states, log_weights, total = before
            move, mean, h, w, y, weight, number = row
            noise_key, place_key = jax.random.split(jax.random.fold_in(key, number))
            states, log_weights, gained = _resampled(place_key, states, log_weights)
            states = apply(move.transition, states) + apply(move.root, jax.random.normal(noise_key, states.shape))
            f = mean + layout.latents(states, move.observation)
            terms = formula.log_evaluate(Environment(y[None], f[:, None], parameters))[:, 0, 0]
            terms = jnp.where(weight > 0, weight * terms, 0.0)
            log_weights = log_weights + terms - log_site(h, w, f)
            return (states, log_weights, total + gained), None

        start = jnp.zeros((num_particles, *moves.root.shape[1:3]))
        (_, log_weights, total), _ = jax.lax.scan(step, (start, jnp.zeros(num_particles), jnp.zeros(())), rows)
        return total + _log_mean(log_weights)

    return posterior.log_normalizer() + jax.lax.map(run, keys)


def log_site(h: Float[Array, "*batch L"], w: Array, f: Float[Array, "*batch L"]) -> Float[Array, "*batch"]:
    """Return logs of sites at latents, with precisions w (..., L) or (..., L, L)."""
    pull = w * f if w.ndim <= h.ndim else jnp.sum(w * f[..., None, :], axis=-1)
    return jnp.sum((h - 0.5 * pull) * f, axis=-1)


def _resampled(key: Array, states: Array, log_weights: Float[Array, " N"]) -> Particles:
    """Particles of equal weights, by systematic resampling, if their weights have an effective size below half."""
    weights = jax.nn.softmax(log_weights)
    size = len(weights)

    def resample() -> Particles:
        heights = (jnp.arange(size) + jax.random.uniform(key)) / size
        chosen = jnp.minimum(jnp.searchsorted(jnp.cumsum(weights), heights), size - 1)
        return states[chosen], jnp.zeros(size), _log_mean(log_weights)

    few = jnp.sum(weights**2) * size > 2.0
    return jax.lax.cond(few, resample, lambda: (states, log_weights, jnp.zeros(())))


def _log_mean(log_weights: Float[Array, " N"]) -> Float[Array, ""]:
    return jax.scipy.special.logsumexp(log_weights) - np.log(len(log_weights))


# Rows of a block.
LENGTH = 100


@partial(compiled, static_argnames=("num_draws", "layout"))
def block_log_ratios(
    model: Model,
    posterior: Posterior,
    y: Array,
    row_weights: Array,
    starts: Int[Array, " blocks"],
    key: Array,
    num_draws: int,
    layout: Layout,
) -> Float[Array, "blocks draws"]:
    """Return log ratios of the likelihoods of a block's rows to their sites, at draws of the posterior of all sites.

    They are the weights of these draws if the block has its likelihoods, and all other rows have their sites.
    """
    formula, parameters = model.likelihood.formula(model.num_latents), model.parameters
    order, moves = moves_along(posterior, row_weights, layout)
    rows, weights = [part[order] for part in (posterior.moments()[0], *posterior.sites, y)], row_weights[order]
    spread = len(starts), num_draws

    def along(before: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        F, root = now
        V = times(times(F, before), jnp.swapaxes(F, -1, -2)) + times(root, jnp.swapaxes(root, -1, -2))
        return V, V

    covariances = jax.lax.scan(along, jnp.zeros_like(moves.root[0]), moves[:2])[1][starts]
    of_first, of_others = jax.random.split(key)
    noise = jax.random.normal(of_first, (*spread, *covariances.shape[1:3]))
    first = apply(roots_of(covariances)[:, None], noise)

    def step(number: Array, before: tuple[Array, Array]) -> tuple[Array, Array]:
        states, total = before
        at = starts + number
        mean, h, w, y_block = (part[at][:, None] for part in rows)
        f = mean + layout.latents(states, moves.observation[at][:, None])
        # Rows are along the second axis but one of f, as a formula expects.
        terms = formula.log_evaluate(Environment(y_block[:, 0], jnp.swapaxes(f, 0, 1), parameters))[..., 0].T
        ratio = jnp.where(weights[at][:, None] > 0, weights[at][:, None] * terms, 0.0)
        total = total + ratio - log_site(h, w, f)
        after = jnp.minimum(at + 1, len(y) - 1)
        noise = jax.random.normal(jax.random.fold_in(of_others, number), states.shape)
        return apply(moves.transition[after][:, None], states) + apply(moves.root[after][:, None], noise), total

    return jax.lax.fori_loop(0, LENGTH, step, (first, jnp.zeros(spread)))[1]


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
        """The 0.9 quantile of the blocks' k-hats: the largest of many is large by chance."""
        return float(np.quantile(self.k_hats, 0.9))


@double_precision
def weigh_blocks(approximation: GaussianResult, num_draws: int, seed: int) -> BlockWeights | None:
    """Return the weights of q's draws in blocks of a long series; None unless the latents are Markov processes on it.

    The weights of whole draws would differ by more in a longer series, however close q is.
    """
    q = approximation.uncorrected
    prior, n, layout = q.posterior.prior, len(q.y), layout_along(q.posterior.prior, q.posterior.is_coupled)
    if not (n >= 1000) or layout is None:
        return None
    y, row_weights = q.data.padded(prior.num_rows)
    # At most a hundred blocks, evenly spread over the series.
    count = n // LENGTH
    starts = LENGTH * np.unique(np.linspace(0, count - 1, min(count, 100)).astype(int))
    key = jax.random.key(seed)
    ratios = block_log_ratios(q.model.bare(), q.posterior, y, row_weights, as_array(starts), key, num_draws, layout)
    weights = [smoothed(np.asarray(block)) for block in ratios]
    rows = np.argsort(q.X[:, chain_column(prior)], kind="stable")[starts]
    return BlockWeights(np.array([block.k for block in weights]), rows, weights[0].limit)


def weigh(approximation: GaussianResult, share: float, num_draws: int, seed: int) -> WeightedDraws:
    """Return weighted draws of the Gaussian with the approximation's mean and its sites' precisions times ``share``.

    With linear response it is the corrected Gaussian, wider if the ``share`` of the data's precisions is below 1. If
    the response is no covariance, it is q itself.
    """
    f, _, log_density = approximation.draw_with_density(num_draws, seed, share)
    log_likelihood = pointwise_log_likelihood(approximation, f).sum(axis=-1)
    return WeightedDraws(f, smoothed(log_likelihood - log_density))


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
        Importance draws, or the total number of particles in 8 independent runs; at least 100.
    seed : int or jax.Array
        An int or a JAX key, for the draws.

    Returns
    -------
    Evidence
        The estimate, its standard error, and Pareto k-hat of the weights.

    Raises
    ------
    ValueError
        For results of ``gibbs`` or ``nuts``, and invalid options.

    Warns
    -----
    EvidenceWarning
        If k-hat of each proposal is above its limit: the estimate is then unreliable.
    CorrectionWarning
        If the linear response is not a covariance; the draws are then from q itself.

    Notes
    -----
    The proposal is the Gaussian with the result's mean and its covariance by linear response. The weights are p(y, f)
    over its density, Pareto-smoothed. While k-hat is above its limit (0.7, or less for fewer than 2,000 draws), wider
    Gaussians are tried. For GPs with ``pgm.Markov()`` particles move along the series by q's own transitions, and are
    resampled if their weights differ. This costs O(n) time, and the estimate of p(y) is unbiased. Factors that the
    formula omits are missing from the estimate too.

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
    gaussian = require_result(
        result,
        "result must be a result of cavi, gaussian_vi, fit or correct",
        " For draws use pgm.log_evidence(pgm.gaussian_vi(model.fixed(), X, y)).",
        GaussianResult,
    )
    check_whole_number(num_draws, "num_draws", FEWEST_DRAWS)
    seed = as_seed(seed)
    if not has_factors(gaussian.model):
        return _by_particles(gaussian.uncorrected, num_draws, seed)
    corrected = gaussian if gaussian.has_response else correct_by_response(gaussian.uncorrected)
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
            else "Use a result of gaussian_vi, whose Gaussian is closer"
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
    layout = layout_along(posterior.prior, posterior.is_coupled)
    if layout is None:
        raise ValueError(
            "log_evidence with a GP of form=pgm.Markov() needs the other GPs of that form too, along the same column "
            f"of X, or with at most {_MOST_COEFFICIENTS} coefficients in total, such as groups and linear terms; the "
            "model has other GPs: choose pgm.Dense() or pgm.Inducing(300) for all."
        )
    require_memory(
        # Some eight matrices of a state at each row.
        64.0 * posterior.prior.num_rows * layout.num_blocks * layout.size**2,
        "the matrices of the states at all rows",
        "Use kernels with a smaller state, such as pgm.Periodic with fewer harmonics, or fewer linear effects.",
    )
    y, row_weights = result.data.padded(posterior.prior.num_rows)
    keys, count = jax.random.split(jax.random.key(seed), NUM_RUNS), -(-num_draws // NUM_RUNS)
    # Standard error, in nats, up to which the estimate is reliable.
    largest_error = 0.5
    tried: list[ParticleEstimate] = []
    for share in _SHARES:
        runs = particle_runs(model.bare(), result.gaussian(share), y, row_weights, keys, count, layout)
        tried.append(estimate(np.asarray(runs)))
        if tried[-1].standard_error <= largest_error:
            break
    value, error = min(tried, key=lambda one: one.standard_error)
    drawn_from = "q's transitions, resampled along the series"
    evidence = Evidence(value, error, None, largest_error, result.elbo, NUM_RUNS * count, drawn_from)
    if not evidence.is_reliable:
        warn(
            f"log_evidence: the {NUM_RUNS} runs of {count} particles differ too much, and {value:.4f} may be too small "
            f"by more than its standard error of {error:.2g} nats. Draw more, or compare models by their predictions.",
            EvidenceWarning,
        )
    return evidence
