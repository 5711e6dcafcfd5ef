"""Functions compiled by JAX with options that suit what they do."""

from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any, ParamSpec, TypeVar

import jax

# An older way to fuse element-wise work compiles twice as fast, and the programs run as fast: most of their time is
# LAPACK's, and none is spent in one large fusion. A product is not fused with the sum that it goes into, which makes it
# up to ten times slower (jaxlib 0.10.2: the sums of squares of A B C, 1,000 rows each).
_ASCENT: dict[str, bool | int | str] = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
}
# For the sampler's programs, which batch LAPACK (small matrices, one for each datum): they run on the calling thread.
_SAMPLER = _ASCENT | {"xla_cpu_multi_thread_eigen": False}
# At level 0 most of the compiler's work is left out; on a GPU XLA calls that an error. The levels between this and the
# usual one give wrong numbers (jaxlib 0.10.2: a Matern kernel's K(X, Z) where a row of X is one of Z, as soon as K is
# used twice).
_LIGHT = {"xla_backend_optimization_level": 0}

P = ParamSpec("P")
R = TypeVar("R")


class Compiled:
    """``jax.jit`` of a function, with options; compiled lightly where a call ``is_light``: see ``compiled_lightly``."""

    def __init__(
        self,
        function: Callable[..., Any],
        static_argnames: str | tuple[str, ...],
        options: dict[str, bool | int | str],
        is_light: Callable[..., bool],
    ):
        self.function, self._is_light = function, is_light
        jit = partial(jax.jit, function, static_argnames=static_argnames)
        self._usual: Any = jit(compiler_options=options)
        self._light: Any = jit(compiler_options=options | _LIGHT)
        update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result. Raises KeyboardInterrupt where JAX makes another error of one in a host function."""
        try:
            return self.program(*args, **kwargs)(*args, **kwargs)
        except (ValueError, RuntimeError) as error:
            if str(error).rstrip().endswith("KeyboardInterrupt:"):
                raise KeyboardInterrupt from None
            raise

    def program(self, *args: Any, **kwargs: Any) -> Any:
        """What ``jax.jit`` gave for such a call."""
        is_light = jax.default_backend() == "cpu" and self._is_light(*args, **kwargs)
        return self._light if is_light else self._usual

    def shapes(self, *args: Any, **kwargs: Any) -> Any:
        """The shapes of the result; what was traced for them is there for the call."""
        return self.program(*args, **kwargs).eval_shape(*args, **kwargs)

    def cache_size(self) -> int:
        """For how many kinds of arguments it is compiled."""
        return sum(program._cache_size() for program in (self._usual, self._light))


def _never(*args: Any, **kwargs: Any) -> bool:
    return False


def always(*args: Any, **kwargs: Any) -> bool:
    """Of what runs seldom."""
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
    return Compiled(function, static_argnames, _ASCENT, always)


def compiled_sampler(function: Callable[P, R], static_argnames: str | tuple[str, ...] = ()) -> Callable[P, R]:
    """``jax.jit`` of a function of the sampler."""
    return Compiled(function, static_argnames, _SAMPLER, _never)


def compiled_sampler_lightly(function: Callable[P, R], static_argnames: str | tuple[str, ...] = ()) -> Callable[P, R]:
    """``compiled_sampler`` of what runs seldom: see ``compiled_lightly``."""
    return Compiled(function, static_argnames, _SAMPLER, always)
