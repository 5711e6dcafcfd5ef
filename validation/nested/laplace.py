"""Laplace approximations of marginals with one latent a row: full and simplified (Rue, Martino and Chopin 2009)."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.optimize import brentq
from scipy.special import log_ndtr
from scipy.stats import norm

from pgmodels.results.result import GRID, REACH, GridDensity
from validation.nested.cases import MEAN, SMOOTH, VARIANCES, Case
from validation.nested.measures import errors, kept, summary, write
from validation.nested.quadrature import NESTED, approximations, truth

FULL, SIMPLIFIED = "Laplace", "simplified Laplace"
# The log densities (..., n) of the rows at latents (..., n).
LogDensity = Callable[[np.ndarray], np.ndarray]
# Steps of central differences, of first and second derivatives and of third ones.
STEP, STEP_OF_THIRD = 1e-3, 1e-2
# Values of a latent at which the full approximation is computed, and the length of their grid in units of the
# package's: 10 standard deviations on both sides.
NODES, LENGTH = 33, 1.5
MOST_STEPS, TOLERANCE = 100, 1e-8
# Log densities this far below the largest are cut off, since a spline does not follow them.
DEPTH = 100.0
# The largest shape of a skew normal density: its skewness is within 1 % of the largest one.
LARGEST_SHAPE = 30.0


class Mode(NamedTuple):
    """Latents f (..., n) at a maximum of the posterior, K^-1 (f - mean), and negative second derivatives W."""

    f: np.ndarray
    a: np.ndarray
    W: np.ndarray


def _slopes(log_density: LogDensity, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First and second derivatives."""
    low, middle, high = (log_density(f + shift) for shift in (-STEP, 0.0, STEP))
    return (high - low) / (2.0 * STEP), (high - 2.0 * middle + low) / STEP**2


def _third(log_density: LogDensity, f: np.ndarray) -> np.ndarray:
    h = STEP_OF_THIRD
    values = [log_density(f + k * h) for k in (-2, -1, 1, 2)]
    return (values[3] - 2.0 * values[2] + 2.0 * values[1] - values[0]) / (2.0 * h**3)


def mode(log_density: LogDensity, mean: np.ndarray, K: np.ndarray, start: np.ndarray) -> Mode:
    """Newton's method with steps that are halved until the posterior rises, from f = mean + K start."""
    identity, a = np.eye(len(K)), np.broadcast_to(start, mean.shape)

    def objective(a: np.ndarray) -> np.ndarray:
        return np.sum(log_density(mean + a @ K) - 0.5 * a * (a @ K), axis=-1)

    value = objective(a)
    for _ in range(MOST_STEPS):
        f = mean + a @ K
        slope, curvature = _slopes(log_density, f)
        W = np.maximum(-curvature, 0.0)
        target = W * (f - mean) + slope
        proposal = np.linalg.solve(identity + W[..., None] * K, target[..., None])[..., 0]
        step = np.ones(np.shape(value))
        for _ in range(30):
            moved = a + step[..., None] * (proposal - a)
            after = objective(moved)
            falls = ~(after >= value - 1e-10)
            if not falls.any():
                break
            step = np.where(falls, 0.5 * step, step)
        a, value, change = np.where(falls[..., None], a, moved), np.where(falls, value, after), abs((moved - a) @ K)
        if change.max() < TOLERANCE:
            break
    f = mean + a @ K
    return Mode(f, a, -_slopes(log_density, f)[1])


def _gaussian(K: np.ndarray, W: np.ndarray) -> np.ndarray:
    """(K^-1 + W)^-1."""
    return np.linalg.solve(np.eye(len(K)) + K * W, K)


def full(log_density: LogDensity, mean: np.ndarray, K: np.ndarray) -> GridDensity:
    """The Laplace approximation of p(y, f_i = x) at each of 33 values x, about the mode of the other latents."""
    n = len(K)
    top = mode(log_density, mean, K, np.zeros(n))
    scale = LENGTH * np.sqrt(np.diag(_gaussian(K, top.W)))
    nodes, curves = np.linspace(-REACH, REACH, NODES), np.empty((n, len(GRID)))
    for i in range(n):
        x, k = top.f[i] + scale[i] * nodes, K[i] / K[i, i]
        conditional, pinned = K - K[i, i] * np.outer(k, k), mean + np.outer(x - mean[i], k)
        # Exactly pinned.
        conditional[i], conditional[:, i], pinned[:, i] = 0.0, 0.0, x
        others = mode(log_density, pinned, conditional, top.a)
        log_prior = -0.5 * (x - mean[i]) ** 2 / K[i, i] - 0.5 * np.log(2.0 * np.pi * K[i, i])
        fit = np.sum(log_density(others.f) - 0.5 * others.a * (others.f - pinned), axis=-1)
        curvature = np.linalg.slogdet(np.eye(n) + others.W[..., None] * conditional)[1]
        values = log_prior + fit - 0.5 * curvature
        curves[i] = CubicSpline(nodes, np.maximum(values, np.nanmax(values) - DEPTH))(GRID)
    return GridDensity(top.f, scale, curves)


def simplified(log_density: LogDensity, mean: np.ndarray, K: np.ndarray) -> GridDensity:
    """Skew normal densities by third derivatives at the mode, with the variances of the Gaussian there (section 3.2.3).

    The sum of third derivatives has all rows, and the mean is that of the expansion, to first order.
    """
    top = mode(log_density, mean, K, np.zeros(len(K)))
    S = _gaussian(K, top.W)
    deviation = np.sqrt(np.diag(S))
    correlation, third = S / np.outer(deviation, deviation), _third(log_density, top.f) * deviation**3
    shift = 0.5 * ((1.0 - correlation**2) * correlation) @ third
    skew = correlation**3 @ third
    curves = [_log_skew_normal(shift[i] + 0.5 * skew[i], skew[i]) for i in range(len(K))]
    return GridDensity(top.f, LENGTH * deviation, np.stack(curves))


def _log_skew_normal(mean: float, third: float) -> np.ndarray:
    """A skew normal log density on the grid, with variance 1 and a given third derivative of it at its mode."""
    shapes, thirds = _skew_normals()
    shape = np.sign(third) * np.interp(abs(third), thirds, shapes)
    delta = shape / np.sqrt(1.0 + shape**2) * np.sqrt(2.0 / np.pi)
    width = 1.0 / np.sqrt(1.0 - delta**2)
    z = (LENGTH * GRID - mean + width * delta) / width
    return _log_standard(z, shape) - np.log(width)


def _log_standard(z: np.ndarray, shape: float) -> np.ndarray:
    return np.log(2.0) + norm.logpdf(z) + log_ndtr(shape * z)


@cache
def _skew_normals() -> tuple[np.ndarray, np.ndarray]:
    """Shapes, and third derivatives of log densities at their modes of skew normal variables with variance 1."""
    shapes, z, h = np.linspace(0.0, LARGEST_SHAPE, 601), np.linspace(-0.5, 1.5, 2001), STEP_OF_THIRD
    thirds = []
    for shape in shapes:
        top = brentq(CubicSpline(z, _log_standard(z, shape)).derivative(), -0.5, 1.5)
        values = _log_standard(top + h * np.array([-2, -1, 1, 2]), shape)
        variance = 1.0 - 2.0 / np.pi * shape**2 / (1.0 + shape**2)
        thirds.append((values[3] - 2.0 * values[2] + 2.0 * values[1] - values[0]) / (2.0 * h**3) * variance**1.5)
    return shapes, np.array(thirds)


def of_case(case: Case) -> LogDensity:
    """The log densities of a case's rows."""

    def log_density(f: np.ndarray) -> np.ndarray:
        return np.stack([case.log_density(y, f[None, ..., j]) for j, y in enumerate(case.observations)], axis=-1)

    return log_density


def compared(case: Case, variance: float) -> dict[str, Any]:
    """Errors of both approximations against quadrature, beside the package's."""
    exact, log_density = truth(case, variance), of_case(case)
    mean, K = np.full(len(case.y), MEAN), case.covariance(variance)
    row: dict[str, Any] = {"likelihood": case.name, "y": str(case.y), "kernel variance": variance}
    with np.errstate(all="ignore"):
        row[FULL] = errors(full(log_density, mean, K), exact)
        row[SIMPLIFIED] = errors(simplified(log_density, mean, K), exact)
    return row | {NESTED: errors(approximations(case, variance)[NESTED].marginals, exact)}


def run(again: bool) -> None:
    """Measure all cases with one latent a row, and write the table."""
    keys = {f"{case.name} {case.y} {variance:g}": (case, variance) for case in SMOOTH for variance in VARIANCES}
    rows = list(kept("laplace", keys, lambda key: compared(*keys[key]), again).values())
    write(
        "laplace",
        "Nested marginals beside Laplace approximations",
        "Three latents as in the table against quadrature, with the same errors: of means in posterior deviations, "
        "of variances and of E exp f, relative. Laplace: log p(y, f_i = x) about the mode of the other latents at 33 "
        "values x. Simplified Laplace: skew normal densities by third derivatives at the mode. Both as in Rue, "
        "Martino and Chopin (2009), in NumPy; the mean of the simplified ones is that of the expansion in all rows, "
        "which is more accurate than the published one. Errors and seconds on real data: see the table against Gibbs.",
        summary(rows, [FULL, SIMPLIFIED, NESTED]),
    )
