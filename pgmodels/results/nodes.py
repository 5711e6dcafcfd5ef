"""Nodes for integrals over the latents at new inputs: quadrature of a Gaussian, or a sampler's draws."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from pgmodels.numerics.quadrature import normal_nodes
from pgmodels.results.grid_density import GridDensity
from pgmodels.runtime.pickling import Picklable
from pgmodels.runtime.x64 import DoublePrecision

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
