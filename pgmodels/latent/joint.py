"""All latent GPs of a model at the data: groups that share a kernel, side by side."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pgmodels.latent.prior import LatentPrior


class JointPrior(eqx.Module):
    """Independent groups of latent GPs. Arrays over latents are (..., n, latents), groups in the model's order."""

    groups: tuple[LatentPrior, ...]
    sizes: tuple[int, ...] = eqx.field(static=True)

    def slices(self) -> list[slice]:
        """The columns of each group."""
        return columns(self.sizes)

    def moments(self, h: Any, w: Any) -> tuple[Any, Any, Any]:
        """Mean and variance (n, latents) of the posterior given sites, and its log normaliser, a scalar."""
        parts = [group.moments(h[:, s], w[:, s]) for group, s in self._pairs()]
        means, variances, logs = zip(*parts, strict=True)
        return jnp.concatenate(means, axis=1), jnp.concatenate(variances, axis=1), sum(jnp.sum(x) for x in logs)

    def draw(self, key: Any, h: Any, w: Any) -> tuple[Any, tuple[Any, ...]]:
        """A joint draw of the latents given sites (n, latents), and its whitened coordinates, a group each."""
        keys = jax.random.split(key, len(self.groups))
        parts = [group.draw(k, h[:, s], w[:, s]) for k, (group, s) in zip(keys, self._pairs(), strict=True)]
        return jnp.concatenate([f for f, _ in parts], axis=1), tuple(v for _, v in parts)

    def mean_and_deviation(self, key: Any, h: Any, w: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The mean of the whitened coordinates given sites, and a draw of their deviation from it, a group each."""
        keys = jax.random.split(key, len(self.groups))
        pairs = zip(keys, self._pairs(), strict=True)
        parts = [group.mean_and_deviation(k, h[:, s], w[:, s]) for k, (group, s) in pairs]
        return tuple(m for m, _ in parts), tuple(d for _, d in parts)

    def latents(self, whitened: Sequence[Any]) -> Any:
        """The latents (n, latents) of whitened coordinates, a group each."""
        parts = [group.latents(v) for group, v in zip(self.groups, whitened, strict=True)]
        return jnp.concatenate(parts, axis=1)

    def factors(self) -> list[Any]:
        """The factor A (rank, n) of each latent, f = mean + A^T v."""
        return [group.factor for group, size in zip(self.groups, self.sizes, strict=True) for _ in range(size)]

    def means(self) -> Any:
        """The constant mean of each latent, (latents,)."""
        return jnp.concatenate([jnp.full(size, g.mean) for g, size in zip(self.groups, self.sizes, strict=True)])

    def flatten(self, whitened: Sequence[Any]) -> Any:
        """Whitened coordinates, a group each, as one vector: latent after latent."""
        return jnp.concatenate([v.T.ravel() for v in whitened])

    def unflatten(self, flat: Any) -> tuple[Any, ...]:
        """The inverse of ``flatten``."""
        counts = [group.rank * size for group, size in zip(self.groups, self.sizes, strict=True)]
        parts = jnp.split(flat, np.cumsum(counts)[:-1])
        return tuple(part.reshape(size, -1).T for part, size in zip(parts, self.sizes, strict=True))

    def draw_prior(self, key: Any) -> tuple[Any, tuple[Any, ...]]:
        """A joint draw of the latents from the prior, and its whitened coordinates."""
        keys = jax.random.split(key, len(self.groups))
        parts = [group.draw_prior(k, size) for k, group, size in zip(keys, self.groups, self.sizes, strict=True)]
        return jnp.concatenate([f for f, _ in parts], axis=1), tuple(v for _, v in parts)

    def predict(self, X_new: Any, h: Any, w: Any) -> tuple[Any, Any]:
        """Mean and variance (n_new, latents) of the latents at new inputs given sites."""
        parts = [group.predict(X_new, h[:, s], w[:, s]) for group, s in self._pairs()]
        return jnp.concatenate([m for m, _ in parts], axis=1), jnp.concatenate([v for _, v in parts], axis=1)

    def covariance(self, h: Any, w: Any) -> Any:
        """Cov_q(f, f) at the training inputs, (latents, n, n)."""
        return jnp.concatenate([group.covariance(h[:, s], w[:, s]) for group, s in self._pairs()])

    def covariance_with_training(self, X_new: Any, h: Any, w: Any) -> Any:
        """Cov_q(f_*, f), (latents, n_new, n)."""
        return jnp.concatenate([g.covariance_with_training(X_new, h[:, s], w[:, s]) for g, s in self._pairs()])

    def _pairs(self) -> list[tuple[LatentPrior, slice]]:
        return list(zip(self.groups, self.slices(), strict=True))


def columns(sizes: Sequence[int]) -> list[slice]:
    """The columns of groups of the given sizes, side by side."""
    ends = np.cumsum(sizes)
    return [slice(int(end) - size, int(end)) for end, size in zip(ends, sizes, strict=True)]
