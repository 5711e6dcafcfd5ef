"""Loops in the place of batches, wherever LAPACK is called.

XLA's CPU backend hands a batched Cholesky factorisation or triangular solve to the thread pool that it runs on, and
waits there: two of them at once leave no thread to do the work, and the program hangs (seen on two cores, jaxlib
0.10.2). Factorisations one after the other run in place, and on the CPU cost the same.
"""

from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap, sequential_vmap

# An older way to fuse element-wise work compiles twice as fast, and the programs run as fast: most of their time is
# LAPACK's, and none is spent in one large fusion.
_ASCENT = {"xla_cpu_use_fusion_emitters": False}
# For the sampler's programs, which batch LAPACK (small matrices, one for each datum): they run on the calling thread.
_SAMPLER = _ASCENT | {"xla_cpu_multi_thread_eigen": False}
# On a CPU programs run as fast at the compiler's first level, whose vector code is shorter, and at no level most of the
# compiler's work is left out; on a GPU XLA calls either an error.
_FIRST_LEVEL, _NO_LEVEL = {"xla_backend_optimization_level": 1}, {"xla_backend_optimization_level": 0}

P = ParamSpec("P")
R = TypeVar("R")


class Compiled:
    """``jax.jit`` of a function, with options for the platform that JAX computes on at the call.

    Where a call ``is_light`` it is compiled lightly: see ``compiled_lightly``.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        static_argnames: str | tuple[str, ...],
        options: dict[str, bool],
        is_light: Callable[..., bool],
    ):
        self._is_light = is_light
        jit = partial(jax.jit, function, static_argnames=static_argnames)
        self._elsewhere: Any = jit(compiler_options=options)
        self._usual: Any = jit(compiler_options=options | _FIRST_LEVEL)
        self._light: Any = jit(compiler_options=options | _NO_LEVEL)
        update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result."""
        return self.program(*args, **kwargs)(*args, **kwargs)

    def program(self, *args: Any, **kwargs: Any) -> Any:
        """What ``jax.jit`` gave for such a call."""
        if jax.default_backend() != "cpu":
            return self._elsewhere
        return self._light if self._is_light(*args, **kwargs) else self._usual

    def cache_size(self) -> int:
        """For how many kinds of arguments it is compiled."""
        return sum(program._cache_size() for program in (self._elsewhere, self._usual, self._light))


def _never(*args: Any, **kwargs: Any) -> bool:
    return False


def _always(*args: Any, **kwargs: Any) -> bool:
    return True


def compiled(
    function: Callable[..., Any],
    static_argnames: str | tuple[str, ...] = (),
    is_light: Callable[..., bool] = _never,
) -> Compiled:
    """``jax.jit`` of a function that leaves most of its work to LAPACK; lightly where a call ``is_light``."""
    return Compiled(function, static_argnames, _ASCENT, is_light)


def compiled_lightly(function: Callable[P, R], static_argnames: str | tuple[str, ...] = ()) -> Callable[P, R]:
    """``compiled`` of what runs seldom.

    On a CPU it compiles in a third of the time, and loops of its own run several times slower.
    """
    return Compiled(function, static_argnames, _ASCENT, _always)


def compiled_sampler(function: Callable[P, R], static_argnames: str | tuple[str, ...] = ()) -> Callable[P, R]:
    """``jax.jit`` of a function of the sampler."""
    return Compiled(function, static_argnames, _SAMPLER, _never)


def compiled_sampler_lightly(function: Callable[P, R]) -> Callable[P, R]:
    """``compiled_sampler`` of what runs seldom: see ``compiled_lightly``."""
    return Compiled(function, (), _SAMPLER, _always)


def over_latents(function: Callable[..., Any], *arrays: Any) -> Any:
    """``function`` of each latent, the last axis of the arrays; results are stacked along a new first axis."""
    columns = tuple(jnp.moveaxis(array, -1, 0) for array in arrays)
    if len(columns[0]) == 1:
        return jax.tree.map(lambda leaf: leaf[None], function(*(column[0] for column in columns)))
    return jax.lax.map(lambda parts: function(*parts), columns)


def over_states(function: Callable[..., Any], *trees: Any) -> Any:
    """``function`` of each entry along the first axis of the trees' leaves; results are stacked likewise."""
    if len(jax.tree.leaves(trees)[0]) == 1:
        return jax.tree.map(lambda leaf: leaf[None], function(*jax.tree.map(lambda leaf: leaf[0], trees)))
    return jax.lax.map(lambda parts: function(*parts), trees)


def one_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that ``vmap`` turns into a loop. It has no reverse-mode derivative."""
    return sequential_vmap(function)


def one_by_one_if_batched(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A function of matrices and vectors: ``vmap`` loops where the matrices differ, and batches vectors alone."""
    batching = custom_vmap(function)

    @batching.def_vmap
    def rule(axis_size: int, batched: Any, matrices: Any, vectors: Any) -> tuple[Any, Any]:
        del axis_size
        differing = jax.tree.leaves(batched[0])
        if not any(differing):
            out = jax.vmap(function, in_axes=(None, 0))(matrices, vectors)
        else:
            leaves, tree = jax.tree.flatten(matrices)
            mapped = [leaf for leaf, own in zip(leaves, differing, strict=True) if own]

            def one(parts: Any) -> Any:
                own = iter(parts[0])
                full = [next(own) if flag else leaf for leaf, flag in zip(leaves, differing, strict=True)]
                return function(jax.tree.unflatten(tree, full), parts[1])

            out = jax.lax.map(one, (mapped, vectors))
        return out, jax.tree.map(lambda _: True, out)

    return batching
