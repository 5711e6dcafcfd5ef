"""Hyperparameters of kernels, means and likelihoods: a value, whether it is learned, and its prior."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution
from numpyro.distributions.constraints import Constraint, positive, real
from numpyro.distributions.transforms import Transform, biject_to


class Fixed:
    """A hyperparameter that is never learned: ``RBF(variance=Fixed(1.0))``."""

    def __init__(self, value: float | np.ndarray):
        self.value = value

    def __repr__(self) -> str:
        return f"Fixed({self.value!r})"


class Parameter(eqx.Module):
    """A hyperparameter.

    ``value`` is the current value (a start value for ``fit``), ``None`` where it is to come from the data.
    ``positive`` constrains it to positive values, ``fixed`` keeps ``fit`` from changing it, and ``prior`` is a
    NumPyro distribution over it.
    """

    value: Any
    positive: bool = eqx.field(static=True, default=True)
    fixed: bool = eqx.field(static=True, default=False)
    prior: Any = eqx.field(static=True, default=None)

    @property
    def support(self) -> Constraint:
        """The constraint that the value satisfies."""
        if self.prior is not None:
            return self.prior.support
        return positive if self.positive else real

    @property
    def transform(self) -> Transform:
        """NumPyro's bijection from the real line to ``support``."""
        return biject_to(self.support)

    @property
    def learned(self) -> bool:
        """Whether ``fit`` may change the value."""
        return not self.fixed

    def with_value(self, value: Any) -> "Parameter":
        """A copy with another value."""
        return Parameter(value, positive=self.positive, fixed=self.fixed, prior=self.prior)

    def bare(self) -> "Parameter":
        """A copy with the value alone: what compiled code sees, so that priors never cause a recompilation."""
        return Parameter(self.value)


def is_parameter(node: Any) -> bool:
    """Whether a pytree node is a Parameter."""
    return isinstance(node, Parameter)


def bare(tree: Any) -> Any:
    """Replace every Parameter of a pytree by its value-only copy."""
    return jax.tree.map(lambda p: p.bare() if is_parameter(p) else p, tree, is_leaf=is_parameter)


def as_parameter(value: Any, name: str, *, positive: bool = True, from_data: bool = False) -> Parameter:
    """Read a user's hyperparameter: a number, an array, ``Fixed``, a NumPyro distribution, ``Parameter`` or ``None``.

    Raises ValueError where it is not finite, not positive although it must be, or missing.
    """
    if isinstance(value, Parameter):
        inner = as_parameter(value.value, name, positive=value.positive, from_data=from_data)
        return Parameter(inner.value, positive=value.positive, fixed=value.fixed, prior=value.prior)
    if isinstance(value, Fixed):
        return Parameter(as_parameter(value.value, name, positive=positive).value, positive=positive, fixed=True)
    if isinstance(value, Distribution):
        return Parameter(_centre(value), positive=positive, prior=value)
    if value is None:
        if from_data:
            return Parameter(None, positive=positive)
        raise ValueError(f"{name} is missing: give a number, pgm.Fixed(number) or a NumPyro distribution.")
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be a number, an array, pgm.Fixed(number) or a NumPyro distribution; got {value!r}."
        ) from error
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} must be finite; got {value!r}.")
    if positive and not np.all(array > 0):
        raise ValueError(f"{name} must be positive; got {value!r}.")
    return Parameter(array, positive=positive)


def _centre(prior: Distribution) -> np.ndarray:
    """The prior's median where it has a quantile function, its mean otherwise: the value before anything is learned."""
    with jax.enable_x64(True):
        try:
            value = prior.icdf(jnp.full(prior.batch_shape, 0.5))
        except (NotImplementedError, ImportError):  # NumPyro needs a further package for some quantile functions
            value = prior.mean
        value = np.asarray(value, dtype=np.float64)
    if not np.isfinite(value).all():
        raise ValueError(
            f"the prior {type(prior).__name__} has no quantile function here and no finite mean to start from: give a "
            "start value too, as in pgm.Parameter(1.0, prior=...)."
        )
    return value
