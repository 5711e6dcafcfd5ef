"""Nodes and weights of quadrature, and work in pieces that fit into memory."""

import numpy as np
from scipy.special import ndtri, roots_hermitenorm

# Values evaluated at a time: 32 MB an intermediate array.
VALUES = 4_000_000


def gauss_hermite(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights (count,) for the weight function exp(-x²/2), whose integral is √(2π)."""
    return roots_hermitenorm(count)


def gauss_legendre(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights (count,) on (-1, 1), whose length is 2."""
    return np.polynomial.legendre.leggauss(count)


def trapezoid_normal(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (count^size, size) and weights of a standard normal: a grid of ``count`` on (-8, 8) along each dimension.

    Exact to rounding for what is smooth, and of second order in the spacing at kinks.
    """
    line = np.linspace(-8.0, 8.0, count)
    density = np.exp(-0.5 * line**2) / np.sqrt(2 * np.pi) * (line[1] - line[0])
    nodes = np.stack(np.meshgrid(*[line] * size, indexing="ij"), axis=-1).reshape(-1, size)
    return nodes, np.prod(np.stack(np.meshgrid(*[density] * size, indexing="ij"), axis=-1), axis=-1).ravel()


def sobol_normals(size: int, count: int, seed: int | np.random.Generator = 0) -> np.ndarray:
    """Scrambled Sobol points of a standard normal, (count, size), all of one weight; ``count`` is a power of two."""
    return ndtri(sobol_uniforms(size, count, seed))


def sobol_uniforms(size: int, count: int, seed: int | np.random.Generator = 0) -> np.ndarray:
    """The same of the unit cube."""
    from scipy.stats import qmc

    return qmc.Sobol(size, seed=seed).random(count)


def normal_nodes(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (count, size) and weights (count,) of a standard normal: Gauss-Hermite in one dimension, Sobol in more."""
    if size > 1:
        return sobol_normals(size, count), np.full(count, 1.0 / count)
    nodes, weights = gauss_hermite(count)
    return nodes[:, None], weights / weights.sum()


def at_a_time(width: int, values: int = VALUES) -> int:
    """How many entries, each of so many values, are evaluated at a time."""
    return max(1, values // width)


def slices(count: int, width: int, values: int = VALUES) -> list[slice]:
    """Slices of ``count`` entries, as many of them as are evaluated at a time."""
    step = at_a_time(width, values)
    return [slice(start, start + step) for start in range(0, count, step)]


def power_of_two(count: int) -> int:
    """The smallest power of two that is not below ``count``: sizes rounded up to it share few programs."""
    return 1 << max(0, count - 1).bit_length()


def equal_chunks(rows: np.ndarray, length: int) -> list[np.ndarray]:
    """Rows in chunks of one length; the last is filled up by repeating its last row, which is to be dropped again."""
    padded = np.pad(rows, (0, -len(rows) % length), mode="edge")
    return [padded[start : start + length] for start in range(0, len(padded), length)]


def padded_chunks(rows: np.ndarray, width: int, values: int = VALUES) -> list[np.ndarray]:
    """Equal chunks of as many rows as are evaluated at a time, or a power of two: few shapes are compiled."""
    return equal_chunks(rows, min(at_a_time(width, values), power_of_two(len(rows))))
