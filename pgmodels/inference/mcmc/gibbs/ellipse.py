"""The ellipses on which slice steps move hyperparameters where no Gaussian of the latents is fitted."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from pgmodels.runtime.pickling import Module
from pgmodels.runtime.x64 import as_array


class Ellipse(Module):
    """Middle and scale of unconstrained hyperparameters."""

    middle: Float[Array, " d"]
    scale: Float[Array, "d d"]

    def standard(self, difference: Float[Array, " d"]) -> Float[Array, " d"]:
        """A difference of hyperparameters in standard coordinates."""
        return solve_triangular(self.scale, difference, lower=True)

    def of_entries(self, entries: np.ndarray) -> "Ellipse":
        """The ellipse of some of the hyperparameters."""
        rows = self.scale[entries]
        return Ellipse(self.middle[entries], jnp.linalg.cholesky(rows @ rows.T))


def ellipse_of(vectors: np.ndarray) -> Ellipse:
    """Mean and Cholesky factor of the covariance of the later half of hyperparameters (draws, d)."""
    recent = vectors[len(vectors) // 2 :]
    middle: Any = recent.mean(axis=0)
    covariance = np.atleast_2d(np.cov(recent.T))
    # With few and dependent draws, shrink correlations towards 0, so that no direction is degenerate.
    covariance = 0.9 * covariance + 0.1 * np.diag(np.diag(covariance)) + 1e-4 * np.eye(len(covariance))
    scale: Any = np.linalg.cholesky(covariance)
    return Ellipse(as_array(middle), as_array(scale))
