"""Mean and variance of an observation given its latents, by sums and quadrature over the support of y."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pgmodels.likelihoods.items import COORDINATES, Items
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.likelihoods.pieces import Piece, outermost
from pgmodels.likelihoods.sampling import MISSING, SamplingWarning, conditional_pieces, require_normalised
from pgmodels.runtime.warnings import warn
from pgmodels.runtime.x64 import double_precision

_FAR = np.abs(COORDINATES) > 12.0
# If far points contribute more than this share of a moment, the moment is unreliable.
_SHARE = 1e-3
# Discrete values are summed from the ends of the support, in these numbers, until their probabilities sum to 1 up to
# _NEGLIGIBLE; an integral covers the rest.
_COUNT_LEVELS = (64, 512, 4096)
_NEGLIGIBLE = 1e-12


class _Points(NamedTuple):
    """Values of y and their probabilities, both (points, rows), and a mask (points,) of points far in the tails."""

    y: np.ndarray
    weight: np.ndarray
    far: np.ndarray


@double_precision
def expectations(
    likelihood: Likelihood, f: Any, covariates: Any, parameters: Mapping[str, np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """E[y | f] and Var[y | f] of each datum, shape (..., n), for latents f (..., n, latents).

    Arguments as in ``draw_observations``. NaN where the tails are too heavy for the points. Warns with
    SamplingWarning if the points miss more than 1e-3 of the probability. Raises ValueError if the support of y is not
    declared or the formula is not normalised over it.
    """
    f = np.asarray(f, dtype=np.float64)
    n, size = f.shape[-2:]
    support = require_normalised(likelihood, size, "y has no mean and no variance")
    columns = support.num_columns - 1
    other_columns = None if columns == 0 else np.asarray(covariates, dtype=np.float64).reshape(n, columns)
    listed, open_ended = conditional_pieces(likelihood, support, other_columns, n)
    items = Items(likelihood, f, other_columns, parameters or {})
    pieces = listed if open_ended is None else [*listed, open_ended]
    every = np.arange(items.count)
    mean, variance, mass = items.by_chunk(every, lambda rows: _moments(items, pieces, rows))
    missing = np.max(np.abs(1.0 - mass), initial=0.0)
    if missing > MISSING:
        warn(
            f"the mean and the variance of y of {likelihood.name} are sums over points whose probabilities sum to 1 "
            f"with an error of {missing:.2g}: far tails, or detail finer than the points, are missing.",
            SamplingWarning,
        )
    return mean.reshape(f.shape[:-1]), variance.reshape(f.shape[:-1])


def _moments(items: Items, pieces: list[Piece], rows: np.ndarray) -> np.ndarray:
    """Mean, variance and total probability of the points of some items, (3, rows)."""
    groups: list[_Points] = []
    for piece in pieces:
        elsewhere = sum((points.weight.sum(axis=0) for points in groups), np.zeros(len(rows)))
        groups += _points(items, piece, rows, elsewhere)
    y, weight, far = (np.concatenate(arrays) for arrays in zip(*groups, strict=True))
    mass = weight.sum(axis=0)
    # Squares of far points with weight 0 may overflow.
    y = np.where(weight > 0, y, 0.0)
    mean = _share(y, weight, far) / mass
    with np.errstate(over="ignore"):
        variance = _share(np.where(weight > 0, y - mean, 0.0) ** 2, weight, far) / mass
    return np.stack([mean, variance, mass])


def _share(values: np.ndarray, weight: np.ndarray, far: np.ndarray) -> np.ndarray:
    """The weighted sum of values, NaN where far points contribute too much."""
    sizes = np.abs(values) * weight
    total = sizes.sum(axis=0)
    reliable = np.isfinite(total) & (sizes[far].sum(axis=0) <= _SHARE * total)
    return np.where(reliable, (values * weight).sum(axis=0), np.nan)


def _points(items: Items, piece: Piece, rows: np.ndarray, elsewhere: np.ndarray) -> list[_Points]:
    low, high = items.ends(piece, rows)
    if not piece.is_discrete:
        return [_interval(items, rows, low, high, elsewhere)]
    for level in _COUNT_LEVELS:
        points, exists, lower, upper = outermost(low, high, level)
        counts = _Points(points, items.listed(rows, points, exists), np.zeros(len(points), dtype=bool))
        if (lower >= upper).all() or (counts.weight.sum(axis=0) + elsewhere > 1.0 - _NEGLIGIBLE).all():
            return [counts]
    return [counts, _interval(items, rows, lower, upper, elsewhere + counts.weight.sum(axis=0))]


def _interval(items: Items, rows: np.ndarray, low: np.ndarray, high: np.ndarray, elsewhere: np.ndarray) -> _Points:
    y, log_p, log_slope = items.interval(rows, low, high, elsewhere)
    return _Points(y, np.exp(log_p + log_slope) * (COORDINATES[1] - COORDINATES[0]), _FAR)
