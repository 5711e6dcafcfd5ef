"""Variational simulation-based calibration: q of data simulated from the model, against the latents behind them."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri, stdtr

from pgmodels.diagnostics.symmetry import symmetry_test
from pgmodels.inference.cavi import init, step
from pgmodels.inference.conditioned import condition
from pgmodels.inference.correction import correct_by_response
from pgmodels.inference.drive import ascend
from pgmodels.inference.gaussian_vi import gaussian_problem, optimise, start_state
from pgmodels.inference.problem import problem_of
from pgmodels.language.sampling import draw_observations
from pgmodels.latent.coupled import CoupledPosterior
from pgmodels.latent.drawing import draw_latents
from pgmodels.latent.joint import JointPosterior, JointPrior
from pgmodels.latent.moved import MovedGaussian
from pgmodels.model import Data, Model
from pgmodels.precision import double_precision
from pgmodels.progress import progress_bar
from pgmodels.results.approximation import Approximation, LinearResponse
from pgmodels.results.correction import CorrectionWarning
from pgmodels.seeds import as_seed
from pgmodels.threads import SMALL, num_cores, one_thread_if_small
from pgmodels.warning import unsaid

# Central intervals whose coverage is reported.
LEVELS = (0.5, 0.9)
_MAX_ITERATIONS = 1000
# Draws from each replicate's q, in place of the truth, for what an exact q would give.
_EXACT_DRAWS = 8


@dataclass(frozen=True, eq=False)
class Calibration:
    """How q does on data simulated from the model (Yao et al. 2018, algorithm 2).

    In each replicate, f is drawn from the prior at X, y given f, and q is found from y by the engine. ``z`` holds
    (f - m) / sqrt(v), (replicates, n, latents); were q exact, each would be standard normal. Data of one replicate
    depend on each other, so every standard error counts replicates and not data. ``exact`` holds z with draws of each q
    in place of the truth, (replicates, draws, n, latents), as an exact q would have it. Both are NaN where the prior
    variance is 0: such a latent says nothing of q, and is left out of all figures. ``num_failed`` replicates,
    whose ELBO was not finite or whose linear response was no covariance, are left out; ``num_unconverged`` stopped at
    1,000 iterations and are in.
    """

    z: np.ndarray = field(repr=False)
    exact: np.ndarray = field(repr=False)
    num_failed: int
    num_unconverged: int

    @property
    def num_replicates(self) -> int:
        """The replicates that the figures rest on."""
        return len(self.z)

    @cached_property
    def p(self) -> np.ndarray:
        """P_q(f* < f) of the true latents, (replicates, n, latents): uniform, were q exact."""
        return ndtr(self.z)

    @cached_property
    def symmetry(self) -> np.ndarray:
        """The p-value of symmetry about 1/2 of each datum's ``p``, (n, latents); asymmetry means that m is biased."""
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
        """Mean of z and its standard error, (latents,) each: above 0, q's means are too low."""
        return _mean_and_error(self.z)

    @cached_property
    def dispersion(self) -> tuple[np.ndarray, np.ndarray]:
        """Root mean square of z and its standard error, (latents,) each: above 1, q is too narrow or off its mean."""
        mean, error = _mean_and_error(self.z**2)
        return np.sqrt(mean), error / (2.0 * np.sqrt(mean))

    @cached_property
    def coverage(self) -> tuple[np.ndarray, np.ndarray]:
        """Share of latents inside q's central 50 % and 90 % intervals, and standard errors, (2, latents) each."""
        parts = [_mean_and_error(inside) for inside in self.inside]
        return np.stack([mean for mean, _ in parts]), np.stack([error for _, error in parts])

    @cached_property
    def inside(self) -> np.ndarray:
        """1 where a latent is inside q's central 50 % and 90 % intervals, else 0, (2, replicates, n, latents)."""
        return _inside_intervals(self.z)

    @cached_property
    def bias_p(self) -> np.ndarray:
        """The p-value of a mean of z other than 0, (latents,), by Student's t over replicates."""
        value, error = self.bias
        return 2.0 * stdtr(self.num_replicates - 1, -np.abs(value) / error)

    @cached_property
    def coverage_p(self) -> np.ndarray:
        """P-values of coverages other than 50 % and 90 %, (2, latents), with the standard errors of an exact q.

        A few values of z far out hide in the standard error of the mean of z^2; a share has no such tail.
        """
        levels = np.array(LEVELS)[:, None]
        by_draw = np.nanmean(_inside_intervals(self.exact), axis=3)
        variance = np.mean((by_draw - levels[:, None, None]) ** 2, axis=(1, 2))
        return 2.0 * ndtr(-np.abs(self.coverage[0] - levels) / np.sqrt(variance / self.num_replicates))

    def histogram(self, num_bins: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """Share of ``p`` in equal bins of (0, 1) and, were q exact, each share's standard error, (bins, latents)."""
        shares, errors = [], []
        for index in range(num_bins):
            low, high = ndtri(index / num_bins), ndtri((index + 1) / num_bins)
            shares.append(np.nanmean(_indicator(self.z, low, high), axis=(0, 1)))
            by_draw = np.nanmean(_indicator(self.exact, low, high), axis=2)
            variance = np.mean((by_draw - 1.0 / num_bins) ** 2, axis=(0, 1))
            errors.append(np.sqrt(variance / self.num_replicates))
        return np.stack(shares), np.stack(errors)


def _inside_intervals(z: np.ndarray) -> np.ndarray:
    """1 where z is inside the central intervals of a standard normal, else 0, an axis of intervals first."""
    return np.stack([_indicator(z, ndtri(0.5 - level / 2.0), ndtri(0.5 + level / 2.0)) for level in LEVELS])


def _indicator(z: np.ndarray, low: float, high: float) -> np.ndarray:
    """1 where z is between the ends, 0 elsewhere, and NaN where it is."""
    return np.where(np.isnan(z), np.nan, (z > low) & (z <= high))


def _mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean of (replicates, n, latents) for each latent, and its standard error from one mean a replicate."""
    means = np.nanmean(values, axis=1)
    return means.mean(axis=0), means.std(axis=0, ddof=1) / np.sqrt(len(means))


@double_precision
def simulate_calibration(
    approximation: Approximation, num_replicates: int, seed: int = 0, progress: bool | None = None
) -> Calibration:
    """Simulate data sets like the approximation's, at its X, covariates and hyperparameters, and find q from each.

    Raises ValueError where rows have weights, where y cannot be drawn from the formula, or where fewer than two
    replicates have a q.
    """
    seed, model, y = as_seed(seed), approximation.model, approximation.y
    if model.is_weighted:
        raise ValueError("rows have weights, which data simulated from the model do not.")
    f, _ = draw_latents(approximation.prior, num_replicates, seed, 0)
    support = model.likelihood.support(model.num_latents)
    drawn = draw_observations(model.likelihood, f, support.given(y), np.random.default_rng(seed))
    drawn = support.recorded(drawn, y)
    mean, variance, exact, converged = _replicate(approximation, approximation.X, drawn, seed=seed, progress=progress)
    # Latents that the prior knows say nothing of q: their variance is 0, and what its form adds to it.
    known = np.asarray(approximation.prior.marginals()[1])[: len(y)] <= approximation.prior.neglected
    with np.errstate(invalid="ignore", divide="ignore"):
        z, exact = (f - mean) / np.sqrt(variance), (exact - mean[:, None]) / np.sqrt(variance[:, None])
    z, exact = np.where(known, np.nan, z), np.where(known, np.nan, exact)
    finite = (np.isfinite(z) | known).all(axis=(1, 2))
    if finite.sum() < 2:
        raise ValueError(
            f"the ELBO of {num_replicates - finite.sum()} of {num_replicates} simulated data sets is not finite, or "
            "their linear response is no covariance: the prior draws latents at which the likelihood overflows. Look "
            "for prior variances of many orders of magnitude."
        )
    return Calibration(
        z=z[finite],
        exact=exact[finite],
        num_failed=int((~finite).sum()),
        num_unconverged=int((finite & ~converged).sum()),
    )


@one_thread_if_small
def _replicate(
    approximation: Approximation, X: np.ndarray, y: np.ndarray, *, seed: int, progress: bool | None
) -> tuple[np.ndarray, ...]:
    """Means and variances (replicates, n, latents) of q for each of y (replicates, n, ...), draws, and convergence."""
    model, prior = approximation.model, approximation.prior.filled()

    # Which precision is used is a setting of each thread. What is no covariance is counted.
    @double_precision
    @unsaid(CorrectionWarning)
    def replicate(number: int) -> list[np.ndarray]:
        posterior, mean, variance, done = _find(model, Data(X, y[number]), prior, approximation)
        draws, _ = draw_latents(posterior, _EXACT_DRAWS, seed, 1, number)
        return [np.asarray(part) for part in (mean, variance, draws[:, : len(X)], done)]

    # Of many rows each step runs on all cores.
    workers, found = num_cores() if len(X) <= SMALL else 1, []
    with progress_bar("simulated data", len(y), progress) as bar, ThreadPoolExecutor(workers) as pool:
        # The first one compiles for all.
        for parts in chain([replicate(0)], pool.map(replicate, range(1, len(y)))):
            found.append(parts)
            bar.advance()
    return tuple(np.stack(part) for part in zip(*found, strict=True))


def _find(
    model: Model, data: Data, prior: JointPrior, approximation: Approximation
) -> tuple[JointPosterior | CoupledPosterior | MovedGaussian, Any, Any, bool]:
    """The approximation's engine from its usual start: q, means and variances (n, latents), and convergence."""
    if approximation.objective == "gaussian_vi":
        problem = gaussian_problem(model, data, prior)
        start = start_state(model, data, problem)
        problem, (state, trace, converged) = optimise(problem, start, approximation.tolerance, _MAX_ITERATIONS)
    else:
        problem = problem_of(model, data, prior)
        state, trace, converged = ascend(step, problem, init(problem), approximation.tolerance, _MAX_ITERATIONS)
    posterior, *moments = condition(problem, state.sites)
    # A state whose ELBO is not finite is no q, whatever its moments.
    n = len(data.y)
    mean, variance = (np.asarray(part)[:n] for part in moments)
    mean = np.where(np.isfinite(trace[-1]), mean, np.nan)
    if not isinstance(approximation, LinearResponse) or not np.isfinite(mean).all():
        return posterior, mean, variance, converged
    own = replace(approximation.uncorrected, y=data.y, posterior=posterior.resized(n), mean=mean, variance=variance)
    corrected = correct_by_response(own)
    if not corrected.is_positive:
        return posterior, np.full_like(mean, np.nan), variance, converged
    return corrected.gaussian(), corrected.mean, corrected.variance, converged
