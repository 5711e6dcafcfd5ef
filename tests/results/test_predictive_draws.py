"""Draws, quantiles and probabilities of y at new inputs against laws in closed form."""

import time

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from pgmodels.likelihoods.named import Bernoulli, Binomial, Gaussian, HeteroscedasticGaussian, NegativeBinomial
from pgmodels.results.predictive import DrawNodes, IndependentNodes, Predictive

MEAN, VARIANCE = np.array([[-1.2], [0.7], [2.1]]), np.array([[0.3], [1.9], [0.05]])
NODES = IndependentNodes(MEAN, VARIANCE)
# Below this a test of a fixed seed would be a false alarm in ten thousand.
ALPHA = 1e-4


def gaussian_law(row):
    return stats.norm(MEAN[row, 0], np.sqrt(VARIANCE[row, 0] + 0.5**2))


def test_draws_and_quantiles_follow_the_predictive_distribution():
    predictive = Predictive(Gaussian(0.5), NODES)
    drawn = predictive.draw(2000, seed=3)
    assert drawn.shape == (2000, 3)
    levels = [0.1, 0.5, 0.8]
    quantiles = predictive.quantiles(levels, num_draws=2000, seed=3)
    for row in range(3):
        law = gaussian_law(row)
        assert stats.kstest(drawn[:, row], law.cdf).pvalue > ALPHA
        expected = law.ppf(levels)
        # Six standard errors of a quantile of 2,000 draws.
        errors = np.sqrt(np.multiply(levels, np.subtract(1, levels)) / 2000) / law.pdf(expected)
        assert (np.abs(quantiles[:, row] - expected) <= 6 * errors).all()
    np.testing.assert_array_equal(drawn, predictive.draw(2000, seed=3))
    assert not np.array_equal(drawn, predictive.draw(2000, seed=4))


def test_draws_take_the_parameters_of_their_own_latents():
    # Latents and scales come in pairs: (-3, 0.1) and (3, 2), each as often as the other.
    f, scale = np.array([-3.0, 3.0]), np.array([0.1, 2.0])
    nodes = DrawNodes(f.reshape(2, 1, 1), {"scale": scale.reshape(2, 1, 1)})
    drawn = Predictive(Gaussian(1.0), nodes).draw(2001)[:, 0]
    cdf = lambda x: 0.5 * (stats.norm.cdf(x, -3.0, 0.1) + stats.norm.cdf(x, 3.0, 2.0))  # noqa: E731
    assert stats.kstest(drawn, cdf).pvalue > ALPHA
    assert (drawn < -2.0).sum() >= 1000


def mixed(mass):
    """The average of a probability over the latents, (3, values), on a fine grid of each row's quantiles."""
    standard = stats.norm.ppf((np.arange(4000) + 0.5) / 4000)[:, None]
    return np.stack([mass(m + np.sqrt(v) * standard).mean(axis=0) for m, v in zip(MEAN, VARIANCE, strict=True)])


def test_probabilities_of_counts_and_of_successes():
    counts = np.array([0, 3, 11])
    probabilities = Predictive(NegativeBinomial(1.5), NODES).probabilities_of(counts)
    # The midpoint rule in probability: its error is that of the two outermost of 4,000 cells.
    np.testing.assert_allclose(probabilities, mixed(lambda f: stats.nbinom.pmf(counts, 1.5, expit(-f))), atol=2e-4)
    trials = np.array([2.0, 5.0, 0.0])
    probabilities = Predictive(Binomial(), NODES, trials).probabilities_of(np.arange(6))
    expected = mixed(lambda f: stats.binom.pmf(np.arange(6), 5, expit(f)))[1]
    np.testing.assert_allclose(probabilities[1], expected, atol=2e-4)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-6)
    assert (probabilities[0, 3:] == 0).all()
    assert probabilities[2, 0] == pytest.approx(1.0)
    binary = Predictive(Bernoulli(), NODES)
    np.testing.assert_allclose(binary.probabilities_of([1, 0, 2, 0.5])[:, :2], binary.probabilities[:, ::-1])
    assert (binary.probabilities_of([1, 0, 2, 0.5])[:, 2:] == 0).all()


WRONG = {
    "of a real number": (lambda: Predictive(Gaussian(0.5), NODES).probabilities_of([0.0]), "declared to be a count"),
    "without trials": (lambda: Predictive(Binomial(), NODES).probabilities_of([0.0]), r"depends on y\[1\]"),
    "draws without trials": (lambda: Predictive(Binomial(), NODES).draw(), r"draws of y by Binomial depends on y\[1\]"),
    "a level of 5": (lambda: Predictive(Gaussian(0.5), NODES).quantiles([5]), "levels must be numbers between 0 and 1"),
    "no draws": (lambda: Predictive(Gaussian(0.5), NODES).draw(0), "num_draws must be a whole number >= 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_asked_for_is_refused(name):
    call, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_draws_of_two_latents():
    nodes = IndependentNodes(np.array([[0.4, -1.0]]), np.array([[0.6, 1e-12]]))
    drawn = Predictive(HeteroscedasticGaussian(5.0), nodes).draw(2000)[:, 0]
    law = stats.norm(0.4, np.sqrt(0.6 + 1 / (5.0 * expit(-1.0))))
    assert stats.kstest(drawn, law.cdf).pvalue > ALPHA


def test_probabilities_of_many_counts_are_those_of_each():
    # Values repeat, and one is in no support.
    predictive = Predictive(NegativeBinomial(1.5), NODES)
    counts = np.array([7.0, 0.0, 7.0, 2.5, 400.0, 31.0])
    probabilities = predictive.probabilities_of(counts)
    each = np.concatenate([predictive.probabilities_of(count) for count in counts], axis=1)
    np.testing.assert_allclose(probabilities, each, rtol=1e-9)
    np.testing.assert_allclose(probabilities, mixed(lambda f: stats.nbinom.pmf(counts, 1.5, expit(-f))), atol=2e-4)
    start = time.process_time()
    many = predictive.probabilities_of(np.tile(np.arange(400.0), 25))
    assert time.process_time() - start < 4.0
    assert many[2, :400].sum() == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_array_equal(many[:, :400], many[:, 9600:])
