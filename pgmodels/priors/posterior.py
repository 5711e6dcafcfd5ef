"""Posteriors of all latents of a model given sites."""

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pgmodels.priors.base import Coordinates, GroupPosterior, Key, Sites
from pgmodels.priors.factored import FactoredPosterior
from pgmodels.runtime.pickling import Module

if TYPE_CHECKING:
    from pgmodels.priors.collection import PriorCollection

# Draws that share one scan over the rows.
_TOGETHER = 16
# Means and covariances of each datum's latents.
Marginals = tuple[Float[Array, "n L"], Float[Array, "n L L"]]


class Posterior(Module):
    """The latents of all groups given sites: the product of their prior and the sites, normalised and factorised.

    ``is_coupled`` says whether sites couple latents: their precisions are then (n, L, L), and covariances between rows
    (L, m, L, n). Otherwise latents are independent, precisions are (n, L), and covariances between rows are within
    each latent, (L, m, n). Covariances between rows need priors with a factor (ValueError without one).
    """

    prior: eqx.AbstractVar["PriorCollection"]
    sites: eqx.AbstractVar[Sites]
    is_coupled: eqx.AbstractClassVar[bool]

    @abstractmethod
    def moments(self) -> tuple[Float[Array, "n L"], Float[Array, "n L"]]:
        """Mean and variance of the latents at the data."""

    @abstractmethod
    def marginals(self) -> Marginals:
        """Mean and covariance of each datum's latents."""

    @abstractmethod
    def predict(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "m L"], Float[Array, "m L"]]:
        """Mean and variance at new inputs."""

    @abstractmethod
    def marginals_at(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "m L"], Float[Array, "m L L"]]:
        """Mean and covariance of the latents at each new input."""

    @abstractmethod
    def covariance(self) -> Float[Array, "L n n"] | Float[Array, "L n L n"]:
        """The covariance of the latents at the data."""

    @abstractmethod
    def cross_covariance(self, X_new: Float[Array, "m d"]) -> Float[Array, "L m n"] | Float[Array, "L m L n"]:
        """The covariance of the latents at new inputs with those at the data."""

    @abstractmethod
    def covariance_at(self, X_new: Float[Array, "m d"]) -> Float[Array, "L m m"] | Float[Array, "L m L m"]:
        """The covariance of the latents at new inputs."""

    @abstractmethod
    def log_normalizer(self) -> Float[Array, ""]:
        """Log of the integral of the prior times the sites."""

    @abstractmethod
    def log_factor(self, f: Float[Array, "*batch n L"]) -> Float[Array, "*batch"]:
        """Log of the sites at f, the latents given by coordinates, in expectation over the residual."""

    @abstractmethod
    def tempered(self, share: Float[Array, ""] | float) -> "Posterior":
        """The posterior with the same mean and ``share`` times the sites' precisions."""

    @abstractmethod
    def mean_and_deviation(self, key: Key) -> tuple[Coordinates, Coordinates]:
        """Mean of the coordinates and a draw of their deviation from it, one array per group each."""

    def draw(self, key: Key) -> tuple[Float[Array, "n L"], Coordinates]:
        """A joint draw of the latents at the data, and its coordinates."""
        means, deviations = self.mean_and_deviation(key)
        coordinates = tuple(m + d for m, d in zip(means, deviations, strict=True))
        return self.prior.sample_given(key, coordinates), coordinates

    @property
    def extends(self) -> bool:
        """Whether it draws jointly at new inputs without a covariance."""
        return False

    @abstractmethod
    def coupled_latents(self) -> list[list[int]] | None:
        """The latents that are dependent, block by block; None if all are independent."""

    @abstractmethod
    def roots_and_centres(self) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Roots of the coordinates' precision, and their means, for priors with inducing inputs, without data.

        If coupled, roots (r, r) of each block and one vector of all means; else (l, r, r) and (l, r) for each group.
        """


class DependentPosterior(Posterior):
    """Latents that sites couple."""

    is_coupled: ClassVar[bool] = True

    def moments(self) -> tuple[Float[Array, "n L"], Float[Array, "n L"]]:
        """See Posterior."""
        mean, V = self.marginals()
        return mean, jnp.diagonal(V, axis1=1, axis2=2)

    def predict(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "m L"], Float[Array, "m L"]]:
        """See Posterior."""
        mean, V = self.marginals_at(X_new)
        return mean, jnp.diagonal(V, axis1=1, axis2=2)

    @abstractmethod
    def divergence(self, covariance: Float[Array, "n L L"]) -> Float[Array, ""]:
        """KL(q || prior) of the coordinates, from the covariances of each datum's latents."""


class IndependentPosterior(Posterior):
    """Latents that no site couples: the posterior of each group is given by its prior, which needs no factor."""

    is_coupled: ClassVar[bool] = False

    prior: "PriorCollection"
    sites: Sites
    groups: tuple[GroupPosterior, ...]

    def moments(self) -> tuple[Float[Array, "n l"], Float[Array, "n l"]]:
        """See Posterior."""
        means, variances = zip(*(group.moments() for group in self.groups), strict=True)
        return self.prior.side_by_side(means), self.prior.side_by_side(variances)

    def marginals(self) -> Marginals:
        """See Posterior."""
        mean, variance = self.moments()
        return mean, jax.vmap(jnp.diag)(variance)

    def log_normalizer(self) -> Float[Array, ""]:
        """See Posterior."""
        return sum((group.log_normalizer() for group in self.groups), jnp.zeros(()))

    def predict(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "m l"], Float[Array, "m l"]]:
        """See Posterior."""
        means, variances = zip(*(group.predict(X_new) for group in self.groups), strict=True)
        return jnp.concatenate(means, axis=1), jnp.concatenate(variances, axis=1)

    def marginals_at(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "m l"], Float[Array, "m l l"]]:
        """See Posterior."""
        mean, variance = self.predict(X_new)
        return mean, jax.vmap(jnp.diag)(variance)

    @property
    def extends(self) -> bool:
        """Whether it draws jointly at new inputs by ``drawn_at``."""
        return all(group.extends for group in self.prior.groups)

    def drawn_at(self, X_new: Float[Array, "m d"], keys: Key) -> Float[Array, "draws m l"]:
        """Joint draws at new inputs, one for each key, in time that is linear in the number of rows."""
        groups = [group.extended(X_new) for group in self.groups]
        priors = [group.prior for group in groups]  # type: ignore[attr-defined]

        def one(key: Key) -> Array:
            drawn = []
            for number, (prior, group) in enumerate(zip(priors, groups, strict=True)):
                mean, deviation = group.mean_and_deviation(jax.random.fold_in(key, number))
                drawn.append(prior.latents(mean + deviation)[-len(X_new) :])
            return jnp.concatenate(drawn, axis=1)

        return jax.lax.map(one, keys, batch_size=_TOGETHER)

    def mean_and_deviation(self, key: Key) -> tuple[Coordinates, Coordinates]:
        """See Posterior."""
        keys = jax.random.split(key, len(self.groups))
        pairs = [group.mean_and_deviation(k) for k, group in zip(keys, self.groups, strict=True)]
        return tuple(m for m, _ in pairs), tuple(d for _, d in pairs)

    def log_factor(self, f: Float[Array, "*batch n l"]) -> Float[Array, "*batch"]:
        """See Posterior."""
        h, w = self.sites
        residual = self.prior.residual_variances()
        loss = 0.0 if residual is None else 0.5 * jnp.sum(w * residual)
        return jnp.sum(h * f - 0.5 * w * f**2, axis=(-2, -1)) - loss

    def tempered(self, share: Float[Array, ""] | float) -> "IndependentPosterior":
        """See Posterior."""
        h, w = self.sites
        # K^-1 m = h - w m, and so h' = K^-1 m + share w m.
        return self.prior.condition(Sites(h - (1.0 - share) * w * self.moments()[0], share * w))

    def covariance(self) -> Float[Array, "l n n"]:
        """See Posterior."""
        at_rows, groups = self.prior.at_rows, enumerate(self._factored())
        across = ((i, jnp.swapaxes(at_rows(group.covariance(), i), 1, 2)) for i, group in groups)
        return jnp.concatenate([at_rows(C, i) for i, C in across])

    def cross_covariance(self, X_new: Float[Array, "m d"]) -> Float[Array, "l m n"]:
        """See Posterior."""
        groups = enumerate(self._factored())
        return jnp.concatenate([self.prior.at_rows(group.cross_covariance(X_new), i) for i, group in groups])

    def covariance_at(self, X_new: Float[Array, "m d"]) -> Float[Array, "l m m"]:
        """See Posterior."""
        return jnp.concatenate([group.covariance_at(X_new) for group in self._factored()])

    def coupled_latents(self) -> None:
        """See Posterior."""

    def roots_and_centres(self) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """See Posterior."""
        roots, centres = zip(*(group.states.span for group in self._factored()), strict=True)
        return roots, centres

    def _factored(self) -> list[FactoredPosterior]:
        self.prior.require_factors()
        return [group for group in self.groups if isinstance(group, FactoredPosterior)]
