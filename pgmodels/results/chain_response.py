"""Linear response by scans over Markov chains: corrected marginals, without a joint covariance."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from pgmodels.priors import chain_response
from pgmodels.priors.chain_blocks import Layout
from pgmodels.priors.chain_response import ChainResponse, Factors
from pgmodels.priors.padding import pad_rows, pad_zeros
from pgmodels.priors.posterior import Marginals
from pgmodels.results.approximation import ResponseApproximation
from pgmodels.results.correction import mixing
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import as_array


@dataclass(eq=False, kw_only=True, repr=False)
class ChainCorrection(ResponseApproximation):
    """Linear response of latents that are Markov processes, in O(n), without a covariance between rows.

    ``factors`` (n, S, S) and ``slope`` (n,) are what responds at each row, see pgmodels.priors.chain_response.
    """

    factors: Float[np.ndarray, "n s s"]
    slope: Float[np.ndarray, " n"] | None

    @cached_property
    def response(self) -> ChainResponse:
        """The response at the data and at new inputs."""
        size = self.posterior.prior.num_rows
        Phi = mixing(self.model, pad_rows(self.y, size))
        slope = None if self.slope is None else as_array(pad_zeros(self.slope, size))
        factors = Factors(as_array(pad_zeros(self.factors, size)), slope, Phi[0] if Phi else None)
        return respond(self.posterior, factors, Layout.of(self.posterior.prior, self.posterior.is_coupled))

    @property
    def _num_across(self) -> int:
        # Some eight matrices over all states and their products.
        layout = self.response.layout
        return 8 * (len(layout.blocks) * layout.joint_size) ** 2

    def _moments_at(self, inputs: Array) -> tuple[Any, Any]:
        mean, _ = super()._moments_at(inputs)
        shift, covariance = (np.asarray(part) for part in _predicted(self.response, inputs))
        return np.asarray(mean) + shift, covariance if covariance.shape[1] > 1 else covariance[:, :, 0]

    def _drawn_at(self, X_new: ArrayLike, num_draws: int, seed: int) -> NoReturn:
        raise ValueError(
            "draw_latents: linear response by scans corrects the covariance of each row, without one between rows. "
            "Draw from the uncorrected result or with gibbs, or correct a result with form=pgm.Dense()."
        )


respond = compiled(chain_response.respond, "layout")


@compiled
def _predicted(response: ChainResponse, inputs: Array) -> Marginals:
    return response.predict(inputs)
