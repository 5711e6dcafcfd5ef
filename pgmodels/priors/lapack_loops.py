"""Loops instead of batched calls of LAPACK.

XLA's CPU backend submits batched Cholesky factorisations and triangular solves to its own thread pool and blocks: two
of them at once leave no free thread, and the program deadlocks (observed on two cores, jaxlib 0.10.2). Sequential
factorisations run in the calling thread, at the same cost on the CPU.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap, sequential_vmap

from pgmodels.runtime.jit import compiled


def over_latents(function: Callable[..., Any], *arrays: Any) -> Any:
    """Map ``function`` over the last axis of the arrays, the latents; results are stacked along a new first axis."""
    columns = tuple(jnp.moveaxis(array, -1, 0) for array in arrays)
    if len(columns[0]) == 1:
        return jax.tree.map(lambda leaf: leaf[None], function(*(column[0] for column in columns)))
    return jax.lax.map(lambda column: function(*column), columns)


def over_states(function: Callable[..., Any], *trees: Any) -> Any:
    """Map ``function`` over the first axis of the trees' leaves; results are stacked along it."""
    if len(jax.tree.leaves(trees)[0]) == 1:
        return jax.tree.map(lambda leaf: leaf[None], function(*jax.tree.map(lambda leaf: leaf[0], trees)))
    return jax.lax.map(lambda entries: function(*entries), trees)


def vmap_as_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that ``vmap`` turns into a loop. It has no reverse-mode derivative.

    Compilation keeps JAX 0.10 from tracing the function again as it lowers it, which raises an error where the function
    contains a derivative of a ``custom_jvp`` function such as ``log_ndtr``.
    """
    return sequential_vmap(compiled(function))


def vmap_as_loop_if_batched(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """For a function of matrices and vectors: ``vmap`` loops if matrices are batched, and batches vectors alone."""
    # Compiled for the same reason as in vmap_as_loop.
    batching = custom_vmap(compiled(function))

    @batching.def_vmap
    def rule(axis_size: int, batched: Any, matrices: Any, vectors: Any) -> tuple[Any, Any]:
        del axis_size
        differing = jax.tree.leaves(batched[0])
        if not any(differing):
            out = jax.vmap(function, in_axes=(None, 0))(matrices, vectors)
        else:
            leaves, tree = jax.tree.flatten(matrices)
            mapped = [leaf for leaf, differs in zip(leaves, differing, strict=True) if differs]

            def one(entry: tuple[list[Any], Any]) -> Any:
                slices, vector = iter(entry[0]), entry[1]
                full = [next(slices) if differs else leaf for leaf, differs in zip(leaves, differing, strict=True)]
                return function(jax.tree.unflatten(tree, full), vector)

            out = jax.lax.map(one, (mapped, vectors))
        return out, jax.tree.map(lambda _: True, out)

    return batching
