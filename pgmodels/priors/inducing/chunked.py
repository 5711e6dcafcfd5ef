"""The inducing-point prior without its factor in memory: it is recomputed in each pass over the rows."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from pgmodels.priors import linalg as algebra
from pgmodels.priors.chunking import each_row, summed
from pgmodels.priors.factored import with_residual
from pgmodels.priors.inducing.fic import FICPrior
from pgmodels.priors.low_rank import InducingPointPrior, InducingPoints, inducing_points_of, root_at
from pgmodels.priors.padding import pad_rows
from pgmodels.runtime.x64 import as_array


class ChunkedState(NamedTuple):
    """The root of P = I + A W A^T, E v, A h, and sum w residual / 2."""

    root: Float[Array, "r r"]
    centre: Float[Array, " r"]
    pulled: Float[Array, " r"]
    loss: Float[Array, ""]


class ChunkedInducingPrior(InducingPointPrior):
    """``InducingPrior`` in O(n + M^2) memory: rows come in chunks, A_c = L_Z^-1 K(Z, X_c) anew in each pass over them.

    A posterior takes two passes: one sums A W A^T and A h, the other computes means and variances. Reverse mode
    recomputes each chunk. Products with L_Z^-1 replace triangular solves: they are three times as fast. A itself is
    computed on demand, as for ``gibbs`` and ``correct``. Raises ValueError if n x n covariances are requested.
    """

    residual: Float[Array, " n"]

    def resized(self, size: int) -> "ChunkedInducingPrior":
        """See LatentPrior."""
        X, residual = (as_array(pad_rows(part, size)) for part in (self.X, self.residual))
        return replace(self, X=X, residual=residual)

    def residual_variance(self) -> Float[Array, " n"]:
        """See LatentPrior."""
        return self.residual

    def for_sampling(self) -> FICPrior:
        """See LatentPrior: with A."""
        return FICPrior(inducing_points_of(self), self.residual)

    @property
    def factor(self) -> Float[Array, "r n"]:
        """See FactoredPrior."""
        return self.factor_at(self.X)[0]

    def compute_residual(self) -> Float[Array, " n"]:
        """The variance at X given the latents at Z."""
        whitener = algebra.inverse_root(self.root)
        return each_row(
            lambda X: with_residual(whitener @ self.cross(X), self.kernel.diagonal(X))[1], self.rank, self.X
        )

    def _diagonal(self) -> Array:
        return self.kernel.diagonal(self.X)

    def _colour(self, whitened: Array) -> Array:
        weights = algebra.inverse_root(self.root).T @ whitened
        rows = each_row(lambda X: jnp.moveaxis(self.cross(X).T @ weights, -2, 0), self.rank, self.X)
        return jnp.moveaxis(rows, 0, -2)

    def _condition(self, h: Array, w: Array) -> ChunkedState:
        whitener = algebra.inverse_root(self.root)

        def chunk_terms(X: Array, h: Array, w: Array) -> tuple[Array, Array]:
            A = whitener @ self.cross(X)
            scaled = A * jnp.sqrt(w)
            return scaled @ scaled.T, A @ h

        start = jnp.eye(self.rank, dtype=self.root.dtype), jnp.zeros(self.rank, self.root.dtype)
        precision, pulled = summed(chunk_terms, start, self.rank, self.X, h, w)
        root = jnp.linalg.cholesky(precision)
        return ChunkedState(root, cho_solve((root, True), pulled), pulled, 0.5 * w @ self.residual)

    def _moments(self, state: ChunkedState) -> tuple[Array, Array]:
        whitener = algebra.inverse_root(self.root)
        weights, half = whitener.T @ state.centre, solve_triangular(state.root, whitener, lower=True)

        def one(X: Array) -> tuple[Array, Array]:
            K = self.cross(X)
            return weights @ K, jnp.sum((half @ K) ** 2, axis=0)

        mean, variance = each_row(one, self.rank, self.X)
        return mean, variance + self.residual

    def _log_normalizer(self, state: ChunkedState, h: Array) -> Array:
        del h
        return 0.5 * state.pulled @ state.centre - jnp.sum(jnp.log(jnp.diagonal(state.root))) - state.loss

    def _divergence(self, state: ChunkedState, w: Array, mean: Array, variance: Array) -> Array:
        return algebra.factor_divergence(state.root, state.centre, w, variance - self.residual)

    def _covariance(self, state: ChunkedState) -> Array:
        raise self._too_many()

    def _cross_covariance(self, state: ChunkedState, cross: tuple[Array, Array]) -> Array:
        raise self._too_many()

    def _too_many(self) -> ValueError:
        return ValueError(
            f"covariances between all {len(self.X):,} rows do not fit into memory: use pgm.correct(result), by linear "
            "response, which does not need them, or fewer rows."
        )


def chunked_prior_at(
    kernel: Any, mean: Array, X: Float[Array, "n d"], span: InducingPoints, size: int
) -> ChunkedInducingPrior:
    """The prior with given inducing inputs; usable under ``jit``."""
    prior = ChunkedInducingPrior(
        kernel=kernel,
        mean=mean,
        X=X,
        Z=span.Z,
        root=root_at(kernel, span),
        active=span.active,
        truncation_error=span.jitter * jnp.max(kernel.diagonal(X)),
        size=size,
        residual=jnp.zeros(len(X)),
    )
    return replace(prior, residual=prior.compute_residual())
