"""What a prior at the data and the posterior that sites make of it can do, whatever their form.

A *site* (h, w) of a latent value f is the factor exp(h f - w f^2 / 2), with potential h and precision w >= 0; w = 0 is
allowed. *Coordinates* of latents are what draws are held in: the latents at the data follow from them, and what is
known of the latents elsewhere.
"""

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pgmodels.portable import Module

Key = PRNGKeyArray | Array

# Folded into a key that has drawn coordinates already, so that what is drawn given them is independent.
_SCATTER = 2**31 - 1


class Sites(NamedTuple):
    """Sites of n data on l latents, or on l predictors: ``potential`` and ``precision``, (n, l) each.

    Where a datum's factor couples its latents, exp(h f - f^T W f / 2), the precision is (n, l, l).
    """

    potential: Float[Array, "n l"]
    precision: Float[Array, "n l"] | Float[Array, "n l l"]

    @property
    def coupled(self) -> bool:
        """Whether the latents of a datum are coupled."""
        return self.precision.ndim == 3

    def columns(self, part: slice) -> "Sites":
        """Those of some latents."""
        return Sites(self.potential[:, part], self.precision[:, part])


class Moments(NamedTuple):
    """Means and variances of n data's latents given sites, the sites' log normaliser, and KL(q || prior).

    q is the posterior that the sites make. The divergence is a sum of few terms that are as large as it is itself; as
    E log of the sites less their log normaliser it would be a small difference of large numbers.
    """

    mean: Float[Array, "n l"]
    variance: Float[Array, "n l"] | Float[Array, "n l l"]
    log_normalizer: Float[Array, ""]
    divergence: Float[Array, ""]


class Posterior(Module):
    """Latents given sites: the product of a Gaussian prior and the sites, normalised, with its factorisation."""

    @abstractmethod
    def moments(self) -> tuple[Float[Array, "n l"], Float[Array, "n l"]]:
        """Mean and variance of the latents at the data."""

    @abstractmethod
    def log_normalizer(self) -> Float[Array, ""]:
        """Log of the integral of the prior times the sites."""

    @abstractmethod
    def predict(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "m l"], Float[Array, "m l"]]:
        """Mean and variance of the latents at new inputs."""

    @abstractmethod
    def mean_and_deviation(self, key: Key) -> tuple[Any, Any]:
        """The mean of the latents' coordinates, and an exact joint draw of their deviation from it."""

    def resized(self, prior: "LatentPrior", size: int) -> "Posterior":
        """The same with its prior at ``size`` rows, see LatentPrior: rows that fill up the data have no sites."""
        raise NotImplementedError(f"{type(self).__name__} cannot be filled up.")


class LatentPrior(Module):
    """``size`` independent latents with one kernel and one constant mean, at the inputs X.

    These methods are all that CAVI and Gibbs sweeps need.
    """

    mean: eqx.AbstractVar[Array]
    X: eqx.AbstractVar[Array]
    size: eqx.AbstractVar[int]
    # Whether it has ``resized``.
    fills: ClassVar[bool] = False

    def resized(self, size: int) -> "LatentPrior":
        """The same at the first ``size`` rows, or at rows that fill the data up; outside ``jit``.

        See pgmodels.latent.rows. Engines do without where a form has none.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be filled up.")

    @property
    def neglected(self) -> Float[Array, ""]:
        """The largest variance that the form adds to a latent or leaves out: no more than rounding unless it says so.

        It matters to a posterior only where a site's precision times it is not small against 1.
        """
        return jnp.zeros(())

    def residual_variance(self) -> Float[Array, " n"] | None:
        """The variance at X that coordinates leave, independent for each datum; None where they leave none."""
        return None

    def with_mean(self, mean: Array) -> "LatentPrior":
        """The same with another mean."""
        return replace(self, mean=mean)

    def generative(self) -> "LatentPrior":
        """The prior as a model to draw from, where the form is one of posteriors alone."""
        return self

    @property
    @abstractmethod
    def rank(self) -> int:
        """The number of coordinates of one latent."""

    @abstractmethod
    def condition(self, sites: Sites) -> Posterior:
        """The posterior given sites, factorised once."""

    def moments(self, sites: Sites) -> Moments:
        """What those need of the posterior given sites who need nothing else of it."""
        posterior, (h, w) = self.condition(sites), sites
        mean, variance = posterior.moments()
        log_normalizer = posterior.log_normalizer()
        return Moments(
            mean, variance, log_normalizer, jnp.sum(h * mean - 0.5 * w * (variance + mean**2)) - log_normalizer
        )

    def marginals(self) -> tuple[Float[Array, "n l"], Float[Array, "n l"]]:
        """Mean and variance before any data."""
        zeros = jnp.zeros((self.X.shape[0], self.size))
        return self.moments(Sites(zeros, zeros))[:2]

    def draw(self, key: Key) -> tuple[Float[Array, "n l"], Float[Array, "r l"]]:
        """A draw of the latents from the prior, and its coordinates: standard normal unless the form says otherwise."""
        coordinates = jax.random.normal(key, (self.rank, self.size), dtype=self.mean.dtype)
        return self.scatter(key, coordinates), coordinates

    def scatter(self, key: Key, coordinates: Float[Array, "r l"]) -> Float[Array, "n l"]:
        """A draw of the latents at X given coordinates, which may have been drawn with the same key."""
        latents, residual = self.latents(coordinates), self.residual_variance()
        if residual is None:
            return latents
        noise = jax.random.normal(jax.random.fold_in(key, _SCATTER), latents.shape, latents.dtype)
        return latents + jnp.sqrt(residual)[:, None] * noise

    def residual_covariance(self, X_new: Float[Array, "m d"]) -> Float[Array, "m m"]:
        """The covariance of a latent at new inputs, given its coordinates; ValueError where a form has none."""
        raise no_factor(self)

    @abstractmethod
    def sweep_operations(self) -> float:
        """Floating-point operations of conditioning one latent on sites and drawing from what comes out."""

    @abstractmethod
    def latents(self, coordinates: Float[Array, "*batch r l"]) -> Float[Array, "*batch n l"]:
        """The latents at X."""

    @abstractmethod
    def at(
        self, X_new: Float[Array, "m d"], coordinates: Float[Array, "*batch r l"]
    ) -> tuple[Float[Array, "*batch m l"], Float[Array, " m"]]:
        """Mean and variance of the latents at new inputs, given coordinates."""


def no_factor(prior: LatentPrior) -> ValueError:
    """What to raise where a prior's factor matrix is needed and it has none."""
    return ValueError(
        f"the prior {type(prior).__name__} has no factor matrix, which is needed where the formula combines latents, "
        "for moves about a fitted Gaussian and for joint draws at new inputs: choose another form of the GP, such as "
        "pgm.Dense()."
    )
