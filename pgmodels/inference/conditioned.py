"""The posterior that sites imply, compiled, without a copy of the prior's arrays."""

from functools import partial

from jaxtyping import Array

from pgmodels.compiled import compiled
from pgmodels.inference.problem import Problem
from pgmodels.latent.coupled import CoupledPosterior
from pgmodels.latent.fresh import Fresh
from pgmodels.latent.joint import JointPosterior
from pgmodels.latent.protocol import Sites


def condition(problem: Problem, sites: Sites) -> tuple[JointPosterior | CoupledPosterior, Array, Array]:
    """The posterior given sites, and the latents' means and variances."""
    fresh, mean, variance = _condition(problem, sites)
    return fresh.completed(problem.prior), mean, variance


@partial(compiled, lightly=True)
def _condition(problem: Problem, sites: Sites) -> tuple[Fresh, Array, Array]:
    posterior = problem.condition(sites)
    return Fresh.beside(problem.prior, posterior), *posterior.moments()
