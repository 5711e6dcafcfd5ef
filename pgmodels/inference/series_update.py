"""New rows after all others: Markov processes go on from the state of their filter, with iterations over the last rows.

New rows change the Gaussian factors of old ones only as far back as they tell about them: the last rows are optimised
together with the new ones, given the filter's state before, and more of them while the earliest ones still move.
"""

import time
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from pgmodels.inference.conditioning import condition
from pgmodels.inference.loop import Ascent
from pgmodels.inference.problem import Problem, problem_of
from pgmodels.inference.variational.vi import checked, continued, optimise, state_from, warn_independent
from pgmodels.model import Data
from pgmodels.objectives.base import Objective
from pgmodels.priors.base import Sites
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.distinct_inputs import Copies
from pgmodels.priors.markov.continued import go_on, joined, processes
from pgmodels.priors.markov.prior import MarkovPosterior
from pgmodels.priors.padding import pad_sites
from pgmodels.priors.posterior import IndependentPosterior
from pgmodels.priors.row_chains import chain_groups
from pgmodels.results.approximation import Approximation
from pgmodels.runtime.x64 import as_array

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
    begin, count = time.perf_counter(), max(_LEAST, _PER_ROW * len(later))
    while count < len(series.times):
        first = len(series.times) - count
        rows = np.flatnonzero(data.X[:, series.column] >= series.times[first])
        if len(rows) > _MOST:
            break
        end = _End(series, data, objective, first, rows, begin)
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

    def __init__(self, series: _Series, data: Data, objective: Objective, first: int, rows: np.ndarray, begin: float):
        self.series, self.data, self.first, self.rows, self.begin = series, data, first, rows, begin
        q = series.q
        self.is_old = rows < len(q.y)
        part = data.at(rows)
        prior = q.model.prior(part.X).padded()
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
        before = self._before()
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

    def _before(self) -> Any:
        """The state without the new rows."""
        weights = np.zeros(len(self.problem.y))
        old = np.flatnonzero(self.is_old)
        weights[old] = self.data.row_weights[self.rows[old]]
        return state_from(replace(self.problem, row_weights=as_array(weights)), self.sites)

    def _moves(self, before: Any, after: Any) -> bool:
        """Whether marginals of the first quarter differ."""
        times, known = self.data.X[self.rows, self.series.column], self.series.times
        early = np.flatnonzero(times <= known[self.first + (len(known) - self.first) // 4])
        (mean, variance), (moved, other) = (
            (np.asarray(state.mean)[early], np.asarray(state.variance)[early]) for state in (before, after)
        )
        far = np.maximum(np.abs(moved - mean) / np.sqrt(variance), np.abs(other / variance - 1.0))
        return not np.max(far) <= _MOVED

    def _result(self, problem: Problem, ascent: Ascent, elbo_before: float, tolerance: float) -> Approximation:
        q, data, rows = self.series.q, self.data, self.rows
        end, *moments, _ = condition(problem, ascent.state.sites)
        prior = q.model.prior(data.X).padded()
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
            seconds=time.perf_counter() - self.begin,
        )
