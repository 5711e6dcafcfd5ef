"""
Zero-inflated counts
====================

Counts with more zeros than they should have: whether there is a count at all, and how large it is, are two GPs.

Data: `crab-satellites` of the folder PGMODELS_DATA where there is one (satellites of 173 horseshoe crabs, by width),
else counts simulated in its manner.
"""

import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import pgmodels as pgm
from pgmodels.datasets import load


# %%
# The zero-inflated likelihood and, for comparison, the negative binomial alone.
@pgm.likelihood(support=pgm.Counts())
def zero_inflated(y, f, dispersion=pgm.Parameter(3.0, positive=True)):
    # f[0]: log odds within the negative binomial; f[1]: log odds that there is a count at all.
    constant = pgm.gamma(y + dispersion) / (pgm.gamma(dispersion) * pgm.gamma(y + 1))
    count = constant * pgm.sigmoid(f[0]) ** y * pgm.sigmoid(-f[0]) ** dispersion
    return pgm.sigmoid(-f[1]) * (y == 0) + pgm.sigmoid(f[1]) * count


@pgm.likelihood(support=pgm.Counts())
def plain(y, f, dispersion=pgm.Parameter(3.0, positive=True)):
    constant = pgm.gamma(y + dispersion) / (pgm.gamma(dispersion) * pgm.gamma(y + 1))
    return constant * pgm.sigmoid(f) ** y * pgm.sigmoid(-f) ** dispersion


# %%
# Data.
if (Path(os.environ.get("PGMODELS_DATA", "")) / "crab-satellites.npz").is_file():
    crabs = load("crab-satellites")
    width, y = crabs.X[:, 0], crabs.y
else:
    rng = np.random.default_rng(12)
    width = rng.normal(26.3, 2.1, 173)
    there = rng.random(173) < 1.0 / (1.0 + np.exp(-(0.6 * (width - 25.0))))
    y = np.where(there, rng.negative_binomial(5, 0.5, 173), 0).astype(float)
X = ((width - width.mean()) / width.std())[:, None]

# %%
# Both models, their ELBOs, and the sampler.
kernel = pgm.RBF(1.0, 1.5)
inflated = pgm.Model(
    zero_inflated(pgm.Fixed(5.0)), [pgm.GP(kernel, mean=pgm.Fixed(0.0)), pgm.GP(kernel, mean=pgm.Fixed(0.5))]
)
single = pgm.Model(plain(pgm.Fixed(5.0)), pgm.GP(kernel))
print(pgm.derive(inflated))
results = {name: pgm.cavi(model, X, y) for name, model in (("zero-inflated", inflated), ("negative binomial", single))}
for name, result in results.items():
    print(f"{name}: ELBO {result.elbo:.1f}")
draws = pgm.gibbs(inflated, X, y, num_samples=1000, num_warmup=200, num_chains=2, seed=0)
print(pgm.compare(gibbs=draws, cavi=results["zero-inflated"]))

# %%
# The probability of a count at all.
grid = np.linspace(X.min(), X.max(), 101)
f = draws.draw_marginals(grid[:, None], common_noise=True)
there = 1.0 / (1.0 + np.exp(-f[..., 1]))
figure, axes = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
axes.fill_between(grid, *np.quantile(there, [0.025, 0.975], axis=0), alpha=0.25, label="95 % (gibbs)")
axes.plot(grid, there.mean(axis=0), label="probability of a count at all")
axes.plot(X[:, 0], (y > 0) + np.random.default_rng(0).uniform(-0.03, 0.03, len(y)), "|", color="0.3", label="count > 0")
axes.set(xlabel="width (standardised)", ylabel="probability", title="Who has any satellites")
axes.legend(loc="center right", fontsize="x-small")
