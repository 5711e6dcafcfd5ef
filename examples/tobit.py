"""A measurement that stops at a detection limit: a Tobit model, its noise learned, and one that takes y as it stands.

Data: simulated, 120 concentrations in depth, those below 1 reported as 1.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import pgmodels as pgm

FIGURES = Path(__file__).parent / "figures"
FIGURES.mkdir(exist_ok=True)
LIMIT = 1.0


@pgm.likelihood(support=pgm.Clipped(low=LIMIT))
def tobit(y, f, scale=pgm.Parameter(1.0, positive=True)):
    return pgm.normal_cdf((LIMIT - f) / scale) ** (y == LIMIT) * pgm.normal_pdf(y, f, scale) ** (y > LIMIT)


rng = np.random.default_rng(3)
depth = np.sort(rng.uniform(0.0, 10.0, 120))
truth = lambda x: 1.2 + 1.6 * np.sin(0.9 * x) * np.exp(-0.05 * x)  # noqa: E731
y = np.maximum(truth(depth) + rng.normal(0.0, 0.4, 120), LIMIT)
X = depth[:, None]
print(f"{np.mean(y == LIMIT):.0%} of the measurements are at the limit")

gp = pgm.GP(pgm.RBF(1.0, 1.5), mean=1.0)
model = pgm.Model(tobit(), gp)
print(pgm.derive(model).verify(seed=0))
results = {"Tobit": pgm.fit(model, X, y), "Gaussian": pgm.fit(pgm.Model(pgm.Gaussian(1.0), gp), X, y)}
for name, fitted in results.items():
    error = np.sqrt(np.mean((fitted.mean[:, 0] - truth(depth)) ** 2))
    print(f"{name}: {fitted.model.likelihood}, root mean square error of f {error:.2f}")
draws = pgm.gibbs(results["Tobit"].model.fixed(), X, y, num_samples=1000, num_warmup=200, num_chains=2, seed=0)
print(pgm.compare(gibbs=draws, fit=results["Tobit"]))

grid = np.linspace(0.0, 10.0, 201)
figure, axes = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
for (name, fitted), line in zip(results.items(), ("-", "--"), strict=True):
    mean, variance = (part[:, 0] for part in fitted.predict_latent(grid[:, None]))
    (curve,) = axes.plot(grid, mean, line, label=name)
    reach = 1.96 * np.sqrt(variance)
    axes.fill_between(grid, mean - reach, mean + reach, color=curve.get_color(), alpha=0.2)
axes.plot(grid, truth(grid), color="0.5", linewidth=1.0, label="the true concentration")
axes.plot(depth, y, ".", color="0.3", markersize=4)
axes.axhline(LIMIT, color="0.7", linewidth=0.8)
axes.set(xlabel="depth", ylabel="concentration", title="Below a detection limit")
axes.legend(loc="lower right", fontsize="x-small")
figure.savefig(FIGURES / "tobit_latent.png", dpi=100)
