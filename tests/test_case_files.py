"""Published regressions of censored times and of counts, on tables of the folder PGMODELS_DATA, if they are there."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest

import pgmodels as pgm

Fixed = pgm.Fixed


def table(name):
    path = Path(os.environ.get("PGMODELS_DATA", "")) / f"{name}.csv"
    if not path.is_file():
        pytest.skip(f"{name}.csv is not in the folder PGMODELS_DATA")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {column: np.array([row[column] for row in rows]) for column in rows[0]}


def learned(likelihood, X, y):
    """The fit of a linear predictor with wide priors, and means and deviations of the coefficients."""
    model = pgm.Model(likelihood, pgm.GP(pgm.Linear(Fixed(100.0)), mean=Fixed(0.0)))
    result = pgm.fit(model, X, y, objective="expected")
    mean, variance = pgm.correct(result).predict_latent(np.eye(X.shape[1]))
    return result, mean[:, 0], np.sqrt(variance[:, 0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "censoring", "slopes", "shape"),
    [
        (pgm.LogLogistic, "right", [1.8814, 0.0394, -0.0339], 1 / 0.62027),
        (pgm.LogLogistic, "interval", [1.8814, 0.0394, -0.0339], 1 / 0.62027),
        (pgm.Weibull, "right", [2.6879, 0.0353, -0.1268], 1 / 1.02063),
    ],
)
def test_lung_cancer(make, censoring, slopes, shape):
    """Days to death of 137 veterans (Kalbfleisch and Prentice 1980), by R's ``survreg``."""
    rows = table("veteran")
    time, event, score, treatment = (rows[name].astype(float) for name in ("time", "status", "karno", "trt"))
    y = np.column_stack([time, event] if censoring == "right" else [time, event, time])
    X = np.column_stack([np.ones(137), score, treatment == 2])
    result, mean, deviation = learned(make(1.0, censoring=censoring), X, y)
    # A twentieth of a standard error.
    np.testing.assert_array_less(np.abs(mean - slopes), 0.05 * deviation)
    # The shape that maximises the evidence is lower by a fifth of its standard error, 7 %.
    np.testing.assert_allclose(result.fit.values["shape"], shape, rtol=0.02)
    # A fifth of the deviation of the slope moves a median by less than a percent.
    at_sixty = result.predict(np.array([[1.0, 60.0, 0.0]]))
    log_median = np.dot(slopes, [1.0, 60.0, 0.0])
    half = np.exp(log_median) * (np.log(2.0) ** (1 / shape) if make is pgm.Weibull else 1.0)
    np.testing.assert_allclose(at_sixty.survival(half), 0.5, atol=0.02)


@pytest.mark.slow
def test_roaches():
    """Counts of 262 apartments with days of exposure (Gelman and Hill 2007), by R's ``glm.nb``."""
    rows = table("roaches")
    count, before, treated, senior, exposure = (
        rows[name].astype(float) for name in ("y", "roach1", "treatment", "senior", "exposure2")
    )
    X = np.column_stack([np.ones(262), before / 100, treated, senior])
    y = np.column_stack([count, np.log(exposure)])
    result, mean, deviation = learned(pgm.with_predictor(pgm.NegativeBinomial2(1.0), 1, offset=True), X, y)
    # The maximum of a skewed posterior is a sixth of a standard error from its mean.
    np.testing.assert_array_less(np.abs(mean - [2.8388, 1.2882, -0.7768, -0.3444]), 0.2 * deviation)
    np.testing.assert_allclose(result.fit.values["dispersion"], 0.27427, rtol=0.03)
    _, mean, deviation = learned(pgm.with_predictor(pgm.Poisson(), 1, offset=True), X, y)
    np.testing.assert_array_less(np.abs(mean - [3.0892, 0.6983, -0.5167, -0.3799]), 0.05 * deviation)
