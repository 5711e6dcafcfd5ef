"""Conjugate gradients, Hessians by finite differences and the barrier against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pgmodels.numerics.elementary import barrier
from pgmodels.numerics.iteration import conjugate_gradients, hessian

RNG = np.random.default_rng(0)
ROOT = RNG.normal(size=(6, 6))
M, B = ROOT @ ROOT.T + np.eye(6), RNG.normal(size=6)


def solved(matrix, Q):
    product = lambda direction, raw: matrix @ direction  # noqa: E731
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, conjugate_gradients(product, jnp.asarray(B), lambda r: Q @ r, 1e-10, 50))


@pytest.mark.parametrize("Q", [np.eye(6), np.diag(1.0 / np.diag(M))], ids=["plain", "preconditioned"])
def test_conjugate_gradients_solve(Q):
    solution = solved(M, Q)
    np.testing.assert_allclose(solution.x, np.linalg.solve(M, B), rtol=1e-8)
    assert solution.positive
    assert solution.residual < 1e-10
    assert solution.taken <= 8


def test_what_is_not_positive_definite_ends_them():
    solution = solved(-M, np.eye(6))
    assert not solution.positive
    assert solution.taken == 1
    np.testing.assert_array_equal(solution.x, 0.0)


@pytest.mark.parametrize("central", [False, True])
def test_the_hessian_of_a_quadratic_is_exact(central):
    np.testing.assert_allclose(hessian(lambda x: M @ x - B, B, central=central), M, rtol=1e-9, atol=1e-9)


def test_the_barrier_rises_from_the_best_point():
    value, slope = barrier(B + 1.0, B, -2.0)
    assert value == 1.0
    assert slope @ np.ones(6) > 0.0
    assert barrier(B, B, -2.0)[0] == barrier(B + 1.0, B, np.inf)[0] == np.inf
