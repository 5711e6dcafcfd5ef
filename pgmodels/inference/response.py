"""How the marginals of the latents follow the hyperparameters, to first order."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from pgmodels.latent.surrogate import Marginals

# Beyond so many standard deviations of the hyperparameters a straight line is no guide.
_FURTHEST = 3.0


class Response(eqx.Module):
    """Marginals of the latents whose means and log standard deviations are linear in the hyperparameters.

    Slopes are for the coordinates z = scale^-1 (vector - middle) of an unconstrained vector, up to +-3.
    """

    mean: Float[Array, "n L"]
    covariance: Float[Array, "n L L"]
    middle: Float[Array, " d"]
    scale: Float[Array, "d d"]
    mean_slope: Float[Array, "d n L"]
    log_deviation_slope: Float[Array, "d n L"]

    def at(self, vector: Float[Array, " d"]) -> Marginals:
        """Means and covariances at given hyperparameters."""
        z = solve_triangular(self.scale, vector - self.middle, lower=True)
        z = jnp.clip(z, -_FURTHEST, _FURTHEST)
        factor = jnp.exp(jnp.einsum("d,dil->il", z, self.log_deviation_slope))
        mean = self.mean + jnp.einsum("d,dil->il", z, self.mean_slope)
        return mean, factor[:, :, None] * self.covariance * factor[:, None, :]


def constant_response(marginals: Marginals, vector: Any) -> Response:
    """Marginals that are the same everywhere."""
    slope = jnp.zeros((len(vector), *marginals[0].shape))
    return Response(*marginals, vector, jnp.eye(len(vector)), slope, slope)


def linear_response(
    marginals: Marginals, middle: Any, scale: Any, neighbours: Sequence[tuple[Marginals, Marginals]]
) -> Response:
    """Through the marginals at ``middle``, with slopes from those at middle +- each column of ``scale``."""
    mean_slopes = [(up[0] - down[0]) / 2.0 for up, down in neighbours]
    log_slopes = [(_log_deviation(up) - _log_deviation(down)) / 2.0 for up, down in neighbours]
    # A fit that failed at a neighbour gives no slope: what is made of these marginals is a proposal, and stays one.
    slopes = [jnp.nan_to_num(jnp.stack(s), nan=0.0, posinf=0.0, neginf=0.0) for s in (mean_slopes, log_slopes)]
    return Response(*marginals, middle, scale, *slopes)


def _log_deviation(marginals: Marginals) -> Any:
    return 0.5 * jnp.log(jnp.diagonal(marginals[1], axis1=1, axis2=2))
