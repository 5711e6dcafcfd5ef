"""Anderson acceleration of a fixed-point iteration over sites: extrapolates from the last few iterates."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Bool, Float

if TYPE_CHECKING:
    from pgmodels.priors.base import Sites

# The number of differences that are kept, and the ridge of the least-squares problem relative to the trace of its
# normal matrix: differences soon become nearly collinear, and their weights would be rounding errors.
_DEPTH, _RIDGE = 5, 1e-10
# The smallest ratio of an extrapolated precision to that of the image, where that of the image is not negative.
_MIN_RATIO = 0.1


class History(NamedTuple):
    """The latest image under the map and its residual, and the last differences of these two.

    ``latest`` is zero before the first iterate, and so are missing differences.
    """

    latest: Float[Array, "2 size"]
    moves: Float[Array, "depth 2 size"]

    @property
    def started(self) -> Bool[Array, ""]:
        """Whether there is an iterate."""
        return jnp.any(self.latest != 0)

    def after(self, sites: Iterable[Array], image: Iterable[Array]) -> "History":
        """The history with another iterate and its image added."""
        vector = _flat(image)
        latest = jnp.stack([vector, vector - _flat(sites)])
        move = jnp.where(self.started, latest - self.latest, 0.0)
        return History(latest, jnp.concatenate([self.moves[1:], move[None]]))

    def combined(self) -> Float[Array, " size"]:
        """The combination of images whose residual is smallest; the latest image if there are no differences.

        Source: Walker and Ni 2011, equation 2.3.
        """
        vector, residual = self.latest
        R = self.moves[:, 1]
        squares = R @ R.T
        ridge = _RIDGE * jnp.trace(squares) + jnp.finfo(R.dtype).tiny
        weights = cho_solve(cho_factor(squares + ridge * jnp.eye(_DEPTH), lower=True), R @ residual)
        return vector - weights @ self.moves[:, 0]

    def extrapolated(self, image: "Sites") -> "Sites":
        """``combined`` as sites; uncoupled precisions stay positive where those of the image are."""
        vector = self.combined()
        size = image.potential.size
        precision = vector[size:].reshape(image.precision.shape)
        if not image.coupled:
            positive = jnp.maximum(precision, _MIN_RATIO * image.precision)
            precision = jnp.where(image.precision < 0.0, precision, positive)
        return image._replace(potential=vector[:size].reshape(image.potential.shape), precision=precision)

    def without_iterate(self) -> "History":
        """The differences alone, for the iterates of a similar map."""
        return History(jnp.zeros_like(self.latest), self.moves)

    def masked(self, keep: Bool[Array, ""]) -> "History":
        """This history if ``keep``, else an empty one."""
        return History(*(jnp.where(keep, array, 0.0) for array in self))


def empty_history(sites: Iterable[Array]) -> History:
    """The history before the first iterate."""
    size = sum(array.size for array in sites)
    return History(jnp.zeros((2, size)), jnp.zeros((_DEPTH, 2, size)))


def _flat(sites: Iterable[Array]) -> Float[Array, " size"]:
    return jnp.concatenate([array.ravel() for array in sites])
