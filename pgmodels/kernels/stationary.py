"""Stationary kernels: functions of the distance between inputs."""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, final

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from pgmodels.kernels.kernel import Inputs, OfVariance, Spectra, Spectrum, Use, scalar, scaled_squared_distance
from pgmodels.kernels.state_space import MaternState, StateSpace
from pgmodels.numerics.elementary import safe_sqrt
from pgmodels.parameters.parameter import Hyperparameter, Parameter, as_parameter
from pgmodels.runtime.precision import as_array


class Stationary(OfVariance):
    """A kernel of the scaled distance r = ‖x - z‖ / lengthscale. Subclasses define its ``profile``."""

    column_use: ClassVar[Use] = "values"
    by_column: ClassVar[tuple[str, ...]] = ("lengthscale",)
    set_by_data: ClassVar[tuple[str, ...]] = ("lengthscale",)

    lengthscale: Parameter

    def __init__(self, variance: Hyperparameter = 1.0, lengthscale: Hyperparameter | None = None):
        self.variance = scalar(variance, "variance", self)
        self.lengthscale = as_parameter(lengthscale, f"lengthscale of {type(self).__name__}", from_data=True)

    def _spectra(self, num_columns: int, correlation: Callable[[Array, int], Array]) -> Spectra:
        """Return the spectrum from the profile's density at squared frequencies, in radians per lengthscale."""
        self._require_lengthscale()
        lengthscale = jnp.broadcast_to(as_array(self.lengthscale.value), (num_columns,))
        scale = as_array(self.variance.value) * jnp.prod(lengthscale)

        def density(frequencies: Array) -> Array:
            return scale * correlation(jnp.sum((lengthscale * frequencies) ** 2, axis=1), num_columns)

        return {self.reads(num_columns): Spectrum(density, lengthscale)}

    def _require_lengthscale(self) -> None:
        if self.lengthscale.value is None:
            raise ValueError(
                f"lengthscale of {type(self).__name__} is None, to be set from the data: call "
                "kernel.resolve(X) first, or pass a number."
            )

    @abstractmethod
    def profile(self, squared: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """Return the correlation as a function of r²."""

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        self._require_lengthscale()
        lengthscale = as_array(self.lengthscale.value)
        return as_array(self.variance.value) * self.profile(scaled_squared_distance(X, Z, lengthscale))


@final
class RBF(Stationary):
    """The squared exponential kernel, variance · exp(-r²/2) with r = ‖x - z‖ / lengthscale.

    Parameters
    ----------
    variance : float, Fixed, Parameter or NumPyro distribution
        Prior variance of the latent, in squared units of the latent.
    lengthscale : float, array_like, Fixed, Parameter or NumPyro distribution, optional
        In units of X: one number, or one per column, shape (d,). The default is the median Euclidean distance between
        distinct rows of X, set when the model is fitted.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> kernel = pgm.RBF(variance=2.0, lengthscale=0.5)
    >>> kernel(np.array([[0.0], [1.0]]), np.array([[0.0]])).round(3)
    array([[2.   ],
           [0.271]])
    """

    # Type checkers do not find the __init__ of a base class.
    def __init__(self, variance: Hyperparameter = 1.0, lengthscale: Hyperparameter | None = None):
        super().__init__(variance, lengthscale)

    def profile(self, squared: Float[Array, "n m"]) -> Float[Array, "n m"]:
        return jnp.exp(-0.5 * squared)

    def spectra(self, num_columns: int) -> Spectra:
        return self._spectra(num_columns, lambda squared, d: (2.0 * math.pi) ** (0.5 * d) * jnp.exp(-0.5 * squared))


class _Matern(Stationary):
    """A Matérn kernel of order ``twice_order`` / 2.

    Parameters
    ----------
    variance : float, Fixed, Parameter or NumPyro distribution
        Prior variance of the latent, in squared units of the latent.
    lengthscale : float, array_like, Fixed, Parameter or NumPyro distribution, optional
        In units of X: one number, or one per column, shape (d,). The default is the median Euclidean distance between
        distinct rows of X, set when the model is fitted.

    References
    ----------
    Rasmussen and Williams 2006, section 4.2.
    """

    twice_order: ClassVar[int]

    def __init__(self, variance: Hyperparameter = 1.0, lengthscale: Hyperparameter | None = None):
        super().__init__(variance, lengthscale)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # The sections of this docstring are appended to the docstring of each kernel.
        cls.__doc__ = f"{cls.__doc__}{(_Matern.__doc__ or '').partition('.')[2]}"

    def to_state_space(self) -> StateSpace:
        self._require_lengthscale()
        variance, lengthscale = as_array(self.variance.value), as_array(self.lengthscale.value)
        return MaternState(self.twice_order, variance, lengthscale.reshape(()))

    def spectra(self, num_columns: int) -> Spectra:
        nu = 0.5 * self.twice_order

        # Rasmussen and Williams 2006, equation 4.15.
        def correlation(squared: Array, dimension: int) -> Array:
            power = nu + 0.5 * dimension
            constant = 2**dimension * math.pi ** (0.5 * dimension) * math.gamma(power) / math.gamma(nu)
            return constant * self.twice_order**nu * (self.twice_order + squared) ** -power

        return self._spectra(num_columns, correlation)


@final
class Matern12(_Matern):
    """The exponential kernel, variance · exp(-r) with r = ‖x - z‖ / lengthscale."""

    twice_order: ClassVar[int] = 1

    def __init__(self, variance: Hyperparameter = 1.0, lengthscale: Hyperparameter | None = None):
        super().__init__(variance, lengthscale)

    def profile(self, squared: Float[Array, "n m"]) -> Float[Array, "n m"]:
        return jnp.exp(-safe_sqrt(squared))


@final
class Matern32(_Matern):
    """The Matérn kernel of order 3/2, variance · (1 + s) exp(-s) with s = √3 ‖x - z‖ / lengthscale."""

    twice_order: ClassVar[int] = 3

    def __init__(self, variance: Hyperparameter = 1.0, lengthscale: Hyperparameter | None = None):
        super().__init__(variance, lengthscale)

    def profile(self, squared: Float[Array, "n m"]) -> Float[Array, "n m"]:
        s = safe_sqrt(3.0 * squared)
        return (1.0 + s) * jnp.exp(-s)


@final
class Matern52(_Matern):
    """The Matérn kernel of order 5/2, variance · (1 + s + s²/3) exp(-s) with s = √5 ‖x - z‖ / lengthscale."""

    twice_order: ClassVar[int] = 5

    def __init__(self, variance: Hyperparameter = 1.0, lengthscale: Hyperparameter | None = None):
        super().__init__(variance, lengthscale)

    def profile(self, squared: Float[Array, "n m"]) -> Float[Array, "n m"]:
        s = safe_sqrt(5.0 * squared)
        return (1.0 + s + s**2 / 3.0) * jnp.exp(-s)


@final
class RationalQuadratic(Stationary):
    """The rational quadratic kernel, variance · (1 + r²/(2 alpha))^(-alpha) with r = ‖x - z‖ / lengthscale.

    Parameters
    ----------
    variance : float, Fixed, Parameter or NumPyro distribution
        Prior variance of the latent, in squared units of the latent.
    lengthscale : float, array_like, Fixed, Parameter or NumPyro distribution, optional
        In units of X: one number, or one per column, shape (d,). The default is the median Euclidean distance between
        distinct rows of X, set when the model is fitted.
    alpha : float, Fixed, Parameter or NumPyro distribution
        Shape; the kernel tends to RBF as alpha grows.

    References
    ----------
    Rasmussen and Williams 2006, section 4.2.
    """

    alpha: Parameter

    def __init__(
        self, variance: Hyperparameter = 1.0, lengthscale: Hyperparameter | None = None, alpha: Hyperparameter = 1.0
    ):
        super().__init__(variance, lengthscale)
        self.alpha = scalar(alpha, "alpha", self)

    def profile(self, squared: Float[Array, "n m"]) -> Float[Array, "n m"]:
        alpha = as_array(self.alpha.value)
        return jnp.exp(-alpha * jnp.log1p(squared / (2.0 * alpha)))
