"""The leaves of formulas: numbers, observations, parameters and latents."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.notation import Indexed, Name, ParameterName, Tree, indexed, tree
from pgmodels.runtime.x64 import as_array

# The name in ``parameters`` of the positions of the latents in ``f``, (latents,) or (n, latents), if f is a subset.
POSITIONS = "positions of f"
# Up to this many latents, f[y] is a masked sum over all latents, beyond it a gather. With several observations per row
# of latents the masked sum would copy all latents for each.
_FEW = 16


class Constant(Expression):
    """A number."""

    def __init__(self, value: float):
        self.value = float(value)
        if not math.isfinite(self.value):
            raise ValueError(f"a formula contains the number {value!r}; every number in it must be finite.")

    def _label(self) -> Hashable:
        return self.value

    @cached_property
    def sign(self) -> int | None:
        return 1 if self.value >= 0 else -1

    @cached_property
    def nonnegative(self) -> bool:
        return self.value >= 0

    def evaluate(self, env: Environment) -> Array:
        return jnp.full((1, 1), self.value)


class Observation(Expression):
    """The observation ``y``, or its column ``y[j]``."""

    def __init__(self, column: int | None = None):
        self.column = column

    def __getitem__(self, column: int) -> Observation:
        if self.column is not None:
            raise ValueError(f"{self.text()} is one number per datum and cannot be indexed again.")
        if isinstance(column, bool) or not isinstance(column, (int, np.integer)) or column < 0:
            raise ValueError(f"a column of y is a whole number >= 0; got y[{column!r}].")
        return Observation(int(column))

    def _label(self) -> Hashable:
        return self.column

    @cached_property
    def sign(self) -> int | None:
        return 1

    def evaluate(self, env: Environment) -> Array:
        y = as_array(env.y)
        return (y if self.column is None else y[..., self.column])[..., None]

    def notation(self, precedence: int = 0) -> Tree:
        return indexed("y", self.column)


class ParameterSymbol(Expression):
    """A parameter of the likelihood, or an entry of a vector of ``length``: ``cuts[0]``, ``rate[y[1]]``."""

    def __init__(self, name: str, positive: bool, entry: int | Expression | None = None, length: int = 1):
        self.name, self.positive, self.entry, self.length = name, positive, entry, length
        if isinstance(entry, Expression):
            self.children = (entry,)

    def _label(self) -> Hashable:
        return (self.name, self.positive, self.entry if isinstance(self.entry, int) else None, self.length)

    @cached_property
    def sign(self) -> int | None:
        return 1 if self.positive else None

    @cached_property
    def nonnegative(self) -> bool:
        return self.positive

    def evaluate(self, env: Environment) -> Array:
        value = as_array(env.parameters[self.name])
        value = value if value.ndim > 1 else value.reshape(1, -1)
        if self.entry is None:
            return value
        if isinstance(self.entry, int):
            return value[..., self.entry : self.entry + 1]
        chosen = self.entry.evaluate(env) == jnp.arange(self.length)
        entry = jnp.sum(jnp.where(chosen, value, 0.0), axis=-1, keepdims=True)
        return jnp.where(jnp.any(chosen, axis=-1, keepdims=True), entry, jnp.nan)

    def notation(self, precedence: int = 0) -> Tree:
        name = ParameterName(self.name)
        return name if self.entry is None else Indexed(name, tree(self.entry))


class ParameterVector:
    """A vector parameter; a formula uses its entries: ``cuts[0]``, ``rate[y[1]]``, or in a loop."""

    def __init__(self, name: str, positive: bool, length: int):
        self.name, self.positive, self.length = name, positive, length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[ParameterSymbol]:
        return (self._entry(i) for i in range(self.length))

    def __getitem__(self, entry: Any) -> Any:
        if isinstance(entry, slice):
            return [self._entry(i) for i in range(self.length)[entry]]
        if isinstance(entry, Expression) and not isinstance(entry, Constant):
            if not entry.latent_free or entry.is_vector:
                raise ValueError(f"{self.name} is indexed by {entry.text()}: an index is a function of y alone.")
            return self._entry(entry)
        value = entry.value if isinstance(entry, Constant) else entry
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer)) or value != int(value):
            raise ValueError(
                f"{self.name} is indexed by {entry!r}: an index is a whole number or a function of y alone."
            )
        if not -self.length <= value < self.length:
            raise ValueError(f"the formula reads {self.name}[{int(value)}], but {self.name} has {self.length} entries.")
        return self._entry(int(value) % self.length)

    def _entry(self, entry: int | Expression) -> ParameterSymbol:
        return ParameterSymbol(self.name, self.positive, entry, self.length)


class Positions(Expression):
    """The vector 0, 1, ..., L - 1 over the latents."""

    def __init__(self, size: int):
        self.size = size

    is_vector = True  # type: ignore[assignment]

    def _label(self) -> Hashable:
        return self.size

    @cached_property
    def sign(self) -> int | None:
        return 1

    @cached_property
    def nonnegative(self) -> bool:
        return True

    def evaluate(self, env: Environment) -> Array:
        if POSITIONS in env.parameters:
            return jnp.atleast_2d(as_array(env.parameters[POSITIONS]))
        return jnp.arange(float(self.size))[None, :]

    def notation(self, precedence: int = 0) -> Tree:
        return Name("c")


class Latent(Expression):
    """One latent value: ``f`` of a model with one latent, ``f[j]`` otherwise."""

    latent_free = False  # type: ignore[assignment]

    def __init__(self, position: int, size: int):
        self.position = position
        self.size = size

    def __getitem__(self, position: Any) -> Expression:
        if self.size > 1:
            raise ValueError(f"{self.text()} is one latent value and cannot be indexed again.")
        return _index(position, 1)

    def __len__(self) -> int:
        return self.size

    def _label(self) -> Hashable:
        return (self.position, self.size)

    def evaluate(self, env: Environment) -> Array:
        return env.f[..., self.position : self.position + 1]

    @property
    def index(self) -> int | None:
        """The index in the notation; None if there is one latent."""
        return None if self.size == 1 else self.position

    def notation(self, precedence: int = 0) -> Tree:
        return indexed("f", self.index)


class Latents(Expression):
    """The vector of all latent values ``f``."""

    latent_free = False  # type: ignore[assignment]
    is_vector = True  # type: ignore[assignment]

    def __init__(self, size: int):
        self.size = size

    def __getitem__(self, position: Any) -> Expression:
        return _index(position, self.size)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Expression]:  # type: ignore[assignment, override]
        return (self[position] for position in range(self.size))

    def _label(self) -> Hashable:
        return self.size

    def evaluate(self, env: Environment) -> Array:
        return env.f

    index = "c"

    def notation(self, precedence: int = 0) -> Tree:
        return indexed("f", self.index)


class Selected(Expression):
    """The latent with an index from the data: ``f[y]``."""

    latent_free = False  # type: ignore[assignment]

    def __init__(self, index: Expression, size: int):
        self.index = index
        self.size = size
        self.children = (index,)

    def _label(self) -> Hashable:
        return self.size

    def evaluate(self, env: Environment) -> Array:
        index = self.index.evaluate(env)
        if self.size <= _FEW and index.ndim <= env.f.ndim:
            return jnp.sum(jnp.where(index == jnp.arange(self.size), env.f, 0.0), axis=-1, keepdims=True)
        place = jnp.clip(jnp.nan_to_num(index), 0, self.size - 1).astype(int)
        rank = max(place.ndim, env.f.ndim)
        f, place = (array.reshape(*[1] * (rank - array.ndim), *array.shape) for array in (env.f, place))
        return jnp.where(place == index, jnp.take_along_axis(f, place, axis=-1), 0.0)

    def notation(self, precedence: int = 0) -> Tree:
        return indexed("f", self.index)


def _index(position: Any, size: int) -> Expression:
    if isinstance(position, Constant) and position.value == int(position.value):
        position = int(position.value)
    if isinstance(position, Expression):
        if not position.latent_free or position.is_vector:
            raise ValueError(f"f is indexed by {position.text()}: an index is a whole number or a function of y alone.")
        return Selected(position, size)
    if isinstance(position, bool) or not isinstance(position, (int, np.integer)):
        raise ValueError(f"f is indexed by {position!r}: an index is a whole number or a function of y alone.")
    position = int(position)
    if not -size <= position < size:
        raise ValueError(
            f"the formula uses f[{position}], but the model has {size} latent GP{'s' if size > 1 else ''}: "
            f"give it a GP with size={abs(position) + (position >= 0)} or as many GPs in a list."
        )
    return Latent(position % size, size)
