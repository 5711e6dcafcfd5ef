"""Distances between rows of inputs."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from pgmodels.data.arrays import distinct_rows
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import as_array

Inputs = Array | np.ndarray

# At most this many rows are used for the median distance: half a million pairs, well below a second.
MEDIAN_ROWS = 1000
UNROLLED_COLUMNS = 32


def median_distance(X: Float[Inputs, "n d"]) -> np.ndarray:
    """The median Euclidean distance between the distinct rows of X; 1.0 if there is only one.

    If there are more than ``MEDIAN_ROWS``, that many evenly spaced rows are used.
    """
    from scipy.spatial.distance import pdist

    rows = np.asarray(X, dtype=np.float64)
    rows = rows[distinct_rows(rows)[0]]
    if len(rows) > MEDIAN_ROWS:
        rows = rows[np.linspace(0, len(rows) - 1, MEDIAN_ROWS).astype(int)]
    distances = pdist(rows)
    distances = distances[distances > 0]
    return np.asarray(np.median(distances) if distances.size else 1.0)


@jax.custom_jvp
@compiled
def squared_distance(X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """Squared Euclidean distances, exactly 0 between equal rows; needs no memory beyond the result."""

    start = jnp.zeros((X.shape[0], Z.shape[0]), jnp.result_type(X, Z, jnp.float32))
    # An unrolled sum is two to three times faster than a loop; its compile time grows with the columns.
    if X.shape[1] <= UNROLLED_COLUMNS:
        return sum((jnp.square(x[:, None] - z[None, :]) for x, z in zip(X.T, Z.T, strict=True)), start)
    return jax.lax.scan(lambda total, c: (total + jnp.square(c[0][:, None] - c[1][None, :]), None), start, (X.T, Z.T))[
        0
    ]


@squared_distance.defjvp
def _squared_distance_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    # d|x - z|² = 2 (x - z)·(dx - dz), in products of matrices: reverse mode then stores no (n, m, d) array.
    (X, Z), (dX, dZ) = primals, tangents
    # Centre first: far from the origin the products would cancel.
    X, Z = X - Z[:1], Z - Z[:1]
    tangent = jnp.sum(X * dX, 1)[:, None] - X @ dZ.T - dX @ Z.T + jnp.sum(Z * dZ, 1)[None, :]
    return squared_distance(X, Z), 2.0 * tangent


def scaled_squared_distance(X: Inputs, Z: Inputs, lengthscale: Array) -> Float[Array, "n m"]:
    """Squared distances scaled by one lengthscale or one per column."""
    X, Z = as_array(X), as_array(Z)
    if lengthscale.ndim:
        # Centre first: far from the origin the rounding of the division may exceed the distance.
        X, Z = X - Z[:1], Z - Z[:1]
        return squared_distance(X / lengthscale, Z / lengthscale)
    return squared_distance(X, Z) / lengthscale**2
