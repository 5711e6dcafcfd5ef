"""Adam: steps along a noisy gradient, each value by itself in units of how large its gradient is."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

# How much of the averages of gradient and square a step leaves, and what keeps a step finite.
_MEAN, _SQUARE, _LEAST = 0.9, 0.999, 1e-8


class Adam(NamedTuple):
    """Unconstrained values, the averages of their gradient and of its square, and how many steps were taken."""

    vector: Float[Array, " values"]
    mean: Float[Array, " values"]
    square: Float[Array, " values"]
    taken: Float[Array, ""]


def initial_adam(vector: Float[Array, " values"]) -> Adam:
    """The state before any step."""
    return Adam(vector, jnp.zeros_like(vector), jnp.zeros_like(vector), jnp.zeros(()))


def adam_step(
    state: Adam, slope: Float[Array, " values"], rate: Float[Array, ""], units: Float[Array, " values"]
) -> Adam:
    """A step upwards, of a length of about ``rate`` units of each value.

    Source: Kingma and Ba 2015, algorithm 1.
    """
    taken = state.taken + 1.0
    mean = _MEAN * state.mean + (1.0 - _MEAN) * slope
    square = _SQUARE * state.square + (1.0 - _SQUARE) * slope**2
    towards = (mean / (1.0 - _MEAN**taken)) / (jnp.sqrt(square / (1.0 - _SQUARE**taken)) + _LEAST)
    return Adam(state.vector + rate * units * towards, mean, square, taken)
