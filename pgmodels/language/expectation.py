"""Mean and variance of an observation given its latents, by sums and quadrature over what it can be."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pgmodels.integration import padded_chunks
from pgmodels.language.likelihood import Likelihood
from pgmodels.language.pieces import Piece, cover, steps
from pgmodels.language.sampling import Items, pieces_given, require_normalised
from pgmodels.precision import double_precision

# Densities evaluated at a time: 16 MB an intermediate array.
_VALUES = 2_000_000
# y = centre + scale * sinh(s): 5 % of the scale apart at the centre, 600,000 scales out at the ends. The trapezoid
# rule is exact to rounding for smooth densities, and to a thousandth of the variance across a kink.
_STANDARD = np.linspace(-14.0, 14.0, 513)
_FAR = np.abs(_STANDARD) > 12.0
# Moments of which more than this share lies far out are not what the points say.
_SHARE = 1e-3
# Numbers of counts added up, until their probabilities sum to 1 up to _NEGLIGIBLE; then an integral takes the rest.
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
    width = (len(_STANDARD) + _COUNT_LEVELS[-1] * any(piece.is_discrete for piece in pieces)) * size
    chunks = padded_chunks(np.arange(items.count), width, _VALUES)
    mean, variance = np.concatenate([_moments(items, pieces, rows) for rows in chunks], axis=1)[:, : items.count]
    items.warn()
    return mean.reshape(f.shape[:-1]), variance.reshape(f.shape[:-1])


def _moments(items: Items, pieces: list[Piece], rows: np.ndarray) -> np.ndarray:
    """Mean and variance of some items, (2, rows)."""
    found: list[_Points] = []
    for piece in pieces:
        elsewhere = sum((points.weight.sum(axis=0) for points in found), np.zeros(len(rows)))
        found += _points(items, piece, rows, elsewhere)
    y, weight, far = (np.concatenate(parts) for parts in zip(*found, strict=True))
    mass = weight.sum(axis=0)
    items.report(mass)
    # Far points may be too large for their squares, where their weights are 0.
    y = np.where(weight > 0, y, 0.0)
    mean = _share(y, weight, far) / mass
    with np.errstate(over="ignore"):
        variance = _share(np.where(weight > 0, y - mean, 0.0) ** 2, weight, far) / mass
    return np.stack([mean, variance])


def _share(values: np.ndarray, weight: np.ndarray, far: np.ndarray) -> np.ndarray:
    """The weighted sum of values, NaN where too much of it lies far out."""
    sizes = np.abs(values) * weight
    total = sizes.sum(axis=0)
    told = np.isfinite(total) & (sizes[far].sum(axis=0) <= _SHARE * total)
    return np.where(told, (values * weight).sum(axis=0), np.nan)


def _points(items: Items, piece: Piece, rows: np.ndarray, elsewhere: np.ndarray) -> list[_Points]:
    low, high = items.ends(piece, rows)
    if not piece.is_discrete:
        return [_interval(items, rows, low, high)]
    if np.isfinite(high).all():
        return [_listed(items, rows, *steps(low, high))]
    for level in _COUNT_LEVELS:
        counts = _listed(items, rows, *steps(low, high, level))
        if (counts.weight.sum(axis=0) + elsewhere > 1.0 - _NEGLIGIBLE).all():
            return [counts]
    return [counts, _interval(items, rows, counts.y[-1] + 0.5, high)]


def _listed(items: Items, rows: np.ndarray, points: np.ndarray, there: np.ndarray) -> _Points:
    weight = np.where(there, np.exp(items.log_density(points, rows)), 0.0)
    return _Points(np.broadcast_to(points, weight.shape), weight, np.zeros(len(points), dtype=bool))


def _interval(items: Items, rows: np.ndarray, low: np.ndarray, high: np.ndarray) -> _Points:
    y, log_p, log_slope = cover(lambda y: items.log_density(y, rows), low, high, _STANDARD)
    return _Points(y, np.exp(log_p + log_slope) * (_STANDARD[1] - _STANDARD[0]), _FAR)
