"""Computation in chunks of rows within one compiled program, to limit memory."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Numbers per chunk, 4 MB: a few such arrays fit in the cache.
CHUNK = 2**19
# Entries of a factor, inputs times rows, up to which it is kept in memory: 128 MB.
HELD = 2**24


def chunks(width: int, X: Float[Array, "n *d"], *terms: Float[Array, "n *_"]) -> tuple[Array, ...]:
    """Inputs and terms of each row, in equal chunks along a new first axis; ``width`` is the numbers per row.

    The last chunk is padded with its last row and zero terms.
    """
    n = len(X)
    count = max(1, -(-n * width // CHUNK))
    length = -(-n // count)

    def padded(part: Array, mode: str) -> Array:
        beyond = [(0, count * length - n), *[(0, 0)] * (part.ndim - 1)]
        return jnp.pad(part, beyond, mode=mode).reshape(count, length, *part.shape[1:])

    return padded(X, "edge"), *(padded(part, "constant") for part in terms)


def each_row(function: Callable[..., Any], width: int, X: Float[Array, "n d"]) -> Any:
    """Map ``function`` over chunks of inputs; its results have the rows as first axis, and are joined."""
    results = jax.lax.map(jax.checkpoint(function), chunks(width, X)[0])
    return jax.tree.map(lambda part: part.reshape(-1, *part.shape[2:])[: len(X)], results)


def summed(function: Callable[..., Any], start: Any, width: int, X: Float[Array, "n d"], *terms: Array) -> Any:
    """``start`` plus the sum over chunks of ``function`` of their inputs and terms."""
    checkpointed = jax.checkpoint(function)

    def add(sums: Any, chunk: tuple[Array, ...]) -> tuple[Any, None]:
        # The addition is outside the checkpoint, so that reverse mode stores no sums.
        return jax.tree.map(jnp.add, sums, checkpointed(*chunk)), None

    return jax.lax.scan(add, start, chunks(width, X, *terms))[0]
