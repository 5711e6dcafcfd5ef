"""The Gaussian that the sampler turns about: a fixed point without augmentation, near the posterior."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.integration import at_a_time, normal_nodes
from pgmodels.latent.coupled import CoupledPosterior, Marginals, choose_blocks, condition_coupled
from pgmodels.latent.joint import JointPrior
from pgmodels.latent.rows import of_data
from pgmodels.latent.sequential import compiled_sampler
from pgmodels.precision import as_array

# Fixed-point steps until no mean moves by more than the tolerance, in standard deviations: the result is a proposal,
# whose last digits buy nothing.
_MAX_STEPS = 40
_TOLERANCE = 0.02
_STEP = 0.7
# With one latent a datum, and with more.
_NODES = {1: 32, 2: 64}


def fit_surrogate(
    augmentation: Augmentation,
    prior: JointPrior,
    y: Any,
    live: Any,
    parameters: Any,
    start: CoupledPosterior | None = None,
) -> tuple[CoupledPosterior, Marginals]:
    """The fixed point h = E[g] + W m, W = -E[dg/df] (where positive semi-definite), g the gradient of log p(y | f).

    ``live`` says which rows are data, None where all are; the others get no factors.
    Also returns the marginals at which its factors were made. ``start`` is one of another prior whose factors are near.
    Source: Opper and Archambeau 2009. With one latent a datum, E[dg/df] = E[(f - m) g] / v, which needs no second
    derivative and so sees kinks; with several it is the mean Hessian.
    """
    surrogate = _with_factors_of(prior, y, start)
    # Before the first step the means are nowhere, so that it cannot be the last.
    before: Any = np.full((y.shape[0], augmentation.num_latents), np.inf)
    for step in range(_MAX_STEPS):
        length = _STEP if start is not None or step > 0 else 1.0
        surrogate, marginals, moved = _refine(augmentation, prior, y, live, parameters, surrogate, before, length)
        before = marginals[0]
        if float(moved) <= _TOLERANCE:
            break
    return surrogate, marginals


@compiled_sampler
def _with_factors_of(prior: JointPrior, y: Any, other: CoupledPosterior | None) -> CoupledPosterior:
    if other is not None:
        return condition_coupled(prior, other.potential, other.precision, other.blocks)
    zeros = jnp.zeros((y.shape[0], sum(prior.sizes)))
    return condition_coupled(prior, zeros, zeros[:, :, None] * zeros[:, None, :], choose_blocks(prior))


@partial(compiled_sampler, static_argnames="augmentation")
def _refine(
    augmentation: Augmentation,
    prior: JointPrior,
    y: Any,
    live: Any,
    parameters: Any,
    surrogate: CoupledPosterior,
    before: Any,
    step: Any,
) -> tuple[CoupledPosterior, Marginals, Any]:
    """One step of the given length; the marginals it starts from; how far, in deviations, the means are from others."""
    h, W, blocks = surrogate.potential, surrogate.precision, surrogate.blocks
    marginals = surrogate.marginals()
    deviation = jnp.sqrt(jnp.diagonal(marginals[1], axis1=1, axis2=2))
    moved = jnp.max(jnp.abs(marginals[0] - before) / deviation)
    h_new, W_new = gaussian_factors(augmentation, y, live, parameters, marginals, blocks)
    h, W = h + step * (h_new - h), W + step * (W_new - W)
    return condition_coupled(prior, h, W, blocks), marginals, moved


def gaussian_factors(
    augmentation: Augmentation,
    y: Any,
    live: Any,
    parameters: Any,
    marginals: Marginals,
    blocks: tuple[tuple[int, ...], ...],
) -> tuple[Any, Any]:
    """The factors h (n, L) and W (n, L, L) that stand for p(y | f) where f has the given marginals."""
    size = augmentation.num_latents
    nodes, weights = map(as_array, normal_nodes(size, num_nodes(size)))
    gradient, curvature = _expectations(augmentation, y, parameters, *marginals, nodes, weights)
    W = _within_blocks(_positive_part(curvature), blocks)
    h = gradient + jnp.einsum("ilk,ik->il", W, marginals[0])
    return of_data(live, h), of_data(live, W)


def _expectations(
    augmentation: Augmentation, y: Any, parameters: Any, m: Any, V: Any, nodes: Any, weights: Any
) -> tuple[Any, Any]:
    """E[g] (n, L) and -E[dg/df] (n, L, L) under N(m, V)."""
    size = augmentation.num_latents
    half = jnp.sqrt(V) if size == 1 else jnp.linalg.cholesky(V + 1e-12 * jnp.eye(size))

    def log_density(f: Any) -> Any:
        return jnp.sum(augmentation.log_density(y, f, parameters))

    def at(node: Any) -> tuple[Any, Any]:
        offset = jnp.einsum("ilk,k->il", half, node)
        gradient, product = jax.linearize(jax.grad(log_density), m + offset)
        if size == 1:
            curvature = -(offset * gradient)[..., None] / V
        else:
            # A datum's latents touch its own term alone, so one direction serves all data at once.
            columns = [product(jnp.zeros_like(m).at[:, latent].set(1.0)) for latent in range(size)]
            curvature = -jnp.stack(columns, axis=-1)
        # A node so far out that the density underflows there has next to no weight, and no say.
        return jnp.where(jnp.isfinite(gradient), gradient, 0.0), jnp.where(jnp.isfinite(curvature), curvature, 0.0)

    gradients, curvatures = jax.lax.map(at, nodes, batch_size=min(at_a_time(m.size * size), len(nodes)))
    return jnp.einsum("s,sil->il", weights, gradients), jnp.einsum("s,silk->ilk", weights, curvatures)


def _positive_part(W: Any) -> Any:
    """The nearest positive semi-definite matrix of each datum."""
    if W.shape[-1] == 1:
        return jnp.maximum(W, 0.0)
    values, vectors = jnp.linalg.eigh(0.5 * (W + jnp.swapaxes(W, 1, 2)))
    return jnp.einsum("ilk,ik,imk->ilm", vectors, jnp.maximum(values, 0.0), vectors)


def _within_blocks(W: Any, blocks: tuple[tuple[int, ...], ...]) -> Any:
    mask = np.zeros(W.shape[-2:])
    for block in blocks:
        mask[np.ix_(block, block)] = 1.0
    return W * mask


def num_nodes(size: int) -> int:
    """How many nodes there are for so many latents a datum."""
    return _NODES[min(size, 2)]
