"""Rows without y: refused, left out, or kept for predictions; against data without them and dense regression."""

import warnings

import numpy as np
import pandas as pd
import pytest

import pgmodels as pgm
from tests.covering import some

RNG = np.random.default_rng(6)
N = 12
X = RNG.uniform(-2.0, 2.0, (N, 1))
HOLES = np.array([2, 5, 11])
REST = np.setdiff1d(np.arange(N), HOLES)
LABELS = np.tile([0.0, 1.0, 1.0], 4)
REAL = np.sin(2.0 * X[:, 0]) + RNG.normal(0.0, 0.3, N)
KERNEL = pgm.RBF(1.7, 0.8)


MODEL = pgm.Model(pgm.Bernoulli(), pgm.GP(KERNEL, mean=0.4))
BINOMIAL = pgm.Model(pgm.Binomial(), pgm.GP(KERNEL, mean=-0.3))
TRIALS = RNG.integers(3, 9, N).astype(float)
COUNTS = np.column_stack([RNG.binomial(TRIALS.astype(int), 0.4), TRIALS])


def holed(y):
    y = np.array(y, dtype=float)
    y[HOLES] = np.nan
    return y


def holed_counts():
    y = COUNTS.copy()
    y[HOLES, 0] = np.nan
    return y


FEW = {"num_samples": 4, "num_warmup": 2, "num_chains": 1}
INDUCING = pgm.Model(pgm.Bernoulli(), pgm.GP(KERNEL, mean=0.4, form=pgm.Inducing(X[:3])))
ENGINES = {
    "cavi": (pgm.cavi, MODEL, {}),
    "gaussian_vi": (pgm.gaussian_vi, MODEL, {}),
    "vi": (pgm.vi, MODEL, {}),
    "gibbs": (pgm.gibbs, MODEL, FEW),
    "nuts": (pgm.nuts, MODEL, FEW),
    "fit": (pgm.fit, MODEL.fixed(), {"correct": True}),
    "svi": (pgm.svi, INDUCING, {"objective": "expected", "max_epochs": 1, "batch_size": 9}),
}


@pytest.mark.parametrize("name", some(ENGINES, "cavi", "gibbs"))
def test_rows_without_y_are_as_rows_left_out(name):
    engine, model, options = ENGINES[name]
    with warnings.catch_warnings():
        # Of steps and draws that are too few.
        warnings.simplefilter("ignore")
        kept = engine(model, X, holed(LABELS), missing="predict", **options)
        dropped = engine(model, X, holed(LABELS), missing="drop", **options)
        expected = engine(model, X[REST], LABELS[REST], **options)
    moments = expected.predict_latent(X[HOLES])
    for result in (kept, dropped):
        np.testing.assert_array_equal(result.predict_latent(X[HOLES]), moments)
    assert dropped.missing is None
    np.testing.assert_array_equal(kept.missing.rows, HOLES)
    np.testing.assert_array_equal(kept.missing.X, X[HOLES])
    assert kept.missing.covariates is None


def test_every_engine_takes_the_choice():
    calls = (pgm.cavi, pgm.gaussian_vi, pgm.vi, pgm.fit, pgm.integrate, pgm.gibbs, pgm.nuts, pgm.svi)
    for engine in calls:
        with pytest.raises(ValueError, match="There is no y in rows 2, 5, 11: leave rows without y out with missing="):
            engine(MODEL, X, holed(LABELS))
        with pytest.raises(ValueError, match="missing must be one of 'raise', 'drop', 'predict'; got 'impute'"):
            engine(MODEL, X, LABELS, missing="impute")
        with pytest.raises(ValueError, match=r"y has no value in rows 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more, so"):
            engine(MODEL, X, np.full(N, np.nan), missing="predict")


def test_predictions_of_missing_rows_are_those_of_dense_regression():
    model = pgm.Model(pgm.Gaussian(0.3), pgm.GP(KERNEL, mean=0.2))
    predictive = pgm.cavi(model, X, holed(REAL), missing="predict").predict_missing()
    K = 1.7 * np.exp(-0.5 * ((X - X.T) / 0.8) ** 2)
    across, noisy = K[np.ix_(HOLES, REST)], K[np.ix_(REST, REST)] + 0.09 * np.eye(len(REST))
    mean = 0.2 + across @ np.linalg.solve(noisy, REAL[REST] - 0.2)
    variance = 1.7 + 0.09 - np.sum(across * np.linalg.solve(noisy, across.T).T, axis=1)
    np.testing.assert_allclose(predictive.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(predictive.variance, variance, rtol=1e-9)


@pytest.mark.parametrize("gp", [pgm.GP(pgm.RandomWalk(0.8)), pgm.GP(pgm.RBF(1.7, 1.0), form=pgm.Hilbert(40))])
def test_rows_before_and_after_those_with_y_are_predicted(gp):
    x, model = np.linspace(-5.0, 5.0, N)[:, None], pgm.Model(pgm.Gaussian(0.3), gp)
    y = np.where(np.isin(np.arange(N), [4, 5, 6, 8]), REAL, np.nan)
    result = pgm.cavi(model, x, y, missing="predict")
    np.testing.assert_array_equal(result.missing.rows, [0, 1, 2, 3, 7, 9, 10, 11])
    used = np.isfinite(y)
    K, noise = np.asarray(result.prior.groups[0].kernel(x, x)), 0.09 * np.eye(4)
    expected = K[~used][:, used] @ np.linalg.solve(K[used][:, used] + noise, y[used])
    np.testing.assert_allclose(result.predict_missing().mean, expected, atol=1e-8)


def test_lengthscales_from_the_data_are_those_of_rows_with_y():
    model = pgm.Model(pgm.Gaussian(0.3), pgm.GP(pgm.RBF(1.7), form=pgm.Hilbert(40)))
    results = pgm.cavi(model, X, holed(REAL), missing="predict"), pgm.cavi(model, X[REST], REAL[REST])
    kept, expected = (result.model.gps[0].kernel.lengthscale.value for result in results)
    assert kept == expected


def test_dropped_rows_are_counted():
    with pytest.warns(pgm.DataWarning, match="y has no value in 3 of 12 rows, which are left out"):
        data = MODEL.prepare(X, holed(LABELS), missing="drop")[1]
    np.testing.assert_array_equal(data.X, X[REST])
    # Their inputs may be missing too; those of rows to predict may not.
    inputs = X.copy()
    inputs[HOLES[1]] = np.nan
    with pytest.warns(pgm.DataWarning):
        MODEL.prepare(inputs, holed(LABELS), missing="drop")
    with pytest.raises(ValueError, match="X must be finite; got nan in row 5, column 0"):
        MODEL.prepare(inputs, holed(LABELS), missing="predict")


def test_weights_are_those_of_rows_with_y():
    weights = np.arange(N) % 4.0
    data = MODEL.prepare(X, holed(LABELS), weights, "predict")[1]
    used = np.setdiff1d(np.flatnonzero(weights), HOLES)
    np.testing.assert_array_equal(data.weights, weights[used])
    np.testing.assert_array_equal(data.y, LABELS[used])
    # A row of weight 0 is ignored, and is not to be predicted.
    np.testing.assert_array_equal(data.missing.rows, HOLES[weights[HOLES] > 0])


def test_covariates_of_missing_rows_are_kept(tmp_path):
    result = pgm.cavi(BINOMIAL, X, holed_counts(), missing="predict")
    np.testing.assert_array_equal(result.missing.covariates, TRIALS[HOLES, None])
    expected = pgm.cavi(BINOMIAL, X[REST], COUNTS[REST])
    y_new = COUNTS[HOLES]
    others = expected.predict(X[HOLES], TRIALS[HOLES])
    densities = [each.log_density(y_new) for each in (result.predict_missing(), others)]
    np.testing.assert_array_equal(*densities)
    loaded = pgm.load(result.save(tmp_path / "fit.npz"))
    np.testing.assert_array_equal(loaded.missing.rows, HOLES)
    np.testing.assert_array_equal(loaded.predict_missing().log_density(y_new), densities[0])


@pytest.mark.parametrize("missing", ["raise", "drop", "predict"])
def test_a_missing_covariate_is_refused(missing):
    y = COUNTS.copy()
    y[7, 1] = np.nan
    with pytest.raises(ValueError, match="y must be finite; got nan in row 7, column 1"):
        BINOMIAL.prepare(X, y, missing=missing)
    y = holed_counts()
    y[HOLES[1], 1] = np.nan
    if missing == "predict":
        with pytest.raises(ValueError, match=r"y\[1\] is a covariate.*got nan in row 5, column 1 of y"):
            BINOMIAL.prepare(X, y, missing=missing)


def test_labels_may_be_missing():
    text = pd.Series(np.where(LABELS > 0, "yes", "no")).where(~np.isin(np.arange(N), HOLES))
    result = pgm.cavi(MODEL, X, text, missing="predict")
    expected = pgm.cavi(MODEL, X[REST], LABELS[REST])
    np.testing.assert_array_equal(result.mean, expected.mean)
    assert set(result.predict_missing().mode) <= {"no", "yes"}
    with pytest.raises(ValueError, match="predict_missing: no rows without y were kept"):
        expected.predict_missing()


def test_infinite_values_are_not_missing():
    y = REAL.copy()
    y[3] = np.inf
    with pytest.raises(ValueError, match="y must be finite; got inf in row 3"):
        pgm.Model(pgm.Gaussian(0.3), pgm.GP(KERNEL)).prepare(X, y, missing="drop")


def test_rows_that_are_not_in_memory_have_y():
    with pytest.raises(ValueError, match="missing='drop' needs an array X"):
        pgm.svi(INDUCING, pgm.ArrayRows(X, LABELS), missing="drop")


@pytest.mark.parametrize("num_levels", [1, 1000])
def test_effects_of_many_levels(num_levels):
    # Each level has a posterior of its own: that of its mean, in closed form.
    rows, variance, noise = 1000, 0.7, 0.4
    names = [f"g{number % num_levels}" for number in range(rows)]
    y = RNG.normal(size=rows)
    model = pgm.Model(pgm.Gaussian(noise), pgm.GP(pgm.On(pgm.White(variance), ["group"])))
    result = pgm.cavi(model, pd.DataFrame({"group": names}), y)
    count = rows // num_levels
    totals = pd.Series(y).groupby(names).transform("sum").to_numpy()
    shrunk = variance / (variance * count + noise**2)
    np.testing.assert_allclose(result.mean[:, 0], shrunk * totals, rtol=1e-8)
    np.testing.assert_allclose(result.variance[:, 0], shrunk * noise**2, rtol=1e-8)
    # A new level has the prior.
    mean, spread = result.predict_latent(pd.DataFrame({"group": ["new", names[0]]}))
    np.testing.assert_allclose([mean[0, 0], spread[0, 0]], [0.0, variance], atol=1e-12)
    np.testing.assert_allclose(mean[1], result.mean[0], rtol=1e-8)
