"""Nodes integrate what is known in closed form; pieces hold each row once."""

from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import log_ndtr

from pgmodels.numerics import quadrature
from pgmodels.numerics.elementary import log_probability_of_largest, trigonometric_sums
from pgmodels.numerics.quadrature import Design, grid, grid_support, refined
from pgmodels.runtime.precision import double_precision

M, SCALE = 0.7, 1.3


def test_gauss_hermite_is_exact_for_polynomials_of_degree_63():
    nodes, weights = quadrature.gauss_hermite(32)
    # Odd central moments vanish, so that E (M + S x)^7 takes the moments 1, 1, 3, 15 of x^0, x^2, x^4, x^6.
    expected = M**7 + 21 * M**5 * SCALE**2 + 35 * M**3 * 3 * SCALE**4 + 7 * M * 15 * SCALE**6
    assert weights @ (M + SCALE * nodes) ** 7 / np.sqrt(2 * np.pi) == pytest.approx(expected, rel=1e-12)
    # 61!! = 61 * 59 * ... * 1, the highest even moment that 32 nodes hold.
    assert weights @ nodes**62 / np.sqrt(2 * np.pi) == pytest.approx(np.prod(np.arange(1.0, 62.0, 2.0)), rel=1e-10)


def test_gauss_legendre_is_exact_for_polynomials_of_degree_19():
    nodes, weights = quadrature.gauss_legendre(10)
    assert weights @ (1.5 + nodes) ** 19 == pytest.approx((2.5**20 - 0.5**20) / 20, rel=1e-13)


@pytest.mark.parametrize(("size", "count"), [(1, 401), (2, 65)])
def test_trapezoid_grid_is_exact_to_rounding(size, count):
    nodes, weights = quadrature.trapezoid_normal(size, count)
    slope = np.array([0.8, -0.5])[:size]
    # E exp(a'x) = exp(a'a / 2); the mass beyond 8 deviations, tilted by 0.8, is N(7.2) = 3e-13.
    assert weights @ np.exp(nodes @ slope) == pytest.approx(np.exp(slope @ slope / 2), rel=1e-11)


def test_sobol_normals_integrate_and_scrambles_differ():
    slope = np.array([0.8, -0.5, 0.3])
    means = [
        np.exp(quadrature.sobol_normals(3, 4096, seed) @ slope).mean() for seed in (0, 1, np.random.default_rng(1))
    ]
    # By Monte Carlo the standard error is 1.9 / 64 = 0.03; scrambled Sobol points are thirty times better.
    np.testing.assert_allclose(means, np.exp(slope @ slope / 2), rtol=3e-3)
    assert len(set(means)) == 3
    assert means[0] == np.exp(quadrature.sobol_normals(3, 4096) @ slope).mean()


@pytest.mark.parametrize(("count", "width", "length"), [(10, 3, 4), (12, 3, 4), (5, 100, 1), (0, 3, 4)])
def test_slices_hold_each_entry_once(count, width, length):
    slices = quadrature.slices(count, width, values=12)
    assert np.concatenate([np.arange(count)[part] for part in slices] or [[]]).tolist() == list(range(count))
    assert all(part.stop - part.start == length for part in slices)
    assert quadrature.chunk_length(width, values=12) == length


@pytest.mark.parametrize(("count", "width", "length"), [(10, 3, 4), (7, 1, 8), (8, 1, 8), (9, 1, 12), (3, 100, 1)])
def test_padded_chunks_have_one_length_and_repeat_the_last_row(count, width, length):
    rows = 5 + 2 * np.arange(count)
    chunks = quadrature.padded_chunks(rows, width, values=12)
    assert {len(chunk) for chunk in chunks} == {length}
    joined = np.concatenate(chunks)
    assert joined[:count].tolist() == rows.tolist()
    assert set(joined[count:]) <= {rows[-1]}
    assert len(joined) - count < length


def test_power_of_two_is_the_next():
    assert [quadrature.power_of_two(count) for count in (0, 1, 2, 3, 5, 1024, 1025)] == [1, 1, 2, 4, 8, 1024, 2048]


# Designs over hyperparameters against Gaussians, whose integrals are known, and a skew density by quadrature.


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
    design = grid(normal(mean, covariance), size)
    support = grid_support(design)
    assert design.is_complete
    # The density is found to rounding by its interpolation; what is missing is e^-5 or less of the mass.
    np.testing.assert_allclose(support.log_total, 1.3, atol=0.02)
    for points, mass in ((support.points, support.mass), (design.points, support.weights)):
        own_mean, own_covariance = moments(points, mass)
        np.testing.assert_allclose(own_mean, mean, atol=0.02)
        np.testing.assert_allclose(own_covariance, covariance, rtol=0.06, atol=0.04)
    np.testing.assert_allclose([support.mass.sum(), support.weights.sum()], 1.0)
    nearest = np.argmin(((support.points[:, None] - design.points) ** 2).sum(-1), axis=1)
    distances = ((support.points - design.points[support.owners]) ** 2).sum(-1)
    np.testing.assert_allclose(distances, ((support.points - design.points[nearest]) ** 2).sum(-1), atol=1e-12)


def test_a_grid_goes_where_the_density_is_skew():
    """The logarithm of a Gamma(2) variable in one direction: a tail of 4 deviations on one side."""
    law = stats.loggamma(2.0)
    design = grid(lambda point, near: law.logpdf(1.2 * point[0]) + stats.norm.logpdf(point[1]), 2)
    support = grid_support(design)
    mean, covariance = moments(support.points, support.mass)
    # What is below e^-3 is cut a cell further on: 6 % of the deviation of so long a tail.
    np.testing.assert_allclose(1.2 * mean[0], law.mean(), atol=0.05 * law.std())
    np.testing.assert_allclose(1.2 * np.sqrt(covariance[0, 0]), law.std(), rtol=0.07)
    weights = dict(zip(map(tuple, design.points), support.weights, strict=True))
    assert weights[-2.0, 0.0] > 3.0 * weights[2.0, 0.0]


def test_points_start_from_neighbours_and_failures_are_left_out():
    evaluated = []

    def density(point, near):
        assert (near is None) == (not evaluated)
        if near is not None:
            np.testing.assert_allclose(np.abs(point - evaluated[near]).sum(), 1.0)
        evaluated.append(point)
        return -np.inf if point[0] > 1.5 else float(-0.5 * point @ point)

    design = grid(density, 2)
    assert len(design.points) == len(evaluated)
    support = grid_support(design)
    assert np.isfinite(support.mass).all()
    assert len(support.weights) == np.isfinite(design.log_densities).sum() < len(evaluated)


def test_a_grid_that_is_full_says_so():
    design = grid(normal(np.zeros(2), np.eye(2)), 2, max_points=12)
    assert not design.is_complete
    assert len(design.points) == 12


@pytest.mark.parametrize("size", [4, 5, 6])
def test_a_composite_design_integrates_a_gaussian(size):
    composite = quadrature.composite(normal(np.zeros(size), np.eye(size)), size)
    support = quadrature.composite_support(composite)
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
    points = quadrature.composite(normal(np.zeros(size), np.eye(size)), size).points
    corners = np.sign(points[1 + 2 * size :])
    assert len(corners) <= 2**7
    columns = [*corners.T, *(one * other for one, other in combinations(corners.T, 2))]
    products = np.array(columns) @ np.array(columns).T / len(corners)
    np.testing.assert_array_equal(products, np.eye(len(columns)))


def test_sides_of_a_composite_design_have_widths_of_their_own():
    def density(point, near):
        return float(-0.5 * np.sum(np.where(point > 0, point / 2.0, point) ** 2))

    support = quadrature.composite_support(quadrature.composite(density, 4))
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
    """The evidence was +215.6 and -3.18, by a cubic that rose above all points next to the cliff."""
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
    infinite = Design(np.zeros((1, 1)), np.array([-np.inf]), True)
    assert refined(rough, infinite) is infinite


# The probability of the largest of Gaussian variables against Gauss-Legendre rules between all steps, and sampling.


RNG = np.random.default_rng(0)
# Variances of the others over that of the chosen one.
RATIOS = (1e4, 1.0, 1e-2, 1e-4, 1e-6)


def by_pieces(mean, variance, k):
    """The integral over x, in pieces that end 0, 3, 6 and 12 deviations from the middle of each step."""
    scale = np.sqrt(variance)
    others = [c for c in range(len(mean)) if c != k]
    steps = [(mean[c] + scale[c] * d - mean[k]) / scale[k] for c in others for d in (-12, -6, -3, 0, 3, 6, 12)]
    ends = np.unique([end for end in [*steps, *np.linspace(-20.0, 30.0, 26)] if -20.0 <= end <= 30.0])
    x, w = np.polynomial.legendre.leggauss(40)
    low, high = ends[:-1, None], ends[1:, None]
    nodes, weights = 0.5 * (low + high) + 0.5 * (high - low) * x, 0.5 * (high - low) * w
    factors = sum(log_ndtr((mean[k] + scale[k] * nodes - mean[c]) / scale[c]) for c in others)
    return np.sum(weights * np.exp(factors - 0.5 * nodes**2)) / np.sqrt(2.0 * np.pi)


@jax.jit
def value_and_slopes(mean, variance, chosen):
    def probability(mean, variance):
        return jnp.exp(log_probability_of_largest(mean, variance, chosen))[0]

    return probability(mean, variance), jax.grad(probability, argnums=(0, 1))(mean, variance)


def some_case(ratio, size):
    mean, variance = RNG.normal(0.3, 1.0, size), ratio * RNG.uniform(0.5, 2.0, size)
    # One of the others is comparable, so that a steep step meets a flat one.
    variance[[0, -1]] = 1.3, 0.8
    return mean, variance


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("size", [2, 3, 6])
@double_precision
def test_values_and_derivatives(ratio, size):
    mean, variance = some_case(ratio, size)
    value, slopes = value_and_slopes(mean, variance, np.arange(size) == 0)
    exact = by_pieces(mean, variance, 0)
    np.testing.assert_allclose(value, exact, rtol=1e-10)
    # Four differences of fourth order, whose steps are shares of the deviation or the variance.
    for argument, slope in enumerate(slopes):
        for c in range(size):
            step = 0.01 * (np.sqrt(variance[c]) if argument == 0 else variance[c])
            moved = [[mean.copy(), variance.copy()] for _ in range(4)]
            for point, count in zip(moved, (-2, -1, 1, 2), strict=True):
                point[argument][c] += count * step
            far, near, ahead, beyond = (by_pieces(*point, 0) for point in moved)
            numerical = (far - 8 * near + 8 * ahead - beyond) / (12 * step)
            np.testing.assert_allclose(slope[c] * step, numerical * step, atol=1e-9)


@double_precision
def test_small_probabilities_are_accurate_relative_to_themselves():
    mean = np.array([-30.0, 1.0, 2.5])
    chosen = np.arange(3) == 0
    # The others compete too: at the mode of the integrand they are far below.
    value = float(jax.jit(log_probability_of_largest)(mean, np.ones(3), chosen)[0])
    assert value == pytest.approx(np.log(by_pieces(mean, np.ones(3), 0)), abs=1e-9)
    assert value < -250


@double_precision
def test_they_sum_to_one_and_agree_with_draws():
    mean, variance = np.array([0.4, -0.2, 0.9, 0.1]), np.array([1.5, 0.02, 0.4, 3.0])
    total = np.exp(jax.jit(log_probability_of_largest)(mean, variance, np.eye(4, dtype=bool)))[:, 0]
    assert total.sum() == pytest.approx(1.0, abs=1e-12)
    drawn = np.argmax(mean + np.sqrt(variance) * RNG.normal(size=(200_000, 4)), axis=1)
    # Four standard errors of a frequency.
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 200_000, total, atol=4 * 0.5 / np.sqrt(200_000))


@double_precision
def test_no_variance_and_equal_means_are_finite():
    for mean in (np.array([0.0, 0.0, 0.0]), np.array([1.0, -2.0, 0.5])):
        value, slopes = value_and_slopes(mean, np.zeros(3), np.arange(3) == 0)
        assert value == pytest.approx(1.0 if mean[0] > 0 else 1 / 3, abs=1e-9)
        assert np.isfinite(np.concatenate(slopes)).all()


# Sums of waves at scattered points against the sums term by term.


TRIGONOMETRIC_SUMS_RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("size", "count", "highest"), [(1, 3, 0.0), (5, 1, 1.0), (50, 7, 1.0), (300, 1000, 0.125)])
def test_sums_are_those_of_all_terms(size, count, highest):
    u, coefficients = TRIGONOMETRIC_SUMS_RNG.uniform(0.0, highest, size), TRIGONOMETRIC_SUMS_RNG.standard_normal(size)
    expected = np.exp(2j * np.pi * np.outer(np.arange(count), u)) @ coefficients
    largest = np.abs(coefficients).sum()
    np.testing.assert_allclose(trigonometric_sums(u, coefficients, count), expected, atol=1e-11 * largest)
