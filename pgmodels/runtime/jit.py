"""Everything that the package compiles: by JAX, with options that suit what it does, and not kept without bound."""

from collections.abc import Callable
from functools import cache, partial, update_wrapper, wraps
from typing import Any, Generic, ParamSpec, TypeVar
from weakref import WeakSet

import jax
import numpy as np

from pgmodels.runtime.installation import check_once

try:
    from jax.extend.core import get_opaque_trace_state
except ImportError:  # before JAX 0.9
    from jax.core import get_opaque_trace_state

Options = dict[str, bool | int | str]

# An older way to fuse element-wise work compiles twice as fast, and the programs run as fast: most of their time is
# LAPACK's, and none is spent in one large fusion. A product is not fused with the sum that it goes into, which jaxlib
# 0.10.2 does, up to ten times slower (the sums of squares of A B C, 1,000 rows each) and wrongly (see installation).
_USUAL: Options = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
}
# For programs that batch LAPACK (small matrices, one for each datum): they run on the calling thread.
_ONE_THREAD: Options = {"xla_cpu_multi_thread_eigen": False}
# At level 0 most of the compiler's work is left out; on a GPU XLA calls that an error. The levels between this and the
# usual one give wrong numbers, and so does that one with the newer fusion (jaxlib 0.10.1 and 0.10.2: of two choices,
# one in the other, one is lost in a program that uses what they give twice; see root.safe_sqrt).
_LIGHT: Options = {"xla_backend_optimization_level": 0}

P = ParamSpec("P")
R = TypeVar("R")

with jax.core.eval_context():
    _OUTSIDE = get_opaque_trace_state("flax")


def is_traced() -> bool:
    """Whether JAX is tracing something here and now."""
    return get_opaque_trace_state("flax") != _OUTSIDE


class compiled(Generic[R]):  # noqa: N801 (a decorator, as functools.partial is)
    """``jax.jit`` of a function that leaves most of its work to LAPACK. Within what JAX traces it is a part of that.

    ``lightly`` is for what runs seldom, or says of a call whether it is that: on a CPU it compiles in a third of the
    time, and loops of its own run several times slower. ``on_one_thread`` is for the sampler's functions.
    """

    def __init__(
        self,
        function: Callable[..., R],
        static_argnames: str | tuple[str, ...] = (),
        *,
        lightly: bool | Callable[..., bool] = False,
        on_one_thread: bool = False,
    ):
        self._lightly = lightly if callable(lightly) else lambda *args, **kwargs: lightly
        self._options = _USUAL | (_ONE_THREAD if on_one_thread else {})
        self._programs: dict[bool, Any] = {}
        self._jit = partial(jax.jit, function, static_argnames=static_argnames)
        # JAX takes options at the outside alone.
        self._inner: Any = self._jit()
        update_wrapper(self, function)
        _wrappers.add(self)

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """The function's result. Raises KeyboardInterrupt where JAX makes another error of one in a host function."""
        if is_traced():
            return self._inner(*args, **kwargs)
        check_once()
        program = self.program(*args, **kwargs)
        before = program._cache_size()
        try:
            return program(*args, **kwargs)
        except (ValueError, RuntimeError) as error:
            if str(error).rstrip().endswith("KeyboardInterrupt:"):
                raise KeyboardInterrupt from None
            raise
        finally:
            if program._cache_size() > before:
                _forget_beyond(PROGRAMS_KEPT)

    def program(self, *args: Any, **kwargs: Any) -> Any:
        """What ``jax.jit`` gave for such a call."""
        is_light = jax.default_backend() == "cpu" and self._lightly(*args, **kwargs)
        if is_light not in self._programs:
            options = self._options | (_LIGHT if is_light else {})
            self._programs[is_light] = self._jit(compiler_options={n: v for n, v in options.items() if n in known()})
        return self._programs[is_light]

    def shapes(self, *args: Any, **kwargs: Any) -> Any:
        """The shapes of the result; what was traced for them is there for the call."""
        return self.program(*args, **kwargs).eval_shape(*args, **kwargs)

    def cache_size(self) -> int:
        """For how many kinds of arguments it is compiled."""
        return sum(program._cache_size() for program in self._programs.values())


def double_by_hand(function: Callable[P, Any]) -> Callable[P, Any]:
    """A function that computes with 64-bit JAX arithmetic where it is called by hand, not while JAX traces something.

    It returns NumPy's array then: JAX has no doubles outside.
    """

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Any:
        if jax.config.jax_enable_x64 or is_traced():  # type: ignore[attr-defined]
            return function(*args, **kwargs)
        with jax.enable_x64(True):
            return np.asarray(function(*args, **kwargs))

    return wrapped


# Beyond so many programs all are forgotten, and with them what JAX keeps of its own for each, as much again, which
# nothing else empties: traces, and operations run one by one. With that a program holds 7 MB: 22 fits, each of another
# size and kernel, 1.1 GB in 153 programs, and 0.4 GB where 70 are kept. All that README's first model shows needs 45.
PROGRAMS_KEPT = 128

_wrappers: WeakSet[compiled] = WeakSet()


def num_programs() -> int:
    """How many programs of the package this process holds."""
    return sum(wrapper.cache_size() for wrapper in _wrappers)


def _forget_beyond(limit: int) -> None:
    if num_programs() > limit:
        jax.clear_caches()


@cache
def known() -> Options:
    """The options that XLA knows as it is installed: they are not documented, and come and go. Asked once, in 10 ms."""
    options = _USUAL | _ONE_THREAD | _LIGHT
    if _compiles(options):
        return options
    return {name: value for name, value in options.items() if _compiles({name: value})}


def _compiles(options: Options) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
