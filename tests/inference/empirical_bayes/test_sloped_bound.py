"""The gradient of the bound in the hyperparameters by slopes of the log normaliser, against that through roots."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.inference.bound import MarginalBound, collapsed_bound, sloped_bound, takes_slopes
from pgmodels.inference.objectives import objective_of
from pgmodels.parameters.vector import trainable
from pgmodels.runtime.precision import double_precision

RNG = np.random.default_rng(3)
# Some rows have equal inputs.
X = np.concatenate([RNG.normal(size=(18, 2)), np.zeros((3, 2))])


GPS = [pgm.GP(pgm.RBF(3.0, 1.3), 0.4), pgm.GP(pgm.RBF(0.7, 2.0), -0.5), pgm.GP(pgm.Matern32(2.0, 0.6), 0.1)]
LABELS, REAL = RNG.integers(0, 3, len(X)).astype(float), RNG.normal(1.0, 2.0, len(X))
# The last with a parameter of the likelihood, and with it a lower limit on variances.
CASES = {
    "independent classes": (pgm.LogisticSoftmax(3), LABELS, "mean_field"),
    "coupled classes": (pgm.LogisticSoftmax(3), LABELS, "expected"),
    "mean and spread": (pgm.HeteroscedasticGaussian(1.5), REAL, "mean_field"),
}


@pytest.mark.parametrize("name", CASES)
@double_precision
def test_slopes_are_derivatives(name):
    likelihood, y, objective = CASES[name]
    weights = RNG.uniform(0.5, 2.0, len(X))
    model, data = pgm.Model(likelihood, GPS[:2] if y is REAL else GPS).prepare(X, y, weights)
    bound = MarginalBound(trainable(model), data, objective_of(model, objective))
    vector = bound.vector + RNG.normal(0.0, 0.2, len(bound.vector))
    points = bound.points(vector)
    bound(vector, 1e-3)
    # Large enough to be seen in a gradient.
    family, state = replace(bound.family, floor=1e-3 if bound.family.floor else 0.0), bound.state
    assert (family.floor > 0.0) == (y is REAL)
    problem = family.problem(jnp.asarray(vector), points)
    assert takes_slopes(problem)
    by_slopes = sloped_bound(problem, state)
    through = jax.grad(lambda vector: collapsed_bound(family.problem(vector, points), state))(jnp.asarray(vector))
    ours = jax.grad(lambda vector: by_slopes(family.problem(vector, points)))(jnp.asarray(vector))
    np.testing.assert_allclose(ours, through, rtol=1e-7, atol=1e-9)
