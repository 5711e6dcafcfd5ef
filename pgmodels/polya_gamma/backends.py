"""Exact Pólya-Gamma draws with a choice of samplers."""

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
    inside ``jit``, ``vmap`` and ``scan``, are deterministic in the key, and have a cost bounded in b:

    - "c": C and NumPy on the host; under ``vmap`` one call per batch, whose draws depend on all keys.
    - "jax": compiled, on any device; under ``vmap`` each key gives the same draws as without. Adds seconds to each
      compilation.
    - "pypolyagamma": the optional package of that name where it is exact, otherwise "c".

    None is "jax" on accelerators and "c" on a CPU. On a CPU "jax" saves 0.4 ms a call of up to 1000 draws at b <= 5,
    so that its 3 s of compilation take 10,000 calls to repay, and nothing at 10,000 draws. It pays where b > 50
    (validation/results/polya_gamma_speed.md), which is unknown at compile time.
    Raises ValueError for an unknown backend, one that is not installed, and outside double precision.
    """
    if backend is not None and backend not in BACKENDS:
        raise ValueError(f"backend must be None or one of {', '.join(map(repr, BACKENDS))}; got {backend!r}.")
    if jnp.result_type(float) != jnp.float64:
        raise ValueError("polya_gamma.draw needs double precision: call it within jax.enable_x64(True).")
    b, c = jnp.broadcast_arrays(jnp.asarray(b, jnp.float64), jnp.asarray(c, jnp.float64))
    return _SAMPLERS[backend or default_backend()](key, b, c)


def default_backend() -> str:
    """The default backend of ``draw`` for JAX's default platform."""
    return "c" if jax.default_backend() == "cpu" else "jax"
