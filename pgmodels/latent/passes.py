"""Passes over the rows of latents that a datum couples: with their factors, or by chunks where these are not held."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pgmodels.latent.chunks import each_row, summed
from pgmodels.latent.joint import JointPrior
from pgmodels.latent.low_rank import SpannedPrior
from pgmodels.latent.streamed import StreamedPrior


def sum_over_rows(prior: JointPrior, function: Callable[..., Any], *terms: Float[Array, "n *_"]) -> Any:
    """``function`` of the factors (r, n) of the latents and of terms of each row, which is a sum over the rows."""
    if not _in_chunks(prior):
        return function(prior.factors(), *terms)

    def told(X: Array, *terms: Array) -> Any:
        return function(prior.factors_at(X), *terms)

    X = prior.groups[0].X
    nothing = jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), jax.eval_shape(told, X, *terms))
    return summed(told, nothing, _width(prior), X, *terms)


def map_over_rows(prior: JointPrior, function: Callable[[Sequence[Array]], Any]) -> Any:
    """``function`` of the factors (r, n) of the latents, whose results have a first axis of rows."""
    if not _in_chunks(prior):
        return function(prior.factors())
    return each_row(lambda X: function(prior.factors_at(X)), _width(prior), prior.groups[0].X)


def _in_chunks(prior: JointPrior) -> bool:
    """Whether some factor is not held, and all of them follow from inputs."""
    spanned = all(isinstance(group, SpannedPrior) for group in prior.groups)
    return spanned and any(isinstance(group, StreamedPrior) for group in prior.groups)


def _width(prior: JointPrior) -> int:
    """The entries of all factors for a datum, each latent's beside the others'."""
    return sum(prior.ranks) * len(prior.ranks)
