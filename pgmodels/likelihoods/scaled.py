"""Numbers as a factor times an exponential, whose products and sums do not over- or underflow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

# Limits the exponent of a factor of zero, whose derivative is then finite.
_LARGEST_EXPONENT = 700.0


class Scaled(NamedTuple):
    """factor · exp(logarithm); the factor has the sign of the number and carries its derivative."""

    factor: Array
    logarithm: Array

    @classmethod
    def of(cls, value: Array, logarithm: Array | float = 0.0) -> Scaled:
        """value · exp(logarithm), with a factor of -1, 0 or 1."""
        size = jax.lax.stop_gradient(jnp.abs(value))
        size = jnp.where((size > 0) & jnp.isfinite(size), size, 1.0)
        return cls(value / size, jnp.log(size) + logarithm)

    @classmethod
    def of_log(cls, logarithm: Array) -> Scaled:
        """A number >= 0 by its logarithm."""
        zero = jnp.isneginf(logarithm)
        return cls(jnp.where(zero, 0.0, 1.0), jnp.where(zero, 0.0, logarithm))

    @property
    def value(self) -> Array:
        """The number."""
        return self.factor * jnp.exp(_limited(self.factor, self.logarithm))

    @property
    def log(self) -> Array:
        """The logarithm: -inf for 0, NaN for a negative number."""
        return jnp.log(self.factor) + self.logarithm

    def power(self, exponent: float) -> Scaled:
        """The power to a number."""
        factor = self.factor ** int(exponent) if exponent == int(exponent) else self.factor**exponent
        return Scaled(factor, exponent * self.logarithm)

    def power_of_any(self, exponent: Array) -> Scaled:
        """The power to an array, of whole numbers where the base is negative. 0 ** 0 is 1."""
        zero, off = self.factor == 0, exponent == 0
        odd = jnp.where(exponent == jnp.round(exponent), jnp.where(exponent % 2 == 0, 1.0, -1.0), jnp.nan)
        factor = jnp.where(off, 1.0, jnp.where(zero, jnp.where(exponent > 0, 0.0, jnp.inf), 1.0))
        log_base = jnp.log(jnp.where(zero | off, 1.0, jnp.abs(self.factor))) + jnp.where(off, 0.0, self.logarithm)
        return Scaled(jnp.where((self.factor < 0) & ~off, odd, factor), exponent * log_base)


def product(numbers: Sequence[Scaled]) -> Scaled:
    """The product of numbers."""
    factors, logarithms = zip(*numbers, strict=True)
    return Scaled(math.prod(factors[1:], start=factors[0]), sum(logarithms[1:], logarithms[0]))


def total(numbers: Sequence[Scaled]) -> Scaled:
    """The sum of numbers."""
    stacked = (jnp.stack(jnp.broadcast_arrays(*arrays)) for arrays in zip(*numbers, strict=True))
    summed = total_along(Scaled(*jnp.broadcast_arrays(*stacked)), 0)
    return Scaled(summed.factor[0], summed.logarithm[0])


def total_along(numbers: Scaled, axis: int) -> Scaled:
    """The sum along an axis, which is kept with length 1."""
    factor, logarithm = numbers
    top = jnp.max(jnp.where(factor == 0, -jnp.inf, logarithm), axis=axis, keepdims=True)
    top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0.0))
    terms = factor * jnp.exp(_limited(factor, logarithm - top))
    return Scaled.of(jnp.sum(terms, axis=axis, keepdims=True), top)


def _limited(factor: Array, logarithm: Array) -> Array:
    return jnp.where(factor == 0, jnp.minimum(logarithm, _LARGEST_EXPONENT), logarithm)
