"""Simulation-based calibration of approximations, and checks of auxiliary variables."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array

from pgmodels.augmentation.augmentation import Augmentation, expectations
from pgmodels.augmentation.laws import VARIANCE
from pgmodels.inference.linear_response import correct_by_response
from pgmodels.inference.objectives import objective_of_result
from pgmodels.inference.prepare import start_state, variational_problem
from pgmodels.inference.problem import conditioned
from pgmodels.inference.vi import optimise
from pgmodels.likelihoods.expression import Environment
from pgmodels.likelihoods.sampling import draw_observations
from pgmodels.model import Data, Model, with_powers
from pgmodels.numerics.quadrature import CHUNK_VALUES, slices
from pgmodels.priors.block_posterior import CorrectedGaussian, draw_latents
from pgmodels.priors.collection import Posterior, PriorCollection, approximation_error
from pgmodels.results.approximation import GaussianResult
from pgmodels.results.draws import Draws
from pgmodels.results.gaussian import CorrectionWarning
from pgmodels.results.nested import require_result
from pgmodels.results.result import Result
from pgmodels.runtime.jit import SMALL, compiled, num_cores, one_thread_up_to
from pgmodels.runtime.messages import progress_bar, suppress_warnings
from pgmodels.runtime.precision import as_array, double_precision
from pgmodels.runtime.seeds import Seed, as_seed


def symmetry_test(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the Kolmogorov-Smirnov distance between x and -x over the first axis, and its p-value, for x (draws, ...).

    x and -x are not independent samples, so that the two-sample distribution does not apply: its 5 % point rejects 11 %
    of symmetric samples. Given |x| the signs are fair coin tosses. The distance is the maximum distance from 0 of
    their random walk, in order of decreasing |x|, over the number of steps (Butler 1969). This is exact at every size.
    """
    count = len(x)
    order = np.argsort(-np.abs(x), axis=0, kind="stable")
    walk = np.cumsum(np.take_along_axis(np.sign(x), order, axis=0), axis=0)
    farthest = np.abs(walk).max(axis=0).astype(int)
    levels = np.unique(farthest)
    p_values = np.array([_reach_probability(int(level), count) for level in levels])
    return farthest / count, p_values[np.searchsorted(levels, farthest)]


def _reach_probability(level: int, count: int) -> float:
    """The probability that a simple random walk of ``count`` steps reaches distance ``level`` from 0."""
    inside = np.zeros(2 * level + 1)
    inside[level] = 1.0
    reached = 0.0
    for _ in range(count):
        step = np.zeros_like(inside)
        step[1:] += 0.5 * inside[:-1]
        step[:-1] += 0.5 * inside[1:]
        reached += step[0] + step[-1]
        step[[0, -1]] = 0.0
        inside = step
    return float(min(reached, 1.0)) if level else 1.0


# Levels of the central intervals whose coverage is reported.
LEVELS = (0.5, 0.9)


@dataclass(frozen=True, eq=False)
class Calibration:
    """Calibration of q on data simulated from the model (Yao et al. 2018, algorithm 2).

    In each replicate, f is drawn from the prior at X, y given f, and q is computed from y. ``z`` holds
    (f - m) / sqrt(v), (replicates, n, latents), standard normal for an exact q. Data of one replicate are dependent, so
    standard errors are over replicates. ``exact`` holds z with f replaced by draws of q,
    (replicates, draws, n, latents), as for an exact q. Both are NaN where the prior variance is 0; such latents are
    excluded from all figures. ``num_failed`` replicates, whose ELBO was not finite or whose linear response was not a
    covariance, are excluded. ``num_unconverged`` replicates stopped at 1,000 iterations and are included.
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
        means, errors = zip(*map(_mean_and_error, self.inside), strict=True)
        return np.stack(means), np.stack(errors)

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
        """Return the share of ``p`` in equal bins of (0, 1), and its standard error for an exact q, (bins, latents)."""
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
    means = np.nanmean(values, axis=1)
    return means.mean(axis=0), means.std(axis=0, ddof=1) / np.sqrt(len(means))


def refit(
    model: Model, data: Data, prior: PriorCollection, approximation: GaussianResult, max_iterations: int = 1000
) -> tuple[Posterior | CorrectedGaussian, np.ndarray, np.ndarray, bool]:
    """Run the approximation's engine on other data: q, means and variances (n, latents), and convergence."""
    problem = variational_problem(model, data, objective_of_result(approximation), prior)
    start = start_state(model, data, problem)
    problem, (state, trace, converged) = optimise(problem, start, approximation.tolerance, max_iterations)
    posterior, *moments, _ = conditioned(problem, state.sites)
    mean, variance = (np.asarray(part)[: len(data.y)] for part in moments)
    # A state with an ELBO that is not finite is invalid even if its moments are finite.
    mean = np.where(np.isfinite(trace[-1]), mean, np.nan)
    if not (approximation.is_corrected and np.isfinite(mean).all()):
        return posterior, mean, variance, converged
    refitted = replace(approximation.uncorrected, y=data.y, posterior=posterior, mean=mean, variance=variance)
    corrected = correct_by_response(refitted)
    if not corrected.is_positive:
        return posterior, np.full_like(mean, np.nan), variance, converged
    return corrected.gaussian(), corrected.mean, corrected.variance, converged


Refit: TypeAlias = Callable[..., tuple[Posterior | CorrectedGaussian, np.ndarray, np.ndarray, bool]]


@double_precision
def simulate_calibration(
    approximation: GaussianResult,
    num_replicates: int,
    seed: Seed = 0,
    progress: bool | None = None,
    *,
    refit: Refit = refit,
    num_workers: int | None = None,
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
    refit : callable
        What computes q for simulated data, as ``refit``.
    num_workers : int, optional
        Replicates computed at a time; by default one for each core, and one with many rows, where each uses all cores.

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
    support = model.support
    drawn = draw_observations(model.likelihood, f, support.covariate_columns(y), np.random.default_rng(seed))
    drawn = support.recorded(drawn, y)
    if num_workers is None:
        num_workers = num_cores() if len(y) <= SMALL else 1
    # Draws from each replicate's q replace the true latents, as a reference for an exact q.
    num_exact = 8

    # Double precision is set by thread. Responses that are not covariances are counted instead of warned of.
    @double_precision
    @suppress_warnings(CorrectionWarning)
    def replicate(number: int) -> list[np.ndarray]:
        posterior, mean, variance, done = refit(model, Data(approximation.X, drawn[number]), prior, approximation)
        draws, _ = draw_latents(posterior, num_exact, seed, 1, number)
        return [np.asarray(part) for part in (mean, variance, draws[:, : len(y)], done)]

    replicates, bar = [], progress_bar("simulated data", num_replicates, progress)
    with one_thread_up_to(len(y)), bar as shown, ThreadPoolExecutor(num_workers) as pool:
        # The first replicate compiles for all.
        for moments in chain([replicate(0)], pool.map(replicate, range(1, num_replicates))):
            replicates.append(moments)
            shown.advance()
    mean, variance, exact, converged = (np.stack(part) for part in zip(*replicates, strict=True))
    # Latents with a prior variance of 0 (up to jitter) do not test q.
    known = np.asarray(prior.marginals()[1])[: len(y)] <= approximation_error(prior)
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


@double_precision
def auxiliary_means(result: Result) -> dict[str, np.ndarray]:
    """Return the posterior mean of each auxiliary variable by name, (n,), or (n, latents) if each latent has its own.

    For an approximation, the mean under the optimal q of the auxiliaries, as in the CAVI updates. For draws, the
    average of E[a | f, y] over the draws of f: the same expectation as Gibbs draws of a, with less noise. NaN where a
    datum lacks the auxiliary, for example a probit datum for the other label. Infinite where the posterior mean does
    not exist: for the Laplace likelihood it is E[1 / (2 scale |y - f|)], which diverges for draws of f. Empty for
    likelihoods that are Gaussian in f without augmentation. For a corrected result, the means before the correction.
    Raises ValueError for draws without all latents.
    """
    checked: Any = require_result(result, "result must be a result of cavi, fit or gibbs", kind=(Draws, GaussianResult))
    if result.draws is not None:
        means = _average(result.draws)
    else:
        # The optimal q of the auxiliaries belongs to the marginals of q(f), not to corrected marginals.
        mean, variance = checked.uncorrected.predictor_moments()
        means = _expected(result, mean, variance, result.model.parameters)
    present = _present(result)
    return {name: np.where(present[name], value, np.nan) if name in present else value for name, value in means.items()}


def _average(draws: Draws) -> dict[str, np.ndarray]:
    """The average of E[a | f, y] over draws: the optimal q's expectation with variance 0 for f."""
    if draws.rows is not None:
        raise ValueError(
            f"draws store the latents of {len(draws.rows)} rows of {len(draws.X)}, and all are needed: run gibbs with "
            'keep="all".'
        )
    f = draws.latents.reshape(-1, *draws.latents.shape[2:])
    sampled = draws.flat_likelihood_values
    model, data = with_powers(draws.model, draws.data)
    totals: dict[str, np.ndarray] = {}
    for rows in slices(len(f), f.shape[1] * f.shape[2], CHUNK_VALUES // 2):
        parameters = draws.model.parameters | {name: as_array(values[rows]) for name, values in sampled.items()}
        z = np.asarray(model.augmentation.predictor_values(as_array(f[rows]), as_array(data.y), parameters))
        for name, value in _expected(draws, z, np.zeros_like(z), parameters).items():
            totals[name] = totals.get(name, 0.0) + value.sum(axis=0)
    # Those whose E[a | f] is not integrable over f.
    augmentation, env = _augmentation_at_data(draws)
    rules = augmentation.rules
    infinite = {rule.auxiliary.name for rule in rules if rule.auxiliary is not None and rule.has_no_mean(env)}
    return {name: np.full_like(total, np.inf) if name in infinite else total / len(f) for name, total in totals.items()}


def _expected(
    result: Result, mean: np.ndarray, variance: np.ndarray, parameters: Mapping[str, Array]
) -> dict[str, np.ndarray]:
    """E[a] for predictors N(mean, variance), (..., n, predictors) each, in order of dependence."""
    (model, data), means = with_powers(result.model, result.data), {}
    augmentation = model.augmentation
    values = _evaluated(augmentation, as_array(mean), as_array(variance), as_array(data.y), parameters)
    for symbol, _ in expectations(augmentation):
        value = values[symbol.name]
        full = np.broadcast_to(np.asarray(value), (*mean.shape[:-1], augmentation.size if symbol.is_vector else 1))
        means[symbol.auxiliary.name] = full if symbol.is_vector else full[..., 0]  # type: ignore[attr-defined]
    return means


@partial(compiled, static_argnames="augmentation")
def _evaluated(
    augmentation: Augmentation, m: Array, v: Array, y: Array, parameters: Mapping[str, Array]
) -> dict[str, Any]:
    values = {**parameters, VARIANCE: v}
    for symbol, formula in expectations(augmentation):
        values[symbol.name] = formula.evaluate(Environment(y, m, values))
    return values


def _present(result: Result) -> dict[str, np.ndarray]:
    """For each auxiliary that some data may lack, a mask of the data that have it."""
    augmentation, env = _augmentation_at_data(result)
    present = {}
    for rule in augmentation.rules:
        if rule.auxiliary is not None and rule.law is not None and not rule.law.is_zero_where_off:
            width = augmentation.size if rule.auxiliary.is_vector else 1
            mask = np.broadcast_to(~np.asarray(rule.law.off(env)), (len(result.y), width))
            present[rule.auxiliary.name] = mask if rule.auxiliary.is_vector else mask[:, 0]
    return present


def _augmentation_at_data(result: Result) -> tuple[Augmentation, Environment]:
    """The augmentation of the weighted likelihood, and the environment of coefficients without latents."""
    model, data = with_powers(result.model, result.data)
    zeros = jnp.zeros((len(data.y), model.augmentation.size))
    return model.augmentation, Environment(as_array(data.y), zeros, model.parameters)
