"""Natural parameters of q, and natural-gradient steps."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from pgmodels.priors.linalg import root_of_one_plus


class NaturalParameters(NamedTuple):
    """q of the whitened coordinates v of a block of latents: P - I and P E v, with P the precision.

    With latent subsampling, one q for each latent along the first axis.
    """

    precision: Float[Array, "*latents D D"]
    potential: Float[Array, "*latents D"]


def to_moments(naturals: NaturalParameters) -> tuple[Float[Array, "D D"], Float[Array, " D"]]:
    """The root of P, and E v."""
    root = root_of_one_plus(naturals.precision)
    return root, cho_solve((root, True), naturals.potential)


def divergence_of(root: Float[Array, "D D"], centre: Float[Array, " D"]) -> Float[Array, ""]:
    """KL(q || prior) of whitened coordinates with mean ``centre`` and a precision with this root."""
    spread = jnp.sum(solve_triangular(root, jnp.eye(len(root)), lower=True) ** 2)
    return 0.5 * (spread + centre @ centre - len(root)) + jnp.sum(jnp.log(jnp.diagonal(root)))


def divergence_between(one: NaturalParameters, other: NaturalParameters) -> Float[Array, ""]:
    """KL(one || other)."""
    (root, centre), (its_root, its_centre) = to_moments(one), to_moments(other)
    spread = jnp.sum(solve_triangular(root, its_root, lower=True) ** 2)
    moved = its_root.T @ (its_centre - centre)
    logs = jnp.log(jnp.diagonal(root)) - jnp.log(jnp.diagonal(its_root))
    return 0.5 * (spread + moved @ moved - len(root)) + jnp.sum(logs)


def difference(one: Any, other: Any) -> Any:
    """The difference of two trees."""
    return jax.tree.map(lambda a, b: a - b, one, other)


def natural_step(now: NaturalParameters, toward: NaturalParameters, rate: Array) -> NaturalParameters:
    """A step of q along a gradient of its natural parameters."""
    return NaturalParameters(now.precision + rate * toward.precision, now.potential + rate * toward.potential)


def retraction_step(now: NaturalParameters, toward: NaturalParameters, rate: Array) -> NaturalParameters:
    """The same step if its precision is positive definite, else by retraction: P + r G + r² G P^-1 G / 2 always is.

    Source: Lin, Schmidt and Khan 2020, the improved rule.
    """
    moved = natural_step(now, toward, rate)

    def retracted() -> NaturalParameters:
        root, centre = to_moments(now)
        half = rate * solve_triangular(root, toward.precision, lower=True)
        bend = 0.5 * half.T @ half
        return NaturalParameters(moved.precision + bend, moved.potential + bend @ centre)

    return jax.lax.cond(jnp.isfinite(root_of_one_plus(moved.precision)).all(), lambda: moved, retracted)
