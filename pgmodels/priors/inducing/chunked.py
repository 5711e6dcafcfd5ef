"""The prior by inducing inputs where its factor is too large to hold: computed again in each pass over the rows."""

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


class StreamedState(NamedTuple):
    """The root of P = I + A W A^T, E v, A h, and sum w residual / 2."""

    root: Float[Array, "r r"]
    centre: Float[Array, " r"]
    pulled: Float[Array, " r"]
    loss: Float[Array, ""]


class ChunkedInducingPrior(InducingPointPrior):
    """``InducingPrior`` in O(n + M^2) memory: rows come in chunks, A_c = L_Z^-1 K(Z, X_c) anew in each pass over them.

    A posterior takes two passes: one sums A W A^T and A h, the other finds means and variances. In reverse mode each
    chunk is computed once more. Products with L_Z^-1 take the place of solving with L_Z: they are three times as fast.
    Where A itself is asked for, as by ``gibbs`` and ``correct``, it is there as long as they use it. Raises ValueError
    where n x n covariances of the rows are asked for.
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
        """The variance at X that the latents at Z leave."""
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

    def _condition(self, h: Array, w: Array) -> StreamedState:
        whitener = algebra.inverse_root(self.root)

        def chunk_terms(X: Array, h: Array, w: Array) -> tuple[Array, Array]:
            A = whitener @ self.cross(X)
            scaled = A * jnp.sqrt(w)
            return scaled @ scaled.T, A @ h

        start = jnp.eye(self.rank, dtype=self.root.dtype), jnp.zeros(self.rank, self.root.dtype)
        precision, pulled = summed(chunk_terms, start, self.rank, self.X, h, w)
        root = jnp.linalg.cholesky(precision)
        return StreamedState(root, cho_solve((root, True), pulled), pulled, 0.5 * w @ self.residual)

    def _moments(self, state: StreamedState) -> tuple[Array, Array]:
        whitener = algebra.inverse_root(self.root)
        weights, half = whitener.T @ state.centre, solve_triangular(state.root, whitener, lower=True)

        def one(X: Array) -> tuple[Array, Array]:
            K = self.cross(X)
            return weights @ K, jnp.sum((half @ K) ** 2, axis=0)

        mean, variance = each_row(one, self.rank, self.X)
        return mean, variance + self.residual

    def _log_normalizer(self, state: StreamedState, h: Array) -> Array:
        del h
        return 0.5 * state.pulled @ state.centre - jnp.sum(jnp.log(jnp.diagonal(state.root))) - state.loss

    def _divergence(self, state: StreamedState, w: Array, mean: Array, variance: Array) -> Array:
        return algebra.factor_divergence(state.root, state.centre, w, variance - self.residual)

    def _covariance(self, state: StreamedState) -> Array:
        raise self._too_many()

    def _cross_covariance(self, state: StreamedState, cross: tuple[Array, Array]) -> Array:
        raise self._too_many()

    def _too_many(self) -> ValueError:
        return ValueError(
            f"covariances of {len(self.X):,} rows with each other are more than is held of so many: take "
            "pgm.correct(result), by linear response, which needs none of them, or fewer rows."
        )


def chunked_prior_at(
    kernel: Any, mean: Array, X: Float[Array, "n d"], span: InducingPoints, size: int
) -> ChunkedInducingPrior:
    """The prior with given inducing inputs, of which those that are not active have no influence; can be compiled."""
    prior = ChunkedInducingPrior(
        kernel=kernel,
        mean=mean,
        X=X,
        Z=span.Z,
        root=root_at(kernel, span),
        active=span.active,
        truncation=span.jitter * jnp.max(kernel.diagonal(X)),
        size=size,
        residual=jnp.zeros(len(X)),
    )
    return replace(prior, residual=prior.compute_residual())
