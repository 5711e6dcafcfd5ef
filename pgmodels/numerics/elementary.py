"""Functions that stay accurate at their limits, and statistics of arrays."""

from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array
from jax.scipy.special import digamma, gammaln, log_ndtr

RealArray: TypeAlias = Array | np.ndarray


def namespace(*arrays: object) -> Any:
    """Return ``jax.numpy`` if an array is JAX's, else ``numpy``, as in host callbacks, which must not call JAX."""
    return jnp if any(isinstance(array, jax.Array) for array in arrays) else np


def constant(array: Any) -> Any:
    """Return the array, as a constant for derivatives."""
    return jax.lax.stop_gradient(array) if isinstance(array, jax.Array) else array


# The value uses no jnp.where, because XLA miscompiles nested selects (jaxlib 0.10.1 and 0.10.2 with default options):
# with lengthscales per column, the covariance of a row with itself lost up to half of the variance.
@jax.custom_jvp
def safe_sqrt(squared: Array) -> Array:
    """Return the square root with derivative 0 at 0, for example of a distance with respect to a lengthscale."""
    return jnp.sqrt(squared)


@safe_sqrt.defjvp
def _safe_sqrt_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (squared,), (change,) = primals, tangents
    root, positive = safe_sqrt(squared), squared > 0.0
    return root, jnp.where(positive, change / (2.0 * jnp.where(positive, root, 1.0)), 0.0)


def trigonometric_sums(u: np.ndarray, coefficients: np.ndarray, count: int) -> np.ndarray:
    """Return the sums of coefficients exp(2 pi i k u) over points u (n,) in [0, 1), for k = 0, ..., ``count`` - 1.

    The cost is O(n + count log count): points are spread over a grid, which has a fast Fourier transform. Source:
    Greengard and Lee 2004.
    """
    # A point is spread over ``width`` cells of the grid, as exp(-rate t^2) at a distance of t cells. With 4 cells for
    # each frequency the sums are exact to 1e-11 of the sum of the absolute coefficients.
    width, rate = 24, np.pi / 16.0
    size = scipy.fft.next_fast_len(max(4 * count, width), real=True)
    cells, beyond = np.divmod(u * size, 1.0)
    # The offset of a point's first cell from its own cell.
    first, cells = width // 2 - 1, cells.astype(np.intp)
    grid = np.zeros(size + width)
    for number in range(width):
        spread = np.bincount(cells + number, coefficients * np.exp(-rate * (number - first - beyond) ** 2))
        grid[: len(spread)] += spread
    grid[:width] += grid[size:]
    angles = np.pi * np.arange(count) / size
    # The transform of the Gaussian, and of the shift by the first cell.
    shape = np.sqrt(np.pi / rate) * np.exp(2j * first * angles - angles**2 / rate)
    return np.conj(scipy.fft.rfft(grid[:size])[:count]) / shape


# If all variables have one variance, the integrand has no sharp factors: fewer nodes of the trapezoid rule suffice, and
# fewer Newton steps to the mode.
EQUAL_NODES, EQUAL_NEWTON = 49, 8


def log_probability_of_largest(mean: RealArray, variance: RealArray, chosen: RealArray, nodes: int = 129) -> Array:
    """Return log P(g_k > g_c for all c ≠ k) of independent g ~ N(mean, variance), (..., 1).

    Two variables have a closed form. More need the integral of φ(x) Π_c Φ((m_k + s_k x - m_c) / s_c). The trapezoid
    rule about its mode is accurate relative to the integral. A variance far below the variance of g_k makes a steep
    step: nodes lie closer together towards the last step, below which the integrand vanishes. Derivatives are integrals
    of derivatives, with constant nodes.

    Parameters
    ----------
    mean : array, shape (..., C)
    variance : array, broadcasts with ``mean``
    chosen : bool array, broadcasts with ``mean``
        True at k, and False elsewhere.
    nodes : int
        The number of nodes of the trapezoid rule.
    """
    # Variances are at least this share of the largest. The maximum is computed before the broadcast: otherwise XLA
    # would evaluate it at compile time for a constant variance of many rows.
    floor = jax.lax.stop_gradient(1e-12 * jnp.max(variance, axis=-1, keepdims=True) + 1e-24)
    mean, variance, chosen = jnp.broadcast_arrays(mean, jnp.maximum(variance, floor), chosen)
    if mean.shape[-1] == 2:
        margin = jnp.sum(jnp.where(chosen, mean, -mean), axis=-1, keepdims=True)
        return log_ndtr(margin / jnp.sqrt(jnp.sum(variance, axis=-1, keepdims=True)))
    centre, spread = (jnp.sum(jnp.where(chosen, part, 0.0), axis=-1, keepdims=True) for part in (mean, variance))
    # The factors are Φ(gap + ratio x).
    gap, ratio = (centre - mean) / jnp.sqrt(variance), jnp.sqrt(spread / variance)

    def log_integrand(x: Array) -> Array:
        return -0.5 * x**2 + jnp.sum(jnp.where(chosen, 0.0, log_ndtr(gap + ratio * x)), axis=-1, keepdims=True)

    # x = begin + width (exp(t) - 1) for t from 0 to length.
    mode, begin, width, length = jax.lax.stop_gradient(_domain(*jax.lax.stop_gradient((gap, ratio)), chosen))
    top = jax.lax.stop_gradient(log_integrand(mode))

    @jax.checkpoint
    def density(share: Array) -> Array:
        t = share * length
        return jnp.exp(log_integrand(begin + width * jnp.expm1(t)) - top + t)

    # One node at a time: callers that evaluate this at nodes would make an array with a second axis of nodes.
    shares = jnp.linspace(0.0, 1.0, nodes)
    total, _ = jax.lax.scan(lambda total, share: (total + density(share), None), jnp.zeros_like(top), shares)
    return top + jnp.log(total * width * length / ((nodes - 1) * np.sqrt(2.0 * np.pi)))


def mode_of_largest(
    gap: RealArray, ratio: RealArray | float, chosen: RealArray, steps: int = 16
) -> tuple[Array, Array]:
    """Return the mode of φ(x) Π_c Φ(gap + ratio x) over c ≠ k, and minus its second log derivative, (..., 1) each.

    Newton's method makes at most ``steps`` steps. Before convergence the point is on the left of the mode.
    """
    # Below this argument, φ(z) / Φ(z) is -z to double precision, and the difference of their logarithms is inaccurate.
    far = -1e4

    def derivatives(x: Array) -> tuple[Array, Array]:
        z = gap + ratio * x
        near = jnp.maximum(z, far)
        hazard = jnp.where(z < far, -z, jnp.exp(-0.5 * near**2 - log_ndtr(near)) / np.sqrt(2.0 * np.pi))
        bend = jnp.clip(hazard * (hazard + z), 0.0, 1.0)
        slope = jnp.sum(jnp.where(chosen, 0.0, ratio * hazard), axis=-1, keepdims=True) - x
        return slope, 1.0 + jnp.sum(jnp.where(chosen, 0.0, ratio**2 * bend), axis=-1, keepdims=True)

    def newton(_: int, x: Array) -> Array:
        slope, curvature = derivatives(x)
        # The slope is convex in x: Newton steps from the left of the mode stay on the left, up to rounding.
        return x + jnp.maximum(slope, 0.0) / curvature

    # The mode for a single factor is on the right of this point, since φ(z) / Φ(z) > -z; it is also above 0.
    alone = jnp.where(chosen, 0.0, -gap * ratio / (1.0 + ratio**2))
    mode = jax.lax.fori_loop(0, steps, newton, jnp.maximum(jnp.max(alone, axis=-1, keepdims=True), 0.0))
    return mode, derivatives(mode)[1]


def _domain(gap: Array, ratio: Array, chosen: Array) -> tuple[Array, Array, Array, Array]:
    """Return the integrand's mode, and the left end, first cell width and length of the nodes, (..., 1) each."""
    mode, _ = mode_of_largest(gap, ratio, chosen)
    ends = jnp.where(chosen, -jnp.inf, jnp.minimum(mode, -gap / ratio) - 7.0 / ratio)
    begin = jnp.maximum(jnp.max(ends, axis=-1, keepdims=True), mode - 8.0)
    # The width of the sharpest step.
    width = jnp.min(jnp.where(ends >= begin, 4.0 / ratio, 4.0), axis=-1, keepdims=True)
    return mode, begin, width, jnp.log1p((mode + 8.0 - begin) / width)


# The shape of a Gamma variable that is independent of its Poisson counts under q, and its share of a bound.

# From this shape on, differences of nearly equal functions are replaced by their series, to 1e-14.
_LARGE = 16.0


@jax.custom_jvp
def factorised_share(p: RealArray, log_r: RealArray) -> Array:
    """Return G(p, t) = (α - p) (1 - ψ(α)) + log Γ(α) - log Γ(p) <= -p log r, t = 1 - r, α = ``gamma_shape``; 0 at 0."""
    positive = jnp.where(p > 0, p, 1.0)
    alpha = gamma_shape(positive, log_r)
    small = jnp.minimum(alpha, _LARGE)
    direct = (small - positive) * (1.0 - digamma(small)) + gammaln(small)
    # log α - ψ(α), and log Γ(α) less Stirling's formula, by their asymptotic series.
    x = 1.0 / jnp.maximum(alpha, _LARGE)
    excess = x * (1 / 2 + x * (1 / 12 + x**2 * (-1 / 120 + x**2 * (1 / 252 - x**2 / 240))))
    remainder = x * (1 / 12 + x**2 * (-1 / 360 + x**2 * (1 / 1260 - x**2 / 1680)))
    series = (0.5 - positive) * jnp.log(x) - positive + (1.0 / x - positive) * excess + 0.5 * np.log(2 * np.pi)
    value = jnp.where(alpha < _LARGE, direct, series + remainder) - gammaln(positive)
    return jnp.where(p > 0, value, 0.0)


@factorised_share.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    # G is a maximum over α, so only the explicit dependence on p and t enters the derivative.
    (p, log_r), (dp, dlog_r) = primals, tangents
    positive = jnp.where(p > 0, p, 1.0)
    alpha = gamma_shape(positive, log_r)
    by_p = digamma(alpha) - digamma(positive)
    by_log_r = -jnp.exp(log_r) * _exp_digamma(alpha)
    return factorised_share(p, log_r), jnp.where(p > 0, by_p * dp + by_log_r * dlog_r, 0.0)


@jax.custom_jvp
def gamma_shape(p: RealArray, log_r: RealArray) -> Array:
    """Return the shape α of q(λ): the root of α = p + t exp ψ(α), t = 1 - r, for p > 0.

    α - p - t exp ψ(α) increases and is concave, so that Newton's method from below the root stays below it. Since
    exp ψ(α) > α - 1/2, the root is at least (p - t / 2) / r.
    """
    r = jnp.exp(log_r)
    alpha = jnp.maximum(p, (p + 0.5 * jnp.expm1(log_r)) / r)

    def step(_: int, alpha: Array) -> Array:
        below, slope = _below(alpha)
        return alpha - (below + r * (alpha - below) - p) / (slope + r * (1.0 - slope))

    # Quadratic convergence: 7 steps are needed at p = 0.01.
    return jax.lax.fori_loop(0, 8, step, alpha)


@gamma_shape.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (p, log_r), (dp, dlog_r) = primals, tangents
    r, alpha = jnp.exp(log_r), gamma_shape(p, log_r)
    slope = _below(alpha)[1]
    return alpha, (dp - r * _exp_digamma(alpha) * dlog_r) / (slope + r * (1.0 - slope))


def _below(alpha: Array) -> tuple[Array, Array]:
    """Return α - exp ψ(α) and its derivative, which tend to 1/2 and 0."""
    return jax.jvp(_difference, (alpha,), (jnp.ones_like(alpha),))


def _exp_digamma(alpha: Array) -> Array:
    return jnp.where(alpha < _LARGE, jnp.exp(digamma(jnp.minimum(alpha, _LARGE))), alpha - _difference(alpha))


def _difference(alpha: Array) -> Array:
    small = jnp.minimum(alpha, _LARGE)
    u = jnp.maximum(alpha, _LARGE) - 0.5
    x = 1.0 / u**2
    # ψ(u + 1/2) - log u.
    series = x * (1 / 24 + x * (-7 / 960 + x * (31 / 8064 - x * 127 / 30720)))
    return jnp.where(alpha < _LARGE, small - jnp.exp(digamma(small)), 0.5 - u * jnp.expm1(series))


# With fewer draws than this, k-hat is fitted to a tail of fewer than 20 draws.
FEWEST_DRAWS = 100


class SmoothedWeights(NamedTuple):
    """Log density ratios (draws,), log smoothed weights (draws,), which sum to 1, and Pareto k-hat of their tail."""

    log_ratios: np.ndarray
    log_weights: np.ndarray
    k: float

    @property
    def effective_size(self) -> float:
        """The effective number of draws, 1 / sum w^2."""
        return float(1.0 / np.sum(np.exp(2.0 * self.log_weights)))

    @property
    def log_mean(self) -> float:
        """The logarithm of the mean smoothed ratio. Its scale is the median ratio, which smoothing does not change."""
        median = int(np.argsort(self.log_ratios)[len(self.log_ratios) // 2])
        return float(self.log_ratios[median] - self.log_weights[median] - np.log(len(self.log_ratios)))

    @property
    def log_mean_error(self) -> float:
        """The standard error of ``log_mean``, by the delta method."""
        return float(np.sqrt(max(1.0 / self.effective_size - 1.0 / len(self.log_ratios), 0.0)))

    @property
    def limit(self) -> float:
        """The k-hat up to which averages over this number of draws are reliable (Vehtari et al. 2024)."""
        return min(1.0 - 1.0 / np.log10(len(self.log_ratios)), 0.7)


def smoothed(log_ratios: np.ndarray) -> SmoothedWeights:
    """Return Pareto-smoothed weights of draws with these log density ratios (Vehtari et al. 2024)."""
    # If weights are equal up to rounding, the proposal is the target, and there is no tail to fit.
    if np.ptp(log_ratios) < 1e-6 * max(1.0, float(np.abs(log_ratios).max())):
        return SmoothedWeights(log_ratios, np.full(len(log_ratios), -np.log(len(log_ratios))), -np.inf)
    from arviz_stats.base import array_stats

    # psislw expects leave-one-out log likelihoods, which are negative log ratios.
    log_weights, k = array_stats.psislw(-log_ratios)
    return SmoothedWeights(log_ratios, log_weights, float(k))
