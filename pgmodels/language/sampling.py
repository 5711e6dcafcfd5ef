"""Draws of observations from the formula of a likelihood alone."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from pgmodels.integration import padded_chunks
from pgmodels.language.density import log_density
from pgmodels.language.likelihood import Likelihood
from pgmodels.language.normalisation import is_normalised
from pgmodels.language.pieces import Piece, cover, steps
from pgmodels.language.supports import Support, Undeclared
from pgmodels.precision import as_array, double_precision
from pgmodels.warning import warn

# Densities evaluated at a time: 16 MB an intermediate array.
_VALUES = 2_000_000
# Numbers of counts tried, 0 to K - 1, until their probabilities sum to 1 up to _NEGLIGIBLE.
_COUNT_LEVELS = (64, 512, 4096)
_NEGLIGIBLE = 1e-7
# A warning tells of probability that the grid misses from here on; linear interpolation of a density leaves 2e-4.
_REPORTED = 1e-3
# y = centre + scale * sinh(t): 4 % of the scale apart at the centre, 600,000 scales out at the ends.
_STANDARD = np.linspace(-14.0, 14.0, 769)
_SINH = np.sinh(_STANDARD)


class SamplingWarning(UserWarning):
    """Draws or moments of y are approximate: their grid leaves out some probability."""


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
    parameters that differ from draw to draw, to broadcast against f. A list of numbers is drawn from directly, counts
    and real numbers by inverting their distribution function numerically.
    Warns with SamplingWarning where the grid leaves out more than 1e-3 of the probability.
    Raises ValueError where the support of y is not declared, the formula is not normalised over it, or other columns
    of y are drawn with the first.
    """
    f = np.asarray(f, dtype=np.float64)
    size = f.shape[-1]
    support = require_normalised(likelihood, size, "y cannot be drawn")
    n, columns = f.shape[-2], support.num_given
    given = None
    if support.num_columns > 1:
        known = np.empty((n, 0)) if covariates is None else np.asarray(covariates, dtype=np.float64)
        given = support.others(known.reshape(n, columns))
    listed, open_ended = pieces_given(likelihood, support, given, n)
    items = Items(likelihood, f, given, parameters or {})
    u = rng.random(items.count)
    drawn, elsewhere = np.full(items.count, np.nan), np.zeros(items.count)
    if listed:
        most = sum(len(steps(*piece.ends(n))[0]) for piece in listed)
        draw = partial(_draw_listed, items, listed, open_ended is None)
        drawn, elsewhere = items.by_chunk(lambda rows, u: np.stack(draw(rows, u), axis=1), u, most).T
    rest = np.flatnonzero(np.isnan(drawn))
    if open_ended is not None and rest.size:
        u = (u[rest] - elsewhere[rest]) / (1.0 - elsewhere[rest])
        invert = _draw_counts if open_ended.is_discrete else _draw_real
        drawn[rest] = invert(items, open_ended, rest, u, elsewhere[rest])
    items.warn()
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
    """What the first column of n data can be, the others given: pieces to list, and one to invert."""
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
    listed = [piece for piece in pieces if piece.is_discrete and np.isfinite(piece.ends(n)[1]).all()]
    inverted = [piece for piece in pieces if not any(piece is other for other in listed)]
    if len(inverted) > 1:
        raise ValueError(
            f"y of {likelihood.name} cannot be drawn from {len(inverted)} pieces without an end or of real numbers: "
            "one of them can be drawn from, beside lists of numbers."
        )
    return listed, (inverted[0] if inverted else None)


class Items:
    """The data of all draws in one list, evaluated a chunk at a time on a grid of candidates for y."""

    def __init__(
        self, likelihood: Likelihood, f: np.ndarray, covariates: np.ndarray | None, parameters: Mapping[str, np.ndarray]
    ):
        self.likelihood = likelihood
        self.parameters = {
            name: np.broadcast_to(v, (*f.shape[:-1], v.shape[-1])).reshape(-1, v.shape[-1])
            for name, v in parameters.items()
        }
        self.f = f.reshape(-1, f.shape[-1])
        self.count = len(self.f)
        self.num_data = f.shape[-2]
        repeats = self.count // self.num_data
        self.covariates = None if covariates is None else np.tile(covariates, (repeats, 1))
        self.left_out = 0.0

    def by_chunk(self, draw: Callable[[np.ndarray, np.ndarray], np.ndarray], u: np.ndarray, points: int) -> np.ndarray:
        """``draw(rows, u)`` on padded chunks."""
        chunks = padded_chunks(np.arange(len(u)), points * self.f.shape[-1], _VALUES)
        return np.concatenate([draw(chunk, u[chunk]) for chunk in chunks])[: len(u)]

    def log_density(self, first: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """log p of candidates (points, rows) or (points, 1) for the first column of y."""
        if self.covariates is None:
            y = first
        else:
            first = np.broadcast_to(first, (len(first), len(rows)))
            others = np.broadcast_to(self.covariates[rows], (*first.shape, self.covariates.shape[1]))
            y = np.concatenate([first[..., None], others], axis=-1)
        log_p = log_density(self._given(rows), y, self.f[rows])
        return np.broadcast_to(log_p, (len(first), len(rows)))

    def ends(self, piece: Piece, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ends of a piece for some rows; data follow each other in every draw."""
        low, high = piece.ends(self.num_data)
        return low[rows % self.num_data], high[rows % self.num_data]

    def moments(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """E[y | f] and Var[y | f] of some rows, None where the likelihood declares none."""
        y = np.zeros(len(rows)) if self.covariates is None else np.pad(self.covariates[rows], ((0, 0), (1, 0)))
        given = self._given(rows).moments(as_array(y), as_array(self.f[rows]), self.f.shape[1])
        return None if given is None else (np.asarray(given[0]), np.asarray(given[1]))

    def _given(self, rows: np.ndarray) -> Likelihood:
        """The likelihood with the parameters of some rows."""
        return self.likelihood.with_values({name: v[rows] for name, v in self.parameters.items()})

    def report(self, mass: np.ndarray) -> None:
        """Take note of the probability on the grid of each item."""
        self.left_out = max(self.left_out, float(np.abs(1.0 - mass).max()))

    def warn(self) -> None:
        """Warn of items whose grid misses probability."""
        if self.left_out > _REPORTED:
            warn(
                f"the grid of y of {self.likelihood.name} misses up to {self.left_out:.2g} of the probability: "
                "far tails, or detail finer than the grid, are left out.",
                SamplingWarning,
            )


def _draw_listed(
    items: Items, listed: list[Piece], alone: bool, rows: np.ndarray, u: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Draws of numbers that are listed, and their probability; NaN where y is not among them, unless they are alone."""
    grids, masses = [], []
    for piece in listed:
        points, there = steps(*items.ends(piece, rows))
        grids.append(points)
        masses.append(np.where(there, np.exp(items.log_density(points, rows)), 0.0))
    grid, p = np.concatenate(grids), np.concatenate(masses)
    total = p.sum(axis=0)
    index = _pick(p, u if alone else np.minimum(u / np.maximum(total, 1e-300), 1.0))
    drawn = grid[np.minimum(index, len(grid) - 1), np.arange(len(rows))]
    return (drawn if alone else np.where(u < total, drawn, np.nan)), total


def _pick(p: np.ndarray, u: np.ndarray) -> np.ndarray:
    """The index at which the cumulative sum of p (points, rows), scaled to end at 1, passes u."""
    cumulative = np.cumsum(p, axis=0)
    # u < 1, so that an entry of probability zero at the end is never reached.
    return (cumulative <= u * cumulative[-1]).sum(axis=0)


def _draw_counts(items: Items, piece: Piece, rows: np.ndarray, u: np.ndarray, elsewhere: np.ndarray) -> np.ndarray:
    """Whole steps up from the least, as many as carry the mass; large counts on a coarser grid."""
    drawn = np.full(len(u), np.nan)
    waiting = np.arange(len(u))
    for level in _COUNT_LEVELS:

        def draw(places: np.ndarray, u: np.ndarray, waiting: Any = waiting, level: int = level) -> np.ndarray:
            own = waiting[places]
            grid = items.ends(piece, rows[own])[0] + np.arange(float(level))[:, None]
            p = np.exp(items.log_density(grid, rows[own]))
            index = np.minimum(_pick(p, u), level - 1)
            enough = p.sum(axis=0) + elsewhere[own] > 1.0 - _NEGLIGIBLE
            return np.where(enough, grid[index, np.arange(len(own))], np.nan)

        drawn[waiting] = items.by_chunk(draw, u[waiting], level)
        waiting = waiting[np.isnan(drawn[waiting])]
        if not waiting.size:
            return drawn

    def invert(places: np.ndarray, u: np.ndarray) -> np.ndarray:
        return _invert_counts(items, piece, rows[waiting[places]], u, elsewhere[waiting[places]])

    drawn[waiting] = items.by_chunk(invert, u[waiting], len(_SINH))
    return drawn


def _invert_counts(items: Items, piece: Piece, rows: np.ndarray, u: np.ndarray, elsewhere: np.ndarray) -> np.ndarray:
    """Counts too large to list: the probabilities at whole steps, linear in between; the first without moments."""
    given = items.moments(rows)
    least = items.ends(piece, rows)[0]
    if given is None:
        grid = least + np.arange(float(_COUNT_LEVELS[-1]))[:, None]
    else:
        scale = np.where(np.isfinite(given[1]), np.sqrt(given[1]), given[0])
        grid = least + np.maximum(np.round(given[0] - least + np.maximum(scale, 1.0) * _SINH[:, None]), 0.0)
    density = np.exp(items.log_density(grid, rows))
    return least + np.round(_invert(items, density, grid, u, elsewhere, least) - least)


def _draw_real(items: Items, piece: Piece, rows: np.ndarray, u: np.ndarray, elsewhere: np.ndarray) -> np.ndarray:
    """Numbers of an interval, by the density on a grid about the conditional mean or where it is highest."""

    def draw(places: np.ndarray, u: np.ndarray) -> np.ndarray:
        own = rows[places]
        low, high = items.ends(piece, own)
        moments = None if np.isfinite([low, high]).any() else items.moments(own)
        centre = None if moments is None else moments[0]
        grid, log_p, _ = cover(lambda y: items.log_density(y, own), low, high, _STANDARD, centre)
        return _invert(items, np.exp(log_p), grid, u, elsewhere[places])

    return items.by_chunk(draw, u, len(_SINH))


def _invert(
    items: Items, density: np.ndarray, grid: np.ndarray, u: np.ndarray, elsewhere: np.ndarray, least: Any = None
) -> np.ndarray:
    """Invert the distribution function of a density, linear between the points of a grid (points, rows).

    ``elsewhere`` (rows,) is the probability of what is not on the grid. The cell of the ``least`` of whole steps
    reaches half a unit below it.
    """
    mass = 0.5 * (density[1:] + density[:-1]) * np.diff(grid, axis=0)
    if least is not None:
        mass[0] += density[0] * 0.5 * (grid[0] == least)
    total = mass.sum(axis=0)
    items.report(total + elsewhere)
    cell = np.minimum(_pick(mass, u), len(mass) - 1)
    columns = np.arange(len(u))
    before = np.where(cell > 0, np.cumsum(mass, axis=0)[cell - 1, columns], 0.0)
    share = np.clip((u * total - before) / np.maximum(mass[cell, columns], 1e-300), 0.0, 1.0)
    return _within(
        density[cell, columns], density[cell + 1, columns], grid[cell, columns], grid[cell + 1, columns], share
    )


def _within(p: np.ndarray, q: np.ndarray, low: np.ndarray, high: np.ndarray, share: np.ndarray) -> np.ndarray:
    """The point below which ``share`` of a cell's mass lies, the density going from p to q linearly."""
    root = np.sqrt(p**2 + share * (q**2 - p**2))
    part = np.where(p + root > 0, share * (p + q) / np.maximum(p + root, 1e-300), share)
    return low + (high - low) * np.clip(part, 0.0, 1.0)
