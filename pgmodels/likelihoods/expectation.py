"""Mean and variance of an observation given its latents, by sums and quadrature over what it can be."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pgmodels.likelihoods.items import Items
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.likelihoods.pieces import Piece, outermost
from pgmodels.likelihoods.sampling import MISSING, SamplingWarning, pieces_given, require_normalised
from pgmodels.runtime.warnings import warn
from pgmodels.runtime.x64 import double_precision

# y = centre + scale * sinh(s): 5 % of the scale apart at the centre, 600,000 scales out at the ends. The trapezoid
# rule is exact to rounding for smooth densities, and to a thousandth of the variance across a kink.
_STANDARD = np.linspace(-14.0, 14.0, 512)
_FAR = np.abs(_STANDARD) > 12.0
# Moments of which more than this share lies far out are not what the points say.
_SHARE = 1e-3
# Numbers of a list added up from its ends, until their probabilities sum to 1 up to _NEGLIGIBLE; then an integral takes
# the rest.
_COUNT_LEVELS = (64, 512, 4096)
_NEGLIGIBLE = 1e-12


class _Points(NamedTuple):
    """Numbers that y can be, their probabilities, both (points, rows), and which of them are far out."""

    y: np.ndarray
    weight: np.ndarray
    far: np.ndarray


@double_precision
def expectations(
    likelihood: Likelihood, f: Any, covariates: Any, parameters: Mapping[str, np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """E[y | f] and Var[y | f] of each datum, shape (..., n), for latents f (..., n, latents).

    Arguments are those of ``draw_observations``. NaN where the tails are so heavy that the points do not tell. Warns
    with SamplingWarning where they miss more than 1e-3 of the probability. Raises ValueError where the support of y is
    not declared or the formula is not normalised over it.
    """
    f = np.asarray(f, dtype=np.float64)
    n, size = f.shape[-2:]
    support = require_normalised(likelihood, size, "y has no mean and no variance")
    columns = support.num_columns - 1
    given = None if columns == 0 else np.asarray(covariates, dtype=np.float64).reshape(n, columns)
    listed, open_ended = pieces_given(likelihood, support, given, n)
    items = Items(likelihood, f, given, parameters or {})
    pieces = listed if open_ended is None else [*listed, open_ended]
    every = np.arange(items.count)
    mean, variance, mass = items.by_chunk(every, lambda rows: _moments(items, pieces, rows))
    missing = np.max(np.abs(1.0 - mass), initial=0.0)
    if missing > MISSING:
        warn(
            f"the mean and the variance of y of {likelihood.name} are sums over points whose probabilities add up to 1 "
            f"but for {missing:.2g}: far tails, or detail finer than the points, are left out.",
            SamplingWarning,
        )
    return mean.reshape(f.shape[:-1]), variance.reshape(f.shape[:-1])


def _moments(items: Items, pieces: list[Piece], rows: np.ndarray) -> np.ndarray:
    """Mean and variance of some items, and the probability of the points that they are of, (3, rows)."""
    found: list[_Points] = []
    for piece in pieces:
        elsewhere = sum((points.weight.sum(axis=0) for points in found), np.zeros(len(rows)))
        found += _points(items, piece, rows, elsewhere)
    y, weight, far = (np.concatenate(parts) for parts in zip(*found, strict=True))
    mass = weight.sum(axis=0)
    # Far points may be too large for their squares, where their weights are 0.
    y = np.where(weight > 0, y, 0.0)
    mean = _share(y, weight, far) / mass
    with np.errstate(over="ignore"):
        variance = _share(np.where(weight > 0, y - mean, 0.0) ** 2, weight, far) / mass
    return np.stack([mean, variance, mass])


def _share(values: np.ndarray, weight: np.ndarray, far: np.ndarray) -> np.ndarray:
    """The weighted sum of values, NaN where too much of it lies far out."""
    sizes = np.abs(values) * weight
    total = sizes.sum(axis=0)
    told = np.isfinite(total) & (sizes[far].sum(axis=0) <= _SHARE * total)
    return np.where(told, (values * weight).sum(axis=0), np.nan)


def _points(items: Items, piece: Piece, rows: np.ndarray, elsewhere: np.ndarray) -> list[_Points]:
    low, high = items.ends(piece, rows)
    if not piece.is_discrete:
        return [_interval(items, rows, low, high, elsewhere)]
    for level in _COUNT_LEVELS:
        points, there, left, right = outermost(low, high, level)
        counts = _listed(items, rows, points, there)
        if (left >= right).all() or (counts.weight.sum(axis=0) + elsewhere > 1.0 - _NEGLIGIBLE).all():
            return [counts]
    return [counts, _interval(items, rows, left, right, elsewhere + counts.weight.sum(axis=0))]


def _listed(items: Items, rows: np.ndarray, points: np.ndarray, there: np.ndarray) -> _Points:
    return _Points(points, items.listed(rows, points, there), np.zeros(len(points), dtype=bool))


def _interval(items: Items, rows: np.ndarray, low: np.ndarray, high: np.ndarray, elsewhere: np.ndarray) -> _Points:
    y, log_p, log_slope = items.interval(rows, low, high, _STANDARD, elsewhere)
    return _Points(y, np.exp(log_p + log_slope) * (_STANDARD[1] - _STANDARD[0]), _FAR)
