"""Compiled computation of the posterior given sites, without a copy of the prior's arrays."""

from functools import partial

from jaxtyping import Array

from pgmodels.inference.problem import Problem
from pgmodels.priors.base import Sites
from pgmodels.priors.fresh import Fresh
from pgmodels.priors.posterior import Posterior
from pgmodels.runtime.jit import compiled


def condition(problem: Problem, sites: Sites) -> tuple[Posterior, Array, Array, Array | None]:
    """The posterior given sites, the latents' means and variances, and the prior's residual variances."""
    fresh, *moments = _condition(problem, sites)
    return fresh.completed(problem.prior), *moments


@partial(compiled, optimise=False)
def _condition(problem: Problem, sites: Sites) -> tuple[Fresh, Array, Array, Array | None]:
    posterior = problem.condition(sites)
    return Fresh.beside(problem.prior, posterior), *posterior.moments(), problem.prior.residual_variances()
