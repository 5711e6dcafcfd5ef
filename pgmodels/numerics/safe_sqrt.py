"""The square root, with a derivative at 0."""

import jax
import jax.numpy as jnp
from jax import Array


# The value has no choice in it: XLA mistakes one of two nested ones (jaxlib 0.10.1, 0.10.2, as they are installed: with
# lengthscales by column, the covariance of a row with itself lost up to half of the variance).
@jax.custom_jvp
def safe_sqrt(squared: Array) -> Array:
    """The square root, with derivative 0 at 0: that of a distance in a lengthscale, and what is known has no moment."""
    return jnp.sqrt(squared)


@safe_sqrt.defjvp
def _safe_sqrt_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (squared,), (change,) = primals, tangents
    root, positive = safe_sqrt(squared), squared > 0.0
    return root, jnp.where(positive, change / (2.0 * jnp.where(positive, root, 1.0)), 0.0)
