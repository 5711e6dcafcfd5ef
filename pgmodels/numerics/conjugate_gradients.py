"""Conjugate gradients that stop where the matrix turns out not to be positive definite."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Solution(NamedTuple):
    """The solution, its relative residual in the norm of the preconditioner, and the number of products.

    ``positive`` says whether all directions had positive curvature; the first that had none ended the iterations.
    """

    x: Array
    residual: Float[Array, ""]
    taken: Int[Array, ""]
    positive: Bool[Array, ""]


class _State(NamedTuple):
    """x, the residual r, the direction Q p and p itself, and r^T Q r."""

    x: Array
    residual: Array
    direction: Array
    raw: Array
    size: Float[Array, ""]
    taken: Int[Array, ""]
    positive: Bool[Array, ""]


def conjugate_gradients(
    product: Callable[[Array, Array], Array],
    b: Array,
    precondition: Callable[[Array], Array],
    tolerance: float,
    max_products: int,
) -> Solution:
    """The x with M x = b for a symmetric M, by products, to a relative residual; arrays of any shape. Traceable.

    ``product(Q p, p)`` is M Q p, where Q is the symmetric and positive preconditioner: M may have a term Q^-1.
    Source: Hestenes and Stiefel 1952.
    """
    first = precondition(b)
    size = jnp.sum(b * first)

    def unfinished(now: _State) -> Bool[Array, ""]:
        return (now.size > tolerance**2 * size) & (now.taken < max_products) & now.positive

    def step(now: _State) -> _State:
        image = product(now.direction, now.raw)
        curvature = jnp.sum(now.direction * image)
        positive = curvature > 0.0
        length = jnp.where(positive, now.size / jnp.where(positive, curvature, 1.0), 0.0)
        residual = now.residual - length * image
        conditioned = precondition(residual)
        new_size = jnp.sum(residual * conditioned)
        turn = new_size / now.size
        return _State(
            now.x + length * now.direction,
            residual,
            conditioned + turn * now.direction,
            residual + turn * now.raw,
            new_size,
            now.taken + 1,
            positive,
        )

    start = _State(jnp.zeros_like(b), b, first, b, size, jnp.zeros((), int), jnp.ones((), bool))
    end = jax.lax.while_loop(unfinished, step, start)
    relative = jnp.sqrt(jnp.maximum(end.size, 0.0) / jnp.where(size > 0.0, size, 1.0))
    return Solution(end.x, relative, end.taken, end.positive)
