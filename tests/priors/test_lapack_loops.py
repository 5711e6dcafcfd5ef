"""Functions that ``vmap`` turns into loops give the numbers of the functions themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.scipy.special import log_ndtr

import pgmodels as pgm
from pgmodels.priors.linalg import vmap_as_loop, vmap_as_loop_if_batched

X = np.linspace(-2.0, 1.5, 3)
SCALES = np.array([0.5, 1.0, 3.0])


def scaled_gradient(scale, x):
    # The derivative of a function with a rule of its own (jax.custom_jvp).
    return scale * jax.grad(log_ndtr)(x)


@pytest.mark.parametrize("wrap", [vmap_as_loop, vmap_as_loop_if_batched])
@pytest.mark.parametrize("axes", [None, (0, 0), (None, 0)])
def test_the_derivative_of_a_function_with_its_own_rule(wrap, axes):
    arguments = (SCALES[0] if axes is None or axes[0] is None else SCALES), (X[0] if axes is None else X)

    def both(function):
        return jax.jit(function if axes is None else jax.vmap(function, in_axes=axes))(*map(jnp.asarray, arguments))

    np.testing.assert_allclose(both(wrap(scaled_gradient)), both(scaled_gradient), rtol=1e-6)


@pytest.mark.slow
def test_gibbs_samples_hyperparameters_of_a_probit_model():
    # Its surrogate differentiates log_ndtr in a loop.
    rows, y = X[:, None], (X > 0.0).astype(float)
    model = pgm.Model(pgm.Probit(), pgm.GP(pgm.RBF(dist.LogNormal(0.0, 1.0), 1.0)))
    draws = pgm.gibbs(model, rows, y, num_samples=4, num_warmup=2, num_chains=1, seed=0, progress=False)
    assert np.unique(draws.hyperparameters["variance"]).size > 1
