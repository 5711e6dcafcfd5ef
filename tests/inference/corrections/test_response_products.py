"""Linear response solved by products against the same with a matrix of all the data's moments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.inference import linear_response
from pgmodels.inference import linear_response as correction
from pgmodels.inference.linear_response import by_products, entries
from tests.priors.test_inducing import LABELS, X_NEW, X, bernoulli

pytestmark = pytest.mark.usefixtures("double_precision")


def equations(size, joint, height):
    """A factor of five coordinates at 13 data, right-hand sides, and second derivatives of either sign."""
    rng, pairs = np.random.default_rng(size), entries(size, joint)
    U = rng.normal(size=(5, 13, size)) / 4.0
    curved = height * rng.normal(size=(13, len(pairs), len(pairs)))
    return tuple(map(jnp.asarray, (U, rng.normal(size=(5, 13, len(pairs))), curved + curved.swapaxes(1, 2)))), pairs


@pytest.mark.parametrize(("size", "joint"), [(1, False), (3, False), (2, True)])
def test_products_solve_what_the_matrix_solves(size, joint):
    (U, right, curved), pairs = equations(size, joint, 0.2)
    response, residual = jax.jit(lambda *arguments: by_products(*arguments, pairs))(U, right, curved)
    expected = linear_response._by_matrix(U, right, curved, pairs)
    # What the series does beyond its first term is seen.
    first = linear_response._by_matrix(U, right, 0.0 * curved, pairs)
    assert np.abs(expected - first).max() > 0.02 * np.abs(first).max()
    assert residual < 1e-7
    np.testing.assert_allclose(response, expected, atol=1e-6 * np.abs(expected).max())


def test_equations_that_are_not_positive_definite_are_told():
    (U, right, curved), pairs = equations(1, False, 0.2)
    _, residual = jax.jit(lambda *arguments: by_products(*arguments, pairs))(U, right, 0.0 * curved + 50.0)
    assert residual == np.inf


def test_nothing_to_solve():
    (U, right, curved), pairs = equations(1, False, 0.2)
    response, residual = jax.jit(lambda *arguments: by_products(*arguments, pairs))(U, 0.0 * right, curved)
    assert residual == 0.0
    assert not np.any(response)


def test_corrections_by_products_are_those_by_matrices(monkeypatch):
    result = pgm.cavi(bernoulli(pgm.Inducing(X[:9])), X, LABELS)
    one = pgm.correct(result)
    monkeypatch.setattr(linear_response, "_PRODUCTS", 0.0)
    monkeypatch.setattr(
        correction, "_respond", jax.jit(lambda *arguments: correction._corrected(*arguments), static_argnums=(0, 1, 2))
    )
    other = pgm.correct(result)
    assert one.residual == 0.0
    assert 0.0 < other.residual < 1e-7
    for ours, theirs in zip(other.predict_latent(X_NEW), one.predict_latent(X_NEW), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-7)
    np.testing.assert_allclose(other.covariance, one.covariance, atol=1e-7)
    assert np.abs(one.variance / result.variance - 1.0).max() > 0.01
