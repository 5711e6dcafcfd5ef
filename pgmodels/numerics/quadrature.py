"""Quadrature nodes and weights, and chunk sizes that fit into memory."""

import numpy as np
import scipy

# Values per chunk: 32 MB for an intermediate array.
CHUNK_VALUES = 4_000_000


def gauss_hermite(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights (count,) for the weight function exp(-x²/2), whose integral is √(2π)."""
    return scipy.special.roots_hermitenorm(count)


def gauss_legendre(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights (count,) on (-1, 1); the weights sum to 2."""
    return np.polynomial.legendre.leggauss(count)


def trapezoid_normal(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (count^size, size) and weights of a standard normal: a grid of ``count`` points on (-8, 8) per dimension.

    Exact to rounding for smooth integrands, and of second order in the spacing for integrands with kinks.
    """
    line = np.linspace(-8.0, 8.0, count)
    density = np.exp(-0.5 * line**2) / np.sqrt(2 * np.pi) * (line[1] - line[0])
    nodes = np.stack(np.meshgrid(*[line] * size, indexing="ij"), axis=-1).reshape(-1, size)
    return nodes, np.prod(np.stack(np.meshgrid(*[density] * size, indexing="ij"), axis=-1), axis=-1).ravel()


def sobol_normals(size: int, count: int, seed: int | np.random.Generator = 0) -> np.ndarray:
    """Scrambled Sobol points of a standard normal, (count, size), equally weighted; ``count`` is a power of two."""
    return scipy.special.ndtri(sobol_uniforms(size, count, seed))


def sobol_uniforms(size: int, count: int, seed: int | np.random.Generator = 0) -> np.ndarray:
    """Scrambled Sobol points of the unit cube, (count, size)."""
    from scipy.stats import qmc

    return qmc.Sobol(size, seed=seed).random(count)


def normal_nodes(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (count, size) and weights (count,) of a standard normal: Gauss-Hermite in one dimension, Sobol in more."""
    if size > 1:
        return sobol_normals(size, count), np.full(count, 1.0 / count)
    nodes, weights = gauss_hermite(count)
    return nodes[:, None], weights / weights.sum()


def chunk_length(width: int, values: int = CHUNK_VALUES) -> int:
    """The number of entries per chunk, for entries of ``width`` values each."""
    return max(1, values // width)


def slices(count: int, width: int, values: int = CHUNK_VALUES) -> list[slice]:
    """Slices of ``count`` entries, ``chunk_length`` each."""
    step = chunk_length(width, values)
    return [slice(start, start + step) for start in range(0, count, step)]


def power_of_two(count: int) -> int:
    """The smallest power of two >= ``count``: sizes rounded up to it share compiled programs."""
    return 1 << max(0, count - 1).bit_length()


def equal_chunks(rows: np.ndarray, length: int) -> list[np.ndarray]:
    """Rows in chunks of one length; the last is padded by repeating its last row, which the caller drops."""
    padded = np.pad(rows, (0, -len(rows) % length), mode="edge")
    return [padded[start : start + length] for start in range(0, len(padded), length)]


def padded_chunks(rows: np.ndarray, width: int, values: int = CHUNK_VALUES) -> list[np.ndarray]:
    """Equal chunks of ``chunk_length`` rows, or a power of two if that is less: few shapes are compiled."""
    return equal_chunks(rows, min(chunk_length(width, values), power_of_two(len(rows))))
