"""Kernels of selected columns of X."""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, final

import equinox as eqx
import jax
import numpy as np
from jax import Array
from jaxtyping import Float

from pgmodels.kernels.distance import Inputs
from pgmodels.kernels.kernel import Change, Kernel, as_kernel
from pgmodels.kernels.spectrum import Spectra, in_columns
from pgmodels.kernels.state_space import StateSpace
from pgmodels.parameters.parameter import is_parameter
from pgmodels.runtime.formatting import shorten
from pgmodels.runtime.x64 import as_array


class Restricted(Kernel):
    """A kernel that applies another kernel to selected columns of its inputs."""

    kernel: eqx.AbstractVar[Kernel]

    @abstractmethod
    def inputs(self, X: Float[Inputs, "n d"]) -> np.ndarray:
        """The inputs of the inner kernel, from which its default lengthscales are computed."""

    def has_names(self) -> bool:
        return self.kernel.has_names()

    def scaled(self, factor: float) -> Kernel:
        return eqx.tree_at(lambda restricted: restricted.kernel, self, self.kernel.scaled(factor), is_leaf=is_parameter)

    def map_components(self, change: Change, X: Float[Inputs, "n d"]) -> Kernel:
        inner = change(self.kernel, self.inputs(X))
        return eqx.tree_at(lambda restricted: restricted.kernel, self, inner, is_leaf=is_parameter)


@final
class On(Restricted):
    """A kernel of selected columns of X: ``On(RBF(), [0, 2])`` or, of a data frame, ``On(RBF(), ["lon", "lat"])``.

    Default lengthscales and hyperparameters with one entry per column refer to these columns. ``On(White(), [3])``
    gives each level of a grouping column an independent effect.

    Parameters
    ----------
    kernel : Kernel or callable
        The kernel of the selected columns.
    columns : sequence of int or of str
        Distinct column numbers, from 0, or names.

    Raises
    ------
    ValueError
        For invalid column numbers.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> kernel = pgm.On(pgm.RBF(1.0, 1.0), [0]) + pgm.On(pgm.White(), [1])
    >>> X = np.array([[0.0, 1], [0.0, 2], [9.0, 1]])
    >>> kernel(X, X[:1]).round(2)
    array([[2.],
           [1.],
           [1.]])
    """

    positive_semidefinite: ClassVar[bool] = True

    kernel: Kernel
    columns: tuple[int, ...] = eqx.field(static=True)
    # Of the columns, if they were named.
    names: tuple[str, ...] | None = eqx.field(static=True)

    def __init__(self, kernel: Kernel | Callable[[Any, Any], Any], columns: Iterable[int] | Iterable[str]):
        self.kernel = as_kernel(kernel)
        self.names = _names(columns)
        self.columns = () if self.names else _read(columns, "columns of On")

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        return self.kernel(self._select(X), self._select(Z))

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        return self.kernel.diagonal(self._select(X))

    def reads(self, num_columns: int) -> tuple[int, ...]:
        return tuple(sorted(self.columns[index] for index in self.kernel.reads(len(self.columns))))

    def measures(self, num_columns: int) -> tuple[int, ...]:
        return tuple(sorted(self.columns[index] for index in self.kernel.measures(len(self.columns))))

    def indexes(self, num_columns: int) -> tuple[int, ...]:
        return tuple(sorted(self.columns[index] for index in self.kernel.indexes(len(self.columns))))

    def has_names(self) -> bool:
        return not self.columns or super().has_names()

    def numbered(self, names: tuple[str, ...] | None) -> "On":
        if self.columns:
            inner = None if names is None else tuple(names[c] for c in self.columns if c < len(names))
            return eqx.tree_at(lambda on: on.kernel, self, self.kernel.numbered(inner), is_leaf=is_parameter)
        chosen = self.names or ()
        if names is None:
            raise ValueError(
                f"On reads the columns {list(chosen)} by name, but X has no column names: give a data frame, or column "
                "numbers."
            )
        missing = [name for name in chosen if name not in names]
        if missing:
            raise ValueError(f"On reads the columns {missing}, which X does not have; its columns are {list(names)}.")
        return self.of_names(self.kernel.numbered(chosen), [names.index(name) for name in chosen], chosen)

    @classmethod
    def of_names(cls, kernel: Kernel, columns: Iterable[int], names: Iterable[str]) -> "On":
        """The kernel of columns whose numbers and names are known."""
        on = cls(kernel, columns)
        object.__setattr__(on, "names", tuple(names))
        return on

    def terms(self, num_columns: int) -> tuple[tuple[int, ...], ...]:
        inner = self.kernel.terms(len(self.columns))
        return tuple(tuple(sorted(self.columns[position] for position in term)) for term in inner)

    def rank_at(self, X: Float[Inputs, "n d"]) -> int:
        return self.kernel.rank_at(self._select(X))

    @property
    def is_diagonal(self) -> bool:
        return self.kernel.is_diagonal

    def features(self, X: Float[Inputs, "n d"]) -> Float[Array, "n r"] | None:
        return self.kernel.features(self._select(X))

    def to_state_space(self) -> StateSpace:
        return self.kernel.to_state_space()

    def spectra(self, num_columns: int) -> Spectra:
        return in_columns(self.kernel.spectra(len(self.columns)), self.columns)

    def inputs(self, X: Float[Inputs, "n d"]) -> np.ndarray:
        return np.asarray(self._select(X))

    def check(self, num_columns: int) -> None:
        if not self.columns:
            self.numbered(None)
        _check_columns(self.columns, num_columns, "On")
        self.kernel.check(len(self.columns))

    def _select(self, X: Inputs) -> Inputs:
        return X[:, np.array(self.columns)]

    def __repr__(self) -> str:
        return f"On({self.kernel!r}, {list(self.names or self.columns)})"


@final
class Difference(Restricted):
    """The kernel of g(a) - g(b), where a and b are two groups of columns and g is a GP with the given kernel.

    ``Difference(RBF(), [0, 1], [2, 3])`` is the latent of a preference between two items: each row has the features of
    one item, then those of the other.

    Parameters
    ----------
    kernel : Kernel or callable
        The kernel of g.
    left, right : sequence of int
        The columns of a and of b, equally many.

    Raises
    ------
    ValueError
        For invalid column numbers.

    References
    ----------
    Chu and Ghahramani 2005.
    """

    positive_semidefinite: ClassVar[bool] = True

    kernel: Kernel
    left: tuple[int, ...] = eqx.field(static=True)
    right: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, kernel: Kernel | Callable[[Any, Any], Any], left: Iterable[int], right: Iterable[int]):
        self.kernel = as_kernel(kernel)
        self.left, self.right = _read(left, "left of Difference"), _read(right, "right of Difference")
        if len(self.left) != len(self.right):
            raise ValueError(
                f"left and right of Difference must have equally many columns, the same features of two items; got "
                f"{list(self.left)} and {list(self.right)}."
            )

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        (a, b), (c, d) = self._items(X), self._items(Z)
        return self.kernel(a, c) - self.kernel(a, d) - self.kernel(b, c) + self.kernel(b, d)

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        a, b = (as_array(item) for item in self._items(X))
        across = jax.vmap(lambda x, z: self.kernel(x[None], z[None])[0, 0])(a, b)
        return self.kernel.diagonal(a) + self.kernel.diagonal(b) - 2.0 * across

    def reads(self, num_columns: int) -> tuple[int, ...]:
        indices = self.kernel.reads(len(self.left))
        return tuple(sorted({columns[index] for columns in (self.left, self.right) for index in indices}))

    def measures(self, num_columns: int) -> tuple[int, ...]:
        indices = self.kernel.measures(len(self.left))
        return tuple(sorted({columns[index] for columns in (self.left, self.right) for index in indices}))

    def indexes(self, num_columns: int) -> tuple[int, ...]:
        indices = self.kernel.indexes(len(self.left))
        return tuple(sorted({columns[index] for columns in (self.left, self.right) for index in indices}))

    def features(self, X: Float[Inputs, "n d"]) -> Float[Array, "n r"] | None:
        left, right = (self.kernel.features(item) for item in self._items(X))
        return None if left is None or right is None else left - right

    def numbered(self, names: tuple[str, ...] | None) -> "Difference":
        return self

    def inputs(self, X: Float[Inputs, "n d"]) -> np.ndarray:
        """Both items of each row."""
        return np.concatenate([np.asarray(item) for item in self._items(X)])

    def check(self, num_columns: int) -> None:
        _check_columns(self.left + self.right, num_columns, "Difference")
        self.kernel.check(len(self.left))

    def _items(self, X: Inputs) -> tuple[Inputs, Inputs]:
        return X[:, np.array(self.left)], X[:, np.array(self.right)]

    def __repr__(self) -> str:
        return f"Difference({self.kernel!r}, {list(self.left)}, {list(self.right)})"


def _names(columns: Any) -> tuple[str, ...] | None:
    """Names of columns as a tuple; None for anything else. Raises ValueError if a name is there twice."""
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        return None
    listed = tuple(columns)
    if not listed or not all(isinstance(name, str) for name in listed):
        return None
    if len(set(listed)) < len(listed):
        raise ValueError(f"columns of On must be a list of different names; got {list(listed)}.")
    return listed


def _read(columns: Iterable[Any], name: str) -> tuple[int, ...]:
    """Column numbers as a tuple. Raises ValueError unless they are distinct integers >= 0."""
    try:
        listed = list(columns)
    except TypeError:
        listed = []
    are_indices = all(isinstance(c, (int, np.integer)) and not isinstance(c, bool) and c >= 0 for c in listed)
    if not listed or not are_indices or len(set(listed)) < len(listed):
        raise ValueError(
            f"{name} must be a list of different column numbers, from 0 on, or of names; got {shorten(columns)}."
        )
    return tuple(int(c) for c in listed)


def _check_columns(columns: tuple[int, ...], num_columns: int, owner: str) -> None:
    if max(columns) >= num_columns:
        raise ValueError(
            f"{owner} reads column {max(columns)} of X, but X has {num_columns} column(s), 0 to {num_columns - 1}."
        )
