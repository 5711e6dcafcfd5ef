"""Kernels of places on the earth."""

from collections.abc import Callable
from typing import Any, ClassVar, final

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from pgmodels.kernels.columns import Restricted
from pgmodels.kernels.distance import Inputs
from pgmodels.kernels.kernel import Kernel, as_kernel
from pgmodels.runtime.x64 import as_array

# The mean radius of the earth in km.
RADIUS = 6371.0088
# Of longitudes and latitudes.
_LIMITS = np.array([[-360.0, 360.0], [-90.0, 90.0]])


@final
class Sphere(Restricted):
    """A kernel of longitude and latitude in degrees, by the straight line between two places, in km.

    ``On(Sphere(Matern52(1.0, 300.0)), ["lon", "lat"])``: lengthscales are in km. The line through the earth is as long
    as the way over its surface, to 1 % up to 3,000 km, and every kernel of it is positive definite, which kernels of
    distances over the surface need not be.

    Parameters
    ----------
    kernel : Kernel or callable
        The kernel of places (n, 3) in km from the centre of the earth; stationary kernels with one lengthscale.

    Raises
    ------
    ValueError
        For a latitude beyond ±90 or a longitude beyond ±360, and for a lengthscale per column.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> kernel = pgm.Sphere(pgm.RBF(1.0, 1000.0))
    >>> paris, berlin = np.array([[2.35, 48.86]]), np.array([[13.40, 52.52]])
    >>> kernel(paris, berlin).round(2)
    array([[0.68]])
    """

    positive_semidefinite: ClassVar[bool] = True

    kernel: Kernel

    def __init__(self, kernel: Kernel | Callable[[Any, Any], Any]):
        self.kernel = as_kernel(kernel)

    def __call__(self, X: Float[Inputs, "n d"], Z: Float[Inputs, "m d"]) -> Float[Array, "n m"]:
        return self.kernel(_places(X), _places(Z))

    def diagonal(self, X: Float[Inputs, "n d"]) -> Float[Array, " n"]:
        return self.kernel.diagonal(_places(X))

    def measures(self, num_columns: int) -> tuple[int, ...]:
        return self.reads(num_columns)

    def inputs(self, X: Float[Inputs, "n d"]) -> np.ndarray:
        """The places in km."""
        return np.asarray(_places(X))

    def numbered(self, names: tuple[str, ...] | None) -> "Sphere":
        return Sphere(self.kernel.numbered(None))

    def check(self, num_columns: int) -> None:
        if num_columns != 2:
            raise ValueError(
                f"Sphere reads longitude and latitude; got {num_columns} column(s). Use pgm.On(pgm.Sphere(kernel), "
                '["lon", "lat"]).'
            )
        try:
            self.kernel.check(1)
        except ValueError as error:
            raise ValueError(f"Sphere needs a kernel with one lengthscale, in km: {error}") from error

    def check_values(self, X: np.ndarray, name: str) -> None:
        beyond = np.flatnonzero((abs(X) > _LIMITS[:, 1]).any(axis=1))
        if len(beyond):
            longitude, latitude = X[beyond[0]]
            raise ValueError(
                f"{name} must have longitudes and then latitudes in degrees, as Sphere reads them; got {longitude:g} "
                f"and {latitude:g} in row {beyond[0]}."
            )

    def limits(self, num_columns: int) -> Float[np.ndarray, "d 2"]:
        return _LIMITS

    def __repr__(self) -> str:
        return f"Sphere({self.kernel!r})"


def _places(X: Any) -> Array:
    """Places (n, 3) in km from the centre of the earth, of degrees (n, 2)."""
    longitude, latitude = jnp.moveaxis(jnp.deg2rad(as_array(X)), -1, 0)
    across = jnp.cos(latitude)
    return RADIUS * jnp.stack(
        [across * jnp.cos(longitude), across * jnp.sin(longitude), jnp.sin(latitude)], axis=-1
    )  # fmt: skip
