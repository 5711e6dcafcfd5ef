"""Weighted averages of densities over nodes."""

import numpy as np
from scipy.special import log_expit, logsumexp

import pgmodels as pgm
from pgmodels.likelihoods.likelihood import log_integral


def test_an_average_over_few_nodes():
    f = np.array([[-3.0, 0.5], [1.0, 2.0], [40.0, -0.7]])[:, :, None]
    y, log_weights = np.array([1.0, 0.0]), np.log([0.2, 0.5, 0.3])
    terms = log_expit((2.0 * y - 1.0) * f[:, :, 0])
    np.testing.assert_allclose(
        log_integral(pgm.Bernoulli(), y, f, log_weights), logsumexp(terms + log_weights[:, None], axis=0), rtol=1e-13
    )
    # Several values of y at the same nodes.
    both = log_integral(pgm.Bernoulli(), np.array([0.0, 1.0])[:, None, None] * np.ones((1, 1, 2)), f, log_weights)
    np.testing.assert_allclose(np.exp(both).sum(axis=0), 1.0, rtol=1e-13)
