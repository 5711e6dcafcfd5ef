"""Padding of data to one of few sizes, so that data sets of similar length share compiled programs.

Padding rows follow the data, repeat the first row and have weight 0: no term in a sum over the data, and zero sites.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from pgmodels.numerics.quadrature import power_of_two
from pgmodels.priors.base import Sites
from pgmodels.runtime.x64 import as_array

# Number of sizes between two powers of two, and the smallest step between sizes.
_SIZES, _STEP = 8, 8
# Above this many rows the computation takes longer than the compilation, and a padded copy would be expensive.
_MANY = 16384


def padded_size(count: int) -> int:
    """The smallest of the sizes that is not below ``count``: larger by at most an eighth, or by at most seven rows.

    Beyond 16,384 rows each number is its own size.
    """
    if count > _MANY:
        return count
    step = max(_STEP, power_of_two(count) // (2 * _SIZES))
    return -(-count // step) * step


def pad_rows(array: Shaped[Array, "n *rest"] | np.ndarray, size: int) -> np.ndarray:
    """Truncate to ``size`` rows, or pad by repeating the first row."""
    array = np.asarray(array)
    if size <= len(array):
        return array[:size]
    return np.concatenate([array, np.broadcast_to(array[:1], (size - len(array), *array.shape[1:]))])


def pad_zeros(array: Float[Array, "n *rest"] | np.ndarray, size: int) -> np.ndarray:
    """Truncate to ``size`` rows, or pad with zeros."""
    array = np.asarray(array)[:size]
    return np.concatenate([array, np.zeros((size - len(array), *array.shape[1:]), array.dtype)])


def pad_sites(sites: Sites, size: int) -> Sites:
    """The sites truncated to ``size`` rows, or padded with zero sites."""
    return Sites(*(as_array(pad_zeros(part, size)) for part in sites))


def pad_square(matrix: Float[Array, "n n"] | np.ndarray, size: int, diagonal: float) -> np.ndarray:
    """The leading block of ``size``, or the matrix padded with ``diagonal`` on the diagonal."""
    matrix = np.asarray(matrix)[:size, :size]
    if len(matrix) == size:
        return matrix
    padded = np.diag(np.full(size, diagonal, matrix.dtype))
    padded[: len(matrix), : len(matrix)] = matrix
    return padded


def row_mask_of(count: int, size: int) -> np.ndarray:
    """1 for data and 0 for padding, (size,)."""
    return (np.arange(size) < count).astype(np.float64)


def masked(row_mask: Float[Array, " n"] | None, terms: Float[Array, "n *rest"]) -> Float[Array, "n *rest"]:
    """Terms of each row, zero where ``row_mask`` is; None means no padding."""
    if row_mask is None:
        return terms
    return jnp.where(row_mask.reshape(-1, *[1] * (terms.ndim - 1)) > 0, terms, 0.0)


def weighted(row_weights: Float[Array, " n"] | None, terms: Float[Array, "n *rest"]) -> Float[Array, "n *rest"]:
    """Terms of each row times its weight, zero for padding even if not finite; None means weights of 1."""
    if row_weights is None:
        return terms
    return masked(row_weights, row_weights.reshape(-1, *[1] * (terms.ndim - 1)) * terms)
