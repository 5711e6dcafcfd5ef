"""Compilation: XLA options with correct results on this installation, compiled functions, threads and memory."""

import math
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, cached_property, update_wrapper, wraps
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar
from weakref import WeakSet

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.version import __version__, __version_info__
from threadpoolctl import OpenBLASController, ThreadpoolController

from pgmodels.runtime.messages import PgmodelsWarning, warn

# The machine's memory and threads.


def available_memory(control_group: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the bytes that this process can still allocate, by Linux and its address limit; infinite if unknown."""
    # Memory limit and usage of a container in the two versions of Linux control groups.
    files = ("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")
    limits = [_available_in(control_group / limit, control_group / usage) for limit, usage in files]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        lines = []
    limits += [1024.0 * float(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return min(*limits, _available_addresses())


def _available_addresses() -> float:
    """Return the rest of the limit that ``ulimit -v`` sets; an allocation above it ends the process."""
    try:
        import resource
    except ImportError:  # not on Windows
        return math.inf
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return math.inf
    return limit - _read(Path("/proc/self/statm")) * resource.getpagesize()


def _available_in(limit: Path, usage: Path) -> float:
    """Return the limit of a control group minus its usage, without reclaimable caches."""
    most, used = _read(limit), _read(usage)
    if math.inf in (most, used):
        return most
    try:
        lines = [line.split() for line in (limit.parent / "memory.stat").read_text().splitlines()]
    except OSError:
        lines = []
    reclaimable = "inactive_file", "active_file", "slab_reclaimable"
    return most - used + sum(float(number) for name, number in lines if name in reclaimable)


def _read(path: Path) -> float:
    """Return the first number in a file; infinity if there is none."""
    try:
        return float(path.read_text().split()[0])
    except (IndexError, OSError, ValueError):
        return math.inf


def require_memory(needed: float, what: str, remedy: str) -> None:
    """Raise MemoryError if more bytes are needed than are available."""
    available = available_memory()
    if needed > available:
        raise MemoryError(
            f"{what} need {needed / 1e9:.1f} GB of memory, but only {available / 1e9:.1f} GB are available. {remedy}"
        )


def require_draws(num_draws: int, num_rows: int, num_latents: int, matrices: float = 0.0) -> None:
    """Raise MemoryError if draws of latents at rows, and the bytes of matrices for them, exceed the memory."""
    # The draws, their noise, and results computed from the draws.
    needed = 4.0 * 8.0 * num_draws * num_rows * num_latents + matrices
    fewer = "fewer rows" if matrices > 0.5 * needed else "fewer rows or draws"
    require_memory(needed, f"{num_draws:,} draws of the latents at {num_rows:,} rows", f"Ask for {fewer}.")


# The number of BLAS threads, and of available cores.

P = ParamSpec("P")
R = TypeVar("R")

# Up to this number of rows, one BLAS thread factorises about as fast as several threads, and far faster on a busy
# machine, where threads wait for each other (455 rows, 2 cores, 2 other processes: 10 ms compared with 1,270 ms).
SMALL = 1500


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _OneThread:
    """One BLAS thread for all Python threads: the first to enter sets it, the last to exit restores the number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._within = 0
        self._limit: Any = None
        # The search for the BLAS libraries of NumPy and SciPy costs as much as a small factorisation.
        self._libraries: ThreadpoolController | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._within == 0:
                self._libraries = self._libraries or ThreadpoolController()
                self._limit = self._libraries.limit(limits=1, user_api="blas")
                _release_control()
            self._within += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._within -= 1
            if self._within == 0:
                self._limit.restore_original_limits()
                _release_control()


def _release_control() -> None:
    """Let any thread set the number: from threadpoolctl 3.7 on, only the thread that set it may set it again."""
    release = getattr(OpenBLASController, "clear_controlling_thread", None)
    if release is not None:
        release()


_one_thread = _OneThread()


def one_thread_up_to(num_rows: int) -> AbstractContextManager[Any]:
    """Return a context with one BLAS thread if there are at most ``SMALL`` rows, else one without effect."""
    return _one_thread if num_rows <= SMALL else nullcontext()


def one_thread_if_small(engine: Callable[P, R]) -> Callable[P, R]:
    """Run an engine (model, X, ...) on one BLAS thread if X has few rows; the setting is restored afterwards."""

    @wraps(engine)
    def wrapped(*args: P.args, **options: P.kwargs) -> R:
        X: Any = args[1] if len(args) > 1 else options.get("X")
        # X is not checked yet.
        shape = getattr(X, "shape", (len(X),) if isinstance(X, (list, tuple)) else ())
        with one_thread_up_to(int(shape[0]) if shape else 0):
            return engine(*args, **options)

    return wrapped


# Compilation: XLA options with correct results on this installation, and compiled functions.

# The newest tested jaxlib; it and all earlier versions compute correctly.
_TESTED = (0, 10, 1)

ADVICE = (
    f"jaxlib {__version__} computes wrong numbers on this machine in double precision: JAX issue 39103, a matrix "
    "product followed by a square and a sum. pgmodels compiles its programs with options that avoid this; programs of "
    "NumPyro (nuts, to_numpyro, GibbsKernel) and your own JAX code are affected. Install another release "
    "(pip install 'jax!=0.10.2'), or start Python with the environment variable "
    "XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT."
)


class InstallationWarning(PgmodelsWarning):
    """A warning that the installed jaxlib computes wrong numbers."""


def devices() -> str:
    """Return the devices of JAX by kind, such as "1 cpu"."""
    kinds = [device.device_kind for device in jax.devices()]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))


def computes_correctly() -> bool:
    """Return whether a sum that is wrong by 0.8 % in jaxlib 0.10.2 is correct here; its compilation costs 0.1 s."""
    rows = np.zeros((16385, 3))
    rows[:, 0] = np.arange(len(rows))
    return np.array_equal(_squared_lengths(rows), rows[:, 0] ** 2)


def _squared_lengths(rows: np.ndarray) -> np.ndarray:
    """Return row-wise squared lengths, compiled with JAX's default options."""
    m = np.eye(rows.shape[1])
    with jax.enable_x64(True):
        return np.asarray(jax.jit(jax.vmap(lambda row: jnp.sum((m @ row) ** 2)))(rows))


@cache
def check_installation() -> None:
    """Warn once per process if a jaxlib newer than the tested versions computes wrong numbers."""
    if __version_info__ > _TESTED and not computes_correctly():
        warn(ADVICE, InstallationWarning)


# The package uses only two undocumented functions of JAX: ``get_opaque_trace_state`` and ``jax.core.eval_context``.
try:
    from jax.extend.core import get_opaque_trace_state
except ImportError:  # before JAX 0.9
    from jax.core import get_opaque_trace_state

Options = dict[str, bool | int | str]

# XLA's older element-wise fusion compiles twice as fast, and programs run as fast: most of their time is LAPACK's, and
# no large fusion dominates. Matrix products are not fused with a following sum. The fusion of jaxlib 0.10.2 is up to
# ten times slower (sums of squares of A B C, 1,000 rows each), and wrong (see installation).
_DEFAULT: Options = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
    # One module instead of many needs 20 % less processor time: most programs are too small to be divided.
    "xla_cpu_parallel_codegen_split_count": 1,
}
# Programs that call LAPACK in batches of small matrices, one per datum, run on the calling thread.
_ONE_THREAD: Options = {"xla_cpu_multi_thread_eigen": False}
# Level 0 skips most compiler passes; XLA rejects it on a GPU. The levels between 0 and the default give wrong numbers.
# The default with the newer fusion is wrong too (jaxlib 0.10.1 and 0.10.2): one of two nested selects is dropped in a
# program that uses their value twice (see numerics.safe_sqrt).
_UNOPTIMISED: Options = {"xla_backend_optimization_level": 0}


with jax.core.eval_context():
    _OUTSIDE = get_opaque_trace_state("flax")


def is_traced() -> bool:
    """Return whether JAX is tracing a function at this moment."""
    return get_opaque_trace_state("flax") != _OUTSIDE


class compiled(Generic[P, R]):  # noqa: N801 (a decorator, as functools.partial is)
    """``jax.jit`` of a function whose work is mostly LAPACK's. It is inlined within a traced function.

    ``optimise=False`` is for functions that are called rarely. On a CPU they compile in a third of the time, but loops
    outside of LAPACK run several times slower. ``optimise`` may be a function of the arguments, for each call.
    ``on_one_thread`` is for the sampler's functions.
    """

    __wrapped__: Callable[P, R]

    def __init__(
        self,
        function: Callable[P, R],
        static_argnames: str | tuple[str, ...] = (),
        *,
        optimise: bool | Callable[..., bool] = True,
        on_one_thread: bool = False,
    ):
        self._optimise = optimise if callable(optimise) else lambda *args, **kwargs: optimise
        self._options = _DEFAULT | (_ONE_THREAD if on_one_thread else {})
        self._static, self._programs = static_argnames, dict[bool, Any]()
        # An entry for each finished trace. ``traced`` refers to this list, not to ``self``, which programs would keep.
        traces: list[None] = []

        @wraps(function)
        def traced(*args: P.args, **kwargs: P.kwargs) -> R:
            result = function(*args, **kwargs)
            traces.append(None)
            return result

        self._traces = traces
        self._traced = traced
        update_wrapper(self, function)
        _wrappers.add(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the function's result. Raise KeyboardInterrupt if JAX has wrapped one from a host callback."""
        if is_traced():
            return self._inlined(*args, **kwargs)
        check_installation()
        program = self.program(*args, **kwargs)
        before = len(self._traces)
        try:
            return program(*args, **kwargs)
        except (ValueError, RuntimeError) as error:
            if str(error).rstrip().endswith("KeyboardInterrupt:"):
                raise KeyboardInterrupt from None
            raise
        finally:
            if len(self._traces) > before and num_programs() > MAX_PROGRAMS:
                clear_programs()

    @cached_property
    def _inlined(self) -> Any:
        # JAX accepts compiler options only for the outermost function. It is made when needed: reading a signature
        # costs 0.5 ms, and the package has 120 such functions.
        return jax.jit(self.__wrapped__, static_argnames=self._static)

    def program(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Return the jitted function for a call with these arguments."""
        optimised = jax.default_backend() != "cpu" or self._optimise(*args, **kwargs)
        if optimised not in self._programs:
            options = self._options | ({} if optimised else _UNOPTIMISED)
            supported = {name: value for name, value in options.items() if name in supported_options()}
            self._programs[optimised] = jax.jit(self._traced, static_argnames=self._static, compiler_options=supported)
        return self._programs[optimised]

    def shapes(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Return the shapes of the result; a later call does not trace again."""
        return self.program(*args, **kwargs).eval_shape(*args, **kwargs)

    def cache_size(self) -> int:
        """Return the number of argument signatures that were traced and compiled since programs were last cleared."""
        return len(self._traces)

    def clear(self) -> None:
        """Discard compiled programs and traces: the next call compiles again."""
        for program in (self._inlined, *self._programs.values()):
            program.clear_cache()
        self._traces.clear()


def double_outside_jit(function: Callable[P, Any]) -> Callable[P, Any]:
    """Return a function that computes in double precision outside of JAX traces, and in the caller's within a trace.

    Outside of traces it returns a NumPy array, because JAX has no doubles without x64.
    """

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Any:
        if jax.config.jax_enable_x64 or is_traced():  # type: ignore[attr-defined]
            return function(*args, **kwargs)
        with jax.enable_x64(True):
            return np.asarray(function(*args, **kwargs))

    return wrapped


# Above this number, all compiled programs of the package and their traces are cleared, but not the programs of the
# user's own functions. README's first model needs 45 programs.
MAX_PROGRAMS = 128

_wrappers: WeakSet[compiled] = WeakSet()


def num_programs() -> int:
    """Return the number of compiled programs of the package in this process."""
    return sum(wrapper.cache_size() for wrapper in _wrappers)


def clear_programs() -> None:
    """Discard all compiled programs of the package in this process."""
    for wrapper in _wrappers:
        wrapper.clear()


@cache
def supported_options() -> Options:
    """Return the options that the installed XLA supports, tested once, in 10 ms: they are undocumented and change."""
    options = _DEFAULT | _ONE_THREAD | _UNOPTIMISED
    if _compiles(options):
        return options
    return {name: value for name, value in options.items() if _compiles({name: value})}


def _compiles(options: Options) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
