from decimal import Decimal, localcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import cumulative_simpson, simpson
from scipy.stats import kstest

from pgmodels import polya_gamma
from pgmodels.polya_gamma import density

TILTS = (0.0, 1e-4, 0.5, 4.0, 6.0, 40.0)
SHAPES = (1.0, 2.0, 7.0, 2.5, 0.3)
# Both sides of the switch between series and formula (c = 1), and beyond the range of exp.
MOMENT_TILTS = (1e-8, 1e-4, 0.3, 0.999, 1.0, 1.001, 4.0, 40.0, 700.0, 3000.0)


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


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


@pytest.mark.parametrize("b", SHAPES)
@pytest.mark.parametrize("c", TILTS)
def test_draws_have_the_law(b, c):
    size = 20_000
    draws = np.asarray(polya_gamma.draw(jax.random.key(3), jnp.full(size, b), c))
    mean, variance = polya_gamma.mean(b, c), polya_gamma.variance(b, c)
    assert abs(draws.mean() - mean) < 4 * np.sqrt(variance / size)
    fourth = np.mean((draws - mean) ** 4)
    assert abs(np.mean((draws - mean) ** 2) - variance) < 4 * np.sqrt((fourth - variance**2) / size)

    log_omega, density = grid_density(b, c)
    cdf = cumulative_simpson(density, x=log_omega, initial=0)
    assert cdf[-1] == pytest.approx(1, abs=3e-7)
    assert kstest(draws, lambda omega: np.interp(np.log(omega), log_omega, cdf)).pvalue > 1e-4


@pytest.mark.parametrize(("b", "c"), [(1.0, 700.0), (60.0, 12.0), (300.25, 0.3), (1e6, 60.0), (1.0, 1e-300)])
def test_moments_of_draws_at_extremes(b, c):
    size = 5_000
    draws = np.asarray(polya_gamma.draw(jax.random.key(4), jnp.full(size, b), c))
    mean, variance = polya_gamma.mean(b, c), polya_gamma.variance(b, c)
    assert abs(draws.mean() - mean) < 4 * np.sqrt(variance / size)
    # The relative standard error of a variance is at least √(2/size) = 0.02; these laws have kurtosis of up to 6.
    assert draws.var() == pytest.approx(float(variance), rel=0.15)


def test_the_first_term_dominates_the_density():
    # What the rejection sampler rests on: the density of J*(b, 0) lies between 0 and the first term of its series.
    x = np.geomspace(1e-3, 39, 4000)
    for b in (1e-3, 0.05, 0.5, 0.999, 1.0):
        ratio, _ = density.alternating_series(x, np.full_like(x, b))
        assert ratio.min() > -1e-14
        assert ratio.max() <= 1


def test_the_tilt_has_no_sign():
    key, b = jax.random.key(0), jnp.array([1.0, 2.0, 0.5])
    np.testing.assert_array_equal(polya_gamma.draw(key, b, 1.5), polya_gamma.draw(key, b, -1.5))


def test_shape_zero_and_arguments_outside_the_domain():
    draws = polya_gamma.draw(jax.random.key(0), jnp.array([0.0, -1.0, 1.0, jnp.nan]), jnp.array([2.0, 0.0, jnp.inf, 0]))
    assert draws[0] == 0
    assert np.isnan(draws[1:]).all()
    np.testing.assert_array_equal(polya_gamma.draw(jax.random.key(0), jnp.zeros(3), 1.0), 0)
    assert polya_gamma.draw(jax.random.key(0), jnp.zeros((0,)), 1.0).shape == (0,)


def test_draws_depend_on_the_key_alone():
    b, c = jnp.ones((2, 3)), jnp.array([0.0, 1.0, 2.0])
    first, again = (polya_gamma.draw(jax.random.key(1), b, c) for _ in range(2))
    jitted = jax.jit(polya_gamma.draw)(jax.random.key(1), b, c)
    other = polya_gamma.draw(jax.random.key(2), b, c)
    assert first.shape == (2, 3)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, jitted)
    assert not np.any(first == other)


def test_draws_inside_jit_vmap_and_scan():
    def chain(key, c):
        def step(_, key):
            omega = polya_gamma.draw(key, jnp.array([1.0, 0.5, 3.0, 0.0]), c)
            return omega, omega

        return jax.lax.scan(step, jnp.zeros(4), jax.random.split(key, 5))[1]

    keys, tilts = jax.random.split(jax.random.key(7), 3), jnp.array([0.0, 1.0, 30.0])
    chains = jax.jit(jax.vmap(chain))
    draws = np.asarray(chains(keys, tilts))
    assert draws.shape == (3, 5, 4)
    assert draws.dtype == np.float64
    assert np.all(draws[..., 3] == 0)
    assert np.unique(draws[..., :3]).size == 45
    # In double precision: single precision would leave no digits beyond its own.
    assert np.any(draws[..., :3] != draws[..., :3].astype(np.float32))
    np.testing.assert_array_equal(draws, chains(keys, tilts))


def test_single_precision_is_refused():
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"jax\.enable_x64\(True\)"):
        polya_gamma.draw(jax.random.key(0), 1.0, 0.0)
