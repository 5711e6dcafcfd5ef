"""Learning with a low-rank form whose pivots are chosen anew at each step: the bound and gradient of the dense form."""

import jax
import numpy as np

import pgmodels as pgm
from pgmodels.inference import penalised_bound as bound_module
from pgmodels.inference.penalised_bound import PenalisedBound, _pivots
from pgmodels.model import Data
from pgmodels.unknowns import learned
from tests.referees import sigma


def test_pivots_give_the_dense_bound_and_gradient(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.5, 1.5, (60, 2))
    y = (rng.random(60) < sigma(1.0 + np.sin(2 * X[:, 0]))).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.7, np.array([2.8, 4.5])), mean=0.4))
    with jax.enable_x64(True):
        learnable, data = learned(model), Data(X, y)
        start = learnable.start()
        dense, theirs = PenalisedBound(learnable, data)(start)
        monkeypatch.setattr(bound_module, "_MANY_ROWS", 10)
        pivots = _pivots(learnable.with_values(learnable.constrain(start)).bare(), X, (None,))
        assert pivots[0] is not None
        # Ranks are powers of two, so that few programs are compiled.
        assert len(pivots[0][1]) in (16, 32, 64)
        low, ours = PenalisedBound(learnable, data)(start)
    # What the pivots neglect, 1e-10 of the variance a datum.
    np.testing.assert_allclose(low, dense, rtol=1e-8)
    # A root with pivots down to 1e-10 of the variance amplifies rounding to some 1e-6.
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
