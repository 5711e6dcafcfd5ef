"""How the Gaussian near the posterior follows the hyperparameters, to first order."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from pgmodels.latent.joint import JointPrior
from pgmodels.latent.surrogate import Marginals, Surrogate

# Beyond so many standard deviations of the hyperparameters a straight line is no guide.
_FURTHEST = 3.0


class Response(eqx.Module):
    """A fitted Gaussian at ``middle``, and how it changes with z = scale^-1 (vector - middle).

    Linear in z are the means and log standard deviations of the latents, up to +-3, and the centre in whitened
    coordinates. ``surrogate`` is None where the standard coordinates are not needed.
    """

    surrogate: Surrogate | None
    mean: Float[Array, "n L"]
    covariance: Float[Array, "n L L"]
    middle: Float[Array, " d"]
    scale: Float[Array, "d d"]
    mean_slope: Float[Array, "d n L"]
    log_deviation_slope: Float[Array, "d n L"]
    centre_slope: Float[Array, "d D"]

    def at(self, vector: Float[Array, " d"]) -> Marginals:
        """Means and covariances of the latents at given hyperparameters."""
        z = jnp.clip(self._z(vector), -_FURTHEST, _FURTHEST)
        factor = jnp.exp(jnp.einsum("d,dil->il", z, self.log_deviation_slope))
        mean = self.mean + jnp.einsum("d,dil->il", z, self.mean_slope)
        return mean, factor[:, :, None] * self.covariance * factor[:, None, :]

    def standardise(self, vector: Float[Array, " d"], whitened: Float[Array, " D"]) -> Float[Array, " d+D"]:
        """Coordinates (z, u), nearly standard normal where the Gaussian is near the posterior.

        With ``whitened`` = centre + slope^T z + R^-T u. The Jacobian is constant.
        """
        assert self.surrogate is not None
        z = self._z(vector)
        return jnp.concatenate([z, self.surrogate.standardise(whitened - z @ self.centre_slope)])

    def place(self, standard: Float[Array, " d+D"]) -> tuple[Float[Array, " d"], Float[Array, " D"]]:
        """Hyperparameters and whitened coordinates of standard ones."""
        assert self.surrogate is not None
        z, u = jnp.split(standard, [len(self.middle)])
        whitened = self.surrogate.centre + z @ self.centre_slope + self.surrogate.deviation(u)
        return self.middle + self.scale @ z, whitened

    def _z(self, vector: Float[Array, " d"]) -> Float[Array, " d"]:
        return solve_triangular(self.scale, vector - self.middle, lower=True)


# A fitted Gaussian and the marginals at which its factors were made.
Fit = tuple[Surrogate, Marginals]


def constant_response(fit: Fit, vector: Any) -> Response:
    """A Gaussian whose marginals and whitened centre are the same everywhere."""
    surrogate, marginals = fit
    slope = jnp.zeros((len(vector), *marginals[0].shape))
    still = jnp.zeros((len(vector), len(surrogate.centre)))
    return Response(_alone(surrogate), *marginals, vector, jnp.eye(len(vector)), slope, slope, still)


def linear_response(fit: Fit, middle: Any, scale: Any, neighbours: Sequence[tuple[Fit, Fit]]) -> Response:
    """Through the fit at ``middle``, with slopes from those at middle +- each column of ``scale``."""
    slopes = [
        jnp.stack([(of(up) - of(down)) / 2.0 for up, down in neighbours]) for of in (_mean, _log_deviation, _centre)
    ]
    # A fit that failed at a neighbour gives no slope: what is made of this is a proposal, and stays one.
    slopes = [jnp.nan_to_num(slope, nan=0.0, posinf=0.0, neginf=0.0) for slope in slopes]
    return Response(_alone(fit[0]), *fit[1], middle, scale, *slopes)


def _alone(surrogate: Surrogate) -> Surrogate:
    """Without its prior, whose matrices are large and say nothing of the whitened coordinates."""
    return replace(surrogate, prior=JointPrior((), ()))


def _mean(fit: Fit) -> Any:
    return fit[1][0]


def _log_deviation(fit: Fit) -> Any:
    return 0.5 * jnp.log(jnp.diagonal(fit[1][1], axis1=1, axis2=2))


def _centre(fit: Fit) -> Any:
    return fit[0].centre
