"""The gradient of the bound in the hyperparameters by slopes of the log normaliser, against that through roots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.inference.empirical_bayes.bound import MarginalBound, collapsed_bound, sloped_bound, takes_slopes
from pgmodels.inference.objectives import objective_of
from pgmodels.parameters.vector import trainable
from pgmodels.runtime.x64 import double_precision

RNG = np.random.default_rng(3)
# Some rows have equal inputs.
X = np.concatenate([RNG.normal(size=(18, 2)), np.zeros((3, 2))])


@pytest.mark.parametrize("name", ["mean_field", "expected"])
@double_precision
def test_slopes_are_derivatives(name):
    gps = [pgm.GP(pgm.RBF(3.0, 1.3), 0.4), pgm.GP(pgm.RBF(0.7, 2.0), -0.5), pgm.GP(pgm.Matern32(2.0, 0.6), 0.1)]
    model, data = pgm.Model(pgm.LogisticSoftmax(3), gps).prepare(X, RNG.integers(0, 3, len(X)).astype(float), None)
    bound = MarginalBound(trainable(model), data, objective_of(model, name))
    vector = bound.vector + RNG.normal(0.0, 0.2, len(bound.vector))
    points = bound.points(vector)
    bound(vector, 1e-3)
    family, state = bound.family, bound.state
    problem = family.problem(jnp.asarray(vector), points)
    assert takes_slopes(problem)
    by_slopes = sloped_bound(problem, state)
    through = jax.grad(lambda vector: collapsed_bound(family.problem(vector, points), state))(jnp.asarray(vector))
    ours = jax.grad(lambda vector: by_slopes(family.problem(vector, points)))(jnp.asarray(vector))
    np.testing.assert_allclose(ours, through, rtol=1e-7, atol=1e-9)
