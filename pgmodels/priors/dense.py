"""Dense and low-rank priors."""

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int

from pgmodels.priors import linalg
from pgmodels.priors.base import (
    Covariance,
    GroupPosterior,
    LatentPrior,
    Moments,
    RandomKey,
    Sites,
    pad_rows,
    pad_square,
    pad_zeros,
)
from pgmodels.runtime.precision import as_array

# Priors with a factor A, f = mean + A^T v, and their posteriors given sites, latent by latent.


class FactoredPrior(LatentPrior):
    """A prior with a factor A, f = mean + A^T v with v ~ N(0, I): its coordinates are the whitened v.

    Coupled sites and elliptical moves about a fitted Gaussian need A. Subclasses implement the underscored methods, for
    one latent with zero mean. ``_condition`` returns its factorised posterior, a ``DenseState`` or ``LowRankState``;
    the prior is the first argument of their methods.
    """

    has_factor: ClassVar[bool] = True

    kernel: eqx.AbstractVar[Any]

    @property
    @abstractmethod
    def factor(self) -> Float[Array, "r n"]:
        """The A with f = mean + A^T v at X."""

    @abstractmethod
    def factor_at(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "r m"], Float[Array, " m"]]:
        """Return the A (r, m) and residual variance (m,) with f(X_new) = mean + A^T v + eps, Var eps = residual.

        The residual is k(x, x) - sum A^2, zero where rounding makes it negative (by less than 1e-8 of k(x, x)).
        """

    @property
    def loadings(self) -> linalg.Factor:
        """The factor as it is stored: see pgmodels.priors.linalg."""
        return self.factor

    def loadings_at(self, X_new: Float[Array, "m d"]) -> tuple[linalg.Factor, Float[Array, " m"]]:
        """Return ``factor_at`` with the factor as it is stored."""
        return self.factor_at(X_new)

    @abstractmethod
    def resized(self, size: int) -> "FactoredPrior":
        """Return the prior truncated or padded to ``size`` rows; outside ``jit``."""

    @abstractmethod
    def _diagonal(self) -> Array:
        """Return the variances at X."""

    @abstractmethod
    def _colour(self, whitened: Array) -> Array:
        """Return A^T v for v (..., r, l)."""

    @abstractmethod
    def _condition(self, h: Array, w: Array) -> Any:
        """Return the factorised posterior of one latent."""

    @abstractmethod
    def _cross(self, X_new: Array) -> tuple[linalg.Factor, Array]:
        """Return quantities of the prior at new inputs that all latents share."""

    def condition(self, sites: Sites) -> "FactoredPosterior":
        potential, constant = centred(sites, self.mean)
        states = linalg.over_latents(self._condition, potential, sites.precision)
        return FactoredPosterior(self, potential, constant, states)

    def moments(self, sites: Sites) -> Moments:
        """Process one latent at a time, with one factorisation in memory."""
        potential, constant = centred(sites, self.mean)

        def one(h: Array, w: Array) -> Moments:
            state = self._condition(h, w)
            mean, variance = state.moments(self)
            divergence = state.divergence(self, w, mean, variance)
            return Moments(mean, variance, state.log_normalizer(self, h), divergence)

        mean, variance, log_normalizer, divergence = linalg.over_latents(one, potential, sites.precision)
        return Moments(self.mean + mean.T, variance.T, jnp.sum(log_normalizer + constant), jnp.sum(divergence))

    def marginals(self) -> tuple[Float[Array, "n l"], Float[Array, "n l"]]:
        variance = self._diagonal()
        shape = (len(variance), self.size)
        return jnp.broadcast_to(self.mean, shape), jnp.broadcast_to(variance[:, None], shape)

    def latents(self, coordinates: Float[Array, "*batch r l"]) -> Float[Array, "*batch n l"]:
        """Return mean + A^T v."""
        return self.mean + self._colour(coordinates)

    def conditional(
        self, X_new: Float[Array, "m d"], coordinates: Float[Array, "*batch r l"]
    ) -> tuple[Float[Array, "*batch m l"], Float[Array, " m"]]:
        A, residual = self.loadings_at(X_new)
        return self.mean + linalg.transposed_times(A, coordinates), residual

    def residual_covariance(self, X_new: Float[Array, "m d"]) -> Float[Array, "m m"]:
        A, _ = self.factor_at(X_new)
        return self.kernel(X_new, X_new) - A.T @ A

    def draw_given(
        self, X_new: Float[Array, "m d"], coordinates: Float[Array, "*batch r l"], noise: Float[Array, "*batch m l k"]
    ) -> Float[Array, "*batch m l"]:
        return self.conditional(X_new, coordinates)[0] + self.residual_root(X_new) @ noise[..., 0]

    def residual_root(self, X_new: Float[Array, "m d"]) -> Float[Array, "m m"]:
        """Return the R with R R^T the covariance of a latent at new inputs, given its coordinates."""
        # Smaller residual variances are jitter of the roots, or rounding errors at a row of the data.
        return linalg.root_by_rank(self.residual_covariance(X_new), 1e-12 * jnp.max(self.kernel.diagonal(X_new)))


class FactoredPosterior(GroupPosterior):
    """The posterior of independent latents of a group; ``states`` are their factorisations, along a first axis."""

    prior: FactoredPrior
    potential: Float[Array, "n l"]
    constant: Float[Array, " l"]
    states: Any

    def moments(self) -> tuple[Float[Array, "n l"], Float[Array, "n l"]]:
        mean, variance = linalg.over_states(lambda state: state.moments(self.prior), self.states)
        return self.prior.mean + mean.T, variance.T

    def log_normalizer(self) -> Float[Array, ""]:
        logs = linalg.over_states(lambda state, h: state.log_normalizer(self.prior, h), self.states, self.potential.T)
        return jnp.sum(logs + self.constant)

    def log_normalizer_slopes(self) -> tuple[Float[Array, "n n"], Array]:
        """Return the derivatives of the log normaliser of a dense prior in its covariance and mean."""
        by_covariance = linalg.over_states(lambda state: state.log_normalizer_slope(), self.states)
        return jnp.sum(by_covariance, axis=0), jnp.sum(self.states.weights)

    def predict(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "m l"], Float[Array, "m l"]]:
        cross = self.prior._cross(X_new)
        mean, variance = linalg.over_states(lambda state: state.predict(self.prior, cross), self.states)
        return self.prior.mean + mean.T, variance.T

    def mean_and_deviation(self, key: RandomKey) -> tuple[Float[Array, "r l"], Float[Array, "r l"]]:
        noise = jax.random.normal(key, (2, self.prior.rank, self.prior.size), dtype=self.prior.mean.dtype)
        arrays = self.states, jnp.moveaxis(noise, -1, 0)
        mean, deviation = linalg.over_states(lambda state, z: state.mean_and_deviation(self.prior, z), *arrays)
        return mean.T, deviation.T

    def covariance(self) -> Float[Array, "l n n"]:
        """Return the covariance of each latent at the data, without the residual, which sites do not change."""
        return linalg.over_states(lambda state: state.covariance(self.prior), self.states)

    def cross_covariance(self, X_new: Float[Array, "m d"]) -> Float[Array, "l m n"]:
        """Return the covariance of each latent at new inputs with itself at the data, without the residual."""
        cross = self.prior._cross(X_new)
        return linalg.over_states(lambda state: state.cross_covariance(self.prior, cross), self.states)

    def covariance_at(self, X_new: Float[Array, "m d"]) -> Float[Array, "l m m"]:
        """Return the covariance of each latent at new inputs."""
        cross = self.prior._cross(X_new)
        return linalg.over_states(lambda state: state.covariance_at(self.prior, X_new, cross), self.states)


def centred(sites: Sites, mean: Array) -> tuple[Array, Array]:
    """Return the potential (n, l) of sites on f - mean, and the log of the remaining constant factor, (l,)."""
    h, w = sites
    return h - w * mean, jnp.sum(h * mean - 0.5 * w * mean**2, axis=0)


def with_residual(A: Array, diagonal: Array) -> tuple[Array, Array]:
    """Return a factor at new inputs and the residual variance, clipped at 0."""
    return A, jnp.maximum(diagonal - jnp.sum(A**2, axis=0), 0.0)


# The prior with a dense covariance.

# The jitter, relative to the mean variance, of roots computed under jit, for inducing inputs that may be nearly equal.
WHITENING_JITTER = 1e-8


class DenseState(NamedTuple):
    """The posterior of one latent: the precisions' factorisation against K, and the beta with E f = K beta."""

    factor: linalg.DenseFactor
    weights: Float[Array, " n"]

    def moments(self, prior: "DensePrior") -> tuple[Array, Array]:
        """Return the mean and the variance at X."""
        return prior.K @ self.weights, linalg.dense_variance(prior.K, self.factor)

    def log_normalizer(self, prior: "DensePrior", h: Array) -> Array:
        """Return the logarithm of the integral of N(f; 0, K) times the sites."""
        return -jnp.sum(jnp.log(jnp.diagonal(self.factor.root))) + 0.5 * h @ (prior.K @ self.weights)

    def log_normalizer_slope(self) -> Array:
        """Return the derivative of the log normaliser in K: (b b^T - (K + W^-1)^-1) / 2, with b the weights."""
        return 0.5 * (jnp.outer(self.weights, self.weights) - linalg.dense_precision(self.factor))

    def divergence(self, prior: "DensePrior", w: Array, mean: Array, variance: Array) -> Array:
        """Return KL(q || prior), given the posterior moments: tr K^-1 Sigma is n minus the sum of w variance."""
        log_root = jnp.sum(jnp.log(jnp.diagonal(self.factor.root)))
        return log_root + 0.5 * (self.weights @ mean - self.factor.scale**2 @ variance)

    def mean_and_deviation(self, prior: "DensePrior", noise: Array) -> tuple[Array, Array]:
        """Return the mean of v and, from standard normals (2, r), a draw of its deviation."""
        K, root = prior.K, prior.root
        moved = linalg.dense_weights(K, self.factor, jnp.zeros_like(self.weights), root @ noise[0], noise[1])
        return root.T @ self.weights, noise[0] + root.T @ moved

    def covariance(self, prior: "DensePrior") -> Array:
        """Return the covariance at X."""
        return linalg.dense_covariance(prior.K, self.factor)

    def predict(self, prior: "DensePrior", cross: tuple[Array, Array]) -> tuple[Array, Array]:
        """Return the mean and the variance at new inputs."""
        K_cross, diagonal = cross
        V = self.factor.half_solve(self.factor.scale[:, None] * K_cross)
        variance, least = diagonal - jnp.sum(V**2, axis=0), jnp.finfo(diagonal.dtype).eps * diagonal
        # Variances below 1e-10 of the prior variance are rounding errors of the subtraction. They are set to at least
        # one unit in the last place of the prior variance.
        is_rounding = jnp.abs(variance) < 1e-10 * diagonal
        return K_cross.T @ self.weights, jnp.where(is_rounding, jnp.maximum(variance, least), variance)

    def cross_covariance(self, prior: "DensePrior", cross: tuple[Array, Array]) -> Array:
        """Return the covariance between the latents at new inputs and the latents at X."""
        K_cross, factor = cross[0], self.factor
        V = factor.half_solve(factor.scale[:, None] * K_cross)
        return jnp.where(factor.strong, 0.0, K_cross.T) - V.T @ linalg.dense_half_covariance(prior.K, factor)

    def covariance_at(self, prior: "DensePrior", X_new: Array, cross: tuple[Array, Array]) -> Array:
        """Return the covariance at new inputs, (m, m)."""
        V = self.factor.half_solve(self.factor.scale[:, None] * cross[0])
        return prior.kernel(X_new, X_new) - V.T @ V


class DensePrior(FactoredPrior):
    """The prior with its n x n covariance: A = L^T, with L the lower Cholesky root of K.

    ``K`` is always kernel(X, X) + jitter I. The jitter is independent noise of each latent at X: covariances with new
    inputs do not include it. ``row_mask`` is 0 for padding rows, whose latents are independent of all other latents.
    """

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
        K, root = pad_square(self.K, size, variance), pad_square(self.root, size, variance**0.5)
        padded = {"X": pad_rows(self.X, size), "K": K, "root": root, "row_mask": pad_zeros(self.row_mask, size)}
        return replace(self, **jax.tree.map(as_array, padded))

    @property
    def approximation_error(self) -> Float[Array, ""]:
        return self.jitter

    @property
    def active(self) -> Float[Array, " r"]:
        """The mask of coordinates: 1 for data, which come first, and 0 for padding."""
        return self.row_mask

    @property
    def rank(self) -> int:
        return len(self.root)

    @property
    def factor(self) -> Float[Array, "r n"]:
        """A = L^T."""
        return self.root.T

    def factor_at(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "r m"], Float[Array, " m"]]:
        """A = L^-1 K(X, X_new)."""
        K_cross, diagonal = self._cross(X_new)
        return with_residual(solve_triangular(self.root, K_cross, lower=True), diagonal)

    def mean_by_pull(self, X_new: Float[Array, "m d"], pull: Float[Array, "n l"]) -> Float[Array, "m l"]:
        """Return the mean without a factorisation."""
        return self.mean + self._cross(X_new)[0].T @ pull

    def sweep_operations(self) -> float:
        return dense_operations(len(self.K))

    def _diagonal(self) -> Array:
        return jnp.diagonal(self.K)

    def _colour(self, whitened: Array) -> Array:
        return self.root @ whitened

    def _condition(self, h: Array, w: Array) -> DenseState:
        factor = linalg.dense_factor(self.K, w)
        return DenseState(factor, linalg.dense_weights(self.K, factor, h))

    def _cross(self, X_new: Array) -> tuple[Array, Array]:
        return self.row_mask[:, None] * self.kernel(self.X, X_new), self.kernel.diagonal(X_new)


def whitened_root(kernel: Covariance, X: Float[Array, "n d"]) -> tuple[Float[Array, "n n"], Float[Array, ""]]:
    """Return the lower Cholesky root of kernel(X, X) + jitter I, and the jitter, 1e-8 of the mean variance."""
    K = kernel(X, X)
    jitter = WHITENING_JITTER * jnp.mean(jnp.diagonal(K))
    return _root(K, jitter), jitter


def exact_root(
    kernel: Covariance, X: Float[Array, "n d"], row_mask: Float[Array, " n"] | None = None
) -> tuple[Float[Array, "n n"], Float[Array, ""]]:
    """Return root and jitter for distinct rows: 1e-12 of the mean variance, more for many rows or if K has no root.

    Above 1,000 rows the jitter is ten times the rounding error of K (see pgmodels.priors.inducing). Kernels that are
    not quite positive semi-definite have no such root: they get ``WHITENING_JITTER``.
    """
    K = masked_gram(kernel, X, row_mask)
    diagonal = jnp.diagonal(K)
    scale = jnp.mean(diagonal) if row_mask is None else (row_mask @ diagonal) / jnp.sum(row_mask)
    least, most = 1e-12 * max(1.0, len(K) / 1000) ** 2 * scale, WHITENING_JITTER * scale
    root = _root(K, least)
    fine = jnp.all(jnp.isfinite(jnp.diagonal(root)))
    return jax.lax.cond(fine, lambda: (root, least), lambda: (_root(K, most), most))


def _root(K: Float[Array, "n n"], jitter: Float[Array, ""]) -> Float[Array, "n n"]:
    return jnp.linalg.cholesky(K + jitter * jnp.eye(len(K), dtype=K.dtype))


def masked_gram(kernel: Covariance, X: Float[Array, "n d"], row_mask: Float[Array, " n"] | None) -> Float[Array, "n n"]:
    """Return kernel(X, X); padding rows have the first row's variance, and zero covariance with all other rows."""
    K = kernel(X, X)
    return K if row_mask is None else row_mask[:, None] * K * row_mask + jnp.diag((1.0 - row_mask) * K[0, 0])


def traced_dense_prior(
    kernel: Covariance,
    mean: Array,
    X: Float[Array, "n d"],
    size: int,
    row_mask: Float[Array, " n"] | None = None,
    *,
    for_moments: bool = False,
) -> DensePrior:
    """Return a dense prior with the root and the jitter of ``exact_root``, differentiable and usable under ``jit``.

    With ``for_moments`` it has no root and no jitter, which moments do not need: it does not support draws.
    """
    K, root, jitter = masked_gram(kernel, X, row_mask), jnp.zeros((0, 0)), jnp.zeros(())
    if not for_moments:
        root, jitter = exact_root(kernel, X, row_mask)
        K = K + jitter * jnp.eye(len(X))
    mask = jnp.ones(len(X)) if row_mask is None else row_mask
    return DensePrior(kernel=kernel, mean=mean, X=X, K=K, root=root, jitter=jitter, row_mask=mask, size=size)


def dense_operations(n: int) -> float:
    """Return the number of floating-point operations of a sweep with n rows."""
    return n**3 / 3 + 10 * n**2


# Low-rank priors: factors of few rows, coefficients, inducing points, or pivoted Cholesky of the covariance.


class LowRankState(NamedTuple):
    """The posterior of one latent: the root of P = I + A W A^T, E v, A h, and ``loss``, sum w residual / 2 or None."""

    root: linalg.Root
    centre: Float[Array, " r"]
    pulled: Float[Array, " r"]
    loss: Float[Array, ""] | None

    # The methods are as in ``DenseState``; covariances at X exclude the residual.

    def moments(self, prior: "SpanPrior") -> tuple[Array, Array]:
        mean, variance = prior.projected(self.root, self.centre)
        return mean, prior.with_residual(variance)

    def log_normalizer(self, prior: "SpanPrior", h: Array) -> Array:
        value = 0.5 * self.pulled @ self.centre - linalg.log_determinant(self.root)
        return value if self.loss is None else value - self.loss

    def divergence(self, prior: "SpanPrior", w: Array, mean: Array, variance: Array) -> Array:
        residual = prior.residual_variance()
        variance = variance if residual is None else variance - residual
        return linalg.log_determinant(self.root) + 0.5 * (self.centre @ self.centre - w @ variance)

    def mean_and_deviation(self, prior: "SpanPrior", noise: Array) -> tuple[Array, Array]:
        return self.centre, linalg.solve_upper(self.root, noise[0])

    def covariance(self, prior: "SpanPrior") -> Array:
        U = self._half(prior.kept_factor)
        return U.T @ U

    def predict(self, prior: "SpanPrior", cross: tuple[linalg.Factor, Array]) -> tuple[Array, Array]:
        A_new, residual = cross
        return linalg.transposed_times(A_new, self.centre[:, None])[:, 0], residual + linalg.variances(self.root, A_new)

    def cross_covariance(self, prior: "SpanPrior", cross: tuple[linalg.Factor, Array]) -> Array:
        return self._half(cross[0]).T @ self._half(prior.kept_factor)

    def covariance_at(self, prior: "SpanPrior", X_new: Array, cross: tuple[linalg.Factor, Array]) -> Array:
        U = self._half(cross[0])
        return prior.residual_covariance(X_new) + U.T @ U

    def _half(self, A: linalg.Factor) -> Float[Array, "r m"]:
        """Return the U with U^T U the posterior covariance of A^T v."""
        return linalg.solve_lower(self.root, linalg.as_dense(A))


class SpanPrior(FactoredPrior):
    """A prior of few coordinates, f = mean + A^T v + eps with independent eps of variance ``residual_variance``."""

    def sweep_operations(self) -> float:
        r, n = self.rank, len(self.X)
        return n * r**2 + r**3 / 3 + 6 * n * r + 4 * r**2

    def projected(self, root: linalg.Root, centre: Array) -> tuple[Array, Array]:
        """Return the mean and the variance at X of A^T v, for v of mean ``centre`` and a precision with this root."""
        A = self.loadings
        return linalg.transposed_times(A, centre[:, None])[:, 0], linalg.variances(root, A)

    @property
    def kept_factor(self) -> Float[Array, "r n"]:
        """The factor. Raises ValueError if it is not kept."""
        if self.is_chunked:
            raise ValueError(
                f"covariances between all {len(self.X):,} rows do not fit into memory: use pgm.correct(result), whose "
                "linear response does not need them, or fewer rows."
            )
        return self.factor

    def with_residual(self, variance: Array) -> Array:
        """Return the variance at X of A^T v plus the residual variance."""
        residual = self.residual_variance()
        return variance if residual is None else variance + residual

    def _diagonal(self) -> Array:
        return self.with_residual(jnp.sum(self.factor**2, axis=0))

    def _colour(self, whitened: Array) -> Array:
        return linalg.transposed_times(self.loadings, whitened)

    def _root(self, w: Array) -> linalg.Root:
        """Return the root of I + A W A^T."""
        return linalg.factor_root(self.factor, w)

    def _condition(self, h: Array, w: Array) -> LowRankState:
        residual, root, pulled = self.residual_variance(), self._root(w), linalg.times(self.loadings, h)
        return LowRankState(root, linalg.solve(root, pulled), pulled, None if residual is None else 0.5 * w @ residual)

    def _cross(self, X_new: Array) -> tuple[linalg.Factor, Array]:
        return self.loadings_at(X_new)

    def coefficients(self, coordinates: Float[Array, "r l"]) -> Float[Array, "c l"]:
        """Return the coefficients of the kernel's features, of exact priors."""
        return coordinates


class CoefficientPrior(SpanPrior):
    """The exact prior f = mean + F c with the ``features`` F of a kernel: the coordinates are coefficients c, turned.

    A = (F turn)^T with an orthogonal ``turn``, None for the identity. The turn of ``turned_features`` makes the rows of
    A nearly orthogonal: the posterior is as accurate with collinear columns and any prior variances.
    """

    is_exact: ClassVar[bool] = True

    kernel: Any
    mean: Float[Array, ""]
    X: Float[Array, "n d"]
    A: Float[Array, "r n"]
    turn: Float[Array, "r r"] | None
    size: int = eqx.field(static=True)

    @property
    def rank(self) -> int:
        return len(self.A)

    @property
    def active(self) -> Float[Array, " r"]:
        """The mask of coordinates: all are 1, since there is no padding."""
        return jnp.ones(self.rank)

    @property
    def factor(self) -> Float[Array, "r n"]:
        return self.A

    def factor_at(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "r m"], Float[Array, " m"]]:
        F = self.kernel.features(X_new)
        return F.T if self.turn is None else self.turn.T @ F.T, jnp.zeros(len(X_new), self.A.dtype)

    def coefficients(self, coordinates: Float[Array, "r l"]) -> Float[Array, "c l"]:
        return coordinates if self.turn is None else self.turn @ coordinates

    def residual_covariance(self, X_new: Float[Array, "m d"]) -> Float[Array, "m m"]:
        return jnp.zeros((len(X_new), len(X_new)), self.A.dtype)

    def resized(self, size: int) -> "CoefficientPrior":
        return replace(self, X=as_array(pad_rows(self.X, size)), A=as_array(pad_rows(self.A.T, size).T))


def turned_features(F: Float[np.ndarray, "n r"]) -> tuple[Float[np.ndarray, "r n"], Float[np.ndarray, "r r"]]:
    """Return the (F turn)^T with nearly orthogonal rows, of decreasing size, and the orthogonal turn; outside ``jit``.

    F = Q R with the columns in decreasing order of size, R = L turn^T, and the result is (Q L)^T. Each row is accurate
    relative to its own size, however small; the product F turn would lose small rows compared with the largest.
    """
    order = np.argsort(-np.linalg.norm(F, axis=0), kind="stable")
    Q, R = scipy.linalg.qr(F[:, order], mode="economic")
    turn, upper = scipy.linalg.qr(R.T)
    signs = np.ones(len(turn))
    signs[: len(Q.T)] = np.where(np.diagonal(upper) < 0.0, -1.0, 1.0)
    A = np.zeros(F.shape[::-1])
    A[: len(Q.T)] = (upper * signs[:, None])[: len(Q.T)] @ Q.T
    return A, (turn * signs)[np.argsort(order)]


class LevelsPrior(SpanPrior):
    """The exact prior of each row's features times independent coefficients of the row's level, at a cost of O(n).

    ``level`` is the index of each row's level. ``keys`` are the levels' values in X, padded with the first.
    """

    is_exact: ClassVar[bool] = True

    kernel: Any
    mean: Float[Array, ""]
    X: Float[Array, "n d"]
    features: Float[Array, "k n"]
    level: Int[Array, " n"]
    keys: Float[Array, "count c"]
    size: int = eqx.field(static=True)

    @property
    def rank(self) -> int:
        return len(self.keys) * len(self.features)

    @property
    def num_across(self) -> int:
        return len(self.features)

    @property
    def active(self) -> Float[Array, " r"]:
        """The mask of coordinates: 1 for levels, 0 for padding."""
        return jnp.repeat(jnp.zeros(len(self.keys)).at[self.level].set(1.0), len(self.features))

    @property
    def loadings(self) -> linalg.LevelFactor:
        return self._factor(self.level, self.features)

    def loadings_at(self, X_new: Float[Array, "m d"]) -> tuple[linalg.LevelFactor, Float[Array, " m"]]:
        level = self._levels_of(X_new)
        is_known = level < len(self.keys)
        features = jnp.where(is_known, self.kernel.features(X_new).T, 0.0)
        return self._factor(level * is_known, features), jnp.where(is_known, 0.0, self.kernel.diagonal(X_new))

    @property
    def factor(self) -> Float[Array, "r n"]:
        return linalg.as_dense(self.loadings)

    def factor_at(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "r m"], Float[Array, " m"]]:
        A, residual = self.loadings_at(X_new)
        return linalg.as_dense(A), residual

    def residual_covariance(self, X_new: Float[Array, "m d"]) -> Float[Array, "m m"]:
        is_new = self._levels_of(X_new) >= len(self.keys)
        return jnp.where(is_new[:, None] & is_new, self.kernel(X_new, X_new), 0.0)

    def resized(self, size: int) -> "LevelsPrior":
        X, level, features = (pad_rows(part, size) for part in (self.X, self.level, np.asarray(self.features).T))
        return replace(self, X=as_array(X), level=as_array(level), features=as_array(features.T))

    def sweep_operations(self) -> float:
        k, n = len(self.features), len(self.X)
        return n * (k**2 + 6 * k) + self.rank * k**2 / 3

    def _levels_of(self, X_new: Array) -> Array:
        return linalg.find_levels(self.keys, X_new[:, np.array(self.kernel.level_columns(X_new.shape[1]))])

    def _factor(self, level: Array, features: Array) -> linalg.LevelFactor:
        return linalg.LevelFactor(level, features, len(self.keys), self.kernel.level_columns(self.X.shape[1]))

    def _diagonal(self) -> Array:
        return jnp.sum(self.features**2, axis=0)

    def _root(self, w: Array) -> linalg.LevelRoot:
        return linalg.LevelRoot.of([self.loadings], w[:, None, None], (0,))


class InducingPointPrior(SpanPrior):
    """A prior that depends on X through inducing points Z: its factor is A = L_Z^-1 K(Z, X).

    Z and L_Z are padded to a multiple of 16 coordinates (``active`` is 0 for padding), so that similar ranks share one
    compiled program. Padding rows repeat the first row.
    """

    has_points: ClassVar[bool] = True

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
        return self.truncation_error

    @property
    def rank(self) -> int:
        return len(self.Z)

    def cross(self, X_new: Float[Array, "m d"]) -> Float[Array, "r m"]:
        """Return K(Z, X_new), zero where coordinates are not active."""
        return self.active[:, None] * self.kernel(self.Z, X_new)

    def factor_at(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "r m"], Float[Array, " m"]]:
        """A = L_Z^-1 K(Z, X_new)."""
        return with_residual(solve_triangular(self.root, self.cross(X_new), lower=True), self.kernel.diagonal(X_new))


class LowRankPrior(InducingPointPrior):
    """The prior with a pivoted factor, K = A^T A up to ``truncation_error``, a variance; Z are the pivots' inputs."""

    A: Float[Array, "r n"]

    def resized(self, size: int) -> "LowRankPrior":
        return replace(self, X=as_array(pad_rows(self.X, size)), A=as_array(pad_rows(np.asarray(self.A).T, size).T))

    def neglected_variance(self) -> Float[Array, " n"]:
        return jnp.abs(self.kernel.diagonal(self.X) - self._diagonal())

    @property
    def factor(self) -> Float[Array, "r n"]:
        return self.A


class InducingPoints(NamedTuple):
    """Inducing inputs (r, d), 1 or 0 for active or padding (r,), and the jitter of K(Z, Z) relative to its diagonal."""

    Z: Float[Array, "r d"]
    active: Float[Array, " r"]
    jitter: Float[Array, ""]


def low_rank_at(
    kernel: Covariance, mean: Array, X: Float[Array, "n d"], span: InducingPoints, size: int
) -> LowRankPrior:
    """Return the prior at fixed pivots, differentiable in the hyperparameters near where they were chosen; jittable."""
    Z, active, _ = span
    root, error = root_at(kernel, span), span.jitter * jnp.max(kernel.diagonal(X))
    A = solve_triangular(root, active[:, None] * kernel(Z, X), lower=True)
    return LowRankPrior(
        kernel=kernel, mean=mean, X=X, A=A, Z=Z, root=root, active=active, truncation_error=error, size=size
    )


def root_at(kernel: Covariance, span: InducingPoints) -> Float[Array, "r r"]:
    """Return L_Z, with identity rows for padding coordinates."""
    active, K = span.active, kernel(span.Z, span.Z)
    jitter = span.jitter * own_variances(jnp.diagonal(K))
    return jnp.linalg.cholesky(active[:, None] * K * active + jnp.diag(1.0 - active + jitter * active))


def own_variances(diagonal: Array | np.ndarray) -> Any:
    """Return the scale of the jitter (r,): each variance, or the smallest positive variance if it is zero."""
    xp: Any = np if isinstance(diagonal, np.ndarray) else jnp
    positive = diagonal > 0.0
    return xp.where(positive, diagonal, xp.min(diagonal, where=positive, initial=xp.inf))
