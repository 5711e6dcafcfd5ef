"""The equations of linear response solved by products with the data's factor, without an n x n matrix."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

# Relative error in the norm of Q, and maximum iterations; a stable optimum needs about ten.
_TOLERANCE, _ITERATIONS = 1e-8, 200


class _Solution(NamedTuple):
    """State of conjugate gradients: Q w, the residual r, the direction p and Q p; (n, R) each.

    ``size`` is r^T Q r; ``positive`` says whether the equations have been positive definite so far.
    """

    moved: Array
    residual: Array
    direction: Array
    response: Array
    size: Float[Array, ""]
    taken: Int[Array, ""]
    positive: Bool[Array, ""]


def by_products(
    U: Float[Array, "D n P"],
    right: Float[Array, "D n R"],
    curved: Float[Array, "n R R"],
    pairs: Sequence[tuple[int, int]],
) -> tuple[Float[Array, "D D"], Float[Array, ""]]:
    """b (I - Q B)^-1 Q b^T for the rows of b, ``right``, and the largest residual of a row, relative to b^T Q b.

    By conjugate gradients: in the inner product of Q, I - B Q is symmetric, and positive definite at a stable optimum;
    the residual is infinite if it is not. Q, the covariance of the moments ``pairs`` under q, is applied to weights x
    as H = sum of x_pq (U_p U_q^T + U_q U_p^T) over the data, followed by U_p^T H U_q at each: 4 n P D^2 operations
    (math: section 5b).
    """
    rank, n, size = U.shape
    rows, columns = (np.array(part) for part in zip(*pairs, strict=True))
    flat = U.reshape(rank, n * size)

    def covariances(x: Float[Array, "n R"]) -> Float[Array, "n R"]:
        weights = jnp.zeros((n, size, size), U.dtype).at[:, rows, columns].add(x).at[:, columns, rows].add(x)
        H = jnp.einsum("dip,ipq->diq", U, weights).reshape(rank, n * size) @ flat.T
        turned = (H @ flat).reshape(U.shape)
        return jnp.sum(U[:, :, rows] * turned[:, :, columns], axis=0)

    def solved(b: Float[Array, "n R"]) -> tuple[Float[Array, "n R"], Float[Array, ""]]:
        first = covariances(b)
        size = jnp.sum(b * first)
        enough = _TOLERANCE**2 * size

        def unfinished(now: _Solution) -> Bool[Array, ""]:
            return (now.size > enough) & (now.taken < _ITERATIONS) & now.positive

        def step(now: _Solution) -> _Solution:
            image = now.direction - jnp.einsum("irs,is->ir", curved, now.response)
            length = jnp.sum(now.response * image)
            share = jnp.where(length > 0.0, now.size / length, 0.0)
            residual = now.residual - share * image
            response = covariances(residual)
            new_size = jnp.sum(residual * response)
            turn = new_size / now.size
            return _Solution(
                now.moved + share * now.response,
                residual,
                residual + turn * now.direction,
                response + turn * now.response,
                new_size,
                now.taken + 1,
                length > 0.0,
            )

        start = _Solution(jnp.zeros_like(b), b, b, first, size, jnp.zeros((), int), jnp.ones((), bool))
        end = jax.lax.while_loop(unfinished, step, start)
        relative = jnp.sqrt(jnp.maximum(end.size, 0.0) / jnp.where(size > 0.0, size, 1.0))
        return end.moved, jnp.where(end.positive, relative, jnp.inf)

    def row(b: Float[Array, "n R"]) -> tuple[Float[Array, " D"], Float[Array, ""]]:
        moved, residual = solved(b)
        return jnp.einsum("dir,ir->d", right, moved), residual

    responses, residuals = jax.lax.map(row, right)
    return responses, jnp.max(residuals)
