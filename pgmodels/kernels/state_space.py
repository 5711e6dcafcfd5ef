"""State-space forms of kernels, and oscillators."""

from abc import abstractmethod
from functools import cache, partial
from math import comb, factorial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pgmodels.runtime.precision import Module


class StateSpace(Module):
    """A Gaussian Markov process x(t) in d dimensions with mean zero; its first entry is the latent.

    x(t + dt) = F(dt) x(t) + noise with covariance Q(dt), for functions F and Q of dt >= 0. Law: F(dt) P(t) is the
    covariance of x(t + dt) with x(t), and P(t + dt) = F(dt) P(t) F(dt)^T + Q(dt).
    """

    @property
    def is_stationary(self) -> bool:
        """Whether P(t) is the same at all times."""
        return True

    @property
    def is_exact(self) -> bool:
        """Whether the process has exactly the kernel, at all values of its hyperparameters."""
        return True

    @property
    def omitted_variance(self) -> Float[Array, ""]:
        """The variance of the kernel that the process leaves out; 0 if the process is exact."""
        return jnp.zeros(())

    @property
    @abstractmethod
    def dimension(self) -> int:
        """The number d of entries of a state."""

    @abstractmethod
    def covariance(self, t: Float[Array, " m"]) -> Float[Array, "m d d"]:
        """Return the prior covariance P(t) of the states at times t."""

    @abstractmethod
    def transition(self, dt: Float[Array, " m"]) -> Float[Array, "m d d"]:
        """Return F(dt)."""

    @abstractmethod
    def noise(self, dt: Float[Array, " m"]) -> Float[Array, "m d d"]:
        """Return Q(dt), each entry to full relative accuracy however short dt is."""


class MaternState(StateSpace):
    """A Matérn process of half-integer order with its derivatives, in units of the lengthscale over √(2 order).

    ``order`` is 2 ν = 1, 3 or 5. The state has (order + 1) / 2 entries. Source: Hartikainen and Särkkä 2010.
    """

    order: int = eqx.field(static=True)
    variance: Float[Array, ""]
    lengthscale: Float[Array, ""]

    @property
    def dimension(self) -> int:
        return (self.order + 1) // 2

    def covariance(self, t: Float[Array, " m"]) -> Float[Array, "m d d"]:
        stationary = self.variance * _coefficients(self.dimension)[1].sum(axis=0)
        return jnp.broadcast_to(stationary, (len(t), *stationary.shape))

    def transition(self, dt: Float[Array, " m"]) -> Float[Array, "m d d"]:
        """Return the exponential of a matrix whose only eigenvalue is -1."""
        s = self._scaled(dt)
        powers = s[:, None] ** np.arange(self.dimension)
        return jnp.exp(-s)[:, None, None] * jnp.tensordot(powers, _coefficients(self.dimension)[0], 1)

    def noise(self, dt: Float[Array, " m"]) -> Float[Array, "m d d"]:
        coefficients = _coefficients(self.dimension)[1]
        return self.variance * jnp.tensordot(incomplete_gammas(2.0 * self._scaled(dt), self.order), coefficients, 1)

    def _scaled(self, dt: Array) -> Array:
        return np.sqrt(self.order) * dt / self.lengthscale


class ConstantState(StateSpace):
    """A constant process."""

    variance: Float[Array, ""]
    dimension = 1

    def covariance(self, t: Float[Array, " m"]) -> Float[Array, "m 1 1"]:
        return jnp.broadcast_to(self.variance, (len(t), 1, 1))

    def transition(self, dt: Float[Array, " m"]) -> Float[Array, "m 1 1"]:
        return jnp.ones((len(dt), 1, 1))

    def noise(self, dt: Float[Array, " m"]) -> Float[Array, "m 1 1"]:
        return jnp.zeros((len(dt), 1, 1))


class WhiteState(ConstantState):
    """An independent value at every time."""

    def transition(self, dt: Float[Array, " m"]) -> Float[Array, "m 1 1"]:
        return jnp.where(dt == 0.0, 1.0, 0.0)[:, None, None]

    def noise(self, dt: Float[Array, " m"]) -> Float[Array, "m 1 1"]:
        return self.variance * jnp.where(dt == 0.0, 0.0, 1.0)[:, None, None]


class LineState(StateSpace):
    """A line through the origin, with its slope."""

    variance: Float[Array, ""]
    dimension = 2
    is_stationary = False

    def covariance(self, t: Float[Array, " m"]) -> Float[Array, "m 2 2"]:
        return self.variance * _matrices([[t**2, t], [t, jnp.ones_like(t)]])

    def transition(self, dt: Float[Array, " m"]) -> Float[Array, "m 2 2"]:
        one = jnp.ones_like(dt)
        return _matrices([[one, dt], [0.0 * one, one]])

    def noise(self, dt: Float[Array, " m"]) -> Float[Array, "m 2 2"]:
        return jnp.zeros((len(dt), 2, 2))


class WalkState(ConstantState):
    """A random walk, 0 at its start; ``variance`` is the variance of a step over one unit of time."""

    start: Float[Array, ""]
    is_stationary = False

    def covariance(self, t: Float[Array, " m"]) -> Float[Array, "m 1 1"]:
        return self.noise(t - self.start)

    def noise(self, dt: Float[Array, " m"]) -> Float[Array, "m 1 1"]:
        return self.variance * dt[:, None, None]


class PairState(StateSpace):
    """A process made of two independent processes."""

    first: StateSpace
    second: StateSpace

    @property
    def is_stationary(self) -> bool:
        return self.first.is_stationary and self.second.is_stationary

    @property
    def is_exact(self) -> bool:
        return self.first.is_exact and self.second.is_exact


class SumState(PairState):
    """The states of two processes; the first entry is the sum of both latents."""

    @property
    def omitted_variance(self) -> Float[Array, ""]:
        return self.first.omitted_variance + self.second.omitted_variance

    @property
    def dimension(self) -> int:
        return self.first.dimension + self.second.dimension

    def covariance(self, t: Float[Array, " m"]) -> Float[Array, "m d d"]:
        return self._mixed(self.first.covariance(t), self.second.covariance(t))

    def transition(self, dt: Float[Array, " m"]) -> Float[Array, "m d d"]:
        blocks, mix = block_diagonal(self.first.transition(dt), self.second.transition(dt)), self._mix
        return mix @ blocks @ (2.0 * np.eye(len(mix)) - mix)

    def noise(self, dt: Float[Array, " m"]) -> Float[Array, "m d d"]:
        return self._mixed(self.first.noise(dt), self.second.noise(dt))

    @property
    def _mix(self) -> np.ndarray:
        mix = np.eye(self.dimension)
        mix[0, self.first.dimension] = 1.0
        return mix

    def _mixed(self, one: Array, other: Array) -> Array:
        return self._mix @ block_diagonal(one, other) @ self._mix.T


class ProductState(PairState):
    """The Kronecker product of the states of two stationary processes."""

    @property
    def dimension(self) -> int:
        return self.first.dimension * self.second.dimension

    @property
    def omitted_variance(self) -> Float[Array, ""]:
        one, other = self.first.omitted_variance, self.second.omitted_variance
        return _variance(self.first) * other + one * (_variance(self.second) + other)

    def covariance(self, t: Float[Array, " m"]) -> Float[Array, "m d d"]:
        return _kronecker(self.first.covariance(t), self.second.covariance(t))

    def transition(self, dt: Float[Array, " m"]) -> Float[Array, "m d d"]:
        return _kronecker(self.first.transition(dt), self.second.transition(dt))

    def noise(self, dt: Float[Array, " m"]) -> Float[Array, "m d d"]:
        # P1 x P2 - F1 P1 F1^T x F2 P2 F2^T, computed without cancellation.
        F = self.first.transition(dt)
        carried = F @ self.first.covariance(dt) @ jnp.swapaxes(F, 1, 2)
        return _kronecker(self.first.noise(dt), self.second.covariance(dt)) + _kronecker(carried, self.second.noise(dt))


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def incomplete_gammas(x: Float[Array, " m"], count: int) -> Float[Array, "m count"]:
    """Return P(k, x) = 1 - exp(-x) sum_{j < k} x^j / j! for k = 1 to ``count``, x >= 0, to full relative accuracy."""
    # Below 2, they are summed as series with enough terms for full relative accuracy.
    is_small, small = x < 2.0, jnp.minimum(x, 2.0)
    term = small**count / factorial(count)
    series = jnp.zeros_like(x)
    for further in range(26):
        series, term = series + term, term * small / (count + further + 1)
    powers = [jnp.exp(-x) * x**k / factorial(k) for k in range(count)]
    columns = [jnp.where(is_small, jnp.exp(-small) * series, 1.0 - sum(powers))]
    for k in range(count - 1, 0, -1):
        columns.append(columns[-1] + powers[k])
    return jnp.stack(columns[::-1], axis=1)


@incomplete_gammas.defjvp
def _slopes_of_gammas(count: int, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (moved,) = primals, tangents
    slopes = jnp.stack([jnp.exp(-x) * x**k / factorial(k) for k in range(count)], axis=1)
    return incomplete_gammas(x, count), slopes * moved[:, None]


@cache
def _coefficients(d: int) -> tuple[np.ndarray, np.ndarray]:
    """Return unit-variance coefficients of exp(s) F(s) in s^k, (d, d, d), and Q in P(k + 1, 2 s), (2 d - 1, d, d)."""
    companion = np.diag(np.ones(d - 1), 1)
    companion[-1] = [-comb(d, j) for j in range(d)]
    powers = [np.linalg.matrix_power(companion + np.eye(d), k) / factorial(k) for k in range(d)]
    across = np.zeros((2 * d - 1, d, d))
    for i, one in enumerate(powers):
        for j, other in enumerate(powers):
            across[i + j] += np.outer(one[:, -1], other[:, -1])
    integrals = [factorial(k) / 2.0 ** (k + 1) for k in range(2 * d - 1)]
    intensity = factorial(d - 1) ** 2 * 2.0 ** (2 * d - 1) / factorial(2 * d - 2)
    return np.stack(powers), intensity * np.array(integrals)[:, None, None] * across


def _variance(state: StateSpace) -> Float[Array, ""]:
    return state.covariance(jnp.zeros(1))[0, 0, 0]


def _matrices(entries: list[list[Array]]) -> Float[Array, "m i j"]:
    return jnp.stack([jnp.stack(row, axis=-1) for row in entries], axis=-2)


def block_diagonal(one: Float[Array, "*n i i"], other: Float[Array, "*n j j"]) -> Float[Array, "*n d d"]:
    """Return block-diagonal matrices of two blocks."""
    i, j, rest = one.shape[-1], other.shape[-1], [(0, 0)] * (one.ndim - 2)
    return jnp.pad(one, [*rest, (0, j), (0, j)]) + jnp.pad(other, [*rest, (i, 0), (i, 0)])


def _kronecker(one: Float[Array, "m i i"], other: Float[Array, "m j j"]) -> Float[Array, "m d d"]:
    d = one.shape[1] * other.shape[1]
    return (one[:, :, None, :, None] * other[:, None, :, None, :]).reshape(len(one), d, d)


class OscillatorState(StateSpace):
    """The sum of harmonics 1, 2, ... of a frequency, each a cos(j frequency t) + b sin(j frequency t).

    The state has the quadrature pair of each harmonic; the first entry of the first pair is replaced by the sum.
    ``variances`` has one entry per harmonic, and ``frequency`` is in radians per unit of time. ``omitted`` is the
    variance of the harmonics that are left out, or None for a wave that has no other harmonics.
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
        stationary = self._sum @ jnp.diag(jnp.repeat(self.variances, 2)) @ self._sum.T
        return jnp.broadcast_to(stationary, (len(t), *stationary.shape))

    def transition(self, dt: Float[Array, " m"]) -> Float[Array, "m d d"]:
        """Return the rotation of each pair."""
        angles = jnp.repeat(self.frequency * dt[:, None] * np.arange(1, len(self.variances) + 1), 2, axis=1)
        eye, turn = np.eye(self.dimension), np.kron(np.eye(len(self.variances)), [[0.0, -1.0], [1.0, 0.0]])
        rotations = jnp.cos(angles)[:, :, None] * eye + jnp.sin(angles)[:, :, None] * turn
        return self._sum @ rotations @ (2.0 * eye - self._sum)

    def noise(self, dt: Float[Array, " m"]) -> Float[Array, "m d d"]:
        return jnp.zeros((len(dt), self.dimension, self.dimension))

    @property
    def _sum(self) -> np.ndarray:
        """Return the matrix that replaces the first entry by the sum of the first entries of all pairs."""
        matrix = np.eye(self.dimension)
        matrix[0, ::2] = 1.0
        return matrix


def harmonic_shares(lengthscale: Float[Array, ""] | float, count: int) -> Float[Array, " count+1"]:
    """Return the shares of harmonics 0 to ``count`` in the variance of a periodic kernel of this lengthscale.

    exp(-2 sin^2(a/2) / lengthscale^2) = sum_j shares_j cos(j a), with shares from modified Bessel functions: 2 I_j(z)
    exp(-z), z = 1 / lengthscale^2. Source: Solin and Särkkä 2014, equation 23; computed by a sum over a period.
    """
    # The sum is exact to rounding for all numbers that ``harmonics_for`` chooses.
    points = 192 + 4 * count
    angles = 2.0 * np.pi * np.arange(points) / points
    waves = np.cos(angles * np.arange(count + 1)[:, None]) * np.where(np.arange(count + 1) == 0, 1.0, 2.0)[:, None]
    profile = jnp.exp(-2.0 * (np.sin(0.5 * angles) / lengthscale) ** 2)
    # Shares below the rounding error may be negative.
    return jnp.maximum(waves @ profile / points, 0.0)


def harmonics_for(lengthscale: float) -> int:
    """Return the number of harmonics, at most 20, that leave out less than a share 1e-8 of the variance."""
    from scipy.special import ive

    # The time of a step grows with the third power of the largest number.
    omitted = 1.0 - ive(0, lengthscale**-2.0) - np.cumsum(2.0 * ive(np.arange(1, 20), lengthscale**-2.0))
    return 1 + int(np.sum(omitted >= 1e-8))
