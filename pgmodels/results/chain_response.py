"""Linear response by scans over a Markov chain: corrected marginals, without a joint covariance."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NoReturn

import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike

from pgmodels.priors.base import GroupResponse
from pgmodels.priors.posterior import Posterior
from pgmodels.results.approximation import CorrectedApproximation
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import as_array, double_precision


@dataclass(eq=False, kw_only=True, repr=False)
class ChainResponse(CorrectedApproximation):
    """A correction by linear response of one latent that is a Markov process, in O(n) (math: section 5b).

    ``derivatives`` (n, 4) at the distinct inputs are B_mv, B_mm + w and B_vv of the objective, and the gradient that
    shifts the mean. ``is_positive`` says whether the response is a covariance, as it must be to be valid.
    """

    description: ClassVar[str] = "by linear response"

    derivatives: np.ndarray
    is_positive: bool

    @property
    def method(self) -> str:
        """The method of ``correct``."""
        return "linear_response"

    @cached_property
    @double_precision
    def response(self) -> GroupResponse:
        """The response at the data and at new inputs."""
        return respond(self.posterior, as_array(self.derivatives))

    @property
    def _num_across(self) -> int:
        # Matrices over states and their products.
        return 4 * super()._num_across

    def _moments_at(self, inputs: Array) -> tuple[Any, Any]:
        mean, _ = super()._moments_at(inputs)
        shift, variance = _predicted(self.response, inputs)
        return np.asarray(mean) + np.asarray(shift)[:, None], np.asarray(variance)[:, None]

    def _drawn_at(self, X_new: ArrayLike, num_draws: int, seed: int) -> NoReturn:
        raise ValueError(
            "draw_latents: linear response by scans corrects the variance of each row, without a joint covariance. "
            "Draw from the uncorrected result or with gibbs, or correct a result with form=pgm.Dense()."
        )


@compiled
def respond(posterior: Posterior, derivatives: Array) -> GroupResponse:
    """The response of the one group of a posterior; see ``ChainResponse``."""
    return posterior.groups[0].respond(*derivatives.T)  # type: ignore[attr-defined]


@compiled
def _predicted(response: GroupResponse, inputs: Array) -> tuple[Array, Array]:
    return response.predict(inputs)
