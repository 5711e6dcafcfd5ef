"""The Pólya-Gamma law: moments, densities and the parts of its exact samplers."""

from math import log, pi
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import ArrayLike, Float

from pgmodels.numerics.elementary import RealArray, namespace
from pgmodels.runtime.precision import as_array

# tanh(u)/u = Σ_k t_k u^(2k), radius of convergence π/2; at |u| < 1/2 the term after these is below 1e-17. By
# tanh' = 1 - tanh²: (2k + 1) t_k = -Σ_i t_i t_(k-1-i).
_TANH = np.ones(18)
for _k in range(1, len(_TANH)):
    _TANH[_k] = -(_TANH[:_k] @ _TANH[_k - 1 :: -1]) / (2 * _k + 1)
# tanh(u)/u - sech²(u) = u² Σ_k r_k u^(2k).
_VARIANCE = (-2 * np.arange(len(_TANH)) * _TANH)[1:]
_SWITCH = 0.5


def mean(b: ArrayLike, c: ArrayLike) -> Array:
    """Return the mean b tanh(c/2)/(2c), or b/4 at c = 0; ``b`` and ``c`` broadcast."""
    return as_array(b) / 4 * relative_mean(as_array(c) / 2)


def variance(b: ArrayLike, c: ArrayLike) -> Array:
    """Return the variance b (tanh(c/2)/c - sech²(c/2)/2) / (2c²), or b/24 at c = 0; ``b`` and ``c`` broadcast."""
    return as_array(b) / 16 * relative_variance_at_square((as_array(c) / 2) ** 2)


def relative_mean(u: RealArray) -> RealArray:
    """Return tanh(u)/u, the mean of J*(1, u), in the array library of ``u``."""
    xp = namespace(u)
    near = xp.abs(u) < _SWITCH
    # Each branch has arguments that are safe for it and its derivatives.
    inner, outer = xp.where(near, u, 0.0), xp.where(near, 1.0, u)
    return xp.where(near, _polynomial(_TANH, inner**2), xp.tanh(outer) / outer)


def relative_variance_at_square(s: RealArray) -> RealArray:
    """Return (tanh(u)/u - sech²(u))/u², the variance of J*(1, u), at u = √s; it is differentiable at 0 too."""
    xp = namespace(s)
    near = s < _SWITCH**2
    u = xp.sqrt(xp.where(near, 1.0, s))
    tanh = xp.tanh(u)
    # sech² computed from tanh cannot overflow.
    outer = (tanh / u - (1 - tanh) * (1 + tanh)) / u**2
    return xp.where(near, _polynomial(_VARIANCE, xp.where(near, s, 0.0)), outer)


def _polynomial(coefficients: np.ndarray, x: RealArray) -> RealArray:
    total = namespace(x).full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient
    return total


def log_density(omega: ArrayLike | list, b: ArrayLike | list, c: ArrayLike | list) -> Float[np.ndarray, "..."]:
    """Return the log density of PG(b, c) at ``omega`` > 0, for real b > 0, in NumPy; -inf at omega <= 0.

    The alternating series of PG(b, 0) (Polson, Scott and Windle 2013, section 2.3) times exp(-c² omega/2) cosh(c/2)^b.
    Its terms cancel in the far right tail: nan if half the digits are lost (beyond 4.5 for b = 1 and 6.3 for b = 7).
    """
    omega, b, c = (np.asarray(a, dtype=np.float64) for a in np.broadcast_arrays(omega, b, c))
    x = np.where(omega > 0, 4 * omega, 1.0)
    total, largest = weighted_series(x, b)
    with np.errstate(divide="ignore", invalid="ignore"):
        series = np.where(total > 1e-8 * largest, np.log(total), np.nan)
    # PG(b, 0) = J*(b, 0)/4. The series of J* starts with 2^b times the density of Brownian motion's first passage at b.
    first = b * np.log(2) + np.log(b) - 0.5 * np.log(2 * pi * x**3) - b**2 / (2 * x)
    z = np.abs(c) / 2
    tilt = -(z**2) * x / 2 + b * (z + np.log1p(np.exp(-2 * z)) - np.log(2))
    return np.where(omega > 0, np.log(4) + first + series + tilt, -np.inf)


def weighted_series(x: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the density of J*(b, 0) over the first term of its series, and its largest term.

    The series is Σ_n (-1)^n Γ(n+b)/(Γ(b) n!) (2n+b)/b exp(-2n(n+b)/x). The ratio of successive terms falls with n. Once
    a term is negligible, all later terms are.
    """
    shape = np.shape(x)
    x, b = np.ravel(x), np.ravel(np.broadcast_to(b, shape))
    total, largest = np.ones_like(x), np.ones_like(x)
    lanes, n = np.arange(x.size), 0
    # log Γ(n+b)/(Γ(b) n!) is recursive: a difference of log gammas loses all digits at b = 1e17.
    log_ratio = np.zeros_like(x)
    while lanes.size:
        n += 1
        h, previous = b[lanes], largest[lanes]
        log_ratio[lanes] += np.log((n - 1 + h) / n)
        term = np.exp(log_ratio[lanes] + np.log1p(2 * n / h) - 2 * n * (n + h) / x[lanes])
        total[lanes] += -term if n % 2 else term
        largest[lanes] = np.maximum(previous, term)
        lanes = lanes[term > 1e-17]
    return total.reshape(shape), largest.reshape(shape)


# Below this limit, log1p(x)/x and expm1(x)/x are 1 -+ x/2 within x²/3, less than rounding.
_FLAT = 1e-8


class TangentHat(NamedTuple):
    """The exponential of three tangents, each on its piece of the line; the first and last piece are unbounded.

    The first axis of all arrays has the three tangents. ``edges`` are the two points at which adjacent tangents meet.
    The hat is above the density, since the log of the density is concave (Devroye 1986, chapter VII).
    """

    points: RealArray
    heights: RealArray
    slopes: RealArray
    edges: RealArray
    masses: RealArray

    def propose(self, uniform: RealArray) -> tuple[RealArray, RealArray]:
        """Return a draw of the hat from one uniform of [0, 1), by inversion, and the log of the hat there."""
        xp = namespace(uniform)
        left_mass, middle, _ = self.masses
        mass = uniform * self.masses.sum(0)
        in_left, in_right = mass < left_mass, mass >= left_mass + middle
        tangents = self.points, self.heights, self.slopes
        point, height, slope = (xp.where(in_left, a[0], xp.where(in_right, a[2], a[1])) for a in tangents)
        # Signed mass from the nearest edge: in the left piece it is negative.
        start = xp.where(in_right, self.edges[1], self.edges[0])
        run = (mass - xp.where(in_right, left_mass + middle, left_mass)) * xp.exp(-height - slope * (start - point))
        growth = slope * run
        flat = xp.abs(growth) < _FLAT
        # At least the first double above -1, since rounding must not lead to the logarithm of a negative number.
        curved = xp.log1p(xp.maximum(growth, -1 + 2.0**-53)) / xp.where(flat, 1.0, slope)
        x = start + xp.where(flat, run * (1 - growth / 2), curved)
        return x, height + slope * (x - point)


def tangent_hat(points: RealArray, heights: RealArray, slopes: RealArray) -> TangentHat:
    """Return the hat from three increasing ``points``, with log densities and slopes from positive to negative."""
    xp = namespace(points)
    gaps = heights[1:] - heights[:-1] + slopes[:-1] * points[:-1] - slopes[1:] * points[1:]
    edges = gaps / (slopes[:-1] - slopes[1:])
    at_left = xp.exp(heights[:2] + slopes[:2] * (edges[0] - points[:2]))
    at_right = xp.exp(heights[2] + slopes[2] * (edges[1] - points[2]))
    width = edges[1] - edges[0]
    rise = slopes[1] * width
    flat = xp.abs(rise) < _FLAT
    average = xp.where(flat, 1 + rise / 2, xp.expm1(rise) / xp.where(flat, 1.0, rise))
    masses = xp.stack([at_left[0] / slopes[0], at_left[1] * width * average, -at_right / slopes[2]])
    return TangentHat(points, heights, slopes, edges, masses)


# The distribution of J*(h, z) = 4 PG(h, 2z) around its mean: window, density and hat function.

_Four = tuple[Array, Array, Array, Array]
_Five = tuple[Array, Array, Array, Array, Array]

# Above this cancellation, a TransformLaw is accurate: it has enough nodes, and h > 100.
MIN_CANCELLATION = 14.0


def in_domain(h: RealArray, z: RealArray) -> RealArray:
    """Return the domain of exact draws. Outside, a TransformLaw loses half its digits or a law is below rounding."""
    return (h >= 0) & (h <= 1e15) & (2 * z <= 1e20)


def cancellation(h: RealArray, z: RealArray) -> RealArray:
    """Return h exp(-2h/mean) = h exp(-2z/tanh z), the alternating series' cancellation: rises with h, falls with z."""
    return h * namespace(z).exp(-2 / relative_mean(z))


class Window(NamedTuple):
    """The mean and standard deviation of a law, and the limits of its window as offsets from the mean."""

    mean: RealArray
    deviation: RealArray
    lower: RealArray
    upper: RealArray

    def points(self) -> RealArray:
        """Return offsets of the hat's tangents, suitable for laws from Gaussian to as skewed as J*(1, 0)."""
        xp = namespace(self.mean)
        # These maximise the acceptance: 0.886 for a Gaussian law, 0.96 for J*(1, 0).
        spread = self.deviation / self.mean
        steps = [(-1.42 - 1.60 * spread), -1.35 * spread, (1.41 - 1.28 * spread)]
        return self.mean * xp.expm1(spread * xp.stack(steps))


def window(h: RealArray, z: RealArray) -> Window:
    """Return the window of J*(h, z): a sum of Gamma variables of scale at most 1/(π²/8 + z²/2), hence sub-Gamma.

    Boucheron, Lugosi and Massart (2013), section 2.4: P(x - mean > √(2vt) + t scale) and P(x - mean < -√(2vt)) are at
    most exp(-t), with the variance v. With t = 32, the window omits a mass below 2 exp(-32) = 3e-14.
    """
    xp = namespace(h)
    mean, deviation = h * relative_mean(z), xp.sqrt(h * relative_variance_at_square(z**2))
    t = 32.0
    reach = (2 * t) ** 0.5 * deviation
    return Window(mean, deviation, xp.maximum(-reach, -mean), reach + t / (pi**2 / 8 + z**2 / 2))


def alternating_series(x: RealArray, h: Array) -> tuple[Array, Array]:
    """Return the density of J*(h, 0) at ``x`` > 0 over its series' first term, and the derivative, in JAX.

    The sum ends when no term is above 1e-17; ``weighted_series`` has the series and the stopping rule. Terms are
    computed recursively, without exponentials.
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
    """A density exp(scale) times factor, with derivatives of both. In the far tail, rounding may give factor <= 0."""

    scale: RealArray
    factor: RealArray
    scale_slope: RealArray
    factor_slope: RealArray


class SeriesLaw(NamedTuple):
    """The density by its alternating series, in JAX. No digits are lost if the cancellation is at most 0.7."""

    h: Array
    z: Array
    mean: RealArray

    def evaluate(self, y: RealArray) -> Density:
        """Return the density at mean + ``y``."""
        x = self.mean + y
        # h - z x, with z mean = h tanh(z).
        rest = 2 * self.h / (jnp.exp(2 * self.z) + 1) - self.z * y
        first = jnp.log(self.h) + self.h * jnp.log1p(jnp.exp(-2 * self.z)) - 0.5 * log(2 * pi) - 1.5 * jnp.log(x)
        series, derivative = alternating_series(x, self.h)
        slope = -1.5 / x + rest * (self.h + self.z * x) / (2 * x**2)
        return Density(first - rest**2 / (2 * x), series, slope, derivative)


class TransformLaw(NamedTuple):
    """The density by the trapezoidal rule on the characteristic function, for cancellations above MIN_CANCELLATION.

    With nodes t_k = 2πk/P, the rule gives the sum of the densities at x + jP over all integers j (Poisson's summation
    formula). Inside a window of length P, its error is the mass outside. The rounding error relative to the density at
    the mode is 1e-15 at h = 100 and 3e-13 at h = 1e6 (measured), and proportional to √h above.
    """

    step: RealArray
    real: RealArray
    imaginary: RealArray

    def evaluate(self, y: RealArray) -> Density:
        """Return the density at mean + ``y``, in JAX or NumPy like the law's arrays."""
        total, derivative = _trapezoid_numpy(self, y) if isinstance(y, np.ndarray) else _trapezoid(self, y)
        return Density(namespace(y).log(self.step / (2 * pi)) + 0 * y, 1 + total, 0 * y, self.step * derivative)


def transform_law(h: RealArray, z: RealArray, bounds: Window) -> TransformLaw:
    """Return E exp(it (x - mean)) = (cosh z / cosh √(z² - 2it))^h exp(-it mean), doubled, at the nodes.

    It uses √(z² - 2it) = p - iq. The log of the modulus is then accurate for small t, that is, for large h.
    """
    xp = namespace(h)
    step = 2 * pi / (bounds.upper - bounds.lower)
    # With 32 nodes the characteristic function falls below 1e-13 wherever a TransformLaw is used.
    t = step * np.arange(1.0, 33.0)[:, None]
    p = xp.sqrt((z**2 + xp.sqrt(z**4 + 4 * t**2)) / 2)
    q = t / p
    # |cosh(p - iq)|²/cosh² z - 1, with p² - z² = q².
    excess = 2 * (xp.sinh(p + z) * xp.sinh(q**2 / (p + z)) - xp.sin(q) ** 2) / (1 + xp.cosh(2 * z))
    modulus = 2 * xp.exp(-h / 2 * xp.log1p(excess))
    phase = h * xp.arctan2(xp.tanh(p) * xp.sin(q), xp.cos(q)) - t * bounds.mean
    return TransformLaw(step, modulus * xp.cos(phase), modulus * xp.sin(phase))


def _trapezoid(law: TransformLaw, y: Array) -> tuple[Array, Array]:
    """Return the real part of Σ_k c_k exp(-ik step y), and its derivative over the step, by Horner's rule."""
    cos, sin = jnp.cos(law.step * y), -jnp.sin(law.step * y)

    def horner(state: _Four, node: tuple[Array, Array, Array]) -> tuple[_Four, None]:
        a, b, da, db = state
        k, real, imaginary = node
        a, b, da, db = a + real, b + imaginary, da + k * real, db + k * imaginary
        return (a * cos - b * sin, a * sin + b * cos, da * cos - db * sin, da * sin + db * cos), None

    nodes = jnp.arange(1.0, len(law.real) + 1), jnp.asarray(law.real), jnp.asarray(law.imaginary)
    zero = jnp.zeros_like(y)
    (total, _, _, derivative), _ = lax.scan(horner, (zero, zero, zero, zero), nodes, reverse=True)
    return total, derivative


def _trapezoid_numpy(law: TransformLaw, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``_trapezoid`` as one sum over nodes, which is faster in NumPy."""
    k = np.arange(1.0, len(law.real) + 1)[:, None]
    total, derivative = np.empty_like(y), np.empty_like(y)
    for row in np.ndindex(y.shape[:-1]):
        cos, sin = np.cos(k * law.step * y[row]), np.sin(k * law.step * y[row])
        total[row] = (law.real * cos + law.imaginary * sin).sum(0)
        derivative[row] = (k * (law.imaginary * cos - law.real * sin)).sum(0)
    return total, derivative


def hat_of(law: SeriesLaw | TransformLaw, bounds: Window) -> tuple[TangentHat, RealArray]:
    """Return the hat of a log-concave law relative to the density at its middle point, and that log density."""
    points = bounds.points()
    density = law.evaluate(points)
    heights = density.scale + namespace(points).log(density.factor)
    slopes = density.scale_slope + density.factor_slope / density.factor
    return tangent_hat(points, heights - heights[1], slopes), heights[1]
