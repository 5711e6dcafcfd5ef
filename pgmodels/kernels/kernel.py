"""What a kernel is, and how kernels combine; any callable ``(X, Z) -> matrix`` can be one too."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import Field, fields
from typing import Any, ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import checkify
from jaxtyping import Float
from numpyro.distributions import Distribution

from pgmodels.kernels.distance import Inputs, median_distance
from pgmodels.parameters.parameter import Fixed, Parameter, as_declared, as_parameter, bare, is_parameter
from pgmodels.runtime.jit import compiled, double_outside_jit
from pgmodels.runtime.pickling import Module, PickledByValue
from pgmodels.runtime.x64 import as_array


class Kernel(Module):
    """A covariance function: ``kernel(X, Z)`` is the (n, m) matrix of prior covariances between two sets of rows.

    Kernels add and multiply. Hyperparameters are fields declared as ``pgm.Parameter``: a number, an array of any shape,
    ``pgm.Fixed``, a NumPyro distribution or a Parameter given for one is read as a Parameter, and the kernel takes its
    ``.value``. A default that is a Parameter says what its values are, as in
    ``shift: pgm.Parameter = pgm.Parameter(0.0, positive=False)``. Other fields are kernels, or static. Called by hand,
    outside what JAX traces, it computes in double precision.
    """

    # Whether it is a covariance function of any rows, where the kernels that it is made of are; others are looked at
    # wherever they are evaluated.
    known: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in {"__call__", "diagonal"} & set(vars(cls)):
            setattr(cls, name, double_outside_jit(vars(cls)[name]))

    @property
    def is_known(self) -> bool:
        """Whether it is a covariance function of any rows, as kernels of the package and what is made of them are."""
        inside = (getattr(self, field.name) for field in fields(self))
        return self.known and all(kernel.is_known for kernel in inside if isinstance(kernel, Kernel))

    def __check_init__(self) -> None:
        for field in fields(self):
            if _declares_parameter(field):
                declared = field.default if isinstance(field.default, Parameter) else None
                name = f"{field.name} of {type(self).__name__}"
                vars(self)[field.name] = as_declared(getattr(self, field.name), declared, name)

    @abstractmethod
    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        """The covariances between the rows of X and those of Z. Raises ValueError before an open lengthscale is set."""

    @abstractmethod
    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        """The prior variances at the rows of X, without the matrix."""

    def reads(self, num_columns: int) -> tuple[int, ...]:
        """The columns of X on which it depends: rows that agree in them have one latent."""
        return tuple(range(num_columns))

    def resolve(self, X: Float[Inputs, "n d"]) -> "Kernel":
        """A copy in which every lengthscale left open (None) is the median distance between distinct rows of X.

        A kernel of some columns takes the distance over these.
        """
        parameters = jax.tree.leaves(self, is_leaf=is_parameter)
        if not any(is_parameter(p) and p.value is None for p in parameters):
            return self

        def settle(node: Any) -> Any:
            if isinstance(node, Kernel):
                return node.resolve(X)
            return node.with_value(median_distance(X)) if is_parameter(node) and node.value is None else node

        def is_part(node: Any) -> bool:
            return is_parameter(node) or (isinstance(node, Kernel) and node is not self)

        return jax.tree.map(settle, self, is_leaf=is_part)

    def check(self, num_columns: int) -> None:
        """Raise ValueError where a field is not one that compiled code takes, or that nothing would learn.

        A kernel whose hyperparameters may be given for each column checks their ``num_columns`` entries.
        """
        for field in fields(self):
            value, name = getattr(self, field.name), f"{field.name} of {type(self).__name__}"
            if isinstance(value, Kernel):
                value.check(num_columns)
            elif is_parameter(value) or field.metadata.get("static", False):
                continue
            elif _is_setting(value):
                raise ValueError(
                    f"{name} is {value!r}, a setting and no hyperparameter: declare the field as "
                    f"{field.name}: {type(value).__name__} = equinox.field(static=True)."
                )
            elif any(_is_number(leaf) for leaf in jax.tree.leaves(value, is_leaf=_is_given)):
                raise ValueError(
                    f"{name} holds numbers that nothing would learn, {eqx.tree_pformat(value)}: declare the field as "
                    f"{field.name}: pgm.Parameter, of which the kernel reads self.{field.name}.value, and give it "
                    "pgm.Fixed(number) where it is to stay. A module with arrays of its own, such as a network, is a "
                    "kernel as it is: an equinox.Module with __call__(self, X, Z) and no pgm.Kernel."
                )

    def check_by_column(self, name: str, num_columns: int) -> None:
        """Raise ValueError where a hyperparameter is neither one number nor one for each column of X."""
        shape = np.shape(getattr(self, name).value)
        if shape not in ((), (num_columns,)):
            raise ValueError(
                f"{name} of {type(self).__name__} has shape {shape}, but X has {num_columns} column(s): give one "
                f"number, or a 1-D array of {num_columns} number(s), one for each column."
            )

    def __add__(self, other: Any) -> "Kernel":
        return Sum(self, as_kernel(other))

    def __mul__(self, other: Any) -> "Kernel":
        return Product(self, as_kernel(other))

    def __repr__(self) -> str:
        shown = [f"{f.name}={v!r}" for f in fields(self) if is_parameter(v := getattr(self, f.name))]
        return f"{type(self).__name__}({', '.join(shown)})"


@final
class Sum(Kernel):
    """The sum of two kernels: the kernel of a sum of independent processes."""

    known: ClassVar[bool] = True

    left: Kernel
    right: Kernel

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        return self.left(X, Z) + self.right(X, Z)

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        return self.left.diagonal(X) + self.right.diagonal(X)

    def reads(self, num_columns: int) -> tuple[int, ...]:
        return tuple(sorted({*self.left.reads(num_columns), *self.right.reads(num_columns)}))

    def __repr__(self) -> str:
        return f"{self.left!r} + {self.right!r}"


@final
class Product(Kernel):
    """The product of two kernels, entry by entry."""

    known: ClassVar[bool] = True

    left: Kernel
    right: Kernel

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        return self.left(X, Z) * self.right(X, Z)

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        return self.left.diagonal(X) * self.right.diagonal(X)

    def reads(self, num_columns: int) -> tuple[int, ...]:
        return tuple(sorted({*self.left.reads(num_columns), *self.right.reads(num_columns)}))

    def __repr__(self) -> str:
        return " * ".join(f"({k!r})" if isinstance(k, Sum) else repr(k) for k in (self.left, self.right))


@final
class CallableKernel(Kernel):
    """Any callable ``(X, Z) -> matrix`` written in JAX, as a kernel.

    Of a callable that is itself a pytree (an equinox module, a ``jax.tree_util.Partial``) the floating-point arrays are
    hyperparameters of any sign, as optimisers of modules take them, and so is what is given as a NumPyro distribution,
    a Parameter or Fixed: the callable sees arrays. Python numbers stay as they are.
    """

    function: Callable[[Any, Any], Any]

    def __init__(self, function: Callable[[Any, Any], Any]):
        if not callable(function):
            raise ValueError(f"CallableKernel needs a callable (X, Z) -> matrix; got {function!r}.")
        name = _name(function)
        read = lambda path, leaf: _read_leaf(leaf, f"{jax.tree_util.keystr(path).lstrip('.')} of {name}")  # noqa: E731
        self.function = jax.tree_util.tree_map_with_path(read, function, is_leaf=_is_given)

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


def _name(function: Any) -> str:
    inner = function.func if isinstance(function, jax.tree_util.Partial) else function
    return getattr(inner, "__name__", type(inner).__name__)


def _is_given(node: Any) -> bool:
    """Whether a node is what a hyperparameter is given as, other than a number."""
    return isinstance(node, (Parameter, Fixed, Distribution))


def _is_number(leaf: Any) -> bool:
    """Whether a leaf is what a user may take for a hyperparameter."""
    return _is_given(leaf) or isinstance(leaf, float) or eqx.is_inexact_array(leaf)


def _read_leaf(leaf: Any, name: str) -> Any:
    """A leaf of a callable as compiled code takes it."""
    if eqx.is_inexact_array(leaf):
        return as_parameter(leaf, name, positive=False)
    if _is_given(leaf):
        return as_declared(leaf, None, name)
    # Functions among the leaves, often the only one, are no data.
    return jax.tree_util.Partial(leaf) if callable(leaf) else leaf


def as_kernel(obj: Any) -> Kernel:
    """A kernel as it is, or a callable ``(X, Z) -> matrix`` as a kernel. Raises ValueError for anything else."""
    if isinstance(obj, Kernel):
        return obj
    if callable(obj) and not isinstance(obj, type):
        return CallableKernel(obj)
    hint = f" Did you mean {obj.__name__}()?" if isinstance(obj, type) and issubclass(obj, Kernel) else ""
    raise ValueError(f"A kernel must be a pgmodels kernel or a callable (X, Z) -> matrix; got {obj!r}.{hint}")


def _arrays(kernel: Any) -> Any:
    """A kernel with values alone, as arrays, those that are open at 1."""
    select_inducing_inputs = jax.tree.map(
        lambda p: p.with_value(1.0) if is_parameter(p) and p.value is None else p, kernel, is_leaf=is_parameter
    )
    return jax.tree.map(lambda leaf: as_array(leaf) if eqx.is_array_like(leaf) else leaf, bare(select_inducing_inputs))


def check_lookups(kernel: Any, X: np.ndarray, name: str) -> None:
    """Raise ValueError where a kernel of one's own looks up what its arrays do not have, at rows of X (n, d).

    JAX would take the last entry in its place. An index below 0 counts from the end, as in NumPy; one that is clipped
    or wrapped by the kernel itself is none that can be seen here.
    """
    if isinstance(kernel, Kernel) and kernel.is_known:
        return
    values, one = _arrays(kernel), as_array(X[:1])
    if "gather" not in str(jax.make_jaxpr(_between)(values, one, one)):
        return
    try:
        fault = _lookups(values, as_array(X), one)[0].get()
    except NotImplementedError:
        # Of a loop or a solver in the kernel that cannot be looked into.
        return
    if fault is not None:
        raise ValueError(
            f"{kernel!r} looks up an entry that is not there, for some row of {name}: {fault.splitlines()[0].strip()} "
            f"Give {name} the numbers that the kernel's arrays have, or arrays with an entry for each."
        )


def _between(kernel: Any, X: Array, Z: Array) -> Array:
    return kernel(X, Z)


_lookups = compiled(checkify.checkify(_between, errors=checkify.index_checks), optimise=False)


def check_traced(kernel: Kernel, num_columns: int) -> None:
    """Raise ValueError where a kernel cannot be evaluated by compiled code, or gives another shape than (n, m)."""
    values = _arrays(kernel)
    X, Z = (jax.ShapeDtypeStruct((rows, num_columns), jnp.result_type(float)) for rows in (3, 2))
    try:
        matrix, diagonal = jax.eval_shape(_covariances, values, X, Z)
    except ValueError:
        raise
    except Exception as error:
        remedy = f"It must take X (n, d) and Z (m, d) and return the (n, m) matrix{_shapes(kernel)}."
        if isinstance(error, jax.errors.JAXTypeError):
            remedy = "It asks for the values of arrays: write it with jax.numpy instead of NumPy, and jnp.where for if."
        raise ValueError(f"{kernel!r} cannot be compiled ({type(error).__name__}). {remedy}") from error
    if (getattr(matrix, "shape", None), getattr(diagonal, "shape", None)) != ((3, 2), (3,)):
        raise ValueError(
            f"{kernel!r} must return the (n, m) covariances between the rows of X and of Z, and (n,) as its diagonal; "
            f"for 3 and 2 rows it returned {matrix} and {diagonal}."
        )


def _shapes(kernel: Kernel) -> str:
    """The shapes of hyperparameters that are arrays, for a message."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(kernel, is_leaf=is_parameter)
    arrays = [(path, leaf.value) for path, leaf in leaves if is_parameter(leaf) and np.ndim(leaf.value)]
    listed = (f"{jax.tree_util.keystr(path).lstrip('.')} has shape {np.shape(value)}" for path, value in arrays)
    return f"; {', '.join(listed)}" if arrays else ""


def _declares_parameter(field: Field) -> bool:
    kind = field.type
    return kind is Parameter or (isinstance(kind, str) and kind.rpartition(".")[2] == "Parameter")


def _covariances(kernel: Kernel, X: Array, Z: Array) -> tuple[Array, Array]:
    """What ``check_traced`` looks at: one function, so that kernels of one structure are traced once."""
    return kernel(X, Z), kernel.diagonal(X)


def _is_setting(value: Any) -> bool:
    """Whether a value is a whole number, a truth value or text."""
    return isinstance(value, (bool, int, str, np.integer, np.bool_))


def constant_diagonal(X: Inputs, variance: Parameter) -> Float[Array, " n"]:
    """The same variance at each row."""
    return jnp.broadcast_to(as_array(variance.value), (X.shape[0],))


def scalar(value: Any, name: str, owner: Kernel) -> Parameter:
    """A hyperparameter that is one number."""
    label = f"{name} of {type(owner).__name__}"
    parameter = as_parameter(value, label)
    if np.ndim(parameter.value):
        raise ValueError(f"{label} must be one number; got an array of shape {np.shape(parameter.value)}.")
    return parameter
