"""Sums and maps over rows for coupled latents: with their factors in memory, or recomputed in chunks.

Together with a dense prior, which is larger, all factors are computed at once.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pgmodels.priors.chunking import each_row, summed
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.inducing.chunked import ChunkedInducingPrior
from pgmodels.priors.linalg import inverse_root
from pgmodels.priors.low_rank import InducingPointPrior


def sum_over_rows(prior: PriorCollection, function: Callable[..., Any], *terms: Float[Array, "n *_"]) -> Any:
    """Sum over rows: ``function`` of the latents' factors (r, n) and of terms of each row, additive over rows."""
    if not _in_chunks(prior):
        return function(prior.factors(), *terms)

    factors_at = _by_products(prior)

    def chunk_sums(X: Array, *terms: Array) -> Any:
        return function(factors_at(X), *terms)

    X = _rows(prior)
    nothing = jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), jax.eval_shape(chunk_sums, X, *terms))
    return summed(chunk_sums, nothing, _width(prior), X, *terms)


def map_over_rows(prior: PriorCollection, function: Callable[[Sequence[Array]], Any]) -> Any:
    """Map over rows: ``function`` of the latents' factors (r, n), with results whose first axis is the rows."""
    if not _in_chunks(prior):
        return function(prior.factors())
    factors_at = _by_products(prior)
    return each_row(lambda X: function(factors_at(X)), _width(prior), _rows(prior))


def _rows(prior: PriorCollection) -> Array:
    """The inputs of the rows, from any chunked group."""
    return next(group.X for group in prior.groups if isinstance(group, ChunkedInducingPrior))


def _in_chunks(prior: PriorCollection) -> bool:
    """Whether some group is chunked and all factors can be computed from inputs."""
    spanned = all(isinstance(group, InducingPointPrior) for group in prior.groups)
    return spanned and any(isinstance(group, ChunkedInducingPrior) for group in prior.groups)


def _by_products(prior: PriorCollection) -> Callable[[Array], list[Array]]:
    """The factors of the latents at inputs."""
    spanned = [group for group in prior.groups if isinstance(group, InducingPointPrior)]
    whiteners = [inverse_root(group.root) for group in spanned]

    def factors_at(X: Array) -> list[Array]:
        factors = [whitener @ group.cross(X) for whitener, group in zip(whiteners, spanned, strict=True)]
        return [A for A, group in zip(factors, spanned, strict=True) for _ in range(group.size)]

    return factors_at


def _width(prior: PriorCollection) -> int:
    """Entries of all factors per row."""
    return sum(prior.ranks) * len(prior.ranks)
