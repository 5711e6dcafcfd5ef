"""Scores of predictions against closed forms and brute force."""

import numpy as np
import pytest
from scipy import stats

import pgmodels as pgm
from pgmodels.diagnostics.compare import crps, interval_score

RNG = np.random.default_rng(0)


def test_crps_of_few_draws_by_all_pairs():
    draws, y = RNG.normal(size=(7, 3)), np.array([0.3, -2.0, 1.1])
    pairs = np.abs(draws[:, None] - draws[None]).sum(axis=(0, 1)) / (7 * 6)
    np.testing.assert_allclose(crps(draws, y), np.abs(draws - y).mean(axis=0) - 0.5 * pairs, rtol=1e-12)


def test_crps_of_a_normal_distribution():
    mean, sd, y = np.array([0.0, 2.0, -1.0]), np.array([1.0, 0.5, 3.0]), np.array([0.4, 3.5, -1.0])
    z = (y - mean) / sd
    # Gneiting and Raftery 2007, equation 22.
    truth = sd * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
    draws = np.stack([crps(mean + sd * RNG.normal(size=(500, 3)), y) for _ in range(40)])
    np.testing.assert_array_less(np.abs(draws.mean(axis=0) - truth), 4 * draws.std(axis=0) / np.sqrt(40))
    assert (draws.std(axis=0) < 0.1 * sd).all()


def test_crps_of_counts_is_the_sum_over_their_distribution_functions():
    y, values = np.array([0.0, 3.0, 9.0]), np.arange(60)
    truth = ((stats.poisson(3.2).cdf(values) - (values >= y[:, None])) ** 2).sum(axis=1)
    draws = np.stack([crps(RNG.poisson(3.2, (500, 3)), y) for _ in range(40)])
    np.testing.assert_array_less(np.abs(draws.mean(axis=0) - truth), 4 * draws.std(axis=0) / np.sqrt(40))


def test_interval_score_inside_below_and_above():
    draws = np.tile(np.linspace(0.0, 1.0, 101)[:, None], 3)
    # The interval is (0.05, 0.95), and alpha 0.1.
    np.testing.assert_allclose(interval_score(draws, np.array([0.5, -0.15, 1.0])), [0.9, 0.9 + 4.0, 0.9 + 1.0])
    counts = np.repeat(np.arange(4), [4, 6, 80, 10])[:, None]
    np.testing.assert_allclose(interval_score(counts, np.array([3.0]), is_discrete=True), [2.0])
    np.testing.assert_allclose(interval_score(counts, np.array([5.0]), is_discrete=True), [2.0 + 40.0])


@pytest.mark.slow
@pytest.mark.parametrize("is_count", [False, True])
def test_scores_of_a_comparison(is_count):
    X = np.linspace(-1.0, 1.0, 10)[:, None]
    if is_count:
        model, y = pgm.Model(pgm.NegativeBinomial(3.0), pgm.GP(pgm.RBF(0.5, 0.7))), RNG.poisson(3.0, 10).astype(float)
    else:
        model, y = pgm.Model(pgm.Gaussian(0.5), pgm.GP(pgm.RBF(1.5, 0.7))), np.sin(2.0 * X[:, 0])
    draws = pgm.gibbs(model, X, y, num_samples=50, num_warmup=5, num_chains=2, seed=0)
    vi = pgm.cavi(model, X, y)
    frame = pgm.compare(gibbs=draws, cavi=vi, X=X + 0.03, y=y, seed=5).to_dataframe()
    predictive = vi.predict(X + 0.03)
    low, high = np.quantile(predictive.draw(1000, 5), [0.05, 0.95], axis=0)
    if is_count:
        values = np.arange(300)
        distribution = np.cumsum(predictive.probabilities_of(values), axis=1)
        truth = ((distribution - (values >= y[:, None])) ** 2).sum(axis=1).mean()
    else:
        z = (y - predictive.mean) / np.sqrt(predictive.variance)
        truth = z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi)
        truth = np.mean(np.sqrt(predictive.variance) * truth)
        outside = np.maximum(low - y, 0.0) + np.maximum(y - high, 0.0)
        np.testing.assert_allclose(frame.loc["cavi", "interval_score"], np.mean(high - low + 20 * outside), rtol=1e-9)
    # The score of 1,000 draws has an error of about 1 / sqrt(1000) of the distribution's scale in each of ten rows.
    np.testing.assert_allclose(frame.loc["cavi", "crps"], truth, rtol=0.06)
    assert "test CRPS" in str(pgm.compare(gibbs=draws, cavi=vi, X=X, y=y))
    assert "crps" not in pgm.compare(gibbs=draws, cavi=vi).to_dataframe()
