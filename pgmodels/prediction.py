"""Predictive distributions: integrate the likelihood over the latents, by quadrature or over draws."""

import warnings
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp, ndtri, roots_hermitenorm
from scipy.stats import qmc

from pgmodels.formulas import Environment
from pgmodels.likelihood import Likelihood, is_normalised
from pgmodels.precision import double_precision
from pgmodels.supports import Support

# Values of (nodes, rows, latents) evaluated at a time: about 32 MB an intermediate array.
_CHUNK = 4_000_000


class PredictionWarning(UserWarning):
    """A prediction is less than it seems: an integral is not resolved, or a density is not normalised."""


class Nodes(ABC):
    """Points and weights that integrate over the latents of each row."""

    num_rows: int
    num_latents: int
    levels: tuple[int, ...]

    @abstractmethod
    def at(self, rows: slice, level: int) -> tuple[np.ndarray, np.ndarray]:
        """Latent values (nodes, rows, latents) and log weights (nodes,) at a level of refinement."""


class GaussianNodes(Nodes):
    """Independent Gaussian marginals (m, latents): Gauss-Hermite for one latent, scrambled Sobol for several."""

    def __init__(self, mean: np.ndarray, variance: np.ndarray):
        self.mean, self.scale = mean, np.sqrt(variance)
        self.num_rows, self.num_latents = mean.shape
        # Refined until two levels agree; Sobol points are not refined, their error is that of 4,096 points.
        self.levels = (32, 64, 128, 256, 512, 1024) if self.num_latents == 1 else (4096,)

    def at(self, rows: slice, level: int) -> tuple[np.ndarray, np.ndarray]:
        if self.num_latents == 1:
            nodes, weights = roots_hermitenorm(level)
            # Weights far out underflow to zero; their logarithm then drops them.
            with np.errstate(divide="ignore"):
                log_weights = np.log(weights) - 0.5 * np.log(2.0 * np.pi)
            standard = nodes[:, None]
        else:
            standard = ndtri(qmc.Sobol(self.num_latents, seed=0).random(level))
            log_weights = np.full(level, -np.log(level))
        return self.mean[rows] + self.scale[rows] * standard[:, None, :], log_weights


class DrawNodes(Nodes):
    """Draws of the latents, (draws, m, latents), all of one weight."""

    levels = (0,)

    def __init__(self, draws: np.ndarray):
        self.draws = draws
        _, self.num_rows, self.num_latents = draws.shape

    def at(self, rows: slice, level: int) -> tuple[np.ndarray, np.ndarray]:
        return self.draws[:, rows], np.full(len(self.draws), -np.log(len(self.draws)))


class Predictive:
    """The predictive distribution of y at m new inputs; what it gives is computed when asked for."""

    def __init__(self, likelihood: Likelihood, nodes: Nodes, covariates: Any = None):
        self.likelihood, self.nodes = likelihood, nodes
        self.support: Support = likelihood.support(nodes.num_latents)
        self.covariates = self._check_covariates(covariates)

    @property
    def mean(self) -> np.ndarray:
        """E[y], (m,). Of the first column of y where it has several, given the others."""
        return self._moments[0]

    @property
    def variance(self) -> np.ndarray:
        """Var[y], (m,)."""
        return self._moments[1]

    @cached_property
    @double_precision
    def probabilities(self) -> np.ndarray:
        """The probability of each value of y, (m, values), in the order of ``support.values()``.

        Raises ValueError where y has no short list of values.
        """
        values = self.support.values()
        if values is None:
            raise ValueError(
                f"{self.likelihood.name} has no finite list of values of y to give probabilities for; use mean, "
                "variance and log_density. A formula of one's own declares its support: "
                "@pgm.likelihood(support=pgm.Binary())."
            )
        self._require_normalised("probabilities")
        columns = [np.exp(self._log_density(np.full(self.nodes.num_rows, value))) for value in values]
        return np.stack(columns, axis=1)

    @double_precision
    def log_density(self, y_new: Any) -> np.ndarray:
        """log p(y_new) of each row, (m,): the logarithm of the integrated likelihood.

        Warns with PredictionWarning where the formula is not known to be normalised in y.
        """
        y_new = np.asarray(y_new, dtype=np.float64)
        expected = (
            (self.nodes.num_rows,) if self.support.num_columns == 1 else (self.nodes.num_rows, self.support.num_columns)
        )
        if y_new.shape != expected:
            raise ValueError(f"y_new must have shape {expected}, a row for each of X_new; got {y_new.shape}.")
        if not np.isfinite(y_new).all():
            raise ValueError(f"y_new must be finite; got {y_new[~np.isfinite(y_new)][0]}.")
        self.support.check(y_new)
        if is_normalised(self.likelihood, self.nodes.num_latents) is not True:
            warnings.warn(
                f"{self.likelihood.name} is not known to be a normalised density of y, so log_density leaves out a "
                "factor free of f. Write the formula with its constants and declare its support.",
                PredictionWarning,
                stacklevel=3,
            )
        return self._log_density(y_new)

    @cached_property
    @double_precision
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        y = self._observations(np.zeros(self.nodes.num_rows))
        if self.likelihood.conditional_mean is None or self.likelihood.conditional_variance is None:
            values = self.support.values()
            if values is None:
                raise ValueError(
                    f"{self.likelihood.name} gives no mean of y: declare it with "
                    "@pgm.likelihood(mean=lambda y, f: ..., variance=lambda y, f: ...), or a support with few values."
                )
            mean = self.probabilities @ values
            return mean, np.maximum(self.probabilities @ values**2 - mean**2, 0.0)

        def integrate(level: int) -> tuple[np.ndarray, np.ndarray]:
            means, variances = np.empty(self.nodes.num_rows), np.empty(self.nodes.num_rows)
            for rows in self._chunks(level):
                f, log_weights = self.nodes.at(rows, level)
                given = self.likelihood.moments(jnp.asarray(y[rows]), jnp.asarray(f), self.nodes.num_latents)
                mean_f, variance_f = (np.asarray(part) for part in given)
                weights = np.exp(log_weights)[:, None]
                means[rows] = (weights * mean_f).sum(axis=0)
                spread = (weights * (mean_f - means[rows]) ** 2).sum(axis=0)
                variances[rows] = (weights * variance_f).sum(axis=0) + spread
            return means, variances

        return integrate(self.nodes.levels[min(2, len(self.nodes.levels) - 1)])

    def _log_density(self, y: np.ndarray) -> np.ndarray:
        levels = self.nodes.levels
        previous = self._integrate(y, levels[0])
        for level in levels[1:]:
            current = self._integrate(y, level)
            gap = np.max(np.abs(current - previous))
            if gap < 1e-7:
                return current
            previous = current
        if len(levels) > 1:
            warnings.warn(
                f"the predictive integral is resolved to {gap:.1g} only with {levels[-1]} nodes: the likelihood is "
                "very narrow compared with the latent uncertainty.",
                PredictionWarning,
                stacklevel=4,
            )
        return previous

    def _integrate(self, y: np.ndarray, level: int) -> np.ndarray:
        formula = self.likelihood.formula(self.nodes.num_latents)
        total = np.empty(self.nodes.num_rows)
        for rows in self._chunks(level):
            f, log_weights = self.nodes.at(rows, level)
            env = Environment(jnp.asarray(y[rows]), jnp.asarray(f), self.likelihood.values)
            log_p = np.asarray(formula.log_evaluate(env)[..., 0])
            total[rows] = logsumexp(log_p + log_weights[:, None], axis=0)
        return total

    def _chunks(self, level: int) -> list[slice]:
        nodes = max(level, 1) if not isinstance(self.nodes, DrawNodes) else len(self.nodes.draws)
        step = max(1, _CHUNK // (nodes * self.nodes.num_latents))
        return [slice(start, start + step) for start in range(0, self.nodes.num_rows, step)]

    def _observations(self, first: np.ndarray) -> np.ndarray:
        return first if self.support.num_columns == 1 else np.column_stack([first, self.covariates])

    def _check_covariates(self, covariates: Any) -> np.ndarray | None:
        rows, columns = self.nodes.num_rows, self.support.num_columns - 1
        if columns == 0:
            if covariates is not None:
                raise ValueError(f"covariates: y of {self.likelihood.name} has one column; leave covariates out.")
            return None
        given = np.ones((rows, columns)) if covariates is None else np.asarray(covariates, dtype=np.float64)
        if given.shape == (rows,) and columns == 1:
            given = given[:, None]
        if given.shape != (rows, columns):
            raise ValueError(
                f"covariates must have shape ({rows}, {columns}), the columns of y after the first; got {given.shape}."
            )
        return given

    def _require_normalised(self, what: str) -> None:
        if is_normalised(self.likelihood, self.nodes.num_latents) is False:
            raise ValueError(
                f"{what} need a formula that sums to 1 over y, and {self.likelihood.name} does not: write it with the "
                "factors free of f that it leaves out."
            )
