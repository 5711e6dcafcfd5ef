"""The base of all results: marginal densities, intervals, summaries."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from os import PathLike
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import jax
import numpy as np
import scipy
from jaxtyping import Float
from numpy.typing import ArrayLike

from pgmodels.data.arrays import Columns, Labels, Missing, as_numbers
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.model import Data, Model, check_new_inputs
from pgmodels.numerics.quadrature import gauss_hermite
from pgmodels.parameters.parameter import bare
from pgmodels.parameters.vector import trainable
from pgmodels.priors.collection import PriorCollection, check_covariances
from pgmodels.runtime.messages import shorten
from pgmodels.runtime.precision import DoublePrecision, Picklable
from pgmodels.runtime.seeds import Seed

if TYPE_CHECKING:
    import pandas as pd
    from xarray import DataTree

    from pgmodels.results.draws import Draws, PriorPredictive
    from pgmodels.results.gaussian import NormalDensity, ParameterUncertainty
    from pgmodels.results.predictive import DrawNodes, Predictive

# A selection of entries of an array.
Index: TypeAlias = int | slice | EllipsisType | Sequence[int] | np.ndarray
# The grid of a density, in units of its scale.
REACH = 7.0
GRID = np.linspace(-REACH, REACH, 193)
_STEP = GRID[1] - GRID[0]
# The knots of the map, as standard normal scores.
_SCORES = np.linspace(-8.0, 8.0, 129)


@cache
def interpolation(num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return evenly spaced nodes, and the matrix (grid, nodes) of cubic spline interpolation from these."""
    from scipy.interpolate import CubicSpline

    nodes = np.linspace(-REACH, REACH, num_nodes)
    return nodes, CubicSpline(nodes, np.eye(num_nodes))(GRID)


class GridDensity:
    """Densities (...) at ``location + scale * GRID``, from their unnormalised logarithms (..., grid).

    A ``scale`` of 0 is a point mass. ``log_masses`` are the logarithms of the integrals.
    """

    def __init__(self, location: np.ndarray, scale: np.ndarray, log_density: np.ndarray):
        # The arrays of a single density have no axis.
        self.location, self.scale, self.log_density = np.asarray(location), np.asarray(scale), log_density
        peak = log_density.max(axis=-1, keepdims=True)
        density = np.exp(log_density - peak)
        mass = _STEP * (density.sum(axis=-1, keepdims=True) - 0.5 * (density[..., :1] + density[..., -1:]))
        self.density = density / mass
        self.log_masses = (peak + np.log(mass))[..., 0] + np.log(np.where(scale > 0, scale, 1.0))

    def __getitem__(self, where: Index) -> "GridDensity":
        return GridDensity(self.location[where], self.scale[where], self.log_density[where])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array of densities."""
        return self.location.shape

    def moved(self, by: np.ndarray) -> "GridDensity":
        """Return the densities of the variables shifted by constants (...)."""
        return GridDensity(self.location + by, self.scale, self.log_density)

    def widened(self, variance: np.ndarray | float) -> "GridDensity":
        """Return the densities of the variables plus independent normal ones with these variances (...)."""
        if not np.any(variance):
            return self
        scale = np.sqrt(self.scale**2 + variance)
        # The standard deviations of the variables and of the normals, in units of the new scale.
        added, share = (np.ravel(part / scale) for part in (np.sqrt(variance * np.ones(self.shape)), self.scale))
        total, nodes = np.empty((added.size, len(GRID))), gauss_hermite(8)
        for row, density in enumerate(self.density.reshape(-1, len(GRID))):
            if added[row] < _STEP * share[row]:
                # The normal is narrow compared with the grid.
                places = (GRID[:, None] - added[row] * nodes[0]) / share[row]
                total[row] = np.interp(places, GRID, density, 0.0, 0.0) @ nodes[1]
            else:
                total[row] = np.exp(-0.5 * ((GRID[:, None] - share[row] * GRID) / added[row]) ** 2) @ density
        return GridDensity(self.location, scale, np.log(np.maximum(total, 1e-300)).reshape(self.density.shape))

    @cached_property
    def mean(self) -> np.ndarray:
        """The means (...)."""
        return self.location + self.scale * self._standard[0]

    @cached_property
    def variance(self) -> np.ndarray:
        """The variances (...)."""
        return self.scale**2 * self._standard[1]

    @cached_property
    def skewness(self) -> np.ndarray:
        """The third central moments in units of the standard deviation (...)."""
        centre, variance = self._standard
        return self._integral((GRID - centre[..., None]) ** 3) / variance**1.5

    def pdf(self, values: np.ndarray) -> np.ndarray:
        """Return the densities at values (k, ...), broadcast against the densities; zero beyond the grid."""
        with np.errstate(divide="ignore", invalid="ignore"):
            z = (values - self.location) / self.scale
        flat = np.broadcast_to(z, (len(z), *self.shape)).reshape(len(z), self.location.size)
        rows = zip(flat.T, self.density.reshape(-1, len(GRID)), strict=True)
        at = np.stack([np.interp(row, GRID, density, 0.0, 0.0) for row, density in rows], axis=1)
        return at.reshape(len(z), *self.shape) / self.scale

    def quantiles(self, levels: ArrayLike) -> np.ndarray:
        """Return quantiles (levels, ...) at levels between 0 and 1."""
        scores = scipy.special.ndtri(check_levels(levels))
        return self.transport(np.broadcast_to(scores.reshape(-1, *[1] * len(self.shape)), (len(scores), *self.shape)))

    def wasserstein(self, sorted_draws: np.ndarray) -> np.ndarray:
        """Return Wasserstein-1 distances (...) from sorted draws (draws, ...), by the quantiles at step midpoints."""
        levels = (np.arange(len(sorted_draws)) + 0.5) / len(sorted_draws)
        return np.mean(abs(sorted_draws - self.quantiles(levels)), axis=0)

    def transport(self, scores: np.ndarray, rows: Index = ...) -> np.ndarray:
        """Return standard normal scores mapped to variables with these densities, by increasing maps.

        ``scores`` are (k, ...), for the densities at ``rows`` of the first axis.
        """
        step, spline = _SCORES[1] - _SCORES[0], self._map[:, rows]
        interval = np.clip(((scores - _SCORES[0]) / step).astype(int), 0, len(_SCORES) - 2)
        inside = np.clip(scores, _SCORES[0], _SCORES[-1])
        offset = inside - _SCORES[interval]
        a, b, c, d = (np.take_along_axis(part[None], interval[..., None], axis=-1)[..., 0] for part in spline)
        z = d + offset * (c + offset * (b + offset * a))
        # Outside of its knots the map shifts the scores; these have less than 1e-14 of the mass.
        return self.location[rows] + self.scale[rows] * (z + scores - inside)

    @cached_property
    def _standard(self) -> tuple[np.ndarray, np.ndarray]:
        mean = self._integral(GRID)
        return mean, self._integral((GRID - mean[..., None]) ** 2)

    def _integral(self, values: np.ndarray) -> np.ndarray:
        product = self.density * values
        return _STEP * (product.sum(axis=-1) - 0.5 * (product[..., 0] + product[..., -1]))

    @cached_property
    def _map(self) -> np.ndarray:
        """Coefficients (4, ..., intervals) of the spline that maps scores to the grid's units."""
        from scipy.interpolate import CubicSpline

        between = 0.5 * _STEP * (self.density[..., 1:] + self.density[..., :-1])
        below, above = np.cumsum(between, axis=-1), np.cumsum(between[..., ::-1], axis=-1)[..., ::-1]
        edge = np.zeros((*self.shape, 1))
        with np.errstate(divide="ignore"):
            low = scipy.special.ndtri_exp(np.log(np.minimum(np.concatenate([edge, below], axis=-1), 1.0)))
            high = -scipy.special.ndtri_exp(np.log(np.minimum(np.concatenate([above, edge], axis=-1), 1.0)))
        scores = np.where(low < 0.0, low, high).reshape(-1, len(GRID))
        table = np.full((len(scores), len(_SCORES)), np.nan)
        for row, known in enumerate(scores):
            kept = np.flatnonzero(np.isfinite(known))
            kept = kept[np.diff(known[kept], prepend=-np.inf) > 0.0]
            if len(kept):
                # Linear between the known scores, and with slope 1 outside of them.
                beyond = np.minimum(_SCORES - known[kept[0]], 0.0) + np.maximum(_SCORES - known[kept[-1]], 0.0)
                table[row] = np.interp(_SCORES, known[kept], GRID[kept]) + beyond
        return np.moveaxis(CubicSpline(_SCORES, table, axis=1).c, 1, -1).reshape(4, *self.shape, len(_SCORES) - 1)


def check_levels(levels: ArrayLike) -> np.ndarray:
    """Return levels of quantiles as numbers (levels,); raises ValueError unless all are between 0 and 1."""
    checked = np.atleast_1d(as_numbers(levels, "levels"))
    if checked.ndim != 1 or not ((checked > 0) & (checked < 1)).all():
        raise ValueError(f"levels must be numbers between 0 and 1, such as [0.05, 0.5, 0.95]; got {shorten(levels)}.")
    return checked


# The bandwidth of the density, in standard deviations. The projections of a three-dimensional grid's points on an axis
# may be a third of a standard deviation apart.
BANDWIDTH = 0.15
# Points contract about their mean by this factor, so that smoothing keeps mean and variance (West 1993).
CONTRACTION = np.sqrt(1.0 - BANDWIDTH**2)


@dataclass(frozen=True, eq=False)
class Marginal:
    """A posterior marginal: ``values`` (points, ...) of a hyperparameter, with the ``mass`` (points,) of each.

    Moments and quantiles are computed for each entry of the hyperparameter. Quantiles and densities are computed from
    smoothed points; on the unconstrained scale, smoothing changes neither mean nor variance. ``bounds`` are the lower
    and the upper bound of all entries, infinite if there is none. None stands for (0, infinity) if all values are
    positive, else for no bounds.
    """

    values: np.ndarray
    mass: np.ndarray
    bounds: tuple[ArrayLike, ArrayLike] | None = None

    @property
    def mean(self) -> np.ndarray:
        """The posterior mean."""
        return np.tensordot(self.mass, self.values, axes=1)

    @property
    def deviation(self) -> np.ndarray:
        """The posterior standard deviation."""
        return np.sqrt(np.tensordot(self.mass, (self.values - self.mean) ** 2, axes=1))

    @property
    def logarithm(self) -> "Marginal":
        """The marginal of the hyperparameter's logarithm."""
        return self.of(np.log)

    def of(self, function: Callable[[Any], Any]) -> "Marginal":
        """Return the marginal of an increasing function of a positive hyperparameter, or of a matrix."""
        if self.values.ndim > 2:
            return Marginal(function(self.values), self.mass)
        with np.errstate(divide="ignore"):
            low, high = (function(np.maximum(bound, 0.0)) for bound in self.bounds or (0.0, np.inf))
        return Marginal(function(self.values), self.mass, (low, high))

    def quantiles(self, levels: ArrayLike) -> np.ndarray:
        """Return quantiles of the smoothed marginal at levels between 0 and 1, (levels, ...)."""
        levels_checked, shape = check_levels(levels), self.values.shape[1:]
        bounds = np.broadcast_arrays(*self._bounds(), np.empty(shape))[:2]
        entries = zip(self.values.reshape(len(self.values), -1).T, *map(np.ravel, bounds), strict=True)
        quantiles = [_constrained(self._smoothed(x, *ends).quantiles(levels_checked), *ends) for x, *ends in entries]
        return np.reshape(np.transpose(quantiles), (len(levels_checked), *shape))

    def density(self, at: ArrayLike) -> np.ndarray:
        """Return the smoothed density of a scalar hyperparameter at the values ``at``.

        Raises ValueError for a hyperparameter with several entries: select one, as in
        ``pgm.Marginal(marginal.values[:, 0], marginal.mass)``.
        """
        at = as_numbers(at, "at")
        if self.values.size != len(self.values):
            raise ValueError(
                f"density needs a scalar hyperparameter; this one has shape {self.values.shape[1:]}: select one entry, "
                "as in pgm.Marginal(marginal.values[:, 0], marginal.mass)."
            )
        low, high = (float(np.ravel(bound)[0]) for bound in self._bounds())
        values, inside = self.values.ravel(), (at > low) & (at < high)
        at = np.where(inside, at, values[0])
        density = self._smoothed(values, low, high).pdf(_unconstrained(at.ravel(), low, high)).reshape(at.shape)
        return np.where(inside, density * _slope(at, low, high), 0.0)

    def _bounds(self) -> tuple[ArrayLike, ArrayLike]:
        if self.bounds is not None:
            return self.bounds
        return (0.0 if np.all(self.values > 0) else -np.inf), np.inf

    def _smoothed(self, values: np.ndarray, low: float, high: float) -> GridDensity:
        x = _unconstrained(values, low, high)
        mean = self.mass @ x
        deviation = np.sqrt(self.mass @ (x - mean) ** 2)
        centres = CONTRACTION * (x - mean) / (deviation or 1.0)
        density = np.exp(-0.5 * ((GRID[:, None] - centres) / BANDWIDTH) ** 2) @ self.mass
        return GridDensity(mean, deviation, np.log(np.maximum(density, 1e-300)))


def _unconstrained(values: np.ndarray, low: float, high: float) -> np.ndarray:
    # Rounding may put a value on its bound.
    values = np.clip(values, np.nextafter(low, np.inf), np.nextafter(high, -np.inf))
    if not (np.isfinite(low) or np.isfinite(high)):
        return values
    x = np.log(values - low) if np.isfinite(low) else np.zeros_like(values)
    return x - np.log(high - values) if np.isfinite(high) else x


def _constrained(x: np.ndarray, low: float, high: float) -> np.ndarray:
    if np.isfinite(low) and np.isfinite(high):
        return low + (high - low) * scipy.special.expit(x)
    if np.isfinite(low):
        return low + np.exp(x)
    return high - np.exp(-x) if np.isfinite(high) else x


def _slope(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return the derivative of the unconstrained values in the values."""
    if not (np.isfinite(low) or np.isfinite(high)):
        return np.ones_like(values)
    return 1.0 / (values - low) + 1.0 / (high - values)


# Means, deviations and equal-tailed intervals as tables, with the columns of ArviZ's summary.


def bounds() -> tuple[float, float]:
    """Return the probabilities of the ends of an interval of ArviZ's default probability."""
    from arviz_base import rcParams

    tail = 0.5 * (1.0 - float(rcParams["stats.ci_prob"]))
    return tail, 1.0 - tail


def names() -> tuple[str, str]:
    """Return ArviZ's names of the columns with the ends of the interval."""
    low, high = bounds()
    percent = int(round(100 * (high - low), 6))
    return f"eti{percent}_lb", f"eti{percent}_ub"


def table(mean: np.ndarray, deviation: np.ndarray, ends: np.ndarray) -> "pd.DataFrame":
    """Return means (m,), deviations (m,) and ends (2, m) as a table."""
    import pandas as pd

    return pd.DataFrame({"mean": mean, "sd": deviation} | dict(zip(names(), ends, strict=True)))


def of_draws(values: np.ndarray) -> "pd.DataFrame":
    """Return the table of draws (draws, m)."""
    return table(values.mean(axis=0), values.std(axis=0), np.quantile(values, bounds(), axis=0))


def of_chains(values: np.ndarray) -> "pd.DataFrame":
    """Return the table of draws (chains, draws, ...), with effective sample sizes and, of several chains, R-hat."""
    from arviz_stats.base import array_stats

    flat, axes = values.reshape(*values.shape[:2], -1), {"chain_axis": 0, "draw_axis": 1}
    rows = of_draws(flat.reshape(-1, flat.shape[2])).set_axis(entries(values.shape[2:]))
    if values.shape[1] < 4:
        return rows
    rows["ess_bulk"] = array_stats.ess(flat, **axes, method="bulk")
    # As in az.summary: the quantiles at stats.ci_prob and its complement.
    low, high = bounds()
    rows["ess_tail"] = array_stats.ess(flat, **axes, method="tail", prob=high - low)
    if len(values) > 1:
        rows["r_hat"] = array_stats.rhat(flat, **axes)
    return rows


def of_marginal(marginal: Marginal) -> "pd.DataFrame":
    """Return the table of a marginal, with a row for each entry of the hyperparameter."""
    ends = marginal.quantiles(bounds()).reshape(2, -1)
    return table(marginal.mean.ravel(), marginal.deviation.ravel(), ends).set_axis(entries(marginal.mean.shape))


def of_value(value: ArrayLike) -> "pd.DataFrame":
    """Return the table of a value without a distribution, with a row for each entry."""
    array = np.asarray(value, dtype=np.float64)
    unknown = np.full(array.size, np.nan)
    return table(array.ravel(), unknown, np.stack([unknown, unknown])).set_axis(entries(array.shape))


def entries(shape: tuple[int, ...]) -> list[str]:
    """Return the indices of the entries of an array as text, "[0, 1]"; "" for a number."""
    return [f"[{', '.join(map(str, entry))}]" if entry else "" for entry in np.ndindex(shape)]


Functions: TypeAlias = Mapping[str, Callable[[Any], Any]]


class BaseResult(DoublePrecision, Picklable):
    """A model with resolved hyperparameters, and a posterior: tables, predictions and files."""

    if TYPE_CHECKING:
        model: Model
        # The conversion of X's columns to numbers, the labels of y in the order of their codes, and rows without y.
        columns: Columns | None
        labels: Labels | None
        missing: Missing | None
        seconds: float

        @property
        def prior(self) -> PriorCollection:
            """The prior of the latents."""

        @property
        def method(self) -> str:
            """The name of the engine or correction."""

        @property
        def num_rows(self) -> int:
            """The number of rows of the data."""

        @property
        def weights(self) -> np.ndarray | None:
            """The powers of the rows' likelihoods, None if all are 1 or not stored."""

    @property
    def has_elbo(self) -> bool:
        """Whether the result has its own evidence lower bound: only uncorrected approximations have one."""
        return False

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood of one row without its weight, for predictions."""
        return self.model.likelihood

    @property
    def jitter(self) -> tuple[float, ...]:
        """The jitter added to the diagonal of each group's covariance to factorise it; 0 if none was needed."""
        return tuple(float(getattr(group, "jitter", 0.0)) for group in self.prior.groups)

    def check_inputs(self, X_new: ArrayLike, name: str = "X_new") -> np.ndarray:
        """Return new inputs as a float64 array (m, d); raises ValueError if their columns do not match the data's."""
        raise NotImplementedError

    def predict_latent(self, X_new: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Compute the mean and variance of the latents at new inputs, averaged over sampled or integrated parameters.

        Parameters
        ----------
        X_new : array_like, shape (m, d)
            New inputs, with the columns of X.

        Returns
        -------
        mean, variance : ndarray, shape (m, latents)
            Moments of each latent.

        Warns
        -----
        CorrectionWarning
            If a corrected variance is not positive; it is returned unchanged.
        """
        raise NotImplementedError

    def predict(self, X_new: ArrayLike, covariates: ArrayLike | None = None) -> "Predictive":
        """Predict y at new inputs, averaged over the posterior.

        Parameters
        ----------
        X_new : array_like, shape (m, d)
            New inputs, with the columns of X.
        covariates : array_like, shape (m, columns - 1), optional
            The columns of y after the first, such as trials or an exposure.

        Returns
        -------
        Predictive
            Means, variances, probabilities, densities and draws, computed on request. ValueError is raised by each that
            depends on missing covariates.

        Raises
        ------
        ValueError
            If a corrected variance is not positive, so that there is no predictive distribution.

        Warns
        -----
        PredictionWarning
            If the response of y is skewed in some rows; uncorrected moments are used in these rows.
        """
        raise NotImplementedError

    def draw_latents(self, X_new: ArrayLike, num_draws: int = 1000, seed: Seed = 0) -> np.ndarray:
        """Draw the latents at new inputs, jointly.

        Parameters
        ----------
        X_new : array_like, shape (m, d)
            New inputs, with the columns of X.
        num_draws : int
            Number of draws.
        seed : int or jax.Array
            An int or a JAX key.

        Returns
        -------
        ndarray, shape (num_draws, m, latents)
            Draws of functions, joint over rows and latents. If the result has posterior draws, each function is
            conditional on one of them, and all are used equally often.

        Raises
        ------
        ValueError
            For a GP whose form has no factor.
        MemoryError
            If the covariances between the rows do not fit into memory.

        Notes
        -----
        O(m^3) time, for each draw if hyperparameters were sampled, and for each point if they were integrated out.
        With ``pgm.Markov()``, O(n + m) time for each draw.
        """
        return self.joint_nodes(X_new, num_draws, seed).draws

    def joint_nodes(self, X_new: ArrayLike, num_draws: int, seed: Seed = 0) -> "DrawNodes":
        """Return draws as ``draw_latents`` does, with the likelihood parameters drawn jointly."""
        raise NotImplementedError

    def marginal_nodes(self, X_new: ArrayLike, num_draws: int, seed: Seed = 0) -> "DrawNodes":
        """Return draws of the latents of each row, with the likelihood parameters drawn jointly.

        All rows use the same standard normals, so that tables over rows are smooth. The cost is O(m), since rows are
        drawn one by one. Raises ValueError if a corrected variance is not positive.
        """
        raise NotImplementedError

    @property
    def estimates(self) -> "dict[str, pd.DataFrame]":
        """The table of each hyperparameter that is not fixed, by name, with a row for each entry."""
        return self.estimates_of({})

    def estimates_of(self, functions: Functions) -> "dict[str, pd.DataFrame]":
        """Return ``estimates`` of increasing functions of hyperparameters, given by the hyperparameters' names."""
        unknowns = trainable(self.model)
        pairs = zip(unknowns.names, unknowns.parameters, strict=True)
        return {name: of_value(functions.get(name, np.asarray)(p.value)) for name, p in pairs}

    def summary(self, latents: bool = False) -> "pd.DataFrame":
        """Return a table of the hyperparameters with the columns of ``az.summary``.

        Parameters
        ----------
        latents : bool
            Whether to add the latents at the data, as ``f[row, latent]``.

        Returns
        -------
        pandas.DataFrame
            A row for each number that is not fixed: ``mean``, ``sd`` and the ends of the equal-tailed interval of
            ArviZ's probability ``stats.ci_prob``. Draws also have ``ess_bulk``, ``ess_tail`` and ``r_hat``. A learned
            hyperparameter has a normal density on its unconstrained scale. Without such a density, or if it kept its
            start value, it has no ``sd``.

        Raises
        ------
        ValueError
            If latents were not stored.
        """
        import pandas as pd

        tables = [table.set_axis([name + entry for entry in table.index]) for name, table in self.estimates.items()]
        tables += [self._latent_table()] if latents else []
        return pd.concat(tables) if tables else of_value([])

    def _latent_table(self) -> "pd.DataFrame":
        raise NotImplementedError

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the result to one file that ``pgm.load`` reads.

        The file holds arrays and text without pickles: data, hyperparameters, Gaussian factors and draws. It holds only
        the text of a custom likelihood's formula, so pass the likelihood to ``pgm.load``. Loaded draws cannot be
        extended by ``extend``.

        Parameters
        ----------
        path : str or path
            The file, such as ``fit.npz``, in an existing folder.

        Returns
        -------
        Path
            The path of the file.

        Raises
        ------
        ValueError
            For custom kernels, forms and priors: pickle such results.
        """
        from pgmodels.results.storage import save_result

        return save_result(self, path)

    def __repr__(self) -> str:
        from pgmodels.report.summaries import result_line

        return result_line(self)

    def __str__(self) -> str:
        from pgmodels.report.summaries import result_text

        return result_text(self)

    def _repr_html_(self) -> str:
        from pgmodels.report.summaries import result_html

        return result_html(self)


class LatentDraws(NamedTuple):
    """Draws of the latents at the data, (chains, draws, n, latents), and the name of their distribution.

    ``whitened`` are their coordinates, None without a joint density. ``log_q`` (chains, draws) is the log ratio of the
    approximation's density to the prior's, None without one.
    """

    f: np.ndarray
    about: str
    whitened: tuple[np.ndarray, ...] | None = None
    log_q: np.ndarray | None = None


class Result(BaseResult):
    """Base class of results: the model with its hyperparameters resolved, and the data.

    If X was a data frame, ``columns`` are the names of its columns, and their conversion to numbers. ``weights`` (n,)
    are the powers of the rows' likelihoods, None if all are 1; rows of weight 0 are left out. ``labels`` are the labels
    of y in the order of their codes, None if y was numbers. ``missing`` are the rows without y, kept by
    ``missing="predict"``.
    """

    if TYPE_CHECKING:
        X: np.ndarray
        y: np.ndarray

        @property
        def mean(self) -> np.ndarray:
            """Posterior means of the latents at the data, (n, latents)."""

        @property
        def variance(self) -> np.ndarray:
            """Posterior variances of the latents at the data, (n, latents)."""

        @property
        def marginals(self) -> "NormalDensity | GridDensity":
            """The marginals of the latents at the data; draws have none."""

        def latent_draws(self, num_draws: int, seed: int) -> LatentDraws:
            """Return one chain of independent draws at the data, of a Gaussian result."""

    # Whether the moments are corrected, and the uncertainty of learned parameters that they include.
    is_corrected: ClassVar[bool] = False
    uncertainty: "ParameterUncertainty | None" = None

    @property
    def draws(self) -> "Draws | None":
        """The result itself if it has posterior draws, None otherwise."""
        return None

    @property
    def has_density(self) -> bool:
        """Whether the moments belong to a joint Gaussian density."""
        return False

    @property
    def log_evidence_bounds(self) -> np.ndarray | None:
        """Lower bounds of log p(y), one for each latent (n, latents); None if there are none."""
        return None

    @property
    def conditional(self) -> "Result":
        """The result with its parameters held at their learned values, without their uncertainty."""
        return self

    def draw_with_parameters(self, num_draws: int, seed: int) -> tuple[np.ndarray, dict[str, np.ndarray]] | None:
        """Return draws of the latents at the data (draws, n, latents) and of hyperparameters; None if all are fixed."""
        return None

    def averaging_draws(self, f: np.ndarray, seed: Seed = 0) -> np.ndarray:
        """Return the draws of the latents at the data (draws, n, latents) that predictions of y average over."""
        return f

    @property
    def data(self) -> Data:
        """X, y, and the rows' weights."""
        return Data(self.X, self.y, self.columns, self.weights, self.labels, self.missing)

    @property
    def num_rows(self) -> int:
        """The number of rows of the data."""
        return len(self.X)

    def check_inputs(self, X_new: ArrayLike, name: str = "X_new") -> np.ndarray:
        return check_new_inputs(self.model, X_new, name, self.X.shape[1], self.columns)

    def predict_missing(self) -> "Predictive":
        """Return the predictive distribution of y in the rows without y, ``missing.rows``.

        Returns
        -------
        Predictive
            The same as ``predict`` returns at ``missing.X`` with ``missing.covariates``.

        Raises
        ------
        ValueError
            If no row without y was kept.
        """
        if self.missing is None:
            raise ValueError("predict_missing: no rows without y were kept. Pass missing='predict' to the engine.")
        return self.predict(self.missing.X, self.missing.covariates)

    def _inputs_at(self, X_new: ArrayLike, jointly: bool = False) -> np.ndarray:
        inputs = self.check_inputs(X_new)
        check_covariances(self.prior, inputs, jointly=jointly)
        return inputs

    def _latent_table(self) -> "pd.DataFrame":
        ends = self.marginals.quantiles(bounds())
        # A corrected variance may be negative.
        with np.errstate(invalid="ignore"):
            deviation = np.sqrt(self.variance)
        rows = table(self.mean.ravel(), deviation.ravel(), ends.reshape(2, -1))
        return rows.set_axis([f"f{entry}" for entry in entries(self.mean.shape)])

    def to_arviz(
        self,
        num_draws: int = 1000,
        seed: Seed = 0,
        *,
        coords: Mapping[str, Sequence[Any]] | None = None,
        prior: "PriorPredictive | None" = None,
    ) -> "DataTree":
        """Convert the result to an xarray.DataTree for ArviZ; see ``pgmodels.to_arviz``."""
        from pgmodels.interop.arviz import to_arviz

        return to_arviz(self, num_draws=num_draws, seed=seed, coords=coords, prior=prior)


@dataclass(eq=False, kw_only=True, repr=False)
class DataResult(Result):
    """A result that holds the model and the data: see Result."""

    model: Model
    X: Float[np.ndarray, "n d"]
    y: Float[np.ndarray, "n ..."]
    seconds: float
    method: str
    columns: Columns | None = None
    weights: Float[np.ndarray, " n"] | None = None
    labels: Labels | None = None
    missing: Missing | None = None


def same_hyperparameters(one: Result, other: Result) -> bool:
    """Return whether two results have the same hyperparameter values, or sample the same hyperparameters."""
    sampled = [list(getattr(result, "hyperparameters", {})) for result in (one, other)]
    if any(sampled):
        return sampled[0] == sampled[1]
    leaves = [jax.tree.leaves(bare(result.model)) for result in (one, other)]
    return len(leaves[0]) == len(leaves[1]) and all(map(np.array_equal, *leaves))
