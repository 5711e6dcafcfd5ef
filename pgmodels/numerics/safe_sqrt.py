"""A square root whose derivative at 0 is 0."""

import jax
import jax.numpy as jnp
from jax import Array


# The value uses no jnp.where: XLA miscompiles nested selects (jaxlib 0.10.1 and 0.10.2 with default options: with
# lengthscales per column, the covariance of a row with itself lost up to half of the variance).
@jax.custom_jvp
def safe_sqrt(squared: Array) -> Array:
    """The square root with derivative 0 at 0, as of a distance with respect to a lengthscale."""
    return jnp.sqrt(squared)


@safe_sqrt.defjvp
def _safe_sqrt_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (squared,), (change,) = primals, tangents
    root, positive = safe_sqrt(squared), squared > 0.0
    return root, jnp.where(positive, change / (2.0 * jnp.where(positive, root, 1.0)), 0.0)
