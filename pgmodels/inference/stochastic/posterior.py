"""What steps on batches lead to as a posterior: q at the inducing inputs alone."""

from collections.abc import Sequence
from functools import partial
from operator import itemgetter

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pgmodels.inference.stochastic.natural_parameters import NaturalParameters, solved
from pgmodels.inference.stochastic.step import StochasticProblem
from pgmodels.priors.base import Sites
from pgmodels.priors.block_posterior import BlockPosterior
from pgmodels.priors.blocks import scatter_blocks
from pgmodels.priors.collection import IndependentPosterior, PriorCollection
from pgmodels.priors.inducing.representation import InducingPrior
from pgmodels.priors.lapack_loops import over_states
from pgmodels.runtime.jit import compiled


def posterior(
    whole: StochasticProblem, naturals: Sequence[NaturalParameters], vector: Array, X: Float[Array, "1 d"]
) -> IndependentPosterior | BlockPosterior:
    """q as a posterior without data, where every group is by inducing inputs; ``X`` is any input."""
    prior = (_prior_at(whole, vector, X) if whole.learns else whole.prior).resized(0)
    h = jnp.zeros((0, whole.objective.num_latents))
    if whole.objective.predictors is not None:
        roots, centres = zip(*map(_solved, naturals), strict=True)
        centre = scatter_blocks(prior, whole.blocks, centres)
        W = jnp.zeros((*h.shape, h.shape[1]))
        return BlockPosterior(prior, h, W, centre, roots, jnp.zeros(()), whole.blocks)
    every = _each_solved(naturals[0] if whole.sample is not None else tuple(naturals))
    groups = [
        group.posterior(*jax.tree.map(itemgetter(own), every))
        for group, own in zip(prior.groups, prior.slices(), strict=True)
        if isinstance(group, InducingPrior)
    ]
    return IndependentPosterior(prior, Sites(h, h), tuple(groups))


@partial(compiled, optimise=False)
def _prior_at(whole: StochasticProblem, vector: Array, X: Float[Array, "1 d"]) -> PriorCollection:
    return whole.prior_at(vector, X)


@partial(compiled, optimise=False)
def _solved(naturals: NaturalParameters) -> tuple[Array, Array]:
    return solved(naturals)


@partial(compiled, optimise=False)
def _each_solved(naturals: NaturalParameters | tuple[NaturalParameters, ...]) -> tuple[Array, Array]:
    """Of each latent, along a first axis; there already of a sample of them."""
    stacked = isinstance(naturals, NaturalParameters)
    return over_states(solved, naturals if stacked else jax.tree.map(lambda *own: jnp.stack(own), *naturals))
