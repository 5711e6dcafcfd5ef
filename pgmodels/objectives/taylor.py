"""The expansion of a smooth log density to second order about q's mean: Laplace's approximation at fixed values."""

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from pgmodels.likelihoods.expression import Expression
from pgmodels.objectives.formula import FormulaObjective
from pgmodels.runtime.x64 import as_array

if TYPE_CHECKING:
    from pgmodels.augmentation.predictors import Predictors


class Taylor(FormulaObjective):
    """B = log p(y | m) + tr(H V) / 2, H the Hessian of log p(y | f) at q's mean m, for any formula without kinks.

    Its sites are the derivatives of log p(y | f) at m, h = g - H m and w = -H, and not those of B: the fixed point is
    the mode of the posterior with the curvature there, and the sum of terms less KL is Laplace's evidence, which is no
    bound. Steps are accepted if they raise the log posterior density at m. Precisions have any sign.

    Source: Izmailov and Kropotov 2017, section 4.2 (vi-Taylor), where one latent is read; Rasmussen and Williams 2006,
    algorithms 3.1 and 3.3.
    """

    name = "taylor"
    title = "Laplace's evidence"
    method = "Laplace's approximation"
    is_bound = False
    is_maximised = False
    signed = True

    def __init__(self, formula: Expression, size: int, predictors: "Predictors | None" = None):
        self.formula, self.size, self.predictors = formula, size, predictors
        self.takes_covariances = size > 1

    @property
    def _identity(self) -> Hashable:
        return type(self), self.formula.key, self.size

    def __hash__(self) -> int:
        return hash(self._identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Taylor) and self._identity == other._identity

    def _expanded(self, m: Any, y: Any, parameters: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """log p(y | m) of each datum (n,), its gradient (n, P) and Hessian (n, P, P)."""

        def at(m_i: Any, y_i: Any) -> Any:
            return self.predictor_log_density(y_i[None], m_i[None], parameters)[0]

        def datum(m_i: Any, y_i: Any) -> tuple[Any, Any, Any]:
            return *jax.value_and_grad(at)(m_i, y_i), jax.hessian(at)(m_i, y_i)

        return jax.vmap(datum)(m, as_array(y))

    def local_bound(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        """``v`` may be covariances (n, P, P)."""
        return self.local_bound_and_sites(m, v, y, parameters)[0]

    def local_sites(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> tuple[Any, Any]:
        """If ``v`` are covariances, precisions are (n, P, P)."""
        return self.local_bound_and_sites(m, v, y, parameters)[1:]

    def local_bound_and_sites(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """The sites are derivatives of the log density."""
        value, gradient, H = self._expanded(m, y, parameters)
        if v.ndim == 2:
            curvature = jnp.diagonal(H, axis1=1, axis2=2)
            return value + 0.5 * jnp.sum(curvature * v, axis=1), gradient - curvature * m, -curvature
        bound = value + 0.5 * jnp.einsum("ipq,ipq->i", H, v)
        return bound, gradient - jnp.einsum("ipq,iq->ip", H, m), -H
