"""Nanoseconds for a Pólya-Gamma draw by each backend, and what compiling costs."""

import time
from collections.abc import Callable
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
from table import write_table

from pgmodels import polya_gamma

BACKENDS = [name for name in polya_gamma.BACKENDS if name != "pypolyagamma" or find_spec(name)]


def least_seconds(function: Callable[[], object], repeats: int) -> float:
    """The least time of a call: the machine may be doing other work."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - start)
    return min(times)


def program(backend: str, n: int) -> Callable[..., jax.Array]:
    """A compiled program that draws n, which JAX has not met before."""
    jax.clear_caches()
    example = jnp.zeros(n)
    function = jax.jit(lambda key, b, c: polya_gamma.draw(key, b, c, backend))
    return function.lower(jax.random.key(0), example, example).compile()


rows = []
with jax.enable_x64(True):
    for n in (100, 1000, 10_000):
        rng = np.random.default_rng(0)
        c = jnp.asarray(2 * rng.standard_normal(n))
        shapes = {str(b): np.full(n, float(b)) for b in (0.5, 1, 2, 5, 20, 100, 1000, 100_000)}
        shapes |= {f"Poisson, mean {mean}": rng.poisson(mean, n).astype(float) for mean in (5, 50)}
        compiling = {name: least_seconds(lambda name=name, n=n: program(name, n), repeats=3) for name in BACKENDS}
        programs = {name: program(name, n) for name in BACKENDS}
        for label, b in shapes.items():
            arguments = jax.random.key(1), jnp.asarray(b), c
            times = {
                name: least_seconds(lambda draw=draw, a=arguments: draw(*a), repeats=20)
                for name, draw in programs.items()
            }
            saved, cost = times["c"] - times["jax"], compiling["jax"] - compiling["c"]
            rows.append(
                {
                    "n": n,
                    "b": label,
                    **{f"{name}, ns a draw": 1e9 * seconds / n for name, seconds in times.items()},
                    **{f"{name}, s to compile": seconds for name, seconds in compiling.items()},
                    "calls that repay compiling jax": round(cost / saved) if saved > 0 else "never",
                }
            )
missing = "" if "pypolyagamma" in BACKENDS else " pypolyagamma is not installed here, and not in the table."
write_table(
    "Pólya-Gamma draws by each backend",
    rows,
    "PG(b, c) with c normal of standard deviation 2, n draws a call. Times are minima, over 20 calls and over 3 "
    "compilations, since the machine had other work to do: the load moves a row by a factor of two. The last column "
    "is the extra time that compiling jax takes, a program, over what it saves a call. On a CPU draw() takes c unless "
    f"told otherwise, since most runs make some thousand calls from two or three programs.{missing}",
    seed=0,
)
