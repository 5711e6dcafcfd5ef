"""Softmax, multinomial probit and robust max against SciPy, sampling and integrals of other forms."""

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.special import log_softmax, ndtr

import pgmodels as pgm
from pgmodels.likelihoods.likelihood import log_density
from pgmodels.likelihoods.sampling import draw_observations, is_normalised

F = np.array([[0.4, -1.2, 0.9, 0.1], [3.0, 2.9, -4.0, 0.0], [-0.3, -0.2, -0.1, 0.5]])


def log_probabilities(likelihood, f=F):
    """log p(y | f) of each class (n, classes)."""
    return np.stack([log_density(likelihood, np.full(len(f), float(y)), f) for y in range(f.shape[1])], axis=1)


def test_softmax_is_a_softmax_also_of_large_latents():
    np.testing.assert_allclose(log_probabilities(pgm.Softmax(4)), log_softmax(F, axis=1), rtol=1e-13)
    np.testing.assert_allclose(log_probabilities(pgm.Softmax(4), 400 * F), log_softmax(400 * F, axis=1), rtol=1e-13)


def test_multinomial_probit_is_an_integral_over_the_largest_value():
    def density(g, f, y):
        return stats.norm.pdf(g, f[y]) * np.prod(ndtr(g - np.delete(f, y)))

    exact = [[quad(density, f[y] - 9, f[y] + 9, args=(f, y), epsabs=1e-13)[0] for y in range(4)] for f in F]
    np.testing.assert_allclose(np.exp(log_probabilities(pgm.MultinomialProbit(4))), exact, atol=1e-10)


def test_robust_max_errs_at_its_rate():
    expected = np.full(F.shape, 0.06 / 3)
    expected[np.arange(3), [2, 0, 3]] = 0.94
    np.testing.assert_allclose(np.exp(log_probabilities(pgm.RobustMax(4, 0.06))), expected, rtol=1e-13)
    # (1 - ε) [f_y is the largest] + ε / C of Galy-Fajou et al. 2019.
    epsilon = 0.08
    other = epsilon / 4 + (1 - epsilon) * np.equal(F, F.max(axis=1, keepdims=True))
    np.testing.assert_allclose(np.exp(log_probabilities(pgm.RobustMax(4, epsilon * 3 / 4))), other, rtol=1e-13)


@pytest.mark.parametrize("likelihood", [pgm.Softmax(4), pgm.MultinomialProbit(4), pgm.RobustMax(4, 0.2)], ids=repr)
def test_they_are_normalised_and_drawn_exactly(likelihood):
    assert is_normalised(likelihood, 4, for_all_parameters=True)
    assert likelihood.support(4) == pgm.Classes(4)
    drawn = draw_observations(likelihood, np.repeat(F[:1], 4000, axis=0), None, np.random.default_rng(5))
    counts = np.bincount(drawn.astype(int), minlength=4)
    # Below this a test of a fixed seed would be a false alarm in ten thousand.
    assert stats.chisquare(counts, 4000 * np.exp(log_probabilities(likelihood)[0])).pvalue > 1e-4


def test_the_error_rate_is_a_parameter_between_0_and_1():
    assert repr(pgm.RobustMax(3, 0.1)) == "RobustMax(3, error=Parameter(0.1, constraint=unit_interval))"
    assert repr(pgm.Softmax(3)) == "Softmax(3)"
    likelihood = pgm.RobustMax(3, dist.Beta(1.0, 9.0))
    assert float(likelihood.parameters["error"].value) == 1e-3
    for wrong in (0.0, 1.0, -0.1):
        with pytest.raises(ValueError, match="error of RobustMax must"):
            pgm.RobustMax(3, wrong)
