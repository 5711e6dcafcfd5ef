"""A slice step on hyperparameters along an ellipse or a line, by shrinkage of an interval."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# Degrees of freedom of the t distribution whose ellipses are used.
_FREEDOM = 8
# Initial bracket of a step along a line, in standard deviations of its direction.
_WIDTH = 4.0
# Maximum number of shrinkages, by 2^-100 in all: the rest is rounding, and the chain does not move.
MAX_SHRINKS = 100


class Uniforms(NamedTuple):
    """The uniform numbers of a slice step: for its height, its first proposal, and the shrinkages.

    All are drawn at once: random draws within a loop take far longer to compile.
    """

    height: Any
    first: Any
    others: Any

    @classmethod
    def draw(cls, key: Any) -> "Uniforms":
        """Numbers for the maximum number of shrinkages."""
        drawn = jax.random.uniform(key, (2 + MAX_SHRINKS,))
        return cls(drawn[0], drawn[1], drawn[2:])

    def height_below(self, density: Any) -> Any:
        """The log of a uniform height below a density, from the log density."""
        return density + jnp.log1p(-self.height)

    def between(self, low: Any, high: Any, count: Any) -> Any:
        """A proposal within an interval after a number of shrinkages."""
        return low + (high - low) * self.others[count]


def slice_step(key: Any, path: Any, vector: Any, state: Any, density: Any, at: Any, ellipse: Any) -> tuple[Any, Any]:
    """A slice step from a vector with its state and log density; ``at(vector)`` computes those of another.

    Along an ellipse of the t distribution with the location and scale of the surrogate or, if ``ellipse`` is False,
    along a line in a random direction. Source: Neal 2003; Nishihara, Murray and
    Adams 2014.
    """
    middle, scale = path.middle, path.scale
    normal_key, uniform_key = jax.random.split(key)
    noise, others = jnp.split(jax.random.normal(normal_key, (2 * len(vector) + _FREEDOM,)), [len(vector)])
    uniforms = Uniforms.draw(uniform_key)
    relative = _width(path.standard(vector - middle), others @ others)
    width = jnp.where(ellipse, 2.0 * jnp.pi, _WIDTH)

    def point_at(step: Any) -> Any:
        turned = middle + (vector - middle) * jnp.cos(step) + relative * scale @ noise * jnp.sin(step)
        return jnp.where(ellipse, turned, vector + step * (scale @ (noise / jnp.linalg.norm(noise))))

    def without_ellipse(vector: Any) -> Any:
        standard = path.standard(vector - middle)
        return jnp.where(ellipse, 0.5 * (_FREEDOM + len(vector)) * jnp.log1p(standard @ standard / _FREEDOM), 0.0)

    height = uniforms.height_below(density + without_ellipse(vector))
    high = width * uniforms.first

    def unfinished(carry: Any) -> Any:
        *_, accepted, count = carry
        return ~accepted & (count < MAX_SHRINKS)

    def propose(carry: Any) -> Any:
        low, high, accepted_point, _, count = carry
        step = uniforms.between(low, high, count)
        proposed = point_at(step)
        moved, density = at(proposed)
        accepted = density + without_ellipse(proposed) >= height
        accepted_point = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), (proposed, moved), accepted_point)
        return jnp.where(step < 0, step, low), jnp.where(step < 0, high, step), accepted_point, accepted, count + 1

    start = (high - width, high, (vector, state), jnp.array(False), 0)
    return jax.lax.while_loop(unfinished, propose, start)[2]


def _width(standard: Any, chi_square: Any) -> Any:
    """A draw of the scale of the normal distribution, given a standardised vector of the t distribution.

    ``chi_square`` is drawn with the degrees of freedom of the t distribution plus the size of the vector.
    """
    return jnp.sqrt((_FREEDOM + standard @ standard) / chi_square)
