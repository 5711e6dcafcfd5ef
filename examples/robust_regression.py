"""
Robust regression
=================

Regression with outliers: Student-t and Laplace noise against Gaussian noise, with everything learned.

Data: simulated, 120 points of a smooth curve with noise of standard deviation 0.15, one point in ten displaced by far.
"""

import numpy as np

import pgmodels as pgm

rng = np.random.default_rng(7)
X = np.sort(rng.uniform(-4.0, 4.0, 120))[:, None]
truth = lambda x: np.sinc(x[:, 0]) + 0.3 * x[:, 0]  # noqa: E731
y = truth(X) + 0.15 * rng.standard_normal(120)
outliers = rng.choice(120, 12, replace=False)
y[outliers] += rng.choice([-1.0, 1.0], 12) * rng.uniform(2.0, 5.0, 12)
X_new = np.linspace(-3.8, 3.8, 200)[:, None]

# %%
# The same kernel with three distributions of the noise.
likelihoods = {
    "Gaussian": pgm.Gaussian(scale=0.5),
    "Laplace": pgm.Laplace(scale=0.5),
    "Student-t": pgm.StudentT(df=pgm.Fixed(4.0), scale=0.5),  # few data determine the degrees of freedom badly
}

print(f"{'noise':10} {'ELBO':>9} {'scale':>7} {'rmse':>7} {'mean sd':>8} {'covered':>8}   learned kernel")
results = {}
for name, likelihood in likelihoods.items():
    results[name] = fitted = pgm.fit(pgm.Model(likelihood, pgm.GP(pgm.RBF(variance=1.0, lengthscale=1.0))), X, y)
    mean, variance = (part[:, 0] for part in fitted.predict_latent(X_new))
    error = mean - truth(X_new)
    rmse, sd = np.sqrt(np.mean(error**2)), np.sqrt(variance)
    covered = np.mean(np.abs(error) < 1.96 * sd)  # how much of the true curve the 95 % band contains
    scale = float(fitted.model.likelihood.values["scale"])
    kernel = fitted.model.gps[0].kernel
    print(f"{name:10} {fitted.elbo:9.2f} {scale:7.3f} {rmse:7.3f} {sd.mean():8.3f} {covered:8.2f}   {kernel}")

# %%
# The Student-t model again, by sampling.
fitted = results["Student-t"]
draws = pgm.gibbs(fitted.model.fixed(), X, y, num_samples=1000, num_warmup=200, num_chains=2, seed=0)
difference = np.abs(draws.mean - fitted.mean).max()
ratio = np.mean(fitted.variance / draws.variance)
print(f"\nStudent-t, fit against gibbs: means differ by {difference:.3f} at most, variances by a factor {ratio:.2f}")

# %%
# The fits, with the true curve in black.
figure = pgm.plot_latent(results)
figure.axes[0].plot(X_new[:, 0], truth(X_new), color="black", linewidth=1.0)
figure.axes[0].set_title("Latent function f and, in black, the true curve")
