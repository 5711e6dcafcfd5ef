"""Saving the posterior of a ``SparseApproximation``: arrays at inducing inputs, without data."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from pgmodels.model import Model
from pgmodels.priors.base import Sites
from pgmodels.priors.block_posterior import BlockPosterior
from pgmodels.priors.collection import IndependentPosterior, PriorCollection
from pgmodels.priors.factored import FactoredPosterior
from pgmodels.priors.inducing.representation import InducingPrior
from pgmodels.results.stored_names import stored_field
from pgmodels.runtime.x64 import as_array

# The fields of an inducing-point prior that do not depend on the data.
_FIELDS = ("Z", "root", "active", "truncation_error")

Arrays = dict[str, np.ndarray]


def encode_posterior(posterior: IndependentPosterior | BlockPosterior, arrays: Arrays) -> list[list[int]] | None:
    """Add the posterior's arrays to ``arrays``; returns the blocks of coupled latents, None if independent."""
    for i, prior in enumerate(posterior.prior.groups):
        arrays |= {f"prior.{i}.{stored_field(name)}": np.asarray(getattr(prior, name)) for name in _FIELDS}
    if isinstance(posterior, BlockPosterior):
        arrays["centre"] = np.asarray(posterior.centre)
        arrays |= {f"root.{i}": np.asarray(root) for i, root in enumerate(posterior.roots)}
        return [list(block) for block in posterior.blocks]
    for i, group in enumerate(posterior.groups):
        if isinstance(group, FactoredPosterior):
            roots, centres = group.states.span
            arrays |= {f"root.{i}": np.asarray(roots), f"centre.{i}": np.asarray(centres)}
    return None


def decode_posterior(blocks: Any, model: Model, arrays: Arrays) -> IndependentPosterior | BlockPosterior:
    """The posterior of a model from the arrays of ``encode_posterior``."""
    prior = _prior(model, arrays)
    h = jnp.zeros((0, model.num_latents))
    if blocks is not None:
        roots = tuple(as_array(arrays[f"root.{i}"]) for i in range(len(blocks)))
        coupled = tuple(tuple(block) for block in blocks)
        W = jnp.zeros((*h.shape, h.shape[1]))
        return BlockPosterior(prior, h, W, as_array(arrays["centre"]), roots, jnp.zeros(()), coupled)
    groups = tuple(
        group.posterior(as_array(arrays[f"root.{i}"]), as_array(arrays[f"centre.{i}"]))
        for i, group in enumerate(prior.groups)
        if isinstance(group, InducingPrior)
    )
    return IndependentPosterior(prior, Sites(h, h), groups)


def _prior(model: Model, arrays: Arrays) -> PriorCollection:
    """The model's prior at its inducing inputs, with no data rows."""
    width = arrays["prior.0.Z"].shape[1]
    groups = model.prior(np.zeros((1, width))).resized(0).groups
    stored: list[dict[str, Any]] = [
        {name: as_array(arrays[f"prior.{i}.{stored_field(name)}"]) for name in _FIELDS} for i in range(len(groups))
    ]
    pairs = zip(groups, stored, strict=True)
    return PriorCollection(
        tuple(
            replace(group, A=jnp.zeros((len(arrays_of_group["Z"]), 0)), **arrays_of_group)
            for group, arrays_of_group in pairs
            if isinstance(group, InducingPrior)
        )
    )
