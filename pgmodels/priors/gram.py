"""The kernel matrix at the data, outside ``jit``: checks, the Cholesky root with jitter, pivoted Cholesky."""

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import numpy as np
import scipy
from jaxtyping import Array

from pgmodels.runtime.jit import compiled

JITTERS = (0.0, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6)
TOLERANCE = JITTERS[1]
RANK_MULTIPLE = 16
# Rows per strip of blocked matrix operations.
STRIP = 128
# Pivots below this fraction of the largest variance are rounding error.
ROUNDING = 4e-15


@compiled
def gram(kernel: Callable[[Array, Array], Array], X: Array) -> Array:
    """kernel(X, X)."""
    return kernel(X, X)


class PivotedFactor(NamedTuple):
    """The A (r, n) with K = A^T A, and its r pivots."""

    A: np.ndarray
    pivots: np.ndarray

    @property
    def padded_rank(self) -> int:
        """The rank rounded up to a multiple of RANK_MULTIPLE."""
        return -(-max(len(self.A), 1) // RANK_MULTIPLE) * RANK_MULTIPLE


def pivoted_cholesky(K: np.ndarray, tolerance: float) -> PivotedFactor:
    """Pivoted Cholesky factorisation of K, up to a tolerance relative to the largest variance."""
    # K is symmetric: its transpose is in LAPACK's column-major order.
    upper, pivots, rank, info = scipy.linalg.lapack.dpstrf(K.T, tol=tolerance * np.max(np.diagonal(K)), lower=0)
    if info < 0:
        raise RuntimeError(f"LAPACK's dpstrf rejected its argument {-info}.")
    A = np.empty((rank, len(K)))
    for begin in range(0, rank, STRIP):
        strip = np.s_[begin : begin + STRIP]
        A[strip, pivots - 1] = np.triu(upper[:rank][strip], begin)
    return PivotedFactor(A, pivots[:rank] - 1)


@compiled
def _row(kernel: Callable[[Array, Array], Array], x: Array, X: Array) -> Array:
    return kernel(x[None], X)[0]


def pivoted_columns(kernel: Any, X: Array, tolerance: float, most: int) -> PivotedFactor | None:
    """``pivoted_cholesky`` of kernel(X, X) from the rows of its pivots alone; None if it needs more than ``most``."""
    variances = np.array(kernel.diagonal(X))
    least = tolerance * np.max(variances)
    A = np.empty((most, len(X)))
    pivots: list[int] = []
    while np.max(variances) > least:
        if len(pivots) == most:
            return None
        r, pivot = len(pivots), int(np.argmax(variances))
        A[r] = (np.asarray(_row(kernel, X[pivot], X)) - A[:r, pivot] @ A[:r]) / np.sqrt(variances[pivot])
        variances = variances - A[r] ** 2
        # Rounding may leave as much of a pivot as of others.
        variances[pivot] = 0.0
        pivots.append(pivot)
    return PivotedFactor(A[: len(pivots)], np.array(pivots, dtype=int))


def jittered_root(
    kernel: Any, K: np.ndarray, jitters: tuple[float, ...] = JITTERS
) -> tuple[np.ndarray, np.ndarray, float]:
    """K + jitter I, its root and the jitter: the first, relative to the mean variance, with a Cholesky root.

    K is modified in place. Raises ValueError if no jitter suffices.
    """
    variances = np.diagonal(K).copy()
    for relative in jitters:
        jitter = relative * float(np.mean(variances))
        np.fill_diagonal(K, variances + jitter)
        try:
            return K, scipy.linalg.cholesky(K, lower=True, check_finite=False), jitter
        except scipy.linalg.LinAlgError:
            continue
    np.fill_diagonal(K, variances)
    _reject(kernel, f"not positive semi-definite: its smallest eigenvalue is {np.linalg.eigvalsh(K)[0]:.3g}")


def check_gram(kernel: Any, K: np.ndarray) -> None:
    """Raise ValueError if K has a wrong shape, is not finite, has negative variances or is not symmetric."""
    if K.ndim != 2 or K.shape[0] != K.shape[1] or not K.size:
        _reject(kernel, f"of shape {K.shape} where a square matrix of the data is expected")
    if not np.all(np.isfinite(K)):
        row, column = np.argwhere(~np.isfinite(K))[0]
        _reject(kernel, f"not finite: entry ({row}, {column}) is {K[row, column]}")
    scale = np.max(np.abs(np.diagonal(K)))
    if np.min(np.diagonal(K)) < 0 or scale == 0:
        row = int(np.argmin(np.diagonal(K)))
        _reject(kernel, f"not a covariance: the variance at row {row} is {K[row, row]:.3g}")
    if _asymmetry(K) > TOLERANCE * scale:
        row, column = np.unravel_index(np.argmax(np.abs(K - K.T)), K.shape)
        _reject(
            kernel,
            f"not symmetric: entry ({row}, {column}) is {K[row, column]:.6g} "
            f"and entry ({column}, {row}) is {K[column, row]:.6g}",
        )


def _asymmetry(K: np.ndarray) -> float:
    """The largest difference between an entry and its mirror image; in strips that fit the cache."""
    ends = range(STRIP, len(K) + STRIP, STRIP)
    return max(float(np.max(np.abs(K[end - STRIP : end, :end] - K[:end, end - STRIP : end].T))) for end in ends)


def _reject(kernel: Any, fault: str) -> NoReturn:
    name = getattr(kernel, "__name__", type(kernel).__name__)
    raise ValueError(
        f"The matrix of kernel {name} at the data is {fault}. Expected a finite, symmetric, positive semi-definite "
        "matrix: check its formula and hyperparameters and the scale of X, or add a White kernel to it."
    )
