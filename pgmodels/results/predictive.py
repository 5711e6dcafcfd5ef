"""Predictive distributions, and nodes over parameters."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array
from numpy.typing import ArrayLike

from pgmodels.augmentation.normal_form import read_event
from pgmodels.data.arrays import Labels, as_numbers, check_finite, check_whole_number, coded
from pgmodels.likelihoods.expression import Expression
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
from pgmodels.objectives.base import AdditiveNoise, Parameters
from pgmodels.priors.chain_posterior import push_moments
from pgmodels.results.result import GridDensity, check_levels
from pgmodels.runtime.jit import compiled, require_draws
from pgmodels.runtime.messages import PgmodelsWarning, shorten, warn
from pgmodels.runtime.precision import DoublePrecision, Picklable, as_array, double_precision
from pgmodels.runtime.seeds import Seed, as_generator

# A selection of rows of X_new.
Rows: TypeAlias = slice | np.ndarray
# The mean and the variance of y, for each row and, given latents, for each node.
YMoments: TypeAlias = tuple[np.ndarray | Array, np.ndarray | Array]


def check_covariates(
    likelihood: Likelihood, size: int, covariates: ArrayLike | None, num_rows: int
) -> np.ndarray | None:
    """Return covariates as a float64 array (num_rows, columns); None for None.

    ``size`` is the number of latents. A single column may have shape (num_rows,). Raises ValueError for covariates that
    the likelihood does not allow.
    """
    if covariates is None:
        return None
    support = likelihood.support(size)
    columns = support.num_covariates
    if columns == 0:
        raise ValueError(f"covariates: y of {likelihood.name} has no covariates: leave covariates out.")
    values = as_numbers(covariates, "covariates")
    if values.shape == (num_rows,) and columns == 1:
        values = values[:, None]
    if values.shape != (num_rows, columns):
        first = support.num_columns - columns
        raise ValueError(
            f"covariates must have shape ({num_rows}, {columns}): one row for each row of X, and the columns of y from "
            f"y[{first}] on; got {values.shape}."
        )
    check_finite(values, "covariates")
    support.check_covariates(values)
    _check_allowed(likelihood, size, support, values)
    return values


@np.errstate(all="ignore")
def _check_allowed(likelihood: Likelihood, size: int, support: Support, covariates: np.ndarray) -> None:
    """Raise ValueError if covariates index entries out of range, or make a coefficient infinite or NaN."""
    formula, first = likelihood.formula(size), support.num_columns - support.num_covariates
    y = np.column_stack([np.ones(len(covariates)), support.others(covariates)])
    env = likelihood.at(y, np.zeros((len(y), size)))

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


class Nodes(DoublePrecision, Picklable, ABC):
    """Nodes and weights for integrals over each row's latents, by a ``rule`` at several ``levels`` of refinement.

    Levels are numbers of nodes. ``values`` has the likelihood parameters that differ between nodes.
    """

    values: Mapping[str, Any] = MappingProxyType({})

    num_rows: int
    num_latents: int
    rule: str
    levels: tuple[int, ...]

    @abstractmethod
    def at(self, rows: Rows, level: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the latent values (nodes, rows, latents) and log weights (nodes,) at a level of refinement."""

    @abstractmethod
    def draw(self, num_draws: int, rng: np.random.Generator) -> tuple[np.ndarray, Mapping[str, Any]]:
        """Return latents (num_draws, rows, latents), independent across rows, with their likelihood parameters."""


class GaussianNodes(Nodes):
    """Nodes of Gaussian latents: Gauss-Hermite for one standardised direction, scrambled Sobol points for several."""

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
    def are_independent(self) -> bool:
        """Whether the latents of each row are independent."""
        covariance, rounding = self.covariances(slice(None)), 1e-9
        diagonal = np.einsum("mll->ml", covariance)
        between = np.abs(covariance - diagonal[:, :, None] * np.eye(self.num_latents))
        return bool(np.all(between**2 <= rounding**2 * diagonal[:, :, None] * diagonal[:, None, :]))

    @abstractmethod
    def place(self, rows: Rows, standard: np.ndarray) -> np.ndarray:
        """Return the latents (nodes, rows, latents) of standard coordinates (nodes, rows or 1, directions)."""

    @abstractmethod
    def covariances(self, rows: Rows) -> np.ndarray:
        """Return the covariances (rows, latents, latents) along the directions that the likelihood reads."""

    def at(self, rows: Rows, level: int) -> tuple[np.ndarray, np.ndarray]:
        standard, weights = normal_nodes(self.num_directions, level)
        # Weights in the tails underflow to zero, and their logarithm to minus infinity.
        with np.errstate(divide="ignore"):
            return self.place(rows, standard[:, None, :]), np.log(weights)

    def draw(self, num_draws: int, rng: np.random.Generator) -> tuple[np.ndarray, Mapping[str, Any]]:
        return self.place(slice(None), rng.standard_normal((num_draws, self.num_rows, self.num_directions))), {}


class IndependentNodes(GaussianNodes):
    """Nodes of independent latents with the given means and variances (m, latents)."""

    # True also if a variance is invalid, NaN.
    are_independent = True

    def __init__(self, mean: np.ndarray, variance: np.ndarray):
        super().__init__(mean, mean.shape[1])
        self.scale = np.sqrt(variance)

    def covariances(self, rows: Rows) -> np.ndarray:
        return self.scale[rows, :, None] ** 2 * np.eye(self.num_latents)

    def place(self, rows: Rows, standard: np.ndarray) -> np.ndarray:
        return self.mean[rows] + self.scale[rows] * standard


class PredictorNodes(GaussianNodes):
    """Nodes of correlated latents, mean (m, latents) and covariance (m, latents, latents), in the directions Φ f.

    The likelihood depends on f only through Φ f, ``Phi`` (m, predictors, latents). The integral over f is therefore an
    integral over f = m + V Φᵀ (Φ V Φᵀ)^-1/2 u with a standard normal u (predictors,). By default, the predictors are
    the latents.
    """

    def __init__(self, mean: np.ndarray, covariance: np.ndarray, Phi: np.ndarray | None = None):
        Phi = np.broadcast_to(np.eye(mean.shape[1]), covariance.shape) if Phi is None else Phi
        super().__init__(mean, Phi.shape[1])
        across = np.einsum("mlk,mpk->mlp", covariance, Phi)
        values, vectors = np.linalg.eigh(np.einsum("mpl,mlq->mpq", Phi, across))
        # Directions without variance are dropped; constant or linearly dependent predictors have such directions.
        known = values > 1e-14 * values.max(axis=1, keepdims=True)
        scale = np.where(known, np.where(known, values, 1.0) ** -0.5, 0.0)
        self.half = np.einsum("mlp,mpq->mlq", across, vectors * scale[:, None, :])

    def covariances(self, rows: Rows) -> np.ndarray:
        return np.einsum("mlp,mkp->mlk", self.half[rows], self.half[rows])

    def place(self, rows: Rows, standard: np.ndarray) -> np.ndarray:
        standard = np.broadcast_to(standard, (len(standard), len(self.mean[rows]), self.num_directions))
        return self.mean[rows] + np.einsum("mlp,smp->sml", self.half[rows], standard)


class CopulaNodes(GaussianNodes):
    """Nodes of predictors with any marginals, joined by a Gaussian copula; latents are linear in the predictors.

    ``marginals`` are the densities of the predictors Φ f (m, P), by default of the latents. ``mean`` (m, L) and
    ``covariance`` (m, L, L) are moments of the latents; the copula has their correlations.
    """

    is_gaussian = False

    def __init__(self, marginals: GridDensity, mean: np.ndarray, covariance: np.ndarray, Phi: np.ndarray | None = None):
        Phi = np.broadcast_to(np.eye(mean.shape[1]), covariance.shape) if Phi is None else Phi
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

    def covariances(self, rows: Rows) -> np.ndarray:
        half = self.gain[rows] @ (np.sqrt(self.marginals.variance[rows])[:, :, None] * self.root[rows])
        return half @ np.swapaxes(half, 1, 2)

    def place(self, rows: Rows, standard: np.ndarray) -> np.ndarray:
        root = self.root[rows]
        standard = np.broadcast_to(standard, (len(standard), len(root), self.num_directions))
        z = self.marginals.transport(np.einsum("mpq,smq->smp", root, standard), rows)
        return self.mean[rows] + np.einsum("mlp,smp->sml", self.gain[rows], z - self.centre[rows])


class DrawNodes(Nodes):
    """Nodes that are draws of the latents, (draws, m, latents), with equal weights.

    ``values`` has draws of sampled likelihood parameters, (draws, 1, entries) each.
    """

    rule = "draws"

    def __init__(self, draws: np.ndarray, values: Mapping[str, Any] | None = None):
        self.draws, self.values = draws, values or {}
        num_draws, self.num_rows, self.num_latents = draws.shape
        self.levels = (num_draws,)

    def draw(self, num_draws: int, rng: np.random.Generator) -> tuple[np.ndarray, Mapping[str, Any]]:
        chosen = spread_evenly(len(self.draws), num_draws, rng)
        return self.draws[chosen], {name: np.asarray(value)[chosen] for name, value in self.values.items()}

    def at(self, rows: Rows, level: int) -> tuple[np.ndarray, np.ndarray]:
        return self.draws[:, rows], np.full(len(self.draws), -np.log(len(self.draws)))


def spread_evenly(count: int, num_draws: int, rng: np.random.Generator) -> np.ndarray:
    """Return numbers below ``count`` in random order, equally often up to a remainder."""
    return np.concatenate([rng.permutation(count) for _ in range(-(-num_draws // count))])[:num_draws]


# Predictive distributions: integrate the likelihood over the latents, by quadrature or over draws.


class PredictionWarning(PgmodelsWarning):
    """A warning that a prediction is inaccurate: an integral is not resolved, or a density is not normalised."""


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


def _require_normalised(likelihood: Likelihood, size: int, what: str) -> None:
    if is_normalised(likelihood, size) is False:
        raise ValueError(
            f"{what} need a formula that sums to 1 over y, but the formula of {likelihood.name} does not: add the "
            "factors free of f that it leaves out."
        )


class IntegratedLikelihood(DoublePrecision, Picklable):
    """The likelihood of each row integrated over its latents, p(y) = E p(y | f), by ``nodes`` of the latents."""

    # An integral has converged if the log densities of two levels of nodes differ by at most ``converged``. If those at
    # the last two levels differ by more than ``unresolved``, a warning is emitted. The error of the trapezoid rule is
    # at least ten times smaller than the last difference.
    converged = MappingProxyType({"hermite": 1e-7, "trapezoid": 1e-5, "sobol": 1e-3})
    unresolved = MappingProxyType({"hermite": np.inf, "trapezoid": 1e-3, "sobol": 0.05, "draws": np.inf})

    def __init__(self, likelihood: Likelihood, nodes: Nodes):
        self.likelihood, self.nodes = likelihood, nodes

    @cached_property
    def event(self) -> AdditiveNoise | None:
        """The closed form if the formula is affine in one event of Gaussian latents, else None."""
        if not isinstance(self.nodes, GaussianNodes) or not self.nodes.is_gaussian:
            return None
        size = self.nodes.num_latents
        terms = read_event(self.likelihood.formula(size), size, AdditiveNoise)
        return terms if terms is not None and (terms.size == 1 or self.nodes.are_independent) else None

    @property
    def has_random_nodes(self) -> bool:
        """Whether nodes are random points: probabilities of all values then sum to 1 only at the same level."""
        return self.nodes.rule == "sobol" and self.event is None

    def log_density(self, y: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Return log p(y) at ``rows`` of X_new (by default all, in order), refined until two levels agree."""
        nodes = self.nodes
        open_rows = np.arange(len(y))
        rows = open_rows if rows is None else rows
        if isinstance(nodes, GaussianNodes) and self.event is not None:
            return self._in_closed_form(nodes, self.event, y, rows)
        result, gap = self.log_density_at_level(y, rows, nodes.levels[0]), np.zeros(len(y))
        for level in nodes.levels[1:]:
            gap = _refine(result, open_rows, self.log_density_at_level(y[open_rows], rows[open_rows], level))
            still = gap > self.converged[nodes.rule]
            open_rows, gap = open_rows[still], gap[still]
            if not open_rows.size:
                return result
        rule = nodes.rule
        if isinstance(nodes, GaussianNodes) and rule == "hermite":
            rule, gap = "trapezoid", self._integrate_windows(nodes, y[open_rows], rows[open_rows], result, open_rows)
        bad = gap[gap > self.unresolved[rule]]
        if bad.size:
            warn(
                f"the predictive integral is not resolved in {bad.size} rows: log_density still changes by up to "
                f"{bad.max():.1g} with the number of nodes, because the likelihood is narrow compared with the "
                "latents' uncertainty. Check the scale of the likelihood, or average over draws from gibbs.",
                PredictionWarning,
            )
        return result

    def log_probability(self, y: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Return log p(y) of values of a discrete support; random nodes have one level, so that the p sum to 1."""
        if not self.has_random_nodes:
            return self.log_density(y, rows)
        return self.log_density_at_level(y, np.arange(len(y)) if rows is None else rows, self.nodes.levels[1])

    def log_density_of_values(self, y: np.ndarray, level: int) -> np.ndarray:
        """Return log p of several observations of each row, y (values, m) or (values, m, columns), at equal nodes."""
        chunks = self._chunks(self.nodes.num_rows, level, len(y))
        log_p = [log_integral(self.likelihood, y[:, None, at], *self.nodes.at(at, level)) for at in chunks]
        return np.concatenate(log_p, axis=1)[:, : self.nodes.num_rows]

    def moments(
        self, moments_given: Callable[[Rows, np.ndarray], YMoments | None], level: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the mean and the variance of y (m,), from the moments given latents; None if these are None."""
        means, variances = np.empty(self.nodes.num_rows), np.empty(self.nodes.num_rows)
        for rows in self._chunks(self.nodes.num_rows, level):
            f, log_weights = self.nodes.at(rows, level)
            conditional_moments = moments_given(rows, f)
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

    def _in_closed_form(
        self, nodes: GaussianNodes, terms: AdditiveNoise, y: np.ndarray, rows: np.ndarray
    ) -> np.ndarray:
        """log p of the observations y, which belong to ``rows`` of X_new."""
        log_probabilities = []
        for chunk in self._chunks(len(y), 1):
            moments = as_array(nodes.mean[rows[chunk]]), as_array(nodes.covariances(rows[chunk]))
            log_p = _log_marginal(terms, *moments, as_array(y[chunk]), self.likelihood.values)
            log_probabilities.append(np.asarray(log_p))
        return np.concatenate(log_probabilities)[: len(y)]

    def log_density_at_level(self, y: np.ndarray, rows: np.ndarray, level: int) -> np.ndarray:
        """Return log p of the observations y, which belong to ``rows`` of X_new, at one level of nodes."""
        chunks = self._chunks(len(y), level)
        log_p = [log_integral(self.likelihood, y[at], *self.nodes.at(rows[at], level)) for at in chunks]
        return np.concatenate(log_p)[: len(y)]

    def _integrate_windows(
        self, nodes: GaussianNodes, y: np.ndarray, rows: np.ndarray, result: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        """Integrate kinked or narrow integrands on windows about their mass, and return the last changes."""
        levels = (1025, 4097, 16385)
        # At the ends of a window the integrand is exp(-depth) of its peak.
        depth = 32.0
        # The scan is dense at the prior and reaches 4e6 deviations. Each pass narrows the window up to 500 times.
        z = np.repeat(np.sinh(np.linspace(-16.0, 16.0, levels[0]))[:, None], len(rows), axis=1)
        beyond = np.zeros(len(rows), dtype=bool)
        for first_pass in (True, False, False):
            log_p = self._log_integrand(nodes, y, rows, z)
            if first_pass:
                beyond = np.isin(log_p.argmax(axis=0), (0, len(z) - 1))
            inside = log_p > log_p.max(axis=0) - depth
            first, last = inside.argmax(axis=0), len(z) - 1 - inside[::-1].argmax(axis=0)
            columns = np.arange(len(rows))
            low, high = z[np.maximum(first - 1, 0), columns], z[np.minimum(last + 1, len(z) - 1), columns]
            z = _spaced(low, high, len(z))
        gap, active = np.full(len(rows), np.inf), np.arange(len(rows))
        for level in levels:
            z = _spaced(low[active], high[active], level)
            log_p = self._log_integrand(nodes, y[active], rows[active], z)
            current = scipy.special.logsumexp(log_p, axis=0) + np.log(z[1] - z[0])
            gap[active] = _refine(result, places[active], current)
            active = active[gap[active] > self.converged["trapezoid"]]
            if not active.size:
                break
        # The mass lies outside the scanned range.
        gap[beyond] = np.inf
        return gap

    def _log_integrand(self, nodes: GaussianNodes, y: np.ndarray, rows: np.ndarray, z: np.ndarray) -> np.ndarray:
        """log p(y | f) N(z; 0, 1) at the latents of standardised nodes z (nodes, rows)."""
        chunks = self._chunks(len(rows), len(z))
        log_p = [log_density(self.likelihood, y[at], nodes.place(rows[at], z[:, at, None])) for at in chunks]
        return np.concatenate(log_p, axis=1)[:, : len(rows)] - 0.5 * z**2 - 0.5 * np.log(2.0 * np.pi)

    def _chunks(self, count: int, level: int, num_values: int = 1) -> list[np.ndarray]:
        return padded_chunks(np.arange(count), level * max(self.nodes.num_latents, num_values))


@partial(compiled, static_argnames="terms", optimise=False)
def _log_marginal(terms: AdditiveNoise, mean: Array, covariance: Array, y: Array, parameters: Parameters) -> Array:
    if terms.predictors is None:
        return terms.log_marginal(mean, jnp.diagonal(covariance, axis1=1, axis2=2), y, parameters)
    moments = push_moments(terms.predictors.matrix(y, parameters), mean, covariance)
    return terms.log_marginal(*moments, y, parameters)


def _refine(result: np.ndarray, places: np.ndarray, current: np.ndarray) -> np.ndarray:
    """Put finer integrals in their places, and return the changes; equal infinities do not change."""
    with np.errstate(invalid="ignore"):
        gap = np.nan_to_num(np.abs(current - result[places]), nan=0.0, posinf=np.inf)
    result[places] = current
    return gap


def _spaced(low: np.ndarray, high: np.ndarray, count: int) -> np.ndarray:
    return low + (high - low) * np.linspace(0.0, 1.0, count)[:, None]


# The number of observations that are integrated together: 32 MB per array at the finest level.
_TOGETHER = 4096


class Predictive(DoublePrecision, Picklable):
    """The predictive distribution of y at m new inputs, computed on request.

    For censored times, y is the time of the event itself.

    Parameters
    ----------
    likelihood : Likelihood
        The likelihood, with the values of its parameters.
    nodes : Nodes
        Quadrature nodes of the latents at the m inputs.
    covariates : array_like, shape (m, columns - 1), optional
        The columns of y after the first. Without them, each method that depends on them raises ValueError, except
        ``log_density``, which reads them from y_new.
    labels : tuple, optional
        The labels of y in the order of their codes, if the training y had labels.
    """

    def __init__(
        self, likelihood: Likelihood, nodes: Nodes, covariates: ArrayLike | None = None, labels: Labels | None = None
    ):
        self.likelihood, self.nodes, self.labels = likelihood, nodes, labels
        # The likelihood at the nodes: its parameters may be drawn together with the latents.
        self.evaluated_likelihood = likelihood.with_values(nodes.values)
        self.integrated = IntegratedLikelihood(self.evaluated_likelihood, nodes)
        self.support: Support = likelihood.support(nodes.num_latents)
        self.covariates = check_covariates(likelihood, nodes.num_latents, covariates, nodes.num_rows)
        # Covariates are NaN if they were not given.
        unknown = np.full((nodes.num_rows, self.support.num_covariates), np.nan)
        self._given_columns = unknown if self.covariates is None else self.covariates

    @property
    def mean(self) -> np.ndarray:
        """E[y], (m,): the mean of the first column of y given its other columns."""
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
        _require_normalised(self.likelihood, self.nodes.num_latents, "probabilities")
        self._require_columns("probabilities", self.likelihood.function)
        y = [self._observations(value) for value in values]
        if self.integrated.has_random_nodes:
            # At the same nodes, where factors without y are computed once.
            return np.exp(self.integrated.log_density_of_values(np.stack(y), self.nodes.levels[1])).T
        return np.exp(np.stack([self.integrated.log_probability(each) for each in y], axis=1))

    @property
    def mode(self) -> np.ndarray:
        """The most probable value of y, (m,): a label if the training y had labels.

        Raises ValueError if y has no short list of values.
        """
        places = self.probabilities.argmax(axis=1)
        return np.asarray(self.support.values() if self.labels is None else self.labels)[places]

    def log_density(self, y_new: ArrayLike) -> np.ndarray:
        """Return log p(y_new) of each row, the logarithm of the integrated likelihood.

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
        """Return ``log_density`` of observations as numbers; labels are given by their codes."""
        m, columns = self.nodes.num_rows, self.support.num_columns
        expected = (m,) if columns == 1 else (m, columns)
        if y_new.shape != expected:
            raise ValueError(f"y_new must have shape {expected}, a row for each row of X_new; got {y_new.shape}.")
        check_finite(y_new, "y_new")
        self.support.check(y_new)
        if isinstance(self.support, Undeclared) or self.support.num_covariates:
            check_allowed(self.likelihood, self.nodes.num_latents, y_new, "y_new")
        warn_if_unnormalised(self.likelihood, self.nodes.num_latents, "log_density")
        return self.integrated.log_density(y_new)

    def probabilities_of(self, values: ArrayLike) -> np.ndarray:
        """Return P(y = value) of each row for whole numbers: counts, or successes of the trials in covariates.

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
                f"y of {self.likelihood.name} is not declared to be a count, so no value has a probability: use "
                "log_density, or declare the support, as in @pgm.likelihood(support=pgm.Counts())."
            )
        _require_normalised(self.likelihood, self.nodes.num_latents, "probabilities")
        self._require_columns("probabilities", self.likelihood.function)
        wanted, places = np.unique(np.atleast_1d(as_numbers(values, "values")), return_inverse=True)
        m = self.nodes.num_rows
        probabilities = np.zeros((len(wanted), m))
        for group in slices(len(wanted), m, _TOGETHER):
            y = np.concatenate([self._observations(value) for value in wanted[group]])
            there = np.flatnonzero(np.any([piece.holds(y) for piece in self.support.pieces(y)], axis=0))
            if there.size:
                probabilities[group].reshape(-1)[there] = np.exp(self.integrated.log_probability(y[there], there % m))
        return probabilities[places].T

    def survival(self, times: ArrayLike) -> np.ndarray:
        """Return P(y > time) of each row, the probability that the event is later than each time.

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
        _require_normalised(self.likelihood, self.nodes.num_latents, "survival probabilities")
        self._require_columns("survival", self.likelihood.function)
        wanted, places = np.unique(wanted, return_inverse=True)
        m, (later,) = self.nodes.num_rows, np.nonzero(wanted)
        probabilities = np.ones((len(wanted), m))
        for group in slices(len(later), m, _TOGETHER):
            y = np.concatenate([self._beyond(np.full(m, time)) for time in wanted[later[group]]])
            log_p = self.integrated.log_density(y, np.arange(len(y)) % m)
            probabilities[later[group]] = np.exp(log_p).reshape(-1, m)
        return probabilities[places].T

    def draw(self, num_draws: int = 1000, seed: Seed = 0) -> np.ndarray:
        """Return draws of the first column of y given its other columns, independent across rows.

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
        """Return a draw of y for each draw of latents (draws, m, latents) and likelihood parameters, (draws, m)."""
        self._require_columns("draws", self.likelihood.function)
        columns = self._given_columns if self.support.num_covariates else None
        return draw_observations(self.likelihood, f, columns, rng, values)

    def quantiles(self, levels: ArrayLike, num_draws: int = 4000, seed: Seed = 0) -> np.ndarray:
        """Return quantiles of y, estimated from draws.

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
        moments = self.integrated.moments(self._known_moments, levels[-1])
        if moments is not None:
            coarse = self.integrated.moments(self._known_moments, levels[-2]) if len(levels) > 1 else None
            if coarse is not None:
                _warn_unsure(moments, coarse)
            return moments
        values = self.support.values()
        if values is not None:
            mean = self.probabilities @ values
            return mean, np.maximum(self.probabilities @ values**2 - mean**2, 0.0)
        if self.support.beyond(np.ones(self.nodes.num_rows), self._given_columns) is not None:
            _require_normalised(self.likelihood, self.nodes.num_latents, "moments")
            self._require_columns("the mean", self.likelihood.function)
            return self._moments_of_times(levels[-1])
        # By quadrature over y at each node: hundreds of times the cost.
        moments = self.integrated.moments(self.moments_given, levels[0])
        assert moments is not None
        bad = np.isnan(moments).any(axis=0).sum()
        if bad:
            warn(
                f"the mean or the variance of y by {self.likelihood.name} is not resolved in {bad} rows, and NaN: the "
                "tails are so heavy that rare large values dominate it. Use quantiles.",
                PredictionWarning,
            )
        return moments

    def _known_moments(self, rows: Rows, f: np.ndarray) -> YMoments | None:
        """Return ``moments_given`` by formulas of the likelihood; None if it has none."""
        return self.evaluated_likelihood.moments(self._observations(0.0)[rows], f, self.nodes.num_latents)

    def moments_given(self, rows: Rows, f: np.ndarray) -> YMoments:
        """Return the mean and the variance of y given latents (nodes, rows, latents) of some rows, (nodes, rows)."""
        known = self._known_moments(rows, f)
        if known is not None:
            return known
        others = None if self.support.num_columns == 1 else self._observations(0.0)[rows, 1:]
        return expectations(self.likelihood, f, others, self.nodes.values)

    def probabilities_given(self, f: np.ndarray) -> np.ndarray:
        """Return the probability of each value of y given latents (nodes, m, latents), (nodes, m, values)."""
        values = self.support.values()
        assert values is not None
        each = [log_density(self.evaluated_likelihood, self._observations(value), f) for value in values]
        return np.exp(np.stack([np.asarray(part) for part in each], axis=-1))

    def _moments_of_times(self, level: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and variance (possibly infinite) of a time to an event, by trapezoids in its logarithm."""
        num_rows = self.nodes.num_rows

        def log_time_where(least: float) -> np.ndarray:
            """Return the logarithm of the last time with a log survival probability above the least, (m,)."""
            low, high, every = np.full(num_rows, -300.0), np.full(num_rows, 300.0), np.arange(num_rows)
            for _ in range(40):
                middle = 0.5 * (low + high)
                survives = self.integrated.log_density_at_level(self._beyond(np.exp(middle)), every, level) > least
                low, high = np.where(survives, middle, low), np.where(survives, high, middle)
            return 0.5 * (low + high)

        u = _spaced(log_time_where(-1e-9), log_time_where(-100.0), 385)
        step = u[1] - u[0]
        events = np.stack([self._observations(t) for t in np.exp(u)])
        log_p = self.integrated.log_density_of_values(events, level) + u
        moments = []
        for power in (1, 2):
            term = log_p + power * u
            slope = (term[-1] - term[-2]) / step
            # A tail that does not fall has no moment.
            falls = slope < -1e-6
            rest = np.where(falls, term[-1] - np.log(np.expm1(np.where(falls, -slope, 1.0) * step)), np.inf)
            with np.errstate(over="ignore"):
                moments.append(np.exp(np.logaddexp(scipy.special.logsumexp(term, axis=0), rest) + np.log(step)))
        mean, square = moments
        finite = np.isfinite(square)
        return mean, np.where(finite, square - np.where(finite, mean, 0.0) ** 2, np.inf)

    def _observations(self, first: ArrayLike) -> np.ndarray:
        """Return y with one value, or one value per row, in its first column; missing covariates are NaN."""
        first = np.broadcast_to(first, (self.nodes.num_rows,))
        if self.support.num_columns == 1:
            return np.array(first)
        return np.column_stack([first, self.support.others(self._given_columns)])

    def _beyond(self, first: np.ndarray) -> np.ndarray:
        """Return observations which state that the event is later than these times."""
        y = self.support.beyond(first, self._given_columns)
        if y is None:
            raise ValueError(
                f"y of {self.likelihood.name} is not declared to be a time that may be censored, so its formula has no "
                "survival function: use quantiles, draw or probabilities_of, or write the formula of times and events, "
                "as in @pgm.likelihood(support=pgm.Censored())."
            )
        return y

    def _require_columns(self, what: str, *formulas: Formula | None) -> None:
        observed = range(self.support.num_columns - self.support.num_covariates)
        missing = sorted(self.likelihood.columns(self.nodes.num_latents, *formulas) - set(observed))
        if self.covariates is None and missing:
            raise ValueError(
                f"{what} of y by {self.likelihood.name} depends on {' and '.join(f'y[{j}]' for j in missing)}, which "
                f"was not given: pass the columns of y from y[{len(observed)}] on as covariates=, of shape "
                f"({self.nodes.num_rows}, {self.support.num_covariates}), or as one row for a figure."
            )


def _warn_unsure(moments: tuple[np.ndarray, np.ndarray], coarse: tuple[np.ndarray, np.ndarray]) -> None:
    """Warn of rows whose moments still change with the number of nodes."""
    (mean, variance), (other, less) = moments, coarse
    with np.errstate(over="ignore", invalid="ignore"):
        gap = np.maximum(np.abs(variance - less), (mean - other) ** 2) / np.maximum(variance, np.finfo(float).tiny)
    # The error is about six times smaller than the difference of two levels.
    bad = gap[gap > 0.05]
    if bad.size:
        warn(
            f"the mean and the variance of y are not resolved in {bad.size} rows: the variance still changes by up "
            f"to {100.0 * bad.max():.2g} % with the number of nodes, because rare large values of uncertain latents "
            "dominate it. Use quantiles, or average over draws from gibbs.",
            PredictionWarning,
        )
