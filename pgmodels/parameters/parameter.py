"""Parameters: values, constraints and priors."""

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from pgmodels.numerics.elementary import namespace
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.messages import shorten, write_constraint, write_distribution, write_value
from pgmodels.runtime.precision import Module, Picklable, as_array
from pgmodels.runtime.seeds import is_constraint, is_distribution

if TYPE_CHECKING:
    from numpyro.distributions import Distribution
    from numpyro.distributions.constraints import Constraint

Numbers: TypeAlias = Array | np.ndarray | float

# Bijections from the real line. They need neither NumPyro nor, for NumPy arrays, compilation.


class Identity:
    """The identity x on the real numbers."""

    def __call__(self, x: Numbers) -> Numbers:
        return x

    def inv(self, y: Numbers) -> Numbers:
        """Return the inverse of ``__call__``."""
        return y

    def log_abs_det_jacobian(self, x: Numbers, y: Numbers) -> Numbers:
        """Return the log of the derivative at ``x``, at which the value is ``y``."""
        return jnp.zeros_like(x)

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of ``x`` for a shape of ``y``."""
        return shape


class Exponential(Identity):
    """The bijection exp(x) to the positive numbers."""

    def __call__(self, x: Numbers) -> Numbers:
        return namespace(x).exp(x)

    def inv(self, y: Numbers) -> Numbers:
        return namespace(y).log(y)

    def log_abs_det_jacobian(self, x: Numbers, y: Numbers) -> Numbers:
        return x


IDENTITY, EXPONENTIAL = Identity(), Exponential()


def transform_to(support: "Constraint") -> Any:
    """Return the bijection to a constraint of NumPyro."""
    from numpyro.distributions.constraints import positive, real
    from numpyro.distributions.transforms import biject_to

    if support is real:
        return IDENTITY
    return EXPONENTIAL if support is positive else biject_to(support)


class Fixed:
    """A hyperparameter that is never learned, e.g. ``RBF(variance=Fixed(1.0))``.

    Parameters
    ----------
    value : float or array_like
        The value, in the units of the hyperparameter.

    Examples
    --------
    >>> import pgmodels as pgm
    >>> kernel = pgm.RBF(variance=pgm.Fixed(2.0), lengthscale=1.0)
    >>> kernel.variance.fixed, kernel.lengthscale.fixed
    (True, False)
    """

    def __init__(self, value: ArrayLike):
        self.value = value

    def __repr__(self) -> str:
        return f"Fixed({write_value(self.value)})"


class Hashable(Picklable):
    """A hashable wrapper of a NumPyro distribution or constraint, for static fields; equal if the numbers are equal."""

    def __init__(self, distribution: "Distribution | Constraint"):
        from pgmodels.runtime.io import digest

        self.distribution: Any = distribution
        self.signature = digest(distribution)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hashable) and self.signature == other.signature

    def __hash__(self) -> int:
        return hash(self.signature)

    def __repr__(self) -> str:
        wrapped = self.distribution
        return write_distribution(wrapped) if is_distribution(wrapped) else write_constraint(wrapped)


class Parameter(Module):
    """A hyperparameter: a number or an array.

    Parameters
    ----------
    value : float, array_like or None
        The value, which is the start value for ``fit``. None sets it from the data, or in a formula requires it.
    positive : bool, optional
        Whether the value must be positive. The default is True for parameters of kernels and False for parameters of
        formulas and means.
    fixed : bool
        Whether the value stays fixed in ``fit``.
    prior : numpyro.distributions.Distribution, optional
        The prior of the value.
    constraint : numpyro.distributions.constraints.Constraint, optional
        A constraint instead of ``positive``, such as ``ordered_vector`` or ``simplex``. Fits and draws satisfy it, and
        a prior with a larger support is restricted to it.

    Raises
    ------
    ValueError
        If the constraint is not a NumPyro constraint. Other faults are found when the parameter is used.

    Examples
    --------
    >>> import numpyro.distributions as dist
    >>> import pgmodels as pgm
    >>> lengthscale = pgm.Parameter(1.0, prior=dist.Gamma(2.0, 2.0))
    >>> kernel = pgm.RBF(pgm.Parameter(2.0, fixed=True), lengthscale)
    >>> float(kernel.variance.value), kernel.variance.fixed
    (2.0, True)
    >>> float(kernel.lengthscale.value), kernel.lengthscale.fixed
    (1.0, False)
    """

    value: Any
    # None means unspecified, to be decided when the parameter is used.
    positive: bool | None = eqx.field(static=True, default=None)
    fixed: bool = eqx.field(static=True, default=False)
    hashable_prior: Hashable | None = eqx.field(static=True, default=None)
    hashable_constraint: Hashable | None = eqx.field(static=True, default=None)
    # The length of a vector, or None for a scalar.
    length: int | None = eqx.field(static=True, default=None)

    if TYPE_CHECKING:
        # Type checkers infer the type of a formula's argument from its default, which stands for a symbol there.
        def __new__(
            cls,
            value: ArrayLike | Fixed | None,
            positive: bool | None = None,
            fixed: bool = False,
            prior: "Distribution | None" = None,
            constraint: "Constraint | None" = None,
        ) -> Any: ...

    def __init__(
        self,
        value: ArrayLike | Fixed | None,
        positive: bool | None = None,
        fixed: bool = False,
        prior: "Distribution | None" = None,
        constraint: "Constraint | None" = None,
    ):
        if constraint is not None and not is_constraint(constraint):
            raise ValueError(
                "constraint of a Parameter must be one of numpyro.distributions.constraints, such as ordered_vector; "
                f"got {constraint!r}."
            )
        self.value, self.fixed = value, fixed
        self.positive = positive if constraint is None else _is_positive(constraint)
        self.hashable_prior = None if prior is None else Hashable(prior)
        self.hashable_constraint = None if constraint is None else Hashable(constraint)
        self.length = len(self.value) if getattr(value, "ndim", 0) == 1 else None

    @property
    def prior(self) -> Any:
        """The prior distribution of the value, or None."""
        return None if self.hashable_prior is None else self.hashable_prior.distribution

    @property
    def is_free(self) -> bool:
        """Whether the parameter is learned and has no prior."""
        return self.learned and self.prior is None

    @property
    def declared_prior(self) -> Any:
        """The prior that the user declared, not restricted to the constraint."""
        if self.prior is None:
            return None
        from pgmodels.parameters.prior import Within

        return self.prior.base if isinstance(self.prior, Within) else self.prior

    @property
    def constraint(self) -> "Constraint | None":
        """The constraint that the user declared, or None; ``positive`` holds a sign."""
        return None if self.hashable_constraint is None else self.hashable_constraint.distribution

    @property
    def support(self) -> "Constraint":
        """The constraint that the value satisfies."""
        if self.constraint is not None:
            return self.constraint
        if self.prior is not None:
            return self.prior.support
        from numpyro.distributions.constraints import positive, real

        return positive if self.positive else real

    @property
    def bounds(self) -> tuple[Any, Any]:
        """The lower and the upper bound of each entry of the value, infinite if there is no bound."""
        return _bounds(self.support)

    @property
    def transform(self) -> Any:
        """The bijection from the real line to ``support``, with the methods of NumPyro's transforms."""
        if self.constraint is None and self.prior is None:
            return EXPONENTIAL if self.positive else IDENTITY
        return transform_to(self.support)

    @property
    def learned(self) -> bool:
        """Whether ``fit`` may change the value."""
        return not self.fixed

    def with_value(self, value: ArrayLike | Array) -> "Parameter":
        """Return a copy with another value, which may be an array of draws."""
        return eqx.tree_at(lambda p: p.value, self, value, is_leaf=lambda node: node is None)

    def as_fixed(self) -> "Parameter":
        """Return a copy that is fixed at its value."""
        return Parameter(self.value, self.positive, fixed=True, constraint=self.constraint)

    def bare(self) -> "Parameter":
        """Return a copy with only the value, for compiled code: a new prior then needs no recompilation."""
        return Parameter(self.value, positive=True)

    def __repr__(self) -> str:
        return self.written()

    def written(self, with_sign: bool = False) -> str:
        """Return the ``repr``; ``with_sign`` adds ``positive=True`` if a plain number would mean a real parameter."""
        value, prior = write_value(self.value), self.declared_prior
        if self.fixed:
            value = f"Fixed({value})"
        if prior is not None and self.constraint is None and not self.fixed and _is_centre(self.value, prior):
            return write_distribution(prior)
        options = [] if prior is None or self.fixed else [f"prior={write_distribution(prior)}"]
        options += [] if self.constraint is None else [f"constraint={write_constraint(self.constraint)}"]
        options += ["positive=True"] if with_sign and self.positive and not options and not self.fixed else []
        return f"Parameter({', '.join([value, *options])})" if options else value


# Accepted types of a hyperparameter: a start value, a constant, a prior, or a complete Parameter.
Hyperparameter: TypeAlias = float | ArrayLike | Fixed | Parameter | "Distribution"


Tree = TypeVar("Tree")


def is_parameter(node: object) -> TypeGuard[Parameter]:
    """Return whether a pytree node is a Parameter."""
    return isinstance(node, Parameter)


def bare(tree: Tree) -> Tree:
    """Replace every Parameter of a pytree by a copy with only its value."""
    return jax.tree.map(lambda p: p.bare() if is_parameter(p) else p, tree, is_leaf=is_parameter)


def bare_arrays(tree: Tree) -> Tree:
    """Return ``bare``, with numbers and arrays as JAX arrays."""
    return jax.tree.map(lambda leaf: as_array(leaf) if eqx.is_array_like(leaf) else leaf, bare(tree))


def as_parameter(
    value: Any, name: str, *, positive: bool = True, from_data: bool = False, constraint: "Constraint | None" = None
) -> Parameter:
    """Read a hyperparameter: a number, an array, ``Fixed``, a NumPyro distribution, ``Parameter`` or ``None``.

    Raises ValueError if the value is missing, not finite, or outside its constraint, or must be positive and is not. It
    also raises ValueError if the prior has no density over such values.
    """
    if isinstance(value, Parameter) and value.constraint is not None:
        constraint = value.constraint
    if constraint is not None:
        return _constrained(value, name, constraint, positive)
    if isinstance(value, Parameter):
        positive = positive or bool(value.positive)
        if value.prior is None:
            inner = as_parameter(value.value, name, positive=positive, from_data=from_data)
        else:
            inner = _with_prior(value.value, value.prior, name, positive)
        return Parameter(inner.value, positive=positive, fixed=value.fixed or inner.fixed, prior=inner.prior)
    if isinstance(value, Fixed):
        return Parameter(as_parameter(value.value, name, positive=positive).value, positive=positive, fixed=True)
    if is_distribution(value):
        return _with_prior(None, value, name, positive)
    if value is None:
        if from_data:
            return Parameter(None, positive=positive)
        raise ValueError(f"{name} is missing: give a number, pgm.Fixed(number) or a NumPyro distribution.")
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be a number, an array, pgm.Fixed(number) or a NumPyro distribution; got {shorten(value)}."
        ) from error
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} must be finite; got {shorten(value)}.")
    if positive and not np.all(array > 0):
        raise ValueError(f"{name} must be positive; got {shorten(value)}.")
    return Parameter(array, positive=positive)


def as_declared(value: Any, declared: Parameter | None, name: str, positive: bool = True) -> Parameter:
    """Read a hyperparameter of an argument or field. Its default may be a Parameter that declares the constraint.

    ``positive`` applies if the default declares no sign. Without a default, a Parameter or distribution determines the
    sign. Numbers follow ``positive``, except Fixed numbers, which may be negative. Raises ValueError in the cases of
    ``as_parameter``.
    """
    if declared is not None:
        if is_distribution(value) and declared.constraint is not None:
            # A prior alone has no start value that satisfies the constraint.
            value = Parameter(declared.value, prior=value)
        declared_positive = positive if declared.positive is None else declared.positive
        is_positive = declared.constraint is None and (declared_positive or _implies_positive(value))
        return as_parameter(
            value, name, positive=is_positive, from_data=declared.value is None, constraint=declared.constraint
        )
    if isinstance(value, Parameter):
        return as_parameter(value, name, positive=value.positive is not False, from_data=True)
    if is_distribution(value):
        return as_parameter(value, name, positive=_is_positive(value.support))
    return as_parameter(value, name, positive=positive and not isinstance(value, Fixed))


def _implies_positive(value: Any) -> bool:
    prior = value.prior if isinstance(value, Parameter) else value
    if is_distribution(prior):
        return _is_positive(prior.support)
    fixed = isinstance(value, Fixed) or (isinstance(value, Parameter) and value.fixed)
    return fixed and np.asarray(value.value).dtype.kind in "iuf" and bool(np.all(np.asarray(value.value) > 0))


def _is_positive(constraint: "Constraint") -> bool:
    return bool(np.all(np.asarray(_bounds(constraint)[0]) >= 0))


def _bounds(constraint: "Constraint") -> tuple[Any, Any]:
    """Return the lower and upper bound of each entry under a constraint, infinite if there is no bound."""
    from numpyro.distributions.constraints import positive_ordered_vector, simplex

    if constraint in (simplex, positive_ordered_vector):
        return 0.0, (1.0 if constraint == simplex else np.inf)
    base = getattr(constraint, "base_constraint", constraint)
    return getattr(base, "lower_bound", -np.inf), getattr(base, "upper_bound", np.inf)


def _constrained(value: Any, name: str, constraint: "Constraint", positive: bool) -> Parameter:
    """Return a parameter with a constraint, to which its prior is restricted."""
    if positive and not _is_positive(constraint):
        raise ValueError(f"{name} must be positive, but its constraint {constraint} also allows other numbers.")
    declared = value if isinstance(value, Parameter) else Parameter(value)
    bare_value = declared.value.value if isinstance(declared.value, Fixed) else declared.value
    start = as_parameter(bare_value, name, positive=False).value
    if start.ndim < constraint.event_dim or not np.all(constraint(start)):
        raise ValueError(f"{name} must satisfy {constraint}; got {shorten(start.tolist())}.")
    prior = declared.prior
    if prior is not None and prior.support != constraint:
        from pgmodels.parameters.prior import Within

        prior = Within(_with_prior(start, prior, name, positive=False).prior, constraint)
    if prior is not None and prior.shape() != start.shape:
        raise ValueError(f"{name}: the start value has shape {start.shape} and its prior {prior.shape()}.")
    fixed = declared.fixed or isinstance(declared.value, Fixed)
    return Parameter(start, fixed=fixed, prior=prior, constraint=constraint)


def _with_prior(value: ArrayLike | None, prior: Any, name: str, positive: bool) -> Parameter:
    """Return a parameter with a prior of its shape. Raise ValueError if the start value has no density."""
    _check_prior(prior, name, positive)
    with jax.enable_x64(True):
        start = _centre(prior, name) if value is None else as_parameter(value, name, positive=positive).value
        try:
            shape = np.broadcast_shapes(np.shape(start), prior.shape())
        except ValueError as error:
            raise ValueError(
                f"{name}: the start value has shape {np.shape(start)} and its prior {prior.shape()}; give both one "
                "shape, or one of them as one number."
            ) from error
        if shape != prior.shape():
            # A-priori independent entries.
            prior = prior.expand(shape[: len(shape) - prior.event_dim])
        start = np.broadcast_to(start, shape).copy()
        if not np.all(prior.support(start)):
            raise ValueError(
                f"{name} starts at {shorten(start.tolist())}, outside the support of its prior, {prior.support}."
            )
    return Parameter(start, positive=positive, prior=prior)


def _check_prior(prior: Any, name: str, positive: bool) -> None:
    kind = type(prior).__name__
    if not is_distribution(prior):
        raise ValueError(
            f"the prior of {name} must be a NumPyro distribution such as numpyro.distributions.LogNormal(0.0, 1.0); "
            f"got {prior!r}."
        )
    from numpyro.distributions import Delta
    from numpyro.distributions.constraints import independent, real
    from numpyro.distributions.transforms import biject_to

    if isinstance(prior, Delta):
        raise ValueError(f"the prior of {name} is a Delta, which fixes it: use pgm.Fixed({prior.v}) instead.")
    support = prior.support
    while isinstance(support, type(independent(real, 0))):
        support = support.base_constraint
    if support.is_discrete:
        raise ValueError(
            f"the prior of {name} is {kind}, a discrete distribution: use a continuous one such as LogNormal or Gamma."
        )
    if support.event_dim > 0:
        raise ValueError(
            f"the prior of {name} is {kind}, with a joint constraint on its entries ({support}): use a scalar "
            "distribution or one of independent entries; a parameter of a likelihood may have the constraint itself, "
            "as in pgm.Parameter(value, constraint=numpyro.distributions.constraints.simplex)."
        )
    try:
        biject_to(support)
    except NotImplementedError as error:
        raise ValueError(
            f"the prior of {name} is {kind}, on {support}, for which NumPyro has no transform: use a distribution on "
            "the real or the positive numbers, or on an interval."
        ) from error
    if positive and not np.all(np.asarray(getattr(support, "lower_bound", -np.inf)) >= 0):
        raise ValueError(
            f"{name} must be positive, but its prior {kind} has the support {support}: use LogNormal, Gamma, "
            "InverseGamma, HalfNormal, or TruncatedNormal(..., low=0.0)."
        )


def _is_centre(value: ArrayLike | None, prior: "Distribution") -> bool:
    if value is None or isinstance(value, jax.core.Tracer):
        return False
    with jax.enable_x64(True):
        try:
            return np.array_equal(value, np.broadcast_to(_centre(prior, "a parameter"), np.shape(value)))
        except ValueError:
            return False


@compiled
def _median(prior: "Distribution") -> Array:
    return prior.icdf(jnp.full(prior.shape(), 0.5))


def _call(program: Any, *arguments: object) -> Array:
    """Call a compiled function, or uncompiled (up to a second) if JAX cannot trace a user's distribution."""
    try:
        return program(*arguments)
    except (TypeError, AttributeError):
        return program.__wrapped__(*arguments)


def _centre(prior: "Distribution", name: str) -> np.ndarray:
    """Return the start value: the middle of the prior, or else its mode on the unconstrained scale."""
    middle = middle_of(prior)
    return _mode(prior, name) if middle is None else middle


def middle_of(prior: "Distribution") -> np.ndarray | None:
    """Return the prior's median, or else its mean; None if a search can start at neither."""
    for centre in (partial(_call, _median), lambda law: law.mean):
        try:
            with np.errstate(divide="ignore"):
                value = np.asarray(centre(prior), dtype=np.float64)
        except (NotImplementedError, ZeroDivisionError, ImportError):
            # NumPyro needs another package for some quantile functions, and divides by zero for some infinite means.
            continue
        if np.isfinite(value).all() and np.all(prior.support(value)):
            # Near 0 or infinity nothing can be learned, e.g. at 1e-300, the median of Gamma(1e-3, 1e-3).
            is_positive = transform_to(prior.support) is EXPONENTIAL
            if not is_positive or np.all(np.abs(np.log(value)) < 25.0):
                return value
    return None


def _mode(prior: "Distribution", name: str) -> np.ndarray:
    """Return the grid point of largest density on the unconstrained scale, or the middle if it has no maximum."""
    from numpyro.distributions import Independent

    base = prior
    while isinstance(base, Independent):
        base = base.base_dist
    x = np.sinh(np.linspace(-30.0, 30.0, 6001))
    grid = np.broadcast_to(x.reshape(len(x), *[1] * len(base.shape())), (len(x), *base.shape()))
    try:
        log_densities = _call(_log_densities, base, grid)
    except NotImplementedError as error:
        raise ValueError(
            f"the prior {type(prior).__name__} of {name} has no log density in NumPyro: use another distribution."
        ) from error
    columns = np.where(np.isfinite(log_densities), log_densities, -np.inf).reshape(len(x), -1)
    if not np.isfinite(columns).any(axis=0).all():
        raise ValueError(
            f"the prior {type(prior).__name__} of {name} has no finite density at any start value that was tried: give "
            "a start value too, as in pgm.Parameter(1.0, prior=...)."
        )
    modes = np.zeros(columns.shape[1])
    for entry, column in enumerate(columns.T):
        highest, finite = np.flatnonzero(column == column.max()), np.flatnonzero(np.isfinite(column))
        best = highest[np.argmin(np.abs(x[highest]))]
        if finite[0] < best < finite[-1]:
            modes[entry] = x[best]
    of_batch = modes.reshape((*base.batch_shape, *[1] * len(base.event_shape)))
    return np.asarray(transform_to(base.support)(np.broadcast_to(of_batch, base.shape())), dtype=np.float64)


@compiled
def _log_densities(prior: "Distribution", x: Array) -> Array:
    transform = transform_to(prior.support)
    values = transform(x)
    return prior.log_prob(values) + transform.log_abs_det_jacobian(x, values)
