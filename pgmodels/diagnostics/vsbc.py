"""Variational simulation-based calibration: q of simulated data against the true latents."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import scipy

from pgmodels.diagnostics.symmetry import symmetry_test
from pgmodels.inference.conditioning import condition
from pgmodels.inference.corrections.response import correct_by_response
from pgmodels.inference.objectives import objective_of_result
from pgmodels.inference.variational.vi import optimise, start_state, variational_problem
from pgmodels.likelihoods.sampling import draw_observations
from pgmodels.model import Data, Model
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.corrected_gaussian import CorrectedGaussian
from pgmodels.priors.drawing import draw_latents
from pgmodels.priors.posterior import Posterior
from pgmodels.results.approximation import GaussianResult, LinearResponse
from pgmodels.results.correction import CorrectionWarning
from pgmodels.runtime.progress import progress_bar
from pgmodels.runtime.seeds import Seed, as_seed
from pgmodels.runtime.threads import SMALL, num_cores, one_thread_if_small
from pgmodels.runtime.warnings import suppress_warnings
from pgmodels.runtime.x64 import double_precision

# Levels of the central intervals whose coverage is reported.
LEVELS = (0.5, 0.9)
_MAX_ITERATIONS = 1000
# Draws from each replicate's q that replace the true latents, as a reference for an exact q.
_EXACT_DRAWS = 8


@dataclass(frozen=True, eq=False)
class Calibration:
    """Calibration of q on data simulated from the model (Yao et al. 2018, algorithm 2).

    In each replicate, f is drawn from the prior at X, y given f, and q is computed from y. ``z`` holds
    (f - m) / sqrt(v), (replicates, n, latents), standard normal for an exact q. Data of one replicate are dependent, so
    standard errors are over replicates. ``exact`` holds z with f replaced by draws of q,
    (replicates, draws, n, latents), as for an exact q. Both are NaN where the prior variance is 0; such latents are
    excluded from all figures. ``num_failed`` replicates, whose ELBO was not finite or whose linear response was not a
    covariance, are excluded; ``num_unconverged`` replicates stopped at 1,000 iterations and are included.
    """

    z: np.ndarray = field(repr=False)
    exact: np.ndarray = field(repr=False)
    num_failed: int
    num_unconverged: int

    @property
    def num_replicates(self) -> int:
        """The number of replicates."""
        return len(self.z)

    @cached_property
    def p(self) -> np.ndarray:
        """P_q(f* < f) of the true latents, (replicates, n, latents): uniform for an exact q."""
        return scipy.special.ndtr(self.z)

    @cached_property
    def symmetry(self) -> np.ndarray:
        """P-values of symmetry about 1/2 of each datum's ``p``, (n, latents); asymmetry means that m is biased."""
        return np.where(self._is_known, np.nan, symmetry_test(np.nan_to_num(self.z))[1])

    @cached_property
    def symmetry_corrected(self) -> np.ndarray:
        """The smallest p-value of symmetry times the number of data (Bonferroni), at most 1, (latents,)."""
        return np.minimum(np.nanmin(self.symmetry, axis=0) * np.sum(~self._is_known, axis=0), 1.0)

    @property
    def _is_known(self) -> np.ndarray:
        """Where the prior variance is 0, (n, latents)."""
        return np.isnan(self.z[0])

    @cached_property
    def bias(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean of z and its standard error, (latents,) each; above 0, q's means are too low."""
        return _mean_and_error(self.z)

    @cached_property
    def dispersion(self) -> tuple[np.ndarray, np.ndarray]:
        """Root mean square of z and its standard error, (latents,) each; above 1, q is too narrow or biased."""
        mean, error = _mean_and_error(self.z**2)
        return np.sqrt(mean), error / (2.0 * np.sqrt(mean))

    @cached_property
    def coverage(self) -> tuple[np.ndarray, np.ndarray]:
        """Coverage of q's central 50 % and 90 % intervals, and standard errors, (2, latents) each."""
        estimates = [_mean_and_error(inside) for inside in self.inside]
        return np.stack([mean for mean, _ in estimates]), np.stack([error for _, error in estimates])

    @cached_property
    def inside(self) -> np.ndarray:
        """1 where a latent is inside q's central 50 % and 90 % intervals, else 0, (2, replicates, n, latents)."""
        return _inside_intervals(self.z)

    @cached_property
    def bias_p(self) -> np.ndarray:
        """P-values of a nonzero mean of z, (latents,), by Student's t over replicates."""
        value, error = self.bias
        return 2.0 * scipy.special.stdtr(self.num_replicates - 1, -np.abs(value) / error)

    @cached_property
    def coverage_p(self) -> np.ndarray:
        """P-values of coverages other than 50 % and 90 %, (2, latents), with the standard errors of an exact q.

        Coverage is tested rather than the mean of z^2, whose standard error is inflated by a few outlying z.
        """
        levels = np.array(LEVELS)[:, None]
        by_draw = np.nanmean(_inside_intervals(self.exact), axis=3)
        variance = np.mean((by_draw - levels[:, None, None]) ** 2, axis=(1, 2))
        return 2.0 * scipy.special.ndtr(-np.abs(self.coverage[0] - levels) / np.sqrt(variance / self.num_replicates))

    def histogram(self, num_bins: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """Share of ``p`` in equal bins of (0, 1), and its standard error for an exact q, (bins, latents) each."""
        shares, errors = [], []
        for index in range(num_bins):
            low, high = scipy.special.ndtri(index / num_bins), scipy.special.ndtri((index + 1) / num_bins)
            shares.append(np.nanmean(_indicator(self.z, low, high), axis=(0, 1)))
            by_draw = np.nanmean(_indicator(self.exact, low, high), axis=2)
            variance = np.mean((by_draw - 1.0 / num_bins) ** 2, axis=(0, 1))
            errors.append(np.sqrt(variance / self.num_replicates))
        return np.stack(shares), np.stack(errors)


def _inside_intervals(z: np.ndarray) -> np.ndarray:
    """1 where z is inside the central intervals of a standard normal, else 0, with a first axis of intervals."""
    bounds = scipy.special.ndtri(0.5 + np.array(LEVELS) / 2.0)
    return np.stack([_indicator(z, -bound, bound) for bound in bounds])


def _indicator(z: np.ndarray, low: float, high: float) -> np.ndarray:
    """1 where low < z <= high, 0 elsewhere, NaN where z is NaN."""
    return np.where(np.isnan(z), np.nan, (z > low) & (z <= high))


def _mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean of (replicates, n, latents) for each latent, and its standard error over the replicates' means."""
    means = np.nanmean(values, axis=1)
    return means.mean(axis=0), means.std(axis=0, ddof=1) / np.sqrt(len(means))


@double_precision
def simulate_calibration(
    approximation: GaussianResult, num_replicates: int, seed: Seed = 0, progress: bool | None = None
) -> Calibration:
    """Simulate data sets at the approximation's X, covariates and hyperparameters, and compute q for each.

    Parameters
    ----------
    approximation : Approximation
        The result whose engine is run on the simulated data.
    num_replicates : int
        Number of simulated data sets, at least 2.
    seed : int or jax.Array
        An int or a JAX key, for the simulated data and the draws of q.
    progress : bool, optional
        Whether to show a progress bar, as in ``cavi``.

    Returns
    -------
    Calibration
        Standardised errors of q's means, and the coverage of its intervals.

    Raises
    ------
    ValueError
        For weighted rows, for formulas that y cannot be drawn from, and if fewer than two replicates succeed.

    References
    ----------
    Yao et al. 2018.
    """
    seed, model, y = as_seed(seed), approximation.model, approximation.y
    if approximation.weights is not None:
        raise ValueError("rows have weights, and data simulated from the model have none.")
    prior = approximation.posterior.prior
    f = draw_latents(prior, num_replicates, seed, 0)[0][:, : len(y)]
    support = model.likelihood.support(model.num_latents)
    drawn = draw_observations(model.likelihood, f, support.covariate_columns(y), np.random.default_rng(seed))
    drawn = support.recorded(drawn, y)
    mean, variance, exact, converged = _replicate(approximation, approximation.X, drawn, seed=seed, progress=progress)
    # Latents with a prior variance of 0 (up to jitter) do not test q.
    known = np.asarray(prior.marginals()[1])[: len(y)] <= prior.approximation_error
    with np.errstate(invalid="ignore", divide="ignore"):
        z, exact = (f - mean) / np.sqrt(variance), (exact - mean[:, None]) / np.sqrt(variance[:, None])
    z, exact = np.where(known, np.nan, z), np.where(known, np.nan, exact)
    finite = (np.isfinite(z) | known).all(axis=(1, 2))
    if finite.sum() < 2:
        raise ValueError(
            f"{num_replicates - finite.sum()} of {num_replicates} simulated data sets have an ELBO that is not finite, "
            "or a linear response that is not a covariance: the likelihood overflows at latents drawn from the prior. "
            "Check for prior variances of many orders of magnitude."
        )
    return Calibration(
        z=z[finite],
        exact=exact[finite],
        num_failed=int((~finite).sum()),
        num_unconverged=int((finite & ~converged).sum()),
    )


@one_thread_if_small
def _replicate(
    approximation: GaussianResult, X: np.ndarray, y: np.ndarray, *, seed: int, progress: bool | None
) -> tuple[np.ndarray, ...]:
    """Means, variances (replicates, n, latents) and draws of q for y (replicates, n, ...), and convergence."""
    model, prior = approximation.model, approximation.posterior.prior

    # Double precision is set by thread. Responses that are not covariances are counted instead of warned of.
    @double_precision
    @suppress_warnings(CorrectionWarning)
    def replicate(number: int) -> list[np.ndarray]:
        posterior, mean, variance, done = _refit(model, Data(X, y[number]), prior, approximation)
        draws, _ = draw_latents(posterior, _EXACT_DRAWS, seed, 1, number)
        return [np.asarray(part) for part in (mean, variance, draws[:, : len(X)], done)]

    # With many rows, each step uses all cores.
    workers, replicates = num_cores() if len(X) <= SMALL else 1, []
    with progress_bar("simulated data", len(y), progress) as bar, ThreadPoolExecutor(workers) as pool:
        # The first replicate compiles for all.
        for moments in chain([replicate(0)], pool.map(replicate, range(1, len(y)))):
            replicates.append(moments)
            bar.advance()
    return tuple(np.stack(part) for part in zip(*replicates, strict=True))


def _refit(
    model: Model, data: Data, prior: PriorCollection, approximation: GaussianResult
) -> tuple[Posterior | CorrectedGaussian, Any, Any, bool]:
    """Run the approximation's engine: q, means and variances (n, latents), and convergence."""
    problem = variational_problem(model, data, objective_of_result(approximation), prior)
    start = start_state(model, data, problem)
    problem, (state, trace, converged) = optimise(problem, start, approximation.tolerance, _MAX_ITERATIONS)
    posterior, *moments, _ = condition(problem, state.sites)
    # A state with an ELBO that is not finite is invalid even if its moments are finite.
    n = len(data.y)
    mean, variance = (np.asarray(part)[:n] for part in moments)
    mean = np.where(np.isfinite(trace[-1]), mean, np.nan)
    if not isinstance(approximation, LinearResponse) or not np.isfinite(mean).all():
        return posterior, mean, variance, converged
    refitted = replace(approximation.uncorrected, y=data.y, posterior=posterior, mean=mean, variance=variance)
    corrected = correct_by_response(refitted)
    if not corrected.is_positive:
        return posterior, np.full_like(mean, np.nan), variance, converged
    return corrected.gaussian(), corrected.mean, corrected.variance, converged
