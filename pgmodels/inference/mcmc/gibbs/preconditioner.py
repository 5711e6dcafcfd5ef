"""Coordinates of the latents that follow the hyperparameters, in which the posterior is nearly standard normal."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from pgmodels.priors.block_posterior import BlockPosterior
from pgmodels.priors.blocks import split_over
from pgmodels.runtime.pickling import Module

# Linear extrapolation is clipped at this many standard deviations of the hyperparameters.
FURTHEST = 3.0


class Preconditioner(Module):
    """Coordinates u of whitened ones: v = centre + slope^T z + sum of axes, each times its length at z and its u.

    z are the standardised hyperparameters. ``axes`` are orthonormal, a matrix a block of latents, which follow one
    another; their lengths' logs are linear in z, up to +-3.
    """

    centre: Float[Array, " D"]
    slope: Float[Array, "d D"]
    axes: tuple[Array, ...]
    log_length: Float[Array, " D"]
    log_length_slope: Float[Array, "d D"]

    def standardise(self, z: Float[Array, " d"], whitened: Float[Array, " D"]) -> Float[Array, " D"]:
        """u of whitened coordinates."""
        blocks = split_over(self.axes, whitened - self.centre - z @ self.slope)
        turned = jnp.concatenate([axes.T @ block for axes, block in zip(self.axes, blocks, strict=True)])
        return jnp.exp(-self._log_lengths(z)) * turned

    def place(self, z: Float[Array, " d"], u: Float[Array, " D"]) -> Float[Array, " D"]:
        """Whitened coordinates of u."""
        blocks = split_over(self.axes, jnp.exp(self._log_lengths(z)) * u)
        turned = jnp.concatenate([axes @ block for axes, block in zip(self.axes, blocks, strict=True)])
        return self.centre + z @ self.slope + turned

    def log_jacobian(self, z: Float[Array, " d"]) -> Array:
        """The log of the volume that a unit of u takes."""
        return jnp.sum(self._log_lengths(z))

    def _log_lengths(self, z: Array) -> Array:
        return self.log_length + jnp.clip(z, -FURTHEST, FURTHEST) @ self.log_length_slope


def constant_preconditioner(surrogate: BlockPosterior, num_unknowns: int) -> Preconditioner:
    """The principal axes of a Gaussian, the same everywhere."""
    values, axes = zip(*(jnp.linalg.eigh(root @ root.T) for root in surrogate.roots), strict=True)
    # All are 1 at least, but for rounding.
    precisions = jnp.maximum(jnp.concatenate(values), 1.0)
    zeros = jnp.zeros((num_unknowns, len(surrogate.centre)))
    return Preconditioner(surrogate.centre, zeros, tuple(axes), -0.5 * jnp.log(precisions), zeros)


def log_lengths(surrogate: BlockPosterior, axes: tuple[Any, ...]) -> Any:
    """How far a Gaussian reaches along given axes, all others held: the logs of its conditional deviations."""
    pairs = zip(surrogate.roots, axes, strict=True)
    return -0.5 * jnp.log(jnp.concatenate([jnp.sum((root.T @ directions) ** 2, axis=0) for root, directions in pairs]))
