"""
Ordered ratings
===============

Cutpoints learned, and what a category's probability is as an input moves.

Data: `wine-quality-white` of the folder PGMODELS_DATA where there is one (200 wines, alcohol and volatile acidity, five
grades), else ratings simulated in its manner.
"""

import os
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from numpyro.distributions.constraints import ordered_vector

import pgmodels as pgm
from pgmodels.datasets import load

GRADES = 5


# %%
# Cutpoints are one array, which learning keeps in order.
@pgm.likelihood(support=pgm.Classes(GRADES))
def ordered(y, f, cuts=pgm.Parameter([-3.0, -1.0, 1.0, 3.0], constraint=ordered_vector)):
    at_most = [pgm.sigmoid(cut - f) for cut in cuts]
    grades = [at_most[0], *(above - below for below, above in pairwise(at_most)), 1 - at_most[-1]]
    return pgm.sum(probability * (y == k) for k, probability in enumerate(grades))


# %%
# Data.
rng = np.random.default_rng(5)
if (Path(os.environ.get("PGMODELS_DATA", "")) / "wine-quality-white.npz").is_file():
    wines = load("wine-quality-white", columns=[10, 1])
    rows = rng.choice(len(wines.X), 400, replace=False)
    X, y = wines.X[rows], np.clip(wines.y[rows] - 1, 0, GRADES - 1)
else:
    X = rng.normal(size=(400, 2))
    z = 1.2 * np.tanh(X[:, 0]) - 0.6 * X[:, 1] + rng.logistic(size=400) * 0.6
    y = np.searchsorted([-2.0, -0.7, 0.6, 1.8], z).astype(float)
X = (X - X.mean(axis=0)) / X.std(axis=0)

# %%
# Cutpoints, variance and both lengthscales are learned.
model = pgm.Model(ordered(), pgm.GP(pgm.RBF(1.0, np.array([1.5, 1.5]))))
fitted = pgm.fit(model, X[:200], y[:200])
print(f"Learned: {fitted.model.likelihood}")
print(f"         {fitted.model.gps[0].kernel}")
draws = pgm.gibbs(fitted.model.fixed(), X[:200], y[:200], num_samples=1000, num_warmup=200, num_chains=2, seed=0)
print(pgm.compare(gibbs=draws, fit=fitted, X=X[200:], y=y[200:]))

# %%
# Probabilities of all grades along the first input.
grid = np.linspace(-2.0, 2.0, 81)
probabilities = draws.predict(np.column_stack([grid, np.zeros(81)])).probabilities
figure, axes = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
axes.stackplot(
    grid,
    probabilities.T,
    labels=[f"grade {k}" for k in range(GRADES)],
    colors=plt.colormaps["viridis"](np.linspace(0.1, 0.9, GRADES)),
)
axes.set(
    xlabel="first input (standardised)",
    ylabel="probability",
    xlim=(-2, 2),
    ylim=(0, 1),
    title="Grades as the first input moves",
)
axes.legend(loc="upper left", fontsize="x-small")
