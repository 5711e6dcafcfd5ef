"""Representations of a GP prior at the data, and how they are bound to the inputs."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from pgmodels.kernels.kernel import Kernel, unlimited, with_values
from pgmodels.parameters.parameter import bare_arrays
from pgmodels.priors.base import LatentPrior, pad_rows, padded_size
from pgmodels.priors.dense import (
    CoefficientPrior,
    DensePrior,
    InducingPoints,
    LowRankPrior,
    exact_root,
    low_rank_at,
    traced_dense_prior,
    turned_features,
)
from pgmodels.priors.linalg import (
    ROUNDING,
    STRIP,
    TOLERANCE,
    PivotedFactor,
    check_gram,
    gram,
    jittered_root,
    pivoted_cholesky,
    pivoted_columns,
)
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.precision import as_array

# Peak bytes per entry of K while it is computed and factorised: K, its root and one copy.
_MADE = 24.0
_LEAST_SUBSET = 512
# From this many rows on, kernels whose rank is known to be below this share of them are factorised without the matrix.
_MANY, _FEW = 2048, 0.05
# Up to this many coefficients are used with any number of rows.
_SMALL = 32


class Representation(ABC):
    """Representation of the prior of a group of latents at the data: ``pgm.GP(kernel, form=...)``.

    Subclasses are hashable and implement ``bind``, and ``bind_traced`` to support trained or sampled hyperparameters.
    With ``can_pad``, the traced methods accept ``row_mask`` (see pgmodels.priors.base) and the bound priors
    implement ``resized``.
    """

    can_pad: ClassVar[bool] = False
    # Whether ``bind_traced`` accepts ``spanning`` inputs, a few that determine a latent everywhere: see
    # pgmodels.priors.rows.
    spans: ClassVar[bool] = False
    # Whether rows that differ only in columns the kernel does not read share one latent value.
    shares: ClassVar[bool] = True
    # Minimum number of rows of a subset for a warm start of hyperparameter learning: with fewer, compilation takes
    # longer than the search. None for no warm start.
    least_subset: ClassVar[int | None] = None
    # Whether a subset is a stretch of the inputs, as dense as these; otherwise it thins them out.
    subset_is_stretch: ClassVar[bool] = False
    # Whether a choice of inducing inputs depends on the site precisions.
    adapts: ClassVar[bool] = False
    # Whether it depends on the sites of the augmented bound for every objective.
    selects_by_augmentation: ClassVar[bool] = False
    # Whether every new choice of inducing inputs replaces the last, even if it lowers the ELBO.
    takes_every_choice: ClassVar[bool] = False
    # Whether the number of inducing inputs is chosen from the data.
    is_automatic: ClassVar[bool] = False
    # Whether bound priors have a factor matrix.
    has_factor: ClassVar[bool] = True
    # The number of inducing inputs, or the maximum number to choose; 0 for forms without inducing inputs.
    num_inputs: ClassVar[int] = 0

    def check(self, kernel: Kernel, num_columns: int) -> None:  # noqa: B027 (most represent any kernel)
        """Raise ValueError for a kernel, of inputs with this number of columns, that it cannot represent."""

    def check_values(self, X: np.ndarray, name: str) -> None:  # noqa: B027
        """Raise ValueError for values of X (n, d), called ``name``, at which the prior is not defined."""

    def limits(self, num_columns: int) -> Float[np.ndarray, "d 2"]:
        """The lowest and the highest value of each column of X at which the prior is defined."""
        return unlimited(num_columns)

    def resolve(self, kernel: Kernel, X: np.ndarray) -> "Representation":
        """The representation with what it takes from the data, at the kernel's values, and keeps from then on."""
        return self

    def has_coefficients(self, kernel: Any, X: Any) -> bool:
        """Whether bound priors at X (n, d) are a ``CoefficientPrior``."""
        return False

    def is_exact(self, kernel: Any, X: Any) -> bool:
        """Whether bound priors at X (n, d) are exact: see LatentPrior."""
        return self.has_coefficients(kernel, X)

    def choose(self, kernel: Any, X: Any, weights: np.ndarray | None = None) -> np.ndarray | None:
        """Inducing inputs (M, d) for a kernel and data; ``weights`` (n,) are the site precisions. None by default."""
        return None

    def low_rank(self, kernel: Any, mean: Any, X: Any, size: int) -> LowRankPrior | None:
        """An exact low-rank prior, outside ``jit``; None if there is none, or another form is cheaper."""
        return None

    def subset(self, kernel: Any, X: np.ndarray, count: int, seed: int) -> np.ndarray:
        """The sorted numbers of ``count`` rows of X to learn hyperparameters from first: at random by default."""
        return np.sort(np.random.default_rng(seed).permutation(len(X))[:count])

    def asks_for_more(self, kernel: Any, X: Any, weights: np.ndarray, count: int) -> bool:
        """Whether ``count`` is the maximum number of inducing inputs and the data require more."""
        return False

    def with_inputs(self, Z: Any) -> "Representation":
        """The representation with the given inducing inputs, if it uses inducing inputs."""
        return self

    def with_seed(self, seed: int) -> "Representation":
        """The representation with a seed for its random choices, if any."""
        return self

    def memory(self, kernel: Any, X: np.ndarray) -> float:
        """Lower bound of the bytes needed to bind the prior at distinct inputs X (n, d), for large n."""
        return 0.0

    @abstractmethod
    def bind(self, kernel: Any, mean: Any, X: Any, size: int, max_error: float = np.inf) -> LatentPrior:
        """The prior of ``size`` latents at X (n, d), outside ``jit``, in double precision.

        Jitter and truncation stay below the variance ``max_error`` if rounding allows it.
        Raises ValueError if the kernel's matrix is not finite, not symmetric or not positive semi-definite.
        """

    def bind_traced(
        self,
        kernel: Any,
        mean: Array,
        X: Float[Array, "n d"],
        size: int,
        *,
        row_mask: Float[Array, " n"] | None = None,
        spanning: Float[Array, "r d"] | None = None,
        points: InducingPoints | None = None,
        for_moments: bool = False,
    ) -> LatentPrior:
        """The prior with a structure that does not depend on the hyperparameter values; usable under ``jit``.

        ``points`` are pivots of ``low_rank``, or inducing inputs. With ``for_moments`` it need not support draws.
        """
        if points is not None:
            return low_rank_at(kernel, mean, X, points, size)
        return traced_dense_prior(kernel, mean, X, size, row_mask, for_moments=for_moments)


@dataclass(frozen=True)
class Dense(Representation):
    """The prior with its n x n covariance: O(n^3) time per iteration, 16 n^2 bytes, and a peak of three times as many.

    Notes
    -----
    The Cholesky root is tried with no jitter, then with 1e-10 to 1e-6 of the mean variance.
    """

    can_pad: ClassVar[bool] = True
    least_subset: ClassVar[int | None] = _LEAST_SUBSET

    def memory(self, kernel: Any, X: np.ndarray) -> float:
        return _MADE * len(X) ** 2

    def bind(self, kernel: Any, mean: Any, X: Any, size: int, max_error: float = np.inf) -> DensePrior:
        kernel, mean, X, K = _evaluated(kernel, mean, X)
        return _dense(kernel, mean, X, K, size)


@dataclass(frozen=True)
class Auto(Representation):
    """Dense, or an exact low-rank factor, whichever needs fewer operations per update.

    Sums and products of Linear, Line and Constant have coefficients, in which the prior is exact, unless these are far
    more than the rows. For other kernels, a pivoted Cholesky factorisation of K = kernel(X, X) stops once all residual
    variances are below 1e-10 of the largest variance, the first jitter of ``Dense``, so that both are equally exact. A
    smaller ``max_error`` lowers this to rounding; the low-rank factor is then also chosen, at any cost, if the dense
    form needs more jitter. With sampled kernel parameters it is dense, unless the latent is a sum of functions with few
    levels, as of crossed groups. Of many distinct times it becomes a Markov process: see
    pgmodels.inference.vi.
    """

    can_pad: ClassVar[bool] = True
    spans: ClassVar[bool] = True
    least_subset: ClassVar[int | None] = _LEAST_SUBSET

    def memory(self, kernel: Any, X: np.ndarray) -> float:
        rank = _known_rank(kernel, X)
        return _MADE * len(X) ** 2 if rank is None else 8.0 * rank * len(X)

    def has_coefficients(self, kernel: Any, X: Any) -> bool:
        if not isinstance(kernel, Kernel):
            return False
        shape = jax.eval_shape(_features, with_values(kernel), jax.ShapeDtypeStruct(np.shape(X), np.float64))
        return shape is not None and shape.shape[1] <= max(len(X), _SMALL)

    def is_exact(self, kernel: Any, X: Any) -> bool:
        return self.has_coefficients(kernel, X) or (isinstance(kernel, Kernel) and kernel.is_diagonal)

    def bind(
        self, kernel: Any, mean: Any, X: Any, size: int, max_error: float = np.inf
    ) -> DensePrior | LowRankPrior | CoefficientPrior:
        if self.has_coefficients(kernel, X) and (exact := _of_coefficients(kernel, mean, X, size)) is not None:
            return exact
        if (low_rank := _of_few_functions(kernel, mean, X, size)) is not None:
            return low_rank
        kernel, mean, X, K = _evaluated(kernel, mean, X)
        tolerance = float(np.clip(max_error / np.max(np.diagonal(K)), ROUNDING, TOLERANCE))
        factor = pivoted_cholesky(K, tolerance)
        if _is_cheap(factor) and (low_rank := _low_rank(kernel, mean, X, K, size, tolerance, factor)) is not None:
            return low_rank
        # Free the factor's memory for the dense root.
        del factor
        dense = _dense(kernel, mean, X, K, size)
        if not float(dense.jitter) > max_error:
            return dense
        np.fill_diagonal(K, np.diagonal(K) - float(dense.jitter))
        factor = pivoted_cholesky(K, tolerance)
        low_rank = _low_rank(kernel, mean, X, K, size, tolerance, factor)
        return low_rank if low_rank is not None and low_rank.truncation_error < dense.jitter else dense

    def bind_traced(
        self,
        kernel: Any,
        mean: Array,
        X: Float[Array, "n d"],
        size: int,
        *,
        row_mask: Float[Array, " n"] | None = None,
        spanning: Float[Array, "r d"] | None = None,
        points: InducingPoints | None = None,
        for_moments: bool = False,
    ) -> LatentPrior:
        """With ``spanning`` inputs Z by A = L^-1 K(Z, X), with the jitter of ``exact_root``."""
        if points is None and self.has_coefficients(kernel, X):
            return CoefficientPrior(kernel=kernel, mean=mean, X=X, A=kernel.features(X).T, turn=None, size=size)
        if spanning is None or points is not None or for_moments:
            return super().bind_traced(kernel, mean, X, size, row_mask=row_mask, points=points, for_moments=for_moments)
        root, jitter = exact_root(kernel, spanning)
        A, ones = solve_triangular(root, kernel(spanning, X), lower=True), jnp.ones(len(spanning))
        return LowRankPrior(
            kernel=kernel, mean=mean, X=X, A=A, Z=spanning, root=root, active=ones, truncation_error=jitter, size=size
        )

    def low_rank(self, kernel: Any, mean: Any, X: Any, size: int) -> LowRankPrior | None:
        if (low_rank := _of_few_functions(kernel, mean, X, size)) is not None:
            return low_rank
        kernel, mean, X, K = _evaluated(kernel, mean, X)
        factor = pivoted_cholesky(K, TOLERANCE)
        return _low_rank(kernel, mean, X, K, size, TOLERANCE, factor) if _is_cheap(factor) else None


@compiled
def _features(kernel: Kernel, X: Array) -> Array | None:
    return kernel.features(X)


def _of_coefficients(kernel: Any, mean: Any, X: Any, size: int) -> CoefficientPrior | None:
    """The prior in turned coefficients; None if a variance is not finite or all are zero."""
    kernel, mean, X = bare_arrays(kernel), as_array(mean), as_array(X)
    F = np.asarray(_features(kernel, as_array(pad_rows(X, padded_size(len(X))))))[: len(X)]
    with np.errstate(over="ignore", invalid="ignore"):
        variances = np.sum(F**2, axis=1)
    if not (np.isfinite(variances).all() and F.any()):
        return None
    A, turn = map(as_array, turned_features(F))
    return CoefficientPrior(kernel=kernel, mean=mean, X=X, A=A, turn=turn, size=size)


def _evaluated(kernel: Any, mean: Any, X: Any) -> tuple[Any, Array, Array, np.ndarray]:
    """Kernel, mean and inputs as arrays, and the checked kernel matrix as a writable copy."""
    kernel = bare_arrays(kernel)
    X, mean = jnp.asarray(X, dtype=jnp.float64), jnp.asarray(mean, dtype=jnp.float64)
    padded = pad_rows(X, padded_size(len(X)))
    K = np.asarray(gram(kernel, as_array(padded)))
    K = np.array(K[: len(X), : len(X)] if K.shape == 2 * (len(padded),) else K)
    check_gram(kernel, K)
    return kernel, mean, X, K


def _dense(kernel: Any, mean: Array, X: Array, K: np.ndarray, size: int) -> DensePrior:
    K, root, jitter = jittered_root(kernel, K)
    # Convert one array at a time, so that at most K, its root and one copy are in memory.
    root_array = as_array(root)
    del root
    added, ones = as_array(jitter), as_array(np.ones(len(K)))
    return DensePrior(
        kernel=kernel, mean=mean, X=X, K=as_array(K), root=root_array, jitter=added, row_mask=ones, size=size
    )


def _known_rank(kernel: Any, X: np.ndarray) -> int | None:
    """A bound of the rank of the matrix at many inputs, as of lines and groups; None if it is not small."""
    if len(X) < _MANY or not isinstance(kernel, Kernel):
        return None
    rank = kernel.rank_at(np.asarray(X))
    return rank if rank <= _FEW * len(X) else None


def _of_few_functions(kernel: Any, mean: Any, X: Any, size: int) -> LowRankPrior | None:
    """The low-rank prior of a kernel whose rank is known to be small, without its matrix; None if it is not."""
    rank = _known_rank(kernel, X)
    if rank is None:
        return None
    kernel, mean, X = bare_arrays(kernel), as_array(mean), as_array(X)
    factor = pivoted_columns(kernel, X, ROUNDING, rank)
    if factor is None:
        return None
    residual = np.asarray(kernel.diagonal(X)) - np.sum(factor.A**2, axis=0)
    return _low_rank_of(kernel, mean, X, size, factor, residual)


def _low_rank(
    kernel: Any, mean: Array, X: Array, K: np.ndarray, size: int, tolerance: float, factor: PivotedFactor
) -> LowRankPrior | None:
    """The low-rank prior, None if it is not exact."""
    A, residual = factor.A, np.diagonal(K) - np.sum(factor.A**2, axis=0)
    # An indefinite K also stops the factorisation early; a semi-definite residual is bounded by its diagonal.
    strips = (np.s_[begin : begin + STRIP] for begin in range(0, len(K), STRIP))
    if any(np.max(np.abs(K[strip] - A[:, strip].T @ A)) > 10 * tolerance * np.max(np.diagonal(K)) for strip in strips):
        return None
    return _low_rank_of(kernel, mean, X, size, factor, residual)


def _low_rank_of(
    kernel: Any, mean: Array, X: Array, size: int, factor: PivotedFactor, residual: np.ndarray
) -> LowRankPrior:
    pivots, rank, count = factor.pivots, factor.padded_rank, len(factor.A)
    square = np.eye(rank)
    square[:count, :count] = factor.A[:, pivots].T
    inputs = np.asarray(X)[np.pad(pivots, (0, rank - count), mode="edge")]
    A, Z, root = map(as_array, (np.pad(factor.A, ((0, rank - count), (0, 0))), inputs, square))
    active, error = as_array((np.arange(rank) < count).astype(np.float64)), as_array(max(0.0, np.max(residual)))
    return LowRankPrior(
        kernel=kernel, mean=mean, X=X, A=A, Z=Z, root=root, active=active, truncation_error=error, size=size
    )


def _is_cheap(factor: PivotedFactor) -> bool:
    n, r = factor.A.shape[1], factor.padded_rank
    # The product A W A^T, its Cholesky and a triangular solve with n columns; against a dense Cholesky and the inverse
    # of its triangle, n^3 / 3 each, at half the speed of the factor's products.
    return 3 * n * r**2 + r**3 / 3 < 4 * n**3 / 3
