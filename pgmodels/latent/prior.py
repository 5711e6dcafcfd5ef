"""A group of latent Gaussian processes at the data, and what sites (h, w) make of it.

The latents of a group are independent and share one kernel and one constant mean. ``build_prior`` chooses between two
representations with one interface: the dense covariance, and an exact low-rank factor of it.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.linalg import LinAlgError, cholesky
from scipy.linalg.lapack import dpstrf

from pgmodels.latent import sites
from pgmodels.latent.sequential import over_latents
from pgmodels.parameters import bare

JITTERS = (0.0, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6)
TOLERANCE = JITTERS[1]
RANK_MULTIPLE = 16

Key = PRNGKeyArray | Array


class LatentPrior(eqx.Module):
    """The prior f = mean + A^T v, v ~ N(0, I), of a group of latents at the inputs X, and its posterior given sites.

    Sites ``h`` and ``w`` are (n, l), for l latents; ``whitened`` are the coordinates v, (r, l). Every method is pure
    JAX. A representation supplies the methods with an underscore, for one latent of mean zero.
    """

    kernel: eqx.AbstractVar[Any]
    mean: eqx.AbstractVar[Array]
    X: eqx.AbstractVar[Array]

    @property
    @abstractmethod
    def rank(self) -> int:
        """The number of whitened coordinates of one latent."""

    @property
    @abstractmethod
    def factor(self) -> Float[Array, "r n"]:
        """The A with f = mean + A^T v at X."""

    @abstractmethod
    def factor_at(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "r m"], Float[Array, " m"]]:
        """The A (r, m) and residual variance (m,) with f(X_new) = mean + A^T v + eps, Var eps = residual.

        The residual is k(x, x) - sum A^2, zero where rounding makes it negative (by less than 1e-8 of k(x, x)).
        """

    @abstractmethod
    def _colour(self, whitened: Array) -> Array:
        """A^T v for (..., r, l)."""

    @abstractmethod
    def _moments(self, h: Array, w: Array) -> tuple[Array, Array, Array]:
        """Mean, variance and log normaliser."""

    @abstractmethod
    def _mean_and_deviation(self, h: Array, w: Array, noise: Array) -> tuple[Array, Array]:
        """The mean of v and, from standard normals (2, r), a draw of its deviation."""

    @abstractmethod
    def _covariance(self, w: Array) -> Array:
        """Posterior covariance at X."""

    @abstractmethod
    def _cross(self, X_new: Array) -> tuple[Array, Array]:
        """What is needed of the prior at new inputs, shared by the latents of the group."""

    @abstractmethod
    def _predict(self, cross: tuple[Array, Array], h: Array, w: Array) -> tuple[Array, Array]:
        """Mean and variance at new inputs."""

    @abstractmethod
    def _cross_covariance(self, cross: tuple[Array, Array], w: Array) -> Array:
        """Posterior covariance of the latents at new inputs with those at X."""

    def moments(
        self, h: Float[Array, "n l"], w: Float[Array, "n l"]
    ) -> tuple[Float[Array, "n l"], Float[Array, "n l"], Float[Array, " l"]]:
        """Posterior mean and variance at X, and log of the integral of N(f; mean, K) exp(sum h f - w f^2 / 2)."""
        potential, constant = sites.centred(h, w, self.mean)
        mean, variance, log_normalizer = over_latents(self._moments, potential, w)
        return self.mean + mean.T, variance.T, log_normalizer + constant

    def draw(
        self, key: Key, h: Float[Array, "n l"], w: Float[Array, "n l"]
    ) -> tuple[Float[Array, "n l"], Float[Array, "r l"]]:
        """An exact joint draw of f from the posterior, and its whitened coordinates."""
        mean, deviation = self.mean_and_deviation(key, h, w)
        return self.latents(mean + deviation), mean + deviation

    def mean_and_deviation(
        self, key: Key, h: Float[Array, "n l"], w: Float[Array, "n l"]
    ) -> tuple[Float[Array, "r l"], Float[Array, "r l"]]:
        """The posterior mean of the whitened coordinates, and an exact joint draw of their deviation from it."""
        potential, _ = sites.centred(h, w, self.mean)
        noise = jax.random.normal(key, (2, self.rank, h.shape[1]), dtype=self.mean.dtype)
        mean, deviation = over_latents(self._mean_and_deviation, potential, w, noise)
        return mean.T, deviation.T

    def draw_prior(self, key: Key, size: int) -> tuple[Float[Array, "n l"], Float[Array, "r l"]]:
        """A draw of ``size`` latents from the prior, and their whitened coordinates."""
        whitened = jax.random.normal(key, (self.rank, size), dtype=self.mean.dtype)
        return self.latents(whitened), whitened

    def latents(self, whitened: Float[Array, "*batch r l"]) -> Float[Array, "*batch n l"]:
        """The latent values f = mean + A^T v of whitened coordinates."""
        return self.mean + self._colour(whitened)

    def covariance(self, h: Float[Array, "n l"], w: Float[Array, "n l"]) -> Float[Array, "l n n"]:
        """Posterior covariance at X (the potential ``h`` does not enter)."""
        del h
        return over_latents(self._covariance, w)

    def predict(
        self, X_new: Float[Array, "m d"], h: Float[Array, "n l"], w: Float[Array, "n l"]
    ) -> tuple[Float[Array, "m l"], Float[Array, "m l"]]:
        """Posterior mean and variance of the latents at new inputs."""
        cross = self._cross(X_new)
        potential, _ = sites.centred(h, w, self.mean)
        mean, variance = over_latents(lambda h, w: self._predict(cross, h, w), potential, w)
        return self.mean + mean.T, variance.T

    def covariance_with_training(
        self, X_new: Float[Array, "m d"], h: Float[Array, "n l"], w: Float[Array, "n l"]
    ) -> Float[Array, "l m n"]:
        """Posterior covariance of the latents at new inputs with those at X (``h`` does not enter)."""
        del h
        cross = self._cross(X_new)
        return over_latents(lambda w: self._cross_covariance(cross, w), w)


class DensePrior(LatentPrior):
    """The prior with its n x n covariance: A = L^T, with L the lower Cholesky root of K.

    ``K`` is kernel(X, X) + jitter I and nothing else is used in its place; the jitter is independent noise of each
    latent at X, so that covariances with new inputs do not have it.
    """

    kernel: Any
    mean: Float[Array, ""]
    X: Float[Array, "n d"]
    K: Float[Array, "n n"]
    root: Float[Array, "n n"]
    jitter: Float[Array, ""]

    @property
    def rank(self) -> int:
        """The number of whitened coordinates of one latent, n."""
        return len(self.root)

    @property
    def factor(self) -> Float[Array, "r n"]:
        """See LatentPrior: A = L^T."""
        return self.root.T

    def factor_at(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "r m"], Float[Array, " m"]]:
        """See LatentPrior: A = L^-1 K(X, X_new)."""
        K_cross, diagonal = self._cross(X_new)
        return _with_residual(solve_triangular(self.root, K_cross, lower=True), diagonal)

    def _colour(self, whitened: Array) -> Array:
        return self.root @ whitened

    def _moments(self, h: Array, w: Array) -> tuple[Array, Array, Array]:
        factor = sites.dense_factor(self.K, w)
        mean = self.K @ sites.dense_weights(self.K, factor, h)
        return mean, sites.dense_variance(self.K, factor), sites.dense_log_normalizer(factor, h, mean)

    def _mean_and_deviation(self, h: Array, w: Array, noise: Array) -> tuple[Array, Array]:
        factor = sites.dense_factor(self.K, w)
        moved = sites.dense_weights(self.K, factor, jnp.zeros_like(h), self.root @ noise[0], noise[1])
        return self.root.T @ sites.dense_weights(self.K, factor, h), noise[0] + self.root.T @ moved

    def _covariance(self, w: Array) -> Array:
        return sites.dense_covariance(self.K, sites.dense_factor(self.K, w))

    def _cross(self, X_new: Array) -> tuple[Array, Array]:
        return self.kernel(self.X, X_new), self.kernel.diagonal(X_new)

    def _predict(self, cross: tuple[Array, Array], h: Array, w: Array) -> tuple[Array, Array]:
        K_cross, diagonal = cross
        factor = sites.dense_factor(self.K, w)
        V = factor.half_solve(factor.scale[:, None] * K_cross)
        return K_cross.T @ sites.dense_weights(self.K, factor, h), diagonal - jnp.sum(V**2, axis=0)

    def _cross_covariance(self, cross: tuple[Array, Array], w: Array) -> Array:
        return sites.dense_cross_covariance(self.K, cross[0], sites.dense_factor(self.K, w))


class LowRankPrior(LatentPrior):
    """The prior by a pivoted Cholesky factor, K = A^T A up to ``truncation``, the largest neglected variance.

    A = L_Z^-1 K(Z, X) with Z the pivots' inputs. A, Z and L_Z are padded to a multiple of 16 coordinates, which have
    no influence (``active`` is 0 there), so that nearly equal ranks share one compiled program. The neglected part
    matters to a posterior only where w * truncation is not small against 1.
    """

    kernel: Any
    mean: Float[Array, ""]
    X: Float[Array, "n d"]
    A: Float[Array, "r n"]
    Z: Float[Array, "r d"]
    root: Float[Array, "r r"]
    active: Float[Array, " r"]
    truncation: Float[Array, ""]

    @property
    def rank(self) -> int:
        """The number of whitened coordinates of one latent, padding included."""
        return len(self.A)

    @property
    def factor(self) -> Float[Array, "r n"]:
        """See LatentPrior."""
        return self.A

    def factor_at(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "r m"], Float[Array, " m"]]:
        """See LatentPrior: A = L_Z^-1 K(Z, X_new)."""
        K_cross = self.active[:, None] * self.kernel(self.Z, X_new)
        return _with_residual(solve_triangular(self.root, K_cross, lower=True), self.kernel.diagonal(X_new))

    def _colour(self, whitened: Array) -> Array:
        return self.A.T @ whitened

    def _moments(self, h: Array, w: Array) -> tuple[Array, Array, Array]:
        root = sites.factor_root(self.A, w)
        mean = sites.factor_mean(self.A, root, h)
        variance = jnp.sum(sites.factor_half_covariance(root, self.A) ** 2, axis=0)
        return self.A.T @ mean, variance, sites.factor_log_normalizer(self.A, root, h, mean)

    def _mean_and_deviation(self, h: Array, w: Array, noise: Array) -> tuple[Array, Array]:
        root = sites.factor_root(self.A, w)
        return sites.factor_mean(self.A, root, h), sites.factor_noise(root, noise[0])

    def _covariance(self, w: Array) -> Array:
        U = sites.factor_half_covariance(sites.factor_root(self.A, w), self.A)
        return U.T @ U

    def _cross(self, X_new: Array) -> tuple[Array, Array]:
        return self.factor_at(X_new)

    def _predict(self, cross: tuple[Array, Array], h: Array, w: Array) -> tuple[Array, Array]:
        A_new, residual = cross
        root = sites.factor_root(self.A, w)
        variance = residual + jnp.sum(sites.factor_half_covariance(root, A_new) ** 2, axis=0)
        return A_new.T @ sites.factor_mean(self.A, root, h), variance

    def _cross_covariance(self, cross: tuple[Array, Array], w: Array) -> Array:
        root = sites.factor_root(self.A, w)
        return sites.factor_half_covariance(root, cross[0]).T @ sites.factor_half_covariance(root, self.A)


# Jitter of a root that is made under jit, where none can be chosen by trial: relative to the mean variance.
WHITENING_JITTER = 1e-8


def whitened_root(kernel: Any, X: Float[Array, "n d"]) -> tuple[Float[Array, "n n"], Float[Array, ""]]:
    """Lower Cholesky root of kernel(X, X) + jitter I, and the jitter: 1e-8 of the mean variance; can be jitted."""
    K = kernel(X, X)
    jitter = WHITENING_JITTER * jnp.mean(jnp.diagonal(K))
    return jnp.linalg.cholesky(K + jitter * jnp.eye(len(K), dtype=K.dtype)), jitter


def whitened_prior(kernel: Any, mean: Array, X: Float[Array, "n d"]) -> DensePrior:
    """A dense prior with the root and the jitter of ``whitened_root``, whatever the cost; usable under ``jit``."""
    root, jitter = whitened_root(kernel, X)
    K = kernel(X, X) + jitter * jnp.eye(len(X))
    return DensePrior(kernel=kernel, mean=mean, X=X, K=K, root=root, jitter=jitter)


def covariance_prior(kernel: Any, mean: Array, X: Float[Array, "n d"]) -> DensePrior:
    """A dense prior for moments alone, differentiable in the hyperparameters and usable under ``jit``.

    Its root is left empty, so that nothing can be drawn from it, and it carries no jitter, which moments do not need.
    """
    K = kernel(X, X)
    return DensePrior(kernel=kernel, mean=mean, X=X, K=K, root=jnp.zeros((0, 0)), jitter=jnp.zeros(()))


def _with_residual(A: Array, diagonal: Array) -> tuple[Array, Array]:
    """A factor at new inputs and the variance that it leaves."""
    return A, jnp.maximum(diagonal - jnp.sum(A**2, axis=0), 0.0)


def build_prior(
    kernel: Any, mean: float | Array | np.ndarray, X: Float[Array | np.ndarray, "n d"]
) -> DensePrior | LowRankPrior:
    """The prior of a group of latents at X, dense or low-rank, whichever needs fewer operations for an update.

    A pivoted Cholesky of K = kernel(X, X) stops where every neglected variance is below 1e-10 of the largest: the size
    of the first jitter of the dense form, so that neither is the more exact. The dense form tries no jitter, then
    1e-10 to 1e-6 of the mean variance, and keeps what it used. Call it outside ``jit``, in double precision.

    Raises ValueError where K is not finite, not symmetric or not positive semi-definite.
    """
    kernel = jax.tree.map(lambda leaf: jnp.asarray(leaf) if eqx.is_array_like(leaf) else leaf, bare(kernel))
    X, mean = jnp.asarray(X, dtype=jnp.float64), jnp.asarray(mean, dtype=jnp.float64)
    K = np.asarray(_gram(kernel, X))
    _check_gram(kernel, K)
    A, pivots = _pivoted_cholesky(K)
    residual = K - A.T @ A
    rank = -(-max(len(A), 1) // RANK_MULTIPLE) * RANK_MULTIPLE
    # An indefinite K also ends the factorisation early; what is left of a semi-definite one is bounded by its diagonal.
    complete = np.max(np.abs(residual)) <= 10 * TOLERANCE * np.max(np.diagonal(K))
    if complete and _factor_operations(len(K), rank) < _dense_operations(len(K)):
        padding = rank - len(A)
        root = np.eye(rank)
        root[: len(A), : len(A)] = A[:, pivots].T
        return LowRankPrior(
            kernel=kernel,
            mean=mean,
            X=X,
            A=jnp.asarray(np.pad(A, ((0, padding), (0, 0)))),
            Z=X[np.pad(pivots, (0, padding), mode="edge")],
            root=jnp.asarray(root),
            active=jnp.asarray(np.arange(rank) < len(A), dtype=jnp.float64),
            truncation=jnp.asarray(max(0.0, np.max(np.diagonal(residual)))),
        )
    K, dense_root, jitter = _jittered_root(kernel, K)
    return DensePrior(
        kernel=kernel, mean=mean, X=X, K=jnp.asarray(K), root=jnp.asarray(dense_root), jitter=jnp.asarray(jitter)
    )


@eqx.filter_jit
def _gram(kernel: Callable[[Array, Array], Array], X: Array) -> Array:
    return kernel(X, X)


def _dense_operations(n: int) -> float:
    """Cholesky and one triangular solve with n columns."""
    return n**3 / 3 + n**3


def _factor_operations(n: int, r: int) -> float:
    """The product A W A^T, its Cholesky and a triangular solve with n columns."""
    return 2 * n * r**2 + r**3 / 3 + n * r**2


def _pivoted_cholesky(K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The A (r, n) with K = A^T A up to TOLERANCE, and its r pivots."""
    upper, pivots, rank, info = dpstrf(K, tol=TOLERANCE * np.max(np.diagonal(K)), lower=0)
    if info < 0:
        raise RuntimeError(f"LAPACK's dpstrf rejected its argument {-info}.")
    A = np.empty((rank, len(K)))
    A[:, pivots - 1] = np.triu(upper)[:rank]
    return A, pivots[:rank] - 1


def _jittered_root(kernel: Any, K: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """K + jitter I with the first jitter that gives it a Cholesky root, the root and the jitter."""
    for relative in JITTERS:
        jitter = relative * float(np.mean(np.diagonal(K)))
        jittered = K + jitter * np.eye(len(K))
        try:
            return jittered, cholesky(jittered, lower=True), jitter
        except LinAlgError:
            continue
    _reject(kernel, f"not positive semi-definite: its smallest eigenvalue is {np.linalg.eigvalsh(K)[0]:.3g}")


def _check_gram(kernel: Any, K: np.ndarray) -> None:
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
    if np.max(np.abs(K - K.T)) > TOLERANCE * scale:
        row, column = np.unravel_index(np.argmax(np.abs(K - K.T)), K.shape)
        _reject(
            kernel,
            f"not symmetric: entry ({row}, {column}) is {K[row, column]:.6g} "
            f"and entry ({column}, {row}) is {K[column, row]:.6g}",
        )


def _reject(kernel: Any, fault: str) -> NoReturn:
    name = getattr(kernel, "__name__", type(kernel).__name__)
    raise ValueError(
        f"The matrix of kernel {name} at the data is {fault}. Expected a finite, symmetric, positive semi-definite "
        "matrix: check its formula and hyperparameters and the scale of X, or add a White kernel to it."
    )
