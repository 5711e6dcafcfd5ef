"""Joint draws of a Markov process at new inputs given its states at the data, against the covariance matrix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.priors.chain import apply, paths
from tests.covering import some

KERNELS = [
    pgm.Matern12(1.7, 0.8),
    pgm.Matern32(1.7, 0.8) + pgm.Constant(0.5),
    pgm.Matern52(1.7, 0.8) * pgm.Matern12(0.9, 3.0) + pgm.White(0.2),
]
# Unsorted: several in one gap, at rows of the data, twice the same, before all and after all.
NEW = np.array([0.5, -2.0, 0.55, 9.0, 1.0, 0.55, -3.0, 12.0, 2.5])[:, None]
X = np.array([1.0, 0.4, 0.4 + 1e-6, 4.0, 2.9])[:, None]


@pytest.mark.parametrize("kernel", some([(kernel,) for kernel in KERNELS], (KERNELS[0],)))
def test_the_joint_covariance_with_the_data_is_the_kernels(kernel):
    with jax.enable_x64(True):
        prior = pgm.Markov().bind(kernel, 0.4, X, 1).for_sampling()
        d, n, m = prior.dimension, len(X), len(NEW)

        draw_given = jax.jit(lambda *arrays: prior.draw_given(*arrays))

        def joint(noise, shocks):
            states = paths(prior.chain.transition, apply(prior.noise_roots[:, None], noise.reshape(n, 1, d)))
            coordinates = prior.coordinates(states)
            new = prior.draw_given(jnp.asarray(NEW), coordinates, shocks.reshape(m, 1, d))
            return jnp.concatenate([prior.latents(coordinates), new])[:, 0]

        zeros = jnp.zeros(n * d), jnp.zeros(m * d)
        np.testing.assert_allclose(jax.jit(joint)(*zeros), 0.4, atol=1e-12)
        # Draws are linear in the standard normals.
        J = np.concatenate(jax.jit(jax.jacfwd(joint, argnums=(0, 1)))(*zeros), axis=1)
        rows = np.concatenate([X, NEW])
        np.testing.assert_allclose(J @ J.T, np.asarray(kernel(rows, rows)), rtol=0, atol=1e-8)
        # Draws of several coordinates at once are those of each.
        rng = np.random.default_rng(0)
        coordinates, shocks = rng.normal(size=(3, n * d, 1)), rng.normal(size=(3, m, 1, d))
        together = draw_given(jnp.asarray(NEW), jnp.asarray(coordinates), jnp.asarray(shocks))
        apart = [
            draw_given(jnp.asarray(NEW), *map(jnp.asarray, pair)) for pair in zip(coordinates, shocks, strict=True)
        ]
        np.testing.assert_allclose(together, np.stack(apart), atol=1e-12)
