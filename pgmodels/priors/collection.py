"""Priors of all latent GPs of a model at the data, in groups that share a kernel."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from pgmodels.priors.base import Coordinates, Key, LatentPrior, Moments, Sites, no_factor
from pgmodels.priors.distinct_inputs import Copies
from pgmodels.priors.factored import FactoredPrior
from pgmodels.priors.inducing.fic import FICPrior
from pgmodels.priors.new_inputs import check_new_inputs
from pgmodels.priors.padding import padded_size
from pgmodels.priors.posterior import IndependentPosterior
from pgmodels.runtime.pickling import Module
from pgmodels.runtime.x64 import as_array, double_precision


class PriorCollection(Module):
    """Independent groups of latent GPs. Arrays over latents are (..., n, latents), groups in the model's order.

    Each group is evaluated at its distinct inputs; ``copies`` maps the n rows of the data to them.
    """

    groups: tuple[LatentPrior, ...]
    copies: Copies

    def __init__(self, groups: tuple[LatentPrior, ...], copies: Copies | None = None):
        self.groups = groups
        self.copies = Copies(None, (None,) * len(groups)) if copies is None else copies

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of latents of each group."""
        return tuple(group.size for group in self.groups)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The number of coordinates of each latent."""
        return tuple(group.rank for group in self.groups for _ in range(group.size))

    @property
    def factored(self) -> bool:
        """Whether every group has a factor."""
        return all(isinstance(group, FactoredPrior) for group in self.groups)

    @property
    def whitened(self) -> bool:
        """Whether every group has a factor if the residuals of FIC groups are omitted."""
        return self.spans().factored

    def spans(self) -> "PriorCollection":
        """The priors with FIC groups replaced by their low-rank term, without residuals."""
        groups = (group.span if isinstance(group, FICPrior) else group for group in self.groups)
        return PriorCollection(tuple(groups), self.copies)

    @property
    def distinct(self) -> "PriorCollection":
        """The prior at the distinct rows; ``total`` sums over copies and ``spread`` repeats values for them."""
        return PriorCollection(self.groups, Copies(None, self.copies.places))

    def total(self, terms: Float[Array, "n *rest"]) -> Float[Array, "m *rest"]:
        """Sum the terms of equal rows: values at the distinct rows."""
        rows = self.copies.rows
        return terms if rows is None else jax.ops.segment_sum(terms, rows, self.distinct.num_rows)

    def spread(self, values: Shaped[Array, "m *rest"]) -> Shaped[Array, "n *rest"]:
        """Repeat values at the distinct rows for all rows."""
        return values if self.copies.rows is None else values[self.copies.rows]

    def sites_by_group(self, sites: Sites) -> list[Sites]:
        """Sites at each group's distinct inputs: potentials and precisions of equal inputs are summed."""
        total, by_group = Sites(*map(self.total, sites)), []
        for group, part, places in zip(self.groups, self.slices(), self.copies.places, strict=True):
            group_sites = total.columns(part)
            if places is not None:
                group_sites = Sites(*(jax.ops.segment_sum(terms, places, len(group.X)) for terms in group_sites))
            by_group.append(group_sites)
        return by_group

    def shared_total(self, terms: Float[Array, "n L"] | Float[np.ndarray, "n L"]) -> Any:
        """For each row and latent, the sum of terms over all rows that share the latent's value."""
        if not any(self.shared):
            return terms
        sums = self.sites_by_group(Sites(*2 * (as_array(terms),)))
        return self.side_by_side([group_sites.potential for group_sites in sums])

    def side_by_side(self, by_group: Sequence[Float[Array, "*batch _ _"]]) -> Float[Array, "*batch n L"]:
        """Join values at each group's inputs into values at the rows of the data."""
        return self.copies.side_by_side(by_group)

    @property
    def approximation_error(self) -> float:
        """The largest approximation error of a group, see LatentPrior."""
        return max(float(group.approximation_error) for group in self.groups)

    @property
    def num_rows(self) -> int:
        """The number of rows, padding included."""
        if self.copies.rows is not None:
            return len(self.copies.rows)
        places = self.copies.places[0]
        return len(self.groups[0].X if places is None else places)

    @property
    def can_pad(self) -> bool:
        """Whether the data can be padded with rows: see pgmodels.priors.padding."""
        return all(group.can_pad for group, shared in zip(self.groups, self.shared, strict=True) if not shared)

    @property
    def shared(self) -> tuple[bool, ...]:
        """For each group, whether rows share its inputs; such inputs do not change with the number of rows."""
        return tuple(self.copies.rows is not None or places is not None for places in self.copies.places)

    @double_precision
    def resized(self, size: int) -> "PriorCollection":
        """The prior truncated or padded to ``size`` rows; unchanged if a group cannot be padded."""
        if size == self.num_rows or not self.can_pad:
            return self
        pairs = zip(self.groups, self.shared, strict=True)
        groups = tuple(group if shared else group.resized(size) for group, shared in pairs)
        return PriorCollection(groups, self.copies.resized(size))

    def padded(self) -> "PriorCollection":
        """The prior padded to one of few sizes."""
        return self.resized(padded_size(self.num_rows))

    def check_new_inputs(self, X_new: np.ndarray, name: str = "X_new", jointly: bool = False) -> None:
        """ValueError if a user-defined kernel is not a covariance at X_new: see pgmodels.priors.new_inputs."""
        for group in self.spans().groups:
            check_new_inputs(group, X_new, name, jointly)

    def of_one_latent(self, index: int) -> "PriorCollection":
        """The prior of a single latent of a group."""
        return PriorCollection(
            (self.groups[index].of_one_latent(),), Copies(self.copies.rows, self.copies.places[index : index + 1])
        )

    def slices(self) -> list[slice]:
        """The columns of each group."""
        return columns(self.sizes)

    def condition(self, sites: Sites) -> IndependentPosterior:
        """The posterior given sites that do not couple latents, factorised once."""
        pairs = zip(self.groups, self.sites_by_group(sites), strict=True)
        return IndependentPosterior(self, sites, tuple(group.condition(group_sites) for group, group_sites in pairs))

    def moments(self, sites: Sites) -> Moments:
        """See LatentPrior; log normalisers and divergences are summed over groups."""
        pairs = zip(self.groups, self.sites_by_group(sites), strict=True)
        means, variances, logs, divergences = zip(
            *(group.moments(group_sites) for group, group_sites in pairs), strict=True
        )
        nothing = jnp.zeros(())
        return Moments(
            self.side_by_side(means), self.side_by_side(variances), sum(logs, nothing), sum(divergences, nothing)
        )

    def marginals(self) -> tuple[Float[Array, "n l"], Float[Array, "n l"]]:
        """Prior mean and variance at the data."""
        means, variances = zip(*(group.marginals() for group in self.groups), strict=True)
        return self.side_by_side(means), self.side_by_side(variances)

    def rounded_variances(self) -> Float[Array, "n l"]:
        """The prior variances at the data to which rounding errors of posterior variances are relative."""
        variances = (group.marginals()[1] * (not group.is_exact) for group in self.groups)
        return self.side_by_side(list(variances))

    def neglected_variances(self) -> Float[Array, "n l"]:
        """The variance of each latent at the data that the representations add or omit."""
        pairs = ((group.neglected_variance(), group.size) for group in self.groups)
        return self.side_by_side([jnp.tile(variance[:, None], size) for variance, size in pairs])

    def latents(self, coordinates: Sequence[Array]) -> Float[Array, "*batch n l"]:
        """The latents at the data from the coordinates of each group."""
        return self.side_by_side([group.latents(v) for group, v in zip(self.groups, coordinates, strict=True)])

    def for_sampling(self) -> "PriorCollection":
        """See LatentPrior."""
        return PriorCollection(tuple(group.for_sampling() for group in self.groups), self.copies)

    def sample_given(self, key: Key, coordinates: Sequence[Array]) -> Float[Array, "n l"]:
        """See LatentPrior."""
        keys = [jax.random.fold_in(key, index) for index in range(len(self.groups))]
        return self.side_by_side(
            [group.sample_given(k, v) for group, k, v in zip(self.groups, keys, coordinates, strict=True)]
        )

    def residual_variances(self) -> Float[Array, "n l"] | None:
        """Variance of each latent at the data given the coordinates; None if zero for all groups."""
        residuals = [group.residual_variance() for group in self.groups]
        if all(part is None for part in residuals):
            return None
        columns = [
            jnp.zeros((len(group.X), group.size)) if part is None else jnp.tile(part[:, None], group.size)
            for group, part in zip(self.groups, residuals, strict=True)
        ]
        return self.side_by_side(columns)

    def require_factors(self) -> list[FactoredPrior]:
        """The groups. Raises ValueError if one has no factor."""
        for group in self.groups:
            if not isinstance(group, FactoredPrior):
                raise no_factor(group)
        return [group for group in self.groups if isinstance(group, FactoredPrior)]

    @property
    def chained(self) -> bool:
        """Whether a group is a Markov chain."""
        return any(group.is_chain for group in self.groups)

    def takes_signed(self, combined: bool) -> bool:
        """Whether independent sites on latents, or on predictors that combine them, may have negative precisions."""
        return self.chained if combined else all(group.takes_signed for group in self.groups)

    def require_coupling(self) -> None:
        """Raise ValueError unless sites may couple the latents: all have factors, or are Markov chains."""
        groups = self.groups if self.chained else self.spans().groups
        for group in groups:
            if not (group.is_chain or isinstance(group, FactoredPrior)):
                raise no_factor(group)

    def factors(self) -> list[Float[Array, "r n"]]:
        """The factor A (rank, n) of each latent, f = mean + A^T v. Raises ValueError if a group has none."""
        factors = [self.at_rows(group.factor, i) for i, group in enumerate(self.require_factors())]
        return [A for A, size in zip(factors, self.sizes, strict=True) for _ in range(size)]

    def at_rows(self, values: Shaped[Array, "*batch m"], index: int) -> Shaped[Array, "*batch n"]:
        """Map values at a group's inputs to the rows of the data."""
        places, rows = self.copies.places[index], self.copies.rows
        values = values if places is None else values[..., places]
        return values if rows is None else values[..., rows]

    def factors_at(self, X_new: Float[Array, "m d"]) -> list[Float[Array, "r m"]]:
        """The factor A (rank, m) of each latent at new inputs."""
        factors = [group.factor_at(X_new)[0] for group in self.require_factors()]
        return [A for A, size in zip(factors, self.sizes, strict=True) for _ in range(size)]

    def residual_covariances(self, X_new: Float[Array, "m d"]) -> list[Float[Array, "m m"]]:
        """The covariance of the latents of each group at new inputs, given their coordinates."""
        return [group.residual_covariance(X_new) for group in self.groups]

    def means(self) -> Float[Array, " l"]:
        """The constant mean of each latent."""
        return jnp.concatenate([jnp.full(group.size, group.mean) for group in self.groups])

    def flatten(self, coordinates: Sequence[Array]) -> Float[Array, " D"]:
        """The coordinates of all groups as one vector, latent by latent."""
        return jnp.concatenate([v.T.ravel() for v in coordinates])

    def unflatten(self, flat: Float[Array, " D"]) -> Coordinates:
        """The inverse of ``flatten``."""
        counts = [group.rank * group.size for group in self.groups]
        vectors = jnp.split(flat, np.cumsum(counts)[:-1])
        return tuple(part.reshape(group.size, -1).T for part, group in zip(vectors, self.groups, strict=True))

    def draw(self, key: Key) -> tuple[Float[Array, "n l"], Coordinates]:
        """A joint draw of the latents from the prior, and its coordinates."""
        keys = jax.random.split(key, len(self.groups))
        draws = [group.draw(k) for k, group in zip(keys, self.groups, strict=True)]
        return self.side_by_side([f for f, _ in draws]), tuple(v for _, v in draws)


def columns(sizes: Sequence[int]) -> list[slice]:
    """The columns of groups of the given sizes, side by side."""
    ends = np.cumsum(sizes)
    return [slice(int(end) - size, int(end)) for end, size in zip(ends, sizes, strict=True)]
