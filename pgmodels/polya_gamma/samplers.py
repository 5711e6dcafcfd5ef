"""Draws of Pólya-Gamma variables by several backends."""

from collections.abc import Callable
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import ArrayLike, Float, PRNGKeyArray
from polyagamma import random_polyagamma

from pgmodels.numerics.elementary import namespace
from pgmodels.polya_gamma.laws import (
    MIN_CANCELLATION,
    SeriesLaw,
    TangentHat,
    TransformLaw,
    Window,
    alternating_series,
    cancellation,
    hat_of,
    in_domain,
    relative_mean,
    relative_variance_at_square,
    transform_law,
    weighted_series,
    window,
)
from pgmodels.runtime.jit import compiled

AnyArray = TypeVar("AnyArray", Array, np.ndarray)


def sample(generator: np.random.Generator, b: np.ndarray, c: np.ndarray) -> Float[np.ndarray, "..."]:
    """Draw from PG(b, c) exactly with a NumPy generator; nan if b < 0, b is not finite, or |c| > 1e20.

    Above b = 1e15 draws are normal, with the moments of PG(b, c): its skewness is below 1e-7 there.

    Each draw uses the cheapest valid method of three, so the cost is bounded in b. Any b: a sum of equal pieces, each
    drawn by rejection. Large b at moderate c: rejection from a hat of tangents, see ``draw_by_jax``. Integer part of b:
    Devroye's method in ``polyagamma``, b units. Its other methods are approximate (measured: 2 % too small, a variance
    5 % too large, or far off at c = 40). Devroye's fails at large c, for which rejection is cheap.
    """
    shape = np.shape(b)
    b, z = np.ravel(b), np.abs(np.ravel(c)) / 2
    large = (b > 1e15) & np.isfinite(b) & in_domain(np.ones_like(b), z)
    sizes, tilts = b[large], z[large]
    valid = in_domain(b, z)
    b, z = np.where(valid, b, 0.0), np.where(valid, z, 0.0)
    # The law depends only on z², and 1 + z² = 1 below this limit.
    z = np.where(z < 1e-9, 0.0, z)
    draws = np.where(valid, 0.0, np.nan)
    transformed = (cancellation(b, z) > MIN_CANCELLATION) & (b > 200)
    lanes = np.flatnonzero(transformed)
    if lanes.size:
        draws[lanes] += _by_tangents(generator, b[lanes], z[lanes]) / 4
    # A draw by tangents costs as much as about 200 of Devroye's units, and a proposal as much as 10.
    rejections = _rejections(b, z)
    pieces = np.maximum(np.ceil(rejections), 1)
    proposals = pieces * np.exp(rejections / pieces)
    devroye_units = np.where(transformed | (rejections < 0.05) | (b > 10 * proposals), 0.0, np.floor(b))
    lanes = np.flatnonzero(devroye_units)
    if lanes.size:
        draws[lanes] += random_polyagamma(
            devroye_units[lanes], 2 * z[lanes], method="devroye", disable_checks=True, random_state=generator
        )
    lanes = np.flatnonzero((b > devroye_units) & ~transformed)
    # A sum of k draws of J*(h/k, z), each accepted with probability >= 1/e.
    h, tilt = (b - devroye_units)[lanes], z[lanes]
    count = np.maximum(np.ceil(_rejections(h, tilt)), 1).astype(int)
    parts = _by_rejection(generator, np.repeat(h / count, count), np.repeat(tilt, count))
    draws[lanes] += np.bincount(np.repeat(np.arange(h.size), count), parts, h.size) / 4
    variance = sizes / 16 * relative_variance_at_square(tilts**2)
    draws[large] = sizes / 4 * relative_mean(tilts) + np.sqrt(variance) * generator.standard_normal(sizes.size)
    return draws.reshape(shape)


def _rejections(h: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return minus the log of the acceptance probability of ``_by_rejection``."""
    return h * np.log1p(np.exp(-2 * z))


def _by_tangents(generator: np.random.Generator, h: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Draw exactly from J*(h, z) if a TransformLaw is accurate."""
    bounds = window(h, z)
    law = transform_law(h, z, bounds)
    hat, reference = hat_of(law, bounds)
    draws, lanes = np.full(h.shape, np.nan), np.flatnonzero(np.isfinite(hat.masses.sum(0)))
    while lanes.size:
        lane_law, lane_bounds = TransformLaw(*(a[..., lanes] for a in law)), Window(*(a[lanes] for a in bounds))
        y, log_hat = TangentHat(*(a[..., lanes] for a in hat)).propose(generator.random(lanes.size))
        density = lane_law.evaluate(y)
        below = generator.random(lanes.size) * np.exp(log_hat - (density.scale - reference[lanes])) < density.factor
        accepted = below & (y > lane_bounds.lower) & (y < lane_bounds.upper)
        draws[lanes[accepted]] = (lane_bounds.mean + y)[accepted]
        lanes = lanes[~accepted]
    return draws


def _by_rejection(generator: np.random.Generator, h: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Draw exactly from J*(h, z) = 4 PG(h, 2z) for h > 0; a proposal has acceptance probability (1 + exp(-2z))^(-h).

    The transform of J*(h, 0), cosh(θ)^(-h) with θ = √(2s), is 2^h e^(-hθ) (1 + q)^(-h) with q = e^(-2θ). The first term
    is 2^h times the density of Brownian motion's first passage at h. For h <= 1, the excess e^(-hθ)(1 - (1+q)^(-h)) is
    a mixture over β in (0, 1) of e^(-hθ) βq/(1+βq), and e^(-θ)/(1+βq) is the transform of a positive measure (a passage
    time of skew Brownian motion). Products extend this to every h. The first term therefore dominates everywhere.
    Tilted by exp(-z²x/2), it is an inverse Gaussian with mean h/z and shape h².
    """
    draws = np.empty_like(h)
    lanes = np.arange(h.size)
    while lanes.size:
        normal, uniform = generator.standard_normal(lanes.size), generator.random(lanes.size)
        x = _first_passage(normal, uniform, h[lanes], z[lanes])
        # Beyond this x, the target's mass is below the spacing of the uniforms, and the series is only rounding.
        inside = (x > 0) & (x < 40 * np.maximum(h[lanes], 1))
        # If the passage time underflows at a tiny h, the first term is the whole series.
        density = np.where(x > 0, 0.0, 1.0)
        density[inside] = weighted_series(x[inside], h[lanes][inside])[0]
        accepted = generator.random(lanes.size) < density
        draws[lanes[accepted]] = x[accepted]
        lanes = lanes[~accepted]
    return draws


def _first_passage(normal: AnyArray, uniform: AnyArray, h: AnyArray, z: AnyArray) -> AnyArray:
    """Draw the time at which Brownian motion with drift z >= 0 reaches h > 0 (Michael, Schucany and Haas 1976)."""
    xp = namespace(h)
    w = normal**2 / 2
    root = h * z + w + xp.sqrt(w * (w + 2 * h * z))
    x = h**2 / xp.maximum(root, 1e-300)
    other = uniform * (h + x * z) < x * z
    return xp.where(other, root / xp.where(other, z, 1.0) ** 2, x)


HostSampler = Callable[[np.random.Generator, np.ndarray, np.ndarray], np.ndarray]


def on_host(sampler: HostSampler, key: PRNGKeyArray, b: Array, c: Array) -> Array:
    """Draw by a host sampler in float64, seeded by the key. Under ``vmap`` there is one call, seeded by all keys."""
    seed = jax.random.bits(key, (4,), jnp.uint32)
    # JAX runs the callback in another thread, in single precision: doubles are passed as pairs of 32-bit words.
    words = [jax.lax.bitcast_convert_type(a, jnp.uint32) for a in (b, c)]

    def draw_words(seed: Array, b_words: Array, c_words: Array) -> np.ndarray:
        entropy = np.ascontiguousarray(seed, dtype=np.uint32).ravel()
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy.tolist())))
        b, c = (np.ascontiguousarray(a, dtype=np.uint32).view(np.float64)[..., 0] for a in (b_words, c_words))
        return np.ascontiguousarray(sampler(generator, b, c)[..., None]).view(np.uint32)

    result = jax.ShapeDtypeStruct((*b.shape, 2), jnp.uint32)
    drawn = jax.pure_callback(draw_words, result, seed, *words, vmap_method="broadcast_all")
    return jax.lax.bitcast_convert_type(drawn, jnp.float64)


@cache
def package() -> ModuleType:
    """Return the package's compiled module. Raise ValueError if it is not installed.

    It is loaded without the package's ``__init__``, which needs ``scipy.integrate.simps``, removed in SciPy 1.14.
    """
    spec = find_spec("pypolyagamma")
    compiled = spec and PathFinder.find_spec("pypolyagamma.pypolyagamma", spec.submodule_search_locations)
    if not compiled or not compiled.loader:
        raise ValueError(
            'backend is "pypolyagamma", which is not installed: install pgmodels[pypolyagamma], or pass "c" or "jax".'
        )
    module = module_from_spec(compiled)
    compiled.loader.exec_module(module)
    return module


def sample_by_pypolyagamma(generator: np.random.Generator, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Draw exactly from PG(b, c): integer b up to 16 by ``PyPolyaGamma.pgdrawv``, all else by ``sample``.

    The package's source (PolyaGammaHybrid.h of version 1.2.3) uses Devroye's method only at b = 1 and b = 2. Below 1 it
    truncates a series, between 1 and 13 it uses its "alternate" sampler, above 13 a saddlepoint approximation, and
    above 170 a normal one. It is therefore called only with b = 1 and b = 2, and larger b are sums. Its generator has a
    32-bit seed: among 65,000 calls, two are likely to share a stream. It installs only from source, and its build
    downloads the GNU Scientific Library.
    """
    # Above 16, a sum of unit draws costs more than ``sample``.
    counted = (b >= 1) & (b <= 16) & (b == np.floor(b)) & in_domain(b, np.abs(c) / 2)
    draws = np.zeros(b.shape)
    draws[~counted] = sample(generator, b[~counted], c[~counted])
    source = package().PyPolyaGamma(int(generator.integers(1, 2**32)))
    rest = np.where(counted, b, 0.0)
    while np.any(rest > 0):
        lanes = rest > 0
        units = np.minimum(rest[lanes], 2.0)
        unit_draws = np.empty(units.size)
        source.pgdrawv(units, np.ascontiguousarray(c[lanes]), unit_draws)
        draws[lanes] += unit_draws
        rest[lanes] -= units
    return draws


@compiled
def draw_by_jax(key: PRNGKeyArray, b: Array, c: Array) -> Array:
    """Draw exactly from PG(b, c), b in [0, 1e15] and |c| <= 1e20 of one shape, in double precision; else nan.

    With J*(h, z) = 4 PG(h, 2z), one of three loops draws each lane, with one proposal per iteration until it is
    accepted. Loops without lanes are skipped.

    - h < 1: the first term of the alternating series dominates. A proposal is accepted with probability
      (1 + exp(-2z))^-h, at least 1/2.
    - h >= 1: J*(h, z) is a sum of Gamma variables of shape h >= 1, hence log-concave, and a hat of three tangents
      dominates it. At least 0.88 of proposals are accepted for all h and z. The density is summed from its alternating
      series, or if h exp(-2h/mean) > 14 (h > 104 at z = 0), from its characteristic function. Below that, a draw is a
      sum of equal pieces, one for each 5.2 of h at z = 0, fewer at larger z. Above, the cost does not depend on h.

    Exact means up to rounding. The densities err by less than 1e-12 of their mode up to b = 1e6, and then as √b. The
    windows that replace the real line omit a mass of 3e-14. For n lanes, a loop needs about 1 + log(n)/2.2 iterations
    on average if h >= 1 (1.3 for each further piece), and 1 + log(n)/0.7 at h near 1 otherwise.
    """
    shape = b.shape
    h, z = b.ravel(), jnp.abs(c.ravel()) / 2
    valid = in_domain(h, z)
    # The law depends only on z², and 1 + z² = 1 below this limit.
    h, z = jnp.where(valid, h, 0.0), jnp.where(valid & (z > 1e-9), z, 0.0)
    cancelling = cancellation(h, z)
    fractions = (h > 0) & (h < 1)
    transformed = (h >= 1) & (cancelling > MIN_CANCELLATION)
    summed = (h >= 1) & ~transformed
    # Up to a cancellation of 0.7, a SeriesLaw loses no digits.
    pieces = jnp.ceil(cancelling / 0.7)
    keys = jax.random.split(key, 3)
    total = jnp.where(valid, 0.0, jnp.nan)
    total += _if_any(fractions, lambda: draw_fractions(keys[0], fractions, h, z))
    total += _if_any(summed, lambda: draw_by_series(keys[1], summed, h, z, pieces))
    total += _if_any(transformed, lambda: draw_by_transform(keys[2], transformed, h, z))
    return (total / 4).reshape(shape)


def _if_any(lanes: Array, sampler: Callable[[], Array]) -> Array:
    """Return the sampler's draws, or 0 if no lane needs it. A loop, since under ``vmap`` a cond runs both branches."""
    start = jnp.any(lanes), jnp.zeros(lanes.shape)
    return lax.while_loop(lambda state: state[0], lambda _: (jnp.array(False), sampler()), start)[1]


def draw_by_series(key: PRNGKeyArray, lanes: Array, h: Array, z: Array, pieces: Array) -> Array:
    """Draw J*(h, z) for h >= 1 as a sum of equal pieces, with the density from its series; 0 outside ``lanes``."""
    pieces = jnp.where(lanes, jnp.maximum(pieces, 1.0), 0.0)
    h, z = jnp.where(lanes, h / jnp.maximum(pieces, 1.0), 1.0), jnp.where(lanes, z, 0.0)
    bounds = window(h, z)
    return _draw_log_concave(key, SeriesLaw(h, z, bounds.mean), bounds, pieces)


def draw_by_transform(key: PRNGKeyArray, lanes: Array, h: Array, z: Array) -> Array:
    """Draw J*(h, z) for large h, with the density from its characteristic function; 0 outside ``lanes``."""
    h, z = jnp.where(lanes, h, 200.0), jnp.where(lanes, z, 0.0)
    bounds = window(h, z)
    return _draw_log_concave(key, transform_law(h, z, bounds), bounds, lanes.astype(float))


def _draw_log_concave(key: PRNGKeyArray, law: SeriesLaw | TransformLaw, bounds: Window, count: Array) -> Array:
    """Return the sum of ``count`` draws of a law, 0 if count is 0; nan if the hat has no finite mass."""
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


def draw_fractions(key: PRNGKeyArray, lanes: Array, h: Array, z: Array) -> Array:
    """Draw J*(h, z) for 0 < h < 1 from first passages; ``_by_rejection`` explains why the first term dominates."""
    h, z = jnp.where(lanes, h, 1.0), jnp.where(lanes, z, 0.0)
    bounds = window(h, z)

    def body(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        i, active, draws = state
        normal_key, uniform_key = jax.random.split(jax.random.fold_in(key, i))
        uniforms = jax.random.uniform(uniform_key, (2, *h.shape))
        x = _first_passage(jax.random.normal(normal_key, h.shape), uniforms[0], h, z)
        inside = (x > 0) & (x < bounds.mean + bounds.upper)
        series, _ = alternating_series(jnp.where(inside, x, 1.0), h)
        # If a passage time underflows, the first term is the whole series.
        accepted = active & ((inside & (uniforms[1] < series)) | (x == 0))
        return i + 1, active & ~accepted, jnp.where(accepted, x, draws)

    return lax.while_loop(lambda state: jnp.any(state[1]), body, (jnp.array(0), lanes, jnp.zeros_like(h)))[2]


BACKENDS = ("c", "jax", "pypolyagamma")


def draw(key: PRNGKeyArray, b: ArrayLike, c: ArrayLike, backend: str | None = None) -> Array:
    """Draw exactly from PG(b, c), one for each entry of the broadcast ``b`` and ``c``, in float64.

    b = 0 gives exactly 0; the result is nan if b < 0 or |c| > 1e20. Above b = 1e15, "c" draws are normal and "jax"
    draws are nan. All backends run inside ``jit``, ``vmap`` and ``scan``, are deterministic in the key, and have a cost
    bounded in b:

    - "c": C and NumPy on the host. Under ``vmap`` there is one call per batch, whose draws depend on all keys.
    - "jax": compiled, on any device. Under ``vmap`` each key gives the same draws as without. It adds seconds to each
      compilation.
    - "pypolyagamma": the optional package of that name if it is exact, otherwise "c".

    None is "jax" on accelerators and "c" on a CPU. On a CPU, "jax" saves 0.4 ms per call of up to 1000 draws at b <= 5:
    10,000 calls repay its 3 s of compilation. At 10,000 draws it saves nothing. It pays if b > 50
    (validation/results/polya_gamma_speed.md), which is unknown at compile time. Raises ValueError for an unknown
    backend, for a backend that is not installed, and outside double precision.
    """
    if backend is not None and backend not in BACKENDS:
        raise ValueError(f"backend must be None or one of {', '.join(map(repr, BACKENDS))}; got {backend!r}.")
    if jnp.result_type(float) != jnp.float64:
        raise ValueError("polya_gamma.draw needs double precision: call it within jax.enable_x64(True).")
    b, c = jnp.broadcast_arrays(jnp.asarray(b, jnp.float64), jnp.asarray(c, jnp.float64))
    backend = backend or default_backend()
    if backend == "jax":
        return draw_by_jax(key, b, c)
    if backend == "c":
        return on_host(sample, key, b, c)
    package()
    return on_host(sample_by_pypolyagamma, key, b, c)


def default_backend() -> str:
    """Return the default backend of ``draw`` for JAX's default platform."""
    return "c" if jax.default_backend() == "cpu" else "jax"
