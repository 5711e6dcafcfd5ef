"""Quadrature rules and central composite designs."""

import math
from collections.abc import Callable
from itertools import combinations, count, product
from typing import NamedTuple

import numpy as np
import scipy

# Quadrature nodes and weights, and chunk sizes that fit into memory.

# Values per chunk: an intermediate array then has 32 MB.
CHUNK_VALUES = 4_000_000


def gauss_hermite(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights (count,) for the weight function exp(-x²/2), whose integral is √(2π)."""
    return scipy.special.roots_hermitenorm(count)


def gauss_legendre(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights (count,) on (-1, 1); the weights sum to 2."""
    return np.polynomial.legendre.leggauss(count)


def trapezoid_normal(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (count^size, size) and weights of a standard normal: ``count`` points on (-8, 8) per dimension."""
    line = np.linspace(-8.0, 8.0, count)
    density = np.exp(-0.5 * line**2) / np.sqrt(2 * np.pi) * (line[1] - line[0])
    nodes = np.stack(np.meshgrid(*[line] * size, indexing="ij"), axis=-1).reshape(-1, size)
    return nodes, np.prod(np.stack(np.meshgrid(*[density] * size, indexing="ij"), axis=-1), axis=-1).ravel()


def sobol_normals(size: int, count: int, seed: int | np.random.Generator = 0) -> np.ndarray:
    """Return scrambled Sobol points of a standard normal, (count, size), equally weighted; ``count`` must be 2^k."""
    return scipy.special.ndtri(sobol_uniforms(size, count, seed))


def sobol_uniforms(size: int, count: int, seed: int | np.random.Generator = 0) -> np.ndarray:
    """Return scrambled Sobol points of the unit cube, (count, size)."""
    from scipy.stats import qmc

    return qmc.Sobol(size, seed=seed).random(count)


def normal_nodes(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (count, size) and weights (count,) of a standard normal: Gauss-Hermite for size 1, else Sobol."""
    if size > 1:
        return sobol_normals(size, count), np.full(count, 1.0 / count)
    nodes, weights = gauss_hermite(count)
    return nodes[:, None], weights / weights.sum()


def chunk_length(width: int, values: int = CHUNK_VALUES) -> int:
    """Return the number of entries per chunk, for entries of ``width`` values each."""
    return max(1, values // width)


def slices(count: int, width: int, values: int = CHUNK_VALUES) -> list[slice]:
    """Return slices of ``count`` entries, ``chunk_length`` each."""
    step = chunk_length(width, values)
    return [slice(start, start + step) for start in range(0, count, step)]


def power_of_two(count: int) -> int:
    """Return the smallest power of two >= ``count``, so that similar sizes share compiled programs."""
    return 1 << max(0, count - 1).bit_length()


def equal_chunks(rows: np.ndarray, length: int) -> list[np.ndarray]:
    """Return rows in chunks of one length. The last chunk repeats its last row; the caller drops the repetitions."""
    padded = np.pad(rows, (0, -len(rows) % length), mode="edge")
    return [padded[start : start + length] for start in range(0, len(padded), length)]


def padded_chunks(rows: np.ndarray, width: int, values: int = CHUNK_VALUES) -> list[np.ndarray]:
    """Return equal chunks of ``chunk_length`` rows, or of a smaller power of two, so that few shapes are compiled."""
    return equal_chunks(rows, min(chunk_length(width, values), power_of_two(len(rows))))


# Grids and central composite designs: evaluation points of a density in standardised coordinates about its mode.

# Grid spacing in standard deviations by dimension: sums over the grid integrate a Gaussian to 1e-5 or better. Higher
# dimensions use a composite design.
SPACINGS = {1: 0.75, 2: 1.0, 3: 1.5}
# Maximum number of grid points by dimension.
_MAX_POINTS = {1: 60, 2: 150, 3: 300}
# The radius of a composite design's sphere, over the square root of the dimension (Rue, Martino, Chopin 2009).
_RADIUS = 1.1
# For marginals: the number of lattice points per cell and axis of a grid, by dimension.
_FINER = {1: 40, 2: 8, 3: 5}
# Log densities lower than this below the largest are raised to this level before interpolation. They have no mass, and
# a cubic that follows a cliff down overshoots by hundreds of nats on the other side of the cliff.
_FLOOR = 12.0


class Design(NamedTuple):
    """Points (K, d) in standardised coordinates, their log densities (K,), and whether they cover the mass.

    If the interpolated density disagrees with new points, ``error`` is the log total mass's error in nats, else 0.
    """

    points: np.ndarray
    log_densities: np.ndarray
    is_complete: bool
    error: float = 0.0


class WeightedPoints(NamedTuple):
    """Points (S, d) in standardised coordinates, their masses (S,), and the index of the design point nearest to each.

    ``weights`` (K,) are the design points' weights, and ``log_total`` is the logarithm of the total mass.
    """

    points: np.ndarray
    mass: np.ndarray
    owners: np.ndarray
    weights: np.ndarray
    log_total: float


# Arguments: a point, and the index of the nearest evaluated point, if any. Result: its log density, or -infinity.
LogDensity = Callable[[np.ndarray, int | None], float]


def grid(density: LogDensity, size: int, max_points: int | None = None) -> Design:
    """Return a grid about the origin, grown until the density is low on all sides; ``is_complete`` is then True."""
    spacing, max_points = SPACINGS[size], max_points or _MAX_POINTS[size]
    steps = [np.array(step) * sign for step in np.eye(size, dtype=int) for sign in (1, -1)]
    log_densities: dict[tuple[int, ...], float] = {(0,) * size: density(np.zeros(size), None)}
    open_cells = [(0,) * size]
    order = {(0,) * size: 0}
    is_complete = True
    while open_cells:
        highest = max(log_densities.values())
        # The cell with the highest density comes first, so that distant cells may be skipped.
        cell = max(open_cells, key=lambda candidate: log_densities[candidate])
        open_cells.remove(cell)
        # The grid grows at points whose density is at least e^-3 of the largest.
        if not log_densities[cell] > highest - 3.0:
            continue
        for step in steps:
            neighbour = tuple(int(i) for i in np.array(cell) + step)
            if neighbour in log_densities:
                continue
            if len(log_densities) >= max_points:
                is_complete = False
                break
            log_densities[neighbour] = density(spacing * np.array(neighbour), order[cell])
            order[neighbour] = len(order)
            open_cells.append(neighbour)
    points = spacing * np.array(list(log_densities), dtype=float)
    return Design(points, np.array(list(log_densities.values())), is_complete)


def refined(density: LogDensity, design: Design) -> Design:
    """Return a grid with points added until the interpolated density agrees with the density at new points.

    They agree if their ratio at new points has a mean within 0.05 of 1, and a root mean square error below 0.15. Near
    cliffs of hundreds of nats, the error of the log evidence is then 0.00 to 0.09 nats.
    """
    if not np.isfinite(design.log_densities[0]):
        return design
    for _ in range(10):
        fine, log_mass = _interpolated(design)[:2]
        chosen = _new_points(design, fine, log_mass)
        nearest = _nearest(design.points, fine[chosen])
        values = np.array([density(fine[i], int(near)) for i, near in zip(chosen, nearest, strict=True)])
        floored = np.maximum(values, np.max(design.log_densities) - _FLOOR)
        # Points where the evaluation failed are ignored.
        ratios = np.exp(np.clip(floored - log_mass[chosen], -50.0, 50.0))[np.isfinite(values)]
        points, log_densities = np.concatenate([design.points, fine[chosen]]), np.append(design.log_densities, values)
        design = design._replace(points=points, log_densities=log_densities)
        mean_error = abs(float(np.mean(ratios)) - 1.0) if len(ratios) else math.inf
        if mean_error < 0.05 and float(np.mean((ratios - 1.0) ** 2)) < 0.15**2:
            return design
    return design._replace(error=abs(math.log(np.mean(ratios))) if len(ratios) else math.inf)


def _new_points(design: Design, fine: np.ndarray, log_density: np.ndarray) -> list[int]:
    """Return the indices of points with the largest density times squared distance to the design and to each other."""
    from scipy.spatial import KDTree

    squares = KDTree(design.points).query(fine)[0] ** 2
    density, chosen = np.exp(log_density - log_density.max()), []
    for _ in range(4 * fine.shape[1]):
        chosen.append(int(np.argmax(density * squares)))
        squares = np.minimum(squares, np.sum((fine - fine[chosen[-1]]) ** 2, axis=1))
    return chosen


def composite(density: LogDensity, size: int) -> Design:
    """Return a central composite design: centre, axis points, fractional factorial on a sphere (Box and Wilson 1951).

    ``is_complete`` is True if the density falls off towards every axis point.
    """
    ends = np.sqrt(size) * np.concatenate([np.eye(size), -np.eye(size)])
    points = _RADIUS * np.concatenate([np.zeros((1, size)), ends, _corners(size)])
    values = np.array([density(points[0], None), *(density(point, 0) for point in points[1:])])
    return Design(points, values, bool(np.all(values[1 : 2 * size + 1] < values[0])))


def _corners(size: int) -> np.ndarray:
    """Return a fractional factorial design of resolution V on {-1, 1}^size (Sanchez and Sanchez 2005)."""
    # The sign of axis k at a corner is the parity of the bits that the corner's index shares with the k-th word. No
    # four or fewer words sum to 0 modulo 2, so that no pair of axes is confounded with another pair.
    words: list[int] = []
    for word in count(1):
        if len(words) == size:
            break
        sums = {0}
        for number in (1, 2, 3):
            sums |= {int(np.bitwise_xor.reduce(subset)) for subset in combinations(words, number)}
        if word not in sums:
            words.append(word)
    corners = range(1 << max(words).bit_length())
    return np.array([[1.0 - 2.0 * ((corner & word).bit_count() % 2) for word in words] for corner in corners])


def grid_support(design: Design) -> WeightedPoints:
    """Return a finer lattice in the cells of a grid and their neighbours, with interpolated log densities.

    The cardinal function of a design point is 1 at the point and 0 at all other points. Its mean over the lattice is
    the point's weight: weighted sums over the design are then integrals of the interpolant. Negative weights, at the
    rim, and weights of points without mass are set to 0.
    """
    fine, log_density, cardinal = _interpolated(design)
    finite = np.isfinite(design.log_densities)
    points, values = design.points[finite], design.log_densities[finite]
    size = points.shape[1]
    log_mass = log_density + size * np.log(SPACINGS[size] / _FINER[size])
    total = float(np.logaddexp.reduce(log_mass))
    mass = np.exp(log_mass - total)
    shares = np.where(values > values.max() - _FLOOR, np.maximum(mass @ cardinal, 0.0), 0.0)
    return WeightedPoints(fine, mass, _nearest(points, fine), shares / shares.sum(), total)


def _interpolated(design: Design) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the lattice (S, d), its log densities (S,), and the cardinal functions (S, K) of points with a density."""
    size = design.points.shape[1]
    spacing, finite = SPACINGS[size], np.isfinite(design.log_densities)
    points, values = design.points[finite], design.log_densities[finite]
    values = np.maximum(values, values.max() - _FLOOR)
    steps = np.concatenate([np.zeros((1, size)), np.eye(size), -np.eye(size)])
    cells = spacing * np.unique(np.round((points / spacing)[:, None, :] + steps).reshape(-1, size), axis=0)
    offsets = (np.arange(_FINER[size]) + 0.5) / _FINER[size] - 0.5
    fine = (cells[:, None, :] + spacing * np.array(list(product(offsets, repeat=size)))).reshape(-1, size)
    interpolated = _interpolator(points, np.column_stack([values, np.eye(len(points))]))(fine)
    return fine, interpolated[:, 0], interpolated[:, 1:]


def _nearest(points: np.ndarray, where: np.ndarray) -> np.ndarray:
    from scipy.spatial import KDTree

    return KDTree(points).query(where)[1]


def _interpolator(points: np.ndarray, values: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    from scipy.interpolate import RBFInterpolator

    size = points.shape[1]
    # A quadratic polynomial (if determined) plus radial basis functions: exact for the logarithm of a Gaussian.
    squares = [points[:, i] * points[:, j] for i in range(size) for j in range(i, size)]
    monomials = np.column_stack([np.ones(len(points)), points, *squares])
    is_quadratic = len(points) > monomials.shape[1] + size and np.linalg.matrix_rank(monomials) == monomials.shape[1]
    return RBFInterpolator(points, values, kernel="cubic", degree=2 if is_quadratic else 1)


def composite_support(design: Design) -> WeightedPoints:
    """Return Sobol points of a split normal distribution with a deviation per half axis (Martins et al. 2013).

    The standard deviations follow from the densities at the axis points.
    """
    size = design.points.shape[1]
    radius = _RADIUS * np.sqrt(size)
    fall = design.log_densities[0] - design.log_densities[1 : 2 * size + 1]
    # The fall is clipped, so that no deviation is 0, or above 5 if the density hardly falls.
    sides = (radius / np.sqrt(2.0 * np.clip(fall, 0.02 * radius**2, 50.0))).reshape(2, size)
    uniform = sobol_uniforms(size, 4096)
    share = sides[1] / sides.sum(axis=0)
    below = uniform < share
    # Half a normal distribution on each side, with masses that make the density continuous.
    tail = np.where(below, 0.5 * uniform / share, 0.5 + 0.5 * (uniform - share) / (1.0 - share))
    points = scipy.special.ndtri(np.clip(tail, 1e-12, 1.0 - 1e-12)) * np.where(below, sides[1], sides[0])
    # With these log weights, sums over a composite design are exact for a Gaussian's mass, mean and variance.
    count = len(design.points) - 1
    log_volume = 0.5 * size * np.log(2.0 * np.pi)
    outer = log_volume + 0.5 * _RADIUS**2 * size - np.log(count * _RADIUS**2)
    log_mass = design.log_densities + np.array([log_volume + np.log1p(-1.0 / _RADIUS**2), *np.full(count, outer)])
    total, finite = float(np.logaddexp.reduce(log_mass)), np.isfinite(log_mass)
    owners = _nearest(design.points[finite], points)
    mass = np.full(len(points), 1.0 / len(points))
    return WeightedPoints(points, mass, owners, np.exp(log_mass[finite] - total), total)
