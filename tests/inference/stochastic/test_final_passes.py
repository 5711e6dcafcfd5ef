"""Where steps on batches stand still far from the optimum: rare events and classes that can be told apart."""

import numpy as np
import pytest
from scipy.optimize import minimize

import pgmodels as pgm
from tests.covering import some


def rare(num_rows, ones):
    """A shared level of which few rows say that it is not far down: the last of them is in no batch of 100."""
    y = np.zeros(num_rows)
    y[np.linspace(3, num_rows - 2, ones).astype(int)] = 1.0
    return np.linspace(0.0, 1.0, num_rows)[:, None], y


LEVEL = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Constant(4.0), form=pgm.Inducing(1)))


def best_level(y):
    """Mean, variance and bound of the best q of one N(0, 4) level beside Polya-Gamma variables: in two dimensions."""

    def loss(at):
        m, v = at[0], np.exp(at[1])
        bound = np.sum((y - 0.5) * m) - len(y) * np.log(2.0 * np.cosh(0.5 * np.sqrt(m**2 + v)))
        return 0.5 * ((m**2 + v) / 4.0 - 1.0 - np.log(v / 4.0)) - bound

    optimum = minimize(loss, [-3.0, -3.0], method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-12})
    return optimum.x[0], np.exp(optimum.x[1]), -optimum.fun


@pytest.mark.parametrize(
    ("num_rows", "ones", "batch_size"), some([(250, 2, 100), (1000, 5, 1000), (5000, 25, 1000)], (250, 2, 100))
)
@pytest.mark.parametrize("source", [lambda *data: data, lambda *data: (pgm.ArrayRows(*data),)], ids=["arrays", "rows"])
def test_rare_events_end_at_the_optimum(num_rows, ones, batch_size, source):
    X, y = rare(num_rows, ones)
    mean, variance, bound = best_level(y)
    result = pgm.svi(LEVEL, *source(X, y), batch_size=batch_size)
    assert result.converged
    assert bound - 1e-4 * num_rows / 20.0 < result.elbo <= bound + 1e-4
    m, v = (part.item() for part in result.predict_latent(X[:1]))
    assert abs(m - mean) < 0.2 * np.sqrt(variance)
    assert v == pytest.approx(variance, rel=0.01)


@pytest.mark.parametrize(
    ("max_epochs", "complaint"),
    [
        (4, "none remains to measure the gain of a step on all rows"),
        (5, r"a step on all rows still gains [0-9.]+ nats"),
    ],
)
def test_an_optimum_that_is_not_reached_is_said(max_epochs, complaint):
    X, y = rare(250, 2)
    for source in ((X, y), (pgm.ArrayRows(X, y),)):
        with pytest.warns(pgm.ConvergenceWarning, match=f"after {max_epochs} passes {complaint}. Raise max_epochs"):
            assert not pgm.svi(LEVEL, *source, batch_size=250, max_epochs=max_epochs).converged


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [100, 60])
def test_separable_classes_end_at_the_optimum(batch_size):
    X = np.linspace(-3.0, 3.0, 100)[:, None]
    y = (X[:, 0] > 0.0).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(100.0, 1.0), form=pgm.Inducing(7, "kmeans")))
    exact = pgm.cavi(model, X, y, tolerance=1e-12)
    for source in ((X, y), (pgm.ArrayRows(X, y),)):
        result = pgm.svi(model, *source, batch_size=batch_size)
        assert result.converged
        assert exact.elbo - 1e-3 < result.elbo <= exact.elbo + 1e-6
        moved = result.predict_latent(X)[0] - exact.predict_latent(X)[0]
        assert np.max(np.abs(moved) / np.sqrt(exact.variance)) < 0.2


@pytest.mark.slow
def test_ten_blobs_have_the_loss_of_all_rows():
    rng = np.random.default_rng(0)
    centres = rng.uniform(-10.0, 10.0, (10, 2))
    y = rng.integers(10, size=600)
    X = centres[y] + 0.8 * rng.standard_normal((600, 2))
    model = pgm.Model(pgm.LogisticSoftmax(10), pgm.GP(pgm.RBF(40.0, 3.0), size=10, form=pgm.Inducing(30, "kmeans")))
    exact, result = pgm.cavi(model, X, y), pgm.svi(model, X, y)
    assert result.converged
    assert result.elbo == pytest.approx(exact.elbo, abs=1e-3)
    losses = [-np.mean(each.predict(X).log_density(y)) for each in (exact, result)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-3)
