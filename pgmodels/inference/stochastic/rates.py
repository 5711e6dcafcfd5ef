"""Step sizes of minibatches: Robbins-Monro, adaptive, and Adam's learning rate."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Minimum natural-gradient step size as a multiple of Adam's learning rate, so that q keeps up with hyperparameters.
_MIN_STEP = 2.0


class GradientStatistics(NamedTuple):
    """Running averages of a natural gradient and of its square, and the number of steps that they average.

    Source: Ranganath, Wang, Blei and Xing 2013.
    """

    gradient: Any
    square: Float[Array, ""]
    memory: Float[Array, ""]


class Rates(NamedTuple):
    """Step sizes: (t + delay)^-power for q unless adaptive, and Adam's learning rate."""

    delay: Float[Array, ""]
    power: Float[Array, ""]
    learning: Float[Array, ""]

    def length(self, taken: Array) -> Array:
        """The size of the next step of q after ``taken`` steps, unless adaptive."""
        return jnp.maximum((taken + self.delay) ** -self.power, _MIN_STEP * self.learning)


def adapt(averages: GradientStatistics, gradient: Any) -> tuple[Array, GradientStatistics]:
    """The rate that minimises the expected distance to the optimum, and the averages after a gradient.

    Source: Ranganath, Wang, Blei and Xing 2013, algorithm 1.
    """
    share = 1.0 / averages.memory
    mean = jax.tree.map(lambda old, new: (1.0 - share) * old + share * new, averages.gradient, gradient)
    square = (1.0 - share) * averages.square + share * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient))
    of_mean = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(mean))
    rate = jnp.where(square > 0.0, of_mean / jnp.where(square > 0.0, square, 1.0), 1.0)
    return rate, GradientStatistics(mean, square, averages.memory * (1.0 - rate) + 1.0)
