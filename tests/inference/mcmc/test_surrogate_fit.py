"""The Gaussian that the sampler turns about: the variational one, a little wider."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.inference.surrogates import first_sites, fit_surrogate, fitting_problem, surrogate_of
from pgmodels.priors.base import Sites
from pgmodels.priors.block_posterior import condition_blocks, together
from tests.registry import EVERY


@pytest.mark.slow
@pytest.mark.parametrize("name", ["laplace", "heteroscedastic", "additive"])
def test_it_is_the_variational_gaussian_with_nine_tenths_of_its_factors(name):
    model, (X, y) = EVERY[name].unequal(), EVERY[name].data(9, seed=3)
    result = pgm.gaussian_vi(model, X, y)
    with jax.enable_x64(True):
        prior = model.prior(X)
        masked = model, prior, jnp.asarray(y), None
        problem = fitting_problem(*masked)
        fit = fit_surrogate(problem, first_sites(*masked))
        mean, covariance = fit.marginals
        # Of what few nodes give: a proposal needs no more.
        deviation = np.sqrt(result.variance)
        assert np.max(np.abs(mean - result.mean) / deviation) < 0.1
        assert np.max(np.abs(np.diagonal(covariance, axis1=1, axis2=2) / result.variance - 1.0)) < 0.1

        # Precisions of all latents, by dense inverses.
        def dense(posterior):
            size = mean.size
            return np.linalg.inv(np.asarray(posterior.covariance()).reshape(size, size))

        none = jnp.zeros(mean.shape)
        free = condition_blocks(prior, Sites(none, none).as_coupled(), fit.surrogate.blocks)
        variational = together(problem.condition(fit.sites))
        surrogate_mean = fit.surrogate.marginals()[0]
        np.testing.assert_allclose(surrogate_mean, mean, atol=1e-9)
        expected = 0.1 * dense(free) + 0.9 * dense(variational)
        np.testing.assert_allclose(dense(fit.surrogate), expected, rtol=1e-6, atol=1e-6 * np.max(expected))
        # Factors made where the latents are expected are those of the fit, whose last step moved it by less than that:
        # an ELBO of order 10 that changes by 1e-4 leaves some 1 % of a deviation.
        again = surrogate_of(problem, fit.marginals).marginals()
        for one, other in zip(again, fit.surrogate.marginals(), strict=True):
            np.testing.assert_allclose(one, other, atol=0.02 * np.max(deviation))
