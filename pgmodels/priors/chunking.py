"""Chunks of rows, in one compiled program: what is computed of them is not held of all rows at once."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Numbers at a time, 4 MB: some such arrays stay in a cache.
CHUNK = 2**19
# Entries of a factor, inputs times rows, up to which it is held: 128 MB.
HELD = 2**24


def chunks(width: int, X: Float[Array, "n d"], *terms: Float[Array, "n *_"]) -> tuple[Array, ...]:
    """Inputs, and terms of each row, in chunks of equal length along a first axis; ``width`` numbers come of a row.

    Rows that fill up the last one are its last again, and their terms zero.
    """
    n = len(X)
    count = max(1, -(-n * width // CHUNK))
    length = -(-n // count)

    def padded(part: Array, mode: str) -> Array:
        beyond = [(0, count * length - n), *[(0, 0)] * (part.ndim - 1)]
        return jnp.pad(part, beyond, mode=mode).reshape(count, length, *part.shape[1:])

    return padded(X, "edge"), *(padded(part, "constant") for part in terms)


def each_row(function: Callable[..., Any], width: int, X: Float[Array, "n d"]) -> Any:
    """``function`` of the inputs of chunks, whose results have a first axis of rows, for all rows."""
    results = jax.lax.map(jax.checkpoint(function), chunks(width, X)[0])
    return jax.tree.map(lambda part: part.reshape(-1, *part.shape[2:])[: len(X)], results)


def summed(function: Callable[..., Any], start: Any, width: int, X: Float[Array, "n d"], *terms: Array) -> Any:
    """What ``function`` of the inputs of chunks and of their terms adds to ``start`` in all."""
    checkpointed = jax.checkpoint(function)

    def add(sums: Any, chunk: tuple[Array, ...]) -> tuple[Any, None]:
        # Sums are outside of what reverse mode computes once more: it keeps none.
        return jax.tree.map(jnp.add, sums, checkpointed(*chunk)), None

    return jax.lax.scan(add, start, chunks(width, X, *terms))[0]
