"""Double precision without a global setting, interrupts in compiled programs, and pickles."""

import importlib
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cached_property, reduce, wraps
from inspect import isfunction
from typing import Any, ParamSpec, Self, TypeVar
from weakref import WeakValueDictionary

import cloudpickle
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike

from pgmodels.runtime.seeds import is_distribution


class _RaiseAgain:
    """A hook for errors that Python discards: it sends SIGINT again for an interruption, and passes on other errors."""

    def __init__(self, previous: Callable[[Any], object]):
        self.previous = previous

    def __call__(self, unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            # Another thread sends it: an error that is raised here would be discarded again. A callback of the garbage
            # collector needs less than 0.01 s.
            threading.Timer(0.01, signal.raise_signal, [signal.SIGINT]).start()
        else:
            self.previous(unraisable)


@contextmanager
def no_lost_interrupt() -> Iterator[None]:
    """Raise each KeyboardInterrupt that Python discards again a moment later, within the context.

    Python discards it within a callback of the garbage collector, and JAX registers such a callback.
    """
    previous = sys.unraisablehook
    # Python interrupts only the main thread.
    if isinstance(previous, _RaiseAgain) or threading.current_thread() is not threading.main_thread():
        yield
        return
    sys.unraisablehook = _RaiseAgain(previous)
    try:
        yield
    finally:
        sys.unraisablehook = previous


P = ParamSpec("P")
R = TypeVar("R")


# The id of the process in which the package first computed.
_first_process: int | None = None


def check_process() -> None:
    """Raise RuntimeError in a fork of a process that has computed: JAX would deadlock in it."""
    global _first_process
    _first_process = os.getpid() if _first_process is None else _first_process
    if _first_process != os.getpid():
        raise RuntimeError(
            "this process is a fork of a process in which pgmodels has computed; a fork lacks JAX's threads, and JAX "
            "would wait for them forever. Start new processes by spawn: multiprocessing.get_context('spawn'), "
            "concurrent.futures.ProcessPoolExecutor(mp_context=...) with that context, or joblib.Parallel."
        )


def double_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Run a public entry point with 64-bit JAX arithmetic and restore the caller's setting afterwards.

    Ctrl-C is not lost meanwhile. Raises RuntimeError in a fork of a process that has computed.
    """

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        check_process()
        with jax.enable_x64(True), no_lost_interrupt():
            return function(*args, **kwargs)

    return wrapped


class DoublePrecision:
    """A class whose public methods and properties enter double precision, as ``double_precision`` does.

    This includes methods and properties that subclasses define.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, member in list(vars(cls).items()):
            if name.startswith("_") and name not in ("__init__", "__post_init__", "__call__"):
                continue
            if isinstance(member, cached_property):
                member.func = double_precision(member.func)
            elif isinstance(member, property) and member.fget is not None:
                setattr(cls, name, member.getter(double_precision(member.fget)))
            elif isinstance(member, classmethod | staticmethod):
                setattr(cls, name, type(member)(double_precision(member.__func__)))
            elif isfunction(member):
                setattr(cls, name, double_precision(member))


_HOST_TYPES = (np.ndarray, np.generic, bool, int, float, complex)


def as_array(value: Any) -> Array:
    """Return a JAX array without compilation; ``jnp.asarray`` compiles a program for each new shape of NumPy arrays."""
    return jax.device_put(value) if isinstance(value, _HOST_TYPES) else jnp.asarray(value)


class Picklable:
    """An object whose JAX arrays are pickled as NumPy arrays; JAX would restore doubles in single precision."""

    def __getstate__(self) -> dict[str, Any]:
        return _pack(vars(self))

    def __copy__(self) -> Self:
        copied = object.__new__(type(self))
        vars(copied).update(vars(self))
        return copied


class Module(Picklable, eqx.Module):
    """A pytree of the package: it can be pickled, and equals pytrees of the same class, structure and values."""

    def __eq__(self, other: object) -> bool:  # type: ignore[override]
        return isinstance(other, Module) and _signature(self) == _signature(other)

    def __hash__(self) -> int:
        return hash(_signature(self))


class PickledByName:
    """An object pickled by its module and qualified name; it is restored by an import."""

    def __init__(self, module: str, path: str):
        self.name = module, path

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, self.name


def _named(module: str, path: str) -> Any:
    return reduce(getattr, path.split("."), importlib.import_module(module))


class PickledByValue:
    """An object pickled by value, by cloudpickle: a function that cannot be imported, or another library's object.

    It is restored in double precision, closures included; loading the same bytes twice gives the same object.
    """

    def __init__(self, value: object):
        self.value = value

    def __deepcopy__(self, memo: object) -> object:
        return self.value

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            data = cloudpickle.dumps(self.value)
        except Exception as error:
            raise pickle.PicklingError(
                f"{self.value!r} cannot be pickled by name or by value ({type(error).__name__}: {error}). "
                "Define it at the top level of an importable module, or without references to objects that cannot be "
                "pickled, such as open files, locks and generators."
            ) from error
        _objects[data] = self.value
        return _restore, (data,)


# Restored objects by their bytes: equal bytes give the same object, so that compiled code is reused.
_objects: WeakValueDictionary[bytes, Any] = WeakValueDictionary()


def _restore(data: bytes) -> Any:
    value = _objects.get(data)
    if value is None:
        with jax.enable_x64(True):
            value = _objects[data] = cloudpickle.loads(data)
    return value


def pack_function(function: Callable[..., Any], *paths: str) -> PickledByName | PickledByValue:
    """Return a function for pickling: by its name or one of ``paths`` if its module has it there, else by value.

    Functions of a script or notebook are pickled by value, because another process cannot import them.
    """
    module = getattr(function, "__module__", None)
    if module in sys.modules and module != "__main__":
        for path in (getattr(function, "__qualname__", ""), *paths):
            try:
                if _named(module, path) is function:
                    return PickledByName(module, path)
            except AttributeError:
                continue
    return PickledByValue(function)


class _PickledArray:
    """A JAX array that is pickled as a NumPy array, and restored in its precision."""

    def __init__(self, array: jax.Array):
        self.array = array

    def __reduce__(self) -> tuple[Any, ...]:
        if jnp.issubdtype(self.array.dtype, jax.dtypes.prng_key):
            return _random_key, (np.asarray(jax.random.key_data(self.array)), jax.random.key_impl(self.array))
        value = np.asarray(self.array)
        # Scalars of a weak type are restored from Python scalars.
        return _array, (value.item() if self.array.weak_type and not value.ndim else value,)


def _array(value: ArrayLike) -> jax.Array:
    with jax.enable_x64(True):
        return as_array(value)


def _random_key(data: np.ndarray, implementation: Any) -> jax.Array:
    return jax.random.wrap_key_data(_array(data), impl=implementation)


def _pack(tree: object) -> Any:
    def pack(node: object) -> object:
        if isinstance(node, dict):
            return {name: _pack(value) for name, value in node.items()}
        if is_distribution(node):
            return PickledByValue(node)
        return _PickledArray(node) if isinstance(node, jax.Array) else node

    # JAX would sort the entries of a dict.
    return jax.tree.map(pack, tree, is_leaf=lambda node: isinstance(node, (dict, Picklable)) or is_distribution(node))


def _signature(value: object) -> Any:
    """Return the contents by which objects are compared, as nested tuples."""
    if isinstance(value, Module):
        return (type(value), *(_signature(getattr(value, field.name)) for field in fields(value)))
    if isinstance(value, dict):
        return tuple((name, _signature(value[name])) for name in sorted(value))
    if isinstance(value, tuple):
        return tuple(_signature(part) for part in value)
    if isinstance(value, (np.ndarray, np.generic, jax.Array, int, float)):
        # Equal numbers of different types are equal, and so are zeros of either sign.
        return np.shape(value), (np.asarray(value, dtype=np.float64) + 0.0).tobytes()
    leaves, tree = jax.tree.flatten(value)
    return value if jax.tree_util.treedef_is_leaf(tree) else (str(tree), _signature(tuple(leaves)))
