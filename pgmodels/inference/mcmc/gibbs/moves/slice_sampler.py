"""Elliptical slice steps on hyperparameters, by an interval that shrinks."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# Degrees of freedom of the t distribution on whose ellipses slice steps move.
_FREEDOM = 8
# Cost of a step in surrogates, including the slice steps on latents that follow (measured).
EVALUATIONS = 4.0
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


def slice_step(key: Any, path: Any, vector: Any, state: Any, density: Any, at: Any) -> tuple[Any, Any]:
    """A slice step from a vector with its state and log density; ``at(vector)`` computes those of another.

    It moves on an ellipse of the t distribution with the middle and scale of ``path``. Source: Neal 2003; Nishihara,
    Murray and Adams 2014.
    """
    middle, scale = path.middle, path.scale
    normal_key, uniform_key = jax.random.split(key)
    noise, others = jnp.split(jax.random.normal(normal_key, (2 * len(vector) + _FREEDOM,)), [len(vector)])
    uniforms = Uniforms.draw(uniform_key)
    relative = _width(path.standard(vector - middle), others @ others)

    def point_at(angle: Any) -> Any:
        return middle + (vector - middle) * jnp.cos(angle) + relative * scale @ noise * jnp.sin(angle)

    def minus_log_t(vector: Any) -> Any:
        standard = path.standard(vector - middle)
        return 0.5 * (_FREEDOM + len(vector)) * jnp.log1p(standard @ standard / _FREEDOM)

    height = uniforms.height_below(density + minus_log_t(vector))
    high = 2.0 * jnp.pi * uniforms.first

    def unfinished(carry: Any) -> Any:
        *_, accepted, count = carry
        return ~accepted & (count < MAX_SHRINKS)

    def propose(carry: Any) -> Any:
        low, high, accepted_point, _, count = carry
        angle = uniforms.between(low, high, count)
        proposed = point_at(angle)
        moved, density = at(proposed)
        accepted = density + minus_log_t(proposed) >= height
        accepted_point = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), (proposed, moved), accepted_point)
        return jnp.where(angle < 0, angle, low), jnp.where(angle < 0, high, angle), accepted_point, accepted, count + 1

    start = (high - 2.0 * jnp.pi, high, (vector, state), jnp.array(False), 0)
    return jax.lax.while_loop(unfinished, propose, start)[2]


def _width(standard: Any, chi_square: Any) -> Any:
    """A draw of the scale of the normal distribution, given a standardised vector of the t distribution.

    ``chi_square`` is drawn with the degrees of freedom of the t distribution plus the size of the vector.
    """
    return jnp.sqrt((_FREEDOM + standard @ standard) / chi_square)
