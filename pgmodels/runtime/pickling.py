"""Pickling of the package's objects by pickle, cloudpickle, joblib and copy: they are restored exactly."""

import importlib
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import reduce
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import cloudpickle
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pgmodels.runtime.distributions import is_distribution
from pgmodels.runtime.x64 import as_array


class Picklable:
    """An object whose JAX arrays are pickled as NumPy's: JAX itself would restore doubles in single precision.

    Copies are made in the same way.
    """

    def __getstate__(self) -> dict[str, Any]:
        return _pack(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(_unpack(state))


class Module(Picklable, eqx.Module):
    """A pytree of the package: can be pickled, and is equal to others of the same class, structure and values."""

    def __eq__(self, other: object) -> bool:  # type: ignore[override]
        return isinstance(other, Module) and _signature(self) == _signature(other)

    def __hash__(self) -> int:
        return hash(_signature(self))


@dataclass(frozen=True)
class Named:
    """A reference to an object by its module and qualified name."""

    module: str
    path: str

    @property
    def value(self) -> Any:
        """The object that the name refers to."""
        return reduce(getattr, self.path.split("."), importlib.import_module(self.module))


class PickledByValue:
    """An object pickled by value, by cloudpickle: a function that cannot be imported, or another library's object.

    It is restored in double precision, closures included; loading the same bytes twice gives the same object.
    """

    def __init__(self, value: Any):
        self.value = value

    def __deepcopy__(self, memo: Any) -> "PickledByValue":
        return self

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


# Objects pickled by value, by their bytes: restored, they are the same object, so that compiled code is reused.
_objects: WeakValueDictionary[bytes, Any] = WeakValueDictionary()


def _restore(data: bytes) -> PickledByValue:
    value = _objects.get(data)
    if value is None:
        with jax.enable_x64(True):
            value = _objects[data] = cloudpickle.loads(data)
    return PickledByValue(value)


def pack_function(function: Callable[..., Any], *paths: str) -> Named | PickledByValue:
    """A function for pickling: by its name, or one of ``paths``, if its module has it there; by value otherwise.

    Functions of a script or notebook cannot be imported by another process, and are pickled by value.
    """
    module = getattr(function, "__module__", None)
    if module in sys.modules and module != "__main__":
        for path in (getattr(function, "__qualname__", ""), *paths):
            name = Named(module, path)
            try:
                if name.value is function:
                    return name
            except AttributeError:
                continue
    return PickledByValue(function)


class _StoredArray(NamedTuple):
    """A JAX array as NumPy's: its values, whether its type is weak, and the implementation of a random key."""

    value: np.ndarray
    weak: bool
    key_impl: Any

    def to_jax(self) -> jax.Array:
        """The JAX array, in its original precision."""
        with jax.enable_x64(True):
            if self.key_impl is not None:
                return jax.random.wrap_key_data(as_array(self.value), impl=self.key_impl)
            return as_array(self.value.item() if self.weak and not self.value.ndim else self.value)


def _stored(array: jax.Array) -> _StoredArray:
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return _StoredArray(np.asarray(jax.random.key_data(array)), False, jax.random.key_impl(array))
    return _StoredArray(np.asarray(array), array.weak_type, None)


def _pack(tree: Any) -> Any:
    def pack(node: Any) -> Any:
        if isinstance(node, dict):
            return {name: _pack(value) for name, value in node.items()}
        if is_distribution(node):
            return PickledByValue(node)
        return _stored(node) if isinstance(node, jax.Array) else node

    # JAX would sort the entries of a dict.
    return jax.tree.map(pack, tree, is_leaf=lambda node: isinstance(node, (dict, Picklable)) or is_distribution(node))


def _unpack(tree: Any) -> Any:
    def unpack(node: Any) -> Any:
        if isinstance(node, dict):
            return {name: _unpack(value) for name, value in node.items()}
        if isinstance(node, _StoredArray):
            return node.to_jax()
        return node.value if isinstance(node, (Named, PickledByValue)) else node

    return jax.tree.map(unpack, tree, is_leaf=lambda node: isinstance(node, (dict, _StoredArray, Picklable)))


def _signature(value: Any) -> Any:
    """The contents by which objects are compared, as nested tuples."""
    if isinstance(value, Module):
        return (type(value), *(_signature(getattr(value, field.name)) for field in fields(value)))
    if isinstance(value, dict):
        return tuple((name, _signature(value[name])) for name in sorted(value))
    if isinstance(value, tuple):
        return tuple(_signature(part) for part in value)
    if isinstance(value, (np.ndarray, np.generic, jax.Array, int, float)):
        return np.shape(value), tuple(np.ravel(value).tolist())
    leaves, tree = jax.tree.flatten(value)
    return value if jax.tree_util.treedef_is_leaf(tree) else (str(tree), _signature(tuple(leaves)))
