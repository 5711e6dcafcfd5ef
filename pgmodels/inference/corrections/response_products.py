"""The equations of linear response solved by products with the data's factor, without an n x n matrix."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pgmodels.numerics.conjugate_gradients import conjugate_gradients

# Relative error in the norm of Q, and maximum iterations; a stable optimum needs about ten.
_TOLERANCE, _ITERATIONS = 1e-8, 200


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

    def image(moved: Float[Array, "n R"], x: Float[Array, "n R"]) -> Float[Array, "n R"]:
        return x - jnp.einsum("irs,is->ir", curved, moved)

    def row(b: Float[Array, "n R"]) -> tuple[Float[Array, " D"], Float[Array, ""]]:
        solution = conjugate_gradients(image, b, covariances, _TOLERANCE, _ITERATIONS)
        return jnp.einsum("dir,ir->d", right, solution.x), jnp.where(solution.positive, solution.residual, jnp.inf)

    responses, residuals = jax.lax.map(row, right)
    return responses, jnp.max(residuals)
