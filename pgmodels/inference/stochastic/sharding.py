"""Devices, of one process or of several, that share the rows of each batch."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from pgmodels.data.sources.rows import Block
from pgmodels.priors.padding import masked
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import as_array

P = ParamSpec("P")
R = TypeVar("R")

_ROWS = "rows"
# Batches are along the first axis, their rows along the second.
_SHARDED, _REPLICATED = PartitionSpec(None, _ROWS), PartitionSpec()


class RowSharding(NamedTuple):
    """How ``devices`` share the ``size`` rows of a batch: equally many each.

    If their number does not divide the size, the last devices are padded with copies of the first row, which have
    weight zero.
    """

    devices: int = 1
    size: int = 0

    def shard(self, batches: Block) -> tuple[Array, Array]:
        """Batches, along the first axis, with their rows on the devices; each process copies its own rows."""
        if self.devices == 1:
            return as_array(batches[0]), as_array(batches[1])
        X, y = (_filled(part, -self.size % self.devices) for part in batches)
        sharding = NamedSharding(_mesh(), _SHARDED)
        return (
            jax.make_array_from_callback(X.shape, sharding, X.__getitem__),
            jax.make_array_from_callback(y.shape, sharding, y.__getitem__),
        )

    def count(self, rows: Array) -> int:
        """The number of rows of a batch."""
        return len(rows) if self.devices == 1 else self.size

    def first_index(self, rows: Array) -> Any:
        """Index within the batch of this device's first row."""
        return 0 if self.devices == 1 else jax.lax.axis_index(_ROWS) * len(rows)

    def mask_padding(self, terms: Float[Array, "b *rest"]) -> Float[Array, "b *rest"]:
        """Terms of this device's rows, zero for padding."""
        if self.size % self.devices == 0:
            return terms
        return masked(jnp.where(self.first_index(terms) + jnp.arange(len(terms)) < self.size, 1.0, 0.0), terms)

    def psum(self, sums: Any) -> Any:
        """Sums over the rows of a batch, from this device's sums."""
        return sums if self.devices == 1 else jax.lax.psum(sums, _ROWS)

    def pmean(self, tree: Any) -> Any:
        """The mean over devices."""
        return tree if self.devices == 1 else jax.lax.pmean(tree, _ROWS)

    def to_host(self, tree: Any) -> Any:
        """A replicated tree on the default device, for further work."""
        return tree if self.devices == 1 else jax.tree.map(lambda leaf: as_array(np.asarray(leaf)), tree)


def row_sharding(size: int) -> RowSharding:
    """How all devices, of all processes, share the rows of batches of a size."""
    return RowSharding(jax.device_count(), size)


def shard_rows(function: Callable[P, R]) -> Callable[P, R]:
    """Run ``function(problem, state, X, y, *others)`` on each device with its rows of the batches X and y.

    ``problem.sharding`` describes how rows are shared. All other arguments, and the result, are replicated.
    """

    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        problem: Any = arguments[0]
        if problem.sharding.devices == 1:
            return function(*arguments, **options)

        def here(*local_arguments: P.args) -> Any:
            # Machines may round differently, but must take the same decisions.
            return problem.sharding.pmean(function(*local_arguments, **options))

        specs = (_REPLICATED, _REPLICATED, _SHARDED, _SHARDED, *[_REPLICATED] * (len(arguments) - 4))
        return jax.shard_map(here, mesh=_mesh(), in_specs=specs, out_specs=_REPLICATED, check_vma=False)(*arguments)

    return call


def require_same_inputs(description: str) -> None:
    """Raise ValueError if processes that share rows start from different inputs, by their descriptions."""
    digest = np.frombuffer(hashlib.sha256(description.encode()).digest(), dtype=np.uint8)[None]
    by_device = NamedSharding(_mesh(), PartitionSpec(_ROWS))
    each = jax.make_array_from_callback((jax.device_count(), digest.size), by_device, lambda _: digest)
    every = np.asarray(_everywhere(each))
    others = np.flatnonzero(np.any(every != every[0], axis=1))
    if len(others):
        other = jax.devices()[others[0]].process_index
        raise ValueError(
            f"svi: process {other} has another model, other rows, options or inducing inputs than process 0, or "
            "another checkpoint. Give all of them the same, on machines of one kind, and a folder that all can read."
        )


@contextmanager
def explain_lost_process() -> Iterator[None]:
    """A context in which an error of JAX is explained: if processes share rows, another one may have caused it."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1:
            raise
        raise RuntimeError(
            f"svi: process {jax.process_index()} has lost the others: one of them has ended, or it failed itself. Look "
            "for the first error among theirs, and restart all of them: with a checkpoint they resume from it."
        ) from error


def _filled(part: np.ndarray, more: int) -> np.ndarray:
    """Batches padded with copies of their first rows."""
    return np.concatenate([part, np.repeat(part[:, :1], more, axis=1)], axis=1) if more else part


@compiled
def _everywhere(rows: Any) -> Any:
    """Rows replicated on each device."""
    return jax.lax.with_sharding_constraint(rows, NamedSharding(_mesh(), _REPLICATED))


@cache
def _mesh() -> Mesh:
    return Mesh(np.array(jax.devices()), (_ROWS,))
