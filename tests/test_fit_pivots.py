"""Learning with a low-rank form whose pivots are chosen anew at each step: the bound and gradient of the dense form."""

import jax
import jax.numpy as jnp
import numpy as np

import pgmodels as pgm
from pgmodels.inference import fit as fit_module
from pgmodels.inference.cavi import init
from pgmodels.inference.fit import _ascend, _pivots
from pgmodels.inference.problem import problem_of
from pgmodels.model import Data
from pgmodels.parameters import bare
from tests.registry import sigma


def test_pivots_give_the_dense_bound_and_gradient(monkeypatch):
    monkeypatch.setattr(fit_module, "_MANY_ROWS", 10)
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.5, 1.5, (60, 2))
    y = (rng.random(60) < sigma(1.0 + np.sin(2 * X[:, 0]))).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.7, np.array([2.8, 4.5])), mean=0.4))
    with jax.enable_x64(True):
        model = bare(model)
        problem = problem_of(model, Data(X, y))
        pivots = _pivots(model, X)
        assert pivots[0] is not None
        # Ranks are powers of two, so that few programs are compiled.
        assert len(pivots[0][1]) in (16, 32, 64)
        given = problem.objective, model, jnp.asarray(X), problem.y
        sites = init(problem).sites
        (low, ours, _), (dense, theirs, _) = (_ascend(*given, p, sites, 1e-11) for p in (pivots, (None,)))
    # What the pivots neglect, 1e-10 of the variance a datum.
    np.testing.assert_allclose(low.elbo, dense.elbo, rtol=1e-8)
    for part, twin in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        # A root with pivots down to 1e-10 of the variance amplifies rounding to some 1e-6.
        np.testing.assert_allclose(part, twin, rtol=1e-5, atol=1e-5)
