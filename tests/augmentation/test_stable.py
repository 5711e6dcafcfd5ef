"""log σ̃ of a bound and its derivatives, against the formula in many digits."""

from itertools import product

import jax
import mpmath
import numpy as np
import pytest

from pgmodels.augmentation.laws import log_sigmoid_tilde

# Mean and variance: at and around 0, where the closed forms cancel, on both sides of the series' end, and far out.
POINTS = [(0.0, 0.0), (1e-9, 0.0), (0.0, 1e-12), (-1e-3, 1e-7), (0.3, 0.2), (0.9, 0.18), (0.9, 0.20), (-2.0, 0.5)]
POINTS += [(1.5, 30.0), (40.0, 1e-3), (-60.0, 4.0), (700.0, 900.0), (-3000.0, 1.0)]
ORDERS = [orders for orders in product(range(4), repeat=2) if sum(orders) <= 3]


def in_many_digits(mean, variance, orders):
    def formula(m, v):
        # An even function of the root, which is imaginary on the other side of 0.
        return m / 2 - mpmath.log(2 * mpmath.cosh(mpmath.sqrt(v + m**2) / 2))

    with mpmath.workdps(80):
        return float(mpmath.re(mpmath.diff(formula, (mpmath.mpf(mean), mpmath.mpf(variance)), orders)))


@pytest.mark.parametrize("orders", ORDERS, ids=str)
def test_value_and_derivatives_to_the_third(orders):
    differentiated = log_sigmoid_tilde
    for argument, order in enumerate(orders):
        for _ in range(order):
            # Forward and in reverse, as corrections and their Newton steps do.
            differentiated = (jax.jacfwd if order % 2 else jax.grad)(differentiated, argument)
    with jax.enable_x64(True):
        values = jax.jit(jax.vmap(differentiated))(*np.array(POINTS).T)
    expected = [in_many_digits(*point, orders) for point in POINTS]
    np.testing.assert_allclose(values, expected, rtol=1e-12, atol=2e-16)
