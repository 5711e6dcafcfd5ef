"""The surrogate as a function of the hyperparameters, to first order."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from pgmodels.inference.mcmc.gibbs.preconditioner import FURTHEST, constant_preconditioner, log_lengths
from pgmodels.inference.mcmc.gibbs.surrogate_fit import Fit
from pgmodels.priors.posterior import Marginals
from pgmodels.runtime.pickling import Module
from pgmodels.runtime.x64 import as_array


class SurrogatePath(Module):
    """A Gaussian fitted at ``middle``, as a function of z = scale^-1 (vector - middle).

    Means and log standard deviations of the latents are linear in z, with z clipped to [-3, 3]. ``preconditioner`` is
    None if no move needs standard coordinates.
    """

    preconditioner: Any
    mean: Float[Array, "n L"]
    covariance: Float[Array, "n L L"]
    middle: Float[Array, " d"]
    scale: Float[Array, "d d"]
    mean_slope: Float[Array, "d n L"]
    log_deviation_slope: Float[Array, "d n L"]

    def at(self, vector: Float[Array, " d"]) -> Marginals:
        """Means and covariances of the latents at given hyperparameters."""
        z = jnp.clip(self.standard(vector - self.middle), -FURTHEST, FURTHEST)
        factor = jnp.exp(jnp.einsum("d,dil->il", z, self.log_deviation_slope))
        mean = self.mean + jnp.einsum("d,dil->il", z, self.mean_slope)
        return mean, factor[:, :, None] * self.covariance * factor[:, None, :]

    def standardise(self, vector: Float[Array, " d"], whitened: Float[Array, " D"]) -> Float[Array, " d+D"]:
        """Coordinates (z, u), nearly standard normal if the Gaussian is close to the posterior."""
        z = self.standard(vector - self.middle)
        return jnp.concatenate([z, self.preconditioner.standardise(z, whitened)])

    def place(self, standard: Float[Array, " both"]) -> tuple[Float[Array, " d"], Float[Array, " D"]]:
        """Hyperparameters and whitened coordinates of standard coordinates."""
        z, u = jnp.split(standard, [len(self.middle)])
        return self.middle + self.scale @ z, self.preconditioner.place(z, u)

    def log_jacobian(self, standard: Float[Array, " both"]) -> Array:
        """The log determinant of the map from standard coordinates, up to a constant."""
        return self.preconditioner.log_jacobian(standard[: len(self.middle)])

    def standard(self, difference: Float[Array, " d"]) -> Float[Array, " d"]:
        """A difference of hyperparameters in standard coordinates."""
        return solve_triangular(self.scale, difference, lower=True)


def constant_path(fit: Fit, vector: Any, preconditioned: bool) -> SurrogatePath:
    """A Gaussian that does not depend on the hyperparameters; with standard coordinates if ``preconditioned``."""
    slope = as_array(np.zeros((len(vector), *fit.marginals[0].shape)))
    preconditioner = constant_preconditioner(fit.surrogate, len(vector)) if preconditioned else None
    return SurrogatePath(preconditioner, *fit.marginals, vector, as_array(np.eye(len(vector))), slope, slope)


def linear_path(
    fit: Fit, middle: Any, scale: Any, neighbours: Sequence[tuple[Fit, Fit]], preconditioned: bool
) -> SurrogatePath:
    """The fit at ``middle``, with slopes from fits at middle ± each column of ``scale``."""

    def slope(of: Callable[[Fit], Any]) -> Any:
        return jnp.stack([(of(up) - of(down)) / 2.0 for up, down in neighbours])

    preconditioner = None
    if preconditioned:
        constant = constant_preconditioner(fit.surrogate, len(middle))
        lengths = slope(lambda fit: log_lengths(fit.surrogate, constant.axes))
        preconditioner = replace(constant, slope=slope(lambda fit: fit.surrogate.centre), log_length_slope=lengths)
    return SurrogatePath(preconditioner, *fit.marginals, middle, scale, slope(_mean), slope(_log_deviation))


def _mean(fit: Fit) -> Any:
    return fit.marginals[0]


def _log_deviation(fit: Fit) -> Any:
    return 0.5 * jnp.log(jnp.diagonal(fit.marginals[1], axis1=1, axis2=2))
