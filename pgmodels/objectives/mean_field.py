"""The expected log density with the predictors of a datum independent under q."""

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np

from pgmodels.numerics.quadrature import gauss_hermite, sobol_normals
from pgmodels.numerics.safe_sqrt import safe_sqrt
from pgmodels.objectives.base import Objective
from pgmodels.objectives.expected import Quadrature, finite_slopes, mask_undefined
from pgmodels.runtime.x64 import as_array

# Gauss-Hermite nodes per dimension for two predictors, and points for more. With logistic-softmax and softmax terms of
# 3 to 10 classes, deviations of .3 to 4, terms of 256 points err by .0005 to .016 nats and their mean by .0001 to .005;
# with 64 points four times as much.
_HERMITE, _POINTS = 16, 256


class MeanField(Quadrature):
    """B = E log p(y | f) under independent predictors N(m, v) of a datum, several per datum.

    Precisions have any sign. Two predictors: a grid of 16 Gauss-Hermite nodes per dimension; more: 256 Sobol points
    (four times the predictors beyond 64), antithetic and standardised: polynomials up to degree three are exact.
    """

    name = "mean_field"
    title = "the expected log density of independent latents"
    method = "The mean-field variational Gaussian"
    takes_covariances = False
    num_nodes = _POINTS

    def stochastic(self) -> Objective:
        """The minibatch rule of ``Quadrature``, whose predictors are independent there too."""
        return Quadrature(self.formula, self.size, self.predictors).stochastic()

    def local_bound_and_sites(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        return self.local_bound_sites_and_coupling(m, v, y, parameters)[:3]

    def local_bound_sites_and_coupling(
        self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]
    ) -> tuple[Any, Any, Any, Any]:
        """Second derivatives by Stein's identity, E x_q ∂_p log p(y | m + half x) / half_q."""
        values, slopes, moments = self._slopes(m, v, y, parameters)
        half = safe_sqrt(v)[:, None, :]
        # As the derivative of a root, it is 0 where there is no variance.
        bends = jnp.where(half > 0.0, moments / jnp.where(half > 0.0, half, 1.0), 0.0)
        w = -jnp.diagonal(bends, axis1=1, axis2=2)
        coupling = -0.5 * (bends + jnp.swapaxes(bends, 1, 2)) * (1.0 - jnp.eye(self.size))
        return values, slopes + w * m, w, coupling

    def _slopes(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """B (n,), its derivatives in the means, (n, P), and E x_q ∂_p log p(y | m + half x), (n, P, P).

        The derivative of the sum over nodes in the deviation of p is the entry (p, p).
        """
        half = safe_sqrt(v)

        def summed(nodes: Any, weights: Any) -> tuple[Any, Any, Any]:
            values, slopes, finite = finite_slopes(self, m + half * nodes, y, parameters)
            slopes, undefined = weights[:, None, None] * slopes, jnp.where(finite, 0.0, weights[:, None])
            bounds = jnp.stack([weights @ values, jnp.sum(undefined, axis=0)])
            return bounds, jnp.sum(slopes, axis=0), jnp.einsum("sip,sq->ipq", slopes, nodes[:, 0, :])

        bounds, slopes, moments = self._over_nodes(summed, *self._rule(len(m)), half.size)
        return mask_undefined(bounds), slopes, moments

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
    # The points and their opposites must span all dimensions.
    count = max(_POINTS, 4 * 2 ** math.ceil(math.log2(size)))
    half = sobol_normals(size, count // 2)
    nodes = np.concatenate([half, -half])
    # Sobol points are correlated, most of all in many dimensions.
    root = np.linalg.cholesky(nodes.T @ nodes / count)
    return np.linalg.solve(root, nodes.T).T, np.full(count, 1.0 / count)
