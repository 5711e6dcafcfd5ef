"""Devices, of one process or of several, that share the rows of each batch."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from pgmodels.data.sources.rows import Block
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import as_array

_ROWS = "rows"
# Batches lie along a first axis, the rows of each along the second.
_SHARDED, _REPLICATED = PartitionSpec(None, _ROWS), PartitionSpec()


class DataBatch(NamedTuple):
    """Rows of data, or batches of rows along a first axis; ``weights`` are None if all are 1."""

    X: Float[Array, "*batches b d"]
    y: Array
    weights: Float[Array, "*batches b"] | None = None

    def number(self, index: Any) -> "DataBatch":
        """One of the batches; after the last comes the first."""
        return jax.tree.map(lambda part: part[index % len(part)], self)

    def first(self, count: int) -> "DataBatch":
        """The first of the batches."""
        return jax.tree.map(lambda part: part[:count], self)


class RowSharding(NamedTuple):
    """How rows are shared: ``devices`` have as many each of the ``size`` of a batch.

    Where these do not come out even, the first row again fills up the last devices, with weight 0.
    """

    devices: int = 1
    size: int = 0

    def shard(self, batches: Block) -> DataBatch:
        """Batches, along a first axis, with their rows on the devices; a process copies those of its own."""
        if self.devices == 1:
            return DataBatch(*map(as_array, batches))
        X, y, *weights = batches
        padding, sharding = -self.size % self.devices, NamedSharding(_mesh(), _SHARDED)
        arrays = [_filled(part, padding) for part in (X, y)]
        if weights or padding:
            row_weights = weights[0] if weights else np.ones(X.shape[:2])
            arrays.append(np.pad(row_weights, ((0, 0), (0, padding))))
        return DataBatch(*(jax.make_array_from_callback(a.shape, sharding, a.__getitem__) for a in arrays))

    def count(self, rows: Array) -> int:
        """The rows of a batch, of which some are here."""
        return len(rows) if self.devices == 1 else self.size

    def first_index(self, rows: Array) -> Any:
        """The place in the batch of the first of the rows here."""
        return 0 if self.devices == 1 else jax.lax.axis_index(_ROWS) * len(rows)

    def psum(self, sums: Any) -> Any:
        """Sums over the rows of a batch, from those over the rows here."""
        return sums if self.devices == 1 else jax.lax.psum(sums, _ROWS)

    def pmean(self, tree: Any) -> Any:
        """The mean of what each device has."""
        return tree if self.devices == 1 else jax.lax.pmean(tree, _ROWS)

    def to_host(self, tree: Any) -> Any:
        """What all devices have alike, on the one that all other work is done on."""
        return tree if self.devices == 1 else jax.tree.map(lambda leaf: as_array(np.asarray(leaf)), tree)


def row_sharding(size: int) -> RowSharding:
    """How all devices, of all processes, share the rows of batches of a size."""
    return RowSharding(jax.device_count(), size)


def shard_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function(problem, start, rows, *others)``, to be compiled, on each device with its part of the rows.

    ``problem.sharding`` says how they are shared. All else is the same everywhere, and so is what it returns.
    """

    @wraps(function)
    def call(problem: Any, *arguments: Any) -> Any:
        if problem.sharding.devices == 1:
            return function(problem, *arguments)

        def here(*local_arguments: Any) -> Any:
            # Machines may round differently, and have to decide alike.
            return problem.sharding.pmean(function(*local_arguments))

        specs = (_REPLICATED, _REPLICATED, _SHARDED, *[_REPLICATED] * (len(arguments) - 2))
        return jax.shard_map(here, mesh=_mesh(), in_specs=specs, out_specs=_REPLICATED, check_vma=False)(
            problem, *arguments
        )

    return call


def require_same_inputs(description: str) -> None:
    """Raise ValueError where the processes that share rows begin with what is described differently."""
    digest = np.frombuffer(hashlib.sha256(description.encode()).digest(), dtype=np.uint8)[None]
    by_device = NamedSharding(_mesh(), PartitionSpec(_ROWS))
    each = jax.make_array_from_callback((jax.device_count(), digest.size), by_device, lambda _: digest)
    every = np.asarray(_everywhere(each))
    others = np.flatnonzero(np.any(every != every[0], axis=1))
    if len(others):
        other = jax.devices()[others[0]].process_index
        raise ValueError(
            f"svi: process {other} has another model, other rows, options or inducing inputs than process 0, or "
            "another checkpoint. Give all of them the same on machines of one kind, and a folder that all of them see."
        )


@contextmanager
def explain_lost_process() -> Iterator[None]:
    """Within the context, where processes share rows, an error of JAX says that it may be that of another."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1:
            raise
        raise RuntimeError(
            f"svi: process {jax.process_index()} has lost the others, of which one has ended, or failed itself. Look "
            "for the first error among theirs, and start all of them again: with a checkpoint they go on from it."
        ) from error


def _filled(part: np.ndarray, more: int) -> np.ndarray:
    """Batches with the first row of each again, so many times."""
    return np.concatenate([part, np.repeat(part[:, :1], more, axis=1)], axis=1) if more else part


@compiled
def _everywhere(rows: Any) -> Any:
    """All rows, on each device."""
    return jax.lax.with_sharding_constraint(rows, NamedSharding(_mesh(), _REPLICATED))


@cache
def _mesh() -> Mesh:
    return Mesh(np.array(jax.devices()), (_ROWS,))
