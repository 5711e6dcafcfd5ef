"""Programs with options of ours give the numbers of the same operations one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.linalg import solve_triangular

import pgmodels as pgm
from pgmodels.compiled import compiled, compiled_lightly, compiled_sampler, compiled_sampler_lightly

RNG = np.random.default_rng(4)
X = RNG.uniform(-1.5, 1.5, (32, 2))
# Two new rows, two that are also data, and one of the new ones again.
X_NEW = np.vstack([RNG.uniform(-2.0, 2.0, (2, 2)), X[[4, 11]]])
X_NEW = np.vstack([X_NEW, X_NEW[:1]])
HALF = RNG.normal(size=(32, 32))
ROOT = np.linalg.cholesky(np.eye(32) + HALF @ HALF.T / 32)
KERNELS = [
    pgm.RBF(1.4, np.array([0.6, 1.7])),
    pgm.Matern12(1.4, np.array([0.6, 1.7])),
    pgm.Matern32(1.4, np.array([0.6, 1.7])),
    pgm.Matern32(1.4, 0.8),
    pgm.Matern52(1.4, np.array([0.6, 1.7])),
]


def as_installed(function):
    """At the usual level, which the default tests leave."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 3})


WAYS = [compiled, compiled_lightly, compiled_sampler, compiled_sampler_lightly, as_installed]


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("compile_", WAYS)
def test_covariances_of_a_row_with_itself_that_are_used_twice(compile_, kernel):
    """Between its lowest and its usual level XLA gets these wrong by the half of a variance."""

    def both(kernel, X, live, root, X_new):
        K = live[:, None] * kernel(X, X_new)
        return K, jnp.sum(solve_triangular(root, live[:, None] * K, lower=True) ** 2, axis=0)

    with jax.enable_x64(True):
        values = jax.tree.map(jnp.asarray, pgm.parameters.bare(kernel))
        K, explained = compile_(both)(values, *map(jnp.asarray, (X, np.ones(32), ROOT, X_NEW)))
        one_by_one = np.asarray(kernel(jnp.asarray(X), jnp.asarray(X_NEW)))
    np.testing.assert_allclose(K, one_by_one, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(explained, np.sum(np.linalg.solve(ROOT, one_by_one) ** 2, axis=0), rtol=1e-10)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, OSError])
def test_an_interruption_of_a_host_function_is_one_of_the_program(raised):
    def host(x):
        raise raised

    program = compiled(lambda x: jax.pure_callback(host, jax.ShapeDtypeStruct((), x.dtype), x))
    with pytest.raises((KeyboardInterrupt, RuntimeError, ValueError)) as caught:
        jax.block_until_ready(program(jnp.zeros(())))
    assert (caught.type is KeyboardInterrupt) == (raised is KeyboardInterrupt)
