"""The kernel over an output index: covariances between the outputs of a model with several."""

from typing import Any, ClassVar, final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from pgmodels.kernels.distance import Inputs
from pgmodels.kernels.kernel import Kernel
from pgmodels.parameters.parameter import Fixed, Hyperparameter, Parameter, as_parameter
from pgmodels.runtime.distributions import is_distribution
from pgmodels.runtime.formatting import shorten
from pgmodels.runtime.jit import double_outside_jit
from pgmodels.runtime.x64 import as_array


@final
class Coregion(Kernel):
    """The covariances W Wᵀ + diag(kappa) between outputs, by the number of the output of each row of X.

    ``On(RBF(variance=Fixed(1.0)), [0]) * On(Coregion(3), [1])`` is the intrinsic coregionalisation model of three
    outputs: column 1 has the output, 0 to 2, or its name in a data frame, numbered in sorted order. Fix the variance of
    the other kernel, since only its product with the covariances counts.

    Parameters
    ----------
    num_outputs : int
        Number of outputs P.
    rank : int, default 1
        Number of latent processes R that the outputs share.
    loadings : array_like, Fixed, Parameter or NumPyro distribution, optional
        W, shape (P, R), in units of the latent; a scalar distribution is that of each entry. The start values differ
        between outputs and between columns, which could otherwise not become different.
    kappa : float, array_like, Fixed, Parameter or NumPyro distribution
        Variance of each output's part that it shares with no other, shape (P,), in squared units of the latent.

    Raises
    ------
    ValueError
        For numbers that are not whole and positive, and for another shape.

    References
    ----------
    Bonilla, Chai and Williams 2008; Álvarez, Rosasco and Lawrence 2012, section 4.2.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> outputs = np.array([[0.0], [1.0]])
    >>> pgm.Coregion(2, loadings=[[1.0], [2.0]], kappa=0.5)(outputs, outputs)
    array([[1.5, 2. ],
           [2. , 4.5]])
    """

    positive_semidefinite: ClassVar[bool] = True

    num_outputs: int = eqx.field(static=True)
    rank: int = eqx.field(static=True)
    loadings: Parameter
    kappa: Parameter

    def __init__(
        self, num_outputs: int, rank: int = 1, loadings: Hyperparameter | None = None, kappa: Hyperparameter = 0.5
    ):
        for name, value in (("num_outputs", num_outputs), ("rank", rank)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise ValueError(f"{name} of Coregion must be a whole number >= 1; got {shorten(value)}.")
        self.num_outputs, self.rank = int(num_outputs), int(rank)
        if loadings is None or is_distribution(loadings):
            # The centre of a prior, such as 0, may be a point from which the loadings cannot move.
            loadings = Parameter(_start(self.num_outputs, self.rank), prior=loadings)
        self.loadings = as_parameter(loadings, "loadings of Coregion", positive=False)
        self._check_shape("loadings", (self.num_outputs, self.rank))
        self.kappa = _one_each(as_parameter(kappa, "kappa of Coregion"), self.num_outputs)
        self._check_shape("kappa", (self.num_outputs,))

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        if np.shape(value := getattr(self, name).value) != shape:
            raise ValueError(
                f"{name} of Coregion({self.num_outputs}, rank={self.rank}) must have shape {shape}; got "
                f"{np.shape(value)}."
            )

    @property
    @double_outside_jit
    def covariance(self) -> Float[Array, "P P"]:
        """The covariances between the outputs, W Wᵀ + diag(kappa)."""
        W = as_array(self.loadings.value)
        return W @ W.T + jnp.diag(as_array(self.kappa.value))

    def __call__(self, X: Float[Inputs, "n 1"], Z: Float[Inputs, "m 1"]) -> Float[Array, "n m"]:
        return self._members(X) @ self.covariance @ self._members(Z).T

    def diagonal(self, X: Float[Inputs, "n 1"]) -> Float[Array, " n"]:
        return self._members(X) @ jnp.diagonal(self.covariance)

    def _members(self, X: Inputs) -> Float[Array, "n P"]:
        """1 at the output of each row; NaN where there is no such output."""
        is_output = as_array(X) == jnp.arange(self.num_outputs)
        return jnp.where(jnp.any(is_output, axis=1, keepdims=True), is_output, jnp.nan)

    def indexes(self, num_columns: int) -> tuple[int, ...]:
        return self.reads(num_columns)

    def scaled(self, factor: float) -> Kernel:
        if not (self.loadings.is_free and self.kappa.is_free):
            return self
        loadings = self.with_parameter("loadings", self.loadings.value * np.sqrt(factor))
        return loadings.with_parameter("kappa", self.kappa.value * factor)

    def check(self, num_columns: int) -> None:
        super().check(num_columns)
        if num_columns != 1:
            raise ValueError(
                f"{self._title()} reads one column, the number of the output; got {num_columns}. Use "
                f"pgm.On(pgm.Coregion({self.num_outputs}, rank={self.rank}), [column]) and pgm.On(kernel, [...]) for "
                "the others."
            )

    def check_values(self, X: np.ndarray, name: str) -> None:
        bad = np.flatnonzero(~np.isin(X[:, 0], np.arange(self.num_outputs)))
        if bad.size:
            raise ValueError(
                f"{name} must have an output from 0 to {self.num_outputs - 1} in the column that {self._title()} "
                f"reads; got {X[bad[0], 0]:g} in row {bad[0]}. Set num_outputs to the number of outputs, and number "
                "them from 0."
            )

    def _title(self) -> str:
        return f"Coregion({self.num_outputs}, rank={self.rank})"

    def __repr__(self) -> str:
        return f"{self._title()[:-1]}, loadings={self.loadings!r}, kappa={self.kappa!r})"


def _start(num_outputs: int, rank: int) -> np.ndarray:
    """Start values of loadings: at W = 0, and in the direction from equal to different ones, the gradient is 0.

    Column r falls from 1 at output r to 1/2, so that no two outputs and no two columns are alike, over sqrt(R): the
    variances do not grow with the rank.
    """
    falling = 1.0 - 0.5 * np.arange(num_outputs) / num_outputs
    return np.stack([np.roll(falling, column) for column in range(rank)], axis=1) / np.sqrt(rank)


def _one_each(parameter: Parameter, num_outputs: int) -> Parameter:
    """A parameter with an entry for each output, if it is one number."""
    if np.ndim(parameter.value):
        return parameter
    value: Any = np.full(num_outputs, parameter.value)
    value = Fixed(value) if parameter.fixed else value
    return as_parameter(Parameter(value, prior=parameter.declared_prior), "kappa of Coregion")
