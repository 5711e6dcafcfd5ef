"""Draws of observations from the formula of a likelihood alone."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from pgmodels.integration import padded_chunks
from pgmodels.language.density import log_density
from pgmodels.language.likelihood import Likelihood, is_normalised
from pgmodels.language.supports import Undeclared
from pgmodels.precision import double_precision

# Densities evaluated at a time: 16 MB an intermediate array.
_VALUES = 2_000_000
# Numbers of counts tried, 0 to K - 1, until their probabilities sum to 1 up to _NEGLIGIBLE.
_COUNT_LEVELS = (64, 512, 4096)
_NEGLIGIBLE = 1e-7
# A warning tells of probability that the grid misses from here on; linear interpolation of a density leaves 2e-4.
_REPORTED = 1e-3
# y = centre + scale * sinh(t): 4 % of the scale apart at the centre, 600,000 scales out at the ends.
_SINH = np.sinh(np.linspace(-14.0, 14.0, 769))


class SamplingWarning(UserWarning):
    """Draws of y are approximate: their grid leaves out some probability."""


@double_precision
def draw_observations(
    likelihood: Likelihood,
    f: Any,
    covariates: Any,
    rng: np.random.Generator,
    parameters: Mapping[str, np.ndarray] | None = None,
) -> np.ndarray:
    """One y ~ p(y | f) for each datum, shape (..., n), for latents f (..., n, latents).

    Of the first column of y where it has several; ``covariates`` (n, columns - 1) holds the others, None where there
    are none. ``parameters`` holds likelihood parameters that differ from draw to draw, to broadcast against f. A short
    list of values is drawn from directly, counts and real values by inverting their distribution function numerically.
    Warns with SamplingWarning where the grid leaves out more than 1e-3 of the probability.
    Raises ValueError where the support of y is not declared or the formula is not normalised over it.
    """
    f = np.asarray(f, dtype=np.float64)
    size = f.shape[-1]
    support = likelihood.support(size)
    if isinstance(support, Undeclared):
        raise ValueError(
            f"{likelihood.name} does not say what y can be, so y cannot be drawn: declare it, as in "
            "@pgm.likelihood(support=pgm.Counts())."
        )
    if is_normalised(likelihood, size) is not True:
        raise ValueError(
            f"the formula of {likelihood.name} does not sum to 1 over y, so y cannot be drawn: write it with the "
            "factors free of f that it leaves out."
        )
    columns = support.num_columns - 1
    given = None if columns == 0 else np.asarray(covariates, dtype=np.float64).reshape(f.shape[-2], columns)
    items = _Items(likelihood, f, given, parameters or {})
    u = rng.random(items.count)
    values = support.values()
    if values is not None:
        drawn = items.by_chunk(_values_at(items, values), u, len(values))
    elif support.num_columns == 2 and support.is_discrete:
        assert given is not None
        trials = np.arange(given[:, 0].max() + 1.0)
        drawn = items.by_chunk(_values_at(items, trials, at_most_trials=True), u, len(trials))
    elif support.is_discrete:
        drawn = _draw_counts(items, u)
    else:
        drawn = items.by_chunk(lambda rows, u: _invert_real(items, rows, u), u, len(_SINH))
    items.warn()
    return drawn.reshape(f.shape[:-1])


class _Items:
    """The data of all draws in one list, evaluated a chunk at a time on a grid of candidates for y."""

    def __init__(
        self, likelihood: Likelihood, f: np.ndarray, covariates: np.ndarray | None, parameters: Mapping[str, np.ndarray]
    ):
        self.likelihood = likelihood
        shape = (*f.shape[:-1], 1)
        self.parameters = {name: np.broadcast_to(v, shape).reshape(-1, 1) for name, v in parameters.items()}
        self.f = f.reshape(-1, f.shape[-1])
        self.count = len(self.f)
        repeats = self.count // f.shape[-2]
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

    def moments(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """E[y | f] and Var[y | f] of some rows, None where the likelihood declares none."""
        y = np.zeros(len(rows)) if self.covariates is None else np.pad(self.covariates[rows], ((0, 0), (1, 0)))
        given = self._given(rows).moments(jnp.asarray(y), jnp.asarray(self.f[rows]), self.f.shape[1])
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
            warnings.warn(
                f"the grid that draws y of {self.likelihood.name} misses up to {self.left_out:.2g} of the probability: "
                "far tails, or detail finer than the grid, are left out.",
                SamplingWarning,
                stacklevel=4,
            )


def _values_at(
    items: _Items, values: np.ndarray, at_most_trials: bool = False
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Draws from a list of values; where ``at_most_trials``, of those up to the first covariate."""

    def draw(rows: np.ndarray, u: np.ndarray) -> np.ndarray:
        grid = values[:, None]
        if at_most_trials:
            assert items.covariates is not None
            trials = items.covariates[rows, 0]
            p = np.where(grid <= trials, np.exp(items.log_density(np.minimum(grid, trials), rows)), 0.0)
        else:
            p = np.exp(items.log_density(grid, rows))
        return values[_pick(p, u)]

    return draw


def _pick(p: np.ndarray, u: np.ndarray) -> np.ndarray:
    """The index at which the cumulative sum of p (points, rows), scaled to end at 1, passes u."""
    cumulative = np.cumsum(p, axis=0)
    # u < 1, so that an entry of probability zero at the end is never reached.
    return (cumulative <= u * cumulative[-1]).sum(axis=0)


def _draw_counts(items: _Items, u: np.ndarray) -> np.ndarray:
    """Counts by their probabilities from 0 up, as many as carry the mass; large ones on a coarser grid."""
    drawn = np.full(len(u), np.nan)
    waiting = np.arange(len(u))
    for level in _COUNT_LEVELS:
        grid = np.arange(float(level))

        def draw(places: np.ndarray, u: np.ndarray, waiting: Any = waiting, grid: Any = grid) -> np.ndarray:
            p = np.exp(items.log_density(grid[:, None], waiting[places]))
            return np.where(p.sum(axis=0) > 1.0 - _NEGLIGIBLE, grid[np.minimum(_pick(p, u), len(grid) - 1)], np.nan)

        drawn[waiting] = items.by_chunk(draw, u[waiting], level)
        waiting = waiting[np.isnan(drawn[waiting])]
        if not waiting.size:
            return drawn
    held = waiting
    drawn[held] = items.by_chunk(lambda places, u: _invert_counts(items, held[places], u), u[held], len(_SINH))
    return drawn


def _invert_counts(items: _Items, rows: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Counts too large to list: the probabilities at whole numbers, linear in between; 0 to 4095 without moments."""
    given = items.moments(rows)
    if given is None:
        grid = np.arange(float(_COUNT_LEVELS[-1]))[:, None] + np.zeros(len(rows))
    else:
        scale = np.where(np.isfinite(given[1]), np.sqrt(given[1]), given[0])
        grid = np.maximum(np.round(given[0] + np.maximum(scale, 1.0) * _SINH[:, None]), 0.0)
    return np.round(_invert(items, np.exp(items.log_density(grid, rows)), grid, u, lowest=-0.5))


def _invert_real(items: _Items, rows: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Real values by the density on a sinh-spaced grid about the conditional mean."""
    given = items.moments(rows)
    if given is None:
        # Without moments: the highest density on a wide grid about 0.
        wide = _SINH[:, None] + np.zeros(len(rows))
        centre = wide[items.log_density(wide, rows).argmax(axis=0), 0]
        deviation = np.full(len(rows), np.inf)
    else:
        centre, deviation = given[0], np.sqrt(np.where(given[1] > 0, given[1], np.inf))
    # The scale of a Gaussian with this height; heavy tails and infinite variances keep a fine grid at their core.
    with np.errstate(over="ignore"):
        height = np.exp(-items.log_density(centre[None, :], rows)[0]) * 0.4
    scale = np.minimum(deviation, height)
    grid = centre + np.where(np.isfinite(scale), scale, 1.0) * _SINH[:, None]
    return _invert(items, np.exp(items.log_density(grid, rows)), grid, u)


def _invert(items: _Items, density: np.ndarray, grid: np.ndarray, u: np.ndarray, lowest: float | None = None) -> Any:
    """Invert the distribution function of a density, linear between the points of a grid (points, rows).

    ``lowest`` extends the first cell down to it, for counts, whose cells reach half a unit below.
    """
    mass = 0.5 * (density[1:] + density[:-1]) * np.diff(grid, axis=0)
    if lowest is not None:
        mass[0] += density[0] * np.maximum(grid[0] - lowest, 0.0) * (grid[0] == 0)
    total = mass.sum(axis=0)
    items.report(total)
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
