"""Marginals of hyperparameters from weighted points: quantiles and densities against quadrature and closed forms."""

import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import stats
from scipy.special import expit

import pgmodels as pgm
from pgmodels.numerics.quadrature import grid, grid_support, refined
from pgmodels.results import result as intervals
from tests.referees import cdf_of, gp_regression, gp_regression_marginals

LEVELS = np.array([0.025, 0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975])


def lattice(log_density, mode, axes):
    """The points of ``integrate`` (S, d) for a density of unconstrained values, and their masses."""

    def at(point, near):
        return float(log_density(*(mode + axes @ point)))

    support = grid_support(refined(at, grid(at, len(mode))))
    return mode + support.points @ axes.T, support.mass


def test_quantiles_of_three_hyperparameters_are_those_of_quadrature():
    mode, deviations = np.log([6.8, 2.1, 1.75]), np.array([0.19, 0.29, 0.27])
    points, mass = lattice(gp_regression, mode, np.diag(deviations))
    for entries, (values, shares) in zip(points.T, gp_regression_marginals(), strict=True):
        mean = shares @ np.exp(values)
        deviation = np.sqrt(shares @ (np.exp(values) - mean) ** 2)
        marginal, cdf = pgm.Marginal(np.exp(entries), mass), cdf_of(values, shares)
        np.testing.assert_allclose(marginal.mean, mean, atol=0.02 * deviation)
        np.testing.assert_allclose(marginal.deviation, deviation, rtol=0.02)
        # The lattice leaves out half a per cent at each end. Cumulated masses of its planes miss by up to 0.02.
        np.testing.assert_allclose(cdf(np.log(marginal.quantiles(LEVELS))), LEVELS, atol=0.007)
        ends = intervals.of_marginal(marginal).iloc[0, 2:].to_numpy(dtype=float)
        np.testing.assert_allclose(cdf(np.log(ends)), intervals.bounds(), atol=0.007)


# The law, its values by unconstrained ones, the logarithm of their derivative, and the bounds.
LAWS = {
    "positive": (stats.gamma(3.0), np.exp, lambda x: x, (0.0, np.inf)),
    "of an interval": (
        stats.beta(2.0, 5.0, loc=-1.0, scale=3.0),
        lambda x: 3.0 * expit(x) - 1.0,
        lambda x: -np.logaddexp(0.0, x) - np.logaddexp(0.0, -x),
        (-1.0, 2.0),
    ),
    "above a bound": (stats.gamma(3.0, loc=2.0), lambda x: 2.0 + np.exp(x), lambda x: x, (2.0, np.inf)),
    "below a bound": (stats.weibull_max(1.5, loc=2.0), lambda x: 2.0 - np.exp(-x), lambda x: -x, (-np.inf, 2.0)),
    # All values are positive, and there is no bound at 0.
    "real": (stats.norm(6.0, 1.0), lambda x: x, lambda x: 0.0, (-np.inf, np.inf)),
}


@pytest.mark.parametrize("name", LAWS)
def test_quantiles_and_densities_of_one_hyperparameter_are_those_of_the_law(name):
    law, constrain, log_slope, bounds = LAWS[name]
    start = 6.0 if name == "real" else 0.0
    points, mass = lattice(lambda x: law.logpdf(constrain(x)) + log_slope(x), np.array([start]), np.array([[0.8]]))
    marginal = pgm.Marginal(constrain(points[:, 0]), mass, bounds)
    values = law.ppf(LEVELS)
    np.testing.assert_allclose(marginal.quantiles(LEVELS), values, atol=0.04 * law.std())
    np.testing.assert_allclose(marginal.density(values), law.pdf(values), atol=0.03 / law.std())
    outside = [bound + step for bound, step in zip(bounds, (-0.1, 0.1), strict=True) if np.isfinite(bound)]
    np.testing.assert_array_equal(marginal.density(outside), 0.0)


def test_smoothing_leaves_mean_and_variance_of_a_normal():
    # Three points with the moments of a standard normal.
    marginal = pgm.Marginal(np.sqrt(3.0) * np.array([-1.0, 0.0, 1.0]), np.array([1.0, 4.0, 1.0]) / 6.0)
    at = np.linspace(-4.0, 4.0, 2001)
    density = marginal.density(at) * (at[1] - at[0])
    np.testing.assert_allclose([density.sum(), density @ at, density @ at**2], [1.0, 0.0, 1.0], atol=1e-3)


def test_quantiles_of_entries_have_their_own_bounds():
    rng = np.random.default_rng(0)
    values = np.stack([rng.beta(0.3, 0.4, 500), 5.0 * rng.beta(0.3, 0.4, 500)], axis=1)
    marginal = pgm.Marginal(values, np.full(500, 1 / 500), (0.0, np.array([1.0, 5.0])))
    quantiles = marginal.quantiles([1e-4, 1.0 - 1e-4])
    assert np.all(quantiles > 0.0)
    assert np.all(quantiles < [1.0, 5.0])
    each = pgm.Marginal(values[:, 1], np.full(500, 1 / 500), (0.0, 5.0)).quantiles([0.3])
    np.testing.assert_array_equal(marginal.quantiles([0.3])[:, 1], each)


def test_a_marginal_of_one_value_has_this_value_as_its_quantiles():
    marginal = pgm.Marginal(np.full(3, 2.5), np.full(3, 1 / 3))
    np.testing.assert_allclose(marginal.quantiles([0.1, 0.9]), 2.5)
    # Rounding of the transform may put a value on its bound.
    at_bound = pgm.Marginal(np.array([0.2, 0.4, 1.0]), np.array([0.5, 0.5, 0.0]), (0.0, 1.0))
    assert np.isfinite(at_bound.quantiles([0.1, 0.9])).all()


@pytest.mark.parametrize(
    ("prior", "constraint", "bounds"),
    [
        (dist.HalfNormal(1.0), None, (0.0, np.inf)),
        (dist.Normal(0.0, 1.0), None, (-np.inf, np.inf)),
        (dist.Uniform(-1.0, 2.0), None, (-1.0, 2.0)),
        (dist.TruncatedNormal(0.0, 1.0, high=1.5), None, (-np.inf, 1.5)),
        (dist.Uniform(-1.0, 2.0).expand([2]).to_event(1), None, (-1.0, 2.0)),
        (None, constraints.simplex, (0.0, 1.0)),
        (None, constraints.positive_ordered_vector, (0.0, np.inf)),
        (None, constraints.ordered_vector, (-np.inf, np.inf)),
    ],
)
def test_bounds_of_a_parameter_are_those_of_its_support(prior, constraint, bounds):
    parameter = pgm.Parameter(np.array([0.25, 0.75]), prior=prior, constraint=constraint)
    np.testing.assert_allclose(parameter.bounds, bounds)


def test_a_marginal_of_a_function_has_its_moments_and_the_functions_of_quantiles():
    # The square of a log-normal, as weighted points; its root is the log-normal.
    levels = (np.arange(400) + 0.5) / 400
    values, mass = stats.lognorm(0.5).ppf(levels), np.full(400, 1.0 / 400.0)
    squares = pgm.Marginal(values**2, mass, (0.0, np.inf))
    roots = squares.of(np.sqrt)
    assert roots.mean == pytest.approx(values.mean(), rel=1e-12)
    assert roots.deviation == pytest.approx(values.std(), rel=1e-12)
    np.testing.assert_allclose(roots.quantiles([0.1, 0.9]), np.sqrt(squares.quantiles([0.1, 0.9])), rtol=1e-9)
