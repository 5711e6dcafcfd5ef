"""Estimators: scikit-learn's checks, and that their numbers are those of the calls that they make."""

import re
import warnings

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import pgmodels as pgm

FIXED = {"method": "cavi", "learn": False}
KERNEL = pgm.RBF(2.0, 1.3)


def labels(n=40, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, (X[:, 0] + 0.5 * rng.logistic(size=n) > 0.3).astype(int)


@pytest.mark.slow
@parametrize_with_checks([pgm.GPClassifier(**FIXED), pgm.GPRegressor(**FIXED)])
def test_checks_of_scikit_learn(estimator, check):
    with warnings.catch_warnings():
        # Checks fit noise with few rows.
        warnings.simplefilter("ignore", pgm.PgmodelsWarning)
        check(estimator)


METHODS = ("predict", "predict_proba", "predict_log_proba", "latent_mean_and_variance", "sample_y")
UNFITTED = [
    (estimator, name)
    for estimator in (pgm.GPClassifier, pgm.GPRegressor)
    for name in METHODS
    if hasattr(estimator, name)
]


@pytest.mark.parametrize(("estimator", "name"), UNFITTED)
def test_methods_before_fit_raise_not_fitted_error(estimator, name):
    with pytest.raises(NotFittedError, match="is not fitted yet"):
        getattr(estimator(), name)(labels()[0])


def test_a_classifier_is_its_model():
    X, codes = labels()
    y = np.array(["no", "yes"])[codes]
    classifier = pgm.GPClassifier(KERNEL, mean=pgm.Fixed(0.4), method="gaussian_vi", learn=False).fit(X, y)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(KERNEL, mean=pgm.Fixed(0.4)))
    result = pgm.gaussian_vi(model.fixed(), X, codes, tolerance=1e-9, max_iterations=200)
    new = X[:7] + 0.1
    np.testing.assert_allclose(classifier.predict_proba(new), result.predict(new).probabilities, rtol=1e-9)
    mean, variance = classifier.latent_mean_and_variance(new)
    np.testing.assert_allclose([mean, variance], [part[:, 0] for part in result.predict_latent(new)], rtol=1e-9)
    assert list(classifier.classes_) == ["no", "yes"]
    assert classifier.n_classes_ == 2
    assert set(classifier.predict(new)) <= {"no", "yes"}
    np.testing.assert_allclose(np.exp(classifier.predict_log_proba(new)), classifier.predict_proba(new))
    draws = classifier.sample_y(new, 2000, random_state=1)
    assert draws.shape == (7, 2000)
    np.testing.assert_allclose((draws == "yes").mean(axis=1), classifier.predict_proba(new)[:, 1], atol=0.05)
    # A weight of 2 is the row twice, and one of 0 no row.
    weights = np.where(np.arange(40) < 10, 2, np.where(np.arange(40) < 15, 0, 1))
    weighted, repeated = (
        clone(classifier).fit(X, y, weights), clone(classifier).fit(X.repeat(weights, 0), y.repeat(weights))
    )  # fmt: skip
    np.testing.assert_allclose(weighted.predict_proba(new), repeated.predict_proba(new), rtol=1e-7)


def test_a_regressor_is_its_model():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(40, 2))
    y = 3.0 + np.sin(2.0 * X[:, 0]) + 0.3 * rng.normal(size=40)
    regressor = pgm.GPRegressor(KERNEL, likelihood=pgm.Gaussian(pgm.Fixed(0.3)), mean=pgm.Fixed(2.5), learn=False)
    regressor.fit(X, y)
    K = np.asarray(KERNEL(X, X))
    new = X[:5] + 0.2
    across, S = np.asarray(KERNEL(new, X)), K + 0.09 * np.eye(40)
    mean, deviation = regressor.predict(new, return_std=True)
    np.testing.assert_allclose(mean, 2.5 + across @ np.linalg.solve(S, y - 2.5), rtol=1e-6)
    variance = 2.0 - np.sum(across * np.linalg.solve(S, across.T).T, axis=1) + 0.09
    np.testing.assert_allclose(deviation, np.sqrt(variance), rtol=1e-6)
    draws = regressor.sample_y(new, 4000)
    np.testing.assert_allclose(draws.mean(axis=1), mean, atol=5.0 * np.sqrt(variance.max() / 4000))


def test_pipelines_searches_and_frames():
    X, codes = labels(60, 2)
    y = np.array(["no", "yes"])[codes]
    frame = pd.DataFrame(X, columns=["age", "dose"])
    pipeline = make_pipeline(StandardScaler(), pgm.GPClassifier(**FIXED))
    grid = {"gpclassifier__kernel": [pgm.RBF(1.0, 0.01), pgm.RBF(1.0, 1.0)]}
    search = GridSearchCV(pipeline, grid, scoring="neg_log_loss", cv=3).fit(frame, y)
    assert search.best_params_["gpclassifier__kernel"] is grid["gpclassifier__kernel"][1]
    folds = cross_val_predict(search.best_estimator_, frame, y, cv=3, method="predict_proba")
    assert ((folds[:, 1] > 0.5) == codes).mean() > 0.7
    calibrated = CalibratedClassifierCV(pgm.GPClassifier(**FIXED), cv=2).fit(frame, y)
    assert calibrated.predict_proba(frame).shape == (60, 2)
    by_name = pgm.GPClassifier(**FIXED).fit(frame, y)
    assert list(by_name.feature_names_in_) == ["age", "dose"]
    same = pgm.GPClassifier(**FIXED).fit(pl.DataFrame(X, schema=["age", "dose"]), y)
    np.testing.assert_allclose(same.predict_proba(frame), by_name.predict_proba(frame))
    with pytest.raises(ValueError, match="feature names should match"):
        by_name.predict(frame[["dose", "age"]])
    assert "GPClassifier" in by_name._repr_html_()


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, "softmax", "stick_breaking", "probit"])
def test_several_classes_by_name(name):
    X, y = load_iris(return_X_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pgm.PgmodelsWarning)
        classifier = make_pipeline(StandardScaler(), pgm.GPClassifier(likelihood=name)).fit(X[::2], y[::2])
    assert classifier.score(X[1::2], y[1::2]) > 0.9
    np.testing.assert_allclose(classifier.predict_proba(X).sum(axis=1), 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fit", "cavi", "gaussian_vi", "svi", "gibbs", "integrate"])
def test_every_method_learns_or_keeps_values(method):
    X, y = labels(80, 3)
    kernel = pgm.RBF(dist.LogNormal(0.0, 1.0), dist.LogNormal(0.0, 1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pgm.PgmodelsWarning)
        estimators = [pgm.GPClassifier(kernel, method=method, learn=True).fit(X, y)]
        if method != "integrate":
            estimators.append(pgm.GPClassifier(KERNEL, method=method, learn=False).fit(X, y))
        scores = [estimator.score(X, y) for estimator in estimators]
        draws = [estimator.sample_y(X[:4], 2000).mean(axis=1) for estimator in estimators]
        expected = [estimator.predict_proba(X[:4])[:, 1] for estimator in estimators]
    np.testing.assert_allclose(draws, expected, atol=5.0 * 0.5 / np.sqrt(2000.0))
    assert min(scores) > 0.75
    assert min(estimator.n_iter_ for estimator in estimators) >= 1
    if method != "integrate":
        assert float(estimators[1].kernel_.variance.value) == 2.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gaussian", "student", "laplace", "negative_binomial"])
def test_numbers_by_name(name):
    rng = np.random.default_rng(4)
    X = rng.uniform(-2.0, 2.0, (80, 1))
    y = rng.poisson(np.exp(1.0 + X[:, 0])) if name == "negative_binomial" else 40.0 + 10.0 * np.sin(2.0 * X[:, 0])
    y = y if name == "negative_binomial" else y + rng.standard_t(4.0, 80)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pgm.PgmodelsWarning)
        regressor = pgm.GPRegressor(likelihood=name).fit(X, y)
    assert regressor.score(X, y) > 0.6
    assert regressor.predict(X, return_std=True)[1].min() > 0.0


def test_a_formula_of_two_labels_has_one_latent():
    @pgm.likelihood(support=pgm.Binary())
    def flipped(y, f):
        return pgm.sigmoid(f) ** (1 - y) * pgm.sigmoid(-f) ** y

    X, y = labels(30)
    fixed, plain = (pgm.GPClassifier(**{**FIXED, "likelihood": likelihood}).fit(X, y) for likelihood in (flipped, None))
    np.testing.assert_allclose(fixed.predict_proba(X), plain.predict_proba(X), rtol=1e-6)


def test_invalid_arguments_are_refused_by_name():
    X, y = labels(20)
    cases = [
        ({"method": "vi"}, y, None, "method must be one of 'fit', 'cavi'"),
        ({"likelihood": "logistic"}, y, None, "likelihood must be one of 'logit', 'probit' for 2 classes"),
        ({"likelihood": 3.0}, y, None, "likelihood must be a name or a pgmodels likelihood"),
        ({"likelihood": pgm.Softmax(3)}, y, None, "is of 3 classes; y has 2 classes"),
        ({"likelihood": pgm.StudentT(4.0, 1.0)}, y, None, "declares no classes; y has 2 classes"),
        ({}, np.zeros(20), None, "y has one class with a positive weight"),
        ({}, y, (y == 1).astype(float), "y has one class with a positive weight"),
        ({}, y, -np.ones(20), "sample_weight must not be negative"),
    ]
    for parameters, target, weights, message in cases:
        with pytest.raises(ValueError, match=re.escape(message)):
            pgm.GPClassifier(**{**FIXED, **parameters}).fit(X, target, weights)
    with pytest.raises(ValueError, match="likelihood must be one of 'gaussian', 'student'"):
        pgm.GPRegressor(likelihood="poisson").fit(X, y)


def test_a_search_that_stops_early_warns_as_scikit_learn_does():
    X, y = labels(30)
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        pgm.GPClassifier(max_iter=1).fit(X, y)
