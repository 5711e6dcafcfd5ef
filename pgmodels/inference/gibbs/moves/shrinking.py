"""A slice step on hyperparameters: along an ellipse or a line, by an interval that shrinks."""

from typing import Any

import jax
import jax.numpy as jnp

# Degrees of freedom of the t distribution whose ellipses a slice step on the hyperparameters takes.
_FREEDOM = 8.0
# The bracket of one along a line, in standard deviations of the direction taken.
_WIDTH = 4.0
# An angle or a step has shrunk by 2^-100 by then: what is left is rounding, and the chain stays where it is.
MAX_SHRINKS = 100


def slice_step(
    key: Any, response: Any, vector: Any, state: Any, density: Any, at: Any, ellipse: Any
) -> tuple[Any, Any]:
    """A slice step from a vector with some state and log density; ``at(vector)`` gives those of another.

    It goes along an ellipse, which turns over all entries at once, of the t distribution with the response's middle and
    scale, or, where ``ellipse`` is False, along a line in a random direction. Source: Neal 2003; Nishihara, Murray and
    Adams 2014.
    """
    middle, scale = response.middle, response.scale
    height_key, direction_key, width_key, place_key, shrink_key = jax.random.split(key, 5)
    noise = jax.random.normal(direction_key, vector.shape, vector.dtype)
    relative = _draw_width(width_key, response.standard(vector - middle))
    width = jnp.where(ellipse, 2.0 * jnp.pi, _WIDTH)

    def path(step: Any) -> Any:
        turned = middle + (vector - middle) * jnp.cos(step) + relative * scale @ noise * jnp.sin(step)
        return jnp.where(ellipse, turned, vector + step * (scale @ (noise / jnp.linalg.norm(noise))))

    def without_ellipse(vector: Any) -> Any:
        standard = response.standard(vector - middle)
        return jnp.where(ellipse, 0.5 * (_FREEDOM + len(vector)) * jnp.log1p(standard @ standard / _FREEDOM), 0.0)

    height = density + without_ellipse(vector) - jax.random.exponential(height_key)
    high = width * jax.random.uniform(place_key)

    def unfinished(carry: Any) -> Any:
        *_, accepted, count = carry
        return ~accepted & (count < MAX_SHRINKS)

    def propose(carry: Any) -> Any:
        low, high, key, held, _, count = carry
        key, draw = jax.random.split(key)
        step = jax.random.uniform(draw, minval=low, maxval=high)
        proposed = path(step)
        moved, density = at(proposed)
        accepted = density + without_ellipse(proposed) >= height
        held = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), (proposed, moved), held)
        return jnp.where(step < 0, step, low), jnp.where(step < 0, high, step), key, held, accepted, count + 1

    start = (high - width, high, shrink_key, (vector, state), jnp.array(False), 0)
    return jax.lax.while_loop(unfinished, propose, start)[3]


def _draw_width(key: Any, standard: Any) -> Any:
    """The width of the normal distribution that a t distribution is where its standardised vector is this."""
    chi_square = 2.0 * jax.random.gamma(key, (_FREEDOM + len(standard)) / 2.0)
    return jnp.sqrt((_FREEDOM + standard @ standard) / chi_square)
