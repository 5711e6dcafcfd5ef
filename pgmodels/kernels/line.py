"""The kernel of lines whose intercept and slope are correlated."""

from typing import ClassVar, final

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from pgmodels.kernels.distance import Inputs
from pgmodels.kernels.kernel import Kernel, scalar
from pgmodels.parameters.parameter import Hyperparameter, Parameter, as_declared
from pgmodels.runtime.x64 import as_array


@final
class Line(Kernel):
    """The kernel of lines a + b x of one column, with normal intercepts a and slopes b that are correlated.

    variance + correlation √(variance · slope_variance) (x + z) + slope_variance x z. Times ``White`` of a column of
    groups it is that of (1 + x | group) in regression formulas.

    Parameters
    ----------
    variance : float, Fixed, Parameter or NumPyro distribution
        Prior variance of the intercept, in squared units of the latent.
    slope_variance : float, Fixed, Parameter or NumPyro distribution
        Prior variance of the slope, in squared units of the latent over those of x.
    correlation : float, Fixed, Parameter or NumPyro distribution
        Between -1 and 1.

    Raises
    ------
    ValueError
        For values out of these ranges.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> x = np.array([[0.0], [1.0]])
    >>> pgm.Line(2.0, 0.5, correlation=0.2)(x, x).round(2)
    array([[2. , 2.2],
           [2.2, 2.9]])
    """

    positive_semidefinite: ClassVar[bool] = True

    variance: Parameter
    slope_variance: Parameter
    correlation: Parameter

    def __init__(
        self, variance: Hyperparameter = 1.0, slope_variance: Hyperparameter = 1.0, correlation: Hyperparameter = 0.0
    ):
        from numpyro.distributions.constraints import interval

        self.variance = scalar(variance, "variance", self)
        self.slope_variance = scalar(slope_variance, "slope_variance", self)
        declared = Parameter(0.0, constraint=interval(-1.0, 1.0))
        self.correlation = as_declared(correlation, declared, "correlation of Line", positive=False)

    def check(self, num_columns: int) -> None:
        super().check(num_columns)
        if num_columns != 1:
            raise ValueError(f"Line reads one column; got {num_columns}. Use pgm.On(pgm.Line(), [column]).")

    def measures(self, num_columns: int) -> tuple[int, ...]:
        return self.reads(num_columns)

    def rank_at(self, X: Float[Inputs, "n d"]) -> int:
        return min(len(X), 2)

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        variance, slope, covariance = self._moments()
        x, z = as_array(X)[:, 0, None], as_array(Z)[:, 0]
        return variance + covariance * (x + z) + slope * x * z

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        variance, slope, covariance = self._moments()
        x = as_array(X)[:, 0]
        return variance + 2.0 * covariance * x + slope * jnp.square(x)

    def features(self, X: Float[Inputs, "n d"]) -> Float[Array, "n 2"]:
        variance, slope, correlation = (
            as_array(parameter.value) for parameter in (self.variance, self.slope_variance, self.correlation)
        )
        line = jnp.sqrt(slope) * as_array(X)[:, 0]
        # The intercept's deviation from its mean given the slope.
        intercept = jnp.sqrt(variance * (1.0 - jnp.square(correlation)))
        return jnp.stack([correlation * jnp.sqrt(variance) + line, jnp.broadcast_to(intercept, line.shape)], axis=1)

    def _moments(self) -> tuple[Array, Array, Array]:
        """The variances of intercept and slope, and their covariance."""
        variance, slope = as_array(self.variance.value), as_array(self.slope_variance.value)
        return variance, slope, as_array(self.correlation.value) * jnp.sqrt(variance * slope)
