"""The fully independent conditional (FIC) model of inducing inputs as a generative prior."""

from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pgmodels.priors import linalg as algebra
from pgmodels.priors.base import GroupPosterior, Key, LatentPrior, Sites
from pgmodels.priors.factored import centred
from pgmodels.priors.lapack_loops import over_latents, over_states
from pgmodels.priors.low_rank import LowRankPrior
from pgmodels.priors.padding import pad_rows
from pgmodels.runtime.x64 import as_array


class FICPrior(LatentPrior):
    """f_i = mean + A_i^T v + sqrt(residual_i) e_i with standard normal coordinates (v, e).

    Marginal variances equal the kernel's. There is no factor matrix: e is integrated out to
    condition v, and drawn given v. Source: Snelson and Ghahramani 2006; Quiñonero-Candela and Rasmussen 2005, FIC.
    """

    can_pad: ClassVar[bool] = True

    span: LowRankPrior
    residual: Float[Array, " n"]
    mean: Float[Array, ""]
    X: Float[Array, "n d"]
    size: int = eqx.field(static=True)

    def __init__(self, span: LowRankPrior, residual: Float[Array, " n"]):
        self.span, self.residual, self.mean, self.X, self.size = span, residual, span.mean, span.X, span.size

    def resized(self, size: int) -> "FICPrior":
        """See LatentPrior."""
        return FICPrior(self.span.resized(size), as_array(pad_rows(self.residual, size)))

    def with_mean(self, mean: Array) -> "FICPrior":
        """See LatentPrior."""
        return FICPrior(self.span.with_mean(mean), self.residual)

    def of_one_latent(self) -> "FICPrior":
        """See LatentPrior."""
        return FICPrior(replace(self.span, size=1), self.residual)

    @property
    def rank(self) -> int:
        """The number of coordinates of one latent: one for each inducing input and one for each datum."""
        return self.span.rank + len(self.X)

    @property
    def active(self) -> Float[Array, " r"]:
        """0 for coordinates that have no influence, and 1 for others."""
        return jnp.concatenate([self.span.active, jnp.ones(len(self.X))])

    def split(self, coordinates: Float[Array, "*batch r l"]) -> tuple[Array, Array]:
        """The v and the e of coordinates."""
        return coordinates[..., : self.span.rank, :], coordinates[..., self.span.rank :, :]

    def sweep_operations(self) -> float:
        """See LatentPrior."""
        return self.span.sweep_operations() + 20.0 * len(self.X)

    def latents(self, coordinates: Float[Array, "*batch r l"]) -> Float[Array, "*batch n l"]:
        """See LatentPrior."""
        v, e = self.split(coordinates)
        return self.span.latents(v) + jnp.sqrt(self.residual)[:, None] * e

    def conditional(
        self, X_new: Float[Array, "m d"], coordinates: Float[Array, "*batch r l"]
    ) -> tuple[Float[Array, "*batch m l"], Float[Array, " m"]]:
        """See LatentPrior."""
        return self.span.conditional(X_new, self.split(coordinates)[0])

    def residual_covariance(self, X_new: Float[Array, "m d"]) -> Float[Array, "m m"]:
        """See LatentPrior."""
        return self.span.residual_covariance(X_new)

    def condition(self, sites: Sites) -> "FICGroupPosterior":
        """See LatentPrior."""
        potential, constant = centred(sites, self.mean)
        scale = 1.0 + sites.precision * self.residual[:, None]

        def one(h: Array, w: Array) -> tuple[Array, Array]:
            root = algebra.factor_root(self.span.A, w)
            return root, algebra.factor_mean(self.span.A, root, h)

        roots, centres = over_latents(one, potential / scale, sites.precision / scale)
        return FICGroupPosterior(self, Sites(potential, sites.precision), jnp.sum(constant), roots, centres)


class FICGroupPosterior(GroupPosterior):
    """Given sites on f - mean: v ~ N(centre, (R R^T)^-1) with e integrated out, and e given v, datum by datum."""

    prior: FICPrior
    sites: Sites
    constant: Float[Array, ""]
    roots: Float[Array, "l r r"]
    centres: Float[Array, "l r"]

    @property
    def scale(self) -> Float[Array, "n l"]:
        """1 + w residual."""
        return 1.0 + self.sites.precision * self.prior.residual[:, None]

    def moments(self) -> tuple[Float[Array, "n l"], Float[Array, "n l"]]:
        """See GroupPosterior."""
        span, residual, (h, _) = self.prior.span, self.prior.residual[:, None], self.sites
        mean = ((self.centres @ span.A).T + residual * h) / self.scale
        return self.prior.mean + mean, residual / self.scale + self._variance(span.A) / self.scale**2

    def log_normalizer(self) -> Float[Array, ""]:
        """See GroupPosterior."""
        span, h, scale = self.prior.span, self.sites.potential, self.scale
        residual_terms = -0.5 * jnp.log(scale) + 0.5 * h**2 * self.prior.residual[:, None] / scale
        quadratic = 0.5 * jnp.sum((span.A @ (h / scale)) * self.centres.T)
        roots = jnp.sum(jnp.log(jnp.diagonal(self.roots, axis1=1, axis2=2)))
        return quadratic - roots + jnp.sum(residual_terms) + self.constant

    def predict(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "m l"], Float[Array, "m l"]]:
        """See GroupPosterior."""
        A, residual = self.prior.span.factor_at(X_new)
        return self.prior.mean + (self.centres @ A).T, residual[:, None] + self._variance(A)

    def mean_and_deviation(self, key: Key) -> tuple[Float[Array, "r l"], Float[Array, "r l"]]:
        """See GroupPosterior."""
        span, (h, w), scale = self.prior.span, self.sites, self.scale
        ours, theirs = jax.random.split(key)
        noise = jax.random.normal(ours, self.centres.shape, h.dtype)
        v, dv = self.centres.T, over_states(lambda pair: algebra.factor_noise(*pair), (self.roots, noise)).T
        spread = jnp.sqrt(self.prior.residual)[:, None]
        e = spread * (h - w * (v.T @ span.A).T) / scale
        de = jax.random.normal(theirs, h.shape, h.dtype) / jnp.sqrt(scale) - spread * w * (dv.T @ span.A).T / scale
        return jnp.concatenate([v, e]), jnp.concatenate([dv, de])

    def _variance(self, A: Float[Array, "r m"]) -> Float[Array, "m l"]:
        return over_states(lambda root: jnp.sum(algebra.factor_half_covariance(root, A) ** 2, axis=0), self.roots).T
