"""Rows of data filled up to one of few sizes, so that data sets of another length run the programs of the last.

Rows that fill up come after the data. They repeat the first row, and no site speaks of them.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from pgmodels.numerics.quadrature import power_of_two

# Sizes between two powers of two, and the least distance of two of them.
_SIZES, _STEP = 8, 8
# So many rows compute longer than a program compiles, and a copy of theirs would be felt.
_MANY = 16384


def padded_size(count: int) -> int:
    """The smallest of the sizes that is not below ``count``: more by an eighth at most, or by seven rows.

    Beyond 16,384 rows each number is its own size.
    """
    if count > _MANY:
        return count
    step = max(_STEP, power_of_two(count) // (2 * _SIZES))
    return -(-count // step) * step


def pad_rows(array: Shaped[Array, "n *rest"] | np.ndarray, size: int) -> np.ndarray:
    """The first rows, or all of them and the first again and again."""
    array = np.asarray(array)
    if size <= len(array):
        return array[:size]
    return np.concatenate([array, np.broadcast_to(array[:1], (size - len(array), *array.shape[1:]))])


def pad_zeros(array: Float[Array, "n *rest"] | np.ndarray, size: int) -> np.ndarray:
    """The first rows, or all of them and zeros."""
    array = np.asarray(array)[:size]
    return np.concatenate([array, np.zeros((size - len(array), *array.shape[1:]), array.dtype)])


def pad_square(matrix: Float[Array, "n n"] | np.ndarray, size: int, diagonal: float) -> np.ndarray:
    """The leading block, or the matrix with entries of one value after it on the diagonal."""
    matrix = np.asarray(matrix)[:size, :size]
    if len(matrix) == size:
        return matrix
    padded = np.diag(np.full(size, diagonal, matrix.dtype))
    padded[: len(matrix), : len(matrix)] = matrix
    return padded


def row_mask_of(count: int, size: int) -> np.ndarray:
    """1 for data and 0 for rows that fill up, (size,)."""
    return (np.arange(size) < count).astype(np.float64)


def masked(row_mask: Float[Array, " n"] | None, terms: Float[Array, "n *rest"]) -> Float[Array, "n *rest"]:
    """Terms of each row, zero where it is no datum; ``row_mask`` is None where all are."""
    if row_mask is None:
        return terms
    return jnp.where(row_mask.reshape(-1, *[1] * (terms.ndim - 1)) > 0, terms, 0.0)
