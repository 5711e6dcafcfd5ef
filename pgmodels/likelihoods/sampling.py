"""Draws of observations, by a likelihood's sampler or by inversion of its formula's distribution function."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pgmodels.likelihoods.items import COORDINATES, Items
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.likelihoods.normalisation import is_normalised
from pgmodels.likelihoods.pieces import Piece, outermost, steps
from pgmodels.likelihoods.supports import Support, Undeclared
from pgmodels.runtime.warnings import PgmodelsWarning
from pgmodels.runtime.x64 import double_precision

# Stages for discrete values: the number summed from the ends of the support, and whether an integral covers the rest.
# Stages follow until the probabilities sum to 1, without an integral up to _NEGLIGIBLE.
_STAGES = ((64, False), (512, False), (512, True), (4096, True))
_NEGLIGIBLE = 1e-7
# The maximum length of a discrete piece that is evaluated completely.
_SHORT = _STAGES[-1][0]
# The tolerated error of the total probability; linear interpolation of a density has an error of 2e-4.
MISSING = 1e-3


class SamplingWarning(PgmodelsWarning):
    """Moments of y are approximate: they are sums over points that miss some probability."""


@double_precision
def draw_observations(
    likelihood: Likelihood,
    f: Any,
    covariates: Any,
    rng: np.random.Generator,
    parameters: Mapping[str, np.ndarray] | None = None,
) -> np.ndarray:
    """One y ~ p(y | f) for each datum, shape (..., n), for latents f (..., n, latents).

    If y has several columns, its first column is drawn given ``covariates`` (n, num_covariates), None if there are
    none; times to an event are drawn uncensored. ``parameters`` are likelihood parameters that differ by draw, and
    broadcast against f.

    Draws are from the likelihood's sampler if it has one, from a normal distribution if the formula is Gaussian in y,
    and otherwise by numerical inversion of the distribution function. Raises ValueError if the inversion misses more
    than 1e-3 of the probability; if, without a sampler, the support of y is not declared or the formula not normalised
    over it; or if other columns of y would need to be drawn.
    """
    f = np.asarray(f, dtype=np.float64)
    n, size = f.shape[-2:]
    exact = likelihood.sampler is not None
    support = likelihood.support(size) if exact else require_normalised(likelihood, size, "y cannot be drawn")
    other_columns = None
    if support.num_columns > 1:
        known = np.empty((n, 0)) if covariates is None else np.asarray(covariates, dtype=np.float64)
        other_columns = support.others(known.reshape(n, support.num_covariates))
    items = Items(likelihood, f, other_columns, parameters or {})
    if exact:
        return items.draw(rng).reshape(f.shape[:-1])
    if likelihood.is_gaussian(size):
        mean, variance = items.gaussian_moments()
        return (mean + np.sqrt(variance) * rng.standard_normal(items.count)).reshape(f.shape[:-1])
    listed, inverted = conditional_pieces(likelihood, support, other_columns, n)
    u, every = rng.random(items.count), np.arange(items.count)
    drawn, elsewhere = np.full(items.count, np.nan), np.zeros(items.count)
    if listed:
        alone = inverted is None
        drawn, elsewhere = items.by_chunk(every, lambda rows: _draw_listed(items, listed, alone, rows, u[rows]))
    if inverted is None:
        _require_mass(items, every, elsewhere)
    else:
        rest = np.flatnonzero(np.isnan(drawn))
        u[rest] = (u[rest] - elsewhere[rest]) / (1.0 - elsewhere[rest])
        drawn[rest] = _invert(items, inverted, rest, u, elsewhere)
    return drawn.reshape(f.shape[:-1])


def require_normalised(likelihood: Likelihood, size: int, lacking: str) -> Support:
    """The support if the formula is normalised over it, or ValueError with the consequence ``lacking``."""
    support = likelihood.support(size)
    if isinstance(support, Undeclared):
        raise ValueError(
            f"{likelihood.name} has no declared support of y, so {lacking}: declare it, as in "
            "@pgm.likelihood(support=pgm.Counts())."
        )
    if is_normalised(likelihood, size) is not True:
        raise ValueError(
            f"the formula of {likelihood.name} does not sum to 1 over y, so {lacking}: include its factors that do not "
            "depend on f."
        )
    return support


def conditional_pieces(
    likelihood: Likelihood, support: Support, other_columns: np.ndarray | None, n: int
) -> tuple[list[Piece], Piece | None]:
    """The support of the first column of n data given the others: discrete pieces, and one that may be too long."""
    # A time with infinite follow-up: the censored piece lies at infinity.
    y = np.full(n, np.inf) if other_columns is None else np.column_stack([np.full(n, np.inf), other_columns])
    pieces = [piece for piece in support.pieces(y) if np.isfinite(piece.ends(n)[0]).any() or not piece.is_discrete]
    for piece in pieces:
        if other_columns is None or piece.others is None:
            continue
        required = np.broadcast_to(piece.others, other_columns.shape)
        for row, column in np.argwhere(other_columns != required)[:1]:
            raise ValueError(
                f"y of {likelihood.name} cannot be drawn where y[{column + 1}] is {other_columns[row, column]:g}, as "
                f"in row {row}: draws require {required[row, column]:g}."
            )
    lengths = [np.max(high - low) if piece.is_discrete else np.inf for piece in pieces for low, high in [piece.ends(n)]]
    inverted = [piece for piece, length in zip(pieces, lengths, strict=True) if length == np.inf]
    if len(inverted) > 1:
        raise ValueError(
            f"y of {likelihood.name} cannot be drawn: its support has {len(inverted)} unbounded or continuous pieces, "
            "and draws support at most one, in addition to finite lists of numbers."
        )
    if not inverted and max(lengths) >= _SHORT:
        inverted = [pieces[int(np.argmax(lengths))]]
    listed = [piece for piece in pieces if not any(piece is other for other in inverted)]
    return listed, (inverted[0] if inverted else None)


def _draw_listed(items: Items, listed: list[Piece], alone: bool, rows: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Draws from discrete pieces, and their probability; NaN where y is in another piece, if there is one."""
    grids, masses = [], []
    for piece in listed:
        points, exists = steps(*items.ends(piece, rows))
        grids.append(points)
        masses.append(items.listed(rows, points, exists))
    grid, p = np.concatenate(grids), np.concatenate(masses)
    total = p.sum(axis=0)
    index = _pick(p, u if alone else np.minimum(u / np.maximum(total, 1e-300), 1.0))
    drawn = grid[np.minimum(index, len(grid) - 1), np.arange(len(rows))]
    return np.stack([drawn if alone else np.where(u < total, drawn, np.nan), total])


def _pick(p: np.ndarray, u: np.ndarray) -> np.ndarray:
    """The index at which the normalised cumulative sum of p (points, rows) exceeds u."""
    cumulative = np.cumsum(p, axis=0)
    # Since u < 1, a last entry of probability zero is never chosen.
    return (cumulative <= u * cumulative[-1]).sum(axis=0)


def _invert(items: Items, piece: Piece, rows: np.ndarray, u: np.ndarray, elsewhere: np.ndarray) -> np.ndarray:
    """Draws from a piece for some rows, from uniform ``u`` of all; ``elsewhere`` is the probability of other pieces."""
    drawn, mass, remaining = np.full(items.count, np.nan), np.full(items.count, np.nan), rows
    for max_points, between in _STAGES if piece.is_discrete else ((0, True),):

        def draw(rows: np.ndarray, max_points: int = max_points, between: bool = between) -> np.ndarray:
            return _draw_at(items, piece, max_points, between, rows, u[rows], elsewhere[rows])

        drawn[remaining], mass[remaining] = items.by_chunk(remaining, draw)
        limit = MISSING if between else _NEGLIGIBLE
        remaining = remaining[~(np.abs(1.0 - mass[remaining]) <= limit)]
        if not remaining.size:
            break
    _require_mass(items, rows, mass[rows])
    return drawn[rows]


def _draw_at(
    items: Items, piece: Piece, max_points: int, between: bool, rows: np.ndarray, u: np.ndarray, elsewhere: np.ndarray
) -> np.ndarray:
    """Draws from a piece and the total probability, (2, rows).

    A discrete piece is summed over ``max_points`` values from its ends, and ``between`` integrates over the rest.
    """
    low, high = items.ends(piece, rows)
    p, columns = np.empty((0, len(rows))), np.arange(len(rows))
    lower, upper = low, high
    if piece.is_discrete:
        points, exists, lower, upper = outermost(low, high, max_points)
        p = items.listed(rows, points, exists)
    if not between:
        return np.stack([points[np.minimum(_pick(p, u), len(p) - 1), columns], p.sum(axis=0) + elsewhere])
    grid, log_p, log_slope = items.interval(rows, lower, upper, p.sum(axis=0) + elsewhere)
    # The density of the coordinate with equally spaced points, for which the trapezoid rule is exact for smooth laws.
    density = np.exp(log_p + log_slope)
    mass = np.concatenate([p, 0.5 * (density[1:] + density[:-1]) * (COORDINATES[1] - COORDINATES[0])])
    total = mass.sum(axis=0)
    index = np.minimum(_pick(mass, u), len(mass) - 1)
    before = np.where(index > 0, np.cumsum(mass, axis=0)[index - 1, columns], 0.0)
    share = np.clip((u * total - before) / np.maximum(mass[index, columns], 1e-300), 0.0, 1.0)
    cell = np.maximum(index - len(p), 0)
    (p_low, p_high), (low_end, high_end) = ((v[cell, columns], v[cell + 1, columns]) for v in (density, grid))
    drawn = _invert_cell(p_low, p_high, low_end, high_end, share)
    if piece.is_discrete:
        drawn = np.clip(low + np.round(drawn - low), lower + 0.5, upper - 0.5)
        drawn = np.where(index < len(p), points[np.minimum(index, len(p) - 1), columns], drawn)
    return np.stack([drawn, total + elsewhere])


def _require_mass(items: Items, rows: np.ndarray, mass: np.ndarray) -> None:
    """Raise ValueError if the probabilities over the support of y do not sum to 1."""
    missing = np.abs(1.0 - mass)
    bad = np.flatnonzero(~(missing <= MISSING))
    if bad.size:
        worst = bad[np.argmax(np.nan_to_num(missing[bad], nan=np.inf))]
        f = ", ".join(f"{value:.4g}" for value in items.f[rows[worst]])
        raise ValueError(
            f"y of {items.likelihood.name} cannot be drawn at {bad.size} of {len(rows)} values of the latents, such as "
            f"{f}: its probabilities sum to {mass[worst]:.4g} there, not to 1, at the points where the formula is "
            "evaluated. The formula loses precision at such large values, or has several narrow modes far apart: give "
            "it a sampler, @pgm.likelihood(sampler=...), a function of a NumPy generator, y and f that draws y."
        )


def _invert_cell(p: np.ndarray, q: np.ndarray, low: np.ndarray, high: np.ndarray, share: np.ndarray) -> np.ndarray:
    """The quantile ``share`` of a cell whose density is linear from p to q."""
    root = np.sqrt(p**2 + share * (q**2 - p**2))
    position = np.where(p + root > 0, share * (p + q) / np.maximum(p + root, 1e-300), share)
    return low + (high - low) * np.clip(position, 0.0, 1.0)
