"""Devices, of one process or of several, that share the rows of each batch."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import numpy as np
from jax.experimental.multihost_utils import broadcast_one_to_all, process_allgather
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from pgmodels.data.sources.rows import Block
from pgmodels.runtime.x64 import as_array

P = ParamSpec("P")
R = TypeVar("R")

_ROWS = "rows"
# Batches are along the first axis, their rows along the second.
_SHARDED, _REPLICATED = PartitionSpec(None, _ROWS), PartitionSpec()


class DataBatch(NamedTuple):
    """Rows of data, or batches of rows along a first axis; ``weights`` are None if all are 1."""

    X: Float[Array, "*batches b d"]
    y: Array
    weights: Float[Array, "*batches b"] | None = None

    @classmethod
    def of(cls, block: Block) -> "DataBatch":
        """Stacked batches as JAX arrays."""
        return cls(*map(as_array, block))

    def number(self, index: Any) -> "DataBatch":
        """One of the batches; after the last comes the first."""
        return jax.tree.map(lambda part: part[index % len(part)], self)

    def first(self, count: int) -> "DataBatch":
        """The first of the batches."""
        return jax.tree.map(lambda part: part[:count], self)


def shard_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function(problem, start, rows, *others)``, to be compiled, with the rows of the batches on all devices.

    XLA adds up their sums. What it returns is the same on each device.
    """

    @wraps(function)
    def call(problem: Any, start: Any, rows: DataBatch, *others: Any) -> Any:
        if jax.device_count() == 1:
            return function(problem, start, rows, *others)
        rows = jax.lax.with_sharding_constraint(rows, NamedSharding(_mesh(), _SHARDED))
        result = function(problem, start, rows, *others)
        return jax.lax.with_sharding_constraint(result, NamedSharding(_mesh(), _REPLICATED))

    return call


def to_host(tree: Any) -> Any:
    """Results of sharded functions as arrays on the default device, those of the first process in all processes.

    Machines may round differently, and have to decide alike.
    """
    if jax.device_count() == 1:
        return tree
    return jax.tree.map(as_array, broadcast_one_to_all(jax.tree.map(np.asarray, tree)))


def require_same_inputs(description: str) -> None:
    """Raise ValueError if processes that share rows start from different inputs, by their descriptions."""
    digests = process_allgather(np.frombuffer(hashlib.sha256(description.encode()).digest(), dtype=np.uint8))
    others = np.flatnonzero(np.any(digests != digests[0], axis=1))
    if len(others):
        raise ValueError(
            f"svi: the model, rows, options, inducing inputs or checkpoint of process {others[0]} differ from those of "
            "process 0. Give all processes the same, run them on machines of the same kind, and use a checkpoint "
            "folder that all can read."
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


@cache
def _mesh() -> Mesh:
    return Mesh(np.array(jax.devices()), (_ROWS,))
