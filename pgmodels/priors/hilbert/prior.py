"""The prior of weighted basis functions at the data."""

from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from pgmodels.priors import linalg as algebra
from pgmodels.priors.hilbert.basis import TruncatedKernel
from pgmodels.priors.low_rank import LowRankState, SpanPrior
from pgmodels.priors.padding import pad_rows
from pgmodels.runtime.x64 import as_array


class HilbertPrior(SpanPrior):
    """f = mean + A^T v with A = diag(``scale``) ``functions``, exactly: the covariance is that of ``kernel``.

    The precision P = I + S (Phi W Phi^T) S and the log normaliser depend on the hyperparameters through S alone. At
    fixed sites, the products over the rows do not change with them.
    """

    can_pad: ClassVar[bool] = True
    has_cheap_products: ClassVar[bool] = True

    kernel: TruncatedKernel
    mean: Float[Array, ""]
    X: Float[Array, "n d"]
    functions: Float[Array, "r n"]
    scale: Float[Array, " r"]
    size: int = eqx.field(static=True)

    @property
    def rank(self) -> int:
        """The number of basis functions."""
        return len(self.scale)

    @property
    def factor(self) -> Float[Array, "r n"]:
        """See FactoredPrior."""
        return self.scale[:, None] * self.functions

    def factor_at(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "r m"], Float[Array, " m"]]:
        """See FactoredPrior: without a residual."""
        return self.kernel.factor(X_new), jnp.zeros(len(X_new), self.scale.dtype)

    def truncated_shares(self) -> Float[Array, " n"]:
        """See LatentPrior."""
        return 1.0 - self._diagonal() / self.kernel.kernel.diagonal(self.X)

    def resized(self, size: int) -> "HilbertPrior":
        """See LatentPrior."""
        functions = as_array(pad_rows(self.functions.T, size).T)
        return replace(self, X=as_array(pad_rows(self.X, size)), functions=functions)

    def _condition(self, h: Array, w: Array) -> Any:
        scaled = self.functions * jnp.sqrt(w)
        root = algebra.root_of_one_plus(self.scale[:, None] * (scaled @ scaled.T) * self.scale)
        return LowRankState(root, cho_solve((root, True), self.scale * (self.functions @ h)))

    def _log_normalizer(self, state: Any, h: Array) -> Array:
        pulled = self.scale * (self.functions @ h)
        return 0.5 * pulled @ state.centre - jnp.sum(jnp.log(jnp.diagonal(state.root)))
