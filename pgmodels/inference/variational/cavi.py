"""Coordinate ascent: alternate between optimal sites and the Gaussian they define, with Anderson acceleration."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pgmodels.inference.engine import Engine
from pgmodels.inference.loop import backtrack
from pgmodels.inference.problem import Problem
from pgmodels.inference.variational.newton_mean import at_best_mean, can_ascend
from pgmodels.numerics.anderson import History, empty_history
from pgmodels.priors.base import Sites


class CaviState(NamedTuple):
    """See ``VariationalState``; moments and sites (n, predictors). At a start, moments and sites are not consistent."""

    mean: Float[Array, "n p"]
    variance: Float[Array, "n p"]
    sites: Sites
    elbo: Float[Array, ""]
    rounding: Float[Array, ""]
    memory: History


class CoordinateAscent(Engine):
    """CAVI, for monotone objectives: full steps to the sites at the marginals, block by block of predictors."""

    def init(self, problem: Problem) -> CaviState:
        """Start from the sites at the prior mean and the prior variance, the latter at most 1.

        With much larger variances the first sites are so flat that models with several latents end in a poor optimum.
        """
        m, v = problem.marginals()
        return start_at(problem, m, jnp.minimum(v, 1.0))

    def state_of(self, problem: Problem, sites: Sites, memory: History | None = None) -> CaviState:
        """See Engine."""
        m, v, _, divergence = problem.moments(sites)
        memory = empty_history(sites) if memory is None else memory
        return CaviState(m, v, sites, *problem.elbo(m, v, divergence, sites), memory)

    def step(self, problem: Problem, state: CaviState) -> CaviState:
        """A sweep, preceded by an optimisation of the mean if that is cheap."""
        mean, sites = state.mean, state.sites
        if can_ascend(problem):
            # At a start, the moments do not follow from the sites.
            mean, sites = jax.lax.cond(
                jnp.isfinite(state.elbo),
                partial(at_best_mean, problem),
                lambda mean, _, sites: (mean, sites),
                *state[:3],
            )
        return self.sweep(problem, state, mean, sites)

    def sweep(self, problem: Problem, before: CaviState, mean: Float[Array, "n p"], sites: Sites) -> CaviState:
        """One sweep over the blocks of predictors with Anderson acceleration.

        Starts at a mean and the sites that imply it, which may be better than the state ``before``. If the accelerated
        step lowers the ELBO, the plain sweep is used and the history discarded.
        """
        sites = self._swept(problem, before._replace(mean=mean), sites)
        known = jnp.isfinite(before.elbo)
        memory = before.memory.after(before.sites, sites)
        further = memory.extrapolated(sites)

        def attempt(number: Int[Array, ""]) -> CaviState:
            goes_on = number == 0
            # A history from the same problem at other hyperparameters is used from the second sweep on.
            past = jax.tree.map(partial(jnp.where, known), memory.masked(goes_on), before.memory.without_iterate())
            return self.state_of(problem, jax.tree.map(partial(jnp.where, goes_on), further, sites), past)

        # A start has no sweep before it to extrapolate from.
        return backtrack(attempt, before, jnp.where(known, 0, 1), 1)[0]

    def plain_step(self, problem: Problem, state: CaviState) -> CaviState:
        """See Engine: one sweep over the blocks of predictors."""
        return self.state_of(problem, self._swept(problem, state, state.sites))

    def _swept(self, problem: Problem, state: CaviState, sites: Sites) -> Sites:
        """The optimal sites, block by block, each at the moments that the sites before it imply."""
        for number, block in enumerate(problem.objective.blocks):
            state = state if number == 0 else self.state_of(problem, sites)
            columns = np.isin(np.arange(problem.objective.size), block)
            swept = problem.sites(state.mean, state.variance)
            sites = jax.tree.map(partial(jnp.where, columns), swept, sites)
        return sites


def start_at(problem: Problem, mean: Float[Array, "n p"], variance: Float[Array, "n p"]) -> CaviState:
    """Start from the sites at these marginals."""
    sites = problem.sites(mean, variance)
    none = jnp.zeros((), mean.dtype)
    return CaviState(mean, variance, sites, none - jnp.inf, none, empty_history(sites))


CAVI = CoordinateAscent()
