"""Low-rank priors: any factor of few rows, coefficients, inducing points, or pivoted Cholesky of the covariance."""

from dataclasses import fields, replace
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from pgmodels.priors import linalg as algebra
from pgmodels.priors.factored import FactoredPrior, with_residual
from pgmodels.priors.padding import pad_rows
from pgmodels.runtime.x64 import as_array


class LowRankState(NamedTuple):
    """The root of P = I + A W A^T, and E v."""

    root: Float[Array, "r r"]
    centre: Float[Array, " r"]


class SpanPrior(FactoredPrior):
    """A prior of few coordinates: a posterior's state has ``root``, of P = I + A W A^T, and ``centre``, E v."""

    def sweep_operations(self) -> float:
        """See LatentPrior."""
        r, n = self.rank, len(self.X)
        return n * r**2 + r**3 / 3 + 6 * n * r + 4 * r**2

    def _diagonal(self) -> Array:
        return jnp.sum(self.factor**2, axis=0)

    def _colour(self, whitened: Array) -> Array:
        # This order reads A contiguously: three times faster for few columns.
        return jnp.swapaxes(jnp.swapaxes(whitened, -1, -2) @ self.factor, -1, -2)

    def _condition(self, h: Array, w: Array) -> Any:
        A = self.factor
        root = algebra.factor_root(A, w)
        return LowRankState(root, algebra.factor_mean(A, root, h))

    def _moments(self, state: Any) -> tuple[Array, Array]:
        A = self.factor
        return state.centre @ A, jnp.sum(algebra.factor_half_covariance(state.root, A) ** 2, axis=0)

    def _log_normalizer(self, state: Any, h: Array) -> Array:
        return algebra.factor_log_normalizer(self.factor, state.root, h, state.centre)

    def _divergence(self, state: Any, w: Array, mean: Array, variance: Array) -> Array:
        return algebra.factor_divergence(state.root, state.centre, w, variance)

    def _mean_and_deviation(self, state: Any, noise: Array) -> tuple[Array, Array]:
        return state.centre, algebra.factor_noise(state.root, noise[0])

    def _covariance(self, state: Any) -> Array:
        U = algebra.factor_half_covariance(state.root, self.factor)
        return U.T @ U

    def _cross(self, X_new: Array) -> tuple[Array, Array]:
        return self.factor_at(X_new)

    def _predict(self, state: Any, cross: tuple[Array, Array]) -> tuple[Array, Array]:
        A_new, residual = cross
        variance = residual + jnp.sum(algebra.factor_half_covariance(state.root, A_new) ** 2, axis=0)
        return state.centre @ A_new, variance

    def _cross_covariance(self, state: Any, cross: tuple[Array, Array]) -> Array:
        return algebra.factor_half_covariance(state.root, cross[0]).T @ algebra.factor_half_covariance(
            state.root, self.factor
        )

    def _covariance_at(self, state: Any, X_new: Array, cross: tuple[Array, Array]) -> Array:
        U = algebra.factor_half_covariance(state.root, cross[0])
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
        """See LatentPrior."""
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
        """See FactoredPrior."""
        return self.A

    def factor_at(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "r m"], Float[Array, " m"]]:
        """See FactoredPrior: without a residual."""
        F = self.kernel.features(X_new)
        A = F.T if self.turn is None else self.turn.T @ F.T
        return A, jnp.zeros(len(X_new), self.A.dtype)

    def coefficients(self, coordinates: Float[Array, "r l"]) -> Float[Array, "c l"]:
        """See FactoredPrior."""
        return coordinates if self.turn is None else self.turn @ coordinates

    def basis(self, X_new: Float[Array, "m d"]) -> Float[Array, "m c"]:
        """See FactoredPrior: the kernel's features."""
        return self.kernel.features(X_new)

    def residual_covariance(self, X_new: Float[Array, "m d"]) -> Float[Array, "m m"]:
        """See FactoredPrior: zero."""
        return jnp.zeros((len(X_new), len(X_new)), self.A.dtype)

    def resized(self, size: int) -> "CoefficientPrior":
        """See LatentPrior."""
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
        """See LatentPrior: the truncation error of the pivots."""
        return self.truncation_error

    @property
    def rank(self) -> int:
        """The number of whitened coordinates of one latent, padding included."""
        return len(self.Z)

    def cross(self, X_new: Float[Array, "m d"]) -> Float[Array, "r m"]:
        """K(Z, X_new), zero where coordinates are not active."""
        return self.active[:, None] * self.kernel(self.Z, X_new)

    def factor_at(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "r m"], Float[Array, " m"]]:
        """See FactoredPrior: A = L_Z^-1 K(Z, X_new)."""
        A = solve_triangular(self.root, self.cross(X_new), lower=True)
        return with_residual(A, self.kernel.diagonal(X_new))


class LowRankPrior(InducingPointPrior):
    """The prior with a pivoted Cholesky factor, K = A^T A up to ``truncation_error``, the largest residual variance.

    Z are the pivots' inputs.
    """

    A: Float[Array, "r n"]

    def resized(self, size: int) -> "LowRankPrior":
        """See LatentPrior."""
        return replace(self, **self._resized_rows(size))

    def _resized_rows(self, size: int) -> dict[str, Any]:
        """The fields with one row per datum, truncated or padded."""
        A = pad_rows(np.asarray(self.A).T, size).T
        return {"X": as_array(pad_rows(self.X, size)), "A": as_array(A)}

    def neglected_variance(self) -> Float[Array, " n"]:
        """See LatentPrior."""
        return jnp.abs(self.kernel.diagonal(self.X) - self._diagonal())

    def with_mean(self, mean: Array) -> "LowRankPrior":
        """See LatentPrior."""
        return replace(self, mean=mean)

    @property
    def factor(self) -> Float[Array, "r n"]:
        """See FactoredPrior."""
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
