"""Results updated by new rows."""

import math
import time
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike

from pgmodels.data.arrays import check_between, check_whole_number, coded
from pgmodels.inference.correct import Method, correct
from pgmodels.inference.loop import Ascent
from pgmodels.inference.objectives import objective_of_result
from pgmodels.inference.problem import Problem, conditioned, problem_of
from pgmodels.inference.vi import (
    checked,
    continued,
    converge,
    optimise,
    state_from,
    variational_problem,
    warn_independent,
)
from pgmodels.kernels.columns import check_lookups
from pgmodels.likelihoods.likelihood import check_weights
from pgmodels.model import Data, check_memory, check_new_inputs, columns_with_new_levels
from pgmodels.objectives.base import Objective
from pgmodels.priors.base import Sites, pad_sites
from pgmodels.priors.chain_posterior import chain_groups
from pgmodels.priors.collection import IndependentPosterior, Posterior, PriorCollection, padded_prior
from pgmodels.priors.markov import MarkovPosterior, go_on, joined, processes
from pgmodels.priors.rows import Copies
from pgmodels.results.approximation import Approximation, CorrectedApproximation, GaussianResult
from pgmodels.results.nested import name_type
from pgmodels.runtime.jit import compiled, one_thread_up_to
from pgmodels.runtime.precision import as_array, double_precision

# Later rows of a series: the filter restarts from its stored state, and only the most recent old rows, which new ones
# affect, are optimised again.

# Old times that are optimised again: _LEAST, or _PER_ROW for each new row if these are more, and _MORE times as many
# until the marginals of their first quarter move by less than _MOVED deviations, as those of a run to the default
# tolerance do by themselves. If these are more than _MOST, iterations go over all rows.
_LEAST, _PER_ROW, _MORE, _MOVED, _MOST = 1000, 4, 4, 1e-4, 16_000


class _Series(NamedTuple):
    """A result whose latents are independent Markov processes of one column, and its distinct sorted times."""

    q: Approximation
    groups: tuple[MarkovPosterior, ...]
    column: int
    times: np.ndarray


def append(
    q: Approximation, data: Data, objective: Objective, max_iterations: int, tolerance: float, progress: bool | None
) -> Approximation | None:
    """The result for ``data``, whose rows after those of ``q`` are later than all of these.

    None if they are not, if latents are not independent Markov processes, with few rows, or if new rows change old
    ones too far back.
    """
    series = _series(q)
    if series is None or objective.predictors is not None or len(q.y) <= _MOST:
        return None
    later = data.X[len(q.y) :, series.column]
    if not len(later) or later.min() <= series.times[-1]:
        return None
    start_time, count = time.perf_counter(), max(_LEAST, _PER_ROW * len(later))
    while count < len(series.times):
        first = len(series.times) - count
        rows = np.flatnonzero(data.X[:, series.column] >= series.times[first])
        if len(rows) > _MOST:
            break
        end = _End(series, data, objective, first, rows, start_time)
        result = end.optimised(max_iterations, tolerance, progress)
        if result is not None:
            return result
        count *= _MORE
    return None


def _series(q: Approximation) -> _Series | None:
    groups, num_columns = processes(q.posterior), q.X.shape[1]
    columns = [group.prior.kernel.reads(num_columns) for group in groups]
    # A constant reads no column: its one input is that of all rows.
    if len(groups) < len(q.posterior.prior.groups) or not all(columns) or len(set().union(*columns)) > 1:
        return None
    column = groups[0].prior.column
    return _Series(q, groups, column, np.unique(q.X[:, column]))


class _End:
    """The ``rows`` from the time number ``first`` on, given the filter's state before."""

    def __init__(
        self, series: _Series, data: Data, objective: Objective, first: int, rows: np.ndarray, start_time: float
    ):
        self.series, self.data, self.first, self.rows, self.start_time = series, data, first, rows, start_time
        q = series.q
        self.is_old = rows < len(q.y)
        part = data.at(rows)
        prior = padded_prior(q.model.prior(part.X))
        groups, places = [], []
        for group, posterior, at in zip(chain_groups(prior), series.groups, prior.copies.places, strict=True):
            groups += [go_on(group, posterior, first - 1, latent) for latent in range(group.size)]
            places += [at] * group.size
        prior = PriorCollection(tuple(groups), Copies(prior.copies.rows, tuple(places)))
        self.problem = problem_of(q.model, part, prior, objective)
        self.sites = pad_sites(Sites(*(np.asarray(values)[rows[self.is_old]] for values in q.sites)), prior.num_rows)

    def optimised(self, max_iterations: int, tolerance: float, progress: bool | None) -> Approximation | None:
        """The result for all rows; None if rows before may move too."""
        q = self.series.q
        weights, old = np.zeros(len(self.problem.y)), np.flatnonzero(self.is_old)
        weights[old] = self.data.row_weights[self.rows[old]]
        before = state_from(replace(self.problem, row_weights=as_array(weights)), self.sites)
        if not np.isfinite(float(before.elbo)):
            # Negative precisions up to here, without those that make up for them: the filter's state is improper.
            return None
        problem, ascent = optimise(
            self.problem, continued(self.problem, self.sites), tolerance, max_iterations, q.method, progress
        )
        if self._moves(before, ascent.state):
            return None
        warn_independent(q.method, problem)
        return self._result(problem, checked(q.method, problem, ascent), q.elbo - float(before.elbo), tolerance)

    def _moves(self, before: Any, after: Any) -> bool:
        times, known = self.data.X[self.rows, self.series.column], self.series.times
        early = np.flatnonzero(times <= known[self.first + (len(known) - self.first) // 4])
        (mean, variance), (moved, other) = (
            (np.asarray(state.mean)[early], np.asarray(state.variance)[early]) for state in (before, after)
        )
        far = np.maximum(np.abs(moved - mean) / np.sqrt(variance), np.abs(other / variance - 1.0))
        return not np.max(far) <= _MOVED

    def _result(self, problem: Problem, ascent: Ascent, elbo_before: float, tolerance: float) -> Approximation:
        q, data, rows = self.series.q, self.data, self.rows
        end, *moments, _ = conditioned(problem, ascent.state.sites)
        prior = padded_prior(q.model.prior(data.X))
        n = len(data.y)

        def with_end(old: Any, new: Any) -> np.ndarray:
            values = np.zeros((n, *np.shape(old)[1:]))
            values[: len(q.y)] = np.asarray(old)[: len(q.y)]
            values[rows] = np.asarray(new)[: len(rows)]
            return values

        sites = Sites(*(as_array(with_end(*pair)) for pair in zip(q.sites, ascent.state.sites, strict=True)))
        sites = pad_sites(sites, prior.num_rows)
        groups, latents, count = [], iter(processes(end)), len(np.unique(data.X[rows, self.series.column]))
        for group, before, at in zip(chain_groups(prior), self.series.groups, prior.sites_by_group(sites), strict=True):
            ends = list(islice(latents, group.size))
            groups.append(joined(group, before, self.first, ends, count, at))
        mean, variance = (with_end(*pair) for pair in zip((q.mean, q.variance), moments, strict=True))
        return replace(
            q,
            **data._asdict(),
            posterior=IndependentPosterior(prior, sites, tuple(groups)),
            mean=mean,
            variance=variance,
            elbo_trace=elbo_before + ascent.trace,
            converged=ascent.converged,
            tolerance=tolerance,
            seconds=time.perf_counter() - self.start_time,
        )


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


def _joined(q: Approximation, X_new: Any, y_new: Any, weights: Any) -> Data:
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
