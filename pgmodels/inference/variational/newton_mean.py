"""Maximisation of the bound over the mean of q(f) with fixed covariance: Newton-CG with products with the factor.

A sweep's step in the mean is limited by the sites' precisions, which are far above the bound's curvature for confident
classes, so that sweeps alone need thousands of iterations. With inducing inputs a product with the prior's factor costs
a small share of a sweep.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pgmodels.inference.problem import Problem
from pgmodels.numerics.conjugate_gradients import conjugate_gradients
from pgmodels.priors.base import Sites
from pgmodels.priors.chunking import HELD
from pgmodels.priors.linear_predictor import push_values

# Maximum Newton steps and relative gradient norm to stop at; maximum products per step and relative residual to stop
# at. The optimum need not be exact: the variances change in the next sweep.
_STEPS, _ENOUGH = 3, 0.1
_PRODUCTS, _LEFT = 100, 0.05
# Maximum number of halvings of a step that lowers the bound.
_HALVINGS = 20


class _Place(NamedTuple):
    """Concatenated whitened coordinates of the latents' mean, negative bound there, and squared gradient norms."""

    x: Float[Array, " D"]
    value: Float[Array, ""]
    first: Float[Array, ""]
    square: Float[Array, ""]
    taken: Int[Array, ""]


class _Trial(NamedTuple):
    share: Float[Array, ""]
    value: Float[Array, ""]


def can_ascend(problem: Problem) -> bool:
    """Whether products with all factors are much cheaper than sweeps, and the rows' curvatures fit into memory."""
    rows, size = problem.prior.num_rows, problem.objective.size
    thin = all(group.has_cheap_products for group in problem.prior.groups)
    return thin and not problem.coupled and rows * size**2 <= HELD


def at_best_mean(
    problem: Problem, mean: Float[Array, "n p"], variance: Float[Array, "n p"], sites: Sites
) -> tuple[Float[Array, "n p"], Sites]:
    """The predictors' mean that maximises the bound at fixed variances, and its sites, precisions unchanged.

    ``mean`` is the mean implied by ``sites``. The bound never falls.
    """
    predictors = problem.objective.predictors
    Phi = None if predictors is None else predictors.matrix(problem.y, problem.parameters)

    def at(x: Float[Array, " D"]) -> Float[Array, "n p"]:
        f = problem.prior.latents(problem.prior.unflatten(x))
        return f if Phi is None else push_values(Phi, f)

    def bound(m: Float[Array, "n p"]) -> Float[Array, ""]:
        return problem.local_bound(m, variance)

    def value(x: Float[Array, " D"]) -> Float[Array, ""]:
        return 0.5 * x @ x - bound(at(x))

    coordinates = jnp.zeros(sum(problem.prior.ranks), mean.dtype)
    _, across = jax.linearize(at, coordinates)
    back = jax.linear_transpose(across, coordinates)
    # The mean that sites imply has coordinates A (h - w m).
    (x,) = back(sites.potential - sites.precision * mean)

    def unfinished(now: _Place) -> Bool[Array, ""]:
        return (now.taken < _STEPS) & (now.square > _ENOUGH**2 * now.first)

    def step(now: _Place) -> _Place:
        slope, bend = jax.linearize(jax.grad(bound), at(now.x))
        units = jnp.broadcast_to(jnp.eye(mean.shape[1])[:, None], (mean.shape[1], *mean.shape))
        curved = jax.vmap(bend)(units)
        gradient = now.x - back(slope)[0]
        square = gradient @ gradient

        def product(z: Float[Array, " D"], raw: Float[Array, " D"]) -> Float[Array, " D"]:
            del raw
            return z - back(jnp.einsum("cip,ic->ip", curved, across(z)))[0]

        solution = conjugate_gradients(product, -gradient, lambda residual: residual, _LEFT, _PRODUCTS)
        # Steepest descent if the first direction has no positive curvature.
        way = jnp.where((solution.taken == 1) & ~solution.positive, -gradient, solution.x)

        def trial(share: Array) -> _Trial:
            return _Trial(share, value(now.x + share * way))

        accepted = jax.lax.while_loop(
            lambda tried: ~(tried.value <= now.value) & (tried.share > 0.5**_HALVINGS),
            lambda tried: trial(0.5 * tried.share),
            trial(jnp.ones((), mean.dtype)),
        )
        rises = accepted.value <= now.value
        return _Place(
            jnp.where(rises, now.x + accepted.share * way, now.x),
            jnp.where(rises, accepted.value, now.value),
            jnp.where(now.taken == 0, square, now.first),
            jnp.where(rises, square, 0.0),
            now.taken + 1,
        )

    infinite = jnp.full((), jnp.inf, mean.dtype)
    best = jax.lax.while_loop(
        unfinished, step, _Place(x, value(x), jnp.ones_like(infinite), infinite, jnp.zeros((), int))
    )
    moved = at(best.x)
    return moved, Sites(jax.grad(bound)(moved) + sites.precision * moved, sites.precision)
