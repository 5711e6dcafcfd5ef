"""Kernels: the base class, distances, spectra and limits on inputs."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import product
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from pgmodels.data.arrays import distinct_rows
from pgmodels.kernels.state_space import ProductState, StateSpace, SumState
from pgmodels.parameters.parameter import (
    Fixed,
    Hyperparameter,
    Parameter,
    as_declared,
    as_parameter,
    bare_arrays,
    is_parameter,
)
from pgmodels.runtime.jit import compiled, double_outside_jit, is_traced
from pgmodels.runtime.messages import shorten
from pgmodels.runtime.precision import Module, PickledByValue, as_array
from pgmodels.runtime.seeds import is_distribution


def unlimited(num_columns: int) -> Float[np.ndarray, "d 2"]:
    """Return the limits of columns that may have any value."""
    return np.tile([-np.inf, np.inf], (num_columns, 1))


def intersection(limits: Sequence[Float[np.ndarray, "d 2"]]) -> Float[np.ndarray, "d 2"]:
    """Return the limits of the values that are within all given limits."""
    lowest, highest = np.moveaxis(np.stack(limits), -1, 0)
    return np.stack([lowest.max(axis=0), highest.min(axis=0)], axis=1)


Inputs = Array | np.ndarray
T = TypeVar("T")

# How a kernel uses columns of X. By default a user's kernel only compares rows for equality. A kernel of distances uses
# the values. A kernel of levels uses the values as indices, and a new level has no index.
Use = Literal["equality", "values", "levels"]


def median_distance(X: Float[Inputs, "n d"]) -> np.ndarray:
    """Return the median Euclidean distance between distinct rows of X, or 1.0 if there is only one row.

    More than 1,000 rows are reduced to 1,000 evenly spaced ones: half a million pairs cost well below a second.
    """
    most_rows = 1000
    rows = np.asarray(X, dtype=np.float64)
    rows = rows[distinct_rows(rows)[0]]
    if len(rows) > most_rows:
        rows = rows[np.linspace(0, len(rows) - 1, most_rows).astype(int)]
    # SciPy's pdist costs more to import. Differences, not matrix products: an outlier would drown all other rows.
    distances = np.concatenate([np.linalg.norm(rows[i:] - row, axis=1) for i, row in enumerate(rows)])
    distances = distances[distances > 0]
    return np.asarray(np.median(distances) if distances.size else 1.0)


@jax.custom_jvp
@compiled
def squared_distance(X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """Return squared Euclidean distances, exactly 0 between equal rows, without memory beyond the result."""

    start = jnp.zeros((X.shape[0], Z.shape[0]), jnp.result_type(X, Z, jnp.float32))
    # An unrolled sum is two to three times faster than a loop. Its compile time grows with the number of columns.
    most_unrolled = 32
    if X.shape[1] <= most_unrolled:
        return sum((jnp.square(x[:, None] - z[None, :]) for x, z in zip(X.T, Z.T, strict=True)), start)
    columns = X.T, Z.T
    return jax.lax.scan(lambda total, c: (total + jnp.square(c[0][:, None] - c[1][None, :]), None), start, columns)[0]


@squared_distance.defjvp
def _squared_distance_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    # d|x - z|² = 2 (x - z)·(dx - dz), written as matrix products: reverse mode then stores no (n, m, d) array.
    (X, Z), (dX, dZ) = primals, tangents
    # Centre first, since the products would cancel far from the origin.
    X, Z = X - Z[:1], Z - Z[:1]
    tangent = jnp.sum(X * dX, 1)[:, None] - X @ dZ.T - dX @ Z.T + jnp.sum(Z * dZ, 1)[None, :]
    return squared_distance(X, Z), 2.0 * tangent


def scaled_squared_distance(X: Inputs, Z: Inputs, lengthscale: Array) -> Float[Array, "n m"]:
    """Return squared distances, scaled by one lengthscale or by one per column."""
    X, Z = as_array(X), as_array(Z)
    if lengthscale.ndim:
        # Centre first: far from the origin, the rounding error of the division may exceed the distance.
        X, Z = X - Z[:1], Z - Z[:1]
        return squared_distance(X / lengthscale, Z / lengthscale)
    return squared_distance(X, Z) / lengthscale**2


class Spectrum(NamedTuple):
    """The spectral density of a stationary function of some columns.

    ``density`` is a function of angular frequencies (m, d), in radians per unit of each column. The integral is
    (2 pi)^d times the variance. ``lengthscale`` (d,) has the unit of each column. A constant has no columns, and its
    density is its variance.
    """

    density: Callable[[Float[Array, "m d"]], Float[Array, " m"]]
    lengthscale: Float[Array, " d"]


# The spectra of independent functions whose sum is the latent, by the columns of each function.
Spectra = dict[tuple[int, ...], Spectrum]


def added(one: Spectra, other: Spectra) -> Spectra:
    """Return the spectra of a sum, adding the densities of the same columns."""

    def total(first: Spectrum, second: Spectrum) -> Spectrum:
        lengthscale = jnp.maximum(first.lengthscale, second.lengthscale)
        return Spectrum(lambda frequencies: first.density(frequencies) + second.density(frequencies), lengthscale)

    return one | other | {columns: total(one[columns], other[columns]) for columns in one.keys() & other.keys()}


def multiplied(one: Spectra, other: Spectra) -> Spectra | None:
    """Return the spectra of a product of functions, or None if two non-constant functions share columns."""
    total: Spectra = {}
    for first, first_spectrum in one.items():
        for second, second_spectrum in other.items():
            if set(first) & set(second):
                return None
            total = added(total, _product(first, first_spectrum, second, second_spectrum))
    return total


def in_columns(spectra: Spectra, columns: tuple[int, ...]) -> Spectra:
    """Return the spectra with each column i replaced by the column ``columns[i]`` of X."""
    return dict(_sorted(tuple(columns[i] for i in term), spectrum) for term, spectrum in spectra.items())


def _product(first: tuple[int, ...], one: Spectrum, second: tuple[int, ...], other: Spectrum) -> Spectra:
    split = len(first)

    def density(frequencies: Array) -> Array:
        return one.density(frequencies[:, :split]) * other.density(frequencies[:, split:])

    lengthscale = jnp.concatenate([one.lengthscale, other.lengthscale])
    return dict([_sorted(first + second, Spectrum(density, lengthscale))])


def _sorted(columns: tuple[int, ...], spectrum: Spectrum) -> tuple[tuple[int, ...], Spectrum]:
    """Return the columns in increasing order, and the spectrum as a function of frequencies in that order."""
    order = np.argsort(np.array(columns, int), kind="stable")
    places = np.argsort(order)
    density = lambda frequencies: spectrum.density(frequencies[:, places])  # noqa: E731
    return tuple(columns[i] for i in order), Spectrum(density, spectrum.lengthscale[order])


class Kernel(Module):
    """A covariance function: ``kernel(X, Z)`` is the (n, m) matrix of prior covariances between two sets of rows.

    Kernels add and multiply. A hyperparameter is a field declared as ``pgm.Parameter``. A number, an array of any
    shape, ``pgm.Fixed``, a NumPyro distribution or a Parameter is converted to a Parameter, and the kernel reads its
    ``.value``. A default Parameter declares the constraint, as in
    ``shift: pgm.Parameter = pgm.Parameter(0.0, positive=False)``. Other fields are kernels or static. A direct call,
    outside of JAX tracing, computes in double precision.
    """

    # Whether the kernel is positive semidefinite if its components are. The matrices of other kernels are checked at
    # each new set of inputs.
    positive_semidefinite: ClassVar[bool] = False
    # How the kernel uses the columns that it reads.
    column_use: ClassVar[Use] = "equality"
    # Whether X must have one column, and which hyperparameters may have one entry per column.
    of_one_column: ClassVar[bool] = False
    by_column: ClassVar[tuple[str, ...]] = ()
    # The hyperparameters that ``with_data_values`` sets.
    set_by_data: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in {"__call__", "diagonal"} & set(vars(cls)):
            setattr(cls, name, double_outside_jit(vars(cls)[name]))

    def __check_init__(self) -> None:
        for field in fields(self):
            kind = field.type
            if kind is Parameter or (isinstance(kind, str) and kind.rpartition(".")[2] == "Parameter"):
                declared = field.default if isinstance(field.default, Parameter) else None
                name = f"{field.name} of {type(self).__name__}"
                vars(self)[field.name] = as_declared(getattr(self, field.name), declared, name)

    @abstractmethod
    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        """Return the covariances between the rows of X and of Z. Raise ValueError if a lengthscale is None."""

    @abstractmethod
    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        """Return the prior variances at the rows of X, without computing the matrix."""

    def reads(self, num_columns: int, use: Use | None = None) -> tuple[int, ...]:
        """Return the columns of X that the kernel reads, all or with one use; rows equal in them share a latent."""
        return tuple(range(num_columns)) if use in (None, self.column_use) else ()

    def terms(self, num_columns: int) -> tuple[tuple[int, ...], ...]:
        """Return the columns of X that each of the independent functions reads whose sum is the latent."""
        return (self.reads(num_columns),)

    def rank_at(self, X: Float[Inputs, "n d"]) -> int:
        """Return an upper bound of the rank of the matrix at X: the number of rows, or a known number of functions."""
        features, levels = jax.eval_shape(self.features, X), np.asarray(X)[:, self.level_columns(X.shape[1])]
        return len(X) if features is None else min(len(X), features.shape[1] * len(distinct_rows(levels)[0]))

    def level_columns(self, num_columns: int) -> tuple[int, ...]:
        """Return the columns whose levels have independent latents, each level with its own coefficients.

        The result is empty if there are no such columns.
        """
        return ()

    def features(self, X: Float[Inputs, "n d"]) -> Float[Array, "n r"] | None:
        """Return F with kernel(x, z) = F(x) F(z)^T, or None. It holds for x and z of one level of ``level_columns``.

        The latent is F v with coefficients v ~ N(0, I), which are independent between levels.
        """
        return None

    def to_state_space(self) -> StateSpace:
        """Return the kernel of one column as a Markov process whose first entry is the latent.

        Raises ValueError if the kernel has no such form, or a lengthscale is None.
        """
        raise ValueError(
            f"{self!r} has no state-space form, which pgm.Markov() needs: use Matern12, Matern32, Matern52, Periodic, "
            "Cosine, RandomWalk, Constant, White or Linear, their sums, their products without RandomWalk and Linear, "
            "or another form of the GP, such as pgm.Dense()."
        )

    def spectra(self, num_columns: int) -> Spectra:
        """Return the spectral densities of the independent functions whose sum is the latent, by their columns of X.

        Raises ValueError if the kernel has none, or a lengthscale is None.
        """
        raise ValueError(
            f"{self!r} has no spectral density, which pgm.Hilbert() needs: use RBF, Matern12, Matern32, Matern52, "
            "Constant, their sums and their products over different columns, or another form of the GP, such as "
            "pgm.Inducing(300)."
        )

    def resolve(self, X: Float[Inputs, "n d"]) -> "Kernel":
        """Return a copy in which each lengthscale of None is the median distance between distinct rows of X.

        A kernel of selected columns uses the distance in these columns. ``covering`` sets limits of None.
        """
        if not any(is_parameter(p) and p.value is None for p in jax.tree.leaves(self, is_leaf=is_parameter)):
            return self
        inner = covering(self, X).map_components(lambda kernel, inputs: kernel.resolve(inputs), X)
        return _filled(inner, lambda: median_distance(X))

    def map_components(self, change: "Change", X: Float[Inputs, "n d"]) -> "Kernel":
        """Return the kernel with each component replaced by ``change(component, inputs of the component)``."""

        def is_component(node: object) -> bool:
            return isinstance(node, Kernel) and node is not self

        return jax.tree.map(lambda node: change(node, X) if is_component(node) else node, self, is_leaf=is_component)

    def scaled(self, factor: float) -> "Kernel":
        """Return the kernel times a factor, for start values; unchanged if no scale is learned without a prior.

        The default scales the hyperparameter ``variance``. Override it for kernels with another scale.
        """
        variance = getattr(self, "variance", None)
        if not isinstance(variance, Parameter) or not variance.is_free:
            return self
        return with_parameter(self, "variance", variance.value * factor)

    def check(self, num_columns: int) -> None:
        """Raise ValueError if a field holds numbers but is neither declared as a Parameter nor static.

        A kernel with hyperparameters per column also checks that they have ``num_columns`` entries.
        """
        for field in fields(self):
            value, name = getattr(self, field.name), f"{field.name} of {type(self).__name__}"
            if isinstance(value, Kernel):
                value.check(num_columns)
            elif is_parameter(value) or field.metadata.get("static", False):
                continue
            elif isinstance(value, (bool, int, str, np.integer, np.bool_)):
                raise ValueError(
                    f"{name} is {value!r}, a setting, not a hyperparameter: declare the field as "
                    f"{field.name}: {type(value).__name__} = equinox.field(static=True)."
                )
            elif any(map(_is_number, jax.tree.leaves(value, is_leaf=_is_declared))):
                raise ValueError(
                    f"{name} holds numbers that would not be learned, {eqx.tree_pformat(value)}: declare the field as "
                    f"{field.name}: pgm.Parameter, read self.{field.name}.value in the kernel, and pass "
                    "pgm.Fixed(number) to keep it fixed. A module of arrays, such as a neural network, need not be a "
                    "pgm.Kernel: pass an equinox.Module with __call__(self, X, Z)."
                )
        for name in self.by_column:
            shape = np.shape(getattr(self, name).value)
            if shape not in ((), (num_columns,)):
                raise ValueError(
                    f"{name} of {type(self).__name__} has shape {shape}, but X has {num_columns} column(s): give one "
                    f"number, or a 1-D array of {num_columns} number(s), one for each column."
                )
        if self.of_one_column and num_columns != 1:
            kind, call = type(self).__name__, f"pgm.{type(self).__name__}()"
            raise ValueError(f"{kind} reads one column; got {num_columns}. Use pgm.On({call}, [column]).")

    def check_values(self, X: np.ndarray, name: str) -> None:
        """Raise ValueError if the kernel is undefined at a value of X (n, d), whose name is ``name``."""
        for kernel, inputs in components(self, X):
            kernel.check_values(np.asarray(inputs), name)

    def limits(self, num_columns: int) -> Float[np.ndarray, "d 2"]:
        """The lowest and highest value of each column of X at which the kernel is defined."""
        every = [unlimited(num_columns)]
        # The inputs of a component are the numbers of the columns that it reads, one row for each item of a pair.
        for kernel, columns in components(self, np.arange(float(num_columns))[None]):
            for numbers in columns.astype(int):
                within = unlimited(num_columns)
                within[numbers] = kernel.limits(len(numbers))
                every.append(within)
        return intersection(every)

    def __add__(self, other: "Kernel | Callable[[Any, Any], Any]") -> "Kernel":
        return Sum(self, as_kernel(other))

    def __mul__(self, other: "Kernel | Callable[[Any, Any], Any]") -> "Kernel":
        return Product(self, as_kernel(other))

    def __repr__(self) -> str:
        shown = [f"{f.name}={v!r}" for f in fields(self) if is_parameter(v := getattr(self, f.name))]
        return f"{type(self).__name__}({', '.join(shown)})"


Change = Callable[[Kernel, Inputs], Kernel]


def components(kernel: Kernel, X: Float[Inputs, "n d"]) -> list[tuple[Kernel, Inputs]]:
    """Return the component kernels of a kernel, and the inputs of each."""
    found: list[tuple[Kernel, Inputs]] = []

    def collect(component: Kernel, inputs: Inputs) -> Kernel:
        found.append((component, inputs))
        return component

    kernel.map_components(collect, X)
    return found


def is_positive_semidefinite(kernel: Kernel) -> bool:
    """Return whether a kernel is positive semidefinite at any inputs: one of this package, or a combination."""
    values = (getattr(kernel, field.name) for field in fields(kernel))
    return kernel.positive_semidefinite and all(is_positive_semidefinite(v) for v in values if isinstance(v, Kernel))


def with_parameter(kernel: Kernel, name: str, value: ArrayLike) -> Kernel:
    """Return the kernel with another value of a hyperparameter."""
    parameter = getattr(kernel, name).with_value(value)
    return eqx.tree_at(lambda changed: getattr(changed, name), kernel, parameter, is_leaf=is_parameter)


def with_data_values(
    kernel: Kernel, name: str, X: Float[Inputs, "n d"], value: Callable[[Parameter, np.ndarray], Any]
) -> Kernel:
    """Return the kernel with each "lengthscale", "period" or "start" set to ``value(hyperparameter, inputs)``.

    ``inputs`` are the inputs of the component kernel. A hyperparameter is unchanged if the value is None.
    """
    kernel = kernel.map_components(lambda component, inputs: with_data_values(component, name, inputs, value), X)
    chosen = value(getattr(kernel, name), np.asarray(X, dtype=np.float64)) if name in kernel.set_by_data else None
    return kernel if chosen is None else with_parameter(kernel, name, chosen)


def covering(kernel: Kernel, X: Float[Inputs, "n d"]) -> Kernel:
    """Return the kernel with limits of None set from the data, so that all rows of X are within them."""
    return with_data_values(kernel, "start", X, lambda start, x: np.min(x) if start.value is None else None)


class OfVariance(Kernel):
    """A kernel with the same ``variance`` at all rows."""

    positive_semidefinite: ClassVar[bool] = True

    variance: Parameter

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        if is_traced():
            return jnp.broadcast_to(as_array(self.variance.value), (X.shape[0],))
        return as_array(np.broadcast_to(np.asarray(self.variance.value), (X.shape[0],)))


class _Pair(Kernel):
    """A kernel made of two kernels."""

    positive_semidefinite: ClassVar[bool] = True

    left: Kernel
    right: Kernel

    def reads(self, num_columns: int, use: Use | None = None) -> tuple[int, ...]:
        return tuple(sorted({*self.left.reads(num_columns, use), *self.right.reads(num_columns, use)}))


@final
class Sum(_Pair):
    """The sum of two kernels, for a sum of independent processes."""

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        return self.left(X, Z) + self.right(X, Z)

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        return self.left.diagonal(X) + self.right.diagonal(X)

    def scaled(self, factor: float) -> "Sum":
        return Sum(self.left.scaled(factor), self.right.scaled(factor))

    def terms(self, num_columns: int) -> tuple[tuple[int, ...], ...]:
        return tuple(dict.fromkeys((*self.left.terms(num_columns), *self.right.terms(num_columns))))

    def level_columns(self, num_columns: int) -> tuple[int, ...]:
        left, right = (kernel.level_columns(num_columns) for kernel in (self.left, self.right))
        return left if left == right else ()

    def rank_at(self, X: Float[Inputs, "n d"]) -> int:
        return min(len(X), self.left.rank_at(X) + self.right.rank_at(X))

    def features(self, X: Float[Inputs, "n d"]) -> Float[Array, "n r"] | None:
        left, right = self.left.features(X), self.right.features(X)
        levels, others = (kernel.level_columns(X.shape[1]) for kernel in (self.left, self.right))
        return None if left is None or right is None or levels != others else jnp.concatenate([left, right], axis=1)

    def to_state_space(self) -> StateSpace:
        return SumState(self.left.to_state_space(), self.right.to_state_space())

    def spectra(self, num_columns: int) -> Spectra:
        return added(self.left.spectra(num_columns), self.right.spectra(num_columns))

    def __repr__(self) -> str:
        return f"{self.left!r} + {self.right!r}"


@final
class Product(_Pair):
    """The elementwise product of two kernels."""

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        return self.left(X, Z) * self.right(X, Z)

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        return self.left.diagonal(X) * self.right.diagonal(X)

    def scaled(self, factor: float) -> "Product":
        if not eqx.tree_equal(lhs := self.left.scaled(factor), self.left):
            return Product(lhs, self.right)
        return Product(self.left, self.right.scaled(factor))

    def terms(self, num_columns: int) -> tuple[tuple[int, ...], ...]:
        pairs = product(self.left.terms(num_columns), self.right.terms(num_columns))
        return tuple(dict.fromkeys(tuple(sorted({*one, *other})) for one, other in pairs))

    def level_columns(self, num_columns: int) -> tuple[int, ...]:
        return tuple(sorted({*self.left.level_columns(num_columns), *self.right.level_columns(num_columns)}))

    def rank_at(self, X: Float[Inputs, "n d"]) -> int:
        return min(len(X), self.left.rank_at(X) * self.right.rank_at(X))

    def features(self, X: Float[Inputs, "n d"]) -> Float[Array, "n r"] | None:
        left, right = self.left.features(X), self.right.features(X)
        if left is None or right is None:
            return None
        return (left[:, :, None] * right[:, None, :]).reshape(len(left), -1)

    def to_state_space(self) -> StateSpace:
        first, second = self.left.to_state_space(), self.right.to_state_space()
        if not (first.is_stationary and second.is_stationary):
            raise ValueError(
                f"{self!r} has no state-space form, which pgm.Markov() needs: a product may not contain Linear or "
                "RandomWalk. Use another form of the GP, such as pgm.Dense()."
            )
        return ProductState(first, second)

    def spectra(self, num_columns: int) -> Spectra:
        spectra = multiplied(self.left.spectra(num_columns), self.right.spectra(num_columns))
        return super().spectra(num_columns) if spectra is None else spectra

    def __repr__(self) -> str:
        return " * ".join(f"({k!r})" if isinstance(k, Sum) else repr(k) for k in (self.left, self.right))


@final
class CallableKernel(Kernel):
    """Any callable ``(X, Z) -> matrix`` written in JAX, as a kernel.

    If the callable is a pytree (an equinox module, a ``jax.tree_util.Partial``), its floating-point arrays are
    unconstrained hyperparameters. NumPyro distributions, Parameters and Fixed among its leaves are hyperparameters too;
    the callable reads them as arrays. Python numbers are constants.
    """

    function: Callable[[Any, Any], Any]

    def __init__(self, function: Callable[[Any, Any], Any]):
        if not callable(function):
            raise ValueError(f"CallableKernel needs a callable (X, Z) -> matrix; got {function!r}.")
        name = _name(function)

        def read(path: Any, leaf: Any) -> Any:
            label = f"{jax.tree_util.keystr(path).lstrip('.')} of {name}"
            if eqx.is_inexact_array(leaf):
                return as_parameter(leaf, label, positive=False)
            if _is_declared(leaf):
                return as_declared(leaf, None, label)
            # Functions as pytrees without leaves: compiled code takes only arrays as leaves.
            return jax.tree_util.Partial(leaf) if callable(leaf) else leaf

        self.function = jax.tree_util.tree_map_with_path(read, function, is_leaf=_is_declared)

    def __getstate__(self) -> dict[str, Any]:
        return {"function": PickledByValue(self.function)}

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        arrays = jax.tree.map(
            lambda p: as_array(p.value) if is_parameter(p) else p, self.function, is_leaf=is_parameter
        )
        matrix = as_array(arrays(X, Z))
        if matrix.shape != (X.shape[0], Z.shape[0]):
            raise ValueError(
                f"{self!r} returned shape {matrix.shape} for X with {X.shape[0]} row(s) and Z with {Z.shape[0]}: "
                f"expected {(X.shape[0], Z.shape[0])}, the covariance of each row of X with each row of Z."
            )
        return matrix

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        return jax.vmap(lambda x: self(x[None], x[None])[0, 0])(as_array(X))

    def check(self, num_columns: int) -> None:
        pass

    def __repr__(self) -> str:
        return f"CallableKernel({_name(self.function)})"


def _name(function: object) -> str:
    inner = function.func if isinstance(function, jax.tree_util.Partial) else function
    return getattr(inner, "__name__", type(inner).__name__)


def _is_declared(node: object) -> bool:
    return isinstance(node, (Parameter, Fixed)) or is_distribution(node)


def _is_number(leaf: object) -> bool:
    """Return whether a leaf holds floating-point numbers, which a user may expect to be learned."""
    return _is_declared(leaf) or isinstance(leaf, float) or eqx.is_inexact_array(leaf)


def as_kernel(obj: Any) -> Kernel:
    """Return a kernel unchanged, or a callable ``(X, Z) -> matrix`` as a kernel. Raise ValueError otherwise."""
    if isinstance(obj, Kernel):
        return obj
    if callable(obj) and not isinstance(obj, type):
        return CallableKernel(obj)
    hint = f" Did you mean {obj.__name__}()?" if isinstance(obj, type) and issubclass(obj, Kernel) else ""
    raise ValueError(f"A kernel must be a pgmodels kernel or a callable (X, Z) -> matrix; got {shorten(obj)}.{hint}")


def with_values(kernel: T) -> T:
    """Return the kernel with its hyperparameters as arrays, and 1 for each value of None."""
    return bare_arrays(_filled(kernel, lambda: 1.0))


def _filled(kernel: T, value: Callable[[], ArrayLike]) -> T:
    fill = lambda p: p.with_value(value()) if is_parameter(p) and p.value is None else p  # noqa: E731
    return jax.tree.map(fill, kernel, is_leaf=is_parameter)


def check_traced(kernel: Kernel, num_columns: int) -> None:
    """Raise ValueError if a kernel cannot be compiled, or if its shape is not (n, m)."""
    values = with_values(kernel)
    X, Z = (jax.ShapeDtypeStruct((rows, num_columns), jnp.result_type(float)) for rows in (3, 2))
    try:
        matrix, diagonal = jax.eval_shape(_covariances, values, X, Z)
    except ValueError:
        raise
    except Exception as error:
        leaves, _ = jax.tree_util.tree_flatten_with_path(kernel, is_leaf=is_parameter)
        arrays = [(path, leaf.value) for path, leaf in leaves if is_parameter(leaf) and np.ndim(leaf.value)]
        shapes = [f"{jax.tree_util.keystr(path).lstrip('.')} has shape {np.shape(value)}" for path, value in arrays]
        remedy = f"It must accept X (n, d) and Z (m, d) and return the (n, m) matrix{'; ' * bool(shapes)}"
        remedy += f"{', '.join(shapes)}."
        if isinstance(error, jax.errors.JAXTypeError):
            remedy = "It needs concrete array values: write it with jax.numpy instead of NumPy, and jnp.where for if."
        raise ValueError(f"{kernel!r} cannot be compiled ({type(error).__name__}). {remedy}") from error
    if (getattr(matrix, "shape", None), getattr(diagonal, "shape", None)) != ((3, 2), (3,)):
        raise ValueError(
            f"{kernel!r} must return the (n, m) covariances between the rows of X and of Z, and (n,) as its diagonal; "
            f"for 3 and 2 rows it returned {matrix} and {diagonal}."
        )


def _covariances(kernel: Kernel, X: Array, Z: Array) -> tuple[Array, Array]:
    """Return the traced function of ``check_traced``. It is shared, so kernels of equal structure are traced once."""
    return kernel(X, Z), kernel.diagonal(X)


def scalar(value: Hyperparameter, name: str, owner: Kernel) -> Parameter:
    """Return a hyperparameter that must be one number."""
    label = f"{name} of {type(owner).__name__}"
    parameter = as_parameter(value, label)
    if np.ndim(parameter.value):
        raise ValueError(f"{label} must be one number; got an array of shape {np.shape(parameter.value)}.")
    return parameter
