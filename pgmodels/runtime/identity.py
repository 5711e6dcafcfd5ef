"""Fingerprints of objects that are the same in every process."""

import hashlib
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cached_property, partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any
from weakref import ReferenceType

import jax
import numpy as np

from pgmodels.runtime.distributions import is_distribution


def digest(value: Any) -> str:
    """A hash of ``identity(value)``, the same in every process."""
    return hashlib.sha256(repr(identity(value)).encode()).hexdigest()


def identity(value: Any) -> Any:
    """Nested tuples of text and numbers, equal for values with equal contents.

    They are free of process-specific values such as addresses, set order and string hashes. An object is represented by
    its class and contents, a function by its code, defaults and closure.
    """
    return _identity(value, ())


def _identity(value: Any, within: tuple[int, ...]) -> Any:
    if value is None or isinstance(value, (str, bytes)):
        return value
    if isinstance(value, (bool, int, float, complex, np.generic, np.ndarray, jax.Array)):
        return _numbers(value)
    if isinstance(value, type):
        return _name(value)
    if isinstance(value, Enum):
        return _name(type(value)), value.name
    if id(value) in within:
        return "itself"
    inside = (*within, id(value))
    if isinstance(value, CodeType):
        constants = _identity(value.co_consts, inside)
        return value.co_code, constants, value.co_names, value.co_varnames, value.co_argcount
    if isinstance(value, (set, frozenset)):
        return type(value).__name__, *sorted((_identity(part, inside) for part in value), key=repr)
    if isinstance(value, dict):
        entries = [(_identity(name, inside), _identity(part, inside)) for name, part in value.items()]
        return "dict", *sorted(entries, key=repr)
    if isinstance(value, (tuple, list)):
        return type(value).__name__, *(_identity(part, inside) for part in value)
    return _name(type(value)), *(_identity(part, inside) for part in _contents(value))


def _numbers(value: Any) -> Any:
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        return str(jax.random.key_impl(value)), _numbers(jax.random.key_data(value))
    # A number is the same as Python's and as NumPy's.
    array = np.asarray(value.item() if isinstance(value, np.generic) else value)
    if array.dtype.hasobject:
        return array.shape, repr(array.tolist())
    return array.dtype.name, array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _contents(value: Any) -> tuple[Any, ...]:
    """The contents that identify an object, without its class."""
    if isinstance(value, FunctionType):
        cells = tuple(_cell_content(cell) for cell in value.__closure__ or ())
        return value.__name__, value.__code__, value.__defaults__, value.__kwdefaults__, cells
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, partial):
        return value.func, value.args, value.keywords
    if hasattr(value, "__wrapped__"):
        return (value.__wrapped__,)
    if isinstance(value, (BuiltinFunctionType, np.ufunc)):
        return (value.__name__,)
    if is_distribution(value):
        # NumPyro has the names of the fields in a set, and their values in its order.
        kind = type(value)
        names = {*kind.gather_pytree_data_fields(), *kind.gather_pytree_aux_fields()} - {"_validate_args"}
        return tuple((name, vars(value).get(name)) for name in sorted(names))
    if is_dataclass(value):
        return tuple((field.name, getattr(value, field.name, None)) for field in fields(value))
    try:
        return tuple(value.tree_flatten())
    except (AttributeError, NotImplementedError):  # neither a constraint nor a transform, or a user-defined one
        return _attributes(value)


def _attributes(value: Any) -> tuple[Any, ...]:
    attributes = getattr(value, "__dict__", None)
    if attributes is None:
        return (repr(value),)
    derived = {name for name in attributes if isinstance(getattr(type(value), name, None), cached_property)}
    derived |= {name for name, part in attributes.items() if isinstance(part, ReferenceType)}
    return tuple((name, attributes[name]) for name in sorted(attributes) if name not in derived)


def _cell_content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
