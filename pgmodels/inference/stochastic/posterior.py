"""The posterior after stochastic steps: q at the inducing inputs."""

from collections.abc import Sequence
from functools import partial
from operator import itemgetter

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pgmodels.inference.stochastic.natural_parameters import NaturalParameters, to_moments
from pgmodels.inference.stochastic.step import StochasticProblem
from pgmodels.priors.base import Sites
from pgmodels.priors.block_posterior import BlockPosterior
from pgmodels.priors.blocks import scatter_blocks
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.lapack_loops import over_states
from pgmodels.priors.posterior import IndependentPosterior, Posterior
from pgmodels.runtime.jit import compiled


def posterior(
    problem: StochasticProblem, naturals: Sequence[NaturalParameters], vector: Array, X: Float[Array, "1 d"]
) -> Posterior:
    """q as a posterior without data, for groups with inducing inputs; ``X`` is any input."""
    prior = (_prior_at(problem, vector, X) if problem.learns else problem.prior).resized(0)
    h = jnp.zeros((0, problem.objective.num_latents))
    if problem.objective.predictors is not None:
        roots, centres = zip(*map(_to_moments, naturals), strict=True)
        centre = scatter_blocks(prior, problem.blocks, centres)
        sites = Sites(h, jnp.zeros((*h.shape, h.shape[1])))
        return BlockPosterior(prior, sites, centre, roots, jnp.zeros(()), problem.blocks)
    every = _latent_moments(naturals[0] if problem.sample is not None else tuple(naturals))
    groups = [
        group.posterior(*jax.tree.map(itemgetter(latents), every))
        for group, latents in zip(prior.groups, prior.slices(), strict=True)
    ]
    return IndependentPosterior(prior, Sites(h, h), tuple(groups))


@partial(compiled, optimise=False)
def _prior_at(problem: StochasticProblem, vector: Array, X: Float[Array, "1 d"]) -> PriorCollection:
    return problem.prior_at(vector, X)


@partial(compiled, optimise=False)
def _to_moments(naturals: NaturalParameters) -> tuple[Array, Array]:
    return to_moments(naturals)


@partial(compiled, optimise=False)
def _latent_moments(naturals: NaturalParameters | tuple[NaturalParameters, ...]) -> tuple[Array, Array]:
    """One block per latent along the first axis, as latent subsampling already has it."""
    stacked = isinstance(naturals, NaturalParameters)
    return over_states(to_moments, naturals if stacked else jax.tree.map(lambda *leaves: jnp.stack(leaves), *naturals))
