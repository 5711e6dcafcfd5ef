"""Saving the posterior of a ``SparseApproximation``: arrays at inducing inputs, without data."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from pgmodels.model import Model
from pgmodels.priors.base import Sites
from pgmodels.priors.block_posterior import BlockPosterior
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.inducing.representation import InducingPrior
from pgmodels.priors.posterior import IndependentPosterior, Posterior
from pgmodels.results.stored_names import stored_field
from pgmodels.results.stored_values import check_values
from pgmodels.runtime.x64 import as_array

# The fields of an inducing-point prior that do not depend on the data.
_FIELDS = ("Z", "root", "active", "truncation_error")

Arrays = dict[str, np.ndarray]


def encode_posterior(posterior: Posterior, arrays: Arrays) -> list[list[int]] | None:
    """Add the posterior's arrays to ``arrays``; returns the blocks of coupled latents, None if independent."""
    for i, prior in enumerate(posterior.prior.groups):
        arrays |= {f"prior.{i}.{stored_field(name)}": np.asarray(getattr(prior, name)) for name in _FIELDS}
    roots, centres = posterior.roots_and_centres()
    arrays |= {f"root.{i}": np.asarray(root) for i, root in enumerate(roots)}
    names = ["centre"] if posterior.is_coupled else [f"centre.{i}" for i in range(len(centres))]
    arrays |= {name: np.asarray(centre) for name, centre in zip(names, centres, strict=True)}
    return posterior.coupled_latents()


def check_sizes(blocks: Any, sizes: list[int], arrays: Arrays) -> None:
    """Raise ValueError if the arrays of a posterior do not fit GPs of these sizes, or the blocks of latents."""
    for i in range(len(sizes)):
        values = {name: arrays[f"prior.{i}.{stored_field(name)}"] for name in _FIELDS}
        check_values(InducingPrior, values, {"d": arrays["prior.0.Z"].shape[1]})
    ranks = [len(arrays[f"prior.{i}.Z"]) for i in range(len(sizes))]
    shapes: dict[str, tuple[int, ...]]
    if blocks is None:
        shapes = {f"root.{i}": (sizes[i], rank, rank) for i, rank in enumerate(ranks)}
        shapes |= {f"centre.{i}": (sizes[i], rank) for i, rank in enumerate(ranks)}
    else:
        by_latent = np.repeat(ranks, sizes)
        if sorted(latent for block in blocks for latent in block) != [*range(len(by_latent))]:
            raise ValueError("blocks do not have each latent once")
        widths = [int(by_latent[block].sum()) for block in blocks]
        shapes = {f"root.{i}": (width, width) for i, width in enumerate(widths)} | {"centre": (sum(widths),)}
    for name, shape in shapes.items():
        if arrays[name].shape != shape or not np.isfinite(arrays[name]).all():
            raise ValueError(f"{name} should have finite entries and the shape {shape}; it has {arrays[name].shape}")


def decode_posterior(blocks: Any, model: Model, arrays: Arrays) -> Posterior:
    """The posterior of a model from the arrays of ``encode_posterior``."""
    prior = _prior(model, arrays)
    h = jnp.zeros((0, model.num_latents))
    if blocks is not None:
        roots = tuple(as_array(arrays[f"root.{i}"]) for i in range(len(blocks)))
        coupled = tuple(tuple(block) for block in blocks)
        sites = Sites(h, jnp.zeros((*h.shape, h.shape[1])))
        return BlockPosterior(prior, sites, as_array(arrays["centre"]), roots, jnp.zeros(()), coupled)
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
