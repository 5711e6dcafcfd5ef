"""First-order derivatives of dense posteriors' moments with respect to sites, as products with their covariances."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from pgmodels.priors import linalg as algebra
from pgmodels.priors.base import Sites
from pgmodels.priors.dense import DensePrior
from pgmodels.priors.factored import centred
from pgmodels.priors.lapack_loops import over_latents, over_states

# Sites with a precision below this fraction of the prior precision have negligible influence on other latents.
_SILENT = 1e-7


class Expansion(NamedTuple):
    """Posteriors of independent latents with one dense prior, and derivatives of their moments in the sites.

    ``mean`` (prior mean subtracted) and ``variance`` at the data are (l, n), KL(q || prior) is (l,). The covariance is
    stored as ``taken`` = W^1/2 Sigma W^1/2 = I - B^-1 (l, n, n), with Sigma = half taken half, ``half`` = W^-1/2.
    Latents whose precision is negligible have zero covariance with others there and the variance ``isolated``.
    ``weights`` are K^-1 mean, ``scale`` is W^1/2.
    """

    mean: Float[Array, "l n"]
    variance: Float[Array, "l n"]
    divergence: Float[Array, " l"]
    weights: Float[Array, "l n"]
    scale: Float[Array, "l n"]
    half: Float[Array, "l n"]
    isolated: Float[Array, "l n"]
    taken: Float[Array, "l n n"]

    def times(self, x: Float[Array, "l n"]) -> Float[Array, "l n"]:
        """Sigma x: the derivative of the mean with respect to the potentials, times x."""
        return self.isolated * x + self.half * over_states(jnp.matmul, self.taken, self.half * x)

    def squares(self) -> Float[Array, "l n n"]:
        """The elementwise square of ``taken``, for ``times_squares``."""
        return self.taken**2

    def times_squares(self, squares: Float[Array, "l n n"], x: Float[Array, "l n"]) -> Float[Array, "l n"]:
        """(Sigma o Sigma) x: minus the derivative of the variances with respect to the precisions, times x."""
        return self.isolated**2 * x + self.half**2 * over_states(jnp.matmul, squares, self.half**2 * x)

    def slope(self) -> Float[Array, "n n"]:
        """The derivative of each log normaliser in the prior covariance K, (b b^T - W^1/2 B^-1 W^1/2) / 2."""

        def one(weights: Array, scale: Array, taken: Array) -> Array:
            by_taken = scale[:, None] * taken * scale - jnp.diag(scale**2)
            return 0.5 * (jnp.outer(weights, weights) + by_taken)

        return jnp.sum(over_states(one, self.weights, self.scale, self.taken), axis=0)


def expand(prior: DensePrior, sites: Sites) -> Expansion:
    """The expansion at sites (n, l), with one factorisation per latent."""
    potential, _ = centred(sites, prior.mean)
    diagonal = jnp.diagonal(prior.K)
    least = _SILENT / diagonal

    def one(h: Array, w: Array) -> Expansion:
        factor = algebra.dense_factor(prior.K, w)
        weights = algebra.dense_weights(prior.K, factor, h)
        mean = prior.K @ weights
        variance, taken = algebra.dense_variance_and_taken(prior.K, factor)
        divergence = algebra.dense_divergence(factor, weights, mean, variance)
        half, isolated = jnp.sqrt(w) / (w + least), diagonal * least / (w + least)
        return Expansion(mean, variance, divergence, weights, factor.scale, half, isolated, taken)

    return over_latents(one, potential, sites.precision)
