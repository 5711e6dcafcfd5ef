"""Draws and expectations of y: exact samplers, pieces of densities, normalisation."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy
from jax.typing import ArrayLike

from pgmodels.likelihoods.likelihood import Likelihood, log_density
from pgmodels.likelihoods.supports import Piece, Support, Undeclared, cover, outermost, steps
from pgmodels.numerics.quadrature import CHUNK_VALUES, chunk_length, equal_chunks, power_of_two, slices
from pgmodels.parameters.parameter import Parameter
from pgmodels.parameters.vector import ParameterVector, with_priors
from pgmodels.runtime.messages import PgmodelsWarning, warn
from pgmodels.runtime.precision import as_array, double_precision

if TYPE_CHECKING:
    from pgmodels.model import Model


# Exact samplers of named likelihoods in several steps, with NumPy generators and the arguments of ``pgm.likelihood``.

Generator = np.random.Generator


def poisson(rng: Generator, rate: np.ndarray) -> np.ndarray:
    """Draw Poisson counts of any rate."""
    # Above this rate the distribution is normal within 1e-8 of its deviation. NumPy's sampler fails above 9e18.
    limit = 1e15
    count = rng.poisson(np.minimum(rate, limit)).astype(np.float64)
    large = rate > limit
    if large.any():
        count[large] = np.round(rate[large] + np.sqrt(rate[large]) * rng.standard_normal(int(large.sum())))
    return count


def negative_binomial(rng: Generator, y: np.ndarray, f: np.ndarray, dispersion: np.ndarray) -> np.ndarray:
    """Draw counts of ``NegativeBinomial``: a Poisson count whose rate has a gamma distribution."""
    with np.errstate(over="ignore"):
        return poisson(rng, rng.standard_gamma(dispersion) * np.exp(f))


def robust_max(rng: Generator, y: np.ndarray, f: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Draw classes of ``RobustMax``: the class of the largest latent, or any other class with equal probability."""
    others = rng.integers(1, len(f), f.shape[1])
    return (np.argmax(f, axis=0) + np.where(rng.random(f.shape[1]) < error, others, 0)) % len(f)


def stick_breaking(rng: Generator, y: np.ndarray, f: np.ndarray) -> np.ndarray:
    """Draw classes of ``StickBreaking``: the first class at which the stick breaks, else the last."""
    breaks = rng.random(f.shape) < scipy.special.expit(f)
    return np.where(breaks.any(axis=0), breaks.argmax(axis=0), len(f))


def log_poisson(rng: Generator, y: np.ndarray, f: np.ndarray) -> np.ndarray:
    """Draw counts of ``Poisson``."""
    with np.errstate(over="ignore"):
        return poisson(rng, np.exp(f))


def negative_binomial_2(rng: Generator, y: np.ndarray, f: np.ndarray, dispersion: np.ndarray) -> np.ndarray:
    """Draw counts of ``NegativeBinomial2``."""
    return negative_binomial(rng, y, f - np.log(dispersion), dispersion)


def hurdle_poisson(rng: Generator, y: np.ndarray, f: np.ndarray) -> np.ndarray:
    """Draw counts of ``HurdlePoisson``: the first event of a Poisson process, given that it occurs, and later ones."""
    rate = np.exp(f[0])
    first = -np.log1p(rng.random(rate.shape) * np.expm1(-rate))
    count = 1.0 + poisson(rng, np.maximum(rate - first, 0.0))
    return np.where(rng.random(rate.shape) < scipy.special.expit(f[1]), 0.0, count)


def hurdle_negative_binomial(rng: Generator, y: np.ndarray, f: np.ndarray, dispersion: np.ndarray) -> np.ndarray:
    """Draw counts of ``HurdleNegativeBinomial``: ``hurdle_poisson`` with a gamma rate given the first event."""
    scale = np.exp(f[0]) / dispersion
    # The first event is later than t with probability (1 + scale t)^-dispersion.
    none = np.expm1(-dispersion * np.log1p(scale))
    first = np.expm1(-np.log1p(rng.random(scale.shape) * none) / dispersion)
    rest = rng.standard_gamma(dispersion + 1.0) * np.maximum(scale - first, 0.0) / (1.0 + first)
    return np.where(rng.random(scale.shape) < scipy.special.expit(f[1]), 0.0, 1.0 + poisson(rng, rest))


def beta_binomial(rng: Generator, y: np.ndarray, f: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """Draw successes of ``BetaBinomial``."""
    return rng.binomial(y[1].astype(np.int64), _beta(rng, f, precision))


def beta(rng: Generator, y: np.ndarray, f: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """Draw shares of ``Beta``. A draw that rounds to 0 or 1 is replaced by the adjacent number."""
    return np.clip(_beta(rng, f, precision), np.finfo(float).tiny, np.nextafter(1.0, 0.0))


def _beta(rng: Generator, f: np.ndarray, precision: np.ndarray) -> np.ndarray:
    smallest = np.finfo(float).tiny
    return rng.beta(
        np.maximum(precision * scipy.special.expit(f), smallest),
        np.maximum(precision * scipy.special.expit(-f), smallest),
    )


# All pairs of draw and datum form one list of items, evaluated in chunks at candidate values of y.

# y = mode + scale * sinh(s): the spacing is 5 % of the scale at the mode, and the ends are 600,000 scales away. The
# trapezoid rule is exact to rounding for smooth densities, and to a thousandth of the variance across a kink.
COORDINATES = np.linspace(-14.0, 14.0, 512)


class Items:
    """Data of all draws: latents f (..., n, L), ``covariates`` (n, columns - 1), and parameters that differ by draw.

    ``coordinates`` are the points of an interval, with ``COORDINATES`` as default.
    """

    def __init__(
        self,
        likelihood: Likelihood,
        f: np.ndarray,
        covariates: np.ndarray | None,
        parameters: Mapping[str, np.ndarray],
        coordinates: np.ndarray = COORDINATES,
    ):
        self.likelihood = likelihood
        self.parameters = {
            name: np.broadcast_to(v, (*f.shape[:-1], v.shape[-1])).reshape(-1, v.shape[-1])
            for name, v in parameters.items()
        }
        self.f = f.reshape(-1, f.shape[-1])
        self.count = len(self.f)
        self.num_data = f.shape[-2]
        self.covariates, self.coordinates = covariates, coordinates

    def by_chunk(
        self, rows: np.ndarray, function: Callable[[np.ndarray], np.ndarray], max_rows: int = 256
    ) -> np.ndarray:
        """Return ``function(rows)`` (..., rows), computed on padded chunks of equal length, at most ``max_rows``."""
        chunks = equal_chunks(rows, min(power_of_two(self.count), max_rows))
        return np.concatenate([function(chunk) for chunk in chunks], axis=-1)[..., : len(rows)]

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Draw y for each item by the likelihood's sampler."""
        draws = []
        for chunk in slices(self.count, self.f.shape[-1], CHUNK_VALUES // 2):
            rows = np.arange(self.count)[chunk]
            y = self._observations(np.full(len(rows), np.nan), rows)
            draws.append(self._likelihood_of(rows).draw(rng, y, self.f[rows]))
        return np.concatenate(draws)

    def gaussian_moments(self) -> np.ndarray:
        """Return the mean and variance (2, items) of a formula that is Gaussian in y."""

        def moments(rows: np.ndarray) -> np.ndarray:
            y = as_array(self._observations(np.zeros(len(rows)), rows))
            mean, variance = self._likelihood_of(rows).gaussian_moments(y, as_array(self.f[rows]))
            return np.stack([np.asarray(mean), np.asarray(variance)])

        return self.by_chunk(np.arange(self.count), moments, chunk_length(self.f.shape[-1], CHUNK_VALUES // 2))

    def log_density(self, first: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return log p of candidates (points, rows) for the first column of y."""
        f, likelihood = self.f[rows], self._likelihood_of(rows)
        return np.broadcast_to(log_density(likelihood, self._observations(first, rows), f), first.shape)

    def listed(self, rows: np.ndarray, points: np.ndarray, exists: np.ndarray) -> np.ndarray:
        """Return the probabilities of discrete values (points, rows), 0 if ``exists`` is False."""
        return np.where(exists, np.exp(self.log_density(points, rows)), 0.0)

    def interval(
        self, rows: np.ndarray, low: np.ndarray, high: np.ndarray, elsewhere: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return points of intervals at the coordinates, and the density there in the coordinate, (points, rows).

        ``elsewhere`` is the probability outside. Intervals with low >= high have no mass.
        """
        empty = low >= high
        # A mass below the smallest one is a rounding error of the probability elsewhere.
        mass = np.maximum(1.0 - elsewhere, 1e-12)
        high = np.where(empty, low + 1.0, high)
        y, log_p = cover(lambda y: self.log_density(y, rows), low, high, self.coordinates, mass)
        return y, np.where(empty, 0.0, np.exp(log_p))

    def ends(self, piece: Piece, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of a piece for some rows; items are ordered by draw, then by datum."""
        low, high = piece.ends(self.num_data)
        return low[rows % self.num_data], high[rows % self.num_data]

    def _observations(self, first: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return y (..., rows) or (..., rows, columns) with ``first`` as its first column."""
        if self.covariates is None:
            return first
        others = self.covariates[rows % self.num_data]
        return np.concatenate([first[..., None], np.broadcast_to(others, (*first.shape, others.shape[1]))], axis=-1)

    def _likelihood_of(self, rows: np.ndarray) -> Likelihood:
        return self.likelihood.with_values({name: v[rows] for name, v in self.parameters.items()})


@double_precision
def is_normalised(likelihood: Likelihood, size: int, *, for_all_parameters: bool = False) -> bool | None:
    """Return whether the formula sums or integrates to 1 over its support; None if the support is undeclared.

    The check is numerical, at a few asymmetric latent values, with other columns of y from the support's examples. With
    ``for_all_parameters`` it also uses other parameter values: a formula may be normalised at one value by chance.
    """
    support, count = likelihood.support(size), 3
    rng = np.random.default_rng(3)
    y, f = support.examples(rng, count), rng.normal(0.2, 0.8, (count, size))
    parameters = {
        name: np.stack([_shifted(parameter, 0.3 * step if for_all_parameters else None) for step in range(count)])
        for name, parameter in likelihood.parameters.items()
    }
    # Sums come first: the remaining mass belongs to the integrals and determines the spacing of their points.
    pieces, total = sorted(support.pieces(y), key=lambda piece: not piece.is_discrete), np.zeros(count)
    rows = np.arange(count)
    for piece in pieces:
        other_columns = None if y.ndim == 1 else piece.columns(y[None, :, 0], y)[0, :, 1:]
        # Ends 2e8 scales away, for heavy tails.
        items = Items(likelihood, f, other_columns, parameters, np.linspace(-20.0, 20.0, 4096))
        low, high = items.ends(piece, rows)
        # A formula that is not normalised may be infinite.
        with np.errstate(over="ignore", invalid="ignore"):
            if piece.is_discrete:
                points, exists, low, high = outermost(low, high, 4096)
                total += items.listed(rows, points, exists).sum(axis=0)
            if (low < high).any():
                # A formula whose sums are 1 may still have mass in this piece: points are placed for at least 0.01.
                total += _interval(items, rows, low, high, np.minimum(total, 0.99)).weight.sum(axis=0)
    # Heavy tails beyond the points contribute up to 1e-3. A missing factor changes the sum much more.
    return bool(np.all(np.abs(total - 1.0) < 5e-3)) if pieces else None


def _shifted(parameter: Parameter, shift: float | None) -> np.ndarray:
    """Return the entries of a parameter, (entries,), each shifted within its constraint, unless None."""
    if shift is None:
        return np.atleast_1d(np.asarray(parameter.value))
    start = parameter.transform.inv(as_array(parameter.value))
    shares = np.arange(start.size).reshape(start.shape) / start.size
    return np.atleast_1d(np.asarray(parameter.transform(start + shift * (1.0 + shares))))


def checked_unknowns(model: "Model") -> ParameterVector:
    """Return the parameters with priors. Raise ValueError if the formula may lack a factor that depends on one."""
    unknowns = with_priors(model)
    named = list(unknowns.of_likelihood.values())
    if named and is_normalised(model.likelihood, model.num_latents, for_all_parameters=True) is not True:
        raise ValueError(
            f"{named[0]} has a prior, but the formula of {model.likelihood.name} is not known to be a normalised "
            "density of y, and the missing factor may depend on it. Write the formula with its constants and declare "
            "its support, or fix the parameter with pgm.Fixed."
        )
    return unknowns


# Draws of observations, by a likelihood's sampler or by inversion of its formula's distribution function.

# Stages for discrete values: the number summed from the ends of the support, and whether an integral covers the rest.
# Stages follow until the probabilities sum to 1.
_STAGES = ((64, False), (512, False), (512, True), (4096, True))
# The tolerated error of the total probability. Linear interpolation of a density has an error of 2e-4.
MISSING = 1e-3


class SamplingWarning(PgmodelsWarning):
    """Warning that moments of y are approximate: they are sums over points that miss some probability."""


@double_precision
def draw_observations(
    likelihood: Likelihood,
    f: ArrayLike,
    covariates: ArrayLike | None,
    rng: np.random.Generator,
    parameters: Mapping[str, np.ndarray] | None = None,
) -> np.ndarray:
    """Draw one y ~ p(y | f) for each datum, shape (..., n), for latents f (..., n, latents).

    If y has several columns, its first column is drawn given ``covariates`` (n, num_covariates), or None if there are
    none. Times to an event are drawn uncensored. ``parameters`` are likelihood parameters that differ by draw, and
    broadcast against f.

    Draws are from the likelihood's sampler if it has one, or from a normal distribution if the formula is Gaussian in
    y. Otherwise the distribution function is inverted numerically. Raises ValueError if the inversion misses more than
    1e-3 of the probability, or if other columns of y would need to be drawn. Without a sampler, it also raises
    ValueError if the support of y is undeclared or the formula is not normalised over it.
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
    """Return the support if the formula is normalised over it, else raise ValueError with ``lacking``."""
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
    """Return the support of y[0] for n data, given the other columns: discrete pieces, and one that may be too long."""
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
    # Shorter discrete pieces are evaluated completely.
    if not inverted and max(lengths) >= _STAGES[-1][0]:
        inverted = [pieces[int(np.argmax(lengths))]]
    listed = [piece for piece in pieces if not any(piece is other for other in inverted)]
    return listed, (inverted[0] if inverted else None)


def _draw_listed(items: Items, listed: list[Piece], alone: bool, rows: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Return draws from discrete pieces, and their probability; NaN if y is in another piece, if there is one."""
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
    """Return the index at which the normalised cumulative sum of p (points, rows) exceeds u."""
    cumulative = np.cumsum(p, axis=0)
    # Since u < 1, a last entry with probability zero is never chosen.
    return (cumulative <= u * cumulative[-1]).sum(axis=0)


def _invert(items: Items, piece: Piece, rows: np.ndarray, u: np.ndarray, elsewhere: np.ndarray) -> np.ndarray:
    """Return draws from a piece for some rows, from uniforms ``u``; ``elsewhere`` is the other pieces' probability."""
    drawn, mass, remaining = np.full(items.count, np.nan), np.full(items.count, np.nan), rows
    for max_points, between in _STAGES if piece.is_discrete else ((0, True),):

        def draw(rows: np.ndarray, max_points: int = max_points, between: bool = between) -> np.ndarray:
            return _draw_at(items, piece, max_points, between, rows, u[rows], elsewhere[rows])

        drawn[remaining], mass[remaining] = items.by_chunk(remaining, draw)
        limit = MISSING if between else 1e-7
        remaining = remaining[~(np.abs(1.0 - mass[remaining]) <= limit)]
        if not remaining.size:
            break
    _require_mass(items, rows, mass[rows])
    return drawn[rows]


def _draw_at(
    items: Items, piece: Piece, max_points: int, between: bool, rows: np.ndarray, u: np.ndarray, elsewhere: np.ndarray
) -> np.ndarray:
    """Draw from a piece by a sum from its ends and, ``between``, an integral; returns draws and mass, (2, rows)."""
    low, high = items.ends(piece, rows)
    p, columns = np.empty((0, len(rows))), np.arange(len(rows))
    lower, upper = low, high
    if piece.is_discrete:
        points, exists, lower, upper = outermost(low, high, max_points)
        p = items.listed(rows, points, exists)
    if not between:
        return np.stack([points[np.minimum(_pick(p, u), len(p) - 1), columns], p.sum(axis=0) + elsewhere])
    # In the coordinate, points are equally spaced, and the trapezoid rule is exact for smooth laws.
    grid, density = items.interval(rows, lower, upper, p.sum(axis=0) + elsewhere)
    mass = np.concatenate([p, 0.5 * (density[1:] + density[:-1]) * (COORDINATES[1] - COORDINATES[0])])
    total = mass.sum(axis=0)
    index = np.minimum(_pick(mass, u), len(mass) - 1)
    before = np.where(index > 0, np.cumsum(mass, axis=0)[index - 1, columns], 0.0)
    share = np.clip((u * total - before) / np.maximum(mass[index, columns], 1e-300), 0.0, 1.0)
    cell = np.maximum(index - len(p), 0)
    (p_low, p_high), (low_end, high_end) = ((v[cell, columns], v[cell + 1, columns]) for v in (density, grid))
    # The quantile of a cell in which the density is linear.
    root = np.sqrt(p_low**2 + share * (p_high**2 - p_low**2))
    position = np.where(p_low + root > 0, share * (p_low + p_high) / np.maximum(p_low + root, 1e-300), share)
    drawn = low_end + (high_end - low_end) * np.clip(position, 0.0, 1.0)
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
            f"{f}: its probabilities at the evaluated points sum to {mass[worst]:.4g} instead of 1. The formula loses "
            "precision at such large values, or has several narrow modes far apart. Give it a sampler, "
            "@pgm.likelihood(sampler=...), a function of a NumPy generator, y and f that draws y."
        )


class _Points(NamedTuple):
    """Values of y and their probabilities, both (points, rows), and a mask (points,) of points far in the tails."""

    y: np.ndarray
    weight: np.ndarray
    far: np.ndarray


@double_precision
def expectations(
    likelihood: Likelihood,
    f: ArrayLike,
    covariates: ArrayLike | None,
    parameters: Mapping[str, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return E[y | f] and Var[y | f] of each datum, shape (..., n), for latents f (..., n, latents).

    ``draw_observations`` has the same arguments. Results are NaN if the tails are too heavy for the points. Warns with
    SamplingWarning if the points miss more than 1e-3 of the probability. Raises ValueError if the support of y is
    undeclared or the formula is not normalised over it.
    """
    f = np.asarray(f, dtype=np.float64)
    n, size = f.shape[-2:]
    support = require_normalised(likelihood, size, "y has no mean and no variance")
    columns = support.num_columns - 1
    other_columns = None if columns == 0 else np.asarray(covariates, dtype=np.float64).reshape(n, columns)
    listed, open_ended = conditional_pieces(likelihood, support, other_columns, n)
    items = Items(likelihood, f, other_columns, parameters or {})
    pieces = listed if open_ended is None else [*listed, open_ended]
    mean, variance, mass = items.by_chunk(np.arange(items.count), lambda rows: _moments(items, pieces, rows))
    missing = np.max(np.abs(1.0 - mass), initial=0.0)
    if missing > MISSING:
        warn(
            f"the mean and the variance of y of {likelihood.name} are sums over points whose probabilities sum to 1 "
            f"with an error of {missing:.2g}: far tails, or detail finer than the points, are missing.",
            SamplingWarning,
        )
    return mean.reshape(f.shape[:-1]), variance.reshape(f.shape[:-1])


def _moments(items: Items, pieces: list[Piece], rows: np.ndarray) -> np.ndarray:
    """Return the mean, variance and total probability of the points of some items, (3, rows)."""
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
    """Return the weighted sum of values, or NaN if far points contribute more than a thousandth."""
    sizes = np.abs(values) * weight
    total = sizes.sum(axis=0)
    reliable = np.isfinite(total) & (sizes[far].sum(axis=0) <= 1e-3 * total)
    return np.where(reliable, (values * weight).sum(axis=0), np.nan)


def _points(items: Items, piece: Piece, rows: np.ndarray, elsewhere: np.ndarray) -> list[_Points]:
    """Return the values of a piece and their probabilities; ``elsewhere`` is the probability of other pieces."""
    low, high = items.ends(piece, rows)
    if not piece.is_discrete:
        return [_interval(items, rows, low, high, elsewhere)]
    # Sums from the ends, in increasing numbers until the probabilities sum to 1. An integral covers the rest.
    for level in (64, 512, 4096):
        points, exists, lower, upper = outermost(low, high, level)
        counts = _Points(points, items.listed(rows, points, exists), np.zeros(len(points), dtype=bool))
        if (lower >= upper).all() or (counts.weight.sum(axis=0) + elsewhere > 1.0 - 1e-12).all():
            return [counts]
    return [counts, _interval(items, rows, lower, upper, elsewhere + counts.weight.sum(axis=0))]


def _interval(items: Items, rows: np.ndarray, low: np.ndarray, high: np.ndarray, elsewhere: np.ndarray) -> _Points:
    y, density = items.interval(rows, low, high, elsewhere)
    spacing = items.coordinates[1] - items.coordinates[0]
    return _Points(y, density * spacing, np.abs(items.coordinates) > 12.0)
