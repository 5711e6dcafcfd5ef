"""Predictors z = Φ f at the data: marginals are pushed from latents to predictors, sites pulled back."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from pgmodels.priors.base import Sites
from pgmodels.priors.block_posterior import condition_blocks
from pgmodels.priors.chain_posterior import condition_chains, decoupled
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.posterior import DependentPosterior


def push_values(Phi: Float[Array, "n P L"], f: Float[Array, "*batch n L"]) -> Float[Array, "*batch n P"]:
    """The predictors of latents."""
    return jnp.einsum("ipl,...il->...ip", Phi, f)


def push_moments(
    Phi: Float[Array, "n P L"], mean: Float[Array, "n L"], covariance: Float[Array, "n L L"]
) -> tuple[Float[Array, "n P"], Float[Array, "n P"]]:
    """Mean and variance of the predictors from the latents of each datum."""
    return push_values(Phi, mean), jnp.einsum("ipl,ilk,ipk->ip", Phi, covariance, Phi)


def push_covariance(Phi: Float[Array, "n P L"], covariance: Float[Array, "n L L"]) -> Float[Array, "n P P"]:
    """The covariance of the predictors of each datum from the covariance of its latents."""
    return jnp.einsum("ipl,ilk,iqk->ipq", Phi, covariance, Phi)


def condition_predictors(
    prior: PriorCollection, Phi: Float[Array, "n P L"], sites: Sites, blocks: tuple[tuple[int, ...], ...]
) -> DependentPosterior:
    """The posterior of the latents given sites on predictors; ``blocks`` are the latents that the sites couple."""
    if prior.chained and not sites.coupled:
        return condition_chains(prior, Phi, sites)
    return condition_jointly(prior, pull_sites(Phi, sites), blocks)


def condition_jointly(prior: PriorCollection, sites: Sites, blocks: tuple[tuple[int, ...], ...]) -> DependentPosterior:
    """The posterior given sites (n, L), (n, L, L) on the latents."""
    return condition_chains(prior, *decoupled(sites)) if prior.chained else condition_blocks(prior, sites, blocks)


def pull_sites(Phi: Float[Array, "n P L"], sites: Sites) -> Sites:
    """Sites on predictors as sites on the latents, coupled."""
    potential = jnp.einsum("ipl,ip->il", Phi, sites.potential)
    if sites.coupled:
        return Sites(potential, jnp.einsum("ipl,ipq,iqk->ilk", Phi, sites.precision, Phi))
    return Sites(potential, jnp.einsum("ipl,ip,ipk->ilk", Phi, sites.precision, Phi))
