"""Exact Pólya-Gamma draws in JAX: compiled, batched, without callbacks, for any real b at a bounded cost."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import PRNGKeyArray

from pgmodels.polya_gamma.laws import (
    MIN_CANCELLATION,
    SeriesLaw,
    TransformLaw,
    Window,
    alternating_series,
    cancellation,
    hat_of,
    in_domain,
    transform_law,
    window,
)
from pgmodels.runtime.jit import compiled

# Up to this cancellation a SeriesLaw loses no digits; between it and MIN_CANCELLATION draws are sums of equal pieces.
_PIECE = 0.7


@compiled
def draw(key: PRNGKeyArray, b: Array, c: Array) -> Array:
    """Exact draws of PG(b, c) for b in [0, 1e15] and |c| <= 1e20 of one shape, nan elsewhere, in double precision.

    With J*(h, z) = 4 PG(h, 2z), each lane is drawn by one of three loops, with one proposal per iteration until it is
    accepted; loops without lanes are skipped.

    - h < 1: the first term of the alternating series dominates; a proposal is accepted with probability
      (1 + exp(-2z))^-h, at least 1/2.
    - h >= 1: J*(h, z) is a sum of Gamma variables of shape h >= 1, hence log-concave, and a hat of three tangents
      dominates it; at least 0.88 of proposals are accepted, whatever h and z. The density is summed from its
      alternating series, or from its characteristic function where h exp(-2h/mean) > 14 (h > 104 at z = 0). Up to
      there a draw is a sum of equal pieces, one for each 5.2 of h at z = 0, fewer at larger z; beyond, the cost does
      not depend on h.

    Exact means up to rounding: the densities err by less than 1e-12 of their mode (up to b = 1e6; then as √b), and
    the windows that replace the real line omit a mass of 3e-14. For n lanes a loop takes about 1 + log(n)/2.2
    iterations on average where h >= 1 (and 1.3 for each further piece) and 1 + log(n)/0.7 at h near 1 otherwise.
    """
    shape = b.shape
    h, z = b.ravel(), jnp.abs(c.ravel()) / 2
    valid = in_domain(h, z)
    # The law depends on z² alone, and 1 + z² = 1 below this.
    h, z = jnp.where(valid, h, 0.0), jnp.where(valid & (z > 1e-9), z, 0.0)
    cancelling = cancellation(h, z)
    fractions = (h > 0) & (h < 1)
    transformed = (h >= 1) & (cancelling > MIN_CANCELLATION)
    summed = (h >= 1) & ~transformed
    keys = jax.random.split(key, 3)
    total = jnp.where(valid, 0.0, jnp.nan)
    total += _if_any(fractions, lambda: _draw_fractions(keys[0], fractions, h, z))
    total += _if_any(summed, lambda: _draw_by_series(keys[1], summed, h, z, jnp.ceil(cancelling / _PIECE)))
    total += _if_any(transformed, lambda: _draw_by_transform(keys[2], transformed, h, z))
    return (total / 4).reshape(shape)


def _if_any(lanes: Array, sampler: Callable[[], Array]) -> Array:
    """The sampler's draws, 0 if no lane needs it. A loop, since under ``vmap`` a cond runs both branches."""
    start = jnp.any(lanes), jnp.zeros(lanes.shape)
    return lax.while_loop(lambda state: state[0], lambda _: (jnp.array(False), sampler()), start)[1]


def _draw_by_series(key: PRNGKeyArray, lanes: Array, h: Array, z: Array, pieces: Array) -> Array:
    pieces = jnp.where(lanes, jnp.maximum(pieces, 1.0), 0.0)
    h, z = jnp.where(lanes, h / jnp.maximum(pieces, 1.0), 1.0), jnp.where(lanes, z, 0.0)
    bounds = window(h, z)
    return _draw_log_concave(key, SeriesLaw(h, z, bounds.mean), bounds, pieces)


def _draw_by_transform(key: PRNGKeyArray, lanes: Array, h: Array, z: Array) -> Array:
    h, z = jnp.where(lanes, h, 200.0), jnp.where(lanes, z, 0.0)
    bounds = window(h, z)
    return _draw_log_concave(key, transform_law(h, z, bounds), bounds, lanes.astype(float))


def _draw_log_concave(key: PRNGKeyArray, law: SeriesLaw | TransformLaw, bounds: Window, count: Array) -> Array:
    """The sum of ``count`` draws of a law, 0 where count is 0; nan where the hat has no finite mass."""
    hat, reference = hat_of(law, bounds)
    # Lanes without a finite hat would never accept.
    valid = jnp.isfinite(hat.masses.sum(0)) & jnp.all(hat.masses > 0, 0)

    def body(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        i, remaining, total = state
        uniforms = jax.random.uniform(jax.random.fold_in(key, i), (2, *remaining.shape))
        y, log_hat = hat.propose(uniforms[0])
        inside = (y > bounds.lower) & (y < bounds.upper)
        density = law.evaluate(jnp.where(inside, y, 0.0))
        below = uniforms[1] * jnp.exp(log_hat - (density.scale - reference)) < density.factor
        accepted = below & inside & (remaining > 0)
        return i + 1, remaining - accepted, total + jnp.where(accepted, bounds.mean + y, 0.0)

    start = jnp.array(0), jnp.where(valid, count, 0.0), jnp.where(valid | (count == 0), 0.0, jnp.nan)
    return lax.while_loop(lambda state: jnp.any(state[1] > 0), body, start)[2]


def _draw_fractions(key: PRNGKeyArray, lanes: Array, h: Array, z: Array) -> Array:
    """J*(h, z) for 0 < h < 1 from first passages; see ``numpy_sampler`` for why the series' first term dominates."""
    h, z = jnp.where(lanes, h, 1.0), jnp.where(lanes, z, 0.0)
    bounds = window(h, z)

    def body(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        i, active, draws = state
        normal_key, uniform_key = jax.random.split(jax.random.fold_in(key, i))
        uniforms = jax.random.uniform(uniform_key, (2, *h.shape))
        x = _first_passage(jax.random.normal(normal_key, h.shape), uniforms[0], h, z)
        inside = (x > 0) & (x < bounds.mean + bounds.upper)
        series, _ = alternating_series(jnp.where(inside, x, 1.0), h)
        # A passage time that underflows is where the first term is the whole series.
        accepted = active & ((inside & (uniforms[1] < series)) | (x == 0))
        return i + 1, active & ~accepted, jnp.where(accepted, x, draws)

    return lax.while_loop(lambda state: jnp.any(state[1]), body, (jnp.array(0), lanes, jnp.zeros_like(h)))[2]


def _first_passage(normal: Array, uniform: Array, h: Array, z: Array) -> Array:
    """When a Brownian motion with drift z >= 0 first reaches h > 0 (Michael, Schucany and Haas 1976)."""
    w = normal**2 / 2
    root = h * z + w + jnp.sqrt(w * (w + 2 * h * z))
    x = h**2 / jnp.maximum(root, 1e-300)
    other = uniform * (h + x * z) < x * z
    return jnp.where(other, root / jnp.where(z > 0, z, 1.0) ** 2, x)
