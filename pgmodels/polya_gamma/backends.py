"""One call for exact Pólya-Gamma draws, whichever sampler makes them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import ArrayLike, PRNGKeyArray

from pgmodels.polya_gamma import callback, jax_sampler, pypolyagamma_sampler

_SAMPLERS: dict[str, Callable[[PRNGKeyArray, Array, Array], Array]] = {
    "c": callback.draw,
    "jax": jax_sampler.draw,
    "pypolyagamma": pypolyagamma_sampler.draw,
}
BACKENDS = tuple(_SAMPLERS)


def draw(key: PRNGKeyArray, b: ArrayLike, c: ArrayLike, backend: str | None = None) -> Array:
    """Exact draws of PG(b, c), one for each entry of the broadcast ``b`` and ``c``, in float64.

    b = 0 gives exactly 0; nan where b < 0 or |c| > 1e20. Beyond b = 1e15 "c" is normal and "jax" nan. All backends run
    inside ``jit``, ``vmap`` and ``scan``, are a function of the key, and have a cost that is bounded in b:

    - "c": C and NumPy on the host; under ``vmap`` one call for the whole batch, whose draws depend on all its keys.
    - "jax": compiled with the program around it, on any device; under ``vmap`` each key gives the draws that it gives
      alone. Adds some seconds to each compilation.
    - "pypolyagamma": the optional package of that name where it is exact, "c" elsewhere.

    None is "jax" on accelerators and "c" on a CPU. There "jax" saves some 0.4 ms a call of up to 1000 draws at b <= 5,
    10,000 calls to repay its compilation of some 3 s a program, and saves nothing at 10,000 draws. It pays where b is
    beyond 50 (validation/results/polya_gamma_speed.md), which shapes do not tell.
    Raises ValueError for another backend, for one that is not installed, and outside double precision.
    """
    if backend is not None and backend not in BACKENDS:
        raise ValueError(f"backend must be None or one of {', '.join(map(repr, BACKENDS))}; got {backend!r}.")
    if jnp.result_type(float) != jnp.float64:
        raise ValueError("polya_gamma.draw needs double precision: call it within jax.enable_x64(True).")
    b, c = jnp.broadcast_arrays(jnp.asarray(b, jnp.float64), jnp.asarray(c, jnp.float64))
    return _SAMPLERS[backend or default_backend()](key, b, c)


def default_backend() -> str:
    """The backend that ``draw`` takes when none is named, by the platform that JAX computes on."""
    return "c" if jax.default_backend() == "cpu" else "jax"
