"""Coordinate-ascent variational inference: alternate the optimal sites and the Gaussian they imply."""

import math
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pgmodels.compiled import compiled
from pgmodels.inference.acceleration import Memory, no_memory
from pgmodels.inference.accuracy import accurate_prior, warn_inaccurate
from pgmodels.inference.drive import Ascent, ascend, first_to_rise
from pgmodels.inference.inducing import settled, warn_left_out
from pgmodels.inference.mean_ascent import at_best_mean, can_ascend
from pgmodels.inference.problem import Problem, problem_of
from pgmodels.latent.coupled import CoupledPosterior
from pgmodels.latent.fresh import Fresh
from pgmodels.latent.joint import JointPosterior, JointPrior
from pgmodels.latent.protocol import Sites
from pgmodels.model import Data, Model, require_model
from pgmodels.options import check_between, check_whole_number
from pgmodels.precision import double_precision
from pgmodels.results.approximation import Approximation
from pgmodels.threads import one_thread_if_small
from pgmodels.warning import warn

# For a selection of inducing inputs the posterior need not be converged.
_NEAR, _FEW = 1e-4, 200
# Of an ascent that goes on elsewhere.
MANY = 2000


class ConvergenceWarning(UserWarning):
    """An iteration stopped before its tolerance was reached."""


class CaviState(NamedTuple):
    """q(f): the predictors' marginal moments and the sites that produced them, (n, predictors), and the ELBO.

    ``rounding`` is what that may be of the ELBO, which is minus infinity at a start, whose moments are no sites' yet.
    ``memory`` is of the states before.
    """

    mean: Float[Array, "n p"]
    variance: Float[Array, "n p"]
    sites: Sites
    elbo: Float[Array, ""]
    rounding: Float[Array, ""]
    memory: Memory


def first_state(problem: Problem) -> CaviState:
    """Start from the sites at the prior mean and the prior variance, the latter at most 1.

    Far wider marginals than that make the first sites so flat that models with several latents end in a poor optimum.
    """
    m, v = problem.marginals()
    return start_at(problem, m, jnp.minimum(v, 1.0))


def start_at(problem: Problem, mean: Float[Array, "n p"], variance: Float[Array, "n p"]) -> CaviState:
    """Start from the sites at these marginals."""
    sites = problem.sites(mean, variance)
    none = jnp.zeros((), mean.dtype)
    return CaviState(mean, variance, sites, none - jnp.inf, none, no_memory(sites))


def step(problem: Problem, state: CaviState) -> CaviState:
    """A sweep, from the best mean beside the variances where that is cheap; the ELBO never falls."""
    mean, sites = state.mean, state.sites
    if can_ascend(problem):
        # The moments of a start are no sites'.
        mean, sites = jax.lax.cond(
            jnp.isfinite(state.elbo),
            partial(at_best_mean, problem),
            lambda mean, _, sites: (mean, sites),
            *state[:3],
        )
    return sweep(problem, state, mean, sites)


def sweep(problem: Problem, before: CaviState, mean: Float[Array, "n p"], sites: Sites) -> CaviState:
    """One sweep over the blocks of predictors, and as much further as the last ones suggest; the ELBO never falls.

    It begins at a mean and sites that imply it, which may be better than those of the state before. Where going further
    lowers the ELBO the sweep itself is what counts, and the sweeps before are forgotten.
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
        # What is remembered of the same problem at other hyperparameters helps on, from the second sweep.
        past = jax.tree.map(partial(jnp.where, known), memory.kept(goes_on), before.memory.apart())
        return state_of(problem, jax.tree.map(partial(jnp.where, goes_on), further, sites), past)

    # The sites of a start are no sweep's: it has nothing to go by.
    return first_to_rise(attempt, before, jnp.where(known, 0, 1), 1)[0]


def state_of(problem: Problem, sites: Sites, memory: Memory | None = None) -> CaviState:
    """The state that given sites imply."""
    m, v, _, divergence = problem.moments(sites)
    memory = no_memory(sites) if memory is None else memory
    return CaviState(m, v, sites, *problem.elbo(m, v, divergence, sites), memory)


# The same, compiled.
init = compiled(first_state, lightly=True)


def check_finite(engine: str, trace: np.ndarray) -> None:
    """Raise ValueError where the ELBO is not finite."""
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
    X: Any,
    y: Any,
    *,
    weights: Any = None,
    max_iterations: int = 1000,
    tolerance: float = 1e-9,
    progress: bool | None = None,
) -> Approximation:
    """The Gaussian q(f) that maximises the augmented ELBO, hyperparameters held at their values.

    Coordinate ascent, each sweep carried on from the last few (Walker and Ni 2011), with an ELBO that never falls. With
    inducing inputs each begins at the best mean beside the variances (see ``pgmodels.inference.mean_ascent``).
    X (n, d), y (n,) or (n, columns). ``weights`` (n,) are powers of the rows' likelihoods: 2 is a row that is there
    twice, and rows of weight 0 are left out. Stops where the ELBO changes by less than ``tolerance`` relative to its
    size in one iteration; warns with ConvergenceWarning where that takes more than ``max_iterations``. Raises
    ValueError for bad data and NoAugmentationError for a likelihood without an augmentation.
    """
    model, data = require_model(model).given(X, y, weights)
    check_whole_number(max_iterations, "max_iterations", 1)
    check_between(tolerance, "tolerance", 0.0, math.inf)
    model = settled(model.resolve(data.X), data, nearly_converged)
    return converge(model, data, None, max_iterations, tolerance, progress)


def nearly_converged(model: Model, data: Data) -> tuple[float, np.ndarray]:
    """The ELBO near the optimum, and the precisions that its sites have on the latents, (n, latents)."""
    problem = problem_of(model, data)
    state = ascend(step, problem, init(problem), _NEAR, _FEW).state
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
    state, trace, converged = ascend(step, problem, state, tolerance, max_iterations, title="cavi", progress=progress)
    return conclude("cavi", model, data, problem, Ascent(state, trace, converged), tolerance, begin)


def finish(model: Model, data: Data, found: Ascent, tolerance: float) -> Approximation:
    """The result of an ascent in the prior's traced form, taken further where that is not accurate enough."""
    begin = time.perf_counter()
    problem = problem_of(model, data)
    if accurate_prior(model, data, problem.prior, problem.largest_precision(found.state.sites)) is not problem.prior:
        return converge(model, data, found.state, MANY, tolerance, False)
    return conclude("cavi", model, data, problem, found, tolerance, begin)


def conclude(
    engine: str, model: Model, data: Data, problem: Problem, ascent: Ascent, tolerance: float, begin: float
) -> Approximation:
    """The result of an ascent by an engine."""
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
        objective=engine,
    )


@partial(compiled, lightly=True)
def residual_variances(prior: JointPrior) -> Any:
    """See JointPrior, compiled."""
    return prior.residual_variances()


def condition(problem: Problem, sites: Sites) -> tuple[JointPosterior | CoupledPosterior, Array, Array]:
    """The posterior given sites, and the latents' means and variances."""
    fresh, mean, variance = _condition(problem, sites)
    return fresh.completed(problem.prior), mean, variance


@partial(compiled, lightly=True)
def _condition(problem: Problem, sites: Sites) -> tuple[Fresh, Array, Array]:
    posterior = problem.condition(sites)
    return Fresh.beside(problem.prior, posterior), *posterior.moments()
