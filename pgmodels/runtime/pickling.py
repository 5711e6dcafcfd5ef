"""Objects that leave the process, by pickle, cloudpickle, joblib or copy, and come back the same."""

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
from numpyro.distributions import Distribution

from pgmodels.runtime.x64 import as_array


class Picklable:
    """An object whose JAX arrays travel as NumPy's: revived by JAX itself, doubles would come back in single precision.

    Copies go the same way.
    """

    def __getstate__(self) -> dict[str, Any]:
        return _pack(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(_unpack(state))


class Module(Picklable, eqx.Module):
    """A pytree of the package: portable, and equal to others of the same class, structure and values."""

    def __eq__(self, other: object) -> bool:  # type: ignore[override]
        return isinstance(other, Module) and _signature(self) == _signature(other)

    def __hash__(self) -> int:
        return hash(_signature(self))


@dataclass(frozen=True)
class Named:
    """Something that is found by its name in a module when it arrives."""

    module: str
    path: str

    @property
    def value(self) -> Any:
        """What the name stands for."""
        return reduce(getattr, self.path.split("."), importlib.import_module(self.module))


class PickledByValue:
    """Something that travels as it is, by cloudpickle: a function without a name of its own, an object of others.

    It is revived in double precision, with what it closes over; the same one twice, or where it came from, is one.
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
                f"{self.value!r} cannot be pickled, neither by name nor by value ({type(error).__name__}: {error}). "
                "Define it at the top level of a module that can be imported, or so that it uses nothing that cannot "
                "be pickled, such as open files, locks and generators."
            ) from error
        _MET[data] = self.value
        return _revive, (data,)


# What has travelled by value: revived again it is the same object, and compiled code is found again.
_MET: WeakValueDictionary[bytes, Any] = WeakValueDictionary()


def _revive(data: bytes) -> PickledByValue:
    value = _MET.get(data)
    if value is None:
        with jax.enable_x64(True):
            value = _MET[data] = cloudpickle.loads(data)
    return PickledByValue(value)


def pack_function(function: Callable[..., Any], *paths: str) -> Named | PickledByValue:
    """A function as it travels: by its name, or one of other ``paths`` in its module, where these lead to it.

    What a script or a notebook defines is not found there by another process, and travels by value.
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


class _Resting(NamedTuple):
    """A JAX array in NumPy: its values, whether its type is weak, and of a random key which kind."""

    value: np.ndarray
    weak: bool
    key_kind: Any

    def awake(self) -> jax.Array:
        """The array in JAX again, in double precision where it was."""
        with jax.enable_x64(True):
            if self.key_kind is not None:
                return jax.random.wrap_key_data(as_array(self.value), impl=self.key_kind)
            return as_array(self.value.item() if self.weak and not self.value.ndim else self.value)


def _rest(array: jax.Array) -> _Resting:
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return _Resting(np.asarray(jax.random.key_data(array)), False, jax.random.key_impl(array))
    return _Resting(np.asarray(array), array.weak_type, None)


def _pack(tree: Any) -> Any:
    def pack(node: Any) -> Any:
        if isinstance(node, dict):
            return {name: _pack(value) for name, value in node.items()}
        if isinstance(node, Distribution):
            return PickledByValue(node)
        return _rest(node) if isinstance(node, jax.Array) else node

    # JAX would sort the entries of a dict.
    return jax.tree.map(pack, tree, is_leaf=lambda node: isinstance(node, (dict, Distribution, Picklable)))


def _unpack(tree: Any) -> Any:
    def unpack(node: Any) -> Any:
        if isinstance(node, dict):
            return {name: _unpack(value) for name, value in node.items()}
        if isinstance(node, _Resting):
            return node.awake()
        return node.value if isinstance(node, (Named, PickledByValue)) else node

    return jax.tree.map(unpack, tree, is_leaf=lambda node: isinstance(node, (dict, _Resting, Picklable)))


def _signature(value: Any) -> Any:
    """What makes an object equal to another, as nested tuples."""
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
