"""Spectral densities and basis functions of Hilbert space GPs, against NumPyro's, quadrature and the kernels."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.contrib.hsgp import laplacian
from numpyro.contrib.hsgp.spectral_densities import (
    diag_spectral_density_matern,
    diag_spectral_density_squared_exponential,
)
from scipy.integrate import quad

import pgmodels as pgm
from pgmodels.parameters.parameter import bare_arrays
from pgmodels.priors.base import Sites
from pgmodels.priors.hilbert import Basis, TruncatedKernel
from pgmodels.priors.representation import Binding

pytestmark = pytest.mark.usefixtures("double_precision")

STATIONARY = {0.5: pgm.Matern12, 1.5: pgm.Matern32, 2.5: pgm.Matern52, np.inf: pgm.RBF}


@pytest.mark.parametrize("nu", STATIONARY)
def test_a_density_is_the_transform_of_its_kernel(nu):
    kernel = STATIONARY[nu](1.7, 0.6)
    (spectrum,) = kernel.spectra(1).values()

    def density(frequency):
        return float(spectrum.density(np.array([[frequency]]))[0])

    for r in (0.0, 0.3, 1.1):
        # k(r) is the integral of S(w) cos(w r) / pi over w > 0, of which Matern12 has 1e-5 beyond 1e5.
        near = quad(lambda w, r=r: density(w) * np.cos(w * r), 0.0, 60.0, limit=400)[0]
        far = quad(density, 60.0, 1e5, limit=400, **({"weight": "cos", "wvar": r} if r else {}))[0]
        expected = float(kernel(np.zeros((1, 1)), np.full((1, 1), r))[0, 0])
        assert (near + far) / np.pi == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("nu", STATIONARY)
@pytest.mark.parametrize("columns", [1, 3])
def test_basis_and_weights_are_those_of_numpyro(nu, columns):
    counts, half = [5, 4, 3][:columns], [2.0, 3.0, 2.5][:columns]
    lengthscale = np.array([0.7, 1.3, 2.0])[:columns]
    X = np.random.default_rng(0).uniform(-2.0, 2.0, (6, columns))
    kernel = TruncatedKernel(
        bare_arrays(STATIONARY[nu](1.7, lengthscale)),
        Basis(tuple(counts), tuple((1.0 - length, 1.0 + length) for length in half)),
    )
    arguments = 1.7, lengthscale, half, counts, columns
    density = np.asarray(
        diag_spectral_density_squared_exponential(*arguments)
        if nu == np.inf
        else diag_spectral_density_matern(nu, *arguments)
    )
    # NumPyro's intervals are about zero, and its order of the products is another.
    functions, ours = np.asarray(laplacian.eigenfunctions(X, half, counts)).T, np.asarray(kernel.functions(X + 1.0))
    np.testing.assert_allclose(np.sort(ours, axis=0), np.sort(functions, axis=0), rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.sort(kernel.scale() ** 2), np.sort(density), rtol=1e-12)
    K = functions.T @ (density[:, None] * functions)
    np.testing.assert_allclose(kernel(X + 1.0, X + 1.0), K, rtol=0, atol=1e-12)


def test_sums_and_products_of_columns_have_the_covariance_of_the_kernel():
    X = np.random.default_rng(1).uniform(-1.0, 1.0, (7, 4))
    smooth = pgm.On(pgm.RBF(1.3, [0.8, 1.1]), [3, 0])
    kernel = (smooth + pgm.On(pgm.RBF(0.4, 0.9) * pgm.Constant(0.6), [0])) * pgm.On(pgm.RBF(1.0, 0.7), [2])
    kernel = kernel + pgm.On(pgm.RBF(0.5, 1.2), [2]) + pgm.On(pgm.RBF(0.3, 0.9), [2]) + pgm.Constant(0.2)
    form = pgm.Hilbert(22, domain=[(-5.0, 5.0), None, (-5.5, 5.0), (-5.0, 5.0)])
    form.check(kernel, 4)
    prior = form.bind(kernel, 0.0, X, 1)
    # Constant, (0, 2), (0, 2, 3) and (2,): the two functions of column 2 share a basis.
    assert prior.rank == 1 + 22**2 + 22**3 + 22
    # Lengthscale 0.7 at the 22nd frequency, 6.6: exp(-10.7).
    np.testing.assert_allclose(prior.factor.T @ prior.factor, kernel(X, X), rtol=0, atol=2e-5)


def test_what_is_left_out_is_the_image_of_a_row_across_the_ends():
    # With all functions, k_box(x, x) = k(0) - k(2 d) at a distance d from an end: the sine series is odd across it.
    X = np.linspace(0.0, 6.0, 13)[:, None]
    prior = pgm.Hilbert(60, domain=[(-0.4, 20.0)]).bind(pgm.RBF(1.7, 1.0), 0.0, X, 1)
    np.testing.assert_allclose(prior.truncated_shares(), np.exp(-2.0 * (X[:, 0] + 0.4) ** 2), rtol=0, atol=1e-10)


def test_hyperparameter_steps_at_fixed_sites_are_free_of_n():
    n, form = 1003, pgm.Hilbert(20, domain=[(-3.0, 9.0)])
    structure = jax.tree.structure(bare_arrays(pgm.RBF(1.0, 1.0)))

    def log_normalizer(values, X, sites):
        prior = form.bind(jax.tree.unflatten(structure, list(values)), jnp.zeros(()), X, 1, Binding(traced=True))
        return prior.condition(sites).log_normalizer()

    @jax.jit
    def ascend(values, X, sites, steps):
        return jax.lax.fori_loop(0, steps, lambda _, v: v + 1e-3 * jax.grad(log_normalizer)(v, X, sites), values)

    column = jnp.ones((n, 1))
    program = ascend.lower(jnp.ones(2), column, Sites(column, column), jnp.array(5)).compile().as_text()
    bodies = set(re.findall(r"body=%?([\w.]+)", program))
    loops = [part for part in program.split("\n\n") if part.strip().lstrip("%").split(" ")[0] in bodies]
    assert "1003" in program
    assert loops
    assert not any("1003" in part for part in loops)
