"""The estimate of how much too small CAVI's variances are, against the exact posterior of one shared coordinate."""

import warnings

import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.inference.variance_ratio import variance_ratio


def variance_by_quadrature(log_likelihood, prior_variance):
    """That of one latent under N(0, prior_variance) times a likelihood, on a grid."""
    f = np.linspace(-30.0, 30.0, 200_001)
    logs = log_likelihood(f) - 0.5 * f**2 / prior_variance
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    return weights @ f**2 - (weights @ f) ** 2


def shared(likelihood, variance=4.0):
    return pgm.Model(likelihood, pgm.GP(pgm.Constant(pgm.Fixed(variance)), mean=pgm.Fixed(0.0)))


def binomial(ones, trials):
    return lambda f: ones * f - trials * np.logaddexp(0.0, f)


def quietly(call, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pgm.CorrectionWarning)
        return call(*args, **kwargs)


# Ones among 1,000 rows that share a level: rare, less rare and frequent.
@pytest.mark.parametrize(("ones", "narrow"), [(5, True), (50, True), (300, False)])
def test_ratio_of_a_shared_level_is_that_of_the_exact_posterior(ones, narrow):
    X, y = np.zeros((1000, 1)), (np.arange(1000) < ones).astype(int)
    result = quietly(pgm.cavi, shared(pgm.Bernoulli()), X, y)
    exact = result.variance[0, 0] / variance_by_quadrature(binomial(ones, 1000), 4.0)
    estimate = variance_ratio(result)
    # The posterior of 5 ones is skewed, with a variance a tenth above that of its mode.
    np.testing.assert_allclose(estimate, exact, rtol=0.15)
    assert bool(estimate[0, 0] < 0.5) is narrow
