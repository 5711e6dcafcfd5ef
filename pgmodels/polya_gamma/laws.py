"""The distribution of J*(h, z) = 4 PG(h, 2z) about its mean: window, density and hat function."""

from math import log, pi
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from pgmodels.polya_gamma.moments import relative_mean, relative_variance
from pgmodels.polya_gamma.namespace import namespace
from pgmodels.polya_gamma.tangent_hat import TangentHat, tangent_hat

_Four = tuple[Array, Array, Array, Array]
_Five = tuple[Array, Array, Array, Array, Array]

# Windows omit a mass below 2 exp(-32) = 3e-14.
_LEVEL = 32.0
# With 32 nodes the characteristic function falls below 1e-13 wherever a TransformLaw is used.
_NUM_NODES = 32
# Above this cancellation a TransformLaw is accurate: it has enough nodes, and h > 100.
MIN_CANCELLATION = 14.0


def in_domain(h: Any, z: Any) -> Any:
    """The domain of exact draws: beyond, a TransformLaw loses half its digits, or a law is narrower than rounding."""
    return (h >= 0) & (h <= 1e15) & (2 * z <= 1e20)


def cancellation(h: Any, z: Any) -> Any:
    """h exp(-2h/mean) = h exp(-2z/tanh z): the cancellation of the alternating series; grows with h, falls with z."""
    return h * namespace(z).exp(-2 / relative_mean(z))


class Window(NamedTuple):
    """The mean and standard deviation of a law, and the limits of its window as offsets from the mean."""

    mean: Any
    deviation: Any
    lower: Any
    upper: Any

    def points(self) -> Any:
        """Offsets of the tangents of the hat, good for laws from Gaussian to as skewed as J*(1, 0)."""
        xp = namespace(self.mean)
        # Chosen to maximise the acceptance: 0.886 for a Gaussian law, 0.96 for J*(1, 0).
        spread = self.deviation / self.mean
        steps = [(-1.42 - 1.60 * spread), -1.35 * spread, (1.41 - 1.28 * spread)]
        return self.mean * xp.expm1(spread * xp.stack(steps))


def window(h: Any, z: Any) -> Window:
    """The window of J*(h, z), a sum of Gamma variables of scale at most 1/(π²/8 + z²/2), hence sub-Gamma.

    Boucheron, Lugosi and Massart (2013), section 2.4: P(x - mean > √(2vt) + t scale) and P(x - mean < -√(2vt)) are at
    most exp(-t), with v the variance.
    """
    xp = namespace(h)
    mean, deviation = h * relative_mean(z), xp.sqrt(h * relative_variance(z))
    reach = (2 * _LEVEL) ** 0.5 * deviation
    return Window(mean, deviation, xp.maximum(-reach, -mean), reach + _LEVEL / (pi**2 / 8 + z**2 / 2))


def alternating_series(x: Array, h: Array) -> tuple[Array, Array]:
    """The density of J*(h, 0) at ``x`` > 0 over the first term of its series, and its derivative, in JAX.

    Summed until no term is above 1e-17; ``density.alternating_series`` has the series and the stopping rule.
    Terms are computed recursively, without exponentials.
    """
    one, speed = jnp.ones_like(x), jnp.exp(-4 / x)

    def cond(state: _Five) -> Array:
        return jnp.any(jnp.abs(state[2]) > 1e-17)

    def body(state: _Five) -> _Five:
        n, decay, term, total, slope = state
        term = -term * decay * (n - 1 + h) / n
        weighted = term * (1 + 2 * n / h)
        return n + 1, decay * speed, term, total + weighted, slope + weighted * n * (n + h)

    start = (jnp.ones(()), jnp.exp(-2 * (1 + h) / x), one, one, jnp.zeros_like(x))
    _, _, _, total, slope = lax.while_loop(cond, body, start)
    return total, 2 * slope / x**2


class Density(NamedTuple):
    """A density, exp(scale) times factor, with derivatives of both; in the far tail rounding may give factor <= 0."""

    scale: Any
    factor: Any
    scale_slope: Any
    factor_slope: Any


class SeriesLaw(NamedTuple):
    """The density by its alternating series, in JAX; no digits are lost where the cancellation is at most 0.7."""

    h: Array
    z: Array
    mean: Array

    def evaluate(self, y: Array) -> Density:
        """The density at mean + ``y``."""
        x = self.mean + y
        # h - z x, where z mean = h tanh(z).
        rest = 2 * self.h / (jnp.exp(2 * self.z) + 1) - self.z * y
        first = jnp.log(self.h) + self.h * jnp.log1p(jnp.exp(-2 * self.z)) - 0.5 * log(2 * pi) - 1.5 * jnp.log(x)
        series, derivative = alternating_series(x, self.h)
        slope = -1.5 / x + rest * (self.h + self.z * x) / (2 * x**2)
        return Density(first - rest**2 / (2 * x), series, slope, derivative)


class TransformLaw(NamedTuple):
    """The density by the trapezoidal rule on the characteristic function, for cancellations above MIN_CANCELLATION.

    With nodes t_k = 2πk/P the rule gives the sum of the densities at x + jP over all integers j (Poisson's summation
    formula): inside a window of length P its error is the mass outside. The rounding error relative to the density at
    the mode is 1e-15 at h = 100, 3e-13 at h = 1e6 (measured), and proportional to √h beyond.
    """

    step: Any
    real: Any
    imaginary: Any

    def evaluate(self, y: Any) -> Density:
        """The density at mean + ``y``, in JAX or in NumPy, like the law's arrays."""
        total, derivative = (_trapezoid_numpy if namespace(y) is np else _trapezoid)(self, y)
        scale = namespace(y).log(self.step / (2 * pi))
        return Density(scale + 0 * y, 1 + total, 0 * y, self.step * derivative)


def transform_law(h: Any, z: Any, bounds: Window) -> TransformLaw:
    """E exp(it (x - mean)) = (cosh z / cosh √(z² - 2it))^h exp(-it mean), doubled, at the nodes.

    Written with √(z² - 2it) = p - iq so that the log of the modulus is accurate for small t, that is large h.
    """
    xp = namespace(h)
    step = 2 * pi / (bounds.upper - bounds.lower)
    t = step * np.arange(1.0, _NUM_NODES + 1)[:, None]
    p = xp.sqrt((z**2 + xp.sqrt(z**4 + 4 * t**2)) / 2)
    q = t / p
    # |cosh(p - iq)|²/cosh² z - 1, with p² - z² = q².
    excess = 2 * (xp.sinh(p + z) * xp.sinh(q**2 / (p + z)) - xp.sin(q) ** 2) / (1 + xp.cosh(2 * z))
    modulus = 2 * xp.exp(-h / 2 * xp.log1p(excess))
    phase = h * xp.arctan2(xp.tanh(p) * xp.sin(q), xp.cos(q)) - t * bounds.mean
    return TransformLaw(step, modulus * xp.cos(phase), modulus * xp.sin(phase))


def _trapezoid(law: TransformLaw, y: Array) -> tuple[Array, Array]:
    """The real part of Σ_k c_k exp(-ik step y), and its derivative over the step: polynomials, by Horner's rule."""
    cos, sin = jnp.cos(law.step * y), -jnp.sin(law.step * y)

    def horner(state: _Four, node: tuple[Array, Array, Array]) -> tuple[_Four, None]:
        a, b, da, db = state
        k, real, imaginary = node
        a, b, da, db = a + real, b + imaginary, da + k * real, db + k * imaginary
        return (a * cos - b * sin, a * sin + b * cos, da * cos - db * sin, da * sin + db * cos), None

    nodes = jnp.arange(1.0, _NUM_NODES + 1), law.real, law.imaginary
    zero = jnp.zeros_like(y)
    (total, _, _, derivative), _ = lax.scan(horner, (zero, zero, zero, zero), nodes, reverse=True)
    return total, derivative


def _trapezoid_numpy(law: TransformLaw, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``_trapezoid`` as one sum over nodes, which is faster in NumPy."""
    k = np.arange(1.0, _NUM_NODES + 1)[:, None]
    total, derivative = np.empty_like(y), np.empty_like(y)
    for row in np.ndindex(y.shape[:-1]):
        cos, sin = np.cos(k * law.step * y[row]), np.sin(k * law.step * y[row])
        total[row] = (law.real * cos + law.imaginary * sin).sum(0)
        derivative[row] = (k * (law.imaginary * cos - law.real * sin)).sum(0)
    return total, derivative


def hat_of(law: SeriesLaw | TransformLaw, bounds: Window) -> tuple[TangentHat, Any]:
    """The hat of a log-concave law relative to the density at its middle point, and the log of that density."""
    points = bounds.points()
    density = law.evaluate(points)
    heights = density.scale + namespace(points).log(density.factor)
    slopes = density.scale_slope + density.factor_slope / density.factor
    return tangent_hat(points, heights - heights[1], slopes), heights[1]
