"""Kernels on columns of the inputs, on the sphere, of outputs, and of levels with known covariances."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Literal
from jaxtyping import Float
from numpy.typing import ArrayLike

from pgmodels.kernels.kernel import (
    Change,
    Inputs,
    Kernel,
    Spectra,
    Use,
    as_kernel,
    in_columns,
    is_positive_semidefinite,
    scalar,
    with_parameter,
    with_values,
)
from pgmodels.kernels.state_space import StateSpace
from pgmodels.parameters.parameter import Fixed, Hyperparameter, Parameter, as_declared, as_parameter, is_parameter
from pgmodels.runtime.jit import double_outside_jit
from pgmodels.runtime.messages import shorten
from pgmodels.runtime.precision import as_array
from pgmodels.runtime.seeds import is_distribution


class Restricted(Kernel):
    """A kernel that applies another kernel to selected columns of its inputs."""

    positive_semidefinite: ClassVar[bool] = True

    kernel: Kernel

    @abstractmethod
    def inputs(self, X: Float[Inputs, "n d"]) -> np.ndarray:
        """Return the inputs of the inner kernel, which determine its default lengthscales."""

    def scaled(self, factor: float) -> Kernel:
        return eqx.tree_at(lambda restricted: restricted.kernel, self, self.kernel.scaled(factor), is_leaf=is_parameter)

    def map_components(self, change: Change, X: Float[Inputs, "n d"]) -> Kernel:
        inner = change(self.kernel, self.inputs(X))
        return eqx.tree_at(lambda restricted: restricted.kernel, self, inner, is_leaf=is_parameter)


class OfColumns(Restricted):
    """A kernel that applies another kernel to items, each with the same number of columns."""

    @property
    @abstractmethod
    def items(self) -> tuple[tuple[int, ...], ...]:
        """Return the columns of each item."""

    def reads(self, num_columns: int, use: Use | None = None) -> tuple[int, ...]:
        numbers = self.kernel.reads(len(self.items[0]), use)
        return tuple(sorted({columns[number] for columns in self.items for number in numbers}))


@final
class On(OfColumns):
    """A kernel of selected columns of X: ``On(RBF(), [0, 2])``, or ``On(RBF(), ["lon", "lat"])`` for a data frame.

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
        If a column number is invalid.

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

    columns: tuple[int, ...] = eqx.field(static=True)
    # The names of the columns, if they were named.
    names: tuple[str, ...] | None = eqx.field(static=True)

    def __init__(self, kernel: Kernel | Callable[[Any, Any], Any], columns: Iterable[int] | Iterable[str]):
        self.kernel = as_kernel(kernel)
        self.names = _names(columns)
        self.columns = () if self.names else _read(columns, "columns of On")

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        return self.kernel(self._select(X), self._select(Z))

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        return self.kernel.diagonal(self._select(X))

    @property
    def items(self) -> tuple[tuple[int, ...], ...]:
        return (self.columns,)

    @classmethod
    def of_names(cls, kernel: Kernel, columns: Iterable[int], names: Iterable[str]) -> "On":
        """Return the kernel of columns whose numbers and names are known."""
        on = cls(kernel, columns)
        object.__setattr__(on, "names", tuple(names))
        return on

    def terms(self, num_columns: int) -> tuple[tuple[int, ...], ...]:
        inner = self.kernel.terms(len(self.columns))
        return tuple(tuple(sorted(self.columns[position] for position in term)) for term in inner)

    def rank_at(self, X: Float[Inputs, "n d"]) -> int:
        return self.kernel.rank_at(self._select(X))

    def level_columns(self, num_columns: int) -> tuple[int, ...]:
        return tuple(sorted(self.columns[number] for number in self.kernel.level_columns(len(self.columns))))

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
            numbered(self, None)
        _check_columns(self.columns, num_columns, "On")
        self.kernel.check(len(self.columns))

    def _select(self, X: Inputs) -> Inputs:
        return X[:, np.array(self.columns)]

    def __repr__(self) -> str:
        return f"On({self.kernel!r}, {list(self.names or self.columns)})"


@final
class Difference(OfColumns):
    """The kernel of g(a) - g(b), in which a and b are two groups of columns and g is a GP with the given kernel.

    ``Difference(RBF(), [0, 1], [2, 3])`` is the latent of a preference between two items: each row has the features of
    one item, then the features of the other.

    Parameters
    ----------
    kernel : Kernel or callable
        The kernel of g.
    left, right : sequence of int
        The columns of a and of b, of equal number.

    Raises
    ------
    ValueError
        If a column number is invalid.

    References
    ----------
    Chu and Ghahramani 2005.
    """

    left: tuple[int, ...] = eqx.field(static=True)
    right: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, kernel: Kernel | Callable[[Any, Any], Any], left: Iterable[int], right: Iterable[int]):
        self.kernel = as_kernel(kernel)
        self.left, self.right = _read(left, "left of Difference"), _read(right, "right of Difference")
        if len(self.left) != len(self.right):
            raise ValueError(
                f"left and right of Difference must have the same number of columns, one per feature; got "
                f"{list(self.left)} and {list(self.right)}."
            )

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        (a, b), (c, d) = self._items(X), self._items(Z)
        return self.kernel(a, c) - self.kernel(a, d) - self.kernel(b, c) + self.kernel(b, d)

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        a, b = (as_array(item) for item in self._items(X))
        across = jax.vmap(lambda x, z: self.kernel(x[None], z[None])[0, 0])(a, b)
        return self.kernel.diagonal(a) + self.kernel.diagonal(b) - 2.0 * across

    @property
    def items(self) -> tuple[tuple[int, ...], ...]:
        return self.left, self.right

    def features(self, X: Float[Inputs, "n d"]) -> Float[Array, "n r"] | None:
        left, right = (self.kernel.features(item) for item in self._items(X))
        return None if left is None or right is None or self.kernel.level_columns(len(self.left)) else left - right

    def inputs(self, X: Float[Inputs, "n d"]) -> np.ndarray:
        return np.concatenate([np.asarray(item) for item in self._items(X)])

    def check(self, num_columns: int) -> None:
        _check_columns(self.left + self.right, num_columns, "Difference")
        self.kernel.check(len(self.left))

    def _items(self, X: Inputs) -> tuple[Inputs, Inputs]:
        return X[:, np.array(self.left)], X[:, np.array(self.right)]

    def __repr__(self) -> str:
        return f"Difference({self.kernel!r}, {list(self.left)}, {list(self.right)})"


def _names(columns: object) -> tuple[str, ...] | None:
    """Return names of columns as a tuple, or None for anything else. Raise ValueError if a name is repeated."""
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        return None
    listed = tuple(columns)
    if not listed or not all(isinstance(name, str) for name in listed):
        return None
    if len(set(listed)) < len(listed):
        raise ValueError(f"columns of On must be a list of different names; got {list(listed)}.")
    return listed


def _read(columns: Iterable[Any], name: str) -> tuple[int, ...]:
    """Return column numbers as a tuple. Raise ValueError unless they are distinct integers >= 0."""
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


# The mean radius of the earth in km.
RADIUS = 6371.0088
# Limits of longitudes and latitudes.
_LIMITS = np.array([[-360.0, 360.0], [-90.0, 90.0]])


@final
class Sphere(Restricted):
    """A kernel of longitude and latitude in degrees, by the straight line between two places, in km.

    In ``On(Sphere(Matern52(1.0, 300.0)), ["lon", "lat"])``, the lengthscale is in km. The line through the earth equals
    the distance over its surface within 1 % up to 3,000 km. Every kernel of it is positive definite; a kernel of
    distances over the surface need not be.

    Parameters
    ----------
    kernel : Kernel or callable
        The kernel of places (n, 3) in km from the centre of the earth: stationary, with one lengthscale.

    Raises
    ------
    ValueError
        If a latitude is beyond ±90 or a longitude beyond ±360, or the kernel has a lengthscale per column.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> kernel = pgm.Sphere(pgm.RBF(1.0, 1000.0))
    >>> paris, berlin = np.array([[2.35, 48.86]]), np.array([[13.40, 52.52]])
    >>> kernel(paris, berlin).round(2)
    array([[0.68]])
    """

    column_use: ClassVar[Use] = "values"

    def __init__(self, kernel: Kernel | Callable[[Any, Any], Any]):
        self.kernel = as_kernel(kernel)

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        return self.kernel(_places(X), _places(Z))

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        return self.kernel.diagonal(_places(X))

    def inputs(self, X: Float[Inputs, "n d"]) -> np.ndarray:
        return np.asarray(_places(X))

    def check(self, num_columns: int) -> None:
        if num_columns != 2:
            raise ValueError(
                f"Sphere reads longitude and latitude; got {num_columns} column(s). Use pgm.On(pgm.Sphere(kernel), "
                '["lon", "lat"]).'
            )
        try:
            self.kernel.check(1)
        except ValueError as error:
            raise ValueError(f"Sphere needs a kernel with one lengthscale, in km: {error}") from error

    def check_values(self, X: np.ndarray, name: str) -> None:
        beyond = np.flatnonzero((abs(X) > _LIMITS[:, 1]).any(axis=1))
        if len(beyond):
            longitude, latitude = X[beyond[0]]
            raise ValueError(
                f"{name} must have longitudes and then latitudes in degrees for Sphere; got {longitude:g} "
                f"and {latitude:g} in row {beyond[0]}."
            )

    def limits(self, num_columns: int) -> Float[np.ndarray, "d 2"]:
        return _LIMITS

    def __repr__(self) -> str:
        return f"Sphere({self.kernel!r})"


def _places(X: Inputs) -> Array:
    longitude, latitude = jnp.moveaxis(jnp.deg2rad(as_array(X)), -1, 0)
    across = jnp.cos(latitude)
    places = [across * jnp.cos(longitude), across * jnp.sin(longitude), jnp.sin(latitude)]
    return RADIUS * jnp.stack(places, axis=-1)


# Columns that are selected by name.


def has_names(kernel: Kernel) -> bool:
    """Return whether a kernel names columns of X that have no numbers yet."""
    nodes = jax.tree.leaves(kernel, is_leaf=lambda node: isinstance(node, Kernel) and node is not kernel)
    is_unnumbered = isinstance(kernel, On) and not kernel.columns
    return is_unnumbered or any(has_names(node) for node in nodes if isinstance(node, Kernel))


def numbered(kernel: Kernel, names: tuple[str, ...] | None) -> Kernel:
    """Return the kernel with column numbers instead of names, given the names of X's columns."""
    if isinstance(kernel, Difference):
        return kernel
    if isinstance(kernel, Sphere):
        return Sphere(numbered(kernel.kernel, None))
    if not isinstance(kernel, On):
        return kernel.map_components(lambda component, _: numbered(component, names), np.empty((0, 0)))
    if kernel.columns:
        inner = None if names is None else tuple(names[c] for c in kernel.columns if c < len(names))
        return eqx.tree_at(lambda on: on.kernel, kernel, numbered(kernel.kernel, inner), is_leaf=is_parameter)
    chosen = kernel.names or ()
    if names is None:
        raise ValueError(
            f"On reads the columns {list(chosen)} by name, but X has no column names: give a data frame, or column "
            "numbers."
        )
    missing = [name for name in chosen if name not in names]
    if missing:
        raise ValueError(f"On reads the columns {missing}, which X does not have; its columns are {list(names)}.")
    return On.of_names(numbered(kernel.kernel, chosen), [names.index(name) for name in chosen], chosen)


@dataclass(eq=False)
class _Followed:
    """A value of a kernel's program, with the side whose rows it has (X or Z) and the index that it modifies."""

    value: Any
    of: frozenset[str] = frozenset()
    sign_of: "_Followed | None" = None
    shift_of: "_Followed | None" = None


class _OutsideError(Exception):
    """An index out of bounds, the number of entries that it selects from, and its row."""


def check_lookups(kernel: Callable[..., Any], X: np.ndarray, name: str, names: tuple[str, ...] | None = None) -> None:
    """Raise ValueError if a user's kernel indexes its arrays out of bounds, at rows of X (n, d).

    JAX would silently use another entry, e.g. the last one for -1, which is pandas' code of a missing level. Indices
    that the kernel clips or wraps are valid. Indices computed from two rows, such as differences, may count from the
    end. Indices in loops are not checked. ``names`` are the names of the columns.
    """
    if isinstance(kernel, Kernel) and is_positive_semidefinite(kernel):
        return
    values, rows, one = with_values(kernel), as_array(X), as_array(X[:1])
    program = jax.make_jaxpr(lambda kernel, X, Z: kernel(X, Z))(values, rows, one)
    if "gather" not in str(program):
        return
    inputs = [*map(_Followed, jax.tree.leaves(values)), _Followed(rows, frozenset("X")), _Followed(one, frozenset("Z"))]
    try:
        _follow(program, inputs)
    except _OutsideError as outside:
        index, size, row = outside.args
        labels = range(X.shape[1]) if names is None else map(repr, names)
        entries = [f"column {label} is {value:g}" for label, value in zip(labels, X[row], strict=True)]
        raise ValueError(
            f"{kernel!r} reads entry {index} of an array of {size} entries at row {row} of {name}, where "
            f"{', '.join(entries[:10])}. Entries are 0 to {size - 1}. Correct or drop such rows (pandas codes a "
            "missing level as -1), use larger arrays, or compute the index in the kernel, as in index % size."
        ) from None


def _follow(program: ClosedJaxpr, inputs: list[_Followed]) -> list[_Followed]:
    """Return the outputs of a program at its inputs. Raise _OutsideError if an index is out of bounds."""
    known = dict(zip(program.jaxpr.constvars, map(_Followed, program.consts), strict=True))
    known |= dict(zip(program.jaxpr.invars, inputs, strict=True))
    for equation in program.jaxpr.eqns:
        operands = [_Followed(one.val) if isinstance(one, Literal) else known[one] for one in equation.invars]
        name, params = equation.primitive.name, equation.params
        inner = params.get("call_jaxpr", params.get("jaxpr") if name in ("jit", "pjit") else None)
        if isinstance(inner, ClosedJaxpr):
            results = _follow(inner, operands)
        else:
            made = equation.primitive.bind(*(operand.value for operand in operands), **params)
            of = frozenset().union(*(operand.of for operand in operands))
            results = [_Followed(one, of) for one in (made if equation.primitive.multiple_results else [made])]
        if name == "lt" and np.all(operands[1].value == 0):
            results[0].sign_of = operands[0]
        elif name == "add":
            results[0].shift_of = operands[0]
        # JAX counts indices below 0 from the end by ``select_n(i < 0, i, i + size)``.
        elif name == "select_n" and len(operands) == 3:
            sign, one, moved = operands
            if (sign.sign_of, moved.shift_of) == (one, one):
                index, size = np.atleast_1d(one.value), int(np.max(moved.value - one.value))
                is_bad = (index >= size) | (index < (0 if one.of == {"X"} else -size))
                if is_bad.any():
                    first = np.argwhere(is_bad)[0]
                    raise _OutsideError(index[tuple(first)], size, first[0] if "X" in one.of else 0)
        known |= dict(zip(equation.outvars, results, strict=True))
    return [_Followed(one.val) if isinstance(one, Literal) else known[one] for one in program.jaxpr.outvars]


@final
class Coregion(Kernel):
    """The covariances W Wᵀ + diag(kappa) between outputs, by the output number in each row of X.

    ``On(RBF(variance=Fixed(1.0)), [0]) * On(Coregion(3), [1])`` is the intrinsic coregionalisation model of three
    outputs. Column 1 has the output, 0 to 2, or its name in a data frame, numbered in sorted order. Fix the variance of
    the other kernel, since only its product with the covariances counts.

    Parameters
    ----------
    num_outputs : int
        Number of outputs P.
    rank : int, default 1
        Number of latent processes R that the outputs share.
    loadings : array_like, Fixed, Parameter or NumPyro distribution, optional
        W, shape (P, R), in units of the latent; a scalar distribution applies to each entry. The start values differ
        between outputs and between columns, since equal values could not become different.
    kappa : float, array_like, Fixed, Parameter or NumPyro distribution
        Variance of the part of each output that no other output shares, shape (P,), in squared units of the latent.

    Raises
    ------
    ValueError
        If a number is not whole and positive, or an array has another shape.

    References
    ----------
    Bonilla, Chai and Williams 2008; Álvarez, Rosasco and Lawrence 2012, section 4.2.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> outputs = np.array([[0.0], [1.0]])
    >>> pgm.Coregion(2, loadings=[[1.0], [2.0]], kappa=0.5)(outputs, outputs)
    array([[1.5, 2. ],
           [2. , 4.5]])
    """

    positive_semidefinite: ClassVar[bool] = True
    column_use: ClassVar[Use] = "levels"

    num_outputs: int = eqx.field(static=True)
    rank: int = eqx.field(static=True)
    loadings: Parameter
    kappa: Parameter

    def __init__(
        self, num_outputs: int, rank: int = 1, loadings: Hyperparameter | None = None, kappa: Hyperparameter = 0.5
    ):
        for name, value in (("num_outputs", num_outputs), ("rank", rank)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise ValueError(f"{name} of Coregion must be a whole number >= 1; got {shorten(value)}.")
        self.num_outputs, self.rank = int(num_outputs), int(rank)
        if loadings is None or is_distribution(loadings):
            # The centre of a prior may be a point such as 0, from which the loadings cannot move.
            loadings = Parameter(_start(self.num_outputs, self.rank), prior=loadings)
        self.loadings = as_parameter(loadings, "loadings of Coregion", positive=False)
        self._check_shape("loadings", (self.num_outputs, self.rank))
        self.kappa = as_parameter(kappa, "kappa of Coregion")
        if not np.ndim(self.kappa.value):
            same: Any = np.full(self.num_outputs, self.kappa.value)
            same = Fixed(same) if self.kappa.fixed else same
            self.kappa = as_parameter(Parameter(same, prior=self.kappa.declared_prior), "kappa of Coregion")
        self._check_shape("kappa", (self.num_outputs,))

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        if np.shape(value := getattr(self, name).value) != shape:
            raise ValueError(
                f"{name} of Coregion({self.num_outputs}, rank={self.rank}) must have shape {shape}; got "
                f"{np.shape(value)}."
            )

    @property
    @double_outside_jit
    def covariance(self) -> Float[Array, "P P"]:
        """Return the covariances between the outputs, W Wᵀ + diag(kappa)."""
        W = as_array(self.loadings.value)
        return W @ W.T + jnp.diag(as_array(self.kappa.value))

    def __call__(self, X: Float[Inputs, "n 1"], Z: Float[Inputs, "m 1"]) -> Float[Array, "n m"]:
        return self._members(X) @ self.covariance @ self._members(Z).T

    def diagonal(self, X: Float[Inputs, "n 1"]) -> Float[Array, " n"]:
        return self._members(X) @ jnp.diagonal(self.covariance)

    def _members(self, X: Inputs) -> Float[Array, "n P"]:
        """Return 1 at the output of each row, or NaN if there is no such output."""
        is_output = as_array(X) == jnp.arange(self.num_outputs)
        return jnp.where(jnp.any(is_output, axis=1, keepdims=True), is_output, jnp.nan)

    def scaled(self, factor: float) -> Kernel:
        if not (self.loadings.is_free and self.kappa.is_free):
            return self
        scaled = with_parameter(self, "loadings", self.loadings.value * np.sqrt(factor))
        return with_parameter(scaled, "kappa", self.kappa.value * factor)

    def check(self, num_columns: int) -> None:
        super().check(num_columns)
        if num_columns != 1:
            raise ValueError(
                f"{self._title()} reads one column, the number of the output; got {num_columns}. Use "
                f"pgm.On(pgm.Coregion({self.num_outputs}, rank={self.rank}), [column]) and pgm.On(kernel, [...]) for "
                "the others."
            )

    def check_values(self, X: np.ndarray, name: str) -> None:
        bad = np.flatnonzero(~np.isin(X[:, 0], np.arange(self.num_outputs)))
        if bad.size:
            raise ValueError(
                f"{name} must have an output from 0 to {self.num_outputs - 1} in the column that {self._title()} "
                f"reads; got {X[bad[0], 0]:g} in row {bad[0]}. Set num_outputs to the number of outputs, and number "
                "them from 0."
            )

    def _title(self) -> str:
        return f"Coregion({self.num_outputs}, rank={self.rank})"

    def __repr__(self) -> str:
        return f"{self._title()[:-1]}, loadings={self.loadings!r}, kappa={self.kappa!r})"


def _start(num_outputs: int, rank: int) -> np.ndarray:
    """Return start values of loadings: column r falls from 1 at output r to 1/2, over sqrt(R)."""
    # The gradient is 0 at W = 0, and so is its part that separates equal outputs or columns.
    falling = 1.0 - 0.5 * np.arange(num_outputs) / num_outputs
    return np.stack([np.roll(falling, column) for column in range(rank)], axis=1) / np.sqrt(rank)


# The mixing of effects without an independent part.
_ALL = Fixed(1.0)


@final
class Structured(Kernel):
    """Effects of levels with known covariances, except scale and mixture: areas, pedigrees, random walks.

    B is the ``basis`` and w the ``weights``. The covariances of the levels are ``variance`` times B diag(s) Bᵀ. By
    default s = mixing · w + 1 - mixing, a mixture with independent effects; for a ``precision``,
    s = 1 / (1 - mixing · w). ``Structured.of`` and ``Structured.car`` make both. Columns of X have numbers of levels,
    0 to K - 1. A row with several, e.g. a member of several groups, has the mean of their effects.

    Parameters
    ----------
    basis : array_like, shape (K, r)
    weights : array_like, shape (r,)
        Numbers, which are not learned.
    variance : float, Fixed, Parameter or NumPyro distribution
        Prior variance, in squared units of the latent.
    mixing : float, Fixed, Parameter or NumPyro distribution
        Between 0 and 1.
    precision : bool, default False
        Whether mixing applies to precisions instead of covariances.

    References
    ----------
    Besag, York and Mollié 1991; Riebler et al. 2016 (``of`` with ``icar_covariance``, the model BYM2); Gelfand and
    Vounatsou 2003 (``car``); Rue and Held 2005, chapter 3 (``walk_covariance``).

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> kernel = pgm.Structured.of([[1.0, 0.5], [0.5, 1.0]], variance=2.0)
    >>> kernel(np.array([[0.0], [1.0]]), np.array([[1.0]])).round(6)
    array([[1.],
           [2.]])
    """

    positive_semidefinite: ClassVar[bool] = True
    column_use: ClassVar[Use] = "levels"

    basis: Parameter
    weights: Parameter
    variance: Parameter
    mixing: Parameter
    precision: bool = eqx.field(static=True)

    def __init__(
        self, basis: ArrayLike | Parameter, weights: ArrayLike | Parameter, variance: Hyperparameter = 1.0,
        mixing: Hyperparameter = _ALL, precision: bool = False,
    ):  # fmt: skip
        from numpyro.distributions.constraints import interval

        self.variance = scalar(variance, "variance", self)
        between = Parameter(0.5, constraint=interval(0.0, 1.0))
        self.mixing = as_declared(mixing, between, "mixing of Structured", positive=False)
        known = [np.asarray(one.value if isinstance(one, Parameter) else one, np.float64) for one in (basis, weights)]
        self.basis, self.weights = (Parameter(one, positive=False, fixed=True) for one in known)
        self.precision = precision
        if known[0].ndim != 2 or known[1].shape != known[0].shape[1:]:
            raise ValueError(
                f"basis and weights of Structured must have shapes (K, r) and (r,); got {known[0].shape} and "
                f"{known[1].shape}. Structured.of(covariance) and Structured.car(neighbours) compute both."
            )

    @classmethod
    def of(cls, covariance: ArrayLike, variance: Hyperparameter = 1.0, mixing: Hyperparameter = _ALL) -> "Structured":
        """Return the kernel of levels with covariances (K, K), such as relatedness, times ``variance``.

        Raises ValueError unless the covariances are symmetric and positive semidefinite.
        """
        C = np.asarray(covariance, dtype=np.float64)
        if C.ndim != 2 or C.shape[0] != C.shape[1] or not np.isfinite(C).all() or not np.allclose(C, C.T):
            raise ValueError(f"covariance of Structured must be a symmetric matrix of numbers; got shape {C.shape}.")
        weights, basis = np.linalg.eigh(C)
        # Smaller values are rounding errors.
        least = 1e-10 * max(weights.max(), 0.0)
        if weights.min() < -1e4 * least or weights.max() <= 0.0:
            raise ValueError(
                f"covariance of Structured must be positive semidefinite; its least eigenvalue is {weights.min():.3g}."
            )
        kept = weights > least if isinstance(mixing, Fixed) and mixing.value == 1.0 else weights > -np.inf
        return cls(basis[:, kept], np.maximum(weights[kept], 0.0), variance, mixing)

    @classmethod
    def car(cls, neighbours: ArrayLike, variance: Hyperparameter = 1.0, mixing: Hyperparameter = 0.5) -> "Structured":
        """Return the kernel of a proper conditional autoregression with precisions (D - mixing · W) / variance.

        W, the ``neighbours`` (K, K), is 1 for areas that share a border. D has their numbers, and 1 for an island.
        """
        W = np.asarray(neighbours, dtype=np.float64)
        roots = 1.0 / np.sqrt(np.maximum(W.sum(axis=1), 1.0))
        weights, basis = np.linalg.eigh(roots[:, None] * W * roots)
        return cls(roots[:, None] * basis, weights, variance, mixing, precision=True)

    def having(self, variance: Hyperparameter, mixing: Hyperparameter = _ALL) -> "Structured":
        """Return the kernel of these levels with other hyperparameters."""
        return Structured(self.basis, self.weights, variance, mixing, self.precision)

    def features(self, X: Float[Inputs, "n d"]) -> Float[Array, "n r"]:
        mixing, weights = as_array(self.mixing.value), as_array(self.weights.value)
        s = 1.0 / (1.0 - mixing * weights) if self.precision else mixing * weights + 1.0 - mixing
        effects = as_array(self.basis.value) * jnp.sqrt(as_array(self.variance.value) * s)
        return jnp.mean(effects[as_array(X).astype(int)], axis=1)

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        return self.features(X) @ self.features(Z).T

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        return jnp.sum(jnp.square(self.features(X)), axis=1)

    def check_values(self, X: np.ndarray, name: str) -> None:
        size = len(np.asarray(self.basis.value))
        bad = np.argwhere(~np.isin(X, np.arange(size)))
        if len(bad):
            raise ValueError(
                f"{name} must have levels from 0 to {size - 1} for Structured; got {X[tuple(bad[0])]:g} in "
                f"row {bad[0][0]}."
            )

    def __repr__(self) -> str:
        K, r = np.shape(self.basis.value)
        return f"Structured(variance={self.variance!r}, mixing={self.mixing!r}) of {K} levels, rank {r}"


# Covariances between levels.


def icar_covariance(neighbours: ArrayLike, scaled: bool = True) -> np.ndarray:
    """Return the covariances (K, K) of an intrinsic conditional autoregression, given the neighbours (K, K).

    The effects of each connected part sum to 0. If ``scaled``, the geometric mean of their variances is 1. An island, a
    part of one area, has an independent effect of variance 1 (Freni-Sterrantino, Ventrucci and Rue 2018).
    """
    from scipy.sparse.csgraph import connected_components

    W = np.asarray(neighbours, dtype=np.float64)
    covariance = np.eye(len(W))
    count, part = connected_components(W, directed=False)
    for one in range(count):
        members = np.flatnonzero(part == one)
        if len(members) > 1:
            inner = W[np.ix_(members, members)]
            covariance[np.ix_(members, members)] = _inverse(np.diag(inner.sum(axis=1)) - inner, 1, scaled)
    return covariance


def walk_covariance(places: ArrayLike, order: int, scaled: bool = False) -> np.ndarray:
    """Return covariances (K, K) of a random walk of order 1 or 2 at increasing places (K,), without constant or line.

    With order 1, a step over h has variance h. With order 2, the change of the slope has variance h.
    """
    x = np.asarray(places, dtype=np.float64)
    if len(x) <= order:
        raise ValueError(f"a random walk of order {order} needs {order + 1} places or more; got {len(x)}.")
    h = np.diff(x)
    D, spans = np.diff(np.eye(len(x)), axis=0) / h[:, None], h
    if order == 2:
        spans = 0.5 * (h[:-1] + h[1:])
        D = np.diff(D, axis=0) / spans[:, None]
    return _inverse(D.T @ (D * spans[:, None]), order, scaled)


def _inverse(Q: np.ndarray, deficiency: int, scaled: bool) -> np.ndarray:
    """Return the inverse of a precision on the complement of its null space."""
    weights, basis = np.linalg.eigh(Q)
    covariance = (basis[:, deficiency:] / weights[deficiency:]) @ basis[:, deficiency:].T
    return covariance / np.exp(np.mean(np.log(np.diag(covariance)))) if scaled else covariance


def adjacency(graph: object) -> tuple[np.ndarray, list[Any] | None]:
    """Return the matrix of neighbours (K, K), and the labels of areas or None.

    ``graph`` is a symmetric matrix of 0 and 1, possibly sparse or a data frame with labels on both axes; a list or
    two-column data frame of pairs of labels; a dict of lists of neighbours; or a GeoDataFrame with labels as index, in
    which touching areas are neighbours. Raises ValueError for anything else.
    """
    labels: list[Any] | None = None
    pairs: list[Any] | None = None
    table: Any = graph
    if hasattr(table, "geometry") and hasattr(table, "sindex"):
        labels, shapes = list(table.index), table.geometry
        touching = shapes.sindex.query(shapes.values, predicate="touches")
        pairs = [(labels[a], labels[b]) for a, b in zip(*touching, strict=True)]
    elif isinstance(table, Mapping) and all(isinstance(others, Iterable) for others in table.values()):
        labels, pairs = list(table), [(one, other) for one, others in table.items() for other in others]
    elif hasattr(table, "columns") and set(table.columns) != set(table.index) and len(table.columns) == 2:
        pairs = table.to_numpy(dtype=object).tolist()
    elif hasattr(table, "columns"):
        labels = list(table.index)
        table = table.reindex(columns=labels) if set(table.columns) == set(labels) else table
    elif isinstance(table, list | tuple) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in table):
        pairs = None if len(table) == 2 and np.array_equal(np.ravel(table), [0, 1, 1, 0]) else list(table)
    if pairs is not None:
        labels = list(dict.fromkeys([*(labels or ()), *(label for pair in pairs for label in pair)]))
        W = np.zeros((len(labels), len(labels)))
        for pair in pairs:
            a, b = map(labels.index, pair)
            W[a, b] = W[b, a] = 1.0
        np.fill_diagonal(W, 0.0)
        return W, labels
    try:
        W = np.array(table.toarray() if hasattr(table, "toarray") else table, dtype=np.float64, ndmin=2)
    except (TypeError, ValueError):
        W = np.full((1, 1), np.nan)
    if W.ndim != 2 or not np.isin(W, (0.0, 1.0)).all() or not np.array_equal(W, W.T) or np.diag(W).any():
        raise ValueError(
            "the graph must be a symmetric matrix of 0 and 1 with zeros on its diagonal (a data frame with labels on "
            f"both axes names the areas), pairs of labels, a dict of neighbours, or a GeoDataFrame; got "
            f"{shorten(graph)}."
        )
    return W, labels
