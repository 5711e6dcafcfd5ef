from decimal import Decimal, localcontext

import jax
import numpy as np
import pytest
from scipy.integrate import simpson

from pgmodels import polya_gamma
from pgmodels.polya_gamma import laws as density

pytestmark = pytest.mark.usefixtures("double_precision")

SHAPES = (1.0, 2.0, 7.0, 2.5, 0.3)
# Both sides of the switch between series and formula (c = 1), and beyond the range of exp.
MOMENT_TILTS = (1e-8, 1e-4, 0.3, 0.999, 1.0, 1.001, 4.0, 40.0, 700.0, 3000.0)


def exact_moments(b, c):
    """Mean and variance by their formulas in 100 digits."""
    with localcontext(prec=100):
        b, c = Decimal(b), Decimal(c)
        e = c.exp()
        tanh, sech2 = (e - 1) / (e + 1), 4 * e / (e + 1) ** 2
        return float(b * tanh / (2 * c)), float(b * (tanh / c - sech2 / 2) / (2 * c**2))


def grid_density(b, c):
    """omega on a fine geometric grid around the mean, and omega times the density there."""
    centre = float(polya_gamma.mean(b, c))
    log_omega = np.linspace(np.log(centre) - 9, np.log(centre) + 4, 20001)
    density = np.nan_to_num(np.exp(polya_gamma.log_density(np.exp(log_omega), b, c) + log_omega))
    return log_omega, density


@pytest.mark.parametrize("c", MOMENT_TILTS)
def test_moments_against_many_digits(c):
    mean, variance = exact_moments(1.7, c)
    # Rounding: the variance's formula cancels at most one digit at c = 1.
    np.testing.assert_allclose(polya_gamma.mean(1.7, c), mean, rtol=2e-15)
    np.testing.assert_allclose(polya_gamma.variance(1.7, c), variance, rtol=2e-14)
    assert polya_gamma.mean(1.7, -c) == polya_gamma.mean(1.7, c)
    assert polya_gamma.variance(1.7, -c) == polya_gamma.variance(1.7, c)


def test_moments_at_zero():
    assert polya_gamma.mean(3.0, 0.0) == pytest.approx(0.75, rel=1e-15)
    assert polya_gamma.variance(3.0, 0.0) == pytest.approx(3 / 24, rel=1e-15)
    assert jax.grad(polya_gamma.mean, 1)(3.0, 0.0) == 0.0
    assert jax.grad(jax.grad(polya_gamma.mean, 1), 1)(3.0, 0.0) == pytest.approx(-3 / 24, rel=1e-14)


@pytest.mark.parametrize("c", MOMENT_TILTS)
def test_the_variance_is_the_derivative_of_the_mean(c):
    # Cumulants of a family tilted by exp(-omega c²/2): the mean's derivative in c is -c times the variance.
    slope = jax.grad(polya_gamma.mean, 1)(1.7, c)
    np.testing.assert_allclose(slope, -c * polya_gamma.variance(1.7, c), rtol=1e-13)
    curvature = jax.grad(polya_gamma.variance, 1)(1.7, c)
    assert np.isfinite(curvature)
    assert curvature < 0


@pytest.mark.parametrize("b", SHAPES)
@pytest.mark.parametrize("c", [0.0, 0.5, 4.0])
def test_laplace_transform_of_the_density(b, c):
    log_omega, density = grid_density(b, c)
    for t in (0.0, 0.7, 5.0):
        transform = simpson(density * np.exp(-t * np.exp(log_omega)), x=log_omega)
        expected = (np.cosh(c / 2) / np.cosh(np.sqrt((c**2 / 2 + t) / 2))) ** b
        # The right tail, where the series has lost half its digits, holds 2e-7 at b = 7, less elsewhere.
        assert transform == pytest.approx(expected, abs=3e-7)


def test_density_outside_its_support_and_where_its_digits_are_lost():
    assert polya_gamma.log_density(-1.0, 1.0, 0.0) == -np.inf
    assert polya_gamma.log_density(0.0, 1.0, 0.0) == -np.inf
    assert np.isnan(polya_gamma.log_density(10.0, 1.0, 0.0))
    assert polya_gamma.log_density([[0.1], [0.2]], [1.0, 2.0, 3.5], 0.5).shape == (2, 3)


def test_the_first_term_dominates_the_density():
    # What the rejection sampler rests on: the density of J*(b, 0) lies between 0 and the first term of its series.
    x = np.geomspace(1e-3, 39, 4000)
    for b in (1e-3, 0.05, 0.5, 0.999, 1.0):
        ratio, _ = density.weighted_series(x, np.full_like(x, b))
        assert ratio.min() > -1e-14
        assert ratio.max() <= 1
