"""
Several outputs
===============

A measured curve and counts of the same process: where one has a hole, it borrows from the other.

Data: simulated, 60 measurements and 60 counts over 10 hours; the measurements stop from hour 4 to 7, the counts at 8.
"""

import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import pgmodels as pgm

# %%
# Rows in the long format: X has the hour and the output, y the value and the output.
rng = np.random.default_rng(4)
curve = lambda t: np.sin(1.3 * t) + 0.4 * np.sin(2.9 * t)  # noqa: E731
log_rate = lambda t: 1.5 - 0.8 * curve(t)  # noqa: E731
hours = rng.uniform(0.0, 10.0, 60), rng.uniform(0.0, 10.0, 60)
measured = curve(hours[0]) + 0.2 * rng.normal(size=60)
counted = rng.poisson(np.exp(log_rate(hours[1])) * rng.gamma(8.0, 1.0 / 8.0, 60))
kept = (hours[0] < 4.0) | (hours[0] > 7.0), hours[1] < 8.0
t, value, output = (
    np.concatenate([of_one[rows] for of_one, rows in zip(columns, kept, strict=True)])
    for columns in (hours, (measured, counted), (np.zeros(60), np.ones(60)))
)
X, y = np.column_stack([t, output]), np.column_stack([value, output])

# %%
# One likelihood of each output. The latents of both share a process by loadings, which are learned with their signs;
# the scale is theirs, so that the other kernel's is fixed. Each output has a level of its own, too.
likelihood = pgm.SwitchedLikelihood([pgm.Gaussian(0.3), pgm.NegativeBinomial(5.0)])
outputs = pgm.Coregion(2, kappa=dist.LogNormal(-3.0, 1.0))
kernel = pgm.On(pgm.RBF(pgm.Fixed(1.0)), [0]) * pgm.On(outputs, [1]) + pgm.On(pgm.White(pgm.Fixed(4.0)), [1])
model = pgm.Model(likelihood, pgm.GP(kernel, mean=pgm.Fixed(0.0)))
fitted = pgm.fit(model, X, y)
print(f"Learned: {fitted.model.likelihood}; {fitted.model.gps[0].kernel}")
both = np.array([[0.0, 0.0], [0.0, 1.0]])
B = np.asarray(fitted.model.gps[0].kernel(both, both)) - 4.0 * np.eye(2)
print(f"Correlation of the outputs apart from their levels: {B[0, 1] / np.sqrt(B[0, 0] * B[1, 1]):.2f}")

# %%
# The same without what they share: each output alone.
alone = pgm.Coregion(2, loadings=pgm.Fixed([[1e-3], [1e-3]]), kappa=[1.0, 1.0])
apart = pgm.On(pgm.RBF(pgm.Fixed(1.0)), [0]) * pgm.On(alone, [1]) + pgm.On(pgm.White(pgm.Fixed(4.0)), [1])
separate = pgm.fit(pgm.Model(likelihood, pgm.GP(apart, mean=pgm.Fixed(0.0))), X, y)
print(f"ELBO together {fitted.elbo:.1f}, each alone {separate.elbo:.1f}")
draws = pgm.gibbs(fitted.model.fixed(), X, y, num_samples=1000, num_warmup=200, num_chains=2, seed=0)
print(pgm.compare(gibbs=draws, fit=fitted))

# %%
# Predictions name the output in covariates: the truth lies in the hole of each.
grid = np.linspace(0.0, 10.0, 201)
truths = curve(grid), np.exp(log_rate(grid))
holes = (4.0, 7.0), (8.0, 10.0)
figure, panels = plt.subplots(2, 2, figsize=(7.2, 4.8), layout="constrained", sharex=True, sharey="row")
for row, name in enumerate(("measurement", "count")):
    inputs = np.column_stack([grid, np.full(201, row)])
    for axes, (title, result) in zip(panels[row], (("each alone", separate), ("together", fitted)), strict=True):
        mean, variance = (part[:, 0] for part in result.predict_latent(inputs))
        low, high = mean - 1.96 * variance**0.5, mean + 1.96 * variance**0.5
        if row == 1:
            dispersion = float(result.model.likelihood.values["dispersion_1"])
            mean, low, high = (dispersion * np.exp(latent) for latent in (mean, low, high))
        inside = (grid > holes[row][0]) & (grid < holes[row][1])
        error = np.sqrt(np.mean((mean - truths[row])[inside] ** 2))
        print(f"RMSE in the hole of the {name}s, {title}: {error:.2f}")
        axes.axvspan(*holes[row], color="0.93")
        axes.fill_between(grid, low, high, alpha=0.25, label="95 %")
        axes.plot(grid, mean, label="posterior mean" if row == 0 else "posterior median")
        axes.plot(grid, truths[row], color="0.3", linewidth=1.0, linestyle="--", label="true")
        axes.scatter(t[output == row], value[output == row], s=6.0, color="0.5")
        axes.set_title(title if row == 0 else "")
    panels[row, 0].set_ylabel(name)
panels[0, 0].set_ylim(-4.0, 4.0)
panels[1, 0].set_ylim(0.0, 25.0)
panels[1, 0].set_xlabel("hour")
panels[1, 1].set_xlabel("hour")
panels[0, 1].legend(loc="lower left", fontsize="x-small", ncols=3)
