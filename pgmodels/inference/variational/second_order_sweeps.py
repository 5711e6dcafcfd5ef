"""Coordinate ascent for dense priors: sweeps on a second-order expansion of the moments, with few factorisations."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pgmodels.inference.loop import LoopState, backtrack, enough
from pgmodels.inference.problem import Problem
from pgmodels.inference.variational.cavi import CaviState
from pgmodels.numerics.anderson import History, empty_history
from pgmodels.objectives.base import Objective
from pgmodels.priors.base import Sites
from pgmodels.priors.dense import DensePrior
from pgmodels.priors.moment_derivatives import Expansion, expand

# Maximum inner sweeps, and the relative step at which to stop: beyond it the error of the expansion dominates.
_SWEEPS, _LEFT = 40, 1e-4
# Maximum number of entries of all latents' covariances; about four such arrays exist, 0.8 GB each.
_MOST = 10**8


class Expanded(NamedTuple):
    """A state, the expansions of its groups' moments, the target sites ``aim``, and the predicted gain of the ELBO.

    The gain, ``promise``, is that of a quadratic; infinite if the inner sweeps did not converge.
    """

    state: CaviState
    expansions: tuple[Expansion, ...]
    aim: Sites
    promise: Float[Array, ""]

    @property
    def elbo(self) -> Float[Array, ""]:
        """The state's."""
        return self.state.elbo

    @property
    def rounding(self) -> Float[Array, ""]:
        """The state's."""
        return self.state.rounding


def can_expand(problem: Problem) -> bool:
    """Whether sites are on single latents and updated together, and all priors are dense and not too large."""
    objective, prior = problem.objective, problem.prior
    return (
        objective.is_monotone
        and is_simple(objective)
        and not problem.has_few_rows
        and not problem.coupled
        and len(_dense(problem)) == len(prior.groups)
        and sum(group.size * len(group.X) ** 2 for group in prior.groups) <= _MOST
    )


def is_simple(objective: Objective) -> bool:
    """Whether predictors are the latents themselves, all updated together."""
    return objective.predictors is None and len(objective.blocks) == 1


def _dense(problem: Problem) -> list[DensePrior]:
    return [group for group in problem.prior.groups if isinstance(group, DensePrior)]


def expansions_at(problem: Problem, sites: Sites) -> tuple[Expansion, ...]:
    """Expansions of the groups' moments at sites."""
    pairs = zip(_dense(problem), problem.prior.sites_by_group(sites), strict=True)
    return tuple(expand(group, group_sites) for group, group_sites in pairs)


def expanded_at(problem: Problem, sites: Sites) -> Expanded:
    """The expanded state of given sites."""
    expansions, side_by_side = expansions_at(problem, sites), problem.prior.side_by_side
    mean = side_by_side([group.mean + e.mean.T for group, e in zip(_dense(problem), expansions, strict=True)])
    variance = side_by_side([e.variance.T for e in expansions]) + problem.kept()
    divergence = sum((jnp.sum(e.divergence) for e in expansions), jnp.zeros(()))
    state = CaviState(mean, variance, sites, *problem.elbo(mean, variance, divergence, sites), empty_history(sites))
    return Expanded(state, expansions, *_aim(problem, state, expansions))


def ascend_expanded(problem: Problem, start: Any, tolerance: Any, length: int) -> tuple[LoopState, Expanded]:
    """At most ``length`` factorisations, traceable, until the predicted or actual gain is below a tolerance.

    The tolerance is relative to the ELBO, which never falls: if the target sites lower it, the plain sweep is taken.
    Only the marginals of ``start`` are used.
    """

    def unfinished(carry: tuple[LoopState, Expanded]) -> Bool[Array, ""]:
        now = carry[0]
        going = (now.taken == 0) | jnp.isfinite(now.state.elbo)
        return (now.taken < length) & ~now.converged & going

    def advance(carry: tuple[LoopState, Expanded]) -> tuple[LoopState, Expanded]:
        before, now = carry
        swept = problem.sites(now.state.mean, now.state.variance)

        def attempt(number: Int[Array, ""]) -> Expanded:
            return expanded_at(problem, jax.tree.map(lambda *two: jnp.where(number == 0, *two), now.aim, swept))

        moved = backtrack(attempt, now, 0, 1)[0]
        limit = enough(moved, tolerance)
        converged = (jnp.abs(moved.promise) <= limit) | (jnp.abs(moved.elbo - now.elbo) <= limit)
        return LoopState(moved.state, before.trace.at[before.taken].set(moved.elbo), before.taken + 1, converged), moved

    state = start._replace(elbo=jnp.full_like(start.elbo, -jnp.inf), memory=empty_history(start.sites))
    nothing = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(expanded_at, problem, state.sites)
    )
    first = nothing._replace(state=state, aim=problem.sites(start.mean, start.variance))
    begun = LoopState(state, jnp.zeros(length), jnp.zeros((), int), jnp.zeros((), bool))
    return jax.lax.while_loop(unfinished, advance, (begun, first))


def expanded_bound(problem: Problem, state: Any, expansions: tuple[Expansion, ...]) -> Any:
    """A function of the hyperparameters with the gradient that ``collapsed_bound`` has at those of the state.

    Uses the derivative of the log normalisers in the prior covariance and mean; differentiating a factorisation loses
    digits if potentials are much larger than the sites' gradients.
    """
    (mean, variance, sites), expansions = jax.lax.stop_gradient((state[:3], expansions))
    terms = [
        jnp.sum(e.slope() * g.K) + jnp.sum(e.weights) * g.mean for e, g in zip(expansions, _dense(problem), strict=True)
    ]
    return sum(terms, problem.local_bound(mean, variance) - problem.floor_loss(sites))


class _Sweeps(NamedTuple):
    """State of inner sweeps: means and variances, Anderson history, their number, and squared steps."""

    moments: Sites
    memory: History
    taken: Int[Array, ""]
    move: Float[Array, ""]
    first: Float[Array, ""]


def _aim(problem: Problem, state: CaviState, expansions: tuple[Expansion, ...]) -> tuple[Sites, Float[Array, ""]]:
    """The sites at the fixed point of the expansions, and the predicted gain of the ELBO."""
    h, w = state.sites
    squares = [e.squares() for e in expansions]
    begun = Sites(state.mean, state.variance)

    def image(moments: Sites) -> Sites:
        sites = problem.sites(*moments)
        by_mean = sites.potential - h - (sites.precision - w) * moments.potential
        moves = problem.prior.sites_by_group(Sites(by_mean, sites.precision - w))
        triples = list(zip(expansions, squares, moves, strict=True))
        mean = problem.prior.side_by_side([e.times(change.potential.T).T for e, _, change in triples])
        fall = [e.times_squares(square, change.precision.T).T for e, square, change in triples]
        # For a single datum v / (1 + v dw), and never below zero.
        share = problem.prior.side_by_side(fall) / state.variance
        variance = state.variance * jnp.where(share > 0.0, 1.0 / (1.0 + jnp.maximum(share, 0.0)), 1.0 - share)
        return Sites(state.mean + mean, variance)

    def is_near(now: _Sweeps) -> Bool[Array, ""]:
        return now.move <= _LEFT**2 * now.first

    def unfinished(now: _Sweeps) -> Bool[Array, ""]:
        return (now.taken < _SWEEPS) & ~is_near(now)

    def sweep(now: _Sweeps) -> _Sweeps:
        updated = image(now.moments)
        memory = now.memory.after(now.moments, updated)
        move = jnp.sum(memory.latest[1] ** 2)
        first = jnp.where(now.taken == 0, move, now.first)
        return _Sweeps(memory.extrapolated(updated), memory, now.taken + 1, move, first)

    infinite = jnp.asarray(jnp.inf, h.dtype)
    start = _Sweeps(begun, empty_history(begun), jnp.zeros((), int), infinite, jnp.zeros_like(infinite))
    sweeps = jax.lax.while_loop(unfinished, sweep, start)
    mean, variance = sweeps.moments
    swept = problem.sites(state.mean, state.variance)
    # The gradient of the ELBO in the moments is the difference between optimal and current sites.
    by_mean, by_square = swept.potential - h, -0.5 * (swept.precision - w)
    squares_moved = variance - state.variance + mean**2 - state.mean**2
    promise = 0.5 * jnp.sum(by_mean * (mean - state.mean) + by_square * squares_moved)
    return problem.sites(mean, variance), jnp.where(is_near(sweeps), promise, jnp.inf)
