"""Estimators with default settings beside scikit-learn's: held-out log loss and seconds on twelve data sets.

Usage: python validation/estimators.py. Data sets other than scikit-learn's are read from PGMODELS_DATA or OpenML. Two
minutes on two cores.
"""

import time
import warnings
from typing import Any

import numpy as np
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.metrics import log_loss
from table import write_table

import pgmodels as pgm
from pgmodels.datasets import load

# Rows to learn from, at most two thirds of all.
CLASSES = {
    "crabs": 130,
    "heart": 180,
    "ionosphere": 230,
    "wine": 110,
    "breast-cancer": 370,
    "pima": 500,
    "german": 600,
    "banana": 260,
    "twonorm": 1000,
    "waveform": 500,
}
NUMBERS = {"mcycle": 80, "wine-quality-white": 1000}
TESTED = 1000


def rows(name: str, count: int) -> tuple[np.ndarray, ...]:
    """Training and test rows, standardised by the former."""
    data = load(name)
    order = np.random.default_rng(0).permutation(len(data.X))
    train, test = order[:count], order[count : count + TESTED]
    spread = data.X[train].std(axis=0)
    X = (data.X - data.X[train].mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)
    return X[train], data.y[train], X[test], data.y[test]


def loss(estimator: Any, X: np.ndarray, y: np.ndarray, is_class: bool) -> float:
    """The mean negative log density of test rows."""
    if is_class:
        return float(log_loss(y, estimator.predict_proba(X), labels=estimator.classes_))
    mean, deviation = estimator.predict(X, return_std=True)
    return float(np.mean(0.5 * ((y - mean) / deviation) ** 2 + np.log(deviation) + 0.5 * np.log(2.0 * np.pi)))


def measured(name: str, count: int, is_class: bool) -> dict[str, object]:
    """Losses and seconds of fit and prediction of each estimator; of ours, the second call, and the first."""
    X, y, X_test, y_test = rows(name, count)
    learned = ConstantKernel() * RBF()
    theirs = {
        "scikit-learn": GaussianProcessClassifier() if is_class else GaussianProcessRegressor(),
        "scikit-learn, learned": GaussianProcessClassifier(learned)
        if is_class
        else GaussianProcessRegressor(learned + WhiteKernel(), normalize_y=True),
    }
    ours = pgm.GPClassifier() if is_class else pgm.GPRegressor()
    row: dict[str, object] = {"data": name, "rows": count, "classes": len(np.unique(y)) if is_class else "numbers"}
    for label, estimator in {"pgmodels, first": ours, "pgmodels": ours, **theirs}.items():
        begin = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = loss(estimator.fit(X, y), X_test, y_test, is_class)
        row[f"loss, {label}"], row[f"seconds, {label}"] = value, time.perf_counter() - begin
        print(name, label, value, row[f"seconds, {label}"], flush=True)
    return row


table = [measured(name, count, True) for name, count in CLASSES.items()]
table += [measured(name, count, False) for name, count in NUMBERS.items()]
best = sum(
    row["loss, pgmodels"] <= min(row["loss, scikit-learn"], row["loss, scikit-learn, learned"]) for row in table
)  # fmt: skip
for row in table:
    del row["loss, pgmodels, first"]
write_table(
    "Estimators compared with scikit-learn",
    table,
    f"Default settings; test rows up to {TESTED:,}, inputs standardised. Loss: mean negative log density, in nats. "
    "scikit-learn, learned: with the kernel ConstantKernel() * RBF(), whose values are learned; for numbers with noise "
    "and normalize_y=True. Seconds of fit and predictions; pgmodels, first, with compilation. pgmodels has the smaller "
    f"loss on {best} of {len(table)} sets.",
    0,
)
