"""An additive model: two smooth effects and an effect of each of twelve groups, each with a posterior of its own.

Data: simulated, 400 labels whose log odds are the sum of a wave, a parabola and a group's effect.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from numpyro.distributions import LogNormal

import pgmodels as pgm

FIGURES = Path(__file__).parent / "figures"
FIGURES.mkdir(exist_ok=True)


@pgm.likelihood(support=pgm.Binary())
def additive(y, f):
    z = f[0] + f[1] + f[2]
    return pgm.sigmoid(z) ** y * pgm.sigmoid(-z) ** (1 - y)


rng = np.random.default_rng(8)
effects = rng.normal(0.0, 0.8, 12)
X = np.column_stack([rng.uniform(-2.0, 2.0, (400, 2)), rng.integers(0, 12, 400)])
parts = [1.5 * np.sin(2.0 * X[:, 0]), X[:, 1] ** 2 - 1.3, effects[X[:, 2].astype(int)]]
y = (rng.random(400) < 1.0 / (1.0 + np.exp(-sum(parts)))).astype(float)

# Each GP sees its own column; White gives each level of a column an effect of its own.
gps = [
    pgm.GP(pgm.On(pgm.RBF(LogNormal(0.0, 1.0), LogNormal(0.0, 0.7)), [0])),
    pgm.GP(pgm.On(pgm.RBF(LogNormal(0.0, 1.0), LogNormal(0.0, 0.7)), [1])),
    pgm.GP(pgm.On(pgm.White(LogNormal(-1.0, 1.0)), [2])),
]
model = pgm.Model(additive(), gps)
print(pgm.derive(model))
fitted = pgm.fit(model, X, y)
for name, value in fitted.fit.values.items():
    print(f"{name} = {float(value):.3f}")

draws = pgm.gibbs(fitted.model.fixed(), X, y, num_samples=1000, num_warmup=200, num_chains=2, seed=0)
print(pgm.compare(gibbs=draws, fit=fitted.uncorrected, corrected=fitted))

# Effects of one column are known up to a constant that another may take: shown about their means.
mean, deviation = draws.mean - draws.mean.mean(axis=0), np.sqrt(draws.variance)
figure, panels = plt.subplots(1, 3, figsize=(9.0, 3.0), layout="constrained", sharey=True)
for latent, (axes, title) in enumerate(zip(panels, ("f[0], a wave", "f[1], a parabola", "f[2], groups"), strict=True)):
    _, rows = np.unique(X[:, latent], return_index=True)
    x, middle, spread = X[rows, latent], mean[rows, latent], 1.96 * deviation[rows, latent]
    truth = (parts[latent] - parts[latent].mean())[rows]
    if latent == 2:
        axes.errorbar(x, middle, spread, fmt="o", markersize=4, label="posterior, 95 % (gibbs)")
        axes.plot(x, truth, "x", color="0.3", label="truth")
    else:
        axes.fill_between(x, middle - spread, middle + spread, alpha=0.25)
        axes.plot(x, middle)
        axes.plot(x, truth, color="0.3", linewidth=1.0)
    axes.set(title=title, xlabel=f"column {latent}")
panels[0].set_ylabel("log odds")
panels[2].legend(frameon=False, fontsize="x-small")
figure.savefig(FIGURES / "additive_effects.png", dpi=90)
