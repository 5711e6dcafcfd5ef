"""The kernel of a random walk in continuous time."""

from typing import Any, ClassVar, final

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from pgmodels.kernels.distance import Inputs
from pgmodels.kernels.kernel import Kernel, scalar
from pgmodels.kernels.limits import unlimited
from pgmodels.kernels.state_space import StateSpace, WalkState
from pgmodels.parameters.parameter import Fixed, Hyperparameter, Parameter, as_parameter
from pgmodels.runtime.formatting import shorten
from pgmodels.runtime.x64 import as_array


@final
class RandomWalk(Kernel):
    """The kernel of a random walk (Brownian motion) of one column, variance · (min(x, z) - start), 0 at its start.

    Steps over h units of x have the variance h · ``variance``, whatever happened before: the local level of structural
    time series, and a random walk of order one where x is 1, 2, 3, ... The level at the start is the GP's mean; add
    ``Constant`` for one that is uncertain.

    Parameters
    ----------
    variance : float, Fixed, Parameter or NumPyro distribution
        Prior variance of a step over one unit of x, in squared units of the latent over those of x.
    start : float, optional
        The x before all others, a number that is not learned. By default the smallest of X, set when the model
        is fitted, rows without y that are kept for predictions included: new inputs can then not be before it.

    Raises
    ------
    ValueError
        For values of x before the start.

    References
    ----------
    Harvey 1989, section 2.3; Rue and Held 2005, section 3.3.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> kernel = pgm.RandomWalk(0.5, start=1.0)
    >>> x = np.array([[1.0], [2.0], [4.0]])
    >>> kernel(x, x)
    array([[0. , 0. , 0. ],
           [0. , 0.5, 0.5],
           [0. , 0.5, 1.5]])
    """

    positive_semidefinite: ClassVar[bool] = True

    variance: Parameter
    start: Parameter

    def __init__(self, variance: Hyperparameter = 1.0, start: float | Fixed | Parameter | None = None):
        self.variance = scalar(variance, "variance", self)
        self.start = _start(start)

    def check(self, num_columns: int) -> None:
        super().check(num_columns)
        if num_columns != 1:
            raise ValueError(f"RandomWalk reads one column; got {num_columns}. Use pgm.On(pgm.RandomWalk(), [column]).")

    def check_values(self, X: np.ndarray, name: str) -> None:
        if self.start.value is None:
            return
        before = np.flatnonzero(X[:, 0] < self.start.value)
        if len(before):
            raise ValueError(
                f"{name} is {X[before[0], 0]:g} in row {before[0]}, before the start of RandomWalk, "
                f"{float(self.start.value):g}: give an earlier one, as in pgm.RandomWalk(start=...), and add "
                "pgm.Constant() for the level there."
            )

    def limits(self, num_columns: int) -> Float[np.ndarray, "d 2"]:
        return unlimited(1) if self.start.value is None else np.array([[float(self.start.value), np.inf]])

    def measures(self, num_columns: int) -> tuple[int, ...]:
        return self.reads(num_columns)

    def resolve(self, X: Float[Inputs, "n d"]) -> Kernel:
        return self.covering(X)

    def covering(self, X: Float[Inputs, "n d"]) -> Kernel:
        if self.start.value is not None:
            return self
        return self.with_parameter("start", np.min(np.asarray(X, dtype=np.float64)))

    def to_state_space(self) -> StateSpace:
        return WalkState(as_array(self.variance.value), self._resolved_start())

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        return self._walked(jnp.minimum(as_array(X)[:, :1], as_array(Z)[:, 0]))

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        return self._walked(as_array(X)[:, 0])

    def _walked(self, x: Array) -> Array:
        return as_array(self.variance.value) * jnp.maximum(x - self._resolved_start(), 0.0)

    def _resolved_start(self) -> Array:
        if self.start.value is None:
            raise ValueError(
                "start of RandomWalk is None, to be set from the data: call kernel.resolve(X) first, or pass a number."
            )
        return as_array(self.start.value)


def _start(value: Any) -> Parameter:
    """A number that is not learned, or None."""
    value = value.value if isinstance(value, (Fixed, Parameter)) else value
    name = "start of RandomWalk"
    parameter = Parameter(None) if value is None else as_parameter(value, name, positive=False)
    if parameter.prior is not None or np.ndim(parameter.value):
        raise ValueError(f"{name} must be one number, which is not learned; got {shorten(value)}.")
    return Parameter(parameter.value, positive=False, fixed=True)
