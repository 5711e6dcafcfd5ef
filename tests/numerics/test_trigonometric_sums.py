"""Sums of waves at scattered points against the sums term by term."""

import numpy as np
import pytest

from pgmodels.numerics.elementary import trigonometric_sums

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("size", "count", "highest"), [(1, 3, 0.0), (5, 1, 1.0), (50, 7, 1.0), (300, 1000, 0.125)])
def test_sums_are_those_of_all_terms(size, count, highest):
    u, coefficients = RNG.uniform(0.0, highest, size), RNG.standard_normal(size)
    expected = np.exp(2j * np.pi * np.outer(np.arange(count), u)) @ coefficients
    largest = np.abs(coefficients).sum()
    np.testing.assert_allclose(trigonometric_sums(u, coefficients, count), expected, atol=1e-11 * largest)
