"""The Gaussian that the sampler expects at other hyperparameters."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import pgmodels as pgm
from pgmodels.diagnostics.convergence import convergence_by_latent
from pgmodels.inference import gibbs_run
from pgmodels.inference.gaussian_vi import fit_surrogate
from pgmodels.inference.response import constant_response, linear_response
from pgmodels.latent.surrogate import build_surrogate, choose_blocks

MIDDLE = np.array([0.4, -1.0])
SCALE = np.array([[0.5, 0.0], [0.2, 0.3]])


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def gaussian(centre, marginals):
    """A fit with a given centre of whitened coordinates and given marginals."""
    prior = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.5, 0.7), mean=0.4)).prior(np.array([[0.0], [0.3], [1.1]]))
    W = np.array([0.5, 2.0, 1.0])[:, None, None]
    built = build_surrogate(prior, jnp.array([[0.3], [-1.0], [0.2]]), jnp.asarray(W), choose_blocks(prior))
    return replace(built, centre=jnp.asarray(centre)), marginals


def test_linear_means_and_log_deviations_are_reproduced_within_three_deviations():
    rng = np.random.default_rng(0)
    a, slope = rng.normal(size=(3, 2)), rng.normal(size=(2, 3, 2))
    root, log_slope = rng.normal(size=(3, 2, 2)), 0.3 * rng.normal(size=(2, 3, 2))
    centre_slope = rng.normal(size=(2, 3))

    def fit(z):
        return gaussian(np.array([0.1, -0.2, 0.9]) + z @ centre_slope, marginals(z))

    def marginals(z):
        D = np.exp(np.einsum("d,dil->il", z, log_slope))
        covariance = root @ root.swapaxes(1, 2)
        return jnp.asarray(a + np.einsum("d,dil->il", z, slope)), jnp.asarray(D[:, :, None] * covariance * D[:, None])

    axes = np.eye(2)
    response = linear_response(fit(np.zeros(2)), MIDDLE, SCALE, [(fit(e), fit(-e)) for e in axes])
    np.testing.assert_allclose(response.centre_slope, centre_slope, rtol=1e-12)
    for z, held in (([0.7, -1.9], [0.7, -1.9]), ([5.0, 0.3], [3.0, 0.3]), ([0.0, -9.0], [0.0, -3.0])):
        found = response.at(MIDDLE + SCALE @ jnp.array(z))
        for one, other in zip(found, marginals(np.array(held)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)


def test_standard_coordinates_are_undone_and_have_a_constant_jacobian():
    rng = np.random.default_rng(2)
    one = (jnp.ones((3, 1)), jnp.ones((3, 1, 1)))
    neighbours = [tuple(gaussian(rng.normal(size=3), one) for _ in range(2)) for _ in range(2)]
    response = linear_response(gaussian([0.1, -0.2, 0.9], one), MIDDLE, SCALE, neighbours)
    # At the middle and its centre is the origin; one deviation of a hyperparameter on, the centre has moved.
    np.testing.assert_allclose(response.standardise(MIDDLE, response.surrogate.centre), 0.0, atol=1e-14)
    moved = response.place(jnp.array([0.0, 1.0, 0.0, 0.0, 0.0]))
    np.testing.assert_allclose(moved[0], MIDDLE + SCALE[:, 1])
    np.testing.assert_allclose(moved[1], response.surrogate.centre + response.centre_slope[1])
    determinants = []
    for standard in rng.normal(size=(3, 5)):
        np.testing.assert_allclose(response.standardise(*response.place(jnp.asarray(standard))), standard, atol=1e-12)
        jacobian = jax.jacobian(lambda x: jnp.concatenate(response.place(x)))(jnp.asarray(standard))
        determinants.append(np.linalg.slogdet(jacobian)[1])
    # u has the precision P = R R^T of the surrogate.
    expected = np.log(np.diag(SCALE)).sum() - np.log(np.diag(response.surrogate.roots[0])).sum()
    np.testing.assert_allclose(determinants, expected, rtol=1e-12)


def test_a_neighbour_that_failed_gives_no_slope():
    good = gaussian(np.ones(3), (jnp.ones((3, 1)), jnp.ones((3, 1, 1))))
    bad = gaussian(np.full(3, np.nan), (jnp.full((3, 1), jnp.nan), jnp.full((3, 1, 1), jnp.nan)))
    response = linear_response(good, MIDDLE, SCALE, [(good, bad), (bad, good)])
    for one, other in zip(response.at(MIDDLE + 1.0), good[1], strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(response.centre_slope, np.zeros((2, 3)))


def test_it_foresees_the_gaussian_fitted_at_another_dispersion():
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(9, 1)), rng.negative_binomial(4.0, 0.4, 9).astype(float)

    def fitted(log_dispersion, start=None):
        model = pgm.Model(pgm.NegativeBinomial(float(np.exp(log_dispersion))), pgm.GP(pgm.RBF(1.0, 1.0)))
        return fit_surrogate(model.augmentation, model.prior(X), jnp.asarray(y), model.parameters, start)

    fit = fitted(1.0)
    middle, scale = jnp.array([1.0]), jnp.array([[0.4]])
    response = linear_response(fit, middle, scale, [(fitted(1.4, fit[0]), fitted(0.6, fit[0]))])
    target = fitted(1.25)[1]
    for i, transform in enumerate((lambda x: x, np.log)):
        error = np.abs(transform(response.at(jnp.array([1.25]))[i]) - transform(target[i])).max()
        without = np.abs(transform(constant_response(fit, middle).at(middle)[i]) - transform(target[i])).max()
        assert without > 0.02
        assert error < 0.2 * without


@pytest.mark.slow
def test_a_dispersion_mixes_better_where_the_factors_follow_it(monkeypatch):
    rng = np.random.default_rng(2)
    X = np.linspace(-1.7, 1.7, 60)[:, None]
    y = rng.poisson(np.exp(0.3 - X[:, 0])).astype(float)
    kernel = pgm.Matern52(dist.LogNormal(0.0, 1.0), dist.LogNormal(0.0, 0.7))
    model = pgm.Model(pgm.NegativeBinomial(dist.LogNormal(1.5, 0.7)), pgm.GP(kernel, mean=-1.0))

    def effective():
        draws = pgm.gibbs(model, X, y, num_samples=1000, num_warmup=200, seed=0)
        logs = np.log(draws.hyperparameters["likelihood.dispersion"])
        return float(convergence_by_latent(logs[..., None, None])[0].min())

    following = effective()
    monkeypatch.setattr(gibbs_run, "linear_response", lambda fit, middle, *_: constant_response(fit, middle))
    held = effective()
    print(f"ESS {following:.0f} against {held:.0f}")
    assert following > 1.5 * held
    assert following > 800
