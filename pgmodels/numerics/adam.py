"""Adam: stochastic gradient ascent with a step size per value, scaled by the size of its gradient."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

# beta_1, beta_2 and epsilon of Kingma and Ba 2015.
_MEAN, _SQUARE, _EPSILON = 0.9, 0.999, 1e-8


class Adam(NamedTuple):
    """Unconstrained values, running averages of their gradient and its square, and the number of steps."""

    vector: Float[Array, " values"]
    mean: Float[Array, " values"]
    square: Float[Array, " values"]
    taken: Float[Array, ""]


def initial_adam(vector: Float[Array, " values"]) -> Adam:
    """The state before the first step."""
    return Adam(vector, jnp.zeros_like(vector), jnp.zeros_like(vector), jnp.zeros(()))


def adam_step(
    state: Adam, slope: Float[Array, " values"], rate: Float[Array, ""], units: Float[Array, " values"]
) -> Adam:
    """An ascent step of about ``rate`` times ``units`` in each value.

    Source: Kingma and Ba 2015, algorithm 1.
    """
    taken = state.taken + 1.0
    mean = _MEAN * state.mean + (1.0 - _MEAN) * slope
    square = _SQUARE * state.square + (1.0 - _SQUARE) * slope**2
    towards = (mean / (1.0 - _MEAN**taken)) / (jnp.sqrt(square / (1.0 - _SQUARE**taken)) + _EPSILON)
    return Adam(state.vector + rate * units * towards, mean, square, taken)
