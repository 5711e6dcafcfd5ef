"""Priors through the latents at few inputs, and the one by a pivoted Cholesky factor of its covariance."""

from dataclasses import fields, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from pgmodels.compiled import compiled
from pgmodels.latent import algebra
from pgmodels.latent.factored import FactoredPrior, with_residual
from pgmodels.latent.rows import resize_rows
from pgmodels.precision import as_array


class LowRankState(NamedTuple):
    """The root of P = I + A W A^T, and E v."""

    root: Float[Array, "r r"]
    centre: Float[Array, " r"]


class SpannedPrior(FactoredPrior):
    """A prior through the latents at few inputs Z: its factor is A = L_Z^-1 K(Z, X).

    Z and L_Z are padded to a multiple of 16 coordinates, which have no influence (``active`` is 0 there), so that
    nearly equal ranks share one compiled program. Rows that fill up the data are the first row again. A posterior's
    state has the ``root`` of P = I + A W A^T and E v, the ``centre``.
    """

    fills: ClassVar[bool] = True

    kernel: Any
    mean: Float[Array, ""]
    X: Float[Array, "n d"]
    Z: Float[Array, "r d"]
    root: Float[Array, "r r"]
    active: Float[Array, " r"]
    truncation: Float[Array, ""]
    size: int = eqx.field(static=True)

    def _resized_state(self, state: Any, size: int) -> Any:
        return state

    @property
    def neglected(self) -> Float[Array, ""]:
        """See LatentPrior: what the pivots leave out."""
        return self.truncation

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

    def sweep_operations(self) -> float:
        """See LatentPrior."""
        r, n = self.rank, len(self.X)
        return n * r**2 + r**3 / 3 + 6 * n * r + 4 * r**2

    def _mean_and_deviation(self, state: Any, noise: Array) -> tuple[Array, Array]:
        return state.centre, algebra.factor_noise(state.root, noise[0])

    def _cross(self, X_new: Array) -> tuple[Array, Array]:
        return self.factor_at(X_new)

    def _predict(self, state: Any, cross: tuple[Array, Array]) -> tuple[Array, Array]:
        A_new, residual = cross
        variance = residual + jnp.sum(algebra.factor_half_covariance(state.root, A_new) ** 2, axis=0)
        return state.centre @ A_new, variance

    def _taken(self, state: Any, cross: tuple[Array, Array]) -> Array:
        U = algebra.factor_half_covariance(state.root, cross[0])
        return cross[0].T @ cross[0] - U.T @ U


class LowRankPrior(SpannedPrior):
    """The prior by a pivoted Cholesky factor, K = A^T A up to ``truncation``, the largest neglected variance.

    Z are the pivots' inputs.
    """

    A: Float[Array, "r n"]

    def resized(self, size: int) -> "LowRankPrior":
        """See LatentPrior."""
        return replace(self, **self._resized_rows(size))

    def _resized_rows(self, size: int) -> dict[str, Any]:
        """What has a row a datum, at other rows."""
        A = resize_rows(np.asarray(self.A).T, size).T
        return {"X": as_array(resize_rows(self.X, size)), "A": as_array(A)}

    def with_mean(self, mean: Array) -> "LowRankPrior":
        """See LatentPrior."""
        return replace(self, mean=mean)

    @property
    def factor(self) -> Float[Array, "r n"]:
        """See FactoredPrior."""
        return self.A

    def _diagonal(self) -> Array:
        return jnp.sum(self.A**2, axis=0)

    def _colour(self, whitened: Array) -> Array:
        # In this order A is read as it lies: three times faster for few columns.
        return jnp.swapaxes(jnp.swapaxes(whitened, -1, -2) @ self.A, -1, -2)

    def _condition(self, h: Array, w: Array) -> LowRankState:
        root = algebra.factor_root(self.A, w)
        return LowRankState(root, algebra.factor_mean(self.A, root, h))

    def _moments(self, state: LowRankState) -> tuple[Array, Array]:
        variance = jnp.sum(algebra.factor_half_covariance(state.root, self.A) ** 2, axis=0)
        return state.centre @ self.A, variance

    def _log_normalizer(self, state: LowRankState, h: Array) -> Array:
        return algebra.factor_log_normalizer(self.A, state.root, h, state.centre)

    def _divergence(self, state: LowRankState, w: Array, mean: Array, variance: Array) -> Array:
        return algebra.factor_divergence(state.root, state.centre, w, variance)

    def _covariance(self, state: LowRankState) -> Array:
        U = algebra.factor_half_covariance(state.root, self.A)
        return U.T @ U

    def _cross_covariance(self, state: LowRankState, cross: tuple[Array, Array]) -> Array:
        return algebra.factor_half_covariance(state.root, cross[0]).T @ algebra.factor_half_covariance(
            state.root, self.A
        )


def span_of(prior: SpannedPrior) -> LowRankPrior:
    """What the inputs Z of a prior span, without the residual that they leave, and with A."""
    return LowRankPrior(A=prior.factor, **{field.name: getattr(prior, field.name) for field in fields(SpannedPrior)})


class Span(NamedTuple):
    """Inputs (r, d), marks of those that are active, and the jitter of their matrix relative to its variances."""

    Z: Float[Array, "r d"]
    active: Float[Array, " r"]
    jitter: Float[Array, ""]


def low_rank_at(kernel: Any, mean: Array, X: Float[Array, "n d"], span: Span, size: int) -> LowRankPrior:
    """The prior through given inputs, of which those that are not active have no influence; can be compiled.

    It is differentiable in the hyperparameters, pivots held: what they neglect stays small near where they were chosen.
    """
    Z, active, _ = span
    root, neglected = root_at(kernel, span), span.jitter * jnp.max(kernel.diagonal(X))
    A = solve_triangular(root, active[:, None] * kernel(Z, X), lower=True)
    return LowRankPrior(
        kernel=kernel, mean=mean, X=X, A=A, Z=Z, root=root, active=active, truncation=neglected, size=size
    )


def root_at(kernel: Any, span: Span) -> Float[Array, "r r"]:
    """L_Z, that of the identity at coordinates that are not active."""
    active, K = span.active, kernel(span.Z, span.Z)
    jitter = span.jitter * own_variances(jnp.diagonal(K))
    return jnp.linalg.cholesky(active[:, None] * K * active + jnp.diag(1.0 - active + jitter * active))


@partial(compiled, lightly=True)
def own_variances(diagonal: Float[Array, " r"]) -> Float[Array, " r"]:
    """What jitter is relative to: each variance, or the least positive one where there is none."""
    positive = diagonal > 0.0
    return jnp.where(positive, diagonal, jnp.min(diagonal, where=positive, initial=jnp.inf))
