"""Predictive distributions, and nodes over parameters."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import scipy
from numpy.typing import ArrayLike

from pgmodels.augmentation.normal_form import read_event
from pgmodels.data.arrays import Labels, as_numbers, check_finite, check_whole_number, coded
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.likelihood import (
    Formula,
    Likelihood,
    columns_of,
    entries_out_of_range,
    log_density,
    log_integral,
    undefined_coefficients,
)
from pgmodels.likelihoods.sampling import draw_observations, expectations, is_normalised
from pgmodels.likelihoods.supports import Support, Undeclared
from pgmodels.model import check_allowed
from pgmodels.numerics.quadrature import normal_nodes, padded_chunks, slices
from pgmodels.objectives.base import AdditiveNoise
from pgmodels.priors.base import pad_rows, padded_size
from pgmodels.priors.chain_posterior import push_moments
from pgmodels.results.result import GridDensity, check_levels
from pgmodels.runtime.jit import compiled, require_draws
from pgmodels.runtime.messages import PgmodelsWarning, shorten, warn
from pgmodels.runtime.precision import DoublePrecision, Picklable, as_array, double_precision
from pgmodels.runtime.seeds import Seed, as_generator


def check_covariates(likelihood: Likelihood, size: int, covariates: Any, num_rows: int) -> np.ndarray | None:
    """Covariates as a float64 array (num_rows, columns); None for None.

    ``size`` is the number of latents. A single column may have shape (num_rows,). Raises ValueError for covariates that
    the likelihood does not allow.
    """
    if covariates is None:
        return None
    support = likelihood.support(size)
    columns = support.num_covariates
    if columns == 0:
        raise ValueError(f"covariates: y of {likelihood.name} has no covariates; leave covariates out.")
    values = as_numbers(covariates, "covariates")
    if values.shape == (num_rows,) and columns == 1:
        values = values[:, None]
    if values.shape != (num_rows, columns):
        first = support.num_columns - columns
        raise ValueError(
            f"covariates must have shape ({num_rows}, {columns}), one row for each row of X and the columns of y from "
            f"y[{first}] on; got {values.shape}."
        )
    check_finite(values, "covariates")
    support.check_covariates(values)
    _check_allowed(likelihood, size, support, values)
    return values


@double_precision
def _check_allowed(likelihood: Likelihood, size: int, support: Support, covariates: np.ndarray) -> None:
    """Raise ValueError if covariates index entries out of range, or make a coefficient infinite or NaN."""
    formula, first = likelihood.formula(size), support.num_columns - support.num_covariates
    # Padding repeats the first row, so that the first invalid row is never padding.
    covariates = pad_rows(covariates, padded_size(len(covariates)))
    y = np.column_stack([np.ones(len(covariates)), support.others(covariates)])
    env = Environment(as_array(y), as_array(np.zeros((len(y), size))), likelihood.values)

    def reads_covariates(expression: Expression) -> bool:
        return all(column >= first for column in columns_of(expression))

    for symbol, rows in entries_out_of_range(formula, env):
        if reads_covariates(symbol):
            raise ValueError(
                f"covariates are outside what the formula allows: {symbol.text()} needs an index of the entries of "
                f"{symbol.name}, 0 to {symbol.length - 1}, and is out of range in row {np.flatnonzero(rows)[0]}."
            )
    for coefficient, rows in undefined_coefficients(formula, env):
        if reads_covariates(coefficient):
            raise ValueError(
                f"covariates are outside what the formula allows: {coefficient.text()}, which multiplies a latent, is "
                f"not finite in row {np.flatnonzero(rows)[0]}."
            )


# Correlations of this size are rounding errors.
_ROUNDING = 1e-9


class Nodes(DoublePrecision, Picklable, ABC):
    """Nodes and weights for integrals over the latents of each row, by a ``rule`` at several ``levels`` of refinement.

    ``values`` has likelihood parameters that differ between nodes.
    """

    values: Mapping[str, Any] = MappingProxyType({})

    num_rows: int
    num_latents: int
    rule: str
    levels: tuple[int, ...]

    @abstractmethod
    def at(self, rows: Any, level: int) -> tuple[np.ndarray, np.ndarray]:
        """Latent values (nodes, rows, latents) and log weights (nodes,) at a level of refinement."""

    @abstractmethod
    def count(self, level: int) -> int:
        """The number of nodes at a level."""

    @abstractmethod
    def draw(self, num_draws: int, rng: np.random.Generator) -> tuple[np.ndarray, Mapping[str, Any]]:
        """Latents (num_draws, rows, latents), independent across rows, with their likelihood parameters."""


class GaussianNodes(Nodes):
    """Gaussian marginals of each row's latents, in the standardised directions that the likelihood depends on.

    Gauss-Hermite for one direction, scrambled Sobol for several.
    """

    mean: np.ndarray
    num_directions: int
    # Whether the directions are standard normal, so that closed forms of Gaussians hold.
    is_gaussian = True

    def __init__(self, mean: np.ndarray, num_directions: int):
        self.mean, self.num_directions = mean, num_directions
        self.num_rows, self.num_latents = mean.shape
        self.rule = "hermite" if num_directions == 1 else "sobol"
        self.levels = (32, 64, 128, 256) if num_directions == 1 else (1024, 4096, 16384)

    @property
    @abstractmethod
    def are_independent(self) -> bool:
        """Whether the latents of a row are independent."""

    @abstractmethod
    def place(self, rows: Any, standard: np.ndarray) -> np.ndarray:
        """The latents (nodes, rows, latents) of standard coordinates (nodes, rows or 1, directions)."""

    @abstractmethod
    def covariances(self, rows: Any) -> np.ndarray:
        """The covariances of the latents of some rows that the likelihood can tell, (rows, latents, latents)."""

    def at(self, rows: Any, level: int) -> tuple[np.ndarray, np.ndarray]:
        standard, weights = normal_nodes(self.num_directions, level)
        # Weights in the tails underflow to zero, and their logarithm to minus infinity.
        with np.errstate(divide="ignore"):
            return self.place(rows, standard[:, None, :]), np.log(weights)

    def count(self, level: int) -> int:
        return level

    def draw(self, num_draws: int, rng: np.random.Generator) -> tuple[np.ndarray, Mapping[str, Any]]:
        return self.place(slice(None), rng.standard_normal((num_draws, self.num_rows, self.num_directions))), {}


class IndependentNodes(GaussianNodes):
    """Independent latents, mean and variance (m, latents)."""

    def __init__(self, mean: np.ndarray, variance: np.ndarray):
        super().__init__(mean, mean.shape[1])
        self.scale = np.sqrt(variance)

    @property
    def are_independent(self) -> bool:
        return True

    def covariances(self, rows: Any) -> np.ndarray:
        return self.scale[rows, :, None] ** 2 * np.eye(self.num_latents)

    def place(self, rows: Any, standard: np.ndarray) -> np.ndarray:
        return self.mean[rows] + self.scale[rows] * standard


class PredictorNodes(GaussianNodes):
    """Correlated latents, mean (m, latents) and covariance (m, latents, latents), of which the likelihood reads Φ f.

    Since the likelihood depends on f only through Φ f, ``Phi`` (m, predictors, latents), the integral over f is an
    integral over f = m + V Φᵀ (Φ V Φᵀ)^-1/2 u with a standard normal u (predictors,).
    """

    def __init__(self, mean: np.ndarray, covariance: np.ndarray, Phi: np.ndarray):
        super().__init__(mean, Phi.shape[1])
        across = np.einsum("mlk,mpk->mlp", covariance, Phi)
        values, vectors = np.linalg.eigh(np.einsum("mpl,mlq->mpq", Phi, across))
        # Directions without variance, of constant or linearly dependent predictors, are dropped.
        known = values > 1e-14 * values.max(axis=1, keepdims=True)
        scale = np.where(known, np.where(known, values, 1.0) ** -0.5, 0.0)
        self.half = np.einsum("mlp,mpq->mlq", across, vectors * scale[:, None, :])

    @property
    def are_independent(self) -> bool:
        covariance = self.covariances(slice(None))
        diagonal = np.einsum("mll->ml", covariance)
        between = np.abs(covariance - diagonal[:, :, None] * np.eye(self.num_latents))
        return bool(np.all(between**2 <= _ROUNDING**2 * diagonal[:, :, None] * diagonal[:, None, :]))

    def covariances(self, rows: Any) -> np.ndarray:
        return np.einsum("mlp,mkp->mlk", self.half[rows], self.half[rows])

    def place(self, rows: Any, standard: np.ndarray) -> np.ndarray:
        standard = np.broadcast_to(standard, (len(standard), len(self.mean[rows]), self.num_directions))
        return self.mean[rows] + np.einsum("mlp,smp->sml", self.half[rows], standard)


class CopulaNodes(GaussianNodes):
    """Predictors with marginals of any form, joined by a Gaussian copula; latents are linear in them.

    ``marginals`` are those of the predictors Φ f (m, P), and ``mean`` (m, L) and ``covariance`` (m, L, L) the moments
    of the latents that say how they are correlated.
    """

    is_gaussian = False

    def __init__(self, marginals: GridDensity, mean: np.ndarray, covariance: np.ndarray, Phi: np.ndarray):
        super().__init__(mean, Phi.shape[1])
        self.marginals, self.centre = marginals, np.einsum("mpl,ml->mp", Phi, mean)
        across = np.einsum("mlk,mpk->mlp", covariance, Phi)
        between = np.einsum("mpl,mlq->mpq", Phi, across)
        scale = np.sqrt(np.diagonal(between, axis1=1, axis2=2))
        safe = np.where(scale > 0.0, scale, 1.0)
        values, vectors = np.linalg.eigh(between / (safe[:, :, None] * safe[:, None, :]))
        self.root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
        # Latents given the predictors: f = mean + gain (Φ f - Φ mean).
        self.gain = np.einsum("mlp,mpq->mlq", across, np.linalg.pinv(between, hermitian=True))

    @property
    def are_independent(self) -> bool:
        return self.num_directions == 1

    def covariances(self, rows: Any) -> np.ndarray:
        scale = np.sqrt(self.marginals.variance[rows])
        half = self.gain[rows] @ (scale[:, :, None] * self.root[rows])
        return half @ np.swapaxes(half, 1, 2)

    def place(self, rows: Any, standard: np.ndarray) -> np.ndarray:
        root = self.root[rows]
        standard = np.broadcast_to(standard, (len(standard), len(root), self.num_directions))
        z = self.marginals.transport(np.einsum("mpq,smq->smp", root, standard), rows)
        return self.mean[rows] + np.einsum("mlp,smp->sml", self.gain[rows], z - self.centre[rows])


class DrawNodes(Nodes):
    """Draws of the latents, (draws, m, latents), with equal weights.

    ``values`` has draws of sampled likelihood parameters, (draws, 1, entries) each.
    """

    rule = "draws"
    levels = (0,)

    def __init__(self, draws: np.ndarray, values: Mapping[str, Any] | None = None):
        self.draws, self.values = draws, values or {}
        _, self.num_rows, self.num_latents = draws.shape

    def count(self, level: int) -> int:
        return len(self.draws)

    def draw(self, num_draws: int, rng: np.random.Generator) -> tuple[np.ndarray, Mapping[str, Any]]:
        chosen = spread_evenly(len(self.draws), num_draws, rng)
        return self.draws[chosen], {name: np.asarray(value)[chosen] for name, value in self.values.items()}

    def at(self, rows: Any, level: int) -> tuple[np.ndarray, np.ndarray]:
        return self.draws[:, rows], np.full(len(self.draws), -np.log(len(self.draws)))


def spread_evenly(count: int, num_draws: int, rng: np.random.Generator) -> np.ndarray:
    """Numbers below ``count`` in random order, equally often up to a remainder."""
    rounds = [rng.permutation(count) for _ in range(-(-num_draws // count))]
    return np.concatenate(rounds)[:num_draws]


# Predictive distributions: integrate the likelihood over the latents, by quadrature or over draws.

# An integral has converged if two levels of nodes agree to this in log density; a warning is given if the last two
# differ by more than _UNRESOLVED. The error of the trapezoid rule is at least ten times smaller than the last
# difference.
_AGREE = {"hermite": 1e-7, "trapezoid": 1e-5, "sobol": 1e-3}
_UNRESOLVED = {"trapezoid": 1e-3, "sobol": 0.05}
# Relative difference of the last two levels of a variance above which to warn; the error is about six times smaller.
_UNSURE = 0.05
_TRAPEZOID_LEVELS = (1025, 4097, 16385)
# Number of observations that are integrated together: 32 MB per array at the finest level.
_TOGETHER = 4096
# A window of the trapezoid rule ends where the integrand is exp(-_DEPTH) of its peak.
_DEPTH = 32.0
# Moments of times: log survival probabilities at the ends of the window, and its number of points; log-log slope of the
# tail above which there is no moment; largest log time, and bisections to find the ends.
_START, _TAIL, _TIMES, _FLAT, _LONGEST, _HALVINGS = -1e-9, -100.0, 385, 1e-6, 300.0, 40


class PredictionWarning(PgmodelsWarning):
    """A prediction is inaccurate: an integral is not resolved, or a density is not normalised."""


def warn_if_unnormalised(likelihood: Likelihood, size: int, what: str) -> bool:
    """Warn with PredictionWarning, and return True, if a density is not known to be normalised in y."""
    if is_normalised(likelihood, size) is True:
        return False
    warn(
        f"{likelihood.name} is not known to be a normalised density of y, so {what} leaves out a factor free of f. "
        "Write the formula with its constants and declare its support.",
        PredictionWarning,
    )
    return True


class Predictive(DoublePrecision, Picklable):
    """The predictive distribution of y at m new inputs; everything is computed on request.

    For censored times, y is the time of the event itself.

    Parameters
    ----------
    likelihood : Likelihood
        The likelihood, with the values of its parameters.
    nodes : Nodes
        Quadrature nodes of the latents at the m inputs.
    covariates : array_like, shape (m, columns - 1), optional
        The columns of y after the first. Without them, everything that depends on them raises ValueError, except
        ``log_density``, which reads them from y_new.
    labels : tuple, optional
        The labels of y in the order of their codes, if the training y had labels.
    """

    def __init__(
        self,
        likelihood: Likelihood,
        nodes: Nodes,
        covariates: ArrayLike | None = None,
        labels: Labels | None = None,
    ):
        self.likelihood, self.nodes, self.labels = likelihood, nodes, labels
        # The likelihood as evaluated at the nodes: its parameters may be drawn together with the latents.
        self.evaluated_likelihood = likelihood.with_values(nodes.values)
        self.support: Support = likelihood.support(nodes.num_latents)
        self.covariates = check_covariates(likelihood, nodes.num_latents, covariates, nodes.num_rows)

    @property
    def mean(self) -> np.ndarray:
        """E[y], (m,): of the first column of y given the others, if there are several."""
        self._require_columns("the mean", self.likelihood.conditional_mean or self.likelihood.function)
        return self._moments[0]

    @property
    def variance(self) -> np.ndarray:
        """Var[y], (m,)."""
        declared = (self.likelihood.conditional_mean, self.likelihood.conditional_variance)
        self._require_columns("the variance", *declared if all(declared) else (self.likelihood.function,))
        return self._moments[1]

    @cached_property
    def probabilities(self) -> np.ndarray:
        """The probability of each value of y, (m, values), in the order of ``support.values()``.

        Raises ValueError if y has no short list of values.
        """
        values = self.support.values()
        if values is None:
            raise ValueError(
                f"probabilities needs y with a fixed, finite set of values, and {self.likelihood.name} has none: use "
                "mean, variance or log_density. For a custom formula, declare the support: "
                "@pgm.likelihood(support=pgm.Binary())."
            )
        self._require_normalised("probabilities")
        self._require_columns("probabilities", self.likelihood.function)
        if self.nodes.rule == "sobol" and self._event is None:
            # At the same nodes, where factors without y are computed once.
            y, every = np.stack([self._observations(value) for value in values]), np.arange(self.nodes.num_rows)
            return np.exp(self._integrate_together(y, every, self.nodes.levels[1])).T
        return np.stack([np.exp(self._log_probability(self._observations(value))) for value in values], axis=1)

    @property
    def mode(self) -> np.ndarray:
        """The most probable value of y, (m,): a label if the training y had labels.

        Raises ValueError if y has no short list of values.
        """
        places = self.probabilities.argmax(axis=1)
        return np.asarray(self.support.values() if self.labels is None else self.labels)[places]

    def log_density(self, y_new: ArrayLike) -> np.ndarray:
        """log p(y_new) of each row: the logarithm of the integrated likelihood.

        Parameters
        ----------
        y_new : array_like, shape (m,) or (m, columns)
            Observations at the new inputs; labels, if the training y had labels.

        Returns
        -------
        ndarray, shape (m,)
            In nats.

        Raises
        ------
        ValueError
            If y_new has another shape, values outside the support, or unknown labels.

        Warns
        -----
        PredictionWarning
            If the formula is not known to be normalised in y.
        """
        if self.labels is not None:
            return self.log_density_at(coded(y_new, self.labels, "y_new"))
        return self.log_density_at(as_numbers(y_new, "y_new"))

    def log_density_at(self, y_new: np.ndarray) -> np.ndarray:
        """``log_density`` of observations as numbers: of labels, their codes."""
        expected = (
            (self.nodes.num_rows,) if self.support.num_columns == 1 else (self.nodes.num_rows, self.support.num_columns)
        )
        if y_new.shape != expected:
            raise ValueError(f"y_new must have shape {expected}, a row for each of X_new; got {y_new.shape}.")
        check_finite(y_new, "y_new")
        self.support.check(y_new)
        if isinstance(self.support, Undeclared) or self.support.num_covariates:
            check_allowed(self.likelihood, self.nodes.num_latents, y_new, "y_new")
        warn_if_unnormalised(self.likelihood, self.nodes.num_latents, "log_density")
        return self._log_density(y_new)

    def probabilities_of(self, values: ArrayLike) -> np.ndarray:
        """P(y = value) of each row for whole numbers: counts, or successes of the trials in covariates.

        Parameters
        ----------
        values : array_like, shape (values,)
            Whole numbers.

        Returns
        -------
        ndarray, shape (m, values)

        Raises
        ------
        ValueError
            If y is a real number, or the formula is not normalised in y.
        """
        if not self.support.is_discrete or isinstance(self.support, Undeclared):
            raise ValueError(
                f"y of {self.likelihood.name} is not declared to be a count, so that no value has a probability: use "
                "log_density, or declare its support, as in @pgm.likelihood(support=pgm.Counts())."
            )
        self._require_normalised("probabilities")
        self._require_columns("probabilities", self.likelihood.function)
        wanted, places = np.unique(np.atleast_1d(as_numbers(values, "values")), return_inverse=True)
        m = self.nodes.num_rows
        probabilities = np.zeros((len(wanted), m))
        for group in slices(len(wanted), m, _TOGETHER):
            y = np.concatenate([self._observations(value) for value in wanted[group]])
            pieces = self.support.pieces(y)
            there = np.flatnonzero(np.any([piece.holds(y) for piece in pieces], axis=0))
            if there.size:
                probabilities[group].reshape(-1)[there] = np.exp(self._log_probability(y[there], there % m))
        return probabilities[places].T

    def survival(self, times: ArrayLike) -> np.ndarray:
        """P(y > time) of each row: the probability that the event is later than each time.

        Parameters
        ----------
        times : array_like, shape (times,)
            Finite times >= 0, in units of y.

        Returns
        -------
        ndarray, shape (m, times)

        Raises
        ------
        ValueError
            If y is not a time that may be censored.
        """
        wanted = np.atleast_1d(as_numbers(times, "times"))
        if wanted.ndim != 1 or not (np.isfinite(wanted) & (wanted >= 0)).all():
            raise ValueError(f"times must be one finite number >= 0 or a list of them; got {shorten(times)}.")
        self._require_normalised("survival probabilities")
        self._require_columns("survival", self.likelihood.function)
        wanted, places = np.unique(wanted, return_inverse=True)
        m, (later,) = self.nodes.num_rows, np.nonzero(wanted)
        probabilities = np.ones((len(wanted), m))
        for group in slices(len(later), m, _TOGETHER):
            y = np.concatenate([self._beyond(np.full(m, time)) for time in wanted[later[group]]])
            probabilities[later[group]] = np.exp(self._log_density(y, np.arange(len(y)) % m)).reshape(-1, m)
        return probabilities[places].T

    def draw(self, num_draws: int = 1000, seed: Seed = 0) -> np.ndarray:
        """Draws of y, independent across rows; of the first column given the others, if it has several.

        Parameters
        ----------
        num_draws : int, default 1000
        seed : int or JAX key, default 0

        Returns
        -------
        ndarray, shape (num_draws, m)

        Raises
        ------
        ValueError
            If y cannot be drawn from the formula.
        """
        check_whole_number(num_draws, "num_draws", 1)
        require_draws(num_draws, self.nodes.num_rows, self.nodes.num_latents)
        rng = as_generator(seed)
        return self.draw_given(*self.nodes.draw(num_draws, rng), rng)

    def draw_given(self, f: np.ndarray, values: Mapping[str, Any], rng: np.random.Generator) -> np.ndarray:
        """A draw of y for each draw of latents (draws, m, latents) and likelihood parameters, (draws, m)."""
        self._require_columns("draws", self.likelihood.function)
        columns = self._given_columns if self.support.num_covariates else None
        return draw_observations(self.likelihood, f, columns, rng, values)

    def quantiles(self, levels: ArrayLike, num_draws: int = 4000, seed: Seed = 0) -> np.ndarray:
        """Quantiles of y, estimated from draws.

        For counts and classes, the smallest value whose distribution function reaches the level.

        Parameters
        ----------
        levels : array_like, shape (levels,)
            Probabilities between 0 and 1.
        num_draws : int, default 4000
        seed : int or JAX key, default 0

        Returns
        -------
        ndarray, shape (levels, m)

        Raises
        ------
        ValueError
            If a level is not between 0 and 1, or y cannot be drawn from the formula.
        """
        method: Literal["inverted_cdf", "linear"] = "inverted_cdf" if self.support.is_discrete else "linear"
        return np.quantile(self.draw(num_draws, seed), check_levels(levels), axis=0, method=method)

    @cached_property
    @double_precision
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        levels = self.nodes.levels[:3]
        moments = self._integrated_moments(levels[-1], self._given_moments)
        if moments is not None:
            if len(levels) > 1:
                self._warn_unsure(moments, self._integrated_moments(levels[-2], self._given_moments))
            return moments
        values = self.support.values()
        if values is not None:
            mean = self.probabilities @ values
            return mean, np.maximum(self.probabilities @ values**2 - mean**2, 0.0)
        if self.support.beyond(np.ones(self.nodes.num_rows), self._given_columns) is not None:
            self._require_normalised("moments")
            self._require_columns("the mean", self.likelihood.function)
            return self._moments_of_times(levels[-1])
        # By quadrature over y at each node: hundreds of times the cost.
        moments = self._integrated_moments(levels[0], self._expectations)
        assert moments is not None
        self._warn_heavy(moments)
        return moments

    def moments_given(self, rows: Any, f: np.ndarray) -> tuple[Any, Any]:
        """Mean and variance of y given latents (nodes, rows, latents) of some rows, (nodes, rows)."""
        return self._given_moments(rows, f) or self._expectations(rows, f)

    def probabilities_given(self, f: np.ndarray) -> np.ndarray:
        """The probability of each value of y given latents (nodes, m, latents), (nodes, m, values)."""
        values = self.support.values()
        assert values is not None
        each = [log_density(self.evaluated_likelihood, self._observations(value), f) for value in values]
        return np.exp(np.stack([np.asarray(part) for part in each], axis=-1))

    def _given_moments(self, rows: Any, f: np.ndarray) -> tuple[Any, Any] | None:
        return self.evaluated_likelihood.moments(
            as_array(self._observations(0.0)[rows]), as_array(f), self.nodes.num_latents
        )

    def _expectations(self, rows: Any, f: np.ndarray) -> tuple[Any, Any]:
        others = None if self.support.num_columns == 1 else self._observations(0.0)[rows, 1:]
        return expectations(self.likelihood, f, others, self.nodes.values)

    def _integrated_moments(self, level: int, moments: Callable[..., Any]) -> tuple[np.ndarray, np.ndarray] | None:
        means, variances = np.empty(self.nodes.num_rows), np.empty(self.nodes.num_rows)
        for rows in self._chunks(np.arange(self.nodes.num_rows), level):
            f, log_weights = self.nodes.at(rows, level)
            conditional_moments = moments(rows, f)
            if conditional_moments is None:
                return None
            mean_f, variance_f = (np.asarray(part) for part in conditional_moments)
            weights = np.exp(log_weights)[:, None]
            # Means beyond the largest double are infinite, and so are their variances.
            with np.errstate(over="ignore", invalid="ignore"):
                means[rows] = (weights * mean_f).sum(axis=0)
                spread = (weights * (mean_f - means[rows]) ** 2).sum(axis=0)
                total = (weights * variance_f).sum(axis=0) + spread
            variances[rows] = np.where(np.isinf(means[rows]), np.inf, total)
        return means, variances

    def _moments_of_times(self, level: int) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of a time to an event by the trapezoid rule in its logarithm; they may be infinite.

        Beyond the window, where the survival probability is exp(_TAIL), the tail is a power of time, so that the
        remaining terms of the rule are a geometric series.
        """
        every = np.arange(self.nodes.num_rows)
        start = self._log_time_where(lambda log_survival: log_survival > _START, level)
        end = self._log_time_where(lambda log_survival: log_survival > _TAIL, level)
        u = _spaced(start, end, _TIMES)
        step = u[1] - u[0]
        events = np.stack([self._observations(t) for t in np.exp(u)])
        log_p = self._integrate_together(events, every, level) + u
        moments = []
        for power in (1, 2):
            term = log_p + power * u
            slope = (term[-1] - term[-2]) / step
            falls = slope < -_FLAT
            rest = np.where(falls, term[-1] - np.log(np.expm1(np.where(falls, -slope, 1.0) * step)), np.inf)
            with np.errstate(over="ignore"):
                moments.append(np.exp(np.logaddexp(scipy.special.logsumexp(term, axis=0), rest) + np.log(step)))
        mean, square = moments
        finite = np.isfinite(square)
        return mean, np.where(finite, square - np.where(finite, mean, 0.0) ** 2, np.inf)

    def _log_time_where(self, is_before: Callable[[np.ndarray], np.ndarray], level: int) -> np.ndarray:
        """The logarithm of the last time at which a condition on the log survival probability holds, (m,)."""
        every = np.arange(self.nodes.num_rows)
        low, high = np.full(len(every), -_LONGEST), np.full(len(every), _LONGEST)
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            before = is_before(self._integrate(self._beyond(np.exp(middle)), every, every, level))
            low, high = np.where(before, middle, low), np.where(before, high, middle)
        return 0.5 * (low + high)

    def _warn_heavy(self, moments: tuple[np.ndarray, np.ndarray]) -> None:
        bad = np.isnan(moments).any(axis=0).sum()
        if bad:
            warn(
                f"the mean or the variance of y by {self.likelihood.name} is not resolved in {bad} rows, and NaN: its "
                "tails are so heavy that rare large values are most of it; take quantiles.",
                PredictionWarning,
            )

    def _warn_unsure(
        self, moments: tuple[np.ndarray, np.ndarray], coarse: tuple[np.ndarray, np.ndarray] | None
    ) -> None:
        """Warn of rows whose moments still change with the number of nodes."""
        if coarse is None:
            return
        (mean, variance), (other, less) = moments, coarse
        with np.errstate(over="ignore", invalid="ignore"):
            gap = np.maximum(np.abs(variance - less), (mean - other) ** 2) / np.maximum(variance, np.finfo(float).tiny)
        bad = gap[gap > _UNSURE]
        if bad.size:
            warn(
                f"the mean and the variance of y are not resolved in {bad.size} rows: the variance still changes by up "
                f"to {100.0 * bad.max():.2g} % with the number of nodes. The latents are so uncertain there that rare "
                "large values are most of it; take quantiles, or average over draws from gibbs.",
                PredictionWarning,
            )

    def _log_probability(self, y: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """log p(y) of values of a discrete support; all at one level if nodes are random, so that they sum to 1."""
        if self.nodes.rule == "sobol" and self._event is None:
            rows = np.arange(len(y)) if rows is None else rows
            return self._integrate(y, rows, np.arange(len(y)), self.nodes.levels[1])
        return self._log_density(y, rows)

    def _log_density(self, y: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """log p(y) of observations at ``rows`` of X_new (by default all, in order), refined until two levels agree."""
        nodes = self.nodes
        open_rows = np.arange(len(y))
        rows = open_rows if rows is None else rows
        if isinstance(nodes, GaussianNodes) and self._event is not None:
            return self._in_closed_form(nodes, self._event, y, rows)
        result = self._integrate(y, rows, open_rows, nodes.levels[0])
        gap = np.zeros(len(y))
        for level in nodes.levels[1:]:
            gap = self._refine(result, open_rows, self._integrate(y, rows, open_rows, level))
            still = gap > _AGREE[nodes.rule]
            open_rows, gap = open_rows[still], gap[still]
            if not open_rows.size:
                return result
        if isinstance(nodes, GaussianNodes) and nodes.rule == "hermite":
            gap = self._integrate_windows(nodes, y[open_rows], rows[open_rows], result, open_rows)
            self._warn_unresolved(gap, _UNRESOLVED["trapezoid"])
        elif nodes.rule == "sobol":
            self._warn_unresolved(gap, _UNRESOLVED["sobol"])
        return result

    @cached_property
    def _event(self) -> AdditiveNoise | None:
        """The closed form of a formula that is affine in one event of Gaussian latents, else None."""
        if not isinstance(self.nodes, GaussianNodes) or not self.nodes.is_gaussian:
            return None
        size = self.nodes.num_latents
        terms = read_event(self.likelihood.formula(size), size, AdditiveNoise)
        return terms if terms is not None and (terms.size == 1 or self.nodes.are_independent) else None

    def _in_closed_form(
        self, nodes: GaussianNodes, terms: AdditiveNoise, y: np.ndarray, rows: np.ndarray
    ) -> np.ndarray:
        """log p of the observations y, which belong to ``rows`` of X_new."""
        log_probabilities = []
        for chunk in self._chunks(np.arange(len(y)), 1):
            mean, covariance = as_array(nodes.mean[rows[chunk]]), as_array(nodes.covariances(rows[chunk]))
            log_p = _log_marginal(terms, mean, covariance, as_array(y[chunk]), self.likelihood.values)
            log_probabilities.append(np.asarray(log_p))
        return np.concatenate(log_probabilities)[: len(y)]

    @staticmethod
    def _refine(result: np.ndarray, rows: np.ndarray, current: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            gap = np.nan_to_num(np.abs(current - result[rows]), nan=0.0, posinf=np.inf)
        result[rows] = current
        return gap

    def _warn_unresolved(self, gap: np.ndarray, limit: float) -> None:
        bad = gap[gap > limit]
        if bad.size:
            warn(
                f"the predictive integral is not resolved in {bad.size} rows: log_density still changes by up to "
                f"{bad.max():.1g} with the number of nodes. The likelihood is very narrow compared with the latent "
                "uncertainty there; check the scale of the likelihood, or average over draws from gibbs.",
                PredictionWarning,
            )

    def _integrate(self, y: np.ndarray, rows: np.ndarray, places: np.ndarray, level: int) -> np.ndarray:
        """log p of the observations at some indices of y, which belong to ``rows`` of X_new."""
        log_probabilities = []
        for chunk in self._chunks(places, level):
            f, log_weights = self.nodes.at(rows[chunk], level)
            log_probabilities.append(log_integral(self.evaluated_likelihood, y[chunk], f, log_weights))
        return np.concatenate(log_probabilities)[: len(places)]

    def _integrate_together(self, y: np.ndarray, rows: np.ndarray, level: int) -> np.ndarray:
        """log p of several observations of each row, y (values, m) or (values, m, columns), at the same nodes."""
        log_probabilities = []
        for chunk in self._chunks(rows, level, len(y)):
            f, log_weights = self.nodes.at(chunk, level)
            log_probabilities.append(log_integral(self.evaluated_likelihood, y[:, None, chunk], f, log_weights))
        return np.concatenate(log_probabilities, axis=1)[:, : len(rows)]

    def _integrate_windows(
        self, nodes: GaussianNodes, y: np.ndarray, rows: np.ndarray, result: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        """Integrate kinked or narrow integrands of one direction on windows about their mass; returns the last changes.

        The observations y belong to ``rows`` of X_new, and their integrals to ``places`` of the result.

        The trapezoid rule converges exponentially for smooth integrands that vanish at both ends, and as the square
        of the spacing across a kink.
        """
        # The scan is dense at the prior and reaches 4e6 deviations; each pass narrows the window up to 500 times.
        z = np.repeat(np.sinh(np.linspace(-16.0, 16.0, _TRAPEZOID_LEVELS[0]))[:, None], len(rows), axis=1)
        beyond = np.zeros(len(rows), dtype=bool)
        for first_pass in (True, False, False):
            log_p = self._log_integrand(nodes, y, rows, z)
            if first_pass:
                beyond = np.isin(log_p.argmax(axis=0), (0, len(z) - 1))
            inside = log_p > log_p.max(axis=0) - _DEPTH
            first, last = inside.argmax(axis=0), len(z) - 1 - inside[::-1].argmax(axis=0)
            columns = np.arange(len(rows))
            low, high = z[np.maximum(first - 1, 0), columns], z[np.minimum(last + 1, len(z) - 1), columns]
            z = _spaced(low, high, len(z))
        gap = np.full(len(rows), np.inf)
        active = np.arange(len(rows))
        for level in _TRAPEZOID_LEVELS:
            z = _spaced(low[active], high[active], level)
            current = scipy.special.logsumexp(self._log_integrand(nodes, y[active], rows[active], z), axis=0) + np.log(
                z[1] - z[0]
            )
            gap[active] = self._refine(result, places[active], current)
            active = active[gap[active] > _AGREE["trapezoid"]]
            if not active.size:
                break
        # The mass lies outside the scanned range.
        gap[beyond] = np.inf
        return gap

    def _log_integrand(self, nodes: GaussianNodes, y: np.ndarray, rows: np.ndarray, z: np.ndarray) -> np.ndarray:
        """log p(y | f) N(z; 0, 1) at the latents of standardised nodes z (nodes, rows)."""
        log_densities = []
        for chunk in self._chunks(np.arange(len(rows)), len(z)):
            f = nodes.place(rows[chunk], z[:, chunk, None])
            log_densities.append(log_density(self.likelihood, y[chunk], f))
        log_p = np.concatenate(log_densities, axis=1)[:, : len(rows)]
        return log_p - 0.5 * z**2 - 0.5 * np.log(2.0 * np.pi)

    def _chunks(self, rows: np.ndarray, level: int, num_values: int = 1) -> list[np.ndarray]:
        return padded_chunks(rows, max(self.nodes.count(level), level) * max(self.nodes.num_latents, num_values))

    @property
    def _given_columns(self) -> np.ndarray:
        shape = self.nodes.num_rows, self.support.num_covariates
        return np.full(shape, np.nan) if self.covariates is None else self.covariates

    def _observations(self, first: Any) -> np.ndarray:
        """y with a value, or one per row, in its first column; covariates are NaN if they were not given."""
        first = np.broadcast_to(first, (self.nodes.num_rows,))
        if self.support.num_columns == 1:
            return np.array(first)
        return np.column_stack([first, self.support.others(self._given_columns)])

    def _beyond(self, first: np.ndarray) -> np.ndarray:
        y = self.support.beyond(first, self._given_columns)
        if y is None:
            raise ValueError(
                f"y of {self.likelihood.name} is not declared to be a time that may be censored, so that its formula "
                "has no survival function: use quantiles, draw or probabilities_of, or write the formula of times and "
                "events, as in @pgm.likelihood(support=pgm.Censored())."
            )
        return y

    def _require_columns(self, what: str, *formulas: Formula | None) -> None:
        observed = range(self.support.num_columns - self.support.num_covariates)
        missing = sorted(self.likelihood.columns(self.nodes.num_latents, *formulas) - set(observed))
        if self.covariates is None and missing:
            raise ValueError(
                f"{what} of y by {self.likelihood.name} depends on {' and '.join(f'y[{j}]' for j in missing)}, which "
                f"was not given: covariates= takes the columns of y from y[{len(observed)}] on, of shape "
                f"({self.nodes.num_rows}, {self.support.num_covariates}), or of one row for a figure."
            )

    def _require_normalised(self, what: str) -> None:
        if is_normalised(self.likelihood, self.nodes.num_latents) is False:
            raise ValueError(
                f"{what} need a formula that sums to 1 over y, and {self.likelihood.name} does not: write it with the "
                "factors free of f that it leaves out."
            )


@partial(compiled, static_argnames="terms", optimise=False)
def _log_marginal(terms: AdditiveNoise, mean: Any, covariance: Any, y: Any, parameters: Any) -> Any:
    if terms.predictors is None:
        return terms.log_marginal(mean, jnp.diagonal(covariance, axis1=1, axis2=2), y, parameters)
    moments = push_moments(terms.predictors.matrix(y, parameters), mean, covariance)
    return terms.log_marginal(*moments, y, parameters)


def _spaced(low: np.ndarray, high: np.ndarray, count: int) -> np.ndarray:
    return low + (high - low) * np.linspace(0.0, 1.0, count)[:, None]
