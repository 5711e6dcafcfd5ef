"""The Pólya-Gamma distribution PG(b, c) (Polson, Scott and Windle 2013): moments, density and exact draws."""

from math import pi

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import ArrayLike, Float, PRNGKeyArray
from polyagamma import random_polyagamma
from scipy.special import zeta

# tanh(u)/u = Σ_k t_k u^(2k), radius of convergence π/2; at |u| < 1/2 the term after these is below 1e-17.
_ORDER = np.arange(1, 19)
_TANH = -2 * (-1.0) ** _ORDER * (2 / pi) ** (2 * _ORDER) * (1 - 4.0**-_ORDER) * zeta(2 * _ORDER)
_SWITCH = 0.5


def mean(b: ArrayLike, c: ArrayLike) -> Array:
    """The mean b tanh(c/2)/(2c), b/4 at c = 0; ``b`` and ``c`` broadcast."""
    u = jnp.asarray(c) / 2
    near, inner, outer = _split(u)
    return jnp.asarray(b) / 4 * jnp.where(near, _polynomial(_TANH, inner**2), jnp.tanh(outer) / outer)


def variance(b: ArrayLike, c: ArrayLike) -> Array:
    """The variance b (tanh(c/2)/c - sech²(c/2)/2) / (2c²), b/24 at c = 0; ``b`` and ``c`` broadcast."""
    u = jnp.asarray(c) / 2
    near, inner, outer = _split(u)
    # tanh(u)/u - sech²(u) = Σ_k -2k t_k u^(2k); sech² from tanh cannot overflow.
    series = _polynomial((-2 * (_ORDER - 1) * _TANH)[1:], inner**2)
    tanh = jnp.tanh(outer)
    return jnp.asarray(b) / 16 * jnp.where(near, series, (tanh / outer - (1 - tanh) * (1 + tanh)) / outer**2)


def _split(u: Array) -> tuple[Array, Array, Array]:
    """Where the series holds, and arguments at which neither branch nor its derivatives can fail."""
    near = jnp.abs(u) < _SWITCH
    return near, jnp.where(near, u, 0.0), jnp.where(near, 1.0, u)


def _polynomial(coefficients: np.ndarray, x: Array) -> Array:
    total = jnp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient
    return total


def log_density(omega: ArrayLike, b: ArrayLike, c: ArrayLike) -> Float[np.ndarray, "..."]:
    """The log density of PG(b, c) at ``omega`` > 0, for real b > 0, in NumPy; -inf at omega <= 0.

    The alternating series of PG(b, 0) (Polson, Scott and Windle 2013, section 2.3) times exp(-c² omega/2) cosh(c/2)^b.
    Far in the right tail its terms cancel: nan where half the digits are lost (beyond 4.5 for b = 1 and 6.3 for b = 7).
    """
    omega, b, c = (np.asarray(a, dtype=np.float64) for a in np.broadcast_arrays(omega, b, c))
    x = np.where(omega > 0, 4 * omega, 1.0)
    total, largest = _alternating_series(x, b)
    with np.errstate(divide="ignore", invalid="ignore"):
        series = np.where(total > 1e-8 * largest, np.log(total), np.nan)
    # PG(b, 0) = J*(b, 0)/4, whose series starts with 2^b times the density of Brownian motion's first passage at b.
    first = b * np.log(2) + np.log(b) - 0.5 * np.log(2 * pi * x**3) - b**2 / (2 * x)
    z = np.abs(c) / 2
    tilt = -(z**2) * x / 2 + b * (z + np.log1p(np.exp(-2 * z)) - np.log(2))
    return np.where(omega > 0, np.log(4) + first + series + tilt, -np.inf)


def _alternating_series(x: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The density of J*(b, 0) over the first term of its series, and the largest term met on the way.

    Σ_n (-1)^n Γ(n+b)/(Γ(b) n!) (2n+b)/b exp(-2n(n+b)/x). The ratio of successive terms falls with n, so once a term
    is negligible all later ones are.
    """
    shape = np.shape(x)
    x, b = np.ravel(x), np.ravel(np.broadcast_to(b, shape))
    total, largest = np.ones_like(x), np.ones_like(x)
    lanes, n = np.arange(x.size), 0
    # log Γ(n+b)/(Γ(b) n!) term by term: a difference of log gammas has no digits left at b = 1e17.
    log_ratio = np.zeros_like(x)
    while lanes.size:
        n += 1
        h, previous = b[lanes], largest[lanes]
        log_ratio[lanes] += np.log((n - 1 + h) / n)
        log_term = log_ratio[lanes] + np.log1p(2 * n / h) - 2 * n * (n + h) / x[lanes]
        term = np.exp(log_term)
        total[lanes] += -term if n % 2 else term
        largest[lanes] = np.maximum(previous, term)
        lanes = lanes[term > 1e-17]
    return total.reshape(shape), largest.reshape(shape)


def draw(key: PRNGKeyArray, b: ArrayLike, c: ArrayLike) -> Array:
    """Exact draws of PG(b, c), one for each entry of the broadcast ``b`` >= 0 and ``c``; b = 0 gives exactly 0.

    The draws are made by NumPy on the host, inside ``jit``, ``vmap`` and ``scan`` alike, and are a function of the key
    (under ``vmap``, of the whole batch of keys). nan where b is negative or an argument is not finite. Where
    b exp(-|c|) is small the cost does not depend on b, otherwise it grows with b.
    Raises ValueError outside double precision.
    """
    if jnp.result_type(float) != jnp.float64:
        raise ValueError("polya_gamma.draw needs double precision: call it within jax.enable_x64(True).")
    b, c = jnp.broadcast_arrays(jnp.asarray(b, jnp.float64), jnp.asarray(c, jnp.float64))
    seed = jax.random.bits(key, (4,), jnp.uint32)
    # JAX runs the callback in a thread of its own, in single precision: the numbers travel as pairs of words.
    words = [jax.lax.bitcast_convert_type(a, jnp.uint32) for a in (b, c)]
    result = jax.ShapeDtypeStruct((*b.shape, 2), jnp.uint32)
    return jax.lax.bitcast_convert_type(
        jax.pure_callback(_draw_words, result, seed, *words, vmap_method="broadcast_all"), jnp.float64
    )


def _draw_words(seed: Array, b_words: Array, c_words: Array) -> np.ndarray:
    """``sample`` between words of 32 bits."""
    words = np.ascontiguousarray(seed, dtype=np.uint32).ravel()
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(words.tolist())))
    b, c = (np.ascontiguousarray(a, dtype=np.uint32).view(np.float64)[..., 0] for a in (b_words, c_words))
    return np.ascontiguousarray(sample(generator, b, c)[..., None]).view(np.uint32)


def sample(generator: np.random.Generator, b: np.ndarray, c: np.ndarray) -> Float[np.ndarray, "..."]:
    """Exact draws of PG(b, c) with a NumPy generator; ``draw`` says the rest.

    PG(b, c) is the sum of a PG(floor(b), c), drawn by Devroye's method in ``polyagamma``, and a PG(b - floor(b), c),
    drawn by rejection. ``polyagamma``'s other methods are approximate (measured: 2 % too small, a variance 5 % too
    large, or far off at c = 40), and its Devroye method fails at large c: where rejection is cheap, it draws it all.
    """
    shape = np.shape(b)
    b, z = np.ravel(b), np.abs(np.ravel(c)) / 2
    valid = np.isfinite(b) & (b >= 0) & np.isfinite(z)
    b, z = np.where(valid, b, 0.0), np.where(valid, z, 0.0)
    # The law depends on z² alone, and 1 + z² = 1 below this.
    z = np.where(z < 1e-9, 0.0, z)
    # Rejection makes exp(b exp(-2z)) proposals, each the price of about ten of Devroye's terms; Devroye sums b terms.
    rejections = b * np.log1p(np.exp(-2 * z))
    whole = np.where(rejections < np.maximum(0.05, np.log(np.maximum(b, 1) / 10)), 0.0, np.floor(b))
    draws = np.where(valid, 0.0, np.nan)
    lanes = np.flatnonzero(whole)
    if lanes.size:
        draws[lanes] += random_polyagamma(
            whole[lanes], 2 * z[lanes], method="devroye", disable_checks=True, random_state=generator
        )
    lanes = np.flatnonzero(b > whole)
    draws[lanes] += _by_rejection(generator, (b - whole)[lanes], z[lanes]) / 4
    return draws.reshape(shape)


def _by_rejection(generator: np.random.Generator, h: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Exact draws of J*(h, z) = 4 PG(h, 2z) for h > 0, each proposal accepted with probability (1 + exp(-2z))^(-h).

    The transform of J*(h, 0), cosh(θ)^(-h) with θ = √(2s), is 2^h e^(-hθ) (1 + q)^(-h) with q = e^(-2θ): the first
    term is 2^h times the density of Brownian motion's first passage at h. What it overstates, e^(-hθ)(1 - (1+q)^(-h)),
    is for h <= 1 a mixture over β in (0, 1) of e^(-hθ) βq/(1+βq), and e^(-θ)/(1+βq) is the transform of a positive
    measure (a passage time of skew Brownian motion); products extend it to every h. So the first term dominates
    everywhere, and tilted by exp(-z²x/2) it is an inverse Gaussian with mean h/z and shape h².
    """
    draws = np.empty_like(h)
    lanes = np.arange(h.size)
    while lanes.size:
        x = _first_passage(generator, h[lanes], z[lanes])
        # Beyond this x the target has less mass than the spacing of the uniforms, and the series only its rounding.
        inside = x < 40 * np.maximum(h[lanes], 1)
        density = np.zeros_like(x)
        density[inside] = _alternating_series(x[inside], h[lanes][inside])[0]
        accepted = generator.random(lanes.size) < density
        draws[lanes[accepted]] = x[accepted]
        lanes = lanes[~accepted]
    return draws


def _first_passage(generator: np.random.Generator, h: np.ndarray, z: np.ndarray) -> np.ndarray:
    """When a Brownian motion with drift z >= 0 first reaches h > 0 (Michael, Schucany and Haas 1976).

    An inverse Gaussian with mean h/z and shape h², written without the cancellation between the roots; Lévy at z = 0.
    """
    w = generator.standard_normal(h.size) ** 2 / 2
    root = h * z + w + np.sqrt(w * (w + 2 * h * z))
    x = h**2 / np.maximum(root, 1e-300)
    other = generator.random(h.size) * (h + x * z) < x * z
    return np.where(other, root / np.where(other, z, 1.0) ** 2, x)
