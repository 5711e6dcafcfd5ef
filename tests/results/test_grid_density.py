"""Densities on grids: moments, quantiles and maps against closed forms, with skewed, kinked and degenerate ones."""

import numpy as np
import pytest
from scipy import stats

from pgmodels.results.result import GRID, GridDensity, interpolation

LAWS = {
    "normal": (stats.norm(-3.0, 0.4), -3.0, 0.4),
    "log-gamma": (stats.loggamma(1.0, loc=2.0), -8.0, 2.0),
    "far from the grid's centre": (stats.norm(0.0, 1.0), 1.5, 1.1),
    "Laplace": (stats.laplace(1.0, 0.5), 1.0, 1.6),
}


def density(law, location, scale):
    log_density = law.logpdf(location + scale * GRID) + 2.5
    return GridDensity(np.array([location]), np.array([scale]), log_density[None])


@pytest.mark.parametrize("name", LAWS)
def test_moments_and_quantiles_are_those_of_the_law(name):
    law, location, scale = LAWS[name]
    marginal = density(law, location, scale)
    mean, variance, skewness = (float(part) for part in law.stats("mvs"))
    assert marginal.mean[0] == pytest.approx(mean, abs=2e-3)
    assert marginal.variance[0] == pytest.approx(variance, rel=5e-3)
    assert marginal.skewness[0] == pytest.approx(skewness, abs=0.02)
    assert marginal.log_masses[0] == pytest.approx(2.5, abs=6e-3)
    levels = np.array([1e-4, 0.01, 0.3, 0.5, 0.95, 0.999])
    np.testing.assert_allclose(marginal.quantiles(levels)[:, 0], law.ppf(levels), atol=0.02 * np.sqrt(variance))
    at = law.ppf(np.array([0.02, 0.4, 0.9]))
    np.testing.assert_allclose(marginal.pdf(at[:, None])[:, 0], law.pdf(at), rtol=0.02)


def test_one_density_of_several():
    law, location, scale = LAWS["log-gamma"]
    several, levels = density(law, location, scale), [0.05, 0.9]
    one = several[0]
    assert one.shape == ()
    np.testing.assert_array_equal(one.quantiles(levels), several.quantiles(levels)[:, 0])
    np.testing.assert_array_equal(one.pdf(np.array([1.0, 2.0])), several.pdf(np.array([[1.0], [2.0]]))[:, 0])
    assert (one.mean, one.variance, one.skewness) == (several.mean[0], several.variance[0], several.skewness[0])


def test_draws_are_of_the_law():
    law, location, scale = LAWS["log-gamma"]
    marginal = density(law, location, scale)
    draws = marginal.transport(np.random.default_rng(0).standard_normal((4000, 1)))[:, 0]
    assert stats.kstest(draws, law.cdf).pvalue > 1e-3


def test_maps_increase_far_beyond_the_grid():
    marginal = density(*LAWS["log-gamma"])
    scores = np.linspace(-40.0, 40.0, 400)[:, None]
    assert np.all(np.diff(marginal.transport(scores)[:, 0]) > 0.0)


def test_distances_are_those_of_draws():
    law, location, scale = LAWS["log-gamma"]
    marginal = density(law, location, scale)
    draws = np.sort(law.rvs(500, random_state=1))
    many = law.ppf((np.arange(200_000) + 0.5) / 200_000)
    expected = stats.wasserstein_distance(draws, many)
    assert marginal.wasserstein(draws[:, None])[0] == pytest.approx(expected, abs=0.01)
    assert marginal[:1].wasserstein(draws[:, None] + 30.0)[0] == pytest.approx(
        30.0 + draws.mean() - law.mean(), rel=1e-3
    )


def test_several_densities_and_a_point_mass():
    location, scale = np.array([[0.0, 2.0], [1.0, -1.0]]), np.array([[1.0, 0.5], [0.0, 2.0]])
    marginal = GridDensity(location, scale, np.broadcast_to(-0.5 * GRID**2, (2, 2, len(GRID))))
    np.testing.assert_allclose(marginal.mean, location, atol=1e-12)
    np.testing.assert_allclose(marginal.variance, scale**2, rtol=1e-6)
    z = np.random.default_rng(1).standard_normal((7, 2, 2))
    np.testing.assert_allclose(marginal.transport(z), location + scale * z, atol=3e-3)
    np.testing.assert_allclose(marginal.transport(z[:, :1], [1]), (location + scale * z[:, :1])[:, 1:], atol=3e-3)


def test_the_interpolation_is_exact_for_cubics():
    cubic = np.polynomial.Polynomial([0.3, -1.0, 0.5, 0.1])
    nodes, matrix = interpolation(17)
    np.testing.assert_allclose(matrix @ cubic(nodes), cubic(GRID), atol=1e-9)
    np.testing.assert_allclose(nodes, GRID[::12], atol=1e-12)
