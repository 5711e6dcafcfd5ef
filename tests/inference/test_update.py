"""New rows: the optimum of all rows at the hyperparameters of a result, in fewer iterations than from the start."""

import warnings

import numpy as np
import pandas as pd
import pytest

import pgmodels as pgm
from tests.covering import some

RNG = np.random.default_rng(0)
N, NEW = 60, 3
X = RNG.permutation(np.linspace(0.0, 6.0, N))[:, None]
F = 3.0 * np.sin(2.0 * X[:, 0])
LABELS = (RNG.logistic(size=N) < F).astype(float)
REAL = F + 0.1 * RNG.standard_t(3, size=N)


def gp(size=1):
    return pgm.GP(pgm.RBF(9.0, 0.8), size=size)


CASES = {
    "Bernoulli": (pgm.Model(pgm.Bernoulli(), gp()), LABELS),
    "StudentT": (pgm.Model(pgm.StudentT(3.0, 0.1), gp()), REAL),
    "LogisticSoftmax": (pgm.Model(pgm.LogisticSoftmax(3), gp(3)), (F > 1.0) + (F > -1.0) * 1.0),
    "NegativeBinomial": (pgm.Model(pgm.NegativeBinomial(2.0), gp()), RNG.poisson(np.exp(F / 2)).astype(float)),
}
RUNS = [(name, engine) for name in CASES for engine in ("cavi", "gaussian_vi")]


@pytest.mark.parametrize(("name", "engine"), some(RUNS, ("StudentT", "gaussian_vi"), ("Bernoulli", "cavi")))
def test_new_rows_give_the_optimum_of_all(name, engine):
    model, y = CASES[name]
    with warnings.catch_warnings():
        # Of variances that are too small.
        warnings.simplefilter("ignore", pgm.CorrectionWarning)
        old = getattr(pgm, engine)(model, X[:-1], y[:-1])
        updated, every = pgm.update(old, X[-1:], y[-1:]), getattr(pgm, engine)(model, X, y)
    # The start of gaussian_vi is near the optimum of cavi, whose sweeps are not counted.
    assert updated.num_iterations < every.num_iterations + (engine == "gaussian_vi")
    # Both end where an iteration changes the bound by 1e-9; means are within its root.
    assert updated.elbo == pytest.approx(every.elbo, abs=1e-6)
    np.testing.assert_allclose(updated.mean, every.mean, atol=1e-3)
    np.testing.assert_allclose(updated.variance, every.variance, atol=1e-3)
    np.testing.assert_array_equal(updated.X, X)
    np.testing.assert_array_equal(updated.y, y)
    assert updated.method == engine
    assert old.num_rows == N - 1


def test_a_gaussian_likelihood_is_conditioned_on_exactly():
    model = pgm.Model(pgm.Gaussian(0.3), gp())
    weights = RNG.uniform(0.5, 2.0, N)
    weights[-1] = 0.0
    old = pgm.cavi(model, X[:-NEW], REAL[:-NEW], weights=weights[:-NEW])
    updated = pgm.update(old, X[-NEW:], REAL[-NEW:], weights=weights[-NEW:])
    assert updated.num_iterations == 1
    K = 9.0 * np.exp(-0.5 * ((X - X.T) / 0.8) ** 2)[:-1, :-1]
    noisy = K + np.diag(0.09 / weights[:-1])
    np.testing.assert_allclose(updated.mean[:, 0], K @ np.linalg.solve(noisy, REAL[:-1]), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(updated.variance[:, 0], np.diag(K - K @ np.linalg.solve(noisy, K)), rtol=1e-7)


def test_new_levels_become_levels_of_the_result():
    kernel = pgm.On(pgm.White(0.8), ["group"])
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(kernel))
    text = np.where(LABELS > 0, "yes", "no")
    groups = np.array(["b", "a"])[np.arange(N) % 2]
    groups[-NEW:] = ["z", "c", "z"]
    frame = pd.DataFrame({"group": groups})
    updated = pgm.update(pgm.cavi(model, frame[:-NEW], text[:-NEW]), frame[-NEW:], text[-NEW:])
    every = pgm.cavi(model, frame, text)
    assert updated.columns[0].levels == ("a", "b", "c", "z")
    assert updated.labels == ("no", "yes")
    new = pd.DataFrame({"group": ["z", "other", "c", "a"]})
    np.testing.assert_allclose(updated.predict_latent(new), every.predict_latent(new), atol=1e-5)


def test_corrections_are_made_again():
    model, y = CASES["Bernoulli"]
    corrected = pgm.update(pgm.correct(pgm.cavi(model, X[:-NEW], y[:-NEW])), X[-NEW:], y[-NEW:])
    expected = pgm.correct(pgm.cavi(model, X, y))
    assert corrected.method == expected.method
    np.testing.assert_allclose(corrected.variance, expected.variance, rtol=1e-4)


def test_what_cannot_be_updated_is_named():
    model, y = CASES["Bernoulli"]
    result = pgm.cavi(model, X, y)
    with pytest.raises(ValueError, match=r"result must be that of cavi.*got Model\. Run the engine on all rows"):
        pgm.update(model, X, y)
    with pytest.raises(ValueError, match=r"X_new must have the 1 column\(s\)"):
        pgm.update(result, np.zeros((2, 2)), [0, 1])
    with pytest.raises(ValueError, match="y must hold the labels 0 and 1"):
        pgm.update(result, X[:2], [1, 2])
    with pytest.raises(ValueError, match="y_new must be finite"):
        pgm.update(result, X[:2], [1, np.nan])
