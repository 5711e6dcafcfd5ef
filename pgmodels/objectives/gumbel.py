"""The bound of a softmax by Gumbel noise in place of the largest latent's."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from pgmodels.objectives.base import Objective
from pgmodels.objectives.tangent import Tangent
from pgmodels.runtime.x64 import as_array


class Gumbel(Objective):
    """B = -log(1 + Σ_{c != y} E exp(f_c - f_y)) <= E log softmax(f)_y, by Jensen's inequality.

    The latents are independent under q: E exp(f_c - f_y) = exp(m_c - m_y + (v_c + v_y) / 2) for a datum's class y. It
    is concave in m and v, so that the ELBO has one optimum. It is loose for large variances: with two classes of equal
    means and variances 9 and 0, it is -4.5 for an expected log density of -1.4.

    Source: Liu et al. 2019, equations 20 to 26 (GPCsm).
    """

    name = "gumbel"
    title = "the Gumbel bound"
    method = "Variational inference with Gumbel noise"

    def __init__(self, size: int):
        self.size = size

    def __hash__(self) -> int:
        return hash((type(self), self.size))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gumbel) and self.size == other.size

    def local_bound(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        chosen = _is_class(y, jnp.arange(self.size))

        def of_class(values: Any) -> Any:
            return jnp.sum(jnp.where(chosen, values, 0.0), axis=1, keepdims=True)

        # log E exp(f_c - f_y); 0 for c = y.
        logs = jnp.where(chosen, 0.0, m - of_class(m) + 0.5 * (v + of_class(v)))
        return -jax.nn.logsumexp(logs, axis=1)

    def tangent(self) -> "GumbelTangent":
        return GumbelTangent(self.size)


class GumbelTangent(Tangent):
    """The tangent of the Gumbel bound, B = m_y - v_y / 2 - log S.

    S has the term S_y = exp(m_y - v_y / 2) of a datum's class, exp(m_c + v_c / 2) of another. With P = Σ_{c != y} E
    exp(f_c - f_y) the tangent has the value of Liu et al. 2019, equation 24, -(1 + P) / θ - log θ + 1, at θ = S0 / S_y.
    They hold θ when latents move. Here S0 is fixed, so that no term couples two latents, and sites need no estimate of
    P: precisions are S_c / S0, and 1 - S_y / S0 of the class, negative if S0 < S_y, where S0 = S_y is a better bound.
    """

    def __init__(self, size: int):
        self.size = size

    def __hash__(self) -> int:
        return hash((type(self), self.size))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GumbelTangent) and self.size == other.size

    def selected(self, y: Any, parameters: Mapping[str, Any]) -> tuple[Any, Any]:
        chosen = as_array(y)[:, None].astype(int)
        return chosen, jnp.ones(chosen.shape)

    def constant(self, y: Any, parameters: Mapping[str, Any]) -> Any:
        return jnp.zeros(len(y))

    def log_sums(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any], latents: Any) -> Any:
        return m + jnp.where(_is_class(y, latents), -0.5, 0.5) * v

    def terms(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any], latents: Any, log_scale: Any) -> Any:
        logs = self.log_sums(m, v, y, parameters, latents)
        return jnp.where(_is_class(y, latents), logs, 0.0) - jnp.exp(logs - log_scale[:, None])

    def rest(self, y: Any, parameters: Mapping[str, Any], log_scale: Any) -> Any:
        return 1.0 - log_scale


def _is_class(y: Any, latents: Any) -> Any:
    """Whether latents are those of the data's classes, (n, latents)."""
    return as_array(y)[:, None] == latents
