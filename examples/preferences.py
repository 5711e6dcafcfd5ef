"""Preferences: which of two items is chosen, and the utility behind it, a GP that is only ever seen in differences.

Data: simulated, 150 pairs of items with one feature each; the utility has its peak near 0.6.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import pgmodels as pgm

FIGURES = Path(__file__).parent / "figures"
FIGURES.mkdir(exist_ok=True)


def utility(x):
    return 3.0 * np.exp(-0.5 * ((x - 0.6) / 0.5) ** 2) + 0.5 * x


rng = np.random.default_rng(3)
# A row holds the feature of the left item and that of the right one; y is 1 where the left one is chosen.
X = rng.uniform(-1.5, 1.5, (150, 2))
y = (rng.random(150) < 1.0 / (1.0 + np.exp(utility(X[:, 1]) - utility(X[:, 0])))).astype(float)

# One GP of the utility, seen through utility(left) - utility(right).
model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Difference(pgm.RBF(), [0], [1])))
fitted = pgm.fit(model, X, y)
print(f"Learned: {fitted.model.gps[0].kernel}")
draws = pgm.gibbs(fitted.model.fixed(), X, y, num_samples=1000, num_warmup=200, num_chains=2, seed=0)
print(pgm.compare(gibbs=draws, fit=fitted))

# Utilities have no origin: what the data tell is how much better an item is than a given one, here that at 0.
grid = np.linspace(-1.5, 1.5, 121)
pairs = np.column_stack([grid, np.zeros(121)])
mean, variance = (part[:, 0] for part in draws.predict_latent(pairs))
best = grid[mean.argmax()], grid[utility(grid).argmax()]
print(f"Best item by the posterior mean: {best[0]:.2f}; by the true utility: {best[1]:.2f}")

figure, axes = plt.subplots(figsize=(5.0, 3.4), layout="constrained")
axes.fill_between(grid, mean - 1.96 * variance**0.5, mean + 1.96 * variance**0.5, alpha=0.25, label="95 % (gibbs)")
axes.plot(grid, mean, label="posterior mean")
axes.plot(grid, utility(grid) - utility(0.0), color="0.5", linewidth=1.0, label="true utility")
axes.set(xlabel="feature of an item", ylabel="utility beyond that of the item at 0", title="Utility from 150 choices")
axes.legend(frameon=False, fontsize="small")
figure.savefig(FIGURES / "preferences_utility.png", dpi=100)
