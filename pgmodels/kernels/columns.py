"""Kernels of some columns of X."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, final

import equinox as eqx
import jax
import numpy as np
from jax import Array
from jaxtyping import Float

from pgmodels.kernels.distance import Inputs
from pgmodels.kernels.kernel import Kernel, as_kernel
from pgmodels.runtime.x64 import as_array


class Restricted(Kernel):
    """A kernel that passes on a part of its inputs."""

    kernel: eqx.AbstractVar[Kernel]

    @abstractmethod
    def inputs(self, X: Float[Inputs, "n d"]) -> np.ndarray:
        """The rows that the kernel inside sees, from which its lengthscales come."""


@final
class On(Restricted):
    """A kernel that sees some columns of X alone: ``On(RBF(), [0, 2])``.

    What the kernel takes from the data, and an array with an entry for each column, refers to these columns.
    ``On(White(), [3])`` gives each level of a grouping column an effect of its own.
    """

    known: ClassVar[bool] = True

    kernel: Kernel
    columns: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, kernel: Any, columns: Iterable[int]):
        self.kernel = as_kernel(kernel)
        self.columns = _read(columns, "columns of On")

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        return self.kernel(self._of(X), self._of(Z))

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        return self.kernel.diagonal(self._of(X))

    def reads(self, num_columns: int) -> tuple[int, ...]:
        return tuple(sorted(self.columns[place] for place in self.kernel.reads(len(self.columns))))

    def resolve(self, X: Float[Inputs, "n d"]) -> "On":
        inner = self.kernel.resolve(self.inputs(X))
        return self if inner is self.kernel else On(inner, self.columns)

    def inputs(self, X: Float[Inputs, "n d"]) -> np.ndarray:
        """See Restricted."""
        return np.asarray(self._of(X))

    def check(self, num_columns: int) -> None:
        _check_columns(self.columns, num_columns, "On")
        self.kernel.check(len(self.columns))

    def _of(self, X: Inputs) -> Inputs:
        return X[:, np.array(self.columns)]

    def __repr__(self) -> str:
        return f"On({self.kernel!r}, {list(self.columns)})"


@final
class Difference(Restricted):
    """The kernel of g(a) - g(b), where a and b are two groups of columns and g is a process with the given kernel.

    ``Difference(RBF(), [0, 1], [2, 3])`` is the latent of a preference between two items: rows hold the features of
    one item, then those of the other (Chu and Ghahramani 2005).
    """

    known: ClassVar[bool] = True

    kernel: Kernel
    left: tuple[int, ...] = eqx.field(static=True)
    right: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, kernel: Any, left: Iterable[int], right: Iterable[int]):
        self.kernel = as_kernel(kernel)
        self.left, self.right = _read(left, "left of Difference"), _read(right, "right of Difference")
        if len(self.left) != len(self.right):
            raise ValueError(
                f"left and right of Difference must name as many columns each, the same features of two items; got "
                f"{list(self.left)} and {list(self.right)}."
            )

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        (a, b), (c, d) = self._parts(X), self._parts(Z)
        return self.kernel(a, c) - self.kernel(a, d) - self.kernel(b, c) + self.kernel(b, d)

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        a, b = (as_array(part) for part in self._parts(X))
        across = jax.vmap(lambda x, z: self.kernel(x[None], z[None])[0, 0])(a, b)
        return self.kernel.diagonal(a) + self.kernel.diagonal(b) - 2.0 * across

    def reads(self, num_columns: int) -> tuple[int, ...]:
        places = self.kernel.reads(len(self.left))
        return tuple(sorted({part[place] for part in (self.left, self.right) for place in places}))

    def resolve(self, X: Float[Inputs, "n d"]) -> "Difference":
        inner = self.kernel.resolve(self.inputs(X))
        return self if inner is self.kernel else Difference(inner, self.left, self.right)

    def inputs(self, X: Float[Inputs, "n d"]) -> np.ndarray:
        """See Restricted: both items of each row."""
        return np.concatenate([np.asarray(part) for part in self._parts(X)])

    def check(self, num_columns: int) -> None:
        _check_columns(self.left + self.right, num_columns, "Difference")
        self.kernel.check(len(self.left))

    def _parts(self, X: Inputs) -> tuple[Inputs, Inputs]:
        return X[:, np.array(self.left)], X[:, np.array(self.right)]

    def __repr__(self) -> str:
        return f"Difference({self.kernel!r}, {list(self.left)}, {list(self.right)})"


def _read(columns: Iterable[int], name: str) -> tuple[int, ...]:
    """Column numbers, or ValueError."""
    try:
        listed = list(columns)
    except TypeError:
        listed = []
    whole = all(isinstance(c, (int, np.integer)) and not isinstance(c, bool) and c >= 0 for c in listed)
    if not listed or not whole or len(set(listed)) < len(listed):
        raise ValueError(f"{name} must be a list of different column numbers, from 0 on; got {columns!r}.")
    return tuple(int(c) for c in listed)


def _check_columns(columns: tuple[int, ...], num_columns: int, owner: str) -> None:
    if max(columns) >= num_columns:
        raise ValueError(
            f"{owner} reads column {max(columns)} of X, but X has {num_columns} column(s), 0 to {num_columns - 1}."
        )
