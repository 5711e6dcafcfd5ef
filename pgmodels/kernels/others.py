"""Periodic and linear kernels, noise, random walks, centred functions, and functions by level."""

from typing import ClassVar, final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import cho_solve
from jaxtyping import Float
from numpy.typing import ArrayLike

from pgmodels.data.arrays import check_whole_number
from pgmodels.kernels.kernel import (
    Change,
    Inputs,
    Kernel,
    OfVariance,
    Spectra,
    Spectrum,
    Use,
    scalar,
    scaled_squared_distance,
    squared_distance,
    unlimited,
)
from pgmodels.kernels.state_space import (
    ConstantState,
    LineState,
    OscillatorState,
    StateSpace,
    SumState,
    WalkState,
    WhiteState,
    harmonic_shares,
    harmonics_for,
)
from pgmodels.parameters.parameter import Fixed, Hyperparameter, Parameter, as_declared, as_parameter, is_parameter
from pgmodels.runtime.messages import shorten
from pgmodels.runtime.precision import as_array


@final
class Periodic(OfVariance):
    """The periodic kernel, variance · exp(-2 Σ_d sin²(π (x_d - z_d)/period) / lengthscale_d²).

    Parameters
    ----------
    variance : float, Fixed, Parameter or NumPyro distribution
        Prior variance of the latent, in squared units of the latent.
    lengthscale : float, array_like, Fixed, Parameter or NumPyro distribution
        Without units: one number, or one per column, shape (d,).
    period : float, Fixed, Parameter or NumPyro distribution
        In units of X.
    harmonics : int, optional
        Number of harmonics that ``form=pgm.Markov()`` keeps, with two state entries each; other forms ignore it. The
        default leaves out less than 1e-8 of the variance at the lengthscale given here, with at most 20 harmonics. It
        is 5 at a lengthscale of 2, 8 at 1 and 14 at 0.5.

    References
    ----------
    MacKay 1998; Solin and Särkkä 2014.
    """

    column_use: ClassVar[Use] = "values"
    by_column: ClassVar[tuple[str, ...]] = ("lengthscale",)
    set_by_data: ClassVar[tuple[str, ...]] = ("period",)

    lengthscale: Parameter
    period: Parameter
    harmonics: int = eqx.field(static=True)

    def __init__(
        self,
        variance: Hyperparameter = 1.0,
        lengthscale: Hyperparameter = 1.0,
        period: Hyperparameter = 1.0,
        harmonics: int | None = None,
    ):
        self.variance = scalar(variance, "variance", self)
        self.lengthscale = as_parameter(lengthscale, "lengthscale of Periodic")
        self.period = scalar(period, "period", self)
        if harmonics is None:
            harmonics = harmonics_for(float(np.min(self.lengthscale.value)))
        check_whole_number(harmonics, "harmonics of Periodic", 1)
        self.harmonics = int(harmonics)

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        # |e^{2ia} - e^{2ib}|² = 4 sin²(a - b): the RBF kernel between points on one circle per column.
        lengthscale = as_array(self.lengthscale.value)
        if lengthscale.ndim:
            lengthscale = jnp.concatenate([lengthscale, lengthscale])
        squared = scaled_squared_distance(self._circles(X), self._circles(Z), lengthscale)
        return as_array(self.variance.value) * jnp.exp(-0.5 * squared)

    def to_state_space(self) -> StateSpace:
        shares = harmonic_shares(as_array(self.lengthscale.value).reshape(()), self.harmonics)
        variance, frequency = as_array(self.variance.value), 2.0 * jnp.pi / as_array(self.period.value)
        omitted = variance * jnp.maximum(1.0 - jnp.sum(shares), 0.0)
        return SumState(OscillatorState(variance * shares[1:], frequency, omitted), ConstantState(variance * shares[0]))

    def _circles(self, X: Float[Inputs, "n d"]) -> Float[Array, "n 2*d"]:
        angles = 2.0 * jnp.pi * as_array(X) / as_array(self.period.value)
        return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=1)


@final
class Cosine(OfVariance):
    """The kernel of sines with one period and a random amplitude and phase, variance · cos(2π (x - z) / period).

    The product with e.g. Matern32 is the kernel of oscillations that change over a lengthscale.

    Parameters
    ----------
    variance : float, Fixed, Parameter or NumPyro distribution
        Prior variance of the latent, in squared units of the latent.
    period : float, Fixed, Parameter or NumPyro distribution
        In units of X. X must have one column.

    References
    ----------
    Wilson and Adams 2013, one component without width.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> kernel = pgm.Cosine(2.0, period=4.0)
    >>> kernel(np.array([[0.0], [1.0], [2.0]]), np.array([[0.0]])).round(3) + 0.0
    array([[ 2.],
           [ 0.],
           [-2.]])
    """

    column_use: ClassVar[Use] = "values"
    of_one_column: ClassVar[bool] = True
    set_by_data: ClassVar[tuple[str, ...]] = ("period",)

    period: Parameter

    def __init__(self, variance: Hyperparameter = 1.0, period: Hyperparameter = 1.0):
        self.variance = scalar(variance, "variance", self)
        self.period = scalar(period, "period", self)

    def to_state_space(self) -> StateSpace:
        return OscillatorState(as_array(self.variance.value)[None], 2.0 * jnp.pi / as_array(self.period.value))

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        turns = (as_array(X)[:, :1] - as_array(Z)[:, 0]) / as_array(self.period.value)
        return as_array(self.variance.value) * jnp.cos(2.0 * jnp.pi * turns)


@final
class Linear(Kernel):
    """The kernel of linear functions through the origin, Σ_d variance_d x_d z_d.

    Parameters
    ----------
    variance : float, array_like, Fixed, Parameter or NumPyro distribution
        Prior variance of the slopes, in squared units of the latent over squared units of X: one number, or one per
        column, shape (d,).
    root : array_like, Fixed, Parameter or NumPyro distribution, optional
        Lower Cholesky root (d, d) of the slopes' correlations, such as ``dist.LKJCholesky(d, 1.0)``. By default, slopes
        are independent. The product with ``White`` of a column of groups is the kernel of (x + z | group) in regression
        formulas.
    """

    positive_semidefinite: ClassVar[bool] = True
    column_use: ClassVar[Use] = "values"
    by_column: ClassVar[tuple[str, ...]] = ("variance",)

    variance: Parameter
    root: Parameter | None

    def __init__(self, variance: Hyperparameter = 1.0, root: Hyperparameter | None = None):
        from numpyro.distributions.constraints import corr_cholesky

        self.variance, self.root = as_parameter(variance, "variance of Linear"), None
        if root is not None:
            declared = Parameter(np.eye(np.size(self.variance.value)), constraint=corr_cholesky)
            self.root = as_declared(root, declared, "root of Linear", positive=False)
            if np.shape(self.root.value) != np.shape(declared.value):
                raise ValueError(
                    f"root of Linear must have the shape {np.shape(declared.value)}, a row for each variance; got "
                    f"{np.shape(self.root.value)}."
                )

    def features(self, X: Float[Inputs, "n d"]) -> Float[Array, "n d"]:
        scaled = as_array(X) * jnp.sqrt(as_array(self.variance.value))
        return scaled if self.root is None else scaled @ as_array(self.root.value)

    def to_state_space(self) -> StateSpace:
        return LineState(as_array(self.variance.value).reshape(()))

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        if self.root is not None:
            return self.features(X) @ self.features(Z).T
        return (as_array(X) * as_array(self.variance.value)) @ as_array(Z).T

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        if self.root is not None:
            return jnp.sum(jnp.square(self.features(X)), axis=1)
        return jnp.sum(as_array(self.variance.value) * jnp.square(as_array(X)), axis=1)


@final
class Constant(OfVariance):
    """The kernel of a constant function, with the same covariance everywhere.

    Parameters
    ----------
    variance : float, Fixed, Parameter or NumPyro distribution
        Prior variance of the latent, in squared units of the latent.
    """

    def __init__(self, variance: Hyperparameter = 1.0):
        self.variance = scalar(variance, "variance", self)

    def features(self, X: Float[Inputs, "n d"]) -> Float[Array, "n 1"]:
        return jnp.broadcast_to(jnp.sqrt(as_array(self.variance.value)), (X.shape[0], 1))

    def to_state_space(self) -> StateSpace:
        return ConstantState(as_array(self.variance.value))

    def spectra(self, num_columns: int) -> Spectra:
        variance = as_array(self.variance.value)
        return {(): Spectrum(lambda frequencies: jnp.full(len(frequencies), variance), jnp.zeros(0))}

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        return jnp.broadcast_to(as_array(self.variance.value), (X.shape[0], Z.shape[0]))

    def reads(self, num_columns: int, use: Use | None = None) -> tuple[int, ...]:
        return ()


@final
class White(OfVariance):
    """White noise: ``variance`` for equal rows, 0 otherwise.

    Parameters
    ----------
    variance : float, Fixed, Parameter or NumPyro distribution
        Prior variance of the latent, in squared units of the latent.

    Notes
    -----
    The noise is a function of the inputs: equal rows share it, within a data set and between data sets.
    """

    def __init__(self, variance: Hyperparameter = 1.0):
        self.variance = scalar(variance, "variance", self)

    def level_columns(self, num_columns: int) -> tuple[int, ...]:
        return tuple(range(num_columns))

    def features(self, X: Float[Inputs, "n d"]) -> Float[Array, "n 1"]:
        return jnp.broadcast_to(jnp.sqrt(as_array(self.variance.value)), (X.shape[0], 1))

    def to_state_space(self) -> StateSpace:
        return WhiteState(as_array(self.variance.value))

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        return jnp.where(squared_distance(as_array(X), as_array(Z)) == 0.0, as_array(self.variance.value), 0.0)


@final
class RandomWalk(Kernel):
    """The kernel of a random walk (Brownian motion) of one column, variance · (min(x, z) - start), 0 at its start.

    A step over h units of x has variance h · ``variance``, independently of earlier steps. It is the local level of
    structural time series, and a random walk of order one if x is 1, 2, 3, ... The level at the start is the GP's mean.
    Add ``Constant`` if that level is uncertain.

    Parameters
    ----------
    variance : float, Fixed, Parameter or NumPyro distribution
        Prior variance of a step over one unit of x, in squared units of the latent per unit of x.
    start : float, optional
        The start, before all x; a number that is not learned. By default it is the smallest x when the model is fitted,
        including rows without y that are kept for predictions. New inputs cannot be before it.

    Raises
    ------
    ValueError
        If a value of x is before the start.

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
    column_use: ClassVar[Use] = "values"
    of_one_column: ClassVar[bool] = True
    set_by_data: ClassVar[tuple[str, ...]] = ("start",)

    variance: Parameter
    start: Parameter

    def __init__(self, variance: Hyperparameter = 1.0, start: float | Fixed | Parameter | None = None):
        self.variance = scalar(variance, "variance", self)
        value = start.value if isinstance(start, Fixed | Parameter) else start
        name = "start of RandomWalk"
        read = Parameter(None) if value is None else as_parameter(value, name, positive=False)
        if read.prior is not None or np.ndim(read.value):
            raise ValueError(f"{name} must be one number, which is not learned; got {shorten(value)}.")
        self.start = Parameter(read.value, positive=False, fixed=True)

    def check_values(self, X: np.ndarray, name: str) -> None:
        if self.start.value is None:
            return
        before = np.flatnonzero(X[:, 0] < self.start.value)
        if len(before):
            raise ValueError(
                f"{name} is {X[before[0], 0]:g} in row {before[0]}, before the start of RandomWalk, "
                f"{float(self.start.value):g}: give an earlier start, as in pgm.RandomWalk(start=...), and add "
                "pgm.Constant() for the level at that start."
            )

    def limits(self, num_columns: int) -> Float[np.ndarray, "d 2"]:
        return unlimited(1) if self.start.value is None else np.array([[float(self.start.value), np.inf]])

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


@final
class Centred(Kernel):
    """The kernel of a function minus its constant and, with ``line``, its line, over nodes.

    The kernel's function g is replaced by g minus its least-squares fit of these at the ``nodes``. The line then has
    separate coefficients. With ``levels``, the last column of X has numbers of levels, and each level has its own
    constant and line.

    Parameters
    ----------
    kernel : Kernel
        The kernel of g.
    nodes : array_like, shape (m, d)
        Rows in the least-squares fit, such as the data or a part of them; numbers that are not learned.
    line : bool, default True
    levels : int, default 0
        Number of levels.

    References
    ----------
    Wood 2017, section 5.4.1, about constraints on smooths.
    """

    positive_semidefinite: ClassVar[bool] = True

    kernel: Kernel
    nodes: Parameter
    line: bool = eqx.field(static=True)
    levels: int = eqx.field(static=True)

    def __init__(self, kernel: Kernel, nodes: ArrayLike | Parameter, line: bool = True, levels: int = 0):
        self.kernel, self.line, self.levels = kernel, line, levels
        known = np.asarray(nodes.value if isinstance(nodes, Parameter) else nodes, np.float64)
        self.nodes = Parameter(known, positive=False, fixed=True)
        if known.ndim != 2 or not len(known):
            raise ValueError(f"nodes of Centred must be rows (m, d) of inputs; got shape {known.shape}.")

    def reads(self, num_columns: int, use: Use | None = None) -> tuple[int, ...]:
        return self.kernel.reads(num_columns, use)

    def scaled(self, factor: float) -> Kernel:
        return Centred(self.kernel.scaled(factor), self.nodes, self.line, self.levels)

    def _functions(self, X: Float[Inputs, "n d"]) -> Float[Array, "n p"]:
        """Return the functions that are removed, of columns in units of the nodes' deviations."""
        nodes, X = as_array(self.nodes.value), as_array(X)
        count = X.shape[1] - (self.levels > 0)
        functions = jnp.ones((len(X), 1))
        if self.line:
            deviations = jnp.std(nodes[:, :count], axis=0)
            centred = (X[:, :count] - jnp.mean(nodes[:, :count], axis=0)) / jnp.where(deviations > 0.0, deviations, 1.0)
            functions = jnp.concatenate([functions, centred], axis=1)
        if not self.levels:
            return functions
        members = X[:, -1:] == jnp.arange(self.levels)
        return (members[:, :, None] * functions[:, None, :]).reshape(len(X), -1)

    def _weights(self, X: Float[Inputs, "n d"]) -> Float[Array, "n m"]:
        """Return the weights of the nodes' values in the fit at rows of X."""
        B = self._functions(as_array(self.nodes.value))
        # A level has no line if all its inputs are equal.
        gram = B.T @ B + 1e-10 * len(B) * jnp.eye(B.shape[1])
        return self._functions(X) @ cho_solve((jnp.linalg.cholesky(gram), True), B.T)

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        nodes, left, right = as_array(self.nodes.value), self._weights(X), self._weights(Z)
        moved = self.kernel(X, Z) - left @ self.kernel(nodes, Z)
        return moved - (self.kernel(X, nodes) - left @ self.kernel(nodes, nodes)) @ right.T

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        nodes, weights = as_array(self.nodes.value), self._weights(X)
        inner = weights @ self.kernel(nodes, nodes) - 2.0 * self.kernel(X, nodes)
        return jnp.maximum(self.kernel.diagonal(X) + jnp.sum(weights * inner, axis=1), 0.0)


@final
class ByLevel(Kernel):
    """The kernel of independent functions, one per level, each with its own variance and lengthscale.

    The last column of X has numbers of levels, 0 to K - 1.

    Parameters
    ----------
    kernel : Kernel
        Kernel of each function, with variance 1, in units of its lengthscale.
    variance, lengthscale : array_like, Fixed, Parameter or NumPyro distribution
        Shape (K,), or one number or distribution for each entry; in squared units of the latent, and in units of X.
    num_levels : int
        Number of levels K.
    """

    positive_semidefinite: ClassVar[bool] = True

    kernel: Kernel
    variance: Parameter
    lengthscale: Parameter
    num_levels: int = eqx.field(static=True)

    def __init__(self, kernel: Kernel, variance: Hyperparameter, lengthscale: Hyperparameter, num_levels: int):
        self.kernel, self.num_levels = kernel, num_levels
        for name, value in (("variance", variance), ("lengthscale", lengthscale)):
            parameter = as_parameter(value, f"{name} of ByLevel")
            if not np.ndim(parameter.value):
                parameter = parameter.with_value(np.full(num_levels, parameter.value))
            vars(self)[name] = parameter

    def map_components(self, change: Change, X: Float[Inputs, "n d"]) -> Kernel:
        return eqx.tree_at(lambda by: by.kernel, self, change(self.kernel, X[:, :-1]), is_leaf=is_parameter)

    def reads(self, num_columns: int, use: Use | None = None) -> tuple[int, ...]:
        *others, last = range(num_columns)
        return {None: (*others, last), "values": tuple(others), "levels": (last,)}.get(use, ())

    def check(self, num_columns: int) -> None:
        self.kernel.check(num_columns - 1)

    def _scaled_inputs(self, X: Float[Inputs, "n d"]) -> tuple[Array, Array, Array]:
        """Return the inputs in units of the lengthscales, the levels and the standard deviations."""
        X = as_array(X)
        level = X[:, -1].astype(int)
        lengthscales = as_array(self.lengthscale.value)[level]
        return X[:, :-1] / lengthscales[:, None], level, jnp.sqrt(as_array(self.variance.value))[level]

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        (x, left, sds), (z, right, others) = self._scaled_inputs(X), self._scaled_inputs(Z)
        return jnp.where(left[:, None] == right, self.kernel(x, z) * sds[:, None] * others, 0.0)

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        x, _, sds = self._scaled_inputs(X)
        return jnp.square(sds) * self.kernel.diagonal(x)
