"""
Heteroscedastic regression
==========================

Regression whose noise changes with the input: one latent for the curve, a second for the precision of the noise.

Data: simulated in the manner of the motorcycle-helmet accelerations: quiet at first, noisy from the impact on.
"""

import warnings

import numpy as np

import pgmodels as pgm

rng = np.random.default_rng(133)
time = np.sort(rng.uniform(2.0, 58.0, 240))
curve = -1.6 * np.exp(-(((time - 21.0) / 5.0) ** 2)) + 0.8 * np.exp(-(((time - 32.0) / 4.5) ** 2))
noise = 0.05 + 0.3 / (1.0 + np.exp(-(time - 15.0) / 1.5))
X, y = time[:, None], curve + noise * rng.standard_normal(240)
train = np.arange(240) % 2 == 0

# %%
# y = f[0] + noise of precision `precision` * σ(f[1]): `precision` is the largest precision that there is.
curve_gp = pgm.GP(pgm.RBF(variance=0.5, lengthscale=6.0))
noise_gp = pgm.GP(pgm.RBF(variance=4.0, lengthscale=15.0), mean=-2.0)
model = pgm.Model(pgm.HeteroscedasticGaussian(precision=400.0), [curve_gp, noise_gp])

# %%
# CAVI, the sampler, and a model with noise of one level. CAVI warns that its variances are too small: the last table
# has the ratios, before and after a correction.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", pgm.CorrectionWarning)
    vi = pgm.cavi(model, X[train], y[train])
draws = pgm.gibbs(model, X[train], y[train], num_samples=800, num_warmup=200, num_chains=2, seed=0)
constant = pgm.fit(pgm.Model(pgm.Gaussian(scale=0.3), curve_gp), X[train], y[train])

results = {"one level": constant, "cavi": vi, "gibbs": draws}
predictions = {name: result.predict(X) for name, result in results.items()}
print("Predictive standard deviation of y (the true one is that of the noise alone)")
print(f"{'time':>6} {'true':>9} " + " ".join(f"{name:>9}" for name in results))
for i in np.searchsorted(time, [5.0, 10.0, 15.0, 20.0, 30.0, 45.0]):
    sd = " ".join(f"{np.sqrt(p.variance[i]):9.3f}" for p in predictions.values())
    print(f"{time[i]:6.1f} {noise[i]:9.3f} {sd}")

# %%
# Coverage and log density of held-out data.
print("\nHeld-out data: share within 1.96 predictive standard deviations, and mean log density")
quiet = time < 12.0
for name, p in predictions.items():
    inside = np.abs(y - p.mean) < 1.96 * np.sqrt(p.variance)
    before, after = inside[~train & quiet].mean(), inside[~train & ~quiet].mean()
    log_density = p.log_density(y)[~train].mean()
    print(f"{name:>9}: {before:.2f} before time 12, {after:.2f} after it; {log_density:.3f} nats")

# %%
# CAVI takes the two latents of a datum as independent. Linear response sees how they move together.
ratios = {name: (result.variance / draws.variance).mean(axis=0) for name, result in
          {"cavi": vi, "corrected": pgm.correct(vi)}.items()}  # fmt: skip
print("\nVariances of the two latents relative to the sampler's")
for name, (curve, precision) in ratios.items():
    print(f"{name:>9}: {curve:.3f} and {precision:.3f}")

# %%
# A figure is matplotlib's: the band of new observations is added to its last panel.
p = predictions["gibbs"]
low, high = p.mean - 1.96 * np.sqrt(p.variance), p.mean + 1.96 * np.sqrt(p.variance)
figure = pgm.plot_latent({"gibbs": draws, "cavi": vi})
figure.axes[-1].fill_between(time, low, high, color="0.9", zorder=0)
figure.axes[-1].set(title="Data, predictive mean and, by gibbs, central 95 % of new observations", xlabel="time")
