"""The bound of a softmax by Gumbel noise in place of the largest latent's."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from pgmodels.objectives.base import Objective
from pgmodels.runtime.x64 import as_array


class Gumbel(Objective):
    """B = -log(1 + Σ_{c != y} E exp(f_c - f_y)) <= E log softmax(f)_y, by Jensen's inequality.

    With E exp(f_c - f_y) = exp(m_c - m_y + (V_cc + V_yy - 2 V_cy) / 2) for a datum's class y. It is concave in m and V,
    so that the ELBO has one optimum. It is loose for large variances: with two classes of equal means and variances 9
    and 0, it is -4.5 for an expected log density of -1.4.

    Source: Liu et al. 2019, equations 20 to 26 (GPCsm), where the latents are independent, V_cy = 0.
    """

    name = "gumbel"
    title = "the Gumbel bound"
    method = "Variational inference with Gumbel noise"
    takes_covariances = True

    def __init__(self, size: int):
        self.size = size

    def __hash__(self) -> int:
        return hash((type(self), self.size))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gumbel) and self.size == other.size

    def local_bound(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        """See Objective; ``v`` may be covariances (n, P, P)."""
        chosen = as_array(y)[:, None] == jnp.arange(self.size)
        V = jax.vmap(jnp.diag)(v) if v.ndim == 2 else v
        # Differences f_c - f_y; 0 for c = y.
        difference = jnp.eye(self.size) - chosen[:, None, :]
        mean = jnp.einsum("icj,ij->ic", difference, m)
        variance = jnp.einsum("icj,ijk,ick->ic", difference, V, difference)
        return -jax.nn.logsumexp(mean + 0.5 * variance, axis=1)
