"""Coordinate-ascent variational inference: alternate between optimal sites and the Gaussian they define."""

import math
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike

from pgmodels.data.options import check_between, check_whole_number
from pgmodels.inference.conditioning import condition
from pgmodels.inference.inducing_selection import select_inducing_inputs, warn_left_out
from pgmodels.inference.jitter_check import accurate_prior, warn_inaccurate
from pgmodels.inference.loop import Ascent, backtrack, maximise
from pgmodels.inference.problem import Problem, problem_of
from pgmodels.inference.variational.newton_mean import at_best_mean, can_ascend
from pgmodels.inference.variational.variance_ratio import warn_narrow
from pgmodels.model import Data, Model, require_model
from pgmodels.numerics.anderson import History, empty_history
from pgmodels.priors.base import Sites
from pgmodels.priors.collection import PriorCollection
from pgmodels.results.approximation import Approximation
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.seeds import Seed, as_seed
from pgmodels.runtime.threads import one_thread_if_small
from pgmodels.runtime.warnings import PgmodelsWarning, warn
from pgmodels.runtime.x64 import double_precision

# Tolerance and iterations for selecting inducing inputs, where the posterior need not be converged.
_NEAR, _FEW = 1e-4, 200
# Maximum iterations of an inner loop, or of one that continues from another's state.
MANY = 2000


class ConvergenceWarning(PgmodelsWarning):
    """An iteration stopped before its tolerance was reached."""


class CaviState(NamedTuple):
    """q(f): the predictors' marginal moments and the sites that produced them, (n, predictors), and the ELBO.

    ``rounding`` is the ELBO's rounding error. The ELBO is minus infinity at a start, whose moments are not those of its
    sites. ``memory`` is the Anderson history.
    """

    mean: Float[Array, "n p"]
    variance: Float[Array, "n p"]
    sites: Sites
    elbo: Float[Array, ""]
    rounding: Float[Array, ""]
    memory: History


def first_state(problem: Problem) -> CaviState:
    """Start from the sites at the prior mean and the prior variance, the latter at most 1.

    With much larger variances the first sites are so flat that models with several latents end in a poor optimum.
    """
    m, v = problem.marginals()
    return start_at(problem, m, jnp.minimum(v, 1.0))


def start_at(problem: Problem, mean: Float[Array, "n p"], variance: Float[Array, "n p"]) -> CaviState:
    """Start from the sites at these marginals."""
    sites = problem.sites(mean, variance)
    none = jnp.zeros((), mean.dtype)
    return CaviState(mean, variance, sites, none - jnp.inf, none, empty_history(sites))


def step(problem: Problem, state: CaviState) -> CaviState:
    """A sweep, preceded by an optimisation of the mean where that is cheap; the ELBO never falls."""
    mean, sites = state.mean, state.sites
    if can_ascend(problem):
        # The moments of a start are not those of its sites.
        mean, sites = jax.lax.cond(
            jnp.isfinite(state.elbo),
            partial(at_best_mean, problem),
            lambda mean, _, sites: (mean, sites),
            *state[:3],
        )
    return sweep(problem, state, mean, sites)


def sweep(problem: Problem, before: CaviState, mean: Float[Array, "n p"], sites: Sites) -> CaviState:
    """One sweep over the blocks of predictors with Anderson acceleration; the ELBO never falls.

    Starts at a mean and the sites that give it, which may be better than those of the state ``before``. If the
    accelerated step lowers the ELBO, the plain sweep is taken and the history discarded.
    """
    state = before._replace(mean=mean)
    for number, block in enumerate(problem.objective.blocks):
        state = state if number == 0 else state_of(problem, sites)
        columns = np.isin(np.arange(problem.objective.size), block)
        swept = problem.sites(state.mean, state.variance)
        sites = jax.tree.map(partial(jnp.where, columns), swept, sites)
    known = jnp.isfinite(before.elbo)
    memory = before.memory.after(before.sites, sites)
    further = memory.extrapolated(sites)

    def attempt(number: Int[Array, ""]) -> CaviState:
        goes_on = number == 0
        # A history from the same problem at other hyperparameters is used from the second sweep on.
        past = jax.tree.map(partial(jnp.where, known), memory.masked(goes_on), before.memory.without_iterate())
        return state_of(problem, jax.tree.map(partial(jnp.where, goes_on), further, sites), past)

    # A start has no sweep before it to extrapolate from.
    return backtrack(attempt, before, jnp.where(known, 0, 1), 1)[0]


def state_of(problem: Problem, sites: Sites, memory: History | None = None) -> CaviState:
    """The state of given sites."""
    m, v, _, divergence = problem.moments(sites)
    memory = empty_history(sites) if memory is None else memory
    return CaviState(m, v, sites, *problem.elbo(m, v, divergence, sites), memory)


# Compiled ``first_state``.
init = compiled(first_state, optimise=False)


def check_finite(engine: str, trace: np.ndarray) -> None:
    """Raise ValueError if the ELBO is not finite."""
    if not np.isfinite(trace[-1]):
        raise ValueError(
            f"{engine}: the ELBO is {float(trace[-1])} at iteration {len(trace) - 1}. Look for extreme values in y, "
            "prior variances of many orders of magnitude, a likelihood scale close to zero, or a formula without a "
            "finite expectation under a Gaussian."
        )


@double_precision
@one_thread_if_small
def cavi(
    model: Model,
    X: ArrayLike,
    y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    max_iterations: int = 1000,
    tolerance: float = 1e-9,
    seed: Seed = 0,
    progress: bool | None = None,
) -> Approximation:
    """The Gaussian q(f) that maximises the augmented ELBO, with hyperparameters fixed at their values.

    Coordinate ascent over the sites with Anderson acceleration; the ELBO never falls. With inducing inputs each sweep
    first optimises the mean given the variances (see ``pgmodels.inference.variational.newton_mean``).

    Parameters
    ----------
    model : Model
        The likelihood and its GPs. Priors of hyperparameters are ignored: they stay at their values.
    X : array_like, shape (n, d)
        Inputs, one row per datum; an array or a data frame.
    y : array_like, shape (n,) or (n, columns)
        Observations, in the units of the likelihood.
    weights : array_like, shape (n,), optional
        Powers of the rows' likelihoods: weight 2 duplicates a row, weight 0 leaves it out.
    max_iterations : int
        Maximum number of sweeps.
    tolerance : float
        Relative change of the ELBO in one sweep below which the iteration has converged.
    seed : int or jax.Array
        An int or a JAX key; draws inducing inputs where ``pgm.Inducing`` chooses them at random or by k-means.
    progress : bool, optional
        Whether to show a progress bar; by default in a terminal or a notebook.

    Returns
    -------
    Approximation
        The Gaussian, its moments at the data, and the trace of the ELBO.

    Raises
    ------
    ValueError
        For bad data or options, or an ELBO that is not finite.
    NoAugmentationError
        For a likelihood without an augmentation; ``gaussian_vi`` needs none.

    Warns
    -----
    ConvergenceWarning
        If ``max_iterations`` sweeps do not reach the tolerance.
    CorrectionWarning
        If variances are estimated to be less than half of the posterior's.
    InducingWarning
        If there are too few inducing inputs.
    PrecisionWarning
        If double precision is not enough for the prior and the data.

    References
    ----------
    Wenzel et al. 2019; Galy-Fajou et al. 2019; for the acceleration, Walker and Ni 2011.
    """
    model, data = require_model(model).prepare(X, y, weights)
    check_whole_number(max_iterations, "max_iterations", 1)
    check_between(tolerance, "tolerance", 0.0, math.inf)
    model = select_inducing_inputs(model.resolve(data.X, as_seed(seed)), data, nearly_converged)
    result = converge(model, data, None, max_iterations, tolerance, progress)
    warn_narrow("cavi", result)
    return result


def nearly_converged(model: Model, data: Data) -> tuple[float, np.ndarray]:
    """The ELBO near the optimum and the marginal precisions of its sites on the latents, (n, latents)."""
    problem = problem_of(model, data)
    state = maximise(step, problem, init(problem), _NEAR, _FEW).state
    return float(state.elbo), problem.precisions(state.sites)


def converge(
    model: Model,
    data: Data,
    start: CaviState | None,
    max_iterations: int,
    tolerance: float,
    progress: bool | None,
) -> Approximation:
    """Iterate to the tolerance from a state without a bound, or from ``init`` where none is given."""
    begin = time.perf_counter()
    problem = problem_of(model, data)
    state = init(problem) if start is None else start
    finer = accurate_prior(model, data, problem.prior, problem.largest_precision(state.sites))
    if finer is not problem.prior:
        problem = problem_of(model, data, finer)
        state = init(problem) if start is None else start
    state, trace, converged = maximise(step, problem, state, tolerance, max_iterations, title="cavi", progress=progress)
    return conclude("cavi", model, data, problem, Ascent(state, trace, converged), tolerance, begin)


def finish(model: Model, data: Data, ascent: Ascent, tolerance: float) -> Approximation:
    """The result of a loop with the prior's traced form; continued if that form is not accurate enough."""
    begin = time.perf_counter()
    problem = problem_of(model, data)
    if accurate_prior(model, data, problem.prior, problem.largest_precision(ascent.state.sites)) is not problem.prior:
        return converge(model, data, ascent.state, MANY, tolerance, False)
    return conclude("cavi", model, data, problem, ascent, tolerance, begin)


def conclude(
    engine: str, model: Model, data: Data, problem: Problem, ascent: Ascent, tolerance: float, begin: float
) -> Approximation:
    """The result of an engine's loop."""
    state, trace, converged = ascent
    check_finite(engine, trace)
    if not converged:
        warn(
            f"{engine} did not converge: after {len(trace) - 1} iterations the ELBO still changes by "
            f"{abs(trace[-1] - trace[-2]):.2g} an iteration. Raise max_iterations or tolerance.",
            ConvergenceWarning,
        )
    neglect = problem.neglect(state.mean, state.variance, state.sites)
    precision = problem.largest_precision(state.sites)
    warn_inaccurate(problem.prior, precision, float(state.elbo), float(state.rounding), neglect)
    posterior, *moments = condition(problem, state.sites)
    rows = len(data.y)
    mean, variance = (np.asarray(part)[:rows] for part in moments)
    if any(group.residual_variance() is not None for group in problem.prior.groups):
        residual, precisions = np.asarray(residual_variances(problem.prior)), problem.precisions(state.sites)
        warn_left_out(model, data.X, residual[:rows], precisions[:rows], variance)
    return Approximation(
        model=model,
        X=data.X,
        y=data.y,
        columns=data.columns,
        posterior=posterior.resized(rows),
        mean=mean,
        variance=variance,
        elbo_trace=trace,
        converged=converged,
        tolerance=tolerance,
        seconds=time.perf_counter() - begin,
        method=engine,
        objective=problem.objective.name,
    )


@partial(compiled, optimise=False)
def residual_variances(prior: PriorCollection) -> Any:
    """Compiled ``PriorCollection.residual_variances``."""
    return prior.residual_variances()
