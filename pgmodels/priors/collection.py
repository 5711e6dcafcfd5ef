"""Several GPs: their priors, posteriors and blocks."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from pgmodels.priors.base import (
    Coordinates,
    GroupPosterior,
    LatentPrior,
    Moments,
    RandomKey,
    Sites,
    latents_given,
    no_factor,
    padded_size,
)
from pgmodels.priors.dense import FactoredPosterior, FactoredPrior
from pgmodels.priors.linalg import Factor, Root, as_dense
from pgmodels.priors.rows import Copies, check_new_inputs
from pgmodels.runtime.precision import Module, as_array, double_precision


class NewLeaves(Module):
    """A pytree in which None replaces leaves of a known tree, because programs copy the arrays they return.

    ``places`` are the indices of the omitted leaves among the known leaves, None for new leaves.
    """

    leaves: list[Array | None]
    places: tuple[int | None, ...] = eqx.field(static=True)
    tree: PyTree = eqx.field(static=True)

    @classmethod
    def of(cls, known: PyTree, tree: PyTree) -> "NewLeaves":
        """Omit the leaves of a known tree from a tree, inside a program."""
        by_id = {id(leaf): place for place, leaf in enumerate(jax.tree.leaves(known))}
        leaves, structure = jax.tree.flatten(tree)
        places = tuple(by_id.get(id(leaf)) for leaf in leaves)
        new_leaves = [leaf if place is None else None for leaf, place in zip(leaves, places, strict=True)]
        return cls(new_leaves, places, structure)

    def completed(self, known: PyTree) -> PyTree:
        """Return the full tree, with the known leaves restored."""
        known_leaves = jax.tree.leaves(known)
        pairs = zip(self.leaves, self.places, strict=True)
        return jax.tree.unflatten(self.tree, [leaf if place is None else known_leaves[place] for leaf, place in pairs])


T = TypeVar("T")
# The means and the covariances of each datum's latents.
Marginals = tuple[Float[Array, "n L"], Float[Array, "n L L"]]


class Posterior(Module):
    """The latents of all groups given sites: the product of their prior and the sites, normalised and factorised.

    If ``is_coupled``, sites couple latents: precisions are (n, L, L), and covariances between rows (L, m, L, n).
    Otherwise latents are independent: precisions are (n, L), and covariances between rows are within each latent,
    (L, m, n). Covariances between rows need priors with a factor (ValueError without one).
    """

    prior: eqx.AbstractVar["PriorCollection"]
    sites: eqx.AbstractVar[Sites]
    is_coupled: eqx.AbstractClassVar[bool]

    @abstractmethod
    def moments(self) -> tuple[Float[Array, "n L"], Float[Array, "n L"]]:
        """Return the mean and the variance of the latents at the data."""

    @abstractmethod
    def marginals(self) -> Marginals:
        """Return the mean and the covariance of each datum's latents."""

    @abstractmethod
    def predict(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "m L"], Float[Array, "m L"]]:
        """Return the mean and the variance at new inputs."""

    @abstractmethod
    def marginals_at(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "m L"], Float[Array, "m L L"]]:
        """Return the mean and the covariance of the latents at each new input."""

    @abstractmethod
    def covariance(self) -> Float[Array, "L n n"] | Float[Array, "L n L n"]:
        """Return the covariance of the latents at the data."""

    @abstractmethod
    def cross_covariance(self, X_new: Float[Array, "m d"]) -> Float[Array, "L m n"] | Float[Array, "L m L n"]:
        """Return the covariance between the latents at new inputs and the latents at the data."""

    @abstractmethod
    def covariance_at(self, X_new: Float[Array, "m d"]) -> Float[Array, "L m m"] | Float[Array, "L m L m"]:
        """Return the covariance of the latents at new inputs."""

    @abstractmethod
    def log_normalizer(self) -> Float[Array, ""]:
        """Return the logarithm of the integral of the prior times the sites."""

    @abstractmethod
    def log_factor(self, f: Float[Array, "*batch n L"]) -> Float[Array, "*batch"]:
        """Return the log sites at f, the latents given by coordinates, in expectation over the residual."""

    @abstractmethod
    def tempered(self, share: Float[Array, ""] | float) -> "Posterior":
        """Return the posterior with the same mean and ``share`` times the sites' precisions."""

    @abstractmethod
    def mean_and_deviation(self, key: RandomKey) -> tuple[Coordinates, Coordinates]:
        """Return the mean of the coordinates, and a draw of their deviation from it, each with one array per group."""

    def draw(self, key: RandomKey) -> tuple[Float[Array, "n L"], Coordinates]:
        """Return a joint draw of the latents at the data, and its coordinates."""
        means, deviations = self.mean_and_deviation(key)
        coordinates = tuple(m + d for m, d in zip(means, deviations, strict=True))
        return sample_given(self.prior, key, coordinates), coordinates

    @property
    def extends(self) -> bool:
        """Whether it draws jointly at new inputs without a covariance."""
        return False

    @abstractmethod
    def coupled_latents(self) -> list[list[int]] | None:
        """Return the dependent latents of each block; None if all latents are independent."""

    @abstractmethod
    def roots_and_centres(self) -> tuple[tuple[Root, ...], tuple[Array, ...]]:
        """Return roots of the coordinates' precision, and their means, for priors with inducing inputs, without data.

        If coupled, roots (r, r) of each block and one vector of all means; else (l, r, r) and (l, r) for each group.
        """


class DependentPosterior(Posterior):
    """The posterior of latents that sites couple."""

    is_coupled: ClassVar[bool] = True

    def moments(self) -> tuple[Float[Array, "n L"], Float[Array, "n L"]]:
        mean, V = self.marginals()
        return mean, jnp.diagonal(V, axis1=1, axis2=2)

    def predict(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "m L"], Float[Array, "m L"]]:
        mean, V = self.marginals_at(X_new)
        return mean, jnp.diagonal(V, axis1=1, axis2=2)

    def log_factor(self, f: Float[Array, "*batch n L"]) -> Float[Array, "*batch"]:
        h, W = self.sites
        quadratic = jnp.einsum("...il,ilk,...ik->...", f, W, f) + residual_trace(self.prior, W)
        return jnp.sum(h * f, axis=(-2, -1)) - 0.5 * quadratic

    @abstractmethod
    def divergence(self, covariance: Float[Array, "n L L"]) -> Float[Array, ""]:
        """Return KL(q || prior) of the coordinates, from the covariances of each datum's latents."""


class IndependentPosterior(Posterior):
    """The posterior of latents that no site couples: each group's prior computes its own, and needs no factor."""

    is_coupled: ClassVar[bool] = False

    prior: "PriorCollection"
    sites: Sites
    groups: tuple[GroupPosterior, ...]

    def moments(self) -> tuple[Float[Array, "n l"], Float[Array, "n l"]]:
        means, variances = zip(*(group.moments() for group in self.groups), strict=True)
        side_by_side = self.prior.copies.side_by_side
        return side_by_side(means), side_by_side(variances)

    def marginals(self) -> Marginals:
        mean, variance = self.moments()
        return mean, jax.vmap(jnp.diag)(variance)

    def log_normalizer(self) -> Float[Array, ""]:
        return sum((group.log_normalizer() for group in self.groups), jnp.zeros(()))

    def log_normalizer_slopes(self) -> list[tuple[Float[Array, "n n"], Array]]:
        """Return the derivatives of the log normaliser in each dense group's covariance and mean."""
        return [group.log_normalizer_slopes() for group in self.groups]  # type: ignore[attr-defined]

    def predict(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "m l"], Float[Array, "m l"]]:
        means, variances = zip(*(group.predict(X_new) for group in self.groups), strict=True)
        return jnp.concatenate(means, axis=1), jnp.concatenate(variances, axis=1)

    def marginals_at(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "m l"], Float[Array, "m l l"]]:
        mean, variance = self.predict(X_new)
        return mean, jax.vmap(jnp.diag)(variance)

    @property
    def extends(self) -> bool:
        """Whether it draws jointly at new inputs by ``drawn_at``."""
        return all(group.is_chain for group in self.prior.groups)

    def drawn_at(self, X_new: Float[Array, "m d"], keys: RandomKey) -> Float[Array, "draws m l"]:
        """Return joint draws at new inputs, one for each key, in time that is linear in the number of rows."""
        groups = [group.extended(X_new) for group in self.groups]
        priors = [group.prior for group in groups]  # type: ignore[attr-defined]

        def one(key: RandomKey) -> Array:
            drawn = []
            for number, (prior, group) in enumerate(zip(priors, groups, strict=True)):
                mean, deviation = group.mean_and_deviation(jax.random.fold_in(key, number))
                drawn.append(prior.latents(mean + deviation)[-len(X_new) :])
            return jnp.concatenate(drawn, axis=1)

        # Draws of a batch share one scan over the rows.
        return jax.lax.map(one, keys, batch_size=16)

    def mean_and_deviation(self, key: RandomKey) -> tuple[Coordinates, Coordinates]:
        keys = jax.random.split(key, len(self.groups))
        pairs = [group.mean_and_deviation(k) for k, group in zip(keys, self.groups, strict=True)]
        return tuple(m for m, _ in pairs), tuple(d for _, d in pairs)

    def log_factor(self, f: Float[Array, "*batch n l"]) -> Float[Array, "*batch"]:
        h, w = self.sites
        residual = self.prior.residual_variances()
        loss = 0.0 if residual is None else 0.5 * jnp.sum(w * residual)
        return jnp.sum(h * f - 0.5 * w * f**2, axis=(-2, -1)) - loss

    def tempered(self, share: Float[Array, ""] | float) -> "IndependentPosterior":
        h, w = self.sites
        # K^-1 m = h - w m, and so h' = K^-1 m + share w m.
        return self.prior.condition(Sites(h - (1.0 - share) * w * self.moments()[0], share * w))

    def covariance(self) -> Float[Array, "l n n"]:
        at_rows, groups = self.prior.copies.at_rows, enumerate(self._factored())
        across = ((i, jnp.swapaxes(at_rows(group.covariance(), i), 1, 2)) for i, group in groups)
        return jnp.concatenate([at_rows(C, i) for i, C in across])

    def cross_covariance(self, X_new: Float[Array, "m d"]) -> Float[Array, "l m n"]:
        at_rows, groups = self.prior.copies.at_rows, enumerate(self._factored())
        return jnp.concatenate([at_rows(group.cross_covariance(X_new), i) for i, group in groups])

    def covariance_at(self, X_new: Float[Array, "m d"]) -> Float[Array, "l m m"]:
        return jnp.concatenate([group.covariance_at(X_new) for group in self._factored()])

    def coupled_latents(self) -> None:
        return None

    def roots_and_centres(self) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        roots, centres = zip(*(group.states[:2] for group in self._factored()), strict=True)
        return roots, centres

    def _factored(self) -> list[FactoredPosterior]:
        require_factors(self.prior)
        return cast(list[FactoredPosterior], list(self.groups))


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
        return tuple(self.by_latent([group.rank for group in self.groups]))

    def spans(self) -> "PriorCollection":
        """Return the priors with FIC groups replaced by their low-rank term ``span``, without residuals."""
        return PriorCollection(tuple(getattr(group, "span", group) for group in self.groups), self.copies)

    @property
    def distinct(self) -> "PriorCollection":
        """The prior at the distinct rows; ``total`` sums over their copies, and ``copies.spread`` repeats values."""
        return PriorCollection(self.groups, Copies(None, self.copies.places))

    def total(self, terms: Float[Array, "n *rest"]) -> Float[Array, "m *rest"]:
        """Sum the terms of equal rows: values at the distinct rows."""
        rows = self.copies.rows
        return terms if rows is None else jax.ops.segment_sum(terms, rows, self.distinct.num_rows)

    def sites_by_group(self, sites: Sites) -> list[Sites]:
        """Return the sites at each group's distinct inputs: potentials and precisions of equal inputs are summed."""
        total, by_group = Sites(*map(self.total, sites)), []
        for group, part, places in zip(self.groups, self.slices(), self.copies.places, strict=True):
            group_sites = total.columns(part)
            if places is not None:
                group_sites = Sites(*(jax.ops.segment_sum(terms, places, len(group.X)) for terms in group_sites))
            by_group.append(group_sites)
        return by_group

    @property
    def num_rows(self) -> int:
        """The number of rows, padding included."""
        if self.copies.rows is not None:
            return len(self.copies.rows)
        places = self.copies.places[0]
        return len(self.groups[0].X if places is None else places)

    @double_precision
    def resized(self, size: int) -> "PriorCollection":
        """Return the prior truncated or padded to ``size`` rows; unchanged if a group cannot be padded."""
        if size == self.num_rows or not can_pad(self):
            return self
        pairs = zip(self.groups, self.copies.shared, strict=True)
        groups = tuple(group if shared else group.resized(size) for group, shared in pairs)
        return PriorCollection(groups, self.copies.resized(size))

    def slices(self) -> list[slice]:
        """Return the columns of each group."""
        return columns(self.sizes)

    def condition(self, sites: Sites) -> IndependentPosterior:
        """Return the posterior given sites that do not couple latents, factorised once."""
        pairs = zip(self.groups, self.sites_by_group(sites), strict=True)
        return IndependentPosterior(self, sites, tuple(group.condition(group_sites) for group, group_sites in pairs))

    def moments(self, sites: Sites) -> Moments:
        """Return the moments; log normalisers and divergences are summed over groups."""
        pairs = zip(self.groups, self.sites_by_group(sites), strict=True)
        moments = [group.moments(group_sites) for group, group_sites in pairs]
        means, variances, logs, divergences = zip(*moments, strict=True)
        nothing = jnp.zeros(())
        side_by_side = self.copies.side_by_side
        return Moments(side_by_side(means), side_by_side(variances), sum(logs, nothing), sum(divergences, nothing))

    def marginals(self) -> tuple[Float[Array, "n l"], Float[Array, "n l"]]:
        """Return the prior mean and variance at the data."""
        means, variances = zip(*(group.marginals() for group in self.groups), strict=True)
        return self.copies.side_by_side(means), self.copies.side_by_side(variances)

    def latents(self, coordinates: Sequence[Array]) -> Float[Array, "*batch n l"]:
        """Return the latents at the data from the coordinates of each group."""
        return self.copies.side_by_side([group.latents(v) for group, v in zip(self.groups, coordinates, strict=True)])

    def for_sampling(self) -> "PriorCollection":
        return PriorCollection(tuple(group.for_sampling() for group in self.groups), self.copies)

    def residual_variances(self) -> Float[Array, "n l"] | None:
        """Return the variance of each latent at the data given the coordinates; None if zero for all groups."""
        residuals = [group.residual_variance() for group in self.groups]
        if all(part is None for part in residuals):
            return None
        pairs = zip(self.groups, residuals, strict=True)
        known = [jnp.zeros(len(group.X)) if part is None else part for group, part in pairs]
        return self.copies.side_by_side([jnp.tile(v[:, None], n) for v, n in zip(known, self.sizes, strict=True)])

    def with_residuals(self, covariance: Float[Array, "n L L"]) -> Float[Array, "n L L"]:
        """Return covariances of each datum's latents, as given by coordinates, plus the residual variances."""
        residual = self.residual_variances()
        return covariance if residual is None else covariance + jax.vmap(jnp.diag)(residual)

    def loadings(self) -> list[Factor]:
        """Return the factor A (rank, n) of each latent, f = mean + A^T v. Raises ValueError if a group has none."""
        return self.by_latent([self.copies.at_rows(A.loadings, i) for i, A in enumerate(require_factors(self))])

    def by_latent(self, by_group: Sequence[T]) -> list[T]:
        """Return values of the groups, each repeated for the group's latents."""
        return [value for value, size in zip(by_group, self.sizes, strict=True) for _ in range(size)]

    def factors(self) -> list[Float[Array, "r n"]]:
        """Return the factors as matrices."""
        return [as_dense(A) for A in self.loadings()]

    def means(self) -> Float[Array, " l"]:
        """Return the constant mean of each latent."""
        return jnp.concatenate([jnp.full(group.size, group.mean) for group in self.groups])

    def unflatten(self, flat: Float[Array, " D"]) -> Coordinates:
        """Return the inverse of ``flatten``."""
        vectors = jnp.split(flat, np.cumsum([group.rank * group.size for group in self.groups])[:-1])
        return tuple(part.reshape(group.size, -1).T for part, group in zip(vectors, self.groups, strict=True))

    def draw(self, key: RandomKey) -> tuple[Float[Array, "n l"], Coordinates]:
        """Return a joint draw of the latents from the prior, and its coordinates."""
        keys = jax.random.split(key, len(self.groups))
        draws = [group.draw(k) for k, group in zip(keys, self.groups, strict=True)]
        return self.copies.side_by_side([f for f, _ in draws]), tuple(v for _, v in draws)


def can_pad(prior: PriorCollection) -> bool:
    """Return whether the data can be padded: ``resized`` exists for each group whose inputs rows do not share."""
    pairs = zip(prior.groups, prior.copies.shared, strict=True)
    return all(type(group).resized is not LatentPrior.resized for group, shared in pairs if not shared)


def padded_prior(prior: PriorCollection) -> PriorCollection:
    """Return the prior padded to one of few sizes."""
    return prior.resized(padded_size(prior.num_rows))


def sample_given(prior: PriorCollection, key: RandomKey, coordinates: Sequence[Array]) -> Float[Array, "n l"]:
    """Draw the latents at the data given the coordinates of each group; see ``latents_given``."""
    pairs = enumerate(zip(prior.groups, coordinates, strict=True))
    by_group = [latents_given(group, jax.random.fold_in(key, index), v) for index, (group, v) in pairs]
    return prior.copies.side_by_side(by_group)


def flatten(coordinates: Sequence[Array]) -> Float[Array, " D"]:
    """Return the coordinates of all groups as one vector, latent by latent; the inverse of ``unflatten``."""
    return jnp.concatenate([v.T.ravel() for v in coordinates])


def check_covariances(prior: PriorCollection, X_new: np.ndarray, name: str = "X_new", jointly: bool = False) -> None:
    """Raise ValueError if a user-defined kernel is not a covariance at X_new: see pgmodels.priors.rows."""
    for group in prior.spans().groups:
        check_new_inputs(group, X_new, name, jointly)


# Properties of a prior that engines need: its factors, supported sites and neglected variances.


def have_factors(prior: PriorCollection) -> bool:
    """Return whether each group has a factor; pass ``prior.spans()`` to omit the residuals of FIC groups."""
    return all(group.has_factor for group in prior.groups)


def require_factors(prior: PriorCollection) -> list[FactoredPrior]:
    """Return the groups. Raise ValueError if a group has no factor."""
    for group in prior.groups:
        if not group.has_factor:
            raise no_factor(group)
    return cast(list[FactoredPrior], list(prior.groups))


def loadings_at(prior: PriorCollection, X_new: Float[Array, "m d"]) -> list[Factor]:
    """Return the factor A (rank, m) of each latent at new inputs."""
    return prior.by_latent([group.loadings_at(X_new)[0] for group in require_factors(prior)])


def factors_at(prior: PriorCollection, X_new: Float[Array, "m d"]) -> list[Float[Array, "r m"]]:
    """Return the factors at new inputs as matrices."""
    return [as_dense(A) for A in loadings_at(prior, X_new)]


def has_chain(prior: PriorCollection) -> bool:
    """Return whether a group is a Markov chain."""
    return any(group.is_chain for group in prior.groups)


def supports_signed(prior: PriorCollection, combined: bool) -> bool:
    """Return whether independent sites on latents, or on predictors that combine them, may have negative precisions."""
    return has_chain(prior) if combined else all(group.is_chain for group in prior.groups)


def require_coupling(prior: PriorCollection) -> None:
    """Raise ValueError unless sites may couple the latents: each group has a factor or is a Markov chain."""
    groups = prior.groups if has_chain(prior) else prior.spans().groups
    for group in groups:
        if not (group.is_chain or group.has_factor):
            raise no_factor(group)


def approximation_error(prior: PriorCollection) -> float:
    """Return the largest approximation error of a group: see LatentPrior."""
    return max(float(group.approximation_error) for group in prior.groups)


def rounded_variances(prior: PriorCollection) -> Float[Array, "n l"]:
    """Return the prior variances at the data to which rounding errors of posterior variances are relative."""
    return prior.copies.side_by_side([group.marginals()[1] * (not group.is_exact) for group in prior.groups])


def neglected_variances(prior: PriorCollection) -> Float[Array, "n l"]:
    """Return the variance of each latent at the data that the representations add or omit."""
    pairs = ((group.neglected_variance(), group.size) for group in prior.groups)
    return prior.copies.side_by_side([jnp.tile(variance[:, None], size) for variance, size in pairs])


def residual_trace(prior: PriorCollection, precision: Float[Array, "n L L"]) -> Array | float:
    """Sum over the data of E eps^T W eps, with eps the residual of the latents given the coordinates."""
    residual = prior.residual_variances()
    return 0.0 if residual is None else jnp.sum(jnp.diagonal(precision, axis1=1, axis2=2) * residual)


def shared_total(
    prior: PriorCollection, terms: Float[Array, "n L"] | Float[np.ndarray, "n L"]
) -> Float[Array, "n L"] | Float[np.ndarray, "n L"]:
    """For each row and latent, the sum of terms over all rows that share the latent's value."""
    if not any(prior.copies.shared):
        return terms
    sums = prior.sites_by_group(Sites(*2 * (as_array(terms),)))
    return prior.copies.side_by_side([group_sites.potential for group_sites in sums])


def columns(sizes: Sequence[int]) -> list[slice]:
    """Return the columns of groups of the given sizes, side by side."""
    ends = np.cumsum(sizes)
    return [slice(int(end) - size, int(end)) for end, size in zip(ends, sizes, strict=True)]


# Blocks of latents that are factorised together, with concatenated coordinates.

# Up to this total number of whitened coordinates (82 MB per root), all latents are one block; above, one block each.
MAX_BLOCK = 3200


def choose_blocks(prior: PriorCollection) -> tuple[tuple[int, ...], ...]:
    """Return one block of all latents if affordable, else one block per latent; padding does not affect the choice."""
    ranks = [padded_size(rank) for rank in prior.spans().ranks]
    if sum(ranks) <= MAX_BLOCK:
        return (tuple(range(len(ranks))),)
    return tuple((latent,) for latent in range(len(ranks)))


def are_affordable(prior: PriorCollection, blocks: tuple[tuple[int, ...], ...]) -> bool:
    """Return whether each block has at most MAX_BLOCK coordinates, and its latents have factors."""
    ranks = [padded_size(rank) for rank in prior.spans().ranks]
    return have_factors(prior) and all(sum(ranks[latent] for latent in block) <= MAX_BLOCK for block in blocks)


def gather_blocks(prior: PriorCollection, blocks: tuple[tuple[int, ...], ...], flat: Float[Array, " D"]) -> list[Array]:
    """Split coordinates, ordered by latent, into one vector for each block; its latents need not be adjacent."""
    vectors = jnp.split(flat, np.cumsum(prior.ranks)[:-1])
    return [jnp.concatenate([vectors[latent] for latent in block]) for block in blocks]


def scatter_blocks(
    prior: PriorCollection, blocks: tuple[tuple[int, ...], ...], vectors: Sequence[Float[Array, " _"]]
) -> Float[Array, " D"]:
    """Return the inverse of ``gather_blocks``."""
    ranks = prior.ranks
    by_latent: dict[int, Array] = {}
    for block, part in zip(blocks, vectors, strict=True):
        pieces = jnp.split(part, np.cumsum([ranks[latent] for latent in block])[:-1])
        by_latent.update(zip(block, pieces, strict=True))
    return jnp.concatenate([by_latent[latent] for latent in range(len(ranks))])


def split_over(matrices: tuple[Array, ...], flat: Array) -> list[Array]:
    """Split a vector over concatenated blocks into one per block, as long as its matrix."""
    return jnp.split(flat, np.cumsum([len(matrix) for matrix in matrices])[:-1])


def stacked(factors: list[Float[Array, "_ n"]]) -> Float[Array, "R N"]:
    """Return the block-diagonal matrix (sum of r, latents n) of factors (r, n)."""
    total, columns = sum(len(factor) for factor in factors), factors[0].shape[1]
    matrix = jnp.zeros((total, len(factors) * columns), factors[0].dtype)
    row = 0
    for place, factor in enumerate(factors):
        matrix = matrix.at[row : row + len(factor), place * columns : (place + 1) * columns].set(factor)
        row += len(factor)
    return matrix
