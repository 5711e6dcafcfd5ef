"""Coordinates that depend on the hyperparameters, in which the latents' posterior is nearly standard normal."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from pgmodels.priors.block_posterior import BlockPosterior
from pgmodels.priors.blocks import split_over
from pgmodels.runtime.pickling import Module

# Linear extrapolation is clipped at this many standard deviations of the hyperparameters.
FURTHEST = 3.0


class Preconditioner(Module):
    """Coordinates u of whitened coordinates v = centre + slope^T z + sum over axes of axis · length(z) · u.

    z are the standardised hyperparameters. ``axes`` are orthonormal, one matrix for each block of latents; the
    logarithms of their lengths are linear in z, clipped to [-3, 3].
    """

    centre: Float[Array, " D"]
    slope: Float[Array, "d D"]
    axes: tuple[Array, ...]
    log_length: Float[Array, " D"]
    log_length_slope: Float[Array, "d D"]

    def standardise(self, z: Float[Array, " d"], whitened: Float[Array, " D"]) -> Float[Array, " D"]:
        """The coordinates u of whitened coordinates."""
        blocks = split_over(self.axes, whitened - self.centre - z @ self.slope)
        turned = jnp.concatenate([axes.T @ block for axes, block in zip(self.axes, blocks, strict=True)])
        return jnp.exp(-self._log_lengths(z)) * turned

    def place(self, z: Float[Array, " d"], u: Float[Array, " D"]) -> Float[Array, " D"]:
        """The whitened coordinates of u."""
        blocks = split_over(self.axes, jnp.exp(self._log_lengths(z)) * u)
        turned = jnp.concatenate([axes @ block for axes, block in zip(self.axes, blocks, strict=True)])
        return self.centre + z @ self.slope + turned

    def log_jacobian(self, z: Float[Array, " d"]) -> Array:
        """The log determinant of the map from u to whitened coordinates."""
        return jnp.sum(self._log_lengths(z))

    def _log_lengths(self, z: Array) -> Array:
        return self.log_length + jnp.clip(z, -FURTHEST, FURTHEST) @ self.log_length_slope


def constant_preconditioner(surrogate: BlockPosterior, num_unknowns: int) -> Preconditioner:
    """The principal axes of a Gaussian, independent of the hyperparameters."""
    values, axes = zip(*(jnp.linalg.eigh(root @ root.T) for root in surrogate.roots), strict=True)
    # All are at least 1, up to rounding.
    precisions = jnp.maximum(jnp.concatenate(values), 1.0)
    zeros = jnp.zeros((num_unknowns, len(surrogate.centre)))
    return Preconditioner(surrogate.centre, zeros, tuple(axes), -0.5 * jnp.log(precisions), zeros)


def log_lengths(surrogate: BlockPosterior, axes: tuple[Any, ...]) -> Any:
    """The logarithms of a Gaussian's conditional standard deviations along given axes."""
    pairs = zip(surrogate.roots, axes, strict=True)
    return -0.5 * jnp.log(jnp.concatenate([jnp.sum((root.T @ directions) ** 2, axis=0) for root, directions in pairs]))
