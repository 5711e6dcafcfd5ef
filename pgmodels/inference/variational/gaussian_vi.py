"""The variational Gaussian: the Gaussian closest to the posterior, for any formula, by natural-gradient steps."""

import math
import time
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike

from pgmodels.augmentation.normal_form import expand
from pgmodels.augmentation.predictor import affine
from pgmodels.augmentation.predictors import rewrite_if_fewer
from pgmodels.augmentation.quadratic import read_completed
from pgmodels.data.options import check_between, check_whole_number
from pgmodels.inference.inducing_selection import select_inducing_inputs
from pgmodels.inference.jitter_check import accurate_prior
from pgmodels.inference.loop import Ascent, backtrack, maximise
from pgmodels.inference.problem import Problem, Spread, problem_of
from pgmodels.inference.variational import cavi as cavi_engine
from pgmodels.inference.variational.cavi import MANY, ConvergenceWarning, conclude
from pgmodels.likelihoods.expression import Expression
from pgmodels.likelihoods.operations import Call, Power
from pgmodels.likelihoods.symbols import Constant
from pgmodels.model import Data, Model, require_model
from pgmodels.numerics.anderson import History, empty_history
from pgmodels.objectives.expected import Kink, Quadrature
from pgmodels.priors.base import Sites
from pgmodels.priors.block_posterior import BlockPosterior
from pgmodels.priors.blocks import MAX_BLOCK, choose_blocks
from pgmodels.priors.collection import PriorCollection
from pgmodels.results.approximation import Approximation
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.seeds import Seed, as_seed
from pgmodels.runtime.threads import one_thread_if_small
from pgmodels.runtime.warnings import PgmodelsWarning, warn
from pgmodels.runtime.x64 import double_precision

# Tolerance and iterations of the CAVI warm start; tolerance before checking whether precisions are clipped at zero.
_NEAR, _START_ITERATIONS = 1e-4, 200
# Maximum halvings of a step that lowers the ELBO; after _OF_ALL of them precisions are fixed and only the mean moves.
_HALVINGS, _OF_ALL = 60, 30
# Stalled if a step is shorter than _SHORT and sites miss their targets by _STILL, in posterior standard deviations.
_SHORT, _STILL = 1e-3, 0.01


class MeanFieldWarning(PgmodelsWarning):
    """Latents of a datum are independent under q, because jointly they are too large to factorise."""


class GaussianState(NamedTuple):
    """q(f): moments of the predictors, the sites that produced them, target sites, ELBO, and Anderson history.

    ``slope`` has the optimal sites at the moments, ``rounding`` is the ELBO's rounding error, and ``length`` is that of
    the last step, 0 if none raised the ELBO.
    """

    mean: Float[Array, "n p"]
    variance: Spread
    sites: Sites
    slope: Sites
    elbo: Float[Array, ""]
    rounding: Float[Array, ""]
    length: Float[Array, ""]
    memory: History


def quadrature_of(model: Model, coarse: bool = False) -> Quadrature:
    """The expected log density of a model's formula, over its predictors where its factors combine latents."""
    if model.is_augmentable:
        formula, predictors = model.augmentation.formula, model.augmentation.predictors
    else:
        formula, predictors = rewrite_if_fewer(model.likelihood.formula(model.num_latents), model.num_latents)
    size = model.num_latents if predictors is None else len(predictors.rows)
    return Quadrature(formula, size, predictors, tuple(_kinks(formula)) if size == 1 else (), coarse)


def _kinks(expression: Expression) -> list[Kink]:
    """The kinks of a formula: zeros of affine arguments of absolute values, and vertices under fractional powers.

    The root of a quadratic has a nearly sharp kink at its vertex if the constant added to the square is small.
    """
    if expression.latent_free:
        return []
    kinks = [kink for child in expression.children for kink in _kinks(child)]
    predictor = None
    if isinstance(expression, Call) and expression.name == "abs":
        predictor = affine(expression.argument)
    elif isinstance(expression, Power) and isinstance(expression.exponent, Constant) and expression.exponent.value % 1:
        quadratic = read_completed(expand(expression.base, 1))
        predictor = quadratic.squares[0].predictor if quadratic and len(quadratic.squares) == 1 else None
    if predictor is not None:
        kinks.append(Kink(predictor.scale, predictor.shift))
    return kinks


def step(problem: Problem, state: GaussianState) -> GaussianState:
    """A natural-gradient step towards the sites at the marginals, halved until the ELBO does not fall.

    Source: Khan and Lin 2017; the full step is the fixed point of Opper and Archambeau 2009. Without joint sites,
    precisions are clipped at zero, which changes the direction for log densities that are not concave: if no length of
    it raises the ELBO, only the mean moves, with precisions fixed, which always raises it. Joint sites may have any
    precisions for which the posterior is proper.
    """
    target = state.slope if problem.coupled else positive(state.slope, state.mean)
    fixed_precision = with_precision(state.slope, state.mean, state.sites.precision)
    memory = state.memory.after(state.sites, target)
    further = memory.extrapolated(target)
    longest = jnp.minimum(1.0, 2.0 * state.length)
    # Extrapolate only after full steps; a history whose extrapolation fails is discarded. A state without a bound, with
    # its moments and history, belongs to another problem.
    known = jnp.isfinite(state.elbo)
    first = jnp.where(known & (state.length >= 1.0) & state.memory.started, -1, 0)

    def attempt(count: Int[Array, ""]) -> GaussianState:
        halvings = jnp.where(count < _OF_ALL, count, count - _OF_ALL)
        length = jnp.where(count < 0, 1.0, longest * 0.5**halvings)
        aim = jax.tree.map(
            lambda *choices: jnp.select([count < 0, count < _OF_ALL], choices[:2], choices[2]),
            further,
            target,
            fixed_precision,
        )
        sites = jax.tree.map(lambda now, then: now + length * (then - now), state.sites, aim)
        return state_of(problem, sites, length, memory.masked(known & (count == first) & (length >= 1.0)))

    moved, rises = backtrack(attempt, state, first, _HALVINGS - 1)
    stays = state._replace(length=jnp.zeros_like(state.length))
    return jax.tree.map(lambda new, old: jnp.where(rises, new, old), moved, stays)


def state_of(problem: Problem, sites: Sites, length: Any = 1.0, memory: History | None = None) -> GaussianState:
    """The state of given sites."""
    mean, variance, _, divergence = problem.moments(sites)
    elbo, slope = problem.elbo_and_sites(mean, variance, divergence, sites)
    memory = empty_history(sites) if memory is None else memory
    return GaussianState(mean, variance, sites, slope, *elbo, jnp.asarray(length, mean.dtype), memory)


def with_precision(sites: Sites, mean: Array, precision: Array) -> Sites:
    """Sites of another precision with the same gradient in the mean: h = E g + W m."""
    gradient = sites.potential - pull(sites.precision, mean)
    return Sites(gradient + pull(precision, mean), precision)


def positive(sites: Sites, mean: Array) -> Sites:
    """The same sites with the nearest non-negative precisions."""
    return with_precision(sites, mean, positive_part(sites.precision))


def positive_part(precision: Array) -> Array:
    """The nearest non-negative precisions, (n, p), or positive semi-definite ones, (n, p, p)."""
    if precision.ndim == 2:
        return jnp.maximum(precision, 0.0)

    def nearest(W: Array) -> Array:
        values, vectors = jnp.linalg.eigh(0.5 * (W + W.T))
        return (vectors * jnp.maximum(values, 0.0)) @ vectors.T

    # A sequential loop: see pgmodels.priors.lapack_loops.
    return jax.lax.map(nearest, precision)


def pull(precision: Array, mean: Array) -> Array:
    """W m of each datum."""
    return precision * mean if precision.ndim == 2 else jnp.einsum("ipq,iq->ip", precision, mean)


def first_state(problem: Problem) -> GaussianState:
    """The state of the sites at the prior mean and a variance of at most 1.

    Their gradient at the prior mean is halved until the ELBO is not below that without it: for large counts the full
    step makes the rate overflow.
    """
    mean, variance = problem.marginals()
    largest = jnp.max(variance) if not problem.coupled else jnp.max(jnp.trace(variance, axis1=1, axis2=2))
    slope = problem.sites(mean, variance / jnp.maximum(1.0, largest))
    precision = positive_part(slope.precision)
    gradient = slope.potential - pull(slope.precision, mean)

    def pulled(share: Any) -> GaussianState:
        return state_of(problem, Sites(share * gradient + pull(precision, mean), precision))

    return backtrack(lambda count: pulled(0.5**count), pulled(0.0), 0, _HALVINGS - 1)[0]


_first_state = compiled(first_state)


@compiled
def _from_sites(problem: Problem, sites: Sites) -> GaussianState:
    return state_of(problem, sites)


@double_precision
@one_thread_if_small
def gaussian_vi(
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
    """The Gaussian closest to the posterior in KL(q ‖ p), with hyperparameters fixed; any formula.

    Natural-gradient steps on the expected log density, computed by quadrature (math: section 6). The ELBO never falls,
    and at the optimum it is above that of ``cavi``, which provides the start if the formula has an augmentation.

    Parameters
    ----------
    model : Model
        The likelihood and its GPs. Priors of hyperparameters are ignored: they stay at their values.
    X : array_like, shape (n, d)
        Inputs, one row per datum; an array or a data frame.
    y : array_like, shape (n,) or (n, columns)
        Observations, in the units of the likelihood.
    weights : array_like, shape (n,), optional
        Powers of the rows' likelihoods, as in ``cavi``.
    max_iterations : int
        Maximum number of steps.
    tolerance : float
        Relative change of the ELBO in one step below which the iteration has converged.
    seed : int or jax.Array
        An int or a JAX key; draws inducing inputs, as in ``cavi``.
    progress : bool, optional
        Whether to show a progress bar, as in ``cavi``.

    Returns
    -------
    Approximation
        The Gaussian, its moments at the data, and the trace of the ELBO.

    Raises
    ------
    ValueError
        For bad data or options, or an ELBO that is not finite.

    Warns
    -----
    ConvergenceWarning
        If ``max_iterations`` steps do not reach the tolerance, or if no step raises the ELBO although the sites are not
        optimal: with independent latents precisions are clipped at zero.
    MeanFieldWarning
        If the latents of a datum are independent under q because they have more than 3,200 coordinates in all; up to
        that size they are correlated.
    InducingWarning, PrecisionWarning
        As in ``cavi``.

    References
    ----------
    Opper and Archambeau 2009; Khan and Lin 2017.
    """
    begin = time.perf_counter()
    model, data = require_model(model).prepare(X, y, weights)
    check_whole_number(max_iterations, "max_iterations", 1)
    check_between(tolerance, "tolerance", 0.0, math.inf)
    model = select_inducing_inputs(model.resolve(data.X, as_seed(seed)), data, nearly_converged)
    return converge(model, data, None, max_iterations, tolerance, progress, begin)


def nearly_converged(model: Model, data: Data) -> tuple[float, np.ndarray]:
    """The ELBO near the optimum and the marginal precisions of its sites on the latents, (n, latents)."""
    problem = gaussian_problem(model, data, model.prior(data.X))
    state = maximise(step, problem, start_state(model, data, problem), _NEAR, _START_ITERATIONS).state
    return float(state.elbo), problem.precisions(state.sites)


def converge(
    model: Model,
    data: Data,
    start: GaussianState | None,
    max_iterations: int,
    tolerance: float,
    progress: bool | None,
    begin: float | None = None,
) -> Approximation:
    """Iterate to the tolerance from the sites of a state, or from where ``gaussian_vi`` starts."""
    begin = time.perf_counter() if begin is None else begin
    problem, state = _first(model, data, start)
    problem, ascent = optimise(problem, state, tolerance, max_iterations, progress)
    return _conclude(model, data, problem, ascent, tolerance, begin)


def finish(model: Model, data: Data, ascent: Ascent, tolerance: float) -> Approximation:
    """The result of a loop with the prior's traced form; continued if another form or joint sites improve it."""
    begin = time.perf_counter()
    problem = gaussian_problem(model, data, model.prior(data.X))
    sites = ascent.state.sites
    goes_on = (
        problem.coupled != sites.coupled
        or accurate_prior(model, data, problem.prior, problem.largest_precision(sites)) is not problem.prior
        or (not problem.coupled and is_affordable(problem.prior) and _is_clipped(ascent.state))
    )
    if goes_on:
        return converge(model, data, ascent.state, MANY, tolerance, False, begin)
    _warn_independent(problem)
    return _conclude(model, data, problem, ascent, tolerance, begin)


def _conclude(
    model: Model, data: Data, problem: Problem, ascent: Ascent, tolerance: float, begin: float
) -> Approximation:
    """The result of a loop; not converged if it stopped because no step raises the ELBO."""
    result = conclude("gaussian_vi", model, data, problem, ascent, tolerance, begin)
    if not ascent.converged or not _is_stalled(problem, ascent.state):
        return result
    remedy = (
        "Look for extreme values in y, a likelihood scale close to zero, and kinks: those of one latent are exact "
        "where they are written with abs, as in abs(y - f)."
    )
    if not problem.coupled:
        remedy += (
            " Precisions below zero are held at zero where latents are not factorised together. With "
            f"pgm.GP(kernel, form=pgm.Inducing(...)) they have few coordinates, up to {MAX_BLOCK} in all, and are."
        )
    warn(
        f"gaussian_vi did not converge: after {len(ascent.trace) - 1} iterations no step raises the ELBO, and it is "
        f"not at its optimum. {remedy}",
        ConvergenceWarning,
    )
    return replace(result, converged=False)


def _warn_independent(problem: Problem) -> None:
    """Warn if the sites of a datum with several predictors are not joint."""
    if problem.objective.size > 1 and not problem.coupled:
        warn(
            f"gaussian_vi takes the latents of a datum as independent: together they have more than {MAX_BLOCK} "
            "coordinates, or a prior without a factor. What they say of each other is lost.",
            MeanFieldWarning,
        )


def _first(model: Model, data: Data, start: GaussianState | None = None) -> tuple[Problem, GaussianState]:
    """The problem of a resolved model's variational Gaussian, and its start: at CAVI's sites, where there are some."""
    problem = gaussian_problem(model, data, model.prior(data.X))
    _warn_independent(problem)
    state = start_state(model, data, problem) if start is None else _state_from(problem, start.sites)
    finer = accurate_prior(model, data, problem.prior, problem.largest_precision(state.sites))
    if finer is not problem.prior:
        problem = gaussian_problem(model, data, finer)
        state = _from_sites(problem, state.sites)
    return problem, state


def optimise(
    problem: Problem, state: GaussianState, tolerance: float, max_iterations: int, progress: bool | None = False
) -> tuple[Problem, Ascent]:
    """Maximise to the tolerance; if precisions are clipped at zero, continue with joint sites, which are not clipped.

    Near the optimum clipped precisions allow only very short steps, which take many halvings.
    """
    go_on = partial(_go_on, tolerance=tolerance, max_iterations=max_iterations, progress=progress)
    ascent = Ascent(state, np.asarray(state.elbo)[None], False)
    if problem.coupled or not is_affordable(problem.prior):
        return problem, go_on(problem, ascent)
    ascent = go_on(problem, ascent, tolerance=max(tolerance, _NEAR))
    clipped = _is_clipped(ascent.state)
    if not clipped:
        ascent = go_on(problem, ascent)
        clipped = _is_clipped(ascent.state)
    if clipped:
        h, w = ascent.state.sites
        problem = problem.with_coupled_sites()
        state = _from_sites(problem, Sites(h, jax.vmap(jnp.diag)(w)))
        ascent = go_on(problem, ascent._replace(state=state))
    return problem, ascent


def _go_on(problem: Problem, before: Ascent, tolerance: float, max_iterations: int, progress: bool | None) -> Ascent:
    """Continue a loop with the remaining iterations."""
    remaining = max_iterations + 1 - len(before.trace)
    ascent = maximise(step, problem, before.state, tolerance, remaining, title="gaussian_vi", progress=progress)
    return Ascent(ascent.state, np.concatenate([before.trace, ascent.trace[1:]]), ascent.converged)


def _is_stalled(problem: Problem, state: GaussianState) -> bool:
    """Whether steps are short or zero although sites are far from the optimal ones at the marginals."""
    if float(state.length) > _SHORT:
        return False
    m, sites = state.mean, state.sites
    wanted = state.slope if problem.coupled else positive(state.slope, m)
    by_mean = wanted.potential - pull(wanted.precision, m) - (sites.potential - pull(sites.precision, m))
    by_precision, v = np.asarray(wanted.precision - sites.precision), np.asarray(state.variance)
    v = np.diagonal(v, axis1=1, axis2=2) if problem.coupled else v
    scale = np.sqrt(np.maximum(v, 0.0))
    squares = scale[:, :, None] * scale[:, None, :] if problem.coupled else v
    largest = max(np.max(np.abs(by_mean) * scale), np.max(np.abs(by_precision * squares)))
    return not largest <= _STILL


def _is_clipped(state: GaussianState) -> bool:
    """Whether the optimal precision of a site is below zero."""
    w = np.asarray(state.slope.precision)
    return bool(np.any(w < -1e-8 * np.max(np.abs(w), initial=0.0)))


def gaussian_problem(model: Model, data: Data, prior: PriorCollection) -> Problem:
    """Expected log densities of a resolved model, over the predictors of a datum together where that is affordable."""
    problem = problem_of(model, data, prior, quadrature_of(model))
    return problem.with_coupled_sites() if problem.objective.size > 1 and is_affordable(problem.prior) else problem


def start_state(model: Model, data: Data, problem: Problem) -> GaussianState:
    """CAVI's sites, nearly converged, where there is an augmentation and its bound is finite."""
    if model.is_augmentable:
        bounded = problem_of(model, data, problem.prior)
        start = cavi_engine.init(bounded)
        state = maximise(cavi_engine.step, bounded, start, _NEAR, _START_ITERATIONS).state
        if np.isfinite(float(state.elbo)):
            return _state_from(problem, state.sites)
    return _first_state(problem)


def _state_from(problem: Problem, sites: Sites) -> GaussianState:
    """The state of sites, converted to joint or independent ones as the problem requires."""
    h, w = sites
    if problem.coupled and not sites.coupled:
        w = jax.vmap(jnp.diag)(w)
    if sites.coupled and not problem.coupled:
        w = jnp.diagonal(w, axis1=1, axis2=2)
    return _from_sites(problem, Sites(h, w))


def has_coupled_sites(approximation: Approximation) -> bool:
    """Whether the sites of a result couple the predictors of a datum, or have precisions of any sign."""
    coupled = approximation.objective == "expected" and isinstance(approximation.posterior, BlockPosterior)
    return coupled and is_affordable(approximation.prior)


def is_affordable(prior: PriorCollection) -> bool:
    """Whether all latents are factorised together."""
    return prior.factored and len(choose_blocks(prior)) == 1
