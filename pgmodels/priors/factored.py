"""Priors with a factor A, f = mean + A^T v, and their posteriors given sites, latent by latent."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pgmodels.priors.base import GroupPosterior, Key, LatentPrior, Moments, Sites
from pgmodels.priors.lapack_loops import over_latents, over_states


class FactoredPrior(LatentPrior):
    """A prior with a factor A, f = mean + A^T v with v ~ N(0, I): its coordinates are the whitened v.

    Coupled sites and elliptical moves about a fitted Gaussian need A. Subclasses implement the underscored methods for
    one latent with zero mean; ``_condition`` factorises and returns the state passed to the others.
    """

    kernel: eqx.AbstractVar[Any]

    @property
    @abstractmethod
    def factor(self) -> Float[Array, "r n"]:
        """The A with f = mean + A^T v at X."""

    @abstractmethod
    def factor_at(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "r m"], Float[Array, " m"]]:
        """The A (r, m) and residual variance (m,) with f(X_new) = mean + A^T v + eps, Var eps = residual.

        The residual is k(x, x) - sum A^2, zero where rounding makes it negative (by less than 1e-8 of k(x, x)).
        """

    @abstractmethod
    def resized(self, size: int) -> "FactoredPrior":
        """See LatentPrior."""

    @abstractmethod
    def _diagonal(self) -> Array:
        """The variances at X."""

    @abstractmethod
    def _colour(self, whitened: Array) -> Array:
        """A^T v for (..., r, l)."""

    @abstractmethod
    def _condition(self, h: Array, w: Array) -> Any:
        """The posterior's factorisation."""

    @abstractmethod
    def _moments(self, state: Any) -> tuple[Array, Array]:
        """Mean and variance."""

    @abstractmethod
    def _log_normalizer(self, state: Any, h: Array) -> Array:
        """Log normaliser."""

    @abstractmethod
    def _divergence(self, state: Any, w: Array, mean: Array, variance: Array) -> Array:
        """KL(q || prior) of the posterior, given its moments by ``_moments``."""

    @abstractmethod
    def _mean_and_deviation(self, state: Any, noise: Array) -> tuple[Array, Array]:
        """The mean of v and, from standard normals (2, r), a draw of its deviation."""

    @abstractmethod
    def _covariance(self, state: Any) -> Array:
        """Covariance at X."""

    @abstractmethod
    def _cross(self, X_new: Array) -> Any:
        """Quantities of the prior at new inputs that all latents share."""

    @abstractmethod
    def _predict(self, state: Any, cross: Any) -> tuple[Array, Array]:
        """Mean and variance at new inputs."""

    @abstractmethod
    def _cross_covariance(self, state: Any, cross: Any) -> Array:
        """Covariance of the latents at new inputs with those at X."""

    @abstractmethod
    def _covariance_at(self, state: Any, X_new: Array, cross: Any) -> Array:
        """Covariance at new inputs, (m, m)."""

    def coefficients(self, coordinates: Float[Array, "r l"]) -> Float[Array, "c l"]:
        """The coefficients of ``basis`` of the latents at coordinates, if ``is_exact``."""
        raise NotImplementedError(f"{type(self).__name__} does not implement coefficients.")

    def basis(self, X_new: Float[Array, "m d"]) -> Float[Array, "m c"]:
        """The functions at new inputs whose sums, times ``coefficients``, are the latents, if ``is_exact``."""
        raise NotImplementedError(f"{type(self).__name__} does not implement basis.")

    def condition(self, sites: Sites) -> "FactoredPosterior":
        """See LatentPrior."""
        potential, constant = centred(sites, self.mean)
        states = over_latents(self._condition, potential, sites.precision)
        return FactoredPosterior(self, potential, constant, states)

    def moments(self, sites: Sites) -> Moments:
        """See LatentPrior. Latents are processed one at a time, with one factorisation in memory."""
        potential, constant = centred(sites, self.mean)

        def one(h: Array, w: Array) -> Moments:
            state = self._condition(h, w)
            mean, variance = self._moments(state)
            return Moments(mean, variance, self._log_normalizer(state, h), self._divergence(state, w, mean, variance))

        mean, variance, log_normalizer, divergence = over_latents(one, potential, sites.precision)
        return Moments(self.mean + mean.T, variance.T, jnp.sum(log_normalizer + constant), jnp.sum(divergence))

    def marginals(self) -> tuple[Float[Array, "n l"], Float[Array, "n l"]]:
        """See LatentPrior."""
        variance = self._diagonal()
        shape = (len(variance), self.size)
        return jnp.broadcast_to(self.mean, shape), jnp.broadcast_to(variance[:, None], shape)

    def latents(self, coordinates: Float[Array, "*batch r l"]) -> Float[Array, "*batch n l"]:
        """See LatentPrior: mean + A^T v."""
        return self.mean + self._colour(coordinates)

    def conditional(
        self, X_new: Float[Array, "m d"], coordinates: Float[Array, "*batch r l"]
    ) -> tuple[Float[Array, "*batch m l"], Float[Array, " m"]]:
        """See LatentPrior."""
        A, residual = self.factor_at(X_new)
        return self.mean + jnp.swapaxes(jnp.swapaxes(coordinates, -1, -2) @ A, -1, -2), residual

    def residual_covariance(self, X_new: Float[Array, "m d"]) -> Float[Array, "m m"]:
        """The covariance of a latent at new inputs, given its coordinates."""
        A, _ = self.factor_at(X_new)
        return self.kernel(X_new, X_new) - A.T @ A


class FactoredPosterior(GroupPosterior):
    """Independent latents of a group given sites. ``states`` are their factorisations, along a first axis."""

    prior: FactoredPrior
    potential: Float[Array, "n l"]
    constant: Float[Array, " l"]
    states: Any

    def moments(self) -> tuple[Float[Array, "n l"], Float[Array, "n l"]]:
        """See GroupPosterior."""
        mean, variance = over_states(self.prior._moments, self.states)
        return self.prior.mean + mean.T, variance.T

    def log_normalizer(self) -> Float[Array, ""]:
        """See GroupPosterior."""
        log_normalizers = over_states(self.prior._log_normalizer, self.states, self.potential.T)
        return jnp.sum(log_normalizers + self.constant)

    def predict(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "m l"], Float[Array, "m l"]]:
        """See GroupPosterior."""
        cross = self.prior._cross(X_new)
        mean, variance = over_states(lambda state: self.prior._predict(state, cross), self.states)
        return self.prior.mean + mean.T, variance.T

    def mean_and_deviation(self, key: Key) -> tuple[Float[Array, "r l"], Float[Array, "r l"]]:
        """See GroupPosterior."""
        noise = jax.random.normal(key, (2, self.prior.rank, self.prior.size), dtype=self.prior.mean.dtype)
        mean, deviation = over_states(self.prior._mean_and_deviation, self.states, jnp.moveaxis(noise, -1, 0))
        return mean.T, deviation.T

    def covariance(self) -> Float[Array, "l n n"]:
        """The covariance of each latent at the data, without the residual, which sites do not change."""
        return over_states(self.prior._covariance, self.states)

    def cross_covariance(self, X_new: Float[Array, "m d"]) -> Float[Array, "l m n"]:
        """The covariance of each latent at new inputs with itself at the data, without the residual."""
        cross = self.prior._cross(X_new)
        return over_states(lambda state: self.prior._cross_covariance(state, cross), self.states)

    def covariance_at(self, X_new: Float[Array, "m d"]) -> Float[Array, "l m m"]:
        """The covariance of each latent at new inputs."""
        cross = self.prior._cross(X_new)
        return over_states(lambda state: self.prior._covariance_at(state, X_new, cross), self.states)


def centred(sites: Sites, mean: Array) -> tuple[Array, Array]:
    """The potential (n, l) of sites on f - mean, and the log of the remaining constant factor, (l,)."""
    h, w = sites
    return h - w * mean, jnp.sum(h * mean - 0.5 * w * mean**2, axis=0)


def with_residual(A: Array, diagonal: Array) -> tuple[Array, Array]:
    """A factor at new inputs and the residual variance, clipped at 0."""
    return A, jnp.maximum(diagonal - jnp.sum(A**2, axis=0), 0.0)
