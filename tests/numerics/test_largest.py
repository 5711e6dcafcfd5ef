"""The probability of the largest of Gaussian variables against Gauss-Legendre rules between all steps, and sampling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_ndtr

from pgmodels.numerics.elementary import log_probability_of_largest
from pgmodels.runtime.precision import double_precision

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
