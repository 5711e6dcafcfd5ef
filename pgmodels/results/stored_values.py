"""Checks that values of saved files fit each other, by the annotations of the fields that they are for."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import numpy as np

# Of these fields only types and shapes are checked: infinities and NaN say what did not converge or has no value.
_MAY_BE_INFINITE = (
    "elbo_trace",
    "elbos",
    "k_hats",
    "log_densities",
    "log_density",
    "log_evidence",
    "log_likelihood_trace",
    "start_elbos",
    "statistics",
    "tuning",
)


def check_values(owner: type, values: Mapping[str, Any], sizes: dict[str, int]) -> None:
    """Raise ValueError if values do not fit the annotations of a class's fields.

    Arrays are annotated with jaxtyping: their types, numbers of axes and lengths are checked, and that they are finite.
    ``sizes`` are the known lengths of axes by name; those of other axes are added. Fields of other types are skipped.
    """
    kinds = {field.name: field.type for field in fields(owner)} if is_dataclass(owner) else owner.__annotations__
    for name, kind in kinds.items():
        if name in values:
            _check(kind, values[name], name, sizes)


def _check(kind: Any, value: Any, name: str, sizes: dict[str, int]) -> None:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (UnionType, Union):
        options = [option for option in arguments if option is not NoneType]
        if Any in options or (value is None and NoneType in arguments):
            return
        # Precisions have numbers or matrices for each row.
        fitting = [option for option in options[1:] if np.ndim(value) == len(option.dim_str.split())]
        _check((fitting or options)[0], value, name, sizes)
    elif origin is tuple:
        kinds = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        if not isinstance(value, tuple) or len(value) != len(kinds):
            raise ValueError(f"{name} should have {len(kinds)} parts")
        for place, pair in enumerate(zip(kinds, value, strict=True)):
            _check(*pair, f"{name}.{place}", sizes)
    elif origin is dict:
        for key, part in value.items():
            _check(arguments[1], part, f"{name}.{key}", sizes)
    elif hasattr(kind, "dim_str"):
        _check_array(kind, value, name, sizes)
    elif kind in (bool, int, float, str):
        is_number = kind is float and type(value) is int
        if type(value) is not kind and not is_number:
            raise ValueError(f"{name} should be of type {kind.__name__}, and is {type(value).__name__}")
        if kind is float and not _may_be_infinite(name) and not np.isfinite(value):
            raise ValueError(f"{name} should be finite, and is {value}")


def _check_array(kind: Any, value: Any, name: str, sizes: dict[str, int]) -> None:
    if not isinstance(value, np.ndarray):
        raise ValueError(f"{name} should be an array, and is {type(value).__name__}")
    if value.dtype.name not in kind.dtypes or value.dtype == np.float32:
        raise ValueError(f"{name} has the type {value.dtype}")
    axes = kind.dim_str.split()
    if axes[-1:] == ["..."]:
        axes = [*axes[:-1], *["_"] * (value.ndim - len(axes) + 1)]
    if value.ndim != len(axes):
        raise ValueError(f"{name} should have {len(axes)} axes, and has the shape {value.shape}")
    for axis, length in zip(axes, value.shape, strict=True):
        if axis != "_" and sizes.setdefault(axis, length) != length:
            raise ValueError(f"{name} has the shape {value.shape}, where {sizes[axis]} is expected for {length}")
    if not _may_be_infinite(name) and not np.isfinite(value).all():
        raise ValueError(f"{name} has entries that are not finite")


def _may_be_infinite(name: str) -> bool:
    return name.split(".", 1)[0] in _MAY_BE_INFINITE
