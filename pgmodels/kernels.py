"""Covariance functions of latent Gaussian processes; any callable ``(X, Z) -> matrix`` can be one too."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import fields
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float
from scipy.spatial.distance import pdist

from pgmodels.parameters import Parameter, as_parameter, is_parameter

Inputs = Array | np.ndarray

# Pairs of at most this many rows give the median distance: half a million distances, well below a second.
MEDIAN_ROWS = 1000
UNROLLED_COLUMNS = 32


class Kernel(eqx.Module):
    """A covariance function: ``kernel(X, Z)`` is the (n, m) matrix of prior covariances between two sets of rows.

    Kernels add and multiply. Hyperparameters are ``Parameter`` fields, and their values are the leaves of the pytree.
    """

    @abstractmethod
    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        """The covariances between the rows of X and those of Z. Raises ValueError before an open lengthscale is set."""

    @abstractmethod
    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        """The prior variances at the rows of X, without the matrix."""

    def resolve(self, X: Float[Inputs, "n d"]) -> "Kernel":
        """A copy in which every lengthscale left open (None) is the median distance between distinct rows of X."""
        parameters = jax.tree.leaves(self, is_leaf=is_parameter)
        if not any(is_parameter(p) and p.value is None for p in parameters):
            return self
        distance = median_distance(X)

        def settle(node: Any) -> Any:
            return node.with_value(distance) if is_parameter(node) and node.value is None else node

        return jax.tree.map(settle, self, is_leaf=is_parameter)

    def check(self, num_columns: int) -> None:
        """Raise ValueError where a hyperparameter given for each column does not have ``num_columns`` entries."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Kernel):
                value.check(num_columns)
            elif is_parameter(value) and np.shape(value.value) not in ((), (num_columns,)):
                raise ValueError(
                    f"{field.name} of {type(self).__name__} has shape {np.shape(value.value)}, but X has {num_columns} "
                    f"column(s): give one number, or a 1-D array of {num_columns} number(s), one for each column."
                )

    def __add__(self, other: Any) -> "Kernel":
        return Sum(self, as_kernel(other))

    def __mul__(self, other: Any) -> "Kernel":
        return Product(self, as_kernel(other))

    def __repr__(self) -> str:
        shown = [f"{f.name}={_show(v)}" for f in fields(self) if is_parameter(v := getattr(self, f.name))]
        return f"{type(self).__name__}({', '.join(shown)})"


class Stationary(Kernel):
    """A kernel of the scaled distance r = |x - z| / lengthscale; subclasses give its ``profile``.

    ``lengthscale`` is one number, an array with one number for each column, or None: the median Euclidean distance
    between distinct rows of X, set when data arrive.
    """

    variance: Parameter
    lengthscale: Parameter

    def __init__(self, variance: Any = 1.0, lengthscale: Any = None):
        self.variance = _scalar(variance, "variance", self)
        self.lengthscale = as_parameter(lengthscale, f"lengthscale of {type(self).__name__}", from_data=True)

    @abstractmethod
    def profile(self, squared: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """The correlation as a function of r²."""

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        if self.lengthscale.value is None:
            raise ValueError(
                f"lengthscale of {type(self).__name__} is None, to be set from the data: call "
                "kernel.resolve(X) first, or give a number."
            )
        lengthscale = jnp.asarray(self.lengthscale.value)
        return jnp.asarray(self.variance.value) * self.profile(_scaled_squared_distance(X, Z, lengthscale))

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        return _constant(X, self.variance)


@final
class RBF(Stationary):
    """The squared exponential kernel, variance · exp(-r²/2)."""

    def __init__(self, variance: Any = 1.0, lengthscale: Any = None):
        super().__init__(variance, lengthscale)

    def profile(self, squared: Float[Array, "n m"]) -> Float[Array, "n m"]:
        return jnp.exp(-0.5 * squared)


@final
class Matern12(Stationary):
    """The exponential kernel, variance · exp(-r) (Rasmussen and Williams 2006, section 4.2)."""

    def __init__(self, variance: Any = 1.0, lengthscale: Any = None):
        super().__init__(variance, lengthscale)

    def profile(self, squared: Float[Array, "n m"]) -> Float[Array, "n m"]:
        return jnp.exp(-_safe_sqrt(squared))


@final
class Matern32(Stationary):
    """The Matérn kernel of order 3/2, variance · (1 + s) exp(-s) with s = √3 r."""

    def __init__(self, variance: Any = 1.0, lengthscale: Any = None):
        super().__init__(variance, lengthscale)

    def profile(self, squared: Float[Array, "n m"]) -> Float[Array, "n m"]:
        s = _safe_sqrt(3.0 * squared)
        return (1.0 + s) * jnp.exp(-s)


@final
class Matern52(Stationary):
    """The Matérn kernel of order 5/2, variance · (1 + s + s²/3) exp(-s) with s = √5 r."""

    def __init__(self, variance: Any = 1.0, lengthscale: Any = None):
        super().__init__(variance, lengthscale)

    def profile(self, squared: Float[Array, "n m"]) -> Float[Array, "n m"]:
        s = _safe_sqrt(5.0 * squared)
        return (1.0 + s + s**2 / 3.0) * jnp.exp(-s)


@final
class RationalQuadratic(Stationary):
    """The rational quadratic kernel, variance · (1 + r²/(2 alpha))^(-alpha)."""

    alpha: Parameter

    def __init__(self, variance: Any = 1.0, lengthscale: Any = None, alpha: Any = 1.0):
        super().__init__(variance, lengthscale)
        self.alpha = _scalar(alpha, "alpha", self)

    def profile(self, squared: Float[Array, "n m"]) -> Float[Array, "n m"]:
        alpha = jnp.asarray(self.alpha.value)
        return jnp.exp(-alpha * jnp.log1p(squared / (2.0 * alpha)))


@final
class Periodic(Kernel):
    """The periodic kernel, variance · exp(-2 Σ_d sin²(π (x_d - z_d)/period) / lengthscale_d²) (MacKay 1998)."""

    variance: Parameter
    lengthscale: Parameter
    period: Parameter

    def __init__(self, variance: Any = 1.0, lengthscale: Any = 1.0, period: Any = 1.0):
        self.variance = _scalar(variance, "variance", self)
        self.lengthscale = as_parameter(lengthscale, "lengthscale of Periodic")
        self.period = _scalar(period, "period", self)

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        # |e^{2ia} - e^{2ib}|² = 4 sin²(a - b): the RBF kernel between points on one circle for each column.
        lengthscale = jnp.asarray(self.lengthscale.value)
        if lengthscale.ndim:
            lengthscale = jnp.concatenate([lengthscale, lengthscale])
        squared = _scaled_squared_distance(self._circles(X), self._circles(Z), lengthscale)
        return jnp.asarray(self.variance.value) * jnp.exp(-0.5 * squared)

    def _circles(self, X: Float[Inputs, "n d"]) -> Float[Array, "n 2d"]:
        angles = 2.0 * jnp.pi * jnp.asarray(X) / jnp.asarray(self.period.value)
        return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=1)

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        return _constant(X, self.variance)


@final
class Linear(Kernel):
    """The kernel of linear functions through the origin, Σ_d variance_d x_d z_d."""

    variance: Parameter

    def __init__(self, variance: Any = 1.0):
        self.variance = as_parameter(variance, "variance of Linear")

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        return (jnp.asarray(X) * jnp.asarray(self.variance.value)) @ jnp.asarray(Z).T

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        return jnp.sum(jnp.asarray(self.variance.value) * jnp.square(jnp.asarray(X)), axis=1)


@final
class Constant(Kernel):
    """The kernel of a constant function: the same covariance everywhere."""

    variance: Parameter

    def __init__(self, variance: Any = 1.0):
        self.variance = _scalar(variance, "variance", self)

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        return jnp.broadcast_to(jnp.asarray(self.variance.value), (X.shape[0], Z.shape[0]))

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        return _constant(X, self.variance)


@final
class White(Kernel):
    """Independent noise for each distinct row: ``variance`` where two rows are equal, 0 elsewhere.

    It is a function of the inputs alone, so duplicated rows share their noise, in one data set and across two.
    """

    variance: Parameter

    def __init__(self, variance: Any = 1.0):
        self.variance = _scalar(variance, "variance", self)

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        equal = squared_distance(jnp.asarray(X), jnp.asarray(Z)) == 0.0
        return jnp.where(equal, jnp.asarray(self.variance.value), 0.0)

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        return _constant(X, self.variance)


@final
class Sum(Kernel):
    """The sum of two kernels: the kernel of a sum of independent processes."""

    left: Kernel
    right: Kernel

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        return self.left(X, Z) + self.right(X, Z)

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        return self.left.diagonal(X) + self.right.diagonal(X)

    def __repr__(self) -> str:
        return f"{self.left!r} + {self.right!r}"


@final
class Product(Kernel):
    """The product of two kernels, entry by entry."""

    left: Kernel
    right: Kernel

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        return self.left(X, Z) * self.right(X, Z)

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        return self.left.diagonal(X) * self.right.diagonal(X)

    def __repr__(self) -> str:
        return " * ".join(f"({k!r})" if isinstance(k, Sum) else repr(k) for k in (self.left, self.right))


@final
class CallableKernel(Kernel):
    """Any callable ``(X, Z) -> matrix`` written in JAX, as a kernel without hyperparameters.

    A callable that is itself a pytree (a module of another library, a ``jax.tree_util.Partial``) keeps its leaves.
    """

    function: Callable[[Any, Any], Any]

    def __init__(self, function: Callable[[Any, Any], Any]):
        if not callable(function):
            raise ValueError(f"CallableKernel needs a callable (X, Z) -> matrix; got {function!r}.")
        # Functions among the leaves, often the only one, are no data to compiled code.
        self.function = jax.tree.map(lambda leaf: jax.tree_util.Partial(leaf) if callable(leaf) else leaf, function)

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        matrix = jnp.asarray(self.function(X, Z))
        if matrix.shape != (X.shape[0], Z.shape[0]):
            raise ValueError(
                f"{self!r} returned shape {matrix.shape} for X with {X.shape[0]} row(s) and Z with {Z.shape[0]}: "
                f"expected {(X.shape[0], Z.shape[0])}, the covariance of each row of X with each row of Z."
            )
        return matrix

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        return jax.vmap(lambda x: self(x[None], x[None])[0, 0])(jnp.asarray(X))

    def __repr__(self) -> str:
        inner = self.function.func if isinstance(self.function, jax.tree_util.Partial) else self.function
        return f"CallableKernel({getattr(inner, '__name__', type(inner).__name__)})"


def as_kernel(obj: Any) -> Kernel:
    """A kernel as it is, or a callable ``(X, Z) -> matrix`` as a kernel. Raises ValueError for anything else."""
    if isinstance(obj, Kernel):
        return obj
    if callable(obj) and not isinstance(obj, type):
        return CallableKernel(obj)
    hint = f" Did you mean {obj.__name__}()?" if isinstance(obj, type) and issubclass(obj, Kernel) else ""
    raise ValueError(f"A kernel must be a pgmodels kernel or a callable (X, Z) -> matrix; got {obj!r}.{hint}")


def median_distance(X: Float[Inputs, "n d"]) -> np.ndarray:
    """The median Euclidean distance between distinct rows of X, 1.0 where there are none.

    Of more than ``MEDIAN_ROWS`` rows, that many evenly spaced ones are used.
    """
    rows = np.asarray(X, dtype=np.float64)
    if len(rows) > MEDIAN_ROWS:
        rows = rows[np.linspace(0, len(rows) - 1, MEDIAN_ROWS).astype(int)]
    distances = pdist(rows)
    distances = distances[distances > 0]
    return np.asarray(np.median(distances) if distances.size else 1.0)


@jax.custom_jvp
@jax.jit
def squared_distance(X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """Squared Euclidean distances, exactly 0 between equal rows, in the memory of the result."""

    start = jnp.zeros((X.shape[0], Z.shape[0]), jnp.result_type(X, Z, jnp.float32))
    # A fused chain is two to three times faster than a loop, and as long to compile as there are columns.
    if X.shape[1] <= UNROLLED_COLUMNS:
        return sum((jnp.square(x[:, None] - z[None, :]) for x, z in zip(X.T, Z.T, strict=True)), start)
    return jax.lax.scan(lambda total, c: (total + jnp.square(c[0][:, None] - c[1][None, :]), None), start, (X.T, Z.T))[
        0
    ]


@squared_distance.defjvp
def _squared_distance_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    # d|x - z|² = 2 (x - z)·(dx - dz), in products of matrices: reverse mode then stores no (n, m, d) array.
    (X, Z), (dX, dZ) = primals, tangents
    tangent = jnp.sum(X * dX, 1)[:, None] - X @ dZ.T - dX @ Z.T + jnp.sum(Z * dZ, 1)[None, :]
    return squared_distance(X, Z), 2.0 * tangent


def _scaled_squared_distance(X: Inputs, Z: Inputs, lengthscale: Array) -> Float[Array, "n m"]:
    """Squared distances in units of one lengthscale, or of one for each column."""
    X, Z = jnp.asarray(X), jnp.asarray(Z)
    if lengthscale.ndim:
        return squared_distance(X / lengthscale, Z / lengthscale)
    return squared_distance(X, Z) / lengthscale**2


def _safe_sqrt(squared: Array) -> Array:
    """The square root, with derivative 0 at 0: what the derivative in a lengthscale is there."""
    positive = squared > 0.0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, squared, 1.0)), 0.0)


def _constant(X: Inputs, variance: Parameter) -> Float[Array, " n"]:
    return jnp.broadcast_to(jnp.asarray(variance.value), (X.shape[0],))


def _scalar(value: Any, name: str, owner: Kernel) -> Parameter:
    """A hyperparameter that is one number."""
    label = f"{name} of {type(owner).__name__}"
    parameter = as_parameter(value, label)
    if np.ndim(parameter.value):
        raise ValueError(f"{label} must be one number; got an array of shape {np.shape(parameter.value)}.")
    return parameter


def _show(parameter: Parameter) -> str:
    value = parameter.value
    concrete = value is not None and not isinstance(value, jax.core.Tracer)
    text = repr(np.asarray(value).tolist()) if concrete else str(value)
    return f"Fixed({text})" if parameter.fixed else text
