"""Learned classifiers on held-out rows: `fit`, also on the CAVI bound, and those of scikit-learn.

Usage: python validation/learning.py [NAME ...]: sets of these names alone. Data sets other than scikit-learn's are read
from PGMODELS_DATA or OpenML. Ten minutes on two cores.
"""

import argparse
import time
import warnings
from collections.abc import Callable

import numpy as np
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import LogisticRegression
from table import write_table

import pgmodels as pgm
from pgmodels.datasets import load

SETS = [
    *("crabs", "heart", "ionosphere", "banana", "pima", "german", "breast-cancer", "twonorm", "ringnorm", "magic"),
    *("svmguide1", "electricity", "wine", "waveform", "waveform-noise", "satimage"),
]
# Training rows with two classes and with more, at most two thirds of all; and test rows at most.
ROWS = {2: 400, 3: 200}
TESTED = 2000

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("names", nargs="*", default=SETS)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()


def split(name: str) -> tuple[np.ndarray, ...]:
    """Training and test rows, standardised by the former."""
    data = load(name)
    order = np.random.default_rng(options.seed).permutation(len(data.X))
    count = min(ROWS[min(len(np.unique(data.y)), 3)], 2 * len(order) // 3)
    train, test = order[:count], order[count : count + TESTED]
    location, scale = data.X[train].mean(axis=0), data.X[train].std(axis=0)
    X = (data.X - location) / np.where(scale > 0, scale, 1.0)
    return X[train], data.y[train], X[test], data.y[test]


def model(y: np.ndarray) -> pgm.Model:
    """One radial kernel, its variance and lengthscale left open; in a latent for each class where there are more."""
    size = len(np.unique(y))
    likelihood = pgm.Bernoulli() if size == 2 else pgm.LogisticSoftmax(size)
    return pgm.Model(likelihood, pgm.GP(pgm.RBF(), size=1 if size == 2 else size))


def ours(**options: str) -> Callable[..., np.ndarray]:
    """Log density of the test rows by ``fit``."""

    def run(X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray) -> np.ndarray:
        result = pgm.fit(model(y), X, y, progress=False, **options)
        return result.predict(X_test).log_density(y_test)

    return run


def theirs(make: Callable[[], object]) -> Callable[..., np.ndarray]:
    """Log density of the test rows by a classifier of scikit-learn."""

    def run(X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray) -> np.ndarray:
        probabilities = make().fit(X, y).predict_proba(X_test)
        return np.log(probabilities[np.arange(len(y_test)), y_test.astype(int)])

    return run


METHODS = {
    "fit": ours(),
    "fit, augmented": ours(objective="augmented"),
    "GaussianProcessClassifier": theirs(lambda: GaussianProcessClassifier(ConstantKernel() * RBF(), random_state=0)),
    "LogisticRegression": theirs(lambda: LogisticRegression(max_iter=1000)),
}

rows = []
for name in options.names:
    X, y, X_test, y_test = split(name)
    row: dict[str, object] = {"data": f"{name}, {len(X)} x {X.shape[1]}, {len(np.unique(y))} classes"}
    seconds = {}
    for method, run in METHODS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of values at the edge, and of too few iterations
            start = time.perf_counter()
            row[f"{method}, nats"] = -float(np.mean(run(X, y, X_test, y_test)))
            seconds[f"{method}, s"] = time.perf_counter() - start
    rows.append(row | seconds)
    print(rows[-1], flush=True)


def column(method: str) -> np.ndarray:
    """The negative log densities of a method."""
    return np.array([row[f"{method}, nats"] for row in rows])


best = np.minimum(column("GaussianProcessClassifier"), column("LogisticRegression"))
excess = {method: column(method) - best for method in ("fit", "fit, augmented")}
said = "; ".join(f"{method} {np.mean(x):.3f} on average, {np.max(x):.3f} at most" for method, x in excess.items())
write_table(
    "Learned classifiers on held-out rows",
    rows,
    "Negative log density a test row and seconds, those of compilation included (each set has programs of its own). "
    "RBF with one lengthscale, values to start from left to each; LogisticSoftmax where there are more than two "
    f"classes, one against the rest in scikit-learn. Beyond the better of scikit-learn's two: {said}.",
    options.seed,
)
