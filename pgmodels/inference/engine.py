"""The protocol of variational engines: init, step, finish; and errors and warnings for early stops."""

from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy as np
from jaxtyping import Array, Float

from pgmodels.inference.loop import Ascent
from pgmodels.inference.problem import Problem, Spread
from pgmodels.priors.base import Sites
from pgmodels.runtime.warnings import PgmodelsWarning

# Maximum iterations of an inner loop, or of one that continues from another's state.
MANY = 2000


class ConvergenceWarning(PgmodelsWarning):
    """An iteration stopped before its tolerance was reached."""


class VariationalState(Protocol):
    """q(f): the predictors' marginal moments, the sites that produced them, the ELBO and its rounding error.

    The ELBO is minus infinity if it is unknown, as at a start or at new hyperparameters. ``memory`` is the history of
    Anderson acceleration.
    """

    mean: Float[Array, "n p"]
    variance: Spread
    sites: Sites
    elbo: Float[Array, ""]
    rounding: Float[Array, ""]
    memory: Any


class Engine(ABC):
    """A fixed-point iteration for the sites of q(f).

    Laws: ``step`` never lowers the ELBO beyond rounding error, and at a fixed point the sites are the optimal ones at
    q's marginals. ``init`` and ``step`` are traceable functions of a Problem. One loop drives every engine: see
    ``pgmodels.inference.loop``.
    """

    @abstractmethod
    def init(self, problem: Problem) -> Any:
        """The state to start from."""

    @abstractmethod
    def state_of(self, problem: Problem, sites: Sites) -> Any:
        """The state of given sites."""

    @abstractmethod
    def step(self, problem: Problem, state: Any) -> Any:
        """The state after one iteration."""

    @abstractmethod
    def plain_step(self, problem: Problem, state: Any) -> Any:
        """The state after one iteration of a published scheme, without acceleration or history."""

    def finish(self, name: str, problem: Problem, ascent: Ascent) -> Ascent:
        """The ascent after the loop; not converged, with a warning by ``name``, if no step raises the ELBO."""
        del name, problem
        return ascent


def check_finite(name: str, trace: np.ndarray) -> None:
    """Raise ValueError if the last ELBO of the trace is not finite."""
    if not np.isfinite(trace[-1]):
        raise ValueError(
            f"{name}: the ELBO is {float(trace[-1])} at iteration {len(trace) - 1}. Check for extreme values in y, "
            "prior variances of many orders of magnitude, a likelihood scale close to zero, or a formula without a "
            "finite expectation under a Gaussian."
        )
