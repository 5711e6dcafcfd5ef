"""Dense and low-rank priors."""

from abc import abstractmethod
from dataclasses import fields, replace
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from pgmodels.kernels.kernel import Kernel
from pgmodels.priors.base import GroupPosterior, LatentPrior, Moments, RandomKey, Sites, pad_rows, pad_square, pad_zeros
from pgmodels.priors.linalg import (
    DenseFactor,
    dense_covariance,
    dense_cross_covariance,
    dense_divergence,
    dense_factor,
    dense_log_normalizer,
    dense_variance,
    dense_variance_and_taken,
    dense_weights,
    factor_divergence,
    factor_half_covariance,
    factor_log_normalizer,
    factor_mean,
    factor_noise,
    factor_root,
    over_latents,
    over_states,
)
from pgmodels.runtime.precision import as_array

# Priors with a factor A, f = mean + A^T v, and their posteriors given sites, latent by latent.


class FactoredPrior(LatentPrior):
    """A prior with a factor A, f = mean + A^T v with v ~ N(0, I): its coordinates are the whitened v.

    Coupled sites and elliptical moves about a fitted Gaussian need A. Subclasses implement the underscored methods for
    one latent with zero mean; ``_condition`` factorises and returns the state passed to the others.
    """

    kernel: eqx.AbstractVar[Any]

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
    def resized(self, size: int) -> "FactoredPrior":
        """The prior truncated or padded to ``size`` rows; outside ``jit``."""

    @abstractmethod
    def _diagonal(self) -> Array:
        """The variances at X."""

    @abstractmethod
    def _colour(self, whitened: Array) -> Array:
        """A^T v for (..., r, l)."""

    @abstractmethod
    def _condition(self, h: Array, w: Array) -> Any:
        """The posterior's factorisation."""

    @abstractmethod
    def _moments(self, state: Any) -> tuple[Array, Array]:
        """Mean and variance."""

    @abstractmethod
    def _log_normalizer(self, state: Any, h: Array) -> Array:
        """Log normaliser."""

    @abstractmethod
    def _divergence(self, state: Any, w: Array, mean: Array, variance: Array) -> Array:
        """KL(q || prior) of the posterior, given its moments by ``_moments``."""

    @abstractmethod
    def _mean_and_deviation(self, state: Any, noise: Array) -> tuple[Array, Array]:
        """The mean of v and, from standard normals (2, r), a draw of its deviation."""

    @abstractmethod
    def _covariance(self, state: Any) -> Array:
        """Covariance at X."""

    @abstractmethod
    def _cross(self, X_new: Array) -> Any:
        """Quantities of the prior at new inputs that all latents share."""

    @abstractmethod
    def _predict(self, state: Any, cross: Any) -> tuple[Array, Array]:
        """Mean and variance at new inputs."""

    @abstractmethod
    def _cross_covariance(self, state: Any, cross: Any) -> Array:
        """Covariance of the latents at new inputs with those at X."""

    @abstractmethod
    def _covariance_at(self, state: Any, X_new: Array, cross: Any) -> Array:
        """Covariance at new inputs, (m, m)."""

    def coefficients(self, coordinates: Float[Array, "r l"]) -> Float[Array, "c l"]:
        """The coefficients of ``basis`` of the latents at coordinates, if ``is_exact``."""
        raise NotImplementedError(f"{type(self).__name__} does not implement coefficients.")

    def basis(self, X_new: Float[Array, "m d"]) -> Float[Array, "m c"]:
        """The functions at new inputs whose sums, times ``coefficients``, are the latents, if ``is_exact``."""
        raise NotImplementedError(f"{type(self).__name__} does not implement basis.")

    def condition(self, sites: Sites) -> "FactoredPosterior":
        potential, constant = centred(sites, self.mean)
        states = over_latents(self._condition, potential, sites.precision)
        return FactoredPosterior(self, potential, constant, states)

    def moments(self, sites: Sites) -> Moments:
        """Latents are processed one at a time, with one factorisation in memory."""
        potential, constant = centred(sites, self.mean)

        def one(h: Array, w: Array) -> Moments:
            state = self._condition(h, w)
            mean, variance = self._moments(state)
            return Moments(mean, variance, self._log_normalizer(state, h), self._divergence(state, w, mean, variance))

        mean, variance, log_normalizer, divergence = over_latents(one, potential, sites.precision)
        return Moments(self.mean + mean.T, variance.T, jnp.sum(log_normalizer + constant), jnp.sum(divergence))

    def marginals(self) -> tuple[Float[Array, "n l"], Float[Array, "n l"]]:
        variance = self._diagonal()
        shape = (len(variance), self.size)
        return jnp.broadcast_to(self.mean, shape), jnp.broadcast_to(variance[:, None], shape)

    def latents(self, coordinates: Float[Array, "*batch r l"]) -> Float[Array, "*batch n l"]:
        """Mean + A^T v."""
        return self.mean + self._colour(coordinates)

    def conditional(
        self, X_new: Float[Array, "m d"], coordinates: Float[Array, "*batch r l"]
    ) -> tuple[Float[Array, "*batch m l"], Float[Array, " m"]]:
        A, residual = self.factor_at(X_new)
        return self.mean + jnp.swapaxes(jnp.swapaxes(coordinates, -1, -2) @ A, -1, -2), residual

    def residual_covariance(self, X_new: Float[Array, "m d"]) -> Float[Array, "m m"]:
        """The covariance of a latent at new inputs, given its coordinates."""
        A, _ = self.factor_at(X_new)
        return self.kernel(X_new, X_new) - A.T @ A


class FactoredPosterior(GroupPosterior):
    """Independent latents of a group given sites. ``states`` are their factorisations, along a first axis."""

    prior: FactoredPrior
    potential: Float[Array, "n l"]
    constant: Float[Array, " l"]
    states: Any

    def moments(self) -> tuple[Float[Array, "n l"], Float[Array, "n l"]]:
        mean, variance = over_states(self.prior._moments, self.states)
        return self.prior.mean + mean.T, variance.T

    def log_normalizer(self) -> Float[Array, ""]:
        log_normalizers = over_states(self.prior._log_normalizer, self.states, self.potential.T)
        return jnp.sum(log_normalizers + self.constant)

    def predict(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "m l"], Float[Array, "m l"]]:
        cross = self.prior._cross(X_new)
        mean, variance = over_states(lambda state: self.prior._predict(state, cross), self.states)
        return self.prior.mean + mean.T, variance.T

    def mean_and_deviation(self, key: RandomKey) -> tuple[Float[Array, "r l"], Float[Array, "r l"]]:
        noise = jax.random.normal(key, (2, self.prior.rank, self.prior.size), dtype=self.prior.mean.dtype)
        mean, deviation = over_states(self.prior._mean_and_deviation, self.states, jnp.moveaxis(noise, -1, 0))
        return mean.T, deviation.T

    def covariance(self) -> Float[Array, "l n n"]:
        """The covariance of each latent at the data, without the residual, which sites do not change."""
        return over_states(self.prior._covariance, self.states)

    def cross_covariance(self, X_new: Float[Array, "m d"]) -> Float[Array, "l m n"]:
        """The covariance of each latent at new inputs with itself at the data, without the residual."""
        cross = self.prior._cross(X_new)
        return over_states(lambda state: self.prior._cross_covariance(state, cross), self.states)

    def covariance_at(self, X_new: Float[Array, "m d"]) -> Float[Array, "l m m"]:
        """The covariance of each latent at new inputs."""
        cross = self.prior._cross(X_new)
        return over_states(lambda state: self.prior._covariance_at(state, X_new, cross), self.states)


def centred(sites: Sites, mean: Array) -> tuple[Array, Array]:
    """The potential (n, l) of sites on f - mean, and the log of the remaining constant factor, (l,)."""
    h, w = sites
    return h - w * mean, jnp.sum(h * mean - 0.5 * w * mean**2, axis=0)


def with_residual(A: Array, diagonal: Array) -> tuple[Array, Array]:
    """A factor at new inputs and the residual variance, clipped at 0."""
    return A, jnp.maximum(diagonal - jnp.sum(A**2, axis=0), 0.0)


# The prior with its dense covariance.

# Jitter of roots computed under jit, relative to the mean variance, for inducing inputs, which may be nearly equal.
WHITENING_JITTER = 1e-8
# Jitter for distinct rows of data; above _MANY rows it grows with the rounding error of K, as ten times that (see
# pgmodels.priors.inducing). If K still has no root, as for kernels that are not quite positive
# semi-definite, WHITENING_JITTER is used.
_LEAST_JITTER, _MANY = 1e-12, 1000
# Posterior variances below this fraction of the prior variance are rounding error of the subtraction.
_ROUNDING = 1e-10


class DenseState(NamedTuple):
    """The precisions' factorisation against K, and the beta with E f = K beta."""

    factor: DenseFactor
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
        """With a diagonal covariance, that of levels of a group."""
        return isinstance(self.kernel, Kernel) and self.kernel.is_diagonal

    @property
    def approximation_error(self) -> Float[Array, ""]:
        """The jitter."""
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
        """A = L^T."""
        return self.root.T

    def factor_at(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "r m"], Float[Array, " m"]]:
        """A = L^-1 K(X, X_new)."""
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
        """Without a factorisation."""
        return self.mean + self._cross(X_new)[0].T @ pull

    def coefficients(self, coordinates: Float[Array, "r l"]) -> Float[Array, "c l"]:
        """The latents at X."""
        return self.root @ coordinates

    def basis(self, X_new: Float[Array, "m d"]) -> Float[Array, "m c"]:
        """Indicators of levels."""
        return self._levels(self._cross(X_new)[0]).T

    def sweep_operations(self) -> float:
        return dense_operations(len(self.K))

    def _diagonal(self) -> Array:
        return jnp.diagonal(self.K)

    def _colour(self, whitened: Array) -> Array:
        return self.root @ whitened

    def _condition(self, h: Array, w: Array) -> DenseState:
        factor = dense_factor(self.K, w)
        return DenseState(factor, dense_weights(self.K, factor, h))

    def _moments(self, state: DenseState) -> tuple[Array, Array]:
        return self.K @ state.weights, dense_variance(self.K, state.factor)

    def _log_normalizer(self, state: DenseState, h: Array) -> Array:
        return dense_log_normalizer(state.factor, h, self.K @ state.weights)

    def _divergence(self, state: DenseState, w: Array, mean: Array, variance: Array) -> Array:
        return dense_divergence(state.factor, state.weights, mean, variance)

    def _mean_and_deviation(self, state: DenseState, noise: Array) -> tuple[Array, Array]:
        moved = dense_weights(self.K, state.factor, jnp.zeros_like(state.weights), self.root @ noise[0], noise[1])
        return self.root.T @ state.weights, noise[0] + self.root.T @ moved

    def _covariance(self, state: DenseState) -> Array:
        return dense_covariance(self.K, state.factor)

    def _cross(self, X_new: Array) -> tuple[Array, Array]:
        return self.row_mask[:, None] * self.kernel(self.X, X_new), self.kernel.diagonal(X_new)

    def _predict(self, state: DenseState, cross: tuple[Array, Array]) -> tuple[Array, Array]:
        K_cross, diagonal = cross
        if self.is_exact:
            levels = self._levels(K_cross)
            variance = dense_variance(self.K, state.factor) @ levels
            return K_cross.T @ state.weights, variance + diagonal * (1.0 - jnp.sum(levels, axis=0))
        V = state.factor.half_solve(state.factor.scale[:, None] * K_cross)
        variance, least = diagonal - jnp.sum(V**2, axis=0), jnp.finfo(diagonal.dtype).eps * diagonal
        # A variance lost to rounding is reported as at least one unit in the last place of the prior variance.
        is_rounding = jnp.abs(variance) < _ROUNDING * diagonal
        return K_cross.T @ state.weights, jnp.where(is_rounding, jnp.maximum(variance, least), variance)

    def _cross_covariance(self, state: DenseState, cross: tuple[Array, Array]) -> Array:
        return dense_cross_covariance(self.K, cross[0], state.factor)

    def _covariance_at(self, state: DenseState, X_new: Array, cross: tuple[Array, Array]) -> Array:
        if self.is_exact:
            levels = self._levels(cross[0])
            new = 1.0 - jnp.sum(levels, axis=0)
            variances = dense_variance(self.K, state.factor)[:, None]
            return levels.T @ (variances * levels) + new[:, None] * self.kernel(X_new, X_new) * new
        V = state.factor.half_solve(state.factor.scale[:, None] * cross[0])
        return self.kernel(X_new, X_new) - V.T @ V

    def residual_covariance(self, X_new: Float[Array, "m d"]) -> Float[Array, "m m"]:
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


def traced_dense_prior(
    kernel: Any,
    mean: Array,
    X: Float[Array, "n d"],
    size: int,
    row_mask: Float[Array, " n"] | None = None,
    *,
    for_moments: bool = False,
) -> DensePrior:
    """A dense prior with the root and the jitter of ``exact_root``, differentiable and usable under ``jit``.

    With ``for_moments`` it has no root, so that it does not support draws, and no jitter, which moments do not need.
    """
    K, root, jitter = gram(kernel, X, row_mask), jnp.zeros((0, 0)), jnp.zeros(())
    if not for_moments:
        root, jitter = exact_root(kernel, X, row_mask)
        K = K + jitter * jnp.eye(len(X))
    mask = jnp.ones(len(X)) if row_mask is None else row_mask
    return DensePrior(kernel=kernel, mean=mean, X=X, K=K, root=root, jitter=jitter, row_mask=mask, size=size)


def dense_operations(n: int) -> float:
    """Floating-point operations of a sweep with n rows."""
    return n**3 / 3 + 10 * n**2


# Low-rank priors: any factor of few rows, coefficients, inducing points, or pivoted Cholesky of the covariance.


class LowRankState(NamedTuple):
    """The root of P = I + A W A^T, and E v."""

    root: Float[Array, "r r"]
    centre: Float[Array, " r"]


class SpanPrior(FactoredPrior):
    """A prior of few coordinates: a posterior's state has ``root``, of P = I + A W A^T, and ``centre``, E v."""

    def sweep_operations(self) -> float:
        r, n = self.rank, len(self.X)
        return n * r**2 + r**3 / 3 + 6 * n * r + 4 * r**2

    def _diagonal(self) -> Array:
        return jnp.sum(self.factor**2, axis=0)

    def _colour(self, whitened: Array) -> Array:
        # This order reads A contiguously: three times faster for few columns.
        return jnp.swapaxes(jnp.swapaxes(whitened, -1, -2) @ self.factor, -1, -2)

    def _condition(self, h: Array, w: Array) -> Any:
        A = self.factor
        root = factor_root(A, w)
        return LowRankState(root, factor_mean(A, root, h))

    def _moments(self, state: Any) -> tuple[Array, Array]:
        A = self.factor
        return state.centre @ A, jnp.sum(factor_half_covariance(state.root, A) ** 2, axis=0)

    def _log_normalizer(self, state: Any, h: Array) -> Array:
        return factor_log_normalizer(self.factor, state.root, h, state.centre)

    def _divergence(self, state: Any, w: Array, mean: Array, variance: Array) -> Array:
        return factor_divergence(state.root, state.centre, w, variance)

    def _mean_and_deviation(self, state: Any, noise: Array) -> tuple[Array, Array]:
        return state.centre, factor_noise(state.root, noise[0])

    def _covariance(self, state: Any) -> Array:
        U = factor_half_covariance(state.root, self.factor)
        return U.T @ U

    def _cross(self, X_new: Array) -> tuple[Array, Array]:
        return self.factor_at(X_new)

    def _predict(self, state: Any, cross: tuple[Array, Array]) -> tuple[Array, Array]:
        A_new, residual = cross
        variance = residual + jnp.sum(factor_half_covariance(state.root, A_new) ** 2, axis=0)
        return state.centre @ A_new, variance

    def _cross_covariance(self, state: Any, cross: tuple[Array, Array]) -> Array:
        return factor_half_covariance(state.root, cross[0]).T @ factor_half_covariance(state.root, self.factor)

    def _covariance_at(self, state: Any, X_new: Array, cross: tuple[Array, Array]) -> Array:
        U = factor_half_covariance(state.root, cross[0])
        return self.residual_covariance(X_new) + U.T @ U


class CoefficientPrior(SpanPrior):
    """f = mean + F v with the ``features`` F of a kernel, exactly: the coordinates are coefficients, turned.

    A = (F turn)^T with an orthogonal ``turn``, None for the identity. That of ``turned_features`` makes the rows of A
    nearly orthogonal, so that the posterior is as accurate with collinear columns and any prior variances.
    """

    can_pad: ClassVar[bool] = True

    kernel: Any
    mean: Float[Array, ""]
    X: Float[Array, "n d"]
    A: Float[Array, "r n"]
    turn: Float[Array, "r r"] | None
    size: int = eqx.field(static=True)

    @property
    def is_exact(self) -> bool:
        return True

    @property
    def rank(self) -> int:
        """The number of features."""
        return len(self.A)

    @property
    def active(self) -> Float[Array, " r"]:
        """1 for each coordinate: there is no padding."""
        return jnp.ones(self.rank)

    @property
    def factor(self) -> Float[Array, "r n"]:
        return self.A

    def factor_at(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "r m"], Float[Array, " m"]]:
        F = self.kernel.features(X_new)
        A = F.T if self.turn is None else self.turn.T @ F.T
        return A, jnp.zeros(len(X_new), self.A.dtype)

    def coefficients(self, coordinates: Float[Array, "r l"]) -> Float[Array, "c l"]:
        return coordinates if self.turn is None else self.turn @ coordinates

    def basis(self, X_new: Float[Array, "m d"]) -> Float[Array, "m c"]:
        """The kernel's features."""
        return self.kernel.features(X_new)

    def residual_covariance(self, X_new: Float[Array, "m d"]) -> Float[Array, "m m"]:
        """Zero."""
        return jnp.zeros((len(X_new), len(X_new)), self.A.dtype)

    def resized(self, size: int) -> "CoefficientPrior":
        return replace(self, X=as_array(pad_rows(self.X, size)), A=as_array(pad_rows(self.A.T, size).T))


def turned_features(F: Float[np.ndarray, "n r"]) -> tuple[Float[np.ndarray, "r n"], Float[np.ndarray, "r r"]]:
    """The (F turn)^T with nearly orthogonal rows, of decreasing size, and the orthogonal turn; outside ``jit``.

    F = Q R with the columns in decreasing order of size, R = L turn^T, and the result is (Q L)^T: each row is accurate
    relative to its own size, however small, where the product F turn would lose it against the largest.
    """
    order = np.argsort(-np.linalg.norm(F, axis=0), kind="stable")
    Q, R = scipy.linalg.qr(F[:, order], mode="economic")
    turn, upper = scipy.linalg.qr(R.T)
    signs = np.ones(len(turn))
    signs[: len(Q.T)] = np.where(np.diagonal(upper) < 0.0, -1.0, 1.0)
    A = np.zeros(F.shape[::-1])
    A[: len(Q.T)] = (upper * signs[:, None])[: len(Q.T)] @ Q.T
    return A, (turn * signs)[np.argsort(order)]


class InducingPointPrior(SpanPrior):
    """A prior that depends on X through inducing points Z: its factor is A = L_Z^-1 K(Z, X).

    Z and L_Z are padded to a multiple of 16 coordinates (``active`` is 0 for padding), so that similar ranks share one
    compiled program. Padding rows repeat the first row.
    """

    can_pad: ClassVar[bool] = True

    kernel: Any
    mean: Float[Array, ""]
    X: Float[Array, "n d"]
    Z: Float[Array, "r d"]
    root: Float[Array, "r r"]
    active: Float[Array, " r"]
    truncation_error: Float[Array, ""]
    size: int = eqx.field(static=True)

    @property
    def approximation_error(self) -> Float[Array, ""]:
        """The truncation error of the pivots."""
        return self.truncation_error

    @property
    def rank(self) -> int:
        """The number of whitened coordinates of one latent, padding included."""
        return len(self.Z)

    def cross(self, X_new: Float[Array, "m d"]) -> Float[Array, "r m"]:
        """K(Z, X_new), zero where coordinates are not active."""
        return self.active[:, None] * self.kernel(self.Z, X_new)

    def factor_at(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "r m"], Float[Array, " m"]]:
        """A = L_Z^-1 K(Z, X_new)."""
        A = solve_triangular(self.root, self.cross(X_new), lower=True)
        return with_residual(A, self.kernel.diagonal(X_new))


class LowRankPrior(InducingPointPrior):
    """The prior with a pivoted Cholesky factor, K = A^T A up to ``truncation_error``, the largest residual variance.

    Z are the pivots' inputs.
    """

    A: Float[Array, "r n"]

    def resized(self, size: int) -> "LowRankPrior":
        A = pad_rows(np.asarray(self.A).T, size).T
        return replace(self, X=as_array(pad_rows(self.X, size)), A=as_array(A))

    def neglected_variance(self) -> Float[Array, " n"]:
        return jnp.abs(self.kernel.diagonal(self.X) - self._diagonal())

    @property
    def factor(self) -> Float[Array, "r n"]:
        return self.A


def inducing_points_of(prior: InducingPointPrior) -> LowRankPrior:
    """The low-rank term of an inducing-point prior, with A and without the residual."""
    return LowRankPrior(
        A=prior.factor, **{field.name: getattr(prior, field.name) for field in fields(InducingPointPrior)}
    )


class InducingPoints(NamedTuple):
    """Inducing inputs (r, d), 1 or 0 for active or padding (r,), and the jitter of K(Z, Z) relative to its diagonal."""

    Z: Float[Array, "r d"]
    active: Float[Array, " r"]
    jitter: Float[Array, ""]


def low_rank_at(kernel: Any, mean: Array, X: Float[Array, "n d"], span: InducingPoints, size: int) -> LowRankPrior:
    """The prior with given inducing inputs; usable under ``jit``.

    Differentiable in the hyperparameters at fixed pivots: the truncation error stays small near where they were chosen.
    """
    Z, active, _ = span
    root, error = root_at(kernel, span), span.jitter * jnp.max(kernel.diagonal(X))
    A = solve_triangular(root, active[:, None] * kernel(Z, X), lower=True)
    return LowRankPrior(
        kernel=kernel, mean=mean, X=X, A=A, Z=Z, root=root, active=active, truncation_error=error, size=size
    )


def root_at(kernel: Any, span: InducingPoints) -> Float[Array, "r r"]:
    """L_Z, with identity rows for padding coordinates."""
    active, K = span.active, kernel(span.Z, span.Z)
    jitter = span.jitter * own_variances(jnp.diagonal(K))
    return jnp.linalg.cholesky(active[:, None] * K * active + jnp.diag(1.0 - active + jitter * active))


def own_variances(diagonal: Any) -> Any:
    """The scale of the jitter (r,): each variance, or the smallest positive one where a variance is zero."""
    xp: Any = np if isinstance(diagonal, np.ndarray) else jnp
    positive = diagonal > 0.0
    return xp.where(positive, diagonal, xp.min(diagonal, where=positive, initial=xp.inf))


# First-order derivatives of dense posteriors' moments with respect to sites, as products with their covariances.

# Sites with a precision below this fraction of the prior precision have negligible influence on other latents.
_SILENT = 1e-7


class Expansion(NamedTuple):
    """Posteriors of independent latents with one dense prior, and derivatives of their moments in the sites.

    ``mean`` (prior mean subtracted) and ``variance`` at the data are (l, n), KL(q || prior) is (l,). The covariance is
    stored as ``taken`` = W^1/2 Sigma W^1/2 = I - B^-1 (l, n, n), with Sigma = half taken half, ``half`` = W^-1/2.
    Latents whose precision is negligible have zero covariance with others there and the variance ``isolated``.
    ``weights`` are K^-1 mean, ``scale`` is W^1/2.
    """

    mean: Float[Array, "l n"]
    variance: Float[Array, "l n"]
    divergence: Float[Array, " l"]
    weights: Float[Array, "l n"]
    scale: Float[Array, "l n"]
    half: Float[Array, "l n"]
    isolated: Float[Array, "l n"]
    taken: Float[Array, "l n n"]

    def times(self, x: Float[Array, "l n"]) -> Float[Array, "l n"]:
        """Sigma x: the derivative of the mean with respect to the potentials, times x."""
        return self.isolated * x + self.half * over_states(jnp.matmul, self.taken, self.half * x)

    def squares(self) -> Float[Array, "l n n"]:
        """The elementwise square of ``taken``, for ``times_squares``."""
        return self.taken**2

    def times_squares(self, squares: Float[Array, "l n n"], x: Float[Array, "l n"]) -> Float[Array, "l n"]:
        """(Sigma o Sigma) x: minus the derivative of the variances with respect to the precisions, times x."""
        return self.isolated**2 * x + self.half**2 * over_states(jnp.matmul, squares, self.half**2 * x)

    def slope(self) -> Float[Array, "n n"]:
        """The derivative of each log normaliser in the prior covariance K, (b b^T - W^1/2 B^-1 W^1/2) / 2."""

        def one(weights: Array, scale: Array, taken: Array) -> Array:
            by_taken = scale[:, None] * taken * scale - jnp.diag(scale**2)
            return 0.5 * (jnp.outer(weights, weights) + by_taken)

        return jnp.sum(over_states(one, self.weights, self.scale, self.taken), axis=0)


def expand(prior: DensePrior, sites: Sites) -> Expansion:
    """The expansion at sites (n, l), with one factorisation per latent."""
    potential, _ = centred(sites, prior.mean)
    diagonal = jnp.diagonal(prior.K)
    least = _SILENT / diagonal

    def one(h: Array, w: Array) -> Expansion:
        factor = dense_factor(prior.K, w)
        weights = dense_weights(prior.K, factor, h)
        mean = prior.K @ weights
        variance, taken = dense_variance_and_taken(prior.K, factor)
        divergence = dense_divergence(factor, weights, mean, variance)
        half, isolated = jnp.sqrt(w) / (w + least), diagonal * least / (w + least)
        return Expansion(mean, variance, divergence, weights, factor.scale, half, isolated, taken)

    return over_latents(one, potential, sites.precision)
