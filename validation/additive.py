"""Additive logistic regression, three smooth functions and twenty groups, beside a generalised additive model.

Needs statsmodels 0.15 too: python -m pip install "statsmodels>=0.15,<0.16".
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from numpyro.distributions import LogNormal
from statsmodels.gam.api import BSplines, GLMGam
from statsmodels.genmod.families import Binomial
from table import write_table

import pgmodels as pgm

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--rows", type=int, default=2000)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()
GROUPS = 20


@pgm.likelihood(support=pgm.Binary())
def additive(y, f):
    """A label whose log odds are a sum of four functions."""
    z = f[0] + f[1] + f[2] + f[3]
    return pgm.sigmoid(z) ** y * pgm.sigmoid(-z) ** (1 - y)


def simulate(n: int, rng: np.random.Generator, effects: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, labels and the true probabilities."""
    X = np.column_stack([rng.uniform(-2.0, 2.0, (n, 3)), rng.integers(0, GROUPS, n)])
    z = 1.5 * np.sin(2.0 * X[:, 0]) + X[:, 1] ** 2 - 1.3 + 0.8 * X[:, 2] + effects[X[:, 3].astype(int)]
    p = 1.0 / (1.0 + np.exp(-z))
    return X, (rng.random(n) < p).astype(float), p


def by_pgmodels(X: np.ndarray, y: np.ndarray, X_test: np.ndarray) -> np.ndarray:
    """Three GPs of a column each and one of the groups, hyperparameters learned."""
    smooth = [pgm.GP(pgm.On(pgm.RBF(LogNormal(0.0, 1.0), LogNormal(0.0, 0.7)), [column])) for column in range(3)]
    groups = pgm.GP(pgm.On(pgm.White(LogNormal(-1.0, 1.0)), [3]), mean=0.0)
    model = pgm.Model(additive(), [*smooth, groups])
    return pgm.fit(model, X, y, objective="augmented", progress=False).predict(X_test).mean


def by_splines(X: np.ndarray, y: np.ndarray, X_test: np.ndarray) -> np.ndarray:
    """Penalised cubic splines of 12 functions a column, penalties by information criterion, and group dummies."""
    splines = BSplines(X[:, :3], df=[12] * 3, degree=[3] * 3)
    model = GLMGam(y, exog=np.eye(GROUPS)[X[:, 3].astype(int)], smoother=splines, family=Binomial())
    # The penalties' search reads a scale that only fitting a Gaussian sets; of labels it is 1.
    model.scale = 1.0
    model.alpha = model.select_penweight(method="minimize")[0]
    inside = np.clip(X_test[:, :3], X[:, :3].min(axis=0), X[:, :3].max(axis=0))
    return model.fit().predict(exog=np.eye(GROUPS)[X_test[:, 3].astype(int)], exog_smooth=inside)


METHODS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "pgmodels, fit": by_pgmodels,
    "statsmodels, GLMGam": by_splines,
}
rng = np.random.default_rng(options.seed)
effects = rng.normal(0.0, 0.7, GROUPS)
X, y, _ = simulate(options.rows, rng, effects)
X_test, y_test, truth = simulate(10_000, rng, effects)
rows = []
for name, predict in METHODS.items():
    seconds = []
    for _ in range(2):
        begin = time.perf_counter()
        p = np.clip(predict(X, y, X_test), 1e-12, 1.0 - 1e-12)
        seconds.append(time.perf_counter() - begin)
    rows.append(
        {
            "method": name,
            "seconds, first": seconds[0],
            "seconds, again": seconds[1],
            "test negative log density": -np.mean(np.log(np.where(y_test == 1, p, 1.0 - p))),
            "mean error of p": np.mean(np.abs(p - truth)),
        }
    )
floor = -np.mean(np.log(np.where(y_test == 1, truth, 1.0 - truth)))
write_table(
    f"Additive logistic regression, {options.rows} rows, three smooth functions and {GROUPS} groups",
    rows,
    f"10,000 test rows; the true probabilities have a negative log density of {floor:.4f} there. The first time counts "
    "compilation.",
    seed=options.seed,
)
