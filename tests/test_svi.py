"""Steps on batches against CAVI on all rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.inference.natural_gradient import Averages, adapt
from tests.registry import CASES

RNG = np.random.default_rng(6)
X = np.sort(RNG.uniform(-3.0, 3.0, (480, 1)), axis=0)
LABELS = (RNG.random(480) < 1.0 / (1.0 + np.exp(-2.5 * np.sin(1.5 * X[:, 0])))).astype(float)
MODEL = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 0.9), mean=0.3, form=pgm.Inducing(12, "variance")))


@pytest.fixture(scope="module")
def exact():
    return pgm.cavi(MODEL, X, LABELS)


def sparse(name, n=24):
    case = CASES[name]
    rows, y = case.data(n, seed=3)
    gps = [
        pgm.GP(pgm.RBF(2.0 - 0.5 * i, 1.2 + i), mean=0.3 * i, form=pgm.Inducing(rows[: 8 - i]))
        for i in range(case.num_latents)
    ]
    return pgm.Model(case.likelihood(), gps), rows, y


@pytest.mark.turns(2)
@pytest.mark.parametrize("name", ["bernoulli", "varying"])
def test_steps_on_all_rows_are_those_of_cavi(name):
    given = sparse(name)
    trace = pgm.cavi(*given, tolerance=1e-12).elbo_trace
    with pytest.warns(pgm.ConvergenceWarning, match="after 3 passes"):
        found = pgm.svi(*given, max_passes=3, tolerance=1e-12)
    # The start, three steps, and the one that ends it.
    assert found.elbo == pytest.approx(trace[4], abs=1e-9)
    assert not found.converged
    assert found.method == "svi"


@pytest.mark.turns(2)
def test_latents_that_multiply_are_updated_in_turn():
    given = sparse("heteroscedastic")
    assert pgm.svi(*given, max_passes=300, tolerance=1e-8).elbo == pytest.approx(pgm.cavi(*given).elbo, abs=1e-6)


# The last step is of CAVI, from where the noise of the steps left q: a share of a deviation, and as much of an adaptive
# rate, whose steps are short too soon.
@pytest.mark.turns(2)
@pytest.mark.parametrize(("rate", "gap", "error"), [("adaptive", 0.1, 0.2), ("robbins-monro", 1e-3, 0.02)])
def test_batches_find_the_optimum_of_all_rows(exact, rate, gap, error):
    found = pgm.svi(MODEL, X, LABELS, batch_size=60, rate=rate, tolerance=0.03)
    assert found.converged
    assert exact.elbo - gap < found.elbo <= exact.elbo + 1e-9
    np.testing.assert_allclose(found.mean, exact.mean, atol=error)
    again = pgm.svi(MODEL, X, LABELS, batch_size=60, rate=rate, tolerance=0.03)
    np.testing.assert_array_equal(again.mean, found.mean)


def test_results_are_those_that_every_other_call_takes(exact):
    found = pgm.svi(MODEL, X, LABELS, batch_size=480, tolerance=1e-7)
    assert found.elbo == pytest.approx(exact.elbo, abs=1e-7)
    for ours, theirs in zip(found.predict_latent(X[:5] + 0.1), exact.predict_latent(X[:5] + 0.1), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert "svi" in repr(found).lower()


def test_the_adaptive_rate_is_the_share_of_the_gradient_that_is_no_noise():
    with jax.enable_x64(True):
        before = Averages([jnp.array([1.0, -2.0])], jnp.asarray(8.0), jnp.asarray(4.0))
        rate, after = adapt(before, [jnp.array([3.0, 0.0])])
    mean, square = np.array([1.5, -1.5]), 0.75 * 8.0 + 0.25 * 9.0
    np.testing.assert_allclose(after.gradient[0], mean)
    assert float(rate) == pytest.approx(mean @ mean / square)
    assert float(after.memory) == pytest.approx(4.0 * (1.0 - mean @ mean / square) + 1.0)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number >= 1"),
        ({"rate": "slow"}, "rate must be 'adaptive', 'robbins-monro' or delay and power"),
        ({"rate": (0.0, 0.7)}, "the delay of rate"),
        ({"rate": (0.5, 0.7)}, "at least 1"),
        ({"rate": (1.0, 0.4)}, "the power of rate"),
        ({"tolerance": -1.0}, "tolerance"),
    ],
)
def test_wrong_options_are_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        pgm.svi(MODEL, X, LABELS, **options)
