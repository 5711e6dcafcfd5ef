"""Designs over hyperparameters against Gaussians, whose integrals are known, and a skew density by quadrature."""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from pgmodels.numerics import quadrature as design
from pgmodels.numerics.quadrature import Design, grid, grid_support, refined


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
    grid = design.grid(normal(mean, covariance), size)
    support = design.grid_support(grid)
    assert grid.is_complete
    # The density is found to rounding by its interpolation; what is missing is e^-5 or less of the mass.
    np.testing.assert_allclose(support.log_total, 1.3, atol=0.02)
    for points, mass in ((support.points, support.mass), (grid.points, support.weights)):
        own_mean, own_covariance = moments(points, mass)
        np.testing.assert_allclose(own_mean, mean, atol=0.02)
        np.testing.assert_allclose(own_covariance, covariance, rtol=0.06, atol=0.04)
    np.testing.assert_allclose([support.mass.sum(), support.weights.sum()], 1.0)
    nearest = np.argmin(((support.points[:, None] - grid.points) ** 2).sum(-1), axis=1)
    distances = ((support.points - grid.points[support.owners]) ** 2).sum(-1)
    np.testing.assert_allclose(distances, ((support.points - grid.points[nearest]) ** 2).sum(-1), atol=1e-12)


def test_a_grid_goes_where_the_density_is_skew():
    """The logarithm of a Gamma(2) variable in one direction: a tail of 4 deviations on one side."""
    law = stats.loggamma(2.0)
    grid = design.grid(lambda point, near: law.logpdf(1.2 * point[0]) + stats.norm.logpdf(point[1]), 2)
    support = design.grid_support(grid)
    mean, covariance = moments(support.points, support.mass)
    # What is below e^-3 is cut a cell further on: 6 % of the deviation of so long a tail.
    np.testing.assert_allclose(1.2 * mean[0], law.mean(), atol=0.05 * law.std())
    np.testing.assert_allclose(1.2 * np.sqrt(covariance[0, 0]), law.std(), rtol=0.07)
    weights = dict(zip(map(tuple, grid.points), support.weights, strict=True))
    assert weights[-2.0, 0.0] > 3.0 * weights[2.0, 0.0]


def test_points_start_from_neighbours_and_failures_are_left_out():
    evaluated = []

    def density(point, near):
        assert (near is None) == (not evaluated)
        if near is not None:
            np.testing.assert_allclose(np.abs(point - evaluated[near]).sum(), 1.0)
        evaluated.append(point)
        return -np.inf if point[0] > 1.5 else float(-0.5 * point @ point)

    grid = design.grid(density, 2)
    assert len(grid.points) == len(evaluated)
    support = design.grid_support(grid)
    assert np.isfinite(support.mass).all()
    assert len(support.weights) == np.isfinite(grid.log_densities).sum() < len(evaluated)


def test_a_grid_that_is_full_says_so(monkeypatch):
    monkeypatch.setitem(design._MAX_POINTS, 2, 12)
    grid = design.grid(normal(np.zeros(2), np.eye(2)), 2)
    assert not grid.is_complete
    assert len(grid.points) == 12


@pytest.mark.parametrize("size", [4, 5, 6])
def test_a_composite_design_integrates_a_gaussian(size):
    composite = design.composite(normal(np.zeros(size), np.eye(size)), size)
    support = design.composite_support(composite)
    assert composite.is_complete
    assert len(composite.points) == 1 + 2 * size + {4: 16, 5: 16, 6: 32}[size]
    # Mass, mean and variance by construction (Rue, Martino and Chopin 2009, section 6.5).
    np.testing.assert_allclose(support.log_total, 1.3)
    mean, covariance = moments(composite.points, support.weights)
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


def log_marginal(X, y, scale, variance, lengthscale):
    """log N(y; 0, K + scale^2 I) for logarithms (S,) of hyperparameters of an RBF."""
    squares = (X[:, None] - X) ** 2
    K = np.exp(variance)[:, None, None] * np.exp(-0.5 * squares * np.exp(-2.0 * lengthscale)[:, None, None])
    values, vectors = np.linalg.eigh(K + np.exp(2.0 * scale)[:, None, None] * np.eye(len(X)))
    # Rounding may leave them below the noise's.
    values, turned = np.maximum(values, np.exp(2.0 * scale)[:, None]), np.einsum("sij,i->sj", vectors, y)
    return -0.5 * np.sum(turned**2 / values + np.log(2.0 * np.pi * values), axis=1)


def log_joint(X, centre, spread, fixed_variance, theta):
    """With normal priors of the logarithms: of the scale N(centre, spread^2), of the others N(0, 1)."""
    scale, lengthscale = theta[:, 0], theta[:, -1]
    variance = np.zeros(len(theta)) if fixed_variance else theta[:, 1]
    prior = stats.norm.logpdf(scale, centre, spread) + stats.norm.logpdf(theta[:, 1:]).sum(axis=1)
    return log_marginal(X, np.sin(X), scale, variance, lengthscale) + prior


# Sines without noise: a longer lengthscale than theirs is a cliff of hundreds of nats. The logarithm of the evidence,
# and the mode.
CLIFFS = {
    "four": (4, -4.0, 1.0, True, -4.8469, [-4.0007, -0.1940]),
    "six": (6, -8.0, 2.0, False, -6.2548, [-8.0, -0.2247, 0.4471]),
}


def at_cliff(name):
    """The density of a design's coordinates, and their axes by the curvature at the mode."""
    count, centre, spread, fixed, _, mode = CLIFFS[name]
    X, steps = np.linspace(-np.pi, np.pi, count), 0.01 * np.eye(len(mode))

    def of_logarithms(theta):
        return float(log_joint(X, centre, spread, fixed, (np.array(mode) + theta)[None])[0])

    def mixed(a, b):
        return sum(i * j * of_logarithms(i * a + j * b) for i in (-1, 1) for j in (-1, 1)) / 4e-4

    values, vectors = np.linalg.eigh([[-mixed(a, b) for b in steps] for a in steps])
    axes = vectors / np.sqrt(values)
    return (lambda point, near: of_logarithms(axes @ point)), axes


@pytest.mark.parametrize("name", CLIFFS)
def test_a_cliff_is_not_interpolated_over(name):
    """The evidence was +215.6 and -3.18, by a cubic that rose above all points beside the cliff."""
    density, axes = at_cliff(name)
    first = grid(density, len(CLIFFS[name][5]))
    design = refined(density, first)
    support = grid_support(design)
    assert design.error == 0.0
    assert len(first.points) < len(design.points) < 2 * len(first.points)
    assert abs(support.log_total + np.linalg.slogdet(axes)[1] - CLIFFS[name][4]) < 0.05
    # Past the cliff nothing is mixed in.
    assert support.weights[design.log_densities < design.log_densities.max() - 12.0].sum() == 0.0
    # The marginal of the noise is its prior.
    scale = CLIFFS[name][5][0] + support.points @ axes[0]
    mean = support.mass @ scale
    assert abs(mean - CLIFFS[name][1]) < 0.05
    np.testing.assert_allclose(np.sqrt(support.mass @ (scale - mean) ** 2), CLIFFS[name][2], rtol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("four", 401), ("six", 81)])
def test_the_evidence_beside_a_cliff(name, count):
    """The right values above, by sums over fine grids of exact marginal likelihoods."""
    data, centre, spread, fixed, expected, *_ = CLIFFS[name]
    ends = [(centre - 6.0 * spread, centre + 7.0 * spread), (-5.0, 6.0), (-5.0, 5.0)]
    lines = [np.linspace(*pair, count) for pair in (ends[::2] if fixed else ends)]
    nodes = np.stack(np.meshgrid(*lines, indexing="ij"), axis=-1).reshape(-1, len(lines))
    X = np.linspace(-np.pi, np.pi, data)
    log_masses = [log_joint(X, centre, spread, fixed, part) for part in np.array_split(nodes, 60)]
    total = np.logaddexp.reduce(np.concatenate(log_masses)) + sum(np.log(line[1] - line[0]) for line in lines)
    assert abs(total - expected) < 2e-3


def test_what_agrees_is_not_refined_further():
    """A Gaussian is interpolated exactly: one round of fresh points, at which its mass is."""
    evaluated = []

    def density(point, near):
        evaluated.append(point)
        return float(stats.norm.logpdf(point).sum())

    first = grid(density, 2)
    count = len(evaluated)
    design = refined(density, first)
    assert len(evaluated) == len(design.points) == count + 8
    assert design.error == 0.0
    fresh = np.array(evaluated[count:])
    assert (np.sum(fresh**2, axis=1) < 9.0).all()
    assert min(np.linalg.norm(point - other) for point in fresh for other in first.points) > 0.3


def test_a_density_that_cannot_be_interpolated_is_told():
    rng = np.random.default_rng(0)

    def rough(point, near):
        return float(stats.norm.logpdf(point).sum() + rng.normal(scale=4.0))

    assert refined(rough, grid(rough, 1)).error > 0.1
    lost = Design(np.zeros((1, 1)), np.array([-np.inf]), True)
    assert refined(rough, lost) is lost
