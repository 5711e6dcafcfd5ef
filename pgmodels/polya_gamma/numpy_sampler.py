"""Exact Pólya-Gamma draws with a NumPy generator: Devroye's method in C, and rejection."""

import numpy as np
from jaxtyping import Float
from polyagamma import random_polyagamma

from pgmodels.polya_gamma.density import alternating_series
from pgmodels.polya_gamma.laws import (
    MIN_CANCELLATION,
    TransformLaw,
    Window,
    cancellation,
    hat_of,
    in_domain,
    transform_law,
    window,
)
from pgmodels.polya_gamma.tangent_hat import TangentHat


def sample(generator: np.random.Generator, b: np.ndarray, c: np.ndarray) -> Float[np.ndarray, "..."]:
    """Exact draws of PG(b, c) with a NumPy generator; nan where b < 0 or is not finite, or |c| > 1e20.

    Beyond b = 1e15 they are normal, with the moments of PG(b, c): its skewness is below 1e-7 there.

    Three methods, the cheapest valid one for each draw, so that the cost is bounded in b. Integer part of b: Devroye's
    method in ``polyagamma``, b units (its other methods are approximate: measured, 2 % too small, a variance 5 % too
    large, or far off at c = 40; and Devroye's fails at large c, where rejection is cheap). Any b: a sum of equal
    pieces, each drawn by rejection. Large b at moderate c: rejection from a hat of tangents, see ``jax_sampler``.
    """
    shape = np.shape(b)
    b, z = np.ravel(b), np.abs(np.ravel(c)) / 2
    large = (b > 1e15) & np.isfinite(b) & in_domain(np.ones_like(b), z)
    if large.any():
        draws = np.empty(b.shape)
        draws[~large] = sample(generator, b[~large], 2 * z[~large])
        draws[large] = _normal(generator, b[large], z[large])
        return draws.reshape(shape)
    valid = in_domain(b, z)
    b, z = np.where(valid, b, 0.0), np.where(valid, z, 0.0)
    # The law depends on z² alone, and 1 + z² = 1 below this.
    z = np.where(z < 1e-9, 0.0, z)
    draws = np.where(valid, 0.0, np.nan)
    transformed = (cancellation(b, z) > MIN_CANCELLATION) & (b > 200)
    lanes = np.flatnonzero(transformed)
    if lanes.size:
        draws[lanes] += _by_tangents(generator, b[lanes], z[lanes]) / 4
    # A draw by tangents costs as much as about 200 of Devroye's units, a proposal as ten.
    devroye_units = np.where(transformed | (_rejections(b, z) < 0.05) | (b > 10 * _proposals(b, z)), 0.0, np.floor(b))
    lanes = np.flatnonzero(devroye_units)
    if lanes.size:
        draws[lanes] += random_polyagamma(
            devroye_units[lanes], 2 * z[lanes], method="devroye", disable_checks=True, random_state=generator
        )
    lanes = np.flatnonzero((b > devroye_units) & ~transformed)
    draws[lanes] += _by_pieces(generator, (b - devroye_units)[lanes], z[lanes]) / 4
    return draws.reshape(shape)


def _normal(generator: np.random.Generator, b: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Normal draws with the mean and variance of PG(b, 2 z)."""
    near = z < 1e-3
    safe = np.where(near, 1.0, z)
    decay = np.exp(-2 * safe)
    squared_sech = 4 * decay / (1 + decay) ** 2
    mean = np.where(near, 0.25 - z**2 / 12, np.tanh(safe) / (4 * safe))
    variance = np.where(near, 1 / 24 - z**2 / 30, (np.tanh(safe) / safe - squared_sech) / (16 * safe**2))
    return b * mean + np.sqrt(b * variance) * generator.standard_normal(b.shape)


def _rejections(h: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Minus the log of the acceptance probability of ``_by_rejection``."""
    return h * np.log1p(np.exp(-2 * z))


def _proposals(h: np.ndarray, z: np.ndarray) -> np.ndarray:
    """The expected number of proposals of ``_by_pieces``."""
    rejections = _rejections(h, z)
    pieces = np.maximum(np.ceil(rejections), 1)
    return pieces * np.exp(rejections / pieces)


def _by_tangents(generator: np.random.Generator, h: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Exact draws of J*(h, z) where a TransformLaw is accurate."""
    bounds = window(h, z)
    law = transform_law(h, z, bounds)
    hat, reference = hat_of(law, bounds)
    draws, lanes = np.full(h.shape, np.nan), np.flatnonzero(np.isfinite(hat.masses.sum(0)))
    while lanes.size:
        lane_law, lane_bounds = TransformLaw(*(a[..., lanes] for a in law)), Window(*(a[lanes] for a in bounds))
        y, log_hat = TangentHat(*(a[..., lanes] for a in hat)).propose(generator.random(lanes.size))
        density = lane_law.evaluate(y)
        below = generator.random(lanes.size) * np.exp(log_hat - (density.scale - reference[lanes])) < density.factor
        accepted = below & (y > lane_bounds.lower) & (y < lane_bounds.upper)
        draws[lanes[accepted]] = (lane_bounds.mean + y)[accepted]
        lanes = lanes[~accepted]
    return draws


def _by_pieces(generator: np.random.Generator, h: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Exact draws of J*(h, z): the sum of k draws of J*(h/k, z), k such that each accepts with probability >= 1/e."""
    pieces = np.maximum(np.ceil(_rejections(h, z)), 1).astype(int)
    draws = _by_rejection(generator, np.repeat(h / pieces, pieces), np.repeat(z, pieces))
    return np.bincount(np.repeat(np.arange(h.size), pieces), draws, h.size)


def _by_rejection(generator: np.random.Generator, h: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Exact draws of J*(h, z) = 4 PG(h, 2z) for h > 0, each proposal accepted with probability (1 + exp(-2z))^(-h).

    The transform of J*(h, 0), cosh(θ)^(-h) with θ = √(2s), is 2^h e^(-hθ) (1 + q)^(-h) with q = e^(-2θ): the first
    term is 2^h times the density of Brownian motion's first passage at h. The excess, e^(-hθ)(1 - (1+q)^(-h)),
    is for h <= 1 a mixture over β in (0, 1) of e^(-hθ) βq/(1+βq), and e^(-θ)/(1+βq) is the transform of a positive
    measure (a passage time of skew Brownian motion); products extend it to every h. So the first term dominates
    everywhere, and tilted by exp(-z²x/2) it is an inverse Gaussian with mean h/z and shape h².
    """
    draws = np.empty_like(h)
    lanes = np.arange(h.size)
    while lanes.size:
        x = _first_passage(generator, h[lanes], z[lanes])
        # Beyond this x the target's mass is below the spacing of the uniforms, and the series is only rounding.
        inside = (x > 0) & (x < 40 * np.maximum(h[lanes], 1))
        # Where a tiny h makes the passage time underflow, the first term is the whole series.
        density = np.where(x > 0, 0.0, 1.0)
        density[inside] = alternating_series(x[inside], h[lanes][inside])[0]
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
