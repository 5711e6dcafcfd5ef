"""The expected log density with the predictors of a datum independent under q."""

from functools import cache
from typing import Any

import numpy as np

from pgmodels.numerics.quadrature import gauss_hermite, sobol_normals
from pgmodels.objectives.base import Objective
from pgmodels.objectives.expected import Quadrature
from pgmodels.runtime.x64 import as_array

# Gauss-Hermite nodes per dimension for two predictors, and points for more. With logistic-softmax and softmax terms of
# 3 to 10 classes, deviations of .3 to 4, terms of 256 points err by .0005 to .016 nats and their mean by .0001 to .005;
# with 64 points four times as much.
_HERMITE, _POINTS = 16, 256


class MeanField(Quadrature):
    """B = E log p(y | f) under independent predictors N(m, v) of a datum, several per datum.

    Precisions have any sign. Two predictors: a grid of 16 Gauss-Hermite nodes per dimension; more: 256 Sobol points,
    antithetic and standardised, so that polynomials up to degree three are exact.
    """

    name = "mean_field"
    title = "the expected log density of independent latents"
    method = "The mean-field variational Gaussian"
    takes_covariances = False
    num_nodes = _POINTS

    def stochastic(self) -> Objective:
        """See Objective: the minibatch rule of ``Quadrature``, whose predictors are independent there too."""
        return Quadrature(self.formula, self.size, self.predictors).stochastic()

    def _rule(self, count: int) -> tuple[Any, Any]:
        nodes, weights = (as_array(part) for part in _nodes(self.size))
        return nodes[:, None, :], weights


@cache
def _nodes(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (nodes, size) and weights (nodes,) of a standard normal."""
    if size == 2:
        line, weights = gauss_hermite(_HERMITE)
        grid = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
        return grid, np.outer(weights, weights).ravel() / weights.sum() ** 2
    half = sobol_normals(size, _POINTS // 2)
    nodes = np.concatenate([half, -half])
    # Sobol points are correlated, most of all in many dimensions.
    root = np.linalg.cholesky(nodes.T @ nodes / _POINTS)
    return np.linalg.solve(root, nodes.T).T, np.full(_POINTS, 1.0 / _POINTS)
