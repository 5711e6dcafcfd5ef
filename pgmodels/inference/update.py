"""Results updated by new rows."""

import math
import time
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from pgmodels.data.arrays import check_between, check_whole_number, coded
from pgmodels.inference.correct import Method, correct
from pgmodels.inference.loop import Ascent, VariationalState
from pgmodels.inference.objectives import objective_of_result
from pgmodels.inference.prepare import state_from, variational_problem
from pgmodels.inference.problem import Problem, conditioned, problem_of
from pgmodels.inference.vi import checked, continued, converge, optimise, warn_independent
from pgmodels.kernels.columns import check_lookups
from pgmodels.likelihoods.likelihood import check_weights
from pgmodels.model import Data, check_memory, check_new_inputs, columns_with_new_levels
from pgmodels.objectives.base import Objective
from pgmodels.priors.base import Sites, pad_sites, pad_zeros
from pgmodels.priors.chain import Chain, apply, paths, times
from pgmodels.priors.chain_posterior import chain_groups
from pgmodels.priors.collection import IndependentPosterior, Posterior, PriorCollection, padded_prior
from pgmodels.priors.joint_chain import LineSites, Scans
from pgmodels.priors.markov import MarkovPosterior, MarkovPrior
from pgmodels.priors.rows import Copies
from pgmodels.results.approximation import Approximation, CorrectedApproximation, GaussianResult
from pgmodels.results.nested import name_type
from pgmodels.runtime.jit import compiled, one_thread_up_to
from pgmodels.runtime.precision import as_array, double_precision

# Later rows of a series: the filter restarts from its stored state, and only the most recent old rows, which new ones
# affect, are optimised again.


class Window(NamedTuple):
    """How many old times are optimised again: ``least``, or ``per_row`` for each new row if these are more.

    They are ``growth`` times as many until the marginals of their first quarter move by less than ``moved`` deviations,
    as those of a run to the default tolerance do by themselves. If they are more than ``most``, iterations go over all
    rows.
    """

    least: int = 1000
    per_row: int = 4
    growth: int = 4
    moved: float = 1e-4
    most: int = 16_000


_WINDOW = Window()


def append(
    q: Approximation,
    data: Data,
    objective: Objective,
    max_iterations: int,
    tolerance: float,
    progress: bool | None,
    window: Window = _WINDOW,
) -> Approximation | None:
    """The result for ``data``, whose rows after those of ``q`` are later than all of these.

    None if they are not, if latents are not independent Markov processes, with few rows, or if new rows change old
    ones too far back.
    """
    prior, num_columns = q.posterior.prior, q.X.shape[1]
    chains = chain_groups(prior)
    columns = [chain.kernel.reads(num_columns) for chain in chains]
    # A constant reads no column: its one input is that of all rows.
    is_series = len(chains) == len(prior.groups) and all(columns) and len(set().union(*columns)) == 1
    if not is_series or q.posterior.is_coupled or objective.predictors is not None or len(q.y) <= window.most:
        return None
    old, every = (X[:, chains[0].column] for X in (q.X, data.X))
    known, later = np.unique(old), every[len(old) :]
    if not len(later) or later.min() <= known[-1]:
        return None
    start_time, count = time.perf_counter(), max(window.least, window.per_row * len(later))
    while count < len(known):
        first = len(known) - count
        rows = np.flatnonzero(every >= known[first])
        if len(rows) > window.most:
            break
        end, early = _End(q, data, objective, first, rows), every[rows] <= known[first + count // 4]
        optimum = end.optimum(max_iterations, tolerance, progress)
        if optimum is not None and optimum.change(early) <= window.moved:
            return replace(end.result(optimum, tolerance), seconds=time.perf_counter() - start_time)
        count *= window.growth
    return None


class _Optimum(NamedTuple):
    """The state by the old rows' sites alone, and the ascent from there by all rows of a problem."""

    before: VariationalState
    problem: Problem
    ascent: Ascent

    def change(self, rows: np.ndarray) -> float:
        """The largest change of the marginals at some rows, a mask, in deviations."""
        (mean, variance), (new_mean, new_variance) = (
            [np.asarray(part)[: len(rows)][rows] for part in (state.mean, state.variance)]
            for state in (self.before, self.ascent.state)
        )
        return float(
            np.max(np.maximum(np.abs(new_mean - mean) / np.sqrt(variance), np.abs(new_variance / variance - 1.0)))
        )


class _End:
    """The ``rows`` from the time number ``first`` on, given the filter's state before."""

    def __init__(self, q: Approximation, data: Data, objective: Objective, first: int, rows: np.ndarray):
        self.q, self.data, self.first, self.rows = q, data, first, rows
        part = data.at(rows)
        prior = padded_prior(q.model.prior(part.X))
        groups, places, self.means = [], [], []
        for group, posterior, at in zip(chain_groups(prior), _chains(q.posterior), prior.copies.places, strict=True):
            for latent in range(group.size):
                end_of_group, means = _prior_after(group, posterior, first - 1, latent)
                groups.append(end_of_group)
                self.means.append(means)
                places.append(at)
        prior = PriorCollection(tuple(groups), Copies(prior.copies.rows, tuple(places)))
        self.problem = problem_of(q.model, part, prior, objective)

    def optimum(self, max_iterations: int, tolerance: float, progress: bool | None) -> _Optimum | None:
        """The optimum of the bound; None if the old rows' sites do not start from a proper state."""
        q, rows, weights = self.q, self.rows, np.zeros(len(self.problem.y))
        is_old = rows < len(q.y)
        sites = pad_sites(Sites(*(as_array(np.asarray(part)[rows[is_old]]) for part in q.sites)), len(weights))
        weights[np.flatnonzero(is_old)] = self.data.row_weights[rows[is_old]]
        before = state_from(replace(self.problem, row_weights=as_array(weights)), sites)
        if not np.isfinite(float(before.elbo)):
            # Negative precisions up to here, without those that make up for them: the filter's state is improper.
            return None
        start = continued(self.problem, sites)
        return _Optimum(before, *optimise(self.problem, start, tolerance, max_iterations, q.method, progress))

    def result(self, optimum: _Optimum, tolerance: float) -> Approximation:
        """The result for all rows."""
        q, data, rows, (before, problem, ascent) = self.q, self.data, self.rows, optimum
        warn_independent(q.method, problem)
        ascent = checked(q.method, problem, ascent)
        end, *moments, _ = conditioned(problem, ascent.state.sites)
        prior = padded_prior(q.model.prior(data.X))

        def with_end(old: Array | np.ndarray, new: Array | np.ndarray) -> np.ndarray:
            values = np.zeros((len(data.y), *np.shape(old)[1:]))
            values[: len(q.y)] = np.asarray(old)[: len(q.y)]
            values[rows] = np.asarray(new)[: len(rows)]
            return values

        sites = Sites(*(as_array(with_end(*pair)) for pair in zip(q.sites, ascent.state.sites, strict=True)))
        sites = pad_sites(sites, prior.num_rows)
        latents, groups = zip(_chains(end), self.means, strict=True), []
        by_group = zip(chain_groups(prior), _chains(q.posterior), prior.sites_by_group(sites), strict=True)
        for group, posterior, at in by_group:
            count = len(np.unique(data.X[rows, group.column]))
            groups.append(_posterior_of(group, posterior, self.first, list(islice(latents, group.size)), count, at))
        mean, variance = (with_end(*pair) for pair in zip((q.mean, q.variance), moments, strict=True))
        return replace(
            q,
            **data._asdict(),
            posterior=IndependentPosterior(prior, sites, tuple(groups)),
            mean=mean,
            variance=variance,
            elbo_trace=q.elbo - float(before.elbo) + ascent.trace,
            converged=ascent.converged,
            tolerance=tolerance,
        )


def _chains(posterior: Posterior) -> tuple[MarkovPosterior, ...]:
    return cast("tuple[MarkovPosterior, ...]", cast("IndependentPosterior", posterior).groups)


def _prior_after(prior: MarkovPrior, posterior: MarkovPosterior, row: int, latent: int) -> tuple[MarkovPrior, Array]:
    """The prior of a latent's deviations after the sorted row ``row`` of a posterior, and their means (n, d)."""
    mean, covariance = (part[row, latent] for part in posterior.scans.forward[:2])
    centre, chain, means = _steps(prior, posterior.prior.sorted_inputs[row], mean[:, 0], covariance)
    return replace(prior, mean=centre, chain=chain, size=1), means


@partial(compiled, optimise=False)
def _steps(
    prior: MarkovPrior, time: Float[Array, ""], mean: Float[Array, " d"], covariance: Float[Array, "d d"]
) -> tuple[Float[Array, "n 1"], Chain, Float[Array, "n d"]]:
    state, (F, Q) = prior.kernel.to_state_space(), prior.chain
    gap = prior.sorted_inputs[:1] - time
    first = state.transition(gap)[0]
    noise = Q.at[0].set(times(times(first, covariance), first.T) + state.noise(gap)[0])
    means = paths(F, jnp.zeros((len(F), len(mean))).at[0].set(apply(first, mean)))
    return prior.mean + prior.unsorted(means[:, :1]), Chain(F, noise), means


def _posterior_of(
    prior: MarkovPrior,
    before: MarkovPosterior,
    kept: int,
    ends: list[tuple[MarkovPosterior, Array]],
    count: int,
    sites: Sites,
) -> MarkovPosterior:
    """The first ``kept`` sorted rows of a posterior, then the first ``count`` of each latent's ``ends``."""
    end = kept + count

    def join(old: Array, *new: Array) -> np.ndarray:
        last = np.concatenate([np.asarray(part)[:count] for part in new], axis=1)
        return pad_zeros(np.concatenate([np.asarray(old)[:kept], last]), len(prior.X))

    scans = jax.tree.map(join, before.scans, *(_about_mean(later.scans, means) for later, means in ends))
    for states in scans.forward[:2]:
        # Rows of padding repeat the last state.
        states[end:] = states[end - 1]
    h, w, mean = *map(np.asarray, sites), float(prior.mean)
    constant = as_array(np.sum(h * mean - 0.5 * w * mean**2))
    return replace(before, prior=prior, scans=jax.tree.map(as_array, scans), constant=constant)


def _about_mean(scans: Scans, means: Float[Array, "n d"]) -> Scans:
    """Scans of deviations from the states' means as those of deviations from the prior's mean."""
    (a, b, h, w), forward, adjoint = scans
    latent = means[:, :1, None]
    mean, predicted = forward.mean + means[:, None, :, None], forward.predicted + latent[..., None]
    return Scans(LineSites(a, b, h + w * latent, w), forward._replace(mean=mean, predicted=predicted), adjoint)


@double_precision
def update(
    result: Approximation | CorrectedApproximation,
    X_new: ArrayLike,
    y_new: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    max_iterations: int = 1000,
    tolerance: float = 1e-9,
    progress: bool | None = None,
) -> Approximation | CorrectedApproximation:
    """The posterior given the data of a result and new rows, with hyperparameters fixed at those of the result.

    The optimum of the same objective on all rows, from the result's: new rows change the Gaussian factors of the old
    ones too, unless the likelihood is Gaussian, where one sweep is exact. Each iteration costs as much as those of
    ``cavi`` on all rows, but for Markov processes with more than 16,000 rows, where new ones that are later than all
    others leave old rows as they are that they move by less than 1e-4 posterior deviations in each update. A corrected
    result is corrected again, at all rows.

    Parameters
    ----------
    result : Approximation or CorrectedApproximation
        A result of ``cavi``, ``gaussian_vi``, ``vi``, ``fit`` or ``svi``, or a correction of one.
    X_new : array_like, shape (m, d)
        Inputs of the new rows, with the columns of X; new levels of a column become levels of the result.
    y_new : array_like, shape (m,) or (m, columns)
        Their observations; labels, if y had labels.
    weights : array_like, shape (m,), optional
        Powers of the new rows' likelihoods.
    max_iterations : int
        Maximum number of iterations.
    tolerance : float
        As in ``cavi``.
    progress : bool, optional
        Whether to show a progress bar, as in ``cavi``.

    Returns
    -------
    Approximation or CorrectedApproximation
        The result for all rows, the old ones first.

    Raises
    ------
    ValueError
        For other results, and for bad data.

    Warns
    -----
    ConvergenceWarning, InducingWarning, PrecisionWarning
        As in ``cavi``.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 6.0, 30)[:, None]
    >>> y = np.random.default_rng(0).random(30) < 1.0 / (1.0 + np.exp(-3.0 * np.sin(X[:, 0])))
    >>> model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0)))
    >>> first = pgm.gaussian_vi(model, X[:20], y[:20])
    >>> result = pgm.update(first, X[20:], y[20:])
    >>> bool(np.isclose(result.elbo, pgm.gaussian_vi(model, X, y).elbo, atol=0.001))
    True
    """
    if not isinstance(result, GaussianResult):
        raise ValueError(
            f"result must be that of cavi, gaussian_vi, vi, fit or svi; got {name_type(result)}. Run the engine on all "
            "rows instead."
        )
    check_whole_number(max_iterations, "max_iterations", 1)
    check_between(tolerance, "tolerance", 0.0, math.inf)
    q, objective = result.uncorrected, objective_of_result(result)
    data = _joined(q, X_new, y_new, weights)
    check_memory(q.model, data.X)
    with one_thread_up_to(len(data.X)):
        updated = append(q, data, objective, max_iterations, tolerance, progress)
        if updated is None:
            start = _start(q, objective)
            updated = converge(q.method, q.model, data, objective, start, max_iterations, tolerance, progress)
        updated = replace(updated, fit=q.fit)
        return correct(updated, method=cast(Method, result.method)) if result.is_corrected else updated


def _start(q: Approximation, objective: Objective) -> Sites:
    """The sites to start from: on predictors those at q's marginals, since q has theirs on the latents."""
    if objective.predictors is None:
        return q.sites
    problem = variational_problem(q.model, q.data, objective, q.posterior.prior)
    return pad_sites(_sites_at(problem, q.posterior), len(q.y))


@partial(compiled, optimise=False)
def _sites_at(problem: Problem, posterior: Posterior) -> Sites:
    return problem.sites(*problem.of_latents(*posterior.marginals()))


def _joined(q: Approximation, X_new: ArrayLike, y_new: ArrayLike, weights: ArrayLike | None) -> Data:
    columns = columns_with_new_levels(q.model, q.columns, X_new, q.X.shape[1])
    X = check_new_inputs(q.model, X_new, "X_new", q.X.shape[1], columns)
    for gp in q.model.gps:
        check_lookups(gp.kernel, X, "X_new")
    y = y_new if q.labels is None else coded(y_new, q.labels, "y_new")
    y = q.model.check_observations(y, len(X), "y_new")
    powers = None
    if weights is not None or q.weights is not None:
        new = np.ones(len(X)) if weights is None else check_weights(weights, len(X))
        powers = np.concatenate([q.data.row_weights, new])
    data = Data(np.concatenate([q.X, X]), np.concatenate([q.y, y]), columns, powers, q.labels, q.missing)
    return data if powers is None or powers.all() else data.at(powers > 0)
