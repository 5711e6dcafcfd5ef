"""What steps on batches lead to as a posterior: q at the inducing inputs alone."""

from collections.abc import Sequence
from functools import partial
from operator import itemgetter

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pgmodels.compiled import compiled
from pgmodels.inference.natural_gradient import Sparse
from pgmodels.inference.naturals import Naturals, solved
from pgmodels.latent.blocks import scatter_blocks
from pgmodels.latent.coupled import CoupledPosterior
from pgmodels.latent.inducing import InducingPrior
from pgmodels.latent.joint import JointPosterior, JointPrior
from pgmodels.latent.protocol import Sites
from pgmodels.latent.sequential import over_states


def posterior(
    whole: Sparse, naturals: Sequence[Naturals], vector: Array, X: Float[Array, "1 d"]
) -> JointPosterior | CoupledPosterior:
    """q as a posterior without data, where every group is by inducing inputs; ``X`` is any input."""
    prior = (_prior_at(whole, vector, X) if whole.learns else whole.prior).resized(0)
    h = jnp.zeros((0, whole.objective.num_latents))
    if whole.objective.predictors is not None:
        roots, centres = zip(*map(_solved, naturals), strict=True)
        centre = scatter_blocks(prior, whole.blocks, centres)
        W = jnp.zeros((*h.shape, h.shape[1]))
        return CoupledPosterior(prior, h, W, centre, roots, jnp.zeros(()), whole.blocks)
    every = _each_solved(naturals[0] if whole.sample is not None else tuple(naturals))
    groups = [
        group.posterior(*jax.tree.map(itemgetter(own), every))
        for group, own in zip(prior.groups, prior.slices(), strict=True)
        if isinstance(group, InducingPrior)
    ]
    return JointPosterior(prior, Sites(h, h), tuple(groups))


@partial(compiled, lightly=True)
def _prior_at(whole: Sparse, vector: Array, X: Float[Array, "1 d"]) -> JointPrior:
    return whole.prior_at(vector, X)


@partial(compiled, lightly=True)
def _solved(naturals: Naturals) -> tuple[Array, Array]:
    return solved(naturals)


@partial(compiled, lightly=True)
def _each_solved(naturals: Naturals | tuple[Naturals, ...]) -> tuple[Array, Array]:
    """Of each latent, along a first axis; there already of a sample of them."""
    stacked = isinstance(naturals, Naturals)
    return over_states(solved, naturals if stacked else jax.tree.map(lambda *own: jnp.stack(own), *naturals))
