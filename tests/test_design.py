"""Designs over hyperparameters against Gaussians, whose integrals are known, and a skew density by quadrature."""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from pgmodels.inference import design


def normal(mean, covariance):
    law = stats.multivariate_normal(mean, covariance)
    return lambda point, near: float(law.logpdf(point)) + 1.3


def moments(points, mass):
    mean = mass @ points
    return mean, (points - mean).T * mass @ (points - mean)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_grid_holds_a_gaussian_that_its_axes_miss(size):
    """Off the origin by half a deviation, 1.3 times as wide, and correlated."""
    mean = np.array([0.5, -0.3, 0.2])[:size]
    covariance = (1.3 * (np.eye(3) + 0.3 * (np.eye(3, k=1) + np.eye(3, k=-1))))[:size, :size]
    found = design.grid(normal(mean, covariance), size)
    support = design.grid_support(found)
    assert found.is_whole
    # The density is found to rounding by its interpolation; what is missing is e^-5 or less of the mass.
    np.testing.assert_allclose(support.log_total, 1.3, atol=0.02)
    for points, mass in ((support.points, support.mass), (found.points, support.weights)):
        own_mean, own_covariance = moments(points, mass)
        np.testing.assert_allclose(own_mean, mean, atol=0.02)
        np.testing.assert_allclose(own_covariance, covariance, rtol=0.06, atol=0.04)
    np.testing.assert_allclose([support.mass.sum(), support.weights.sum()], 1.0)
    nearest = np.argmin(((support.points[:, None] - found.points) ** 2).sum(-1), axis=1)
    distances = ((support.points - found.points[support.owners]) ** 2).sum(-1)
    np.testing.assert_allclose(distances, ((support.points - found.points[nearest]) ** 2).sum(-1), atol=1e-12)


def test_a_grid_goes_where_the_density_is_skew():
    """The logarithm of a Gamma(2) variable in one direction: a tail of 4 deviations on one side."""
    law = stats.loggamma(2.0)
    found = design.grid(lambda point, near: law.logpdf(1.2 * point[0]) + stats.norm.logpdf(point[1]), 2)
    support = design.grid_support(found)
    mean, covariance = moments(support.points, support.mass)
    # What is below e^-3 is cut a cell further on: 6 % of the deviation of so long a tail.
    np.testing.assert_allclose(1.2 * mean[0], law.mean(), atol=0.05 * law.std())
    np.testing.assert_allclose(1.2 * np.sqrt(covariance[0, 0]), law.std(), rtol=0.07)
    weights = dict(zip(map(tuple, found.points), support.weights, strict=True))
    assert weights[-2.0, 0.0] > 3.0 * weights[2.0, 0.0]


def test_points_start_from_neighbours_and_failures_are_left_out():
    seen = []

    def density(point, near):
        assert (near is None) == (not seen)
        if near is not None:
            np.testing.assert_allclose(np.abs(point - seen[near]).sum(), 1.0)
        seen.append(point)
        return -np.inf if point[0] > 1.5 else float(-0.5 * point @ point)

    found = design.grid(density, 2)
    assert len(found.points) == len(seen)
    support = design.grid_support(found)
    assert np.isfinite(support.mass).all()
    assert len(support.weights) == np.isfinite(found.log_densities).sum() < len(seen)


def test_a_grid_that_is_full_says_so(monkeypatch):
    monkeypatch.setitem(design._MOST, 2, 12)
    found = design.grid(normal(np.zeros(2), np.eye(2)), 2)
    assert not found.is_whole
    assert len(found.points) == 12


@pytest.mark.parametrize("size", [4, 5, 6])
def test_a_composite_design_integrates_a_gaussian(size):
    found = design.composite(normal(np.zeros(size), np.eye(size)), size)
    support = design.composite_support(found)
    assert found.is_whole
    assert len(found.points) == 1 + 2 * size + {4: 16, 5: 16, 6: 32}[size]
    # Mass, mean and variance by construction (Rue, Martino and Chopin 2009, section 6.5).
    np.testing.assert_allclose(support.log_total, 1.3)
    mean, covariance = moments(found.points, support.weights)
    np.testing.assert_allclose(mean, 0.0, atol=1e-12)
    np.testing.assert_allclose(covariance, np.eye(size), atol=1e-12)
    # 4,096 Sobol points.
    mean, covariance = moments(support.points, support.mass)
    np.testing.assert_allclose(mean, 0.0, atol=0.01)
    np.testing.assert_allclose(covariance, np.eye(size), atol=0.03)


@pytest.mark.parametrize("size", [4, 7, 9])
def test_corners_confound_no_pair_of_axes(size):
    corners = design._corners(size)
    assert len(corners) <= 2**7
    columns = [*corners.T, *(one * other for one, other in combinations(corners.T, 2))]
    products = np.array(columns) @ np.array(columns).T / len(corners)
    np.testing.assert_array_equal(products, np.eye(len(columns)))


def test_sides_of_a_composite_design_have_widths_of_their_own():
    def density(point, near):
        return float(-0.5 * np.sum(np.where(point > 0, point / 2.0, point) ** 2))

    support = design.composite_support(design.composite(density, 4))
    # A half-normal with deviation 2 on one side with 2/3 of the mass, and one with 1 on the other.
    first = np.sqrt(2.0 / np.pi) * (2.0 / 3.0 * 2.0 - 1.0 / 3.0)
    second = 2.0 / 3.0 * 4.0 + 1.0 / 3.0
    mean, covariance = moments(support.points, support.mass)
    np.testing.assert_allclose(mean, first, atol=0.02)
    np.testing.assert_allclose(np.diag(covariance), second - first**2, rtol=0.03)
