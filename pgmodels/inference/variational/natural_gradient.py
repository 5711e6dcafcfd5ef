"""Natural-gradient ascent: steps of backtracked length towards the optimal sites, for any objective."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pgmodels.inference.engine import ConvergenceWarning, Engine
from pgmodels.inference.loop import Ascent, backtrack
from pgmodels.inference.problem import Problem, Spread
from pgmodels.numerics.anderson import History, empty_history
from pgmodels.priors.base import Sites
from pgmodels.priors.blocks import MAX_BLOCK
from pgmodels.runtime.warnings import warn

# Maximum halvings of a step that lowers the ELBO; after _OF_ALL of them precisions are fixed and only the mean moves.
_HALVINGS, _OF_ALL = 60, 30
# Stalled if a step is shorter than _SHORT and sites miss their targets by _STILL, in posterior standard deviations.
_SHORT, _STILL = 1e-3, 0.01


class GaussianState(NamedTuple):
    """q(f): moments of the predictors, the sites that produced them, target sites, ELBO, and Anderson history.

    ``slope`` has the optimal sites at the moments, ``target`` the same with ``Problem.with_responses``, ``rounding`` is
    the ELBO's rounding error, and ``length`` is the length of the last step, 0 if none raised the ELBO. Steps must not
    lower the sum of the ELBO and ``excess``: 0, or the difference to the log posterior density at the mean (see
    ``Objective.is_maximised``). ``missed`` is the first-order change of the ELBO along the last step at its end, in
    nats, which is large where the step passed the optimum.
    """

    mean: Float[Array, "n p"]
    variance: Spread
    sites: Sites
    slope: Sites
    target: Sites
    elbo: Float[Array, ""]
    rounding: Float[Array, ""]
    length: Float[Array, ""]
    memory: History
    excess: Float[Array, ""]
    missed: Float[Array, ""]


class NaturalGradient(Engine):
    """Steps along the natural gradient, for objectives whose full steps may lower the ELBO."""

    def init(self, problem: Problem) -> GaussianState:
        """The state of the precisions at the prior mean and a variance of at most 1, without gradient.

        The first step goes along the gradient, halved where the full one makes a rate overflow, as for large counts.
        """
        mean, variance = problem.marginals()
        largest = jnp.max(variance) if not problem.coupled else jnp.max(jnp.trace(variance, axis1=1, axis2=2))
        slope = problem.sites(mean, variance / jnp.maximum(1.0, largest))
        precision = positive_part(slope.precision)
        return self.state_of(problem, Sites(pull(precision, mean), precision))

    def state_of(
        self, problem: Problem, sites: Sites, length: Any = 1.0, memory: History | None = None
    ) -> GaussianState:
        """The state of given sites."""
        mean, variance, _, divergence = problem.moments(sites)
        elbo, slope, coupling = problem.elbo_and_sites(mean, variance, divergence, sites)
        excess = jnp.zeros_like(elbo.value)
        if not problem.objective.is_maximised:
            excess = problem.log_posterior(mean, sites) - elbo.value
        memory = empty_history(sites) if memory is None else memory
        target = problem.with_responses(slope, sites, mean, coupling)
        length, missed = jnp.asarray(length, mean.dtype), jnp.zeros_like(elbo.value)
        return GaussianState(mean, variance, sites, slope, target, *elbo, length, memory, excess, missed)

    def step(self, problem: Problem, state: GaussianState) -> GaussianState:
        """A natural-gradient step towards the sites at the marginals, halved until the ELBO does not fall.

        Source: Khan and Lin 2017; the full step is the fixed point of Opper and Archambeau 2009. Unless the problem
        ``takes_signed`` precisions, they are clipped at zero, which changes the direction for log densities that are
        not concave: if no step along it raises the ELBO, only the mean moves, with precisions fixed, which always
        raises it. Signed precisions may have any values for which the posterior is proper. Those of a state without a
        bound, of other hyperparameters, may be improper at these: then the second attempt clips them.
        """
        target = state.target if problem.takes_signed else positive(state.slope, state.mean)
        fixed_precision = with_precision(state.slope, state.mean, state.sites.precision)
        memory = state.memory.after(state.sites, target)
        further = memory.extrapolated(target)
        longest = jnp.minimum(1.0, 2.0 * state.length)
        # Extrapolate only after full steps; a history whose extrapolation fails is discarded. A state without a bound,
        # with its moments and history, belongs to another problem.
        known = jnp.isfinite(state.elbo)
        first = jnp.where(known & (state.length >= 1.0) & state.memory.started, -1, 0)
        may_clip = problem.objective.signed and problem.takes_signed and not problem.coupled
        clipped = positive(state.slope, state.mean) if may_clip else target

        def attempt(count: Int[Array, ""]) -> GaussianState:
            halvings = jnp.where(count < _OF_ALL, count, count - _OF_ALL)
            clips = may_clip & ~known & (count == 1)
            length = jnp.where((count < 0) | clips, 1.0, longest * 0.5**halvings)
            aim = jax.tree.map(
                lambda *choices: jnp.select([count < 0, clips, count < _OF_ALL], choices[:3], choices[3]),
                further,
                clipped,
                target,
                fixed_precision,
            )
            sites = jax.tree.map(lambda now, then: now + length * (then - now), state.sites, aim)
            return self.state_of(problem, sites, length, memory.masked(known & (count == first) & (length >= 1.0)))

        moved, rises = backtrack(attempt, state, first, _HALVINGS - 1, _merit)
        moved = moved._replace(missed=_missed(problem, state, moved))
        stays = state._replace(length=jnp.zeros_like(state.length), missed=jnp.zeros_like(state.missed))
        return jax.tree.map(lambda new, old: jnp.where(rises, new, old), moved, stays)

    def plain_step(self, problem: Problem, state: GaussianState) -> GaussianState:
        """See Engine: a step of full length, halved until the ELBO does not fall."""
        return self.step(problem, state._replace(length=jnp.ones_like(state.length), memory=empty_history(state.sites)))

    def finish(self, name: str, problem: Problem, ascent: Ascent) -> Ascent:
        """See Engine: not converged if it stopped because no step raises the ELBO."""
        if not ascent.converged or not _is_stalled(problem, ascent.state):
            return ascent
        remedy = (
            "Check for extreme values in y, a likelihood scale close to zero, and kinks of the formula: quadrature is "
            "exact for a kink in one latent that is written with abs, as in abs(y - f)."
        )
        if not problem.takes_signed:
            remedy += (
                " Negative precisions are clipped at zero unless all latents are factorised jointly, which needs at "
                f"most {MAX_BLOCK} coordinates in all, as with pgm.GP(kernel, form=pgm.Inducing(...))."
            )
        warn(
            f"{name} did not converge: after {len(ascent.trace) - 1} iterations no step raises the ELBO, and it is "
            f"not at its optimum. {remedy}",
            ConvergenceWarning,
        )
        return ascent._replace(converged=False)


def _merit(state: GaussianState) -> Array:
    return state.elbo + state.excess


def _missed(problem: Problem, before: GaussianState, after: GaussianState) -> Array:
    """See GaussianState: the gradient in the moments after a step, times the change of these; 0 if q is no maximum."""
    if not problem.objective.is_maximised:
        return jnp.zeros_like(after.elbo)
    target = after.slope if problem.takes_signed else positive(after.slope, after.mean)
    potential, precision = (aim - site for aim, site in zip(target, after.sites, strict=True))
    mean, spread = after.mean - before.mean, after.variance - before.variance
    outer = pull(precision, after.mean + before.mean) * mean
    return abs(jnp.sum(potential * mean) - 0.5 * (jnp.sum(outer) + jnp.sum(precision * spread)))


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


def _is_stalled(problem: Problem, state: GaussianState) -> bool:
    """Whether steps are short or zero although sites are far from the optimal ones at the marginals."""
    if float(state.length) > _SHORT:
        return False
    m, sites = state.mean, state.sites
    wanted = state.slope if problem.takes_signed else positive(state.slope, m)
    by_mean = wanted.potential - pull(wanted.precision, m) - (sites.potential - pull(sites.precision, m))
    by_precision, v = np.asarray(wanted.precision - sites.precision), np.asarray(state.variance)
    v = np.diagonal(v, axis1=1, axis2=2) if problem.coupled else v
    scale = np.sqrt(np.maximum(v, 0.0))
    squares = scale[:, :, None] * scale[:, None, :] if problem.coupled else v
    largest = max(np.max(np.abs(by_mean) * scale), np.max(np.abs(by_precision * squares)))
    return not largest <= _STILL


def is_clipped(state: GaussianState) -> bool:
    """Whether the optimal precision of a site is below zero."""
    w = np.asarray(state.slope.precision)
    return bool(np.any(w < -1e-8 * np.max(np.abs(w), initial=0.0)))


NATURAL_GRADIENT = NaturalGradient()
