"""The prior with its dense covariance."""

from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from pgmodels.kernels.kernel import Kernel
from pgmodels.priors import linalg as algebra
from pgmodels.priors.factored import FactoredPrior, with_residual
from pgmodels.priors.padding import pad_rows, pad_square, pad_zeros
from pgmodels.runtime.x64 import as_array

# Jitter of roots computed under jit, relative to the mean variance, for inducing inputs, which may be nearly equal.
WHITENING_JITTER = 1e-8
# Jitter for distinct rows of data; above _MANY rows it grows with the rounding error of K, as ten times that (see
# pgmodels.priors.inducing.representation). If K still has no root, as for kernels that are not quite positive
# semi-definite, WHITENING_JITTER is used.
_LEAST_JITTER, _MANY = 1e-12, 1000
# Posterior variances below this fraction of the prior variance are rounding error of the subtraction.
_ROUNDING = 1e-10


class DenseState(NamedTuple):
    """The precisions' factorisation against K, and the beta with E f = K beta."""

    factor: algebra.DenseFactor
    weights: Float[Array, " n"]


class DensePrior(FactoredPrior):
    """The prior with its n x n covariance: A = L^T, with L the lower Cholesky root of K.

    ``K`` is kernel(X, X) + jitter I throughout; the jitter is independent noise of each latent at X, so that
    covariances with new inputs do not include it. ``row_mask`` is 0 for padding rows, whose latents are independent of
    all others.
    """

    can_pad: ClassVar[bool] = True
    is_dense: ClassVar[bool] = True

    kernel: Any
    mean: Float[Array, ""]
    X: Float[Array, "n d"]
    K: Float[Array, "n n"]
    root: Float[Array, "r r"]
    jitter: Float[Array, ""]
    row_mask: Float[Array, " n"]
    size: int = eqx.field(static=True)

    def resized(self, size: int) -> "DensePrior":
        """See LatentPrior."""
        variance = float(np.asarray(self.K)[0, 0])
        return replace(
            self,
            X=as_array(pad_rows(self.X, size)),
            K=as_array(pad_square(self.K, size, variance)),
            root=as_array(pad_square(self.root, size, variance**0.5)),
            row_mask=as_array(pad_zeros(self.row_mask, size)),
        )

    @property
    def is_exact(self) -> bool:
        """See LatentPrior: with a diagonal covariance, that of levels of a group."""
        return isinstance(self.kernel, Kernel) and self.kernel.is_diagonal

    @property
    def approximation_error(self) -> Float[Array, ""]:
        """See LatentPrior: the jitter."""
        return self.jitter

    @property
    def active(self) -> Float[Array, " r"]:
        """1 for coordinates of data, which come first, and 0 for padding."""
        return self.row_mask

    @property
    def rank(self) -> int:
        """The number of whitened coordinates of one latent, n."""
        return len(self.root)

    @property
    def factor(self) -> Float[Array, "r n"]:
        """See FactoredPrior: A = L^T."""
        return self.root.T

    def factor_at(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "r m"], Float[Array, " m"]]:
        """See FactoredPrior: A = L^-1 K(X, X_new)."""
        K_cross, diagonal = self._cross(X_new)
        if self.is_exact:
            levels = self._levels(K_cross)
            return jnp.diagonal(self.root)[:, None] * levels, diagonal * (1.0 - jnp.sum(levels, axis=0))
        return with_residual(solve_triangular(self.root, K_cross, lower=True), diagonal)

    @staticmethod
    def _levels(K_cross: Array) -> Array:
        """Indicators of the row that each new input equals, of an exact prior: no subtraction loses its variance."""
        return (K_cross > 0.0).astype(K_cross.dtype)

    def mean_by_pull(self, X_new: Float[Array, "m d"], pull: Float[Array, "n l"]) -> Float[Array, "m l"]:
        """See LatentPrior; without a factorisation."""
        return self.mean + self._cross(X_new)[0].T @ pull

    def coefficients(self, coordinates: Float[Array, "r l"]) -> Float[Array, "c l"]:
        """See FactoredPrior: the latents at X."""
        return self.root @ coordinates

    def basis(self, X_new: Float[Array, "m d"]) -> Float[Array, "m c"]:
        """See FactoredPrior: indicators of levels."""
        return self._levels(self._cross(X_new)[0]).T

    def sweep_operations(self) -> float:
        """See LatentPrior."""
        return dense_operations(len(self.K))

    def _diagonal(self) -> Array:
        return jnp.diagonal(self.K)

    def _colour(self, whitened: Array) -> Array:
        return self.root @ whitened

    def _condition(self, h: Array, w: Array) -> DenseState:
        factor = algebra.dense_factor(self.K, w)
        return DenseState(factor, algebra.dense_weights(self.K, factor, h))

    def _moments(self, state: DenseState) -> tuple[Array, Array]:
        return self.K @ state.weights, algebra.dense_variance(self.K, state.factor)

    def _log_normalizer(self, state: DenseState, h: Array) -> Array:
        return algebra.dense_log_normalizer(state.factor, h, self.K @ state.weights)

    def _divergence(self, state: DenseState, w: Array, mean: Array, variance: Array) -> Array:
        return algebra.dense_divergence(state.factor, state.weights, mean, variance)

    def _mean_and_deviation(self, state: DenseState, noise: Array) -> tuple[Array, Array]:
        moved = algebra.dense_weights(
            self.K, state.factor, jnp.zeros_like(state.weights), self.root @ noise[0], noise[1]
        )
        return self.root.T @ state.weights, noise[0] + self.root.T @ moved

    def _covariance(self, state: DenseState) -> Array:
        return algebra.dense_covariance(self.K, state.factor)

    def _cross(self, X_new: Array) -> tuple[Array, Array]:
        return self.row_mask[:, None] * self.kernel(self.X, X_new), self.kernel.diagonal(X_new)

    def _predict(self, state: DenseState, cross: tuple[Array, Array]) -> tuple[Array, Array]:
        K_cross, diagonal = cross
        if self.is_exact:
            levels = self._levels(K_cross)
            variance = algebra.dense_variance(self.K, state.factor) @ levels
            return K_cross.T @ state.weights, variance + diagonal * (1.0 - jnp.sum(levels, axis=0))
        V = state.factor.half_solve(state.factor.scale[:, None] * K_cross)
        variance, least = diagonal - jnp.sum(V**2, axis=0), jnp.finfo(diagonal.dtype).eps * diagonal
        # A variance lost to rounding is reported as at least one unit in the last place of the prior variance.
        is_rounding = jnp.abs(variance) < _ROUNDING * diagonal
        return K_cross.T @ state.weights, jnp.where(is_rounding, jnp.maximum(variance, least), variance)

    def _cross_covariance(self, state: DenseState, cross: tuple[Array, Array]) -> Array:
        return algebra.dense_cross_covariance(self.K, cross[0], state.factor)

    def _covariance_at(self, state: DenseState, X_new: Array, cross: tuple[Array, Array]) -> Array:
        if self.is_exact:
            levels = self._levels(cross[0])
            new = 1.0 - jnp.sum(levels, axis=0)
            variances = algebra.dense_variance(self.K, state.factor)[:, None]
            return levels.T @ (variances * levels) + new[:, None] * self.kernel(X_new, X_new) * new
        V = state.factor.half_solve(state.factor.scale[:, None] * cross[0])
        return self.kernel(X_new, X_new) - V.T @ V

    def residual_covariance(self, X_new: Float[Array, "m d"]) -> Float[Array, "m m"]:
        """See FactoredPrior."""
        if not self.is_exact:
            return super().residual_covariance(X_new)
        new = 1.0 - jnp.sum(self._levels(self._cross(X_new)[0]), axis=0)
        return new[:, None] * self.kernel(X_new, X_new) * new


def whitened_root(kernel: Any, X: Float[Array, "n d"]) -> tuple[Float[Array, "n n"], Float[Array, ""]]:
    """Lower Cholesky root of kernel(X, X) + jitter I, and the jitter: 1e-8 of the mean variance; can be jitted."""
    K = kernel(X, X)
    jitter = WHITENING_JITTER * jnp.mean(jnp.diagonal(K))
    return _root(K, jitter), jitter


def exact_root(
    kernel: Any, X: Float[Array, "n d"], row_mask: Float[Array, " n"] | None = None
) -> tuple[Float[Array, "n n"], Float[Array, ""]]:
    """Root and jitter for distinct rows: 1e-12 of the mean variance, more for many rows or if K has no root."""
    K = gram(kernel, X, row_mask)
    diagonal = jnp.diagonal(K)
    scale = jnp.mean(diagonal) if row_mask is None else (row_mask @ diagonal) / jnp.sum(row_mask)
    least, most = _LEAST_JITTER * max(1.0, len(K) / _MANY) ** 2 * scale, WHITENING_JITTER * scale
    root = _root(K, least)
    fine = jnp.all(jnp.isfinite(jnp.diagonal(root)))
    return jax.lax.cond(fine, lambda: (root, least), lambda: (_root(K, most), most))


def _root(K: Float[Array, "n n"], jitter: Float[Array, ""]) -> Float[Array, "n n"]:
    return jnp.linalg.cholesky(K + jitter * jnp.eye(len(K), dtype=K.dtype))


def gram(kernel: Any, X: Float[Array, "n d"], row_mask: Float[Array, " n"] | None) -> Float[Array, "n n"]:
    """kernel(X, X); padding rows have the first row's variance and zero covariance with all others."""
    K = kernel(X, X)
    return K if row_mask is None else row_mask[:, None] * K * row_mask + jnp.diag((1.0 - row_mask) * K[0, 0])


def whitened_prior(
    kernel: Any, mean: Array, X: Float[Array, "n d"], size: int, row_mask: Float[Array, " n"] | None = None
) -> DensePrior:
    """A dense prior with the root and the jitter of ``exact_root``; usable under ``jit``."""
    root, jitter = exact_root(kernel, X, row_mask)
    K = gram(kernel, X, row_mask) + jitter * jnp.eye(len(X))
    return DensePrior(
        kernel=kernel, mean=mean, X=X, K=K, root=root, jitter=jitter, row_mask=_mask_or_ones(X, row_mask), size=size
    )


def covariance_prior(
    kernel: Any, mean: Array, X: Float[Array, "n d"], size: int, row_mask: Float[Array, " n"] | None = None
) -> DensePrior:
    """A dense prior for moments alone, differentiable in the hyperparameters and usable under ``jit``.

    It has no root, so that it does not support draws, and no jitter, which moments do not need.
    """
    K, none = gram(kernel, X, row_mask), jnp.zeros((0, 0))
    return DensePrior(
        kernel=kernel,
        mean=mean,
        X=X,
        K=K,
        root=none,
        jitter=jnp.zeros(()),
        row_mask=_mask_or_ones(X, row_mask),
        size=size,
    )


def _mask_or_ones(X: Array, row_mask: Array | None) -> Array:
    return jnp.ones(len(X)) if row_mask is None else row_mask


def dense_operations(n: int) -> float:
    """Floating-point operations of a sweep with n rows."""
    return n**3 / 3 + 10 * n**2
