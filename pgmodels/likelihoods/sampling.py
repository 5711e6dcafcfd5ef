"""Draws of observations: by a likelihood's sampler, or from its formula alone."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pgmodels.likelihoods.items import Items
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.likelihoods.normalisation import is_normalised
from pgmodels.likelihoods.pieces import Piece, outermost, steps
from pgmodels.likelihoods.supports import Support, Undeclared
from pgmodels.runtime.warnings import PgmodelsWarning
from pgmodels.runtime.x64 import double_precision

# Numbers of a list that are added up from its ends, and whether an integral takes the rest; so long until the
# probabilities sum to 1, by a list alone up to _NEGLIGIBLE.
_STAGES = ((64, False), (512, False), (512, True), (4096, True))
_NEGLIGIBLE = 1e-7
# Numbers that a list may have and be evaluated at once.
_SHORT = _STAGES[-1][0]
# Probability that may be missing; linear interpolation of a density leaves 2e-4.
MISSING = 1e-3
# y = centre + scale * sinh(s): 5 % of the scale apart at the centre, 600,000 scales out at the ends.
_STANDARD = np.linspace(-14.0, 14.0, 512)


class SamplingWarning(PgmodelsWarning):
    """Moments of y are approximate: the points that they are sums over leave out some probability."""


@double_precision
def draw_observations(
    likelihood: Likelihood,
    f: Any,
    covariates: Any,
    rng: np.random.Generator,
    parameters: Mapping[str, np.ndarray] | None = None,
) -> np.ndarray:
    """One y ~ p(y | f) for each datum, shape (..., n), for latents f (..., n, latents).

    Of the first column of y where it has several; ``covariates`` (n, num_given) holds those that it is given, None
    where there are none: times to an event are given nothing, and are not cut short. ``parameters`` holds likelihood
    parameters that differ from draw to draw, to broadcast against f. By the likelihood's sampler, by the mean and the
    variance of a formula that is Gaussian in y, else by inverting the formula's distribution function numerically.
    Raises ValueError where that misses more than 1e-3 of the probability, where the support of y is not declared, the
    formula is not normalised over it, or other columns of y are drawn with the first.
    """
    f = np.asarray(f, dtype=np.float64)
    n, size = f.shape[-2:]
    exact = likelihood.sampler is not None
    support = likelihood.support(size) if exact else require_normalised(likelihood, size, "y cannot be drawn")
    given = None
    if support.num_columns > 1:
        known = np.empty((n, 0)) if covariates is None else np.asarray(covariates, dtype=np.float64)
        given = support.others(known.reshape(n, support.num_given))
    items = Items(likelihood, f, given, parameters or {})
    if exact:
        return items.draw(rng).reshape(f.shape[:-1])
    if likelihood.is_gaussian(size):
        mean, variance = items.gaussian_moments()
        return (mean + np.sqrt(variance) * rng.standard_normal(items.count)).reshape(f.shape[:-1])
    listed, inverted = pieces_given(likelihood, support, given, n)
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
    """The support, over which the formula is normalised, or ValueError saying what is therefore ``lacking``."""
    support = likelihood.support(size)
    if isinstance(support, Undeclared):
        raise ValueError(
            f"{likelihood.name} does not say what y can be, so {lacking}: declare it, as in "
            "@pgm.likelihood(support=pgm.Counts())."
        )
    if is_normalised(likelihood, size) is not True:
        raise ValueError(
            f"the formula of {likelihood.name} does not sum to 1 over y, so {lacking}: write it with the factors free "
            "of f that it leaves out."
        )
    return support


def pieces_given(
    likelihood: Likelihood, support: Support, given: np.ndarray | None, n: int
) -> tuple[list[Piece], Piece | None]:
    """What the first column of n data can be, the others given: pieces to list, and one that may be too long for it."""
    # A time that is waited for without end: what would be censored lies at infinity.
    y = np.full(n, np.inf) if given is None else np.column_stack([np.full(n, np.inf), given])
    pieces = [piece for piece in support.pieces(y) if np.isfinite(piece.ends(n)[0]).any() or not piece.is_discrete]
    for piece in pieces:
        if given is None or piece.others is None:
            continue
        others = np.broadcast_to(piece.others, given.shape)
        for row, column in np.argwhere(given != others)[:1]:
            raise ValueError(
                f"y of {likelihood.name} cannot be drawn where y[{column + 1}] is {given[row, column]:g}, as in row "
                f"{row}: it is drawn where that is {others[row, column]:g}."
            )
    lengths = [np.max(high - low) if piece.is_discrete else np.inf for piece in pieces for low, high in [piece.ends(n)]]
    inverted = [piece for piece, length in zip(pieces, lengths, strict=True) if length == np.inf]
    if len(inverted) > 1:
        raise ValueError(
            f"y of {likelihood.name} cannot be drawn from {len(inverted)} pieces without an end or of real numbers: "
            "one of them can be drawn from, beside lists of numbers."
        )
    if not inverted and max(lengths) >= _SHORT:
        inverted = [pieces[int(np.argmax(lengths))]]
    listed = [piece for piece in pieces if not any(piece is other for other in inverted)]
    return listed, (inverted[0] if inverted else None)


def _draw_listed(items: Items, listed: list[Piece], alone: bool, rows: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Draws of numbers that are listed, and their probability; NaN where y is not among them, unless they are alone."""
    grids, masses = [], []
    for piece in listed:
        points, there = steps(*items.ends(piece, rows))
        grids.append(points)
        masses.append(items.listed(rows, points, there))
    grid, p = np.concatenate(grids), np.concatenate(masses)
    total = p.sum(axis=0)
    index = _pick(p, u if alone else np.minimum(u / np.maximum(total, 1e-300), 1.0))
    drawn = grid[np.minimum(index, len(grid) - 1), np.arange(len(rows))]
    return np.stack([drawn if alone else np.where(u < total, drawn, np.nan), total])


def _pick(p: np.ndarray, u: np.ndarray) -> np.ndarray:
    """The index at which the cumulative sum of p (points, rows), scaled to end at 1, passes u."""
    cumulative = np.cumsum(p, axis=0)
    # u < 1, so that an entry of probability zero at the end is never reached.
    return (cumulative <= u * cumulative[-1]).sum(axis=0)


def _invert(items: Items, piece: Piece, rows: np.ndarray, u: np.ndarray, elsewhere: np.ndarray) -> np.ndarray:
    """Draws of a piece for some rows, by u of all; ``elsewhere`` is the probability of what is not in the piece."""
    drawn, mass, waiting = np.full(items.count, np.nan), np.full(items.count, np.nan), rows
    for most, between in _STAGES if piece.is_discrete else ((0, True),):

        def draw(rows: np.ndarray, most: int = most, between: bool = between) -> np.ndarray:
            return _draw_at(items, piece, most, between, rows, u[rows], elsewhere[rows])

        drawn[waiting], mass[waiting] = items.by_chunk(waiting, draw)
        limit = MISSING if between else _NEGLIGIBLE
        waiting = waiting[~(np.abs(1.0 - mass[waiting]) <= limit)]
        if not waiting.size:
            break
    _require_mass(items, rows, mass[rows])
    return drawn[rows]


def _draw_at(
    items: Items, piece: Piece, most: int, between: bool, rows: np.ndarray, u: np.ndarray, elsewhere: np.ndarray
) -> np.ndarray:
    """Draws of a piece, and all probability, (2, rows): a list of ``most`` from its ends, and the interval between."""
    low, high = items.ends(piece, rows)
    p, columns = np.empty((0, len(rows))), np.arange(len(rows))
    left, right = low, high
    if piece.is_discrete:
        points, there, left, right = outermost(low, high, most)
        p = items.listed(rows, points, there)
    if not between:
        return np.stack([points[np.minimum(_pick(p, u), len(p) - 1), columns], p.sum(axis=0) + elsewhere])
    grid, log_p, log_slope = items.interval(rows, left, right, _STANDARD, p.sum(axis=0) + elsewhere)
    # Of the coordinate in which the points are equally far apart: the sum of the cells is then exact for smooth laws.
    density = np.exp(log_p + log_slope)
    mass = np.concatenate([p, 0.5 * (density[1:] + density[:-1]) * (_STANDARD[1] - _STANDARD[0])])
    total = mass.sum(axis=0)
    index = np.minimum(_pick(mass, u), len(mass) - 1)
    before = np.where(index > 0, np.cumsum(mass, axis=0)[index - 1, columns], 0.0)
    share = np.clip((u * total - before) / np.maximum(mass[index, columns], 1e-300), 0.0, 1.0)
    cell = np.maximum(index - len(p), 0)
    (p_low, p_high), (low_end, high_end) = ((v[cell, columns], v[cell + 1, columns]) for v in (density, grid))
    drawn = _within(p_low, p_high, low_end, high_end, share)
    if piece.is_discrete:
        drawn = np.clip(low + np.round(drawn - low), left + 0.5, right - 0.5)
        drawn = np.where(index < len(p), points[np.minimum(index, len(p) - 1), columns], drawn)
    return np.stack([drawn, total + elsewhere])


def _require_mass(items: Items, rows: np.ndarray, mass: np.ndarray) -> None:
    """Raise ValueError where the probabilities of what y can be do not sum to 1."""
    missing = np.abs(1.0 - mass)
    bad = np.flatnonzero(~(missing <= MISSING))
    if bad.size:
        worst = bad[np.argmax(np.nan_to_num(missing[bad], nan=np.inf))]
        f = ", ".join(f"{value:.4g}" for value in items.f[rows[worst]])
        raise ValueError(
            f"y of {items.likelihood.name} cannot be drawn at {bad.size} of {len(rows)} values of the latents, such as "
            f"{f}: its probabilities sum to {mass[worst]:.4g} there, not to 1, at the numbers at which the formula is "
            "evaluated. The formula is rounded off at values so large, or has several narrow peaks far apart: give it "
            "a sampler, @pgm.likelihood(sampler=...), a function of a NumPy generator, y and f that draws y."
        )


def _within(p: np.ndarray, q: np.ndarray, low: np.ndarray, high: np.ndarray, share: np.ndarray) -> np.ndarray:
    """The point below which ``share`` of a cell's mass lies, the density going from p to q linearly."""
    root = np.sqrt(p**2 + share * (q**2 - p**2))
    part = np.where(p + root > 0, share * (p + q) / np.maximum(p + root, 1e-300), share)
    return low + (high - low) * np.clip(part, 0.0, 1.0)
