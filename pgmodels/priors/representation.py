"""Representations of a GP prior at the data, and how they are bound to the inputs."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from pgmodels.kernels.kernel import Kernel, unlimited, with_values
from pgmodels.parameters.parameter import bare_arrays
from pgmodels.priors import linalg
from pgmodels.priors.base import Covariance, LatentPrior, pad_rows, padded_size
from pgmodels.priors.dense import (
    CoefficientPrior,
    DensePrior,
    InducingPoints,
    LevelsPrior,
    LowRankPrior,
    exact_root,
    low_rank_at,
    traced_dense_prior,
    turned_features,
)
from pgmodels.priors.rows import Levels
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.precision import as_array

# Peak bytes per entry of K while it is computed and factorised: K, its root and one copy.
_MADE = 24.0
# Minimum number of rows to learn hyperparameters from first: with fewer rows, compilation costs more than the search.
_LEAST_SUBSET = 512


class Binding(NamedTuple):
    """Options for the binding of a prior to inputs.

    Outside of ``jit``, the form may depend on the values of the hyperparameters; jitter and truncation stay below the
    variance ``max_error`` if rounding allows it. If ``traced``, the structure does not depend on these values: the
    prior can be differentiated and used under ``jit``. Then ``row_mask`` (n,) is 0 for padding (see
    pgmodels.priors.base). ``spanning`` (r, d) are a few inputs that determine a latent everywhere, and ``levels`` are
    the levels of the inputs (see pgmodels.priors.rows). ``points`` are pivots or inducing inputs. With ``for_moments``
    the prior need not support draws.
    """

    traced: bool = False
    max_error: float = np.inf
    row_mask: Float[Array, " n"] | None = None
    spanning: Float[Array, "r d"] | None = None
    levels: Levels | None = None
    points: InducingPoints | None = None
    for_moments: bool = False


EAGER = Binding()
# The mean of a GP: a number or an array of one.
Scalar: TypeAlias = ArrayLike | float | int


class Representation(ABC):
    """Representation of the prior of a group of latents at the data: ``pgm.GP(kernel, form=...)``.

    Subclasses are hashable and implement ``bind``; trained or sampled hyperparameters need a traced ``bind`` too. With
    ``can_pad``, ``bind`` reads ``row_mask`` and the bound priors implement ``resized``.
    """

    can_pad: ClassVar[bool] = False
    # Whether ``bind`` reads ``spanning`` inputs and ``levels``.
    spans: ClassVar[bool] = False
    # Whether rows share one latent value if they differ only in columns that the kernel does not read.
    shares: ClassVar[bool] = True
    # Minimum number of rows of a subset for a warm start of hyperparameter learning; None for no warm start.
    least_subset: ClassVar[int | None] = None
    # How inducing inputs are chosen, a name of pgmodels.priors.inducing; None if they are given or there are none.
    select: str | None = None
    # Whether bound priors have a factor matrix. Otherwise they are processes in time, with a ``subset`` as dense as X.
    has_factor: ClassVar[bool] = True
    # The number of inducing inputs, or the maximum number to choose; 0 for forms without inducing inputs.
    num_inputs: ClassVar[int] = 0

    def check(self, kernel: Kernel, num_columns: int) -> None:  # noqa: B027 (most represent any kernel)
        """Raise ValueError for a kernel, of inputs with this number of columns, that it cannot represent."""

    def check_values(self, X: np.ndarray, name: str) -> None:  # noqa: B027
        """Raise ValueError for values of X (n, d), called ``name``, at which the prior is not defined."""

    def limits(self, num_columns: int) -> Float[np.ndarray, "d 2"]:
        """Return the lowest and the highest value of each column of X at which the prior is defined."""
        return unlimited(num_columns)

    def resolve(self, kernel: Kernel, X: np.ndarray) -> "Representation":
        """Return the representation with settings from the data and the kernel's values, which it then keeps."""
        return self

    def is_exact(self, kernel: Covariance, X: ArrayLike) -> bool:
        """Return whether bound priors at X (n, d) are exact: see LatentPrior."""
        return False

    def choose(self, kernel: Covariance, X: ArrayLike, weights: np.ndarray | None = None) -> np.ndarray | None:
        """Return inducing inputs (M, d) for a kernel and data (default None); ``weights`` (n,) are site precisions."""
        return None

    def pivots(self, kernel: Covariance, X: ArrayLike) -> InducingPoints | None:
        """Return an exact low-rank prior's pivots, outside of ``jit``; None without one, or if it is not cheapest."""
        return None

    def subset(self, kernel: Kernel, X: np.ndarray, count: int, seed: int) -> np.ndarray:
        """Return the sorted numbers of ``count`` rows of X to learn hyperparameters from first; random by default."""
        return np.sort(np.random.default_rng(seed).permutation(len(X))[:count])

    def with_inputs(self, Z: ArrayLike | int) -> "Representation":
        """Return the representation with the given inducing inputs, if it uses inducing inputs."""
        return self

    def with_seed(self, seed: int) -> "Representation":
        """Return the representation with a seed for its random choices, if any."""
        return self

    def memory(self, kernel: Covariance, X: np.ndarray) -> float:
        """Return a lower bound of the bytes needed to bind the prior at distinct inputs X (n, d), for large n."""
        return 0.0

    @abstractmethod
    def bind(self, kernel: Covariance, mean: Scalar, X: ArrayLike, size: int, how: Binding = EAGER) -> LatentPrior:
        """Return the prior of ``size`` latents at X (n, d), in double precision.

        Raises ValueError outside ``jit`` if the kernel's matrix is not finite, not symmetric or not positive
        semi-definite.
        """


@dataclass(frozen=True)
class Dense(Representation):
    """The prior with its n x n covariance: O(n^3) time per iteration, 16 n^2 bytes, and a peak of 48 n^2 bytes.

    Notes
    -----
    The Cholesky root is tried with no jitter, then with 1e-10 to 1e-6 of the mean variance.
    """

    can_pad: ClassVar[bool] = True
    least_subset: ClassVar[int | None] = _LEAST_SUBSET

    def memory(self, kernel: Covariance, X: np.ndarray) -> float:
        return _MADE * len(X) ** 2

    def bind(self, kernel: Covariance, mean: Scalar, X: ArrayLike, size: int, how: Binding = EAGER) -> LatentPrior:
        if how.traced:
            return _traced(kernel, as_array(mean), as_array(X), size, how)
        kernel, mean, X = as_arrays(kernel, mean, X)
        return _dense(kernel, mean, X, _evaluated(kernel, X), size)


@dataclass(frozen=True)
class Auto(Representation):
    """Dense, or an exact low-rank factor, whichever needs fewer operations per update.

    Sums and products of Linear and Constant have coefficients, with an exact prior, unless these far outnumber the
    rows. Each level of a group (a product with White) has coefficients too, in time linear in the rows. For other
    kernels, a pivoted Cholesky factorisation of K = kernel(X, X) stops once all residual variances are below 1e-10 of
    the largest variance. This is the first jitter of ``Dense``, so that both are equally exact. A smaller ``max_error``
    lowers it to rounding; the low-rank factor is then also chosen, at any cost, if the dense form needs more jitter.
    With sampled kernel parameters it is dense, unless the latent is a sum of functions with few levels, as for crossed
    groups. For ``vi``, ``cavi``, ``gaussian_vi`` and ``fit``, one latent at more than 2,000 distinct times becomes a
    Markov process: see ``pgmodels.inference.prepare``.
    """

    can_pad: ClassVar[bool] = True
    spans: ClassVar[bool] = True
    least_subset: ClassVar[int | None] = _LEAST_SUBSET

    def memory(self, kernel: Covariance, X: np.ndarray) -> float:
        if _has_levels(kernel, X):
            return 0.0
        has_few = self.has_coefficients(kernel, X)
        rank = cast(Kernel, kernel).rank_at(X) if has_few else _known_rank(kernel, X)
        return _MADE * len(X) ** 2 if rank is None else 8.0 * rank * len(X)

    def has_coefficients(self, kernel: Covariance, X: ArrayLike) -> bool:
        """Return whether bound priors at X (n, d) are a ``CoefficientPrior``."""
        if not isinstance(kernel, Kernel) or kernel.level_columns(np.shape(X)[1]):
            return False
        shape = _features_at(kernel, X)
        # Up to 32 coefficients are used with any number of rows.
        return shape is not None and shape.shape[1] <= max(np.shape(X)[0], 32)

    def is_exact(self, kernel: Covariance, X: ArrayLike) -> bool:
        return self.has_coefficients(kernel, X) or _has_levels(kernel, X)

    def bind(self, kernel: Covariance, mean: Scalar, X: ArrayLike, size: int, how: Binding = EAGER) -> LatentPrior:
        """Bind the prior. Traced with ``spanning`` inputs Z, A = L^-1 K(Z, X) with the jitter of ``exact_root``."""
        has_coefficients = how.points is None and self.has_coefficients(kernel, X)
        if how.traced:
            mean, X = as_array(mean), as_array(X)
            if has_coefficients:
                F = cast(Array, cast(Kernel, kernel).features(X))
                return CoefficientPrior(kernel=kernel, mean=mean, X=X, A=F.T, turn=None, size=size)
            if how.levels is not None and how.points is None:
                F = cast(Array, cast(Kernel, kernel).features(X))
                return _of_levels(kernel, mean, X, F.T, how.levels, size)
            Z = how.spanning
            if Z is None or how.points is not None or how.for_moments:
                return _traced(kernel, mean, X, size, how)
            root, error = exact_root(kernel, Z)
            terms = {"A": solve_triangular(root, kernel(Z, X), lower=True), "root": root, "active": jnp.ones(len(Z))}
            return LowRankPrior(kernel=kernel, mean=mean, X=X, Z=Z, truncation_error=error, size=size, **terms)
        kernel, mean, X = as_arrays(kernel, mean, X)
        if has_coefficients and (exact := _of_coefficients(kernel, mean, X, size)) is not None:
            return exact
        if _has_levels(kernel, X) and np.isfinite(features := _evaluated_features(kernel, X)).all():
            levels = Levels.of(np.asarray(X)[:, cast(Kernel, kernel).level_columns(X.shape[1])], len(X))
            return _of_levels(kernel, mean, X, as_array(features.T), levels, size)
        factor = _factor_of_few_functions(kernel, X)
        if factor is not None:
            return _low_rank(kernel, mean, X, size, factor, np.asarray(kernel.diagonal(X)))
        K, max_error = _evaluated(kernel, X), how.max_error
        tolerance = float(np.clip(max_error / np.max(np.diagonal(K)), linalg.ROUNDING, linalg.TOLERANCE))
        factor = linalg.pivoted_cholesky(K, tolerance)
        if _is_cheap(factor) and _is_exact(factor, K, tolerance):
            return _low_rank(kernel, mean, X, size, factor, np.diagonal(K))
        # The memory of the factor is freed for the dense root.
        del factor
        dense = _dense(kernel, mean, X, K, size)
        if not float(dense.jitter) > max_error:
            return dense
        np.fill_diagonal(K, np.diagonal(K) - float(dense.jitter))
        factor = linalg.pivoted_cholesky(K, tolerance)
        if not _is_exact(factor, K, tolerance):
            return dense
        low_rank = _low_rank(kernel, mean, X, size, factor, np.diagonal(K))
        return low_rank if low_rank.truncation_error < dense.jitter else dense

    def pivots(self, kernel: Covariance, X: ArrayLike) -> InducingPoints | None:
        factor = _factor_of_few_functions(kernel, X)
        if factor is None:
            K = _evaluated(bare_arrays(kernel), as_array(X))
            factor = linalg.pivoted_cholesky(K, linalg.TOLERANCE)
            if not (_is_cheap(factor) and _is_exact(factor, K, linalg.TOLERANCE)):
                return None
        return _points_of(factor, X)


def _has_levels(kernel: Covariance, X: ArrayLike) -> bool:
    """Whether a kernel is a product of levels and features."""
    has = isinstance(kernel, Kernel) and kernel.level_columns(np.shape(X)[1])
    return bool(has) and _features_at(cast(Kernel, kernel), X) is not None


def _features_at(kernel: Kernel, X: ArrayLike) -> jax.ShapeDtypeStruct | None:
    """The shape of a kernel's features."""
    return jax.eval_shape(_features, with_values(kernel), jax.ShapeDtypeStruct(np.shape(X), np.float64))


@compiled
def _features(kernel: Kernel, X: Array) -> Array | None:
    return kernel.features(X)


def _traced(kernel: Covariance, mean: Array, X: Array, size: int, how: Binding) -> DensePrior | LowRankPrior:
    if how.points is not None:
        return low_rank_at(kernel, mean, X, how.points, size)
    return traced_dense_prior(kernel, mean, X, size, how.row_mask, for_moments=how.for_moments)


def as_arrays(kernel: Covariance, mean: Scalar, X: ArrayLike) -> tuple[Covariance, Array, Array]:
    """Return the kernel with its values as arrays, and double-precision arrays without compilation."""
    mean, X = (as_array(np.asarray(value, dtype=np.float64)) for value in (mean, X))
    return bare_arrays(kernel), mean, X


def _of_levels(kernel: Covariance, mean: Array, X: Array, features: Array, levels: Levels, size: int) -> LevelsPrior:
    return LevelsPrior(kernel=kernel, mean=mean, X=X, features=features, size=size, **vars(levels))


def _evaluated_features(kernel: Covariance, X: Array) -> np.ndarray:
    return np.asarray(_features(cast(Kernel, kernel), as_array(pad_rows(X, padded_size(len(X))))))[: len(X)]


def _of_coefficients(kernel: Covariance, mean: Array, X: Array, size: int) -> CoefficientPrior | None:
    """Return the prior in turned coefficients; None if a variance is not finite or all are zero."""
    F = _evaluated_features(kernel, X)
    with np.errstate(over="ignore", invalid="ignore"):
        variances = np.sum(F**2, axis=1)
    if not (np.isfinite(variances).all() and F.any()):
        return None
    A, turn = map(as_array, turned_features(F))
    return CoefficientPrior(kernel=kernel, mean=mean, X=X, A=A, turn=turn, size=size)


def _evaluated(kernel: Covariance, X: Array) -> np.ndarray:
    """Return the checked kernel matrix as a writable copy."""
    padded = pad_rows(X, padded_size(len(X)))
    K = np.asarray(linalg.gram(kernel, as_array(padded)))
    K = np.array(K[: len(X), : len(X)] if K.shape == 2 * (len(padded),) else K)
    linalg.check_gram(kernel, K)
    return K


def _dense(kernel: Covariance, mean: Array, X: Array, K: np.ndarray, size: int) -> DensePrior:
    K, root, jitter = linalg.jittered_root(kernel, K)
    # One array is converted at a time, so that at most K, its root and one copy are in memory.
    root_array = as_array(root)
    del root
    added, ones = as_array(jitter), as_array(np.ones(len(K)))
    return DensePrior(
        kernel=kernel, mean=mean, X=X, K=as_array(K), root=root_array, jitter=added, row_mask=ones, size=size
    )


def _known_rank(kernel: Covariance, X: ArrayLike) -> int | None:
    """Return a bound of the matrix's rank at many inputs if it is below 5 % of their number, else None."""
    X = np.asarray(X)
    if len(X) < 2048 or not isinstance(kernel, Kernel):
        return None
    rank = kernel.rank_at(X)
    return rank if rank <= 0.05 * len(X) else None


def _factor_of_few_functions(kernel: Covariance, X: ArrayLike) -> linalg.PivotedFactor | None:
    """Return the factor of a kernel with a small known rank, without its matrix; None for other kernels."""
    rank = _known_rank(kernel, X)
    return None if rank is None else linalg.pivoted_columns(bare_arrays(kernel), as_array(X), linalg.ROUNDING, rank)


def _is_exact(factor: linalg.PivotedFactor, K: np.ndarray, tolerance: float) -> bool:
    """Return whether a factor is exact for K; an indefinite K also stops the factorisation early."""
    A, largest = factor.A, 10 * tolerance * np.max(np.diagonal(K))
    strips = (np.s_[begin : begin + linalg.STRIP] for begin in range(0, len(K), linalg.STRIP))
    return not any(np.max(np.abs(K[strip] - A[:, strip].T @ A)) > largest for strip in strips)


def _points_of(factor: linalg.PivotedFactor, X: ArrayLike) -> InducingPoints:
    """Return the pivots of a factor, padded to few sizes."""
    rank, count = factor.padded_rank, len(factor.A)
    Z = np.asarray(X)[np.pad(factor.pivots, (0, rank - count), mode="edge")]
    return InducingPoints(as_array(Z), as_array((np.arange(rank) < count).astype(np.float64)), as_array(0.0))


def _low_rank(
    kernel: Covariance, mean: Array, X: Array, size: int, factor: linalg.PivotedFactor, variances: np.ndarray
) -> LowRankPrior:
    """Return the low-rank prior of a factor; its residual is from the variances at X."""
    A, rank, count = factor.A, factor.padded_rank, len(factor.A)
    error = as_array(max(0.0, np.max(variances - np.sum(A**2, axis=0))))
    root = np.eye(rank)
    root[:count, :count] = A[:, factor.pivots].T
    Z, active, _ = _points_of(factor, X)
    padded = {"A": as_array(np.pad(A, ((0, rank - count), (0, 0)))), "root": as_array(root), "active": active}
    return LowRankPrior(kernel=kernel, mean=mean, X=X, Z=Z, truncation_error=error, size=size, **padded)


def _is_cheap(factor: linalg.PivotedFactor) -> bool:
    n, r = factor.A.shape[1], factor.padded_rank
    # Low rank: the product A W A^T, its Cholesky root and a triangular solve with n columns. Dense: a Cholesky root and
    # the inverse of its triangle, n^3 / 3 each, at half the speed of the factor's products.
    return 3 * n * r**2 + r**3 / 3 < 4 * n**3 / 3
