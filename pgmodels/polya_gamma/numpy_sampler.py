"""Exact Pólya-Gamma draws with a NumPy generator: Devroye's method in C, and rejection."""

import numpy as np
from jaxtyping import Float
from polyagamma import random_polyagamma

from pgmodels.polya_gamma.density import alternating_series
from pgmodels.polya_gamma.laws import (
    LEAST_CROWDING,
    TransformLaw,
    Window,
    crowding,
    hat_of,
    in_domain,
    transform_law,
    window,
)
from pgmodels.polya_gamma.tangent_hat import TangentHat


def sample(generator: np.random.Generator, b: np.ndarray, c: np.ndarray) -> Float[np.ndarray, "..."]:
    """Exact draws of PG(b, c) with a NumPy generator; nan where b < 0 or is not finite, or |c| > 1e20.

    Beyond b = 1e15 they are normal, with the moments of PG(b, c): its skewness is below 1e-7 there.

    Three ways, whichever is cheapest where it holds, so that the cost is bounded in b. Whole b: Devroye's method in
    ``polyagamma``, b units (its other methods are approximate: measured, 2 % too small, a variance 5 % too large, or
    far off at c = 40; and Devroye's fails at large c, where rejection is cheap). Any b: a sum of equal pieces, each
    drawn by rejection. Large b at moderate c: a hat of tangents over the density, ``jax_sampler`` says why.
    """
    shape = np.shape(b)
    b, z = np.ravel(b), np.abs(np.ravel(c)) / 2
    vast = (b > 1e15) & np.isfinite(b) & in_domain(np.ones_like(b), z)
    if vast.any():
        draws = np.empty(b.shape)
        draws[~vast] = sample(generator, b[~vast], 2 * z[~vast])
        draws[vast] = _normal(generator, b[vast], z[vast])
        return draws.reshape(shape)
    valid = in_domain(b, z)
    b, z = np.where(valid, b, 0.0), np.where(valid, z, 0.0)
    # The law depends on z² alone, and 1 + z² = 1 below this.
    z = np.where(z < 1e-9, 0.0, z)
    draws = np.where(valid, 0.0, np.nan)
    transformed = (crowding(b, z) > LEAST_CROWDING) & (b > 200)
    lanes = np.flatnonzero(transformed)
    if lanes.size:
        draws[lanes] += _by_tangents(generator, b[lanes], z[lanes]) / 4
    # A draw by tangents costs as much as about 200 of Devroye's units; a proposal, as ten.
    whole = np.where(transformed | (_rejections(b, z) < 0.05) | (b > 10 * _proposals(b, z)), 0.0, np.floor(b))
    lanes = np.flatnonzero(whole)
    if lanes.size:
        draws[lanes] += random_polyagamma(
            whole[lanes], 2 * z[lanes], method="devroye", disable_checks=True, random_state=generator
        )
    lanes = np.flatnonzero((b > whole) & ~transformed)
    draws[lanes] += _by_pieces(generator, (b - whole)[lanes], z[lanes]) / 4
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
    """Minus the log of the acceptance of ``_by_rejection``."""
    return h * np.log1p(np.exp(-2 * z))


def _proposals(h: np.ndarray, z: np.ndarray) -> np.ndarray:
    """How many proposals ``_by_pieces`` makes on average."""
    rejections = _rejections(h, z)
    pieces = np.maximum(np.ceil(rejections), 1)
    return pieces * np.exp(rejections / pieces)


def _by_tangents(generator: np.random.Generator, h: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Exact draws of J*(h, z) where a TransformLaw holds."""
    room = window(h, z)
    law = transform_law(h, z, room)
    hat, reference = hat_of(law, room)
    draws, lanes = np.full(h.shape, np.nan), np.flatnonzero(np.isfinite(hat.masses.sum(0)))
    while lanes.size:
        mine, here = TransformLaw(*(a[..., lanes] for a in law)), Window(*(a[lanes] for a in room))
        y, log_hat = TangentHat(*(a[..., lanes] for a in hat)).propose(generator.random(lanes.size))
        density = mine.evaluate(y)
        below = generator.random(lanes.size) * np.exp(log_hat - (density.scale - reference[lanes])) < density.factor
        accepted = below & (y > here.lower) & (y < here.upper)
        draws[lanes[accepted]] = (here.mean + y)[accepted]
        lanes = lanes[~accepted]
    return draws


def _by_pieces(generator: np.random.Generator, h: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Exact draws of J*(h, z): the sum of so many of J*(h/k, z) that each accepts with probability at least 1/e."""
    pieces = np.maximum(np.ceil(_rejections(h, z)), 1).astype(int)
    draws = _by_rejection(generator, np.repeat(h / pieces, pieces), np.repeat(z, pieces))
    return np.bincount(np.repeat(np.arange(h.size), pieces), draws, h.size)


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
        inside = (x > 0) & (x < 40 * np.maximum(h[lanes], 1))
        # Where a tiny h makes the passage underflow, the first term is all of the series.
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
