"""Curves of test rows along iterations, and the rival of two papers: their q, bound, scores and steps."""

from itertools import pairwise

import jax
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.datasets import Split
from pgmodels.numerics.iteration import Adam
from validation.papers.curves import JITTER, Curve, Look, first_time, score_at
from validation.papers.measures import scores
from validation.papers.rival import AdaDelta, adadelta_step, follow, rival_of

LOOKS = [Look(0.1, 0.5, 0.7), Look(0.2, 0.2, 0.4), Look(0.4, 0.3, 0.5)]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    y = (X[:, 0] + 0.5 * rng.normal(size=30) > 0.3).astype(float)
    Z = np.array([[-1.0, 0.2], [0.1, 0.9], [0.8, -0.6], [1.7, 0.4]])
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.3) + pgm.White(0.2), form=pgm.Inducing(Z)))
    return model, Split(X[:20], y[:20], X[20:], y[20:]), Z


@pytest.mark.slow
def test_a_look_and_the_rivals_bound_are_those_of_the_variational_gaussian(data):
    model, split, Z = data
    curve = Curve(model.fixed(), split, Z)
    result = pgm.vi(model.fixed(), split.X, split.y, objective="expected", callback=curve.after_sweep, progress=False)
    taken = scores(result.predict(split.X_test), split.y_test)
    assert curve.looks[-1][1:] == pytest.approx((taken.error, taken.nll), abs=1e-6)
    # q(u) from its definition, for the rival in either parametrisation.
    kernel, (h, w) = model.gps[0].kernel, (np.asarray(part)[:20, 0] for part in result.posterior.sites)
    K = np.asarray(kernel(Z, Z))
    L = np.linalg.cholesky(K + JITTER * np.mean(np.diag(K)) * np.eye(4))
    A = np.linalg.solve(L, np.asarray(kernel(Z, split.X)))
    S = np.linalg.inv(np.eye(4) + (A * w) @ A.T)
    mean, root = S @ A @ h, np.linalg.cholesky(S)
    with jax.enable_x64(True):
        for whitened in (True, False):
            rival = rival_of(model, split, Z, Adam, whitened=whitened, moves=True)
            moments = (mean, root) if whitened else (L @ mean, L @ root)
            vector = np.concatenate([np.asarray(rival.start())[:3], *map(np.ravel, moments), Z.ravel()])
            assert float(rival.bound(vector, np.arange(20))) == pytest.approx(result.elbo, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "rate"), [(AdaDelta, 1.0), (Adam, 0.05)])
def test_the_rival_learns(data, rule, rate):
    model, split, Z = data
    looks = follow(model, split, Z, rule, rate, 20, 1.0, whitened=True)
    assert looks[0].nll == pytest.approx(np.log(2.0))
    assert looks[-1].nll < looks[0].nll
    assert all(after.seconds >= before.seconds for before, after in pairwise(looks))


def test_steps_of_adadelta():
    state = adadelta_step(AdaDelta(np.array([1.0]), np.array([0.0]), np.array([0.0])), np.array([-2.0]), 0.5)
    move = -0.5 * 2.0 * np.sqrt(1e-4) / np.sqrt(0.4 + 1e-4)
    assert np.asarray(state).ravel() == pytest.approx([1.0 + move, 0.4, 0.1 * move**2])


def test_times_and_scores_of_looks():
    assert first_time(LOOKS, 0.4, "nll") == 0.2
    assert first_time(LOOKS, 0.1, "error") == np.inf
    np.testing.assert_array_equal(score_at(LOOKS, np.array([0.05, 0.1, 0.3, 9.0]), "error"), [np.nan, 0.5, 0.2, 0.3])
