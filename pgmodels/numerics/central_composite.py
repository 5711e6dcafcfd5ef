"""Points of hyperparameters, in standardised coordinates about a mode, at which a posterior is looked at."""

import math
from collections.abc import Callable
from itertools import combinations, count, product
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

# A grid for so many dimensions, with this spacing in standard deviations: for a Gaussian sums over it are integrals to
# 1e-5 and less, and a composite design beyond.
SPACINGS = {1: 0.75, 2: 1.0, 3: 1.5}
# Neighbours are looked at of points whose log density is at most so far below the largest: e^-3 of it.
_DEPTH = 3.0
# And up to so many points in all.
_MOST = {1: 60, 2: 150, 3: 300}
# The sphere of a composite design has this radius times the root of the dimension (Rue, Martino and Chopin 2009).
_STRETCH = 1.1
# Points for marginals: a finer lattice in each cell of a grid, or Sobol points.
_FINER = {1: 40, 2: 8, 3: 5}
_SOBOL = 4096


# What is further below the largest log density is interpolated as if it were so far: it has no mass, and beside a cliff
# a cubic that follows it down rises above all points on the other side, by hundreds of nats.
_FLOOR = 12.0
# Fresh points of a round, rounds, and how near to 1 the ratio of the density to the interpolated one must be there, on
# average and as a root mean square. Beside cliffs of hundreds of nats the evidence was off by 0.00 to 0.09 nats then.
_FRESH, _ROUNDS = {1: 4, 2: 8, 3: 12}, 10
_AVERAGE, _EACH = 0.05, 0.15


class Design(NamedTuple):
    """Points (K, d) in standardised coordinates, their log densities (K,), and whether they hold the mass.

    ``error`` is that of the log of the whole mass, in nats, where the density interpolated in between does not agree
    with fresh points, and 0 where it does.
    """

    points: np.ndarray
    log_densities: np.ndarray
    is_whole: bool
    error: float = 0.0


class Support(NamedTuple):
    """Many points (S, d) in standardised coordinates, the mass of each, (S,), and the design's point nearest to it.

    ``weights`` (K,) are the shares of the design's points, and ``log_total`` the logarithm of the whole mass.
    """

    points: np.ndarray
    mass: np.ndarray
    owners: np.ndarray
    weights: np.ndarray
    log_total: float


# The log density at a point, minus infinity where it has none; a number that names the nearest point seen before.
Density = Callable[[np.ndarray, int | None], float]


def grid(density: Density, size: int) -> Design:
    """A grid about the origin that grows until the density has fallen off on all of its sides.

    ``is_whole`` says that it has: that no point was left out for their number.
    """
    spacing, most = SPACINGS[size], _MOST[size]
    steps = [np.array(step) * sign for step in np.eye(size, dtype=int) for sign in (1, -1)]
    found: dict[tuple[int, ...], float] = {(0,) * size: density(np.zeros(size), None)}
    open_cells = [(0,) * size]
    order = {(0,) * size: 0}
    is_whole = True
    while open_cells:
        top = max(found.values())
        # The densest first: what is far from it may not have to be looked at.
        cell = max(open_cells, key=lambda own: found[own])
        open_cells.remove(cell)
        if not found[cell] > top - _DEPTH:
            continue
        for step in steps:
            neighbour = tuple(int(i) for i in np.array(cell) + step)
            if neighbour in found:
                continue
            if len(found) >= most:
                is_whole = False
                break
            found[neighbour] = density(spacing * np.array(neighbour), order[cell])
            order[neighbour] = len(order)
            open_cells.append(neighbour)
    points = spacing * np.array(list(found), dtype=float)
    return Design(points, np.array(list(found.values())), is_whole)


def refined(density: Density, design: Design) -> Design:
    """A grid with further points, until the density that is interpolated agrees with it at fresh ones."""
    if not np.isfinite(design.log_densities[0]):
        return design
    for _ in range(_ROUNDS):
        fine, log_mass = _interpolated(design)[:2]
        places = _fresh(design, fine, log_mass)
        nearest = _nearest(design.points, fine[places])
        values = np.array([density(fine[i], int(near)) for i, near in zip(places, nearest, strict=True)])
        floored = np.maximum(values, np.max(design.log_densities) - _FLOOR)
        # Of a point that gives no density nothing is known.
        ratios = np.exp(np.clip(floored - log_mass[places], -50.0, 50.0))[np.isfinite(values)]
        points, log_densities = np.concatenate([design.points, fine[places]]), np.append(design.log_densities, values)
        design = design._replace(points=points, log_densities=log_densities)
        off = abs(float(np.mean(ratios)) - 1.0) if len(ratios) else math.inf
        if off < _AVERAGE and float(np.mean((ratios - 1.0) ** 2)) < _EACH**2:
            return design
    return design._replace(error=abs(math.log(np.mean(ratios))) if len(ratios) else math.inf)


def _fresh(design: Design, fine: np.ndarray, log_density: np.ndarray) -> list[int]:
    """Those of many points that have the most mass for how near they are to points of the design, and to each other."""
    from scipy.spatial import KDTree

    squares = KDTree(design.points).query(fine)[0] ** 2
    density, chosen = np.exp(log_density - log_density.max()), []
    for _ in range(_FRESH[fine.shape[1]]):
        chosen.append(int(np.argmax(density * squares)))
        squares = np.minimum(squares, np.sum((fine - fine[chosen[-1]]) ** 2, axis=1))
    return chosen


def composite(density: Density, size: int) -> Design:
    """The centre, and on a sphere the ends of the axes and the corners of a fraction of a cube (Box and Wilson 1951).

    ``is_whole`` says that the density falls off towards every end of an axis.
    """
    radius = _STRETCH * np.sqrt(size)
    ends = radius * np.concatenate([np.eye(size), -np.eye(size)])
    sphere = np.concatenate([ends, _STRETCH * _corners(size)])
    points = np.concatenate([np.zeros((1, size)), sphere])
    values = np.array([density(points[0], None), *(density(point, 0) for point in sphere)])
    return Design(points, values, bool(np.all(values[1 : 2 * size + 1] < values[0])))


def _volumes(size: int) -> np.ndarray:
    """Logarithms of the volumes by which sums over a composite design are a Gaussian's mass, mean and variance."""
    count = 2 * size + len(_corners(size))
    whole = 0.5 * size * np.log(2.0 * np.pi)
    outer = whole + 0.5 * _STRETCH**2 * size - np.log(count * _STRETCH**2)
    return np.array([whole + np.log1p(-1.0 / _STRETCH**2), *np.full(count, outer)])


def _corners(size: int) -> np.ndarray:
    """A fraction of the corners of (-1, 1)^size in which no pair of axes is confounded with another (resolution V).

    Axis k has the sign of the parity of the bits that a corner's number shares with the k-th word; words are taken so
    that no four or fewer cancel (Sanchez and Sanchez 2005).
    """
    words: list[int] = []
    for word in count(1):
        if len(words) == size:
            break
        sums = {0}
        for taken in (1, 2, 3):
            sums |= {int(np.bitwise_xor.reduce(own)) for own in combinations(words, taken)}
        if word not in sums:
            words.append(word)
    corners = range(1 << max(words).bit_length())
    return np.array([[1.0 - 2.0 * ((corner & word).bit_count() % 2) for word in words] for corner in corners])


def grid_support(design: Design) -> Support:
    """A finer lattice in the cells of a grid and their neighbours, the log density interpolated in between.

    The share of a point is the mean over the lattice of what interpolates 1 there and 0 at the others, so that sums of
    anything over the points are integrals of its interpolation; what comes out negative, at the rim, is set to 0, and
    so is that of a point without mass.
    """
    fine, log_density, cardinal = _interpolated(design)
    seen = np.isfinite(design.log_densities)
    points, values = design.points[seen], design.log_densities[seen]
    size = points.shape[1]
    log_mass = log_density + size * np.log(SPACINGS[size] / _FINER[size])
    total = float(np.logaddexp.reduce(log_mass))
    mass = np.exp(log_mass - total)
    shares = np.where(values > values.max() - _FLOOR, np.maximum(mass @ cardinal, 0.0), 0.0)
    return Support(fine, mass, _nearest(points, fine), shares / shares.sum(), total)


def _interpolated(design: Design) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The lattice (S, d), the log density there, and the cardinal function of each point with a density, (S, K)."""
    size = design.points.shape[1]
    spacing, seen = SPACINGS[size], np.isfinite(design.log_densities)
    points, values = design.points[seen], design.log_densities[seen]
    values = np.maximum(values, values.max() - _FLOOR)
    steps = np.concatenate([np.zeros((1, size)), np.eye(size), -np.eye(size)])
    cells = spacing * np.unique(np.round((points / spacing)[:, None, :] + steps).reshape(-1, size), axis=0)
    offsets = (np.arange(_FINER[size]) + 0.5) / _FINER[size] - 0.5
    fine = (cells[:, None, :] + spacing * np.array(list(product(offsets, repeat=size)))).reshape(-1, size)
    found = _interpolator(points, np.column_stack([values, np.eye(len(points))]))(fine)
    return fine, found[:, 0], found[:, 1:]


def _nearest(points: np.ndarray, where: np.ndarray) -> np.ndarray:
    from scipy.spatial import KDTree

    return KDTree(points).query(where)[1]


def _interpolator(points: np.ndarray, values: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    from scipy.interpolate import RBFInterpolator

    size = points.shape[1]
    # A quadratic and what is left of it: the logarithm of a Gaussian is met exactly.
    monomials = (size + 1) * (size + 2) // 2
    degree = 2 if len(points) > monomials + size and _determines_squares(points) else 1
    return RBFInterpolator(points, values, kernel="cubic", degree=degree)


def _determines_squares(points: np.ndarray) -> bool:
    size = points.shape[1]
    squares = [points[:, i] * points[:, j] for i in range(size) for j in range(i, size)]
    terms = np.column_stack([np.ones(len(points)), points, *squares])
    return bool(np.linalg.matrix_rank(terms) == terms.shape[1])


def composite_support(design: Design) -> Support:
    """Sobol points of the normal distribution whose sides each have a deviation of their own (Martins et al. 2013).

    Those are what the densities at the ends of the axes say.
    """
    from scipy.stats import qmc

    size = design.points.shape[1]
    radius = _STRETCH * np.sqrt(size)
    fall = design.log_densities[0] - design.log_densities[1 : 2 * size + 1]
    # A side along which the density hardly falls is taken to be as wide as five deviations, and none is without width.
    sides = (radius / np.sqrt(2.0 * np.clip(fall, 0.02 * radius**2, 50.0))).reshape(2, size)
    uniform = qmc.Sobol(size, seed=0).random(_SOBOL)
    share = sides[1] / sides.sum(axis=0)
    below = uniform < share
    # Half a normal distribution on each side, of masses that make the density continuous.
    tail = np.where(below, 0.5 * uniform / share, 0.5 + 0.5 * (uniform - share) / (1.0 - share))
    points = ndtri(np.clip(tail, 1e-12, 1.0 - 1e-12)) * np.where(below, sides[1], sides[0])
    log_mass = design.log_densities + _volumes(size)
    total, seen = float(np.logaddexp.reduce(log_mass)), np.isfinite(log_mass)
    owners = _nearest(design.points[seen], points)
    return Support(points, np.full(_SOBOL, 1.0 / _SOBOL), owners, np.exp(log_mass[seen] - total), total)
