"""Oscillators with random amplitudes and phases as a Markov process, and periodic kernels as sums of them."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pgmodels.kernels.state_space import StateSpace

# Points of a period at which its kernel is summed, beside four for each harmonic: exact to rounding for all that are
# chosen.
_POINTS = 192
# The number of harmonics that is chosen leaves out less than this share of the variance.
LEFT_OUT = 1e-8
# The largest number that is chosen: the time of a step grows with its third power.
_CHOSEN = 20


class OscillatorState(StateSpace):
    """The sum of harmonics 1, 2, ... of a frequency, each a cos(j frequency t) + b sin(j frequency t).

    The state has the quadrature pair of each harmonic, and the sum in place of the first entry of the first pair.
    ``variances`` are those of the harmonics, ``frequency`` is in radians a unit of time, and ``omitted`` is the
    variance of the harmonics that it leaves out, None for a wave without others.
    """

    variances: Float[Array, " k"]
    frequency: Float[Array, ""]
    omitted: Float[Array, ""] | None = None

    @property
    def dimension(self) -> int:
        return 2 * len(self.variances)

    @property
    def omitted_variance(self) -> Float[Array, ""]:
        return jnp.zeros(()) if self.omitted is None else self.omitted

    @property
    def is_exact(self) -> bool:
        return self.omitted is None

    def covariance(self, t: Float[Array, " m"]) -> Float[Array, "m d d"]:
        """The same at all times."""
        stationary = self._sum @ jnp.diag(jnp.repeat(self.variances, 2)) @ self._sum.T
        return jnp.broadcast_to(stationary, (len(t), *stationary.shape))

    def transition(self, dt: Float[Array, " m"]) -> Float[Array, "m d d"]:
        """The rotation of each pair."""
        angles = jnp.repeat(self.frequency * dt[:, None] * np.arange(1, len(self.variances) + 1), 2, axis=1)
        eye, turn = np.eye(self.dimension), np.kron(np.eye(len(self.variances)), [[0.0, -1.0], [1.0, 0.0]])
        rotations = jnp.cos(angles)[:, :, None] * eye + jnp.sin(angles)[:, :, None] * turn
        return self._sum @ rotations @ (2.0 * eye - self._sum)

    def noise(self, dt: Float[Array, " m"]) -> Float[Array, "m d d"]:
        return jnp.zeros((len(dt), self.dimension, self.dimension))

    @property
    def _sum(self) -> np.ndarray:
        """The matrix that replaces the first entry by the sum of the first entries of all pairs."""
        matrix = np.eye(self.dimension)
        matrix[0, ::2] = 1.0
        return matrix


def harmonic_shares(lengthscale: Any, count: int) -> Float[Array, " count+1"]:
    """The shares of harmonics 0 to ``count`` in the variance of a periodic kernel of this lengthscale.

    exp(-2 sin^2(a/2) / lengthscale^2) = sum_j shares_j cos(j a), with shares of modified Bessel functions: 2 I_j(z)
    exp(-z), z = 1 / lengthscale^2. Source: Solin and Särkkä 2014, equation 23; by a sum over a period.
    """
    points = _POINTS + 4 * count
    angles = 2.0 * np.pi * np.arange(points) / points
    waves = np.cos(angles * np.arange(count + 1)[:, None]) * np.where(np.arange(count + 1) == 0, 1.0, 2.0)[:, None]
    profile = jnp.exp(-2.0 * (np.sin(0.5 * angles) / lengthscale) ** 2)
    # Shares below rounding may be negative.
    return jnp.maximum(waves @ profile / points, 0.0)


def harmonics_for(lengthscale: float) -> int:
    """The number of harmonics that leave out less than a share ``LEFT_OUT`` of the variance, and 20 at most."""
    from scipy.special import ive

    orders = np.arange(1, _CHOSEN)
    omitted = 1.0 - ive(0, lengthscale**-2.0) - np.cumsum(2.0 * ive(orders, lengthscale**-2.0))
    return 1 + int(np.sum(omitted >= LEFT_OUT))
