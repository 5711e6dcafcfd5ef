"""Gaussian posteriors with a corrected mean and covariance of the whitened coordinates."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Key

from pgmodels.priors.block_posterior import together
from pgmodels.priors.collection import Coordinates, PriorCollection
from pgmodels.priors.posterior import Posterior
from pgmodels.runtime.pickling import Module


class CorrectedGaussian(Module):
    """A Gaussian of the latents' whitened coordinates, v = centre + half u with u standard normal.

    ``log_determinant`` is log |det half|.
    """

    prior: PriorCollection
    centre: Float[Array, " D"]
    half: Float[Array, "D D"]
    log_determinant: Float[Array, ""]

    def draw(self, key: Key[Array, ""]) -> tuple[Float[Array, "n L"], Coordinates]:
        """A joint draw of the latents at the data, and its coordinates by group."""
        v = self.prior.unflatten(self.centre + self.half @ jax.random.normal(key, self.centre.shape))
        return self.prior.sample_given(key, v), v

    def place(self, keys: Any, noise: Float[Array, "S D"]) -> tuple[Float[Array, "S n L"], Float[Array, " S"]]:
        """The latents at the data for standard normal u, and log p(f) minus the log density of the draw.

        ``keys`` (S,), which may have drawn u, draw the residual of the latents given the coordinates.
        """
        v = self.centre + noise @ self.half.T
        log_ratio = 0.5 * jnp.sum(noise**2 - v**2, axis=1) + self.log_determinant
        return jax.vmap(self.prior.sample_given)(keys, jax.vmap(self.prior.unflatten)(v)), log_ratio

    def log_density_ratio(self, coordinates: Coordinates) -> Float[Array, " S"]:
        """The log density of coordinates by group, (S, rank, latents of the group) each, minus that of the prior."""
        v = jax.vmap(self.prior.flatten)(coordinates)
        u = jnp.linalg.solve(self.half, (v - self.centre).T).T
        return 0.5 * jnp.sum(v**2 - u**2, axis=1) - self.log_determinant


def move(posterior: Posterior, shift: Any, response: Any, share: Any = 1.0) -> CorrectedGaussian:
    """The mean moved by ``shift``, and ``response`` added to the covariance, P^-1, of a posterior's coordinates.

    With a ``share`` below 1 of the data's precisions it is wider: where the data are weak, its tails are the prior's.
    """
    (posterior_root,), gaussian = together(posterior).roots, together(posterior, share)
    (R,) = gaussian.roots
    turned = solve_triangular(R, posterior_root @ posterior_root.T, lower=True)
    S = jnp.eye(len(R), dtype=R.dtype) + turned @ response @ turned.T
    root = jnp.linalg.cholesky(0.5 * (S + S.T))
    half = solve_triangular(R, jnp.column_stack([turned @ shift, root]), trans="T", lower=True)
    log_determinant = jnp.sum(jnp.log(jnp.diagonal(root))) - jnp.sum(jnp.log(jnp.diagonal(R)))
    return CorrectedGaussian(gaussian.prior, gaussian.centre + half[:, 0], half[:, 1:], log_determinant)
