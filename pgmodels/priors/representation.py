"""In which form a prior is held at the data, and how it is bound to them."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float
from scipy.linalg import LinAlgError, cholesky
from scipy.linalg.lapack import dpstrf

from pgmodels.parameters.parameter import bare
from pgmodels.priors.base import LatentPrior
from pgmodels.priors.dense import DensePrior, covariance_prior, exact_root, whitened_prior
from pgmodels.priors.low_rank import LowRankPrior
from pgmodels.priors.padding import pad_rows, padded_size
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import as_array

JITTERS = (0.0, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6)
TOLERANCE = JITTERS[1]
RANK_MULTIPLE = 16
# Bytes, in squares of the number of inputs, while a covariance is made and factorised: itself, its root and one copy.
_MADE = 24.0
# Rows of a matrix that are compared with its columns at a time.
_STRIP = 128
# Pivots below so much of the largest variance are made of rounding.
ROUNDING = 4e-15


class Representation(ABC):
    """How a group of latents is held at the data: ``pgm.GP(kernel, form=...)``.

    A form of one's own is a hashable object with ``bind``, and with ``traced`` where hyperparameters are learned or
    sampled. Where it ``can_pad`` they take ``row_mask``, see pgmodels.priors.padding, and what it binds can be
    ``resized``.
    """

    can_pad: ClassVar[bool] = False
    # Whether ``traced`` accepts few inputs that determine a latent everywhere: see pgmodels.priors.distinct_inputs.
    spans: ClassVar[bool] = False
    # Whether a latent is the same at rows that differ in columns alone which its kernel does not read.
    shares: ClassVar[bool] = True

    def memory(self, count: int) -> float:
        """The bytes that it takes at least to make the prior at so many distinct inputs, where these are many."""
        return 0.0

    @abstractmethod
    def bind(self, kernel: Any, mean: Any, X: Any, size: int, neglected: float = np.inf) -> LatentPrior:
        """The prior of ``size`` latents at X (n, d), outside ``jit``, in double precision.

        A variance of more than ``neglected`` is to be neither added nor left out, where rounding allows it.
        Raises ValueError where the kernel's matrix is not finite, not symmetric or not positive semi-definite.
        """

    def traced(
        self, kernel: Any, mean: Array, X: Float[Array, "n d"], size: int, row_mask: Float[Array, " n"] | None = None
    ) -> LatentPrior:
        """The prior in the form that it has at every value of the hyperparameters; can be compiled."""
        return whitened_prior(kernel, mean, X, size, row_mask)

    def bind_traced_for_moments(
        self, kernel: Any, mean: Array, X: Float[Array, "n d"], size: int, row_mask: Float[Array, " n"] | None = None
    ) -> LatentPrior:
        """``traced``, where no draws are asked for."""
        return covariance_prior(kernel, mean, X, size, row_mask)


@dataclass(frozen=True)
class Dense(Representation):
    """The n x n covariance: O(n^3) an iteration, 16 n^2 bytes and three times as many at the peak.

    The Cholesky root is tried with no jitter, then 1e-10 to 1e-6 of the mean variance; what was used is kept.
    """

    can_pad: ClassVar[bool] = True

    def memory(self, count: int) -> float:
        """See Form."""
        return _MADE * count**2

    def bind(self, kernel: Any, mean: Any, X: Any, size: int, neglected: float = np.inf) -> DensePrior:
        """See Form."""
        kernel, mean, X, K = _evaluated(kernel, mean, X)
        return _dense(kernel, mean, X, K, size)


@dataclass(frozen=True)
class Auto(Representation):
    """Dense, or by an exact low-rank factor, whichever needs fewer operations for an update.

    A pivoted Cholesky of K = kernel(X, X) stops where every neglected variance is below 1e-10 of the largest: the size
    of the first jitter of the dense form, so that neither is the more exact. Where less is to be neglected it goes on,
    to rounding, and the low-rank form is taken where the dense one needs more jitter, whatever the cost. With values of
    the kernel sampled it is dense, unless the latent is a sum of functions with few levels, as of crossed groups.
    """

    can_pad: ClassVar[bool] = True
    spans: ClassVar[bool] = True

    def memory(self, count: int) -> float:
        """See Form."""
        return _MADE * count**2

    def bind(self, kernel: Any, mean: Any, X: Any, size: int, neglected: float = np.inf) -> DensePrior | LowRankPrior:
        """See Form."""
        kernel, mean, X, K = _evaluated(kernel, mean, X)
        tolerance = float(np.clip(neglected / np.max(np.diagonal(K)), ROUNDING, TOLERANCE))
        factor = pivoted_cholesky(K, tolerance)
        if _is_cheap(factor) and (low_rank := _low_rank(kernel, mean, X, K, size, tolerance, factor)) is not None:
            return low_rank
        # The dense form takes the memory that the factor has.
        del factor
        dense = _dense(kernel, mean, X, K, size)
        if not float(dense.jitter) > neglected:
            return dense
        np.fill_diagonal(K, np.diagonal(K) - float(dense.jitter))
        factor = pivoted_cholesky(K, tolerance)
        low_rank = _low_rank(kernel, mean, X, K, size, tolerance, factor)
        return low_rank if low_rank is not None and low_rank.truncation < dense.jitter else dense

    def traced(
        self,
        kernel: Any,
        mean: Array,
        X: Float[Array, "n d"],
        size: int,
        row_mask: Float[Array, " n"] | None = None,
        spanning: Float[Array, "r d"] | None = None,
    ) -> LatentPrior:
        """See Form; by the factor A = L^-1 K(Z, X) of inputs Z that say all, with the jitter of ``exact_root``."""
        if spanning is None:
            return whitened_prior(kernel, mean, X, size, row_mask)
        root, jitter = exact_root(kernel, spanning)
        return LowRankPrior(
            kernel=kernel,
            mean=mean,
            X=X,
            A=solve_triangular(root, kernel(spanning, X), lower=True),
            Z=spanning,
            root=root,
            active=jnp.ones(len(spanning)),
            truncation=jitter,
            size=size,
        )

    def low_rank(self, kernel: Any, mean: Any, X: Any, size: int) -> LowRankPrior | None:
        """The prior where it has the low-rank form; takes a fraction of the time of ``bind`` where it has not."""
        kernel, mean, X, K = _evaluated(kernel, mean, X)
        factor = pivoted_cholesky(K, TOLERANCE)
        return _low_rank(kernel, mean, X, K, size, TOLERANCE, factor) if _is_cheap(factor) else None


def _evaluated(kernel: Any, mean: Any, X: Any) -> tuple[Any, Array, Array, np.ndarray]:
    """Kernel, mean and inputs as arrays, and the kernel's matrix, checked: a copy that may be written to."""
    kernel = jax.tree.map(lambda leaf: as_array(leaf) if eqx.is_array_like(leaf) else leaf, bare(kernel))
    X, mean = jnp.asarray(X, dtype=jnp.float64), jnp.asarray(mean, dtype=jnp.float64)
    padded = pad_rows(X, padded_size(len(X)))
    K = np.asarray(gram(kernel, as_array(padded)))
    K = np.array(K[: len(X), : len(X)] if K.shape == 2 * (len(padded),) else K)
    check_gram(kernel, K)
    return kernel, mean, X, K


def _dense(kernel: Any, mean: Array, X: Array, K: np.ndarray, size: int) -> DensePrior:
    K, root, jitter = jittered_root(kernel, K)
    # One after the other: K, its root and one copy at a time are all that is held.
    root_array = as_array(root)
    del root
    return DensePrior(
        kernel=kernel,
        mean=mean,
        X=X,
        K=as_array(K),
        root=root_array,
        jitter=as_array(jitter),
        row_mask=as_array(np.ones(len(K))),
        size=size,
    )


def _low_rank(
    kernel: Any, mean: Array, X: Array, K: np.ndarray, size: int, tolerance: float, factor: "PivotedFactor"
) -> LowRankPrior | None:
    """The low-rank form, None where it is not exact."""
    A, pivots = factor
    rank, residual = factor.filled_rank, np.diagonal(K) - np.sum(A**2, axis=0)
    # An indefinite K also ends the factorisation early; what is left of a semi-definite one is bounded by its diagonal.
    strips = (np.s_[begin : begin + _STRIP] for begin in range(0, len(K), _STRIP))
    if any(np.max(np.abs(K[strip] - A[:, strip].T @ A)) > 10 * tolerance * np.max(np.diagonal(K)) for strip in strips):
        return None
    padding = rank - len(A)
    root = np.eye(rank)
    root[: len(A), : len(A)] = A[:, pivots].T
    return LowRankPrior(
        kernel=kernel,
        mean=mean,
        X=X,
        A=as_array(np.pad(A, ((0, padding), (0, 0)))),
        Z=as_array(np.asarray(X)[np.pad(pivots, (0, padding), mode="edge")]),
        root=as_array(root),
        active=as_array((np.arange(rank) < len(A)).astype(np.float64)),
        truncation=as_array(max(0.0, np.max(residual))),
        size=size,
    )


@compiled
def gram(kernel: Callable[[Array, Array], Array], X: Array) -> Array:
    """kernel(X, X)."""
    return kernel(X, X)


def _dense_operations(n: int) -> float:
    """Cholesky and the inverse of its triangle, n^3 / 3 each, at half the speed of the factor's products."""
    return 4 * n**3 / 3


def _factor_operations(n: int, r: int) -> float:
    """The product A W A^T, its Cholesky and a triangular solve with n columns."""
    return 2 * n * r**2 + r**3 / 3 + n * r**2


def _is_cheap(factor: "PivotedFactor") -> bool:
    n = factor.A.shape[1]
    return _factor_operations(n, factor.filled_rank) < _dense_operations(n)


class PivotedFactor(NamedTuple):
    """The A (r, n) with K = A^T A, and its r pivots."""

    A: np.ndarray
    pivots: np.ndarray

    @property
    def filled_rank(self) -> int:
        """The rank filled up to one of few."""
        return -(-max(len(self.A), 1) // RANK_MULTIPLE) * RANK_MULTIPLE


def pivoted_cholesky(K: np.ndarray, tolerance: float) -> PivotedFactor:
    """By a pivoted Cholesky factorisation of K, up to a tolerance relative to the largest variance."""
    # The transpose, which is K, is in LAPACK's order.
    upper, pivots, rank, info = dpstrf(K.T, tol=tolerance * np.max(np.diagonal(K)), lower=0)
    if info < 0:
        raise RuntimeError(f"LAPACK's dpstrf rejected its argument {-info}.")
    A = np.empty((rank, len(K)))
    for begin in range(0, rank, _STRIP):
        strip = np.s_[begin : begin + _STRIP]
        A[strip, pivots - 1] = np.triu(upper[:rank][strip], begin)
    return PivotedFactor(A, pivots[:rank] - 1)


def jittered_root(
    kernel: Any, K: np.ndarray, jitters: tuple[float, ...] = JITTERS
) -> tuple[np.ndarray, np.ndarray, float]:
    """K + jitter I with the first jitter, relative to the mean variance, that gives it a root, the root and the jitter.

    K itself is what the jitter is added to. Raises ValueError where none gives a root.
    """
    variances = np.diagonal(K).copy()
    for relative in jitters:
        jitter = relative * float(np.mean(variances))
        np.fill_diagonal(K, variances + jitter)
        try:
            return K, cholesky(K, lower=True, check_finite=False), jitter
        except LinAlgError:
            continue
    np.fill_diagonal(K, variances)
    _reject(kernel, f"not positive semi-definite: its smallest eigenvalue is {np.linalg.eigvalsh(K)[0]:.3g}")


def check_gram(kernel: Any, K: np.ndarray) -> None:
    """Raise ValueError where K cannot be a covariance for a reason that can be seen entry by entry."""
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
    """The largest difference between an entry and its mirror image; a strip at a time, for the processor's cache."""
    ends = range(_STRIP, len(K) + _STRIP, _STRIP)
    return max(float(np.max(np.abs(K[end - _STRIP : end, :end] - K[:end, end - _STRIP : end].T))) for end in ends)


def _reject(kernel: Any, fault: str) -> NoReturn:
    name = getattr(kernel, "__name__", type(kernel).__name__)
    raise ValueError(
        f"The matrix of kernel {name} at the data is {fault}. Expected a finite, symmetric, positive semi-definite "
        "matrix: check its formula and hyperparameters and the scale of X, or add a White kernel to it."
    )
