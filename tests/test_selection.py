"""How inducing inputs are chosen: by the prior, by chance, and by what the data say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.inference.fit import PenalisedBound
from pgmodels.latent.inducing import ADAPTIVE, Inducing
from pgmodels.latent.selection import greedy
from pgmodels.model import Data
from pgmodels.unknowns import learned
from tests.test_inducing import KERNEL, LABELS, N, X, bernoulli, one_scale


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def test_greedy_selection_takes_the_largest_variance_that_is_left():
    weights = np.random.default_rng(7).gamma(1.0, 1.0, N)
    weights[:4] = 0.0
    for w in (np.ones(N), weights):
        chosen = greedy(KERNEL, X, 6, w)
        for count, z in enumerate(chosen):
            Z = chosen[:count]
            left = np.asarray(KERNEL.diagonal(X))
            if count:
                left = left - np.sum(np.asarray(KERNEL(Z, X)) * np.linalg.solve(KERNEL(Z, Z), KERNEL(Z, X)), axis=0)
            np.testing.assert_array_equal(z, X[np.argmax(w * left)])
        assert count == 5
    # Rows that nothing is said of are never taken.
    assert not (greedy(KERNEL, X, N, weights)[:, None] == X[:4]).all(axis=2).any()


@pytest.mark.parametrize("select", ["kmeans", "uniform", "variance"])
def test_selections_cover_inputs_that_they_have_not_seen(select):
    rng = np.random.default_rng(4)
    seen, unseen = rng.normal(size=(400, 2)), rng.normal(size=(50, 2))
    Z = pgm.Inducing(40, select).choose(KERNEL, seen)
    assert Z.shape == (40, 2)
    prior = pgm.Inducing(Z).bind(KERNEL, 0.0, seen, 1)
    # Forty inputs span 3 x 2 lengthscales with little left; a tenth of the variance, where 400 rows have 1.7.
    assert np.mean(np.asarray(prior.factor_at(jnp.asarray(unseen))[1])) < 0.17
    np.testing.assert_array_equal(Z, pgm.Inducing(40, select).choose(KERNEL, seen))


def test_another_choice_of_inducing_inputs_never_lowers_the_bound(monkeypatch):
    bound = PenalisedBound(learned(one_scale(pgm.Inducing(5))), Data(X, LABELS))
    bound.inputs = (X[:2],)
    bound(bound.vector)
    before = bound.best
    assert bound.choose_again(1e-5)
    assert len(bound.inputs[0]) == 5
    assert bound.best < before
    held, before = bound.inputs[0], bound.best
    monkeypatch.setattr(Inducing, "choose", lambda *given: X[:1])
    assert not bound.choose_again(1e-5)
    np.testing.assert_array_equal(bound.inputs[0], held)
    assert bound(bound.vector)[0] == pytest.approx(before, abs=1e-8)


def test_selection_by_what_the_data_say_is_no_worse_than_by_variance():
    by_variance, by_data = (pgm.cavi(bernoulli(pgm.Inducing(5, how)), X, LABELS) for how in ("variance", ADAPTIVE))
    assert by_data.elbo >= by_variance.elbo
    assert by_data.model != by_variance.model
