"""Bijections from the real line to the supports of hyperparameters.

Those to the positive and to all numbers need neither NumPyro nor, for NumPy's arrays, compilation.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np


class Identity:
    """x, on the real numbers."""

    def __call__(self, x: Any) -> Any:
        return x

    def inv(self, y: Any) -> Any:
        """The inverse of ``__call__``."""
        return y

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """The log of the derivative at ``x``, where the value is ``y``."""
        return jnp.zeros_like(x)

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of ``x`` for a shape of ``y``."""
        return shape


class Exponential(Identity):
    """exp(x), to the positive numbers."""

    def __call__(self, x: Any) -> Any:
        return _of(x).exp(x)

    def inv(self, y: Any) -> Any:
        """The inverse of ``__call__``."""
        return _of(y).log(y)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """The log of the derivative at ``x``, where the value is ``y``."""
        return x


IDENTITY, EXPONENTIAL = Identity(), Exponential()


def transform_to(support: Any) -> Any:
    """The bijection to a constraint of NumPyro's."""
    from numpyro.distributions.constraints import positive, real
    from numpyro.distributions.transforms import biject_to

    if support is real:
        return IDENTITY
    return EXPONENTIAL if support is positive else biject_to(support)


def _of(x: Any) -> Any:
    """The library that computes with an array."""
    return np if isinstance(x, (np.ndarray, np.generic, float)) else jnp
