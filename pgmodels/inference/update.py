"""Results updated by new rows, and results of many small data sets."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from pgmodels.data.arrays import as_numbers, check_between, check_whole_number, coded
from pgmodels.inference.bound import ProblemFamily
from pgmodels.inference.cavi import CAVI
from pgmodels.inference.correct import Method, correct
from pgmodels.inference.loop import MANY, Ascent, LoopState, VariationalState, run_block
from pgmodels.inference.objectives import Choice, objective_of, objective_of_result
from pgmodels.inference.prepare import FEW_STEPS, NEAR, engine_of, state_from
from pgmodels.inference.problem import Problem, conditioned, problem_of
from pgmodels.inference.vi import checked, continued, converge, finish, optimise, sites_of, warn_independent
from pgmodels.kernels.columns import check_lookups
from pgmodels.likelihoods.likelihood import check_weights
from pgmodels.model import (
    Data,
    Model,
    check_memory,
    check_new_inputs,
    columns_with_new_levels,
    num_padded,
    require_model,
)
from pgmodels.numerics.iteration import empty_history
from pgmodels.objectives.base import Objective
from pgmodels.parameters.vector import ParameterVector, parameter_names
from pgmodels.priors.base import Sites, pad_sites, pad_zeros
from pgmodels.priors.chain import Chain, apply, paths, times
from pgmodels.priors.chain_posterior import chain_groups
from pgmodels.priors.collection import IndependentPosterior, Posterior, PriorCollection, padded_prior
from pgmodels.priors.joint_chain import LineSites, Scans
from pgmodels.priors.markov import MarkovPosterior, MarkovPrior
from pgmodels.priors.rows import Copies, DistinctInputs
from pgmodels.results.approximation import Approximation, CorrectedApproximation, GaussianResult
from pgmodels.results.nested import name_type
from pgmodels.runtime.jit import compiled, one_thread_up_to
from pgmodels.runtime.precision import DoublePrecision, as_array, double_precision

# Later rows of a series: the filter restarts from its stored state, and only the most recent old rows, which new ones
# affect, are optimised again.


class Window(NamedTuple):
    """Number of old times that are optimised again: ``least``, or ``per_row`` for each new row if these are more.

    The number grows by the factor ``growth`` until the marginals of the first quarter move by less than ``moved``
    deviations. A run to the default tolerance has marginals of this accuracy. With more than ``most``, iterations use
    all rows.
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
    """Return the result for ``data``, the rows of ``q`` followed by later rows.

    None if latents are not independent Markov processes, or with few rows. None too if the new rows are not
    later, or change old rows too far back.
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
                # The prior of the latent's deviations after the rows before, and their means (n, d).
                mean, covariance = (moments[first - 1, latent] for moments in posterior.scans.forward[:2])
                centre, chain, means = _steps(group, posterior.prior.sorted_inputs[first - 1], mean[:, 0], covariance)
                groups.append(replace(group, mean=centre, chain=chain, size=1))
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
    """Return the posterior given a result's data and new rows, with the result's hyperparameters.

    It is the optimum of the same objective on all rows, found from the result. New rows change the Gaussian factors of
    the old rows too, unless the likelihood is Gaussian; then one sweep is exact. Each iteration costs as much as an
    iteration of ``cavi`` on all rows. It costs less for Markov processes with more than 16,000 rows if the new rows are
    later than all old rows. An update then leaves old rows unchanged that would move by less than 1e-4 posterior
    deviations. A corrected result is corrected again, at all rows.

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
            f"result must be a result of cavi, gaussian_vi, vi, fit or svi; got {name_type(result)}. Run the engine on "
            "all rows instead."
        )
    check_whole_number(max_iterations, "max_iterations", 1)
    check_between(tolerance, "tolerance", 0.0, math.inf)
    q, objective = result.uncorrected, objective_of_result(result)
    data = _joined(q, X_new, y_new, weights)
    check_memory(q.model, data.X)
    with one_thread_up_to(len(data.X)):
        updated = append(q, data, objective, max_iterations, tolerance, progress)
        if updated is None:
            sites = sites_of(q, objective)
            updated = converge(q.method, q.model, data, objective, sites, max_iterations, tolerance, progress)
        updated = replace(updated, fit=q.fit)
        return correct(updated, method=cast(Method, result.method)) if result.is_corrected else updated


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


# Many small data sets: one program, a loop over them.


class _Sets(NamedTuple):
    """Rows of all sets, those of weight 0 last: inputs, observations and weights; and unconstrained values."""

    X: Float[Array, "sets n d"]
    y: Array
    row_weights: Float[Array, "sets n"]
    vectors: Float[Array, "sets p"]


class _Loops(NamedTuple):
    """Of each set the loop of its engine, without its history, the ELBO before it, and moments of the latents."""

    loop: LoopState
    first: Array
    mean: Array
    variance: Array


def _problem_of_set(family: ProblemFamily, data: _Sets) -> Problem:
    none = (None,) * len(family.model.gps)
    inputs = DistinctInputs((data.X,) * len(none), (data.row_weights,) * len(none), Copies(None, none), none, none)
    return replace(family, inputs=inputs, y=data.y, row_weights=data.row_weights).problem(data.vectors, none)


@partial(compiled, static_argnames="bound")
def _run_sets(
    family: ProblemFamily, bound: Objective | None, sets: _Sets, tolerance: Array | float, limit: Array | int
) -> _Loops:
    """The engine's loop for each set, from its start or from near the optimum of another ``bound``."""

    def one(data: _Sets) -> _Loops:
        problem = _problem_of_set(family, data)
        engine = engine_of(problem.objective)
        state = engine.init(problem)
        if bound is not None:
            bounded = replace(problem, objective=bound, coupled=False)
            near = run_block(CAVI.step, bounded, CAVI.init(bounded), NEAR, FEW_STEPS, FEW_STEPS).state
            is_finite = jnp.isfinite(near.elbo)
            state = jax.tree.map(partial(jnp.where, is_finite), state_from(problem, near.sites), state)
        loop = run_block(engine.step, problem, state, tolerance, limit, MANY)
        mean, variance = problem.condition(loop.state.sites).moments()
        loop = loop._replace(state=loop.state._replace(memory=empty_history(())))
        return _Loops(loop, state.elbo, mean, variance)

    return jax.lax.map(one, sets)


@compiled
def _predict_sets(family: ProblemFamily, sets: _Sets, sites: Sites, X_new: Float[Array, "sets m d"]) -> Any:
    def one(at: tuple[_Sets, Sites, Array]) -> tuple[Array, Array]:
        return _problem_of_set(family, at[0]).condition(at[1]).predict(at[2])

    return jax.lax.map(one, (sets, sites, X_new))


class BatchResult(DoublePrecision, Sequence[Approximation]):
    """The results of many data sets; ``result[k]`` or a loop creates them, with the warnings of the engine.

    ``elbo`` and ``converged`` are (sets,). ``mean`` and ``variance`` (sets, n, latents) are the marginals of the
    latents at the rows, NaN in masked rows.
    """

    def __init__(
        self, name: str, model: Model, family: ProblemFamily, data: Data, sets: _Sets, places: np.ndarray,
        loops: _Loops, tolerance: float,
    ):  # fmt: skip
        self._name, self._model, self._family, self._data, self._sets = name, model, family, data, sets
        self._places, self._tolerance, self._loops = places, tolerance, jax.tree.map(np.asarray, loops)
        self.elbo, self.converged = self._loops.loop.state.elbo, self._loops.loop.converged
        at, latents = places >= 0, np.full((2, *places.shape, model.num_latents), np.nan)
        for new, old in zip(latents, (self._loops.mean, self._loops.variance), strict=True):
            new[at] = np.take_along_axis(old, np.maximum(places, 0)[..., None], axis=1)[at]
        self.mean, self.variance = latents

    def __len__(self) -> int:
        return len(self.elbo)

    @double_precision
    def __getitem__(self, number: int | slice) -> Any:
        if isinstance(number, slice):
            return [self[k] for k in range(*number.indices(len(self)))]
        number = range(len(self))[number]
        sets, (_, trace, num_steps, converged) = self._sets, self._loops.loop
        count = int(np.sum(self._places[number] >= 0))
        data = self._data._replace(X=np.asarray(sets.X[number])[:count], y=np.asarray(sets.y[number])[:count])
        learned = self._family.parameters
        values = [np.asarray(value) for value in learned.constrain(np.asarray(sets.vectors[number]))]
        size, all_rows = num_padded(self._model, len(data.y)), len(sets.X[0])
        state = jax.tree.map(
            lambda leaf: as_array(leaf[number][:size] if leaf.shape[1:2] == (all_rows,) else leaf[number]),
            self._loops.loop.state,
        )
        state = state._replace(memory=empty_history(state.sites))
        first, trace = self._loops.first[number : number + 1], trace[number][: int(num_steps[number])]
        ascent = Ascent(state, np.concatenate([first[np.isfinite(first)], trace]), bool(converged[number]))
        return finish(self._name, learned.with_values(values), data, self._family.objective, ascent, self._tolerance)

    def predict_latent(self, X_new: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Return means and variances of the latents at new inputs, (sets, m, latents) each.

        Parameters
        ----------
        X_new : array_like, shape (m, d) or (sets, m, d)
            New inputs, the same for all sets or for each set.
        """
        shape = self._sets.X.shape
        X = as_numbers(X_new, "X_new")
        X = np.broadcast_to(X, (len(self), *X.shape[-2:]))
        if X.ndim != 3 or X.shape[2] != shape[2]:
            raise ValueError(f"X_new must have shape (m, {shape[2]}) or ({shape[0]}, m, {shape[2]}); got {X.shape}.")
        sites = jax.tree.map(as_array, self._loops.loop.state.sites)
        mean, variance = _predict_sets(self._family, self._sets, sites, as_array(X))
        return np.asarray(mean), np.asarray(variance)


class Batch(DoublePrecision):
    """Engines for many small data sets, by one compiled program: see ``batch``."""

    def __init__(self, model: Model, values: Mapping[str, ArrayLike]):
        self.model, self.values = model, dict(values)

    def cavi(
        self, X: ArrayLike, y: ArrayLike, mask: ArrayLike | None = None, *, max_iterations: int = 1000,
        tolerance: float = 1e-9,
    ) -> BatchResult:  # fmt: skip
        """Run ``pgm.cavi`` on each data set.

        Parameters
        ----------
        X : array_like, shape (sets, n, d)
            Inputs.
        y : array_like, shape (sets, n) or (sets, n, columns)
            Observations.
        mask : array_like of bool, shape (sets, n), optional
            The rows of each set. Rows with False are left out, and may have any X and y.
        max_iterations, tolerance
            As in ``pgm.cavi``.

        Returns
        -------
        BatchResult
            The results by set.

        Raises
        ------
        ValueError
            For bad data or options.
        NoAugmentationError
            For a likelihood without an augmentation.
        """
        return self._run("cavi", "augmented", X, y, mask, max_iterations, tolerance)

    def gaussian_vi(
        self, X: ArrayLike, y: ArrayLike, mask: ArrayLike | None = None, *, max_iterations: int = 1000,
        tolerance: float = 1e-9,
    ) -> BatchResult:  # fmt: skip
        """Run ``pgm.gaussian_vi`` on each data set; parameters and result are as in ``cavi``."""
        return self._run("gaussian_vi", "expected", X, y, mask, max_iterations, tolerance)

    def _run(
        self, name: str, choice: Choice, X: ArrayLike, y: ArrayLike, mask: ArrayLike | None, max_iterations: int,
        tolerance: float,
    ) -> BatchResult:  # fmt: skip
        check_whole_number(max_iterations, "max_iterations", 1)
        check_between(tolerance, "tolerance", 0.0, math.inf)
        inputs, targets = as_numbers(X, "X"), as_numbers(y, "y")
        if inputs.ndim != 3 or targets.ndim not in (2, 3) or targets.shape[:2] != inputs.shape[:2]:
            raise ValueError(
                "X and y of a batch must have shapes (sets, n, d) and (sets, n) or (sets, n, columns); got "
                f"{inputs.shape} and {targets.shape}. Pad shorter sets, with mask=False in the rows of padding."
            )
        is_row = np.ones(targets.shape[:2], bool) if mask is None else np.asarray(mask, bool)
        if is_row.shape != targets.shape[:2] or not is_row.any(axis=1).all():
            raise ValueError(
                f"mask must have shape {targets.shape[:2]} and a True entry for each set; got shape {is_row.shape}. "
                "Leave out sets without rows."
            )
        # All rows are checked at once.
        model, data = self.model.prepare(inputs[is_row], targets[is_row], None, "raise")
        model = model.resolve(data.X)
        if any(gp.form.num_inputs or not gp.form.can_pad or not gp.form.has_factor for gp in model.gps):
            raise ValueError(
                "batch accepts GPs of the default form, of pgm.Dense() and of pgm.Hilbert(), since sets are small. "
                "Omit other forms, or run the engine on each set."
            )
        learned, objective = self._parameters(model), objective_of(model, choice)
        # The rows of each set come first; padding repeats the first of them.
        size, order = num_padded(model, is_row.shape[1]), np.argsort(~is_row, axis=1, kind="stable")
        is_kept = np.arange(size) < is_row.sum(axis=1)[:, None]
        slots = np.where(is_kept, np.pad(order, ((0, 0), (0, size - order.shape[1]))), order[:, :1])
        rows, places = (np.arange(len(slots))[:, None], slots), np.where(is_row, np.cumsum(is_row, axis=1) - 1, -1)
        arrays = inputs[rows], targets[rows], is_kept.astype(float), self._vectors(learned, len(slots))
        sets = _Sets(*map(as_array, arrays))
        none = DistinctInputs((), (), Copies(None, ()), (), ())
        family = ProblemFamily(objective, learned, model.bare(), none, sets.y[0], sets.row_weights[0])
        bound = model.augmentation if not objective.is_monotone and model.is_augmentable else None
        loops = _run_sets(family, bound, sets, tolerance, max_iterations + 1)
        return BatchResult(name, model, family, data, sets, places, loops, tolerance)

    def _parameters(self, model: Model) -> ParameterVector:
        """The parameters whose values differ between sets."""
        names = list(parameter_names(model).values())
        unknown = [name for name in self.values if name not in names]
        if unknown:
            raise ValueError(
                f"batch: the model has no parameter {unknown[0]}, but {', '.join(names)}. Name one of these."
            )
        pairs = zip(names, ParameterVector(model, lambda _: True).parameters, strict=True)
        named = {id(p) for name, p in pairs if name in self.values}
        return ParameterVector(model, lambda p: id(p) in named)

    def _vectors(self, learned: ParameterVector, count: int) -> np.ndarray:
        """Unconstrained values (sets, p)."""
        columns = []
        for name, parameter, shape in zip(learned.names, learned.parameters, learned.shapes, strict=True):
            values = as_numbers(self.values[name], name)
            if values.shape != (count, *shape):
                raise ValueError(
                    f"{name} of a batch must have shape {(count, *shape)}, a value for each set; got {values.shape}."
                )
            columns.append(np.reshape(parameter.transform.inv(values), (count, -1)))
        return np.concatenate([np.zeros((count, 0)), *columns], axis=1)


def batch(model: Model, **values: ArrayLike) -> Batch:
    """Return engines for many small data sets at once: one compiled program loops over them.

    Parameters
    ----------
    model : Model
        The likelihood and its GPs, shared by all sets.
    **values : array_like, shape (sets, ...)
        Values that differ between sets, by the names of the parameters in the model, such as ``lengthscale``.

    Returns
    -------
    Batch
        An object with the methods ``cavi`` and ``gaussian_vi``.

    Raises
    ------
    ValueError
        For an object that is no model.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0.0, 6.0, (100, 20, 1))
    >>> y = rng.random((100, 20)) < 1.0 / (1.0 + np.exp(-3.0 * np.sin(X[..., 0])))
    >>> results = pgm.batch(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0)))).cavi(X, y)
    >>> results.mean.shape, len(results)
    ((100, 20, 1), 100)
    >>> bool(np.isclose(results[3].elbo, results.elbo[3]))
    True
    """
    return Batch(require_model(model), values)
