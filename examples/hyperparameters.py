"""
Sampled hyperparameters
=======================

Hyperparameters sampled together with the latents, and NUTS on the model without augmentation as a referee.

Data: simulated, 40 negative-binomial counts.
"""

import numpy as np
import numpyro.distributions as dist

import pgmodels as pgm

rng = np.random.default_rng(11)
X = np.sort(rng.uniform(0.0, 10.0, 40))[:, None]
f = 0.6 + 1.2 * np.sin(1.1 * X[:, 0])
y = rng.poisson(rng.gamma(3.0, np.exp(f)))  # dispersion 3, mean 3 exp(f)

# %%
# A distribution is a prior: the value is sampled. The mean of f has one too; a number would be held.
kernel = pgm.Matern52(variance=dist.LogNormal(0.0, 1.0), lengthscale=dist.LogNormal(0.5, 0.7))
likelihood = pgm.NegativeBinomial(dispersion=dist.LogNormal(1.0, 0.7))
model = pgm.Model(likelihood, pgm.GP(kernel, mean=dist.Normal(0.0, 1.0)))

# %%
# Both samplers.
gibbs = pgm.gibbs(model, X, y, num_samples=1000, num_warmup=200, num_chains=4, seed=0)
nuts = pgm.nuts(model, X, y, num_samples=500, num_warmup=300, num_chains=2, seed=0)

print(f"{'':32} {'gibbs':>16} {'nuts':>16}")
for name in gibbs.hyperparameters:
    samples = [draws.hyperparameters[name] for draws in (gibbs, nuts)]
    print(f"{name:32} " + " ".join(f"{s.mean():7.3f} ± {s.std():6.3f}" for s in samples))

# %%
# The draws of one are judged against those of the other.
comparison = pgm.compare(gibbs=gibbs, nuts=nuts, reference="nuts")
print(f"\n{comparison}\n")
for label, verdict in pgm.verdicts(comparison).items():
    print(f"{label}: {verdict}")

# %%
# Effective draws and R-hat, and the latent function.
convergence = pgm.plot_convergence(gibbs)
latent = pgm.plot_latent(comparison)
