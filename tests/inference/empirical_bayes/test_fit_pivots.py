"""Learning with a low-rank form whose pivots are chosen anew at each step: the bound and gradient of the dense form."""

import jax
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.inference import bound as problem_family
from pgmodels.inference.bound import MarginalBound, points_at
from pgmodels.inference.objectives import objective_of
from pgmodels.model import Data
from pgmodels.parameters.vector import trainable
from tests.referees import sigma


@pgm.likelihood(support=pgm.Binary())
def additive(y, f):
    """A label whose log odds are a sum of two functions."""
    z = f[0] + f[1]
    return pgm.sigmoid(z) ** y * pgm.sigmoid(-z) ** (1 - y)


def gaussian_processes(count):
    """Of so smooth a kernel that sixty rows have a low-rank form, unequal lengthscales and a nonzero mean."""
    kernels = [pgm.RBF(1.7, np.array([2.8, 4.5])), pgm.RBF(0.8, np.array([5.1, 3.2]))]
    return [pgm.GP(kernel, mean=mean) for kernel, mean in zip(kernels, (0.4, -0.2), strict=True)][:count]


@pytest.mark.parametrize(
    ("likelihood", "latents", "objective", "rows"),
    [
        pytest.param(pgm.Bernoulli(), 1, "augmented", 60, id="one"),
        # Rows of latents that a predictor, or the sites of quadrature, couple count for each of them.
        pytest.param(additive(), 2, "augmented", 120, id="coupled by a predictor", marks=pytest.mark.slow),
        pytest.param(
            pgm.HeteroscedasticGaussian(2.5), 2, "expected", 120, id="coupled by sites", marks=pytest.mark.slow
        ),
    ],
)
def test_pivots_give_the_dense_bound_and_gradient(monkeypatch, likelihood, latents, objective, rows):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.5, 1.5, (60, 2))
    y = (rng.random(60) < sigma(1.0 + np.sin(2 * X[:, 0]))).astype(float)
    y = y if objective == "augmented" else y + rng.normal(size=60)
    model = pgm.Model(likelihood, gaussian_processes(latents))
    terms = objective_of(model, objective)
    with jax.enable_x64(True):
        learnable, data = trainable(model), Data(X, y)
        start = learnable.start()
        at_start = learnable.with_values(learnable.constrain(start)).bare()
        monkeypatch.setattr(problem_family, "MANY_ROWS", rows + 1)
        assert points_at(terms, at_start, [X] * latents, (None,) * latents) == (None,) * latents
        dense, theirs = MarginalBound(learnable, data, terms)(start)
        monkeypatch.setattr(problem_family, "MANY_ROWS", rows)
        for points in points_at(terms, at_start, [X] * latents, (None,) * latents):
            assert points is not None
            # Padded to a size that other hyperparameters share.
            assert np.sum(points.active) < 60 < len(points.active) == 128
        low, ours = MarginalBound(learnable, data, terms)(start)
    # What the pivots neglect, 1e-10 of the variance a datum.
    np.testing.assert_allclose(low, dense, rtol=1e-8)
    # A root with pivots down to 1e-10 of the variance amplifies rounding to some 1e-6.
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_rank_that_is_a_large_share_of_the_rows_is_not_worth_its_form(monkeypatch):
    """Of 300 rows in the plane a rank of 192: dense covariances are factorised less often, and cost no more.

    Where predictors couple latents they are factorised as often, and the low-rank form is taken.
    """
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.5, 1.5, (300, 2))
    monkeypatch.setattr(problem_family, "MANY_ROWS", 300)
    with jax.enable_x64(True):
        rough = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.7, 0.6)))
        smooth = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.7, 2.0)))
        coupled = pgm.Model(additive(), [pgm.GP(pgm.RBF(1.7, 0.6)), pgm.GP(pgm.RBF(0.8, 0.7))])
        ranks = []
        for model in (rough, smooth, coupled):
            terms = objective_of(model, "augmented")
            pivots = points_at(terms, model.bare(), [X] * len(model.gps), (None,) * len(model.gps))
            ranks.append([None if points is None else int(np.sum(points.active)) for points in pivots])
    assert ranks == [[None], [51], [182, 153]]


@pytest.mark.slow
def test_the_bound_of_inducing_inputs_has_no_steps():
    """What it gains between two vectors is its slope along the way, where ever fewer inputs tell of more than others.

    With variance and lengthscale growing together, of which rows away from the inducing inputs feel every pivot.
    """
    rng = np.random.default_rng(4)
    X = rng.normal(size=(400, 6))
    signal = X @ [1.0, -0.5, 0.2, 0.0, 0.8, 0.3] + 0.4 + np.sin(2.0 * X[:, 0])
    y = (rng.random(400) < sigma(signal)).astype(float)
    gp = pgm.GP(pgm.RBF(1.0, 2.0), mean=pgm.Fixed(0.1), form=pgm.Inducing(X[:60]))
    with jax.enable_x64(True):
        bound = MarginalBound(trainable(pgm.Model(pgm.Bernoulli(), gp)), Data(X, y))
        start, direction = np.array([8.0, 2.2]), np.array([2.0, 1.0])
        ways = [bound(start + step * direction) for step in np.linspace(0.0, 2.0, 41)]
    values, slopes = np.array([value for value, _ in ways]), np.array([slope @ direction for _, slope in ways])
    # Simpson's rule over two steps, 4e-6 off at the start; inputs left out at 1e-10 of the variance made steps of 7e-4.
    along = 0.05 / 3.0 * (slopes[:-2] + 4.0 * slopes[1:-1] + slopes[2:])
    np.testing.assert_allclose(values[2:] - values[:-2], along, rtol=0, atol=2e-5)
