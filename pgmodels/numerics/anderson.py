"""Anderson acceleration: the next sites of a fixed-point iteration from its last few, not from the very last alone."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Bool, Float

if TYPE_CHECKING:
    from pgmodels.priors.base import Sites

# Moves that are remembered, and what is added to the squares of their residuals, relative to all of them together:
# moves soon point the same way, and their weights would be rounding.
_DEPTH, _RIDGE = 5, 1e-10
# The share of a precision aimed at that is kept at least, where precisions may not be negative.
_LEAST = 0.1


class History(NamedTuple):
    """The last sites' image under the map and how far it was from them, and how these two changed before.

    ``latest`` is zero where no sites are known, and moves that are not known are zero.
    """

    latest: Float[Array, "2 size"]
    moves: Float[Array, "depth 2 size"]

    @property
    def started(self) -> Bool[Array, ""]:
        """Whether any sites are known."""
        return jnp.any(self.latest != 0)

    def after(self, sites: Iterable[Array], image: Iterable[Array]) -> "History":
        """With more sites and their image, or other arrays."""
        vector = _flat(image)
        latest = jnp.stack([vector, vector - _flat(sites)])
        move = jnp.where(self.started, latest - self.latest, 0.0)
        return History(latest, jnp.concatenate([self.moves[1:], move[None]]))

    def combined(self) -> Float[Array, " size"]:
        """The image of the combination whose residual is smallest; the last image where no move is known.

        Source: Walker and Ni 2011, equation 2.3.
        """
        vector, residual = self.latest
        R = self.moves[:, 1]
        squares = R @ R.T
        ridge = _RIDGE * jnp.trace(squares) + jnp.finfo(R.dtype).tiny
        weights = cho_solve(cho_factor(squares + ridge * jnp.eye(_DEPTH), lower=True), R @ residual)
        return vector - weights @ self.moves[:, 0]

    def extrapolated(self, image: "Sites") -> "Sites":
        """``combined`` as sites, with precisions that stay positive where those of the last image are."""
        found = self.combined()
        size = image.potential.size
        precision = found[size:].reshape(image.precision.shape)
        if not image.coupled:
            precision = jnp.maximum(precision, _LEAST * image.precision)
        return image._replace(potential=found[:size].reshape(image.potential.shape), precision=precision)

    def apart(self) -> "History":
        """The moves alone, for sites of another map that is much like this one."""
        return History(jnp.zeros_like(self.latest), self.moves)

    def kept(self, keep: Bool[Array, ""]) -> "History":
        """The same, or one without a past."""
        return History(*(jnp.where(keep, part, 0.0) for part in self))


def empty_history(sites: Iterable[Array]) -> History:
    """Of an iteration that starts."""
    size = sum(part.size for part in sites)
    return History(jnp.zeros((2, size)), jnp.zeros((_DEPTH, 2, size)))


def _flat(sites: Iterable[Array]) -> Float[Array, " size"]:
    return jnp.concatenate([part.ravel() for part in sites])
