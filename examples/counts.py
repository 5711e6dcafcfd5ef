"""
Counts over time
================

A rate that falls, with Poisson noise of a bounded rate and with negative-binomial noise.

Data: simulated in the manner of the coal-mining disasters, a count for each of 112 years, about 3 a year at first and
1 a year after a decline in the middle.
"""

import numpy as np

import pgmodels as pgm

rng = np.random.default_rng(1851)
years = np.arange(1851.0, 1963.0)
true_rate = 1.0 + 2.0 / (1.0 + np.exp((years - 1892.0) / 3.0))
y = rng.poisson(true_rate)
X = years[:, None]

# %%
# Two likelihoods for counts.
kernel = pgm.Matern52(variance=1.0, lengthscale=30.0)
models = {
    # A Poisson rate bounded by `rate`, which is learned: its rate is rate * σ(f).
    "sigmoid-Poisson": pgm.Model(pgm.SigmoidPoisson(rate=6.0), pgm.GP(kernel, mean=0.0)),
    # Mean dispersion * exp(f): overdispersed for a small dispersion, nearly Poisson for a large one.
    "negative binomial": pgm.Model(pgm.NegativeBinomial(dispersion=5.0), pgm.GP(kernel, mean=0.0)),
}

# %%
# Posterior means of the rate at the initial values.
shown = [0, 30, 41, 50, 111]
print("year              " + "".join(f"{years[i]:8.0f}" for i in shown))
print("true rate         " + "".join(f"{true_rate[i]:8.2f}" for i in shown))
results = {}
for name, model in models.items():
    results[name] = pgm.cavi(model, X, y)
    print(f"{name:18}" + "".join(f"{results[name].predict(X).mean[i]:8.2f}" for i in shown))

# %%
# The same with hyperparameters and likelihood parameters learned.
print()
for name, model in models.items():
    fitted = pgm.fit(model, X, y)
    rmse = np.sqrt(np.mean((fitted.predict(X).mean - true_rate) ** 2))
    print(f"{name}: ELBO {results[name].elbo:.2f} at the start, {fitted.elbo:.2f} learned")
    print(f"  {fitted.model.likelihood}, {fitted.model.gps[0].kernel}, root mean square error of the rate {rmse:.2f}")

# %%
# The sampler at the initial values.
draws = pgm.gibbs(models["sigmoid-Poisson"], X, y, num_samples=1000, num_warmup=200, num_chains=2, seed=0)
print("\nAt the start values, the sampler against the variational posterior (sigmoid-Poisson):")
comparison = pgm.compare(gibbs=draws, cavi=results["sigmoid-Poisson"], X=X, y=y)
print(comparison)

# %%
# The posterior of the sigmoid-Poisson model.
figure = pgm.plot_latent(comparison)
figure.axes[-1].plot(years, true_rate, color="0.6", linewidth=1.0)
figure.axes[-1].set(title="Counts, predictive mean and, in grey, the true rate", xlabel="year", ylabel="count")
