"""
A likelihood by its formula
===========================

A user-defined likelihood is a formula: derive its augmentation, verify it, run every engine on it.

Three formulas that have an augmentation, and one that has none. Data: simulated counts with an exposure.
"""

import numpy as np

import pgmodels as pgm


# %%
# The formulas.
@pgm.likelihood
def logistic_softmax(y, f):
    return pgm.sigmoid(f[y]) / pgm.sum(pgm.sigmoid(f))


@pgm.likelihood
def negative_binomial(y, f, dispersion=pgm.Parameter(2.0, positive=True)):
    return pgm.sigmoid(f) ** y * pgm.sigmoid(-f) ** dispersion  # up to a factor free of f


# y[1] is an offset, the log of the exposure: the mean is dispersion * exposure * exp(f).
@pgm.likelihood
def exposed_counts(y, f, dispersion=pgm.Parameter(4.0, positive=True)):
    count, z = y[0], f + y[1]
    ways = pgm.gamma(count + dispersion) / (pgm.gamma(dispersion) * pgm.gamma(count + 1))
    return ways * pgm.sigmoid(z) ** count * pgm.sigmoid(-z) ** dispersion


@pgm.likelihood
def log_link_poisson(y, f):
    return pgm.exp(f) ** y * pgm.exp(-pgm.exp(f)) / pgm.gamma(y + 1)


# %%
# Their derivations.
gp = pgm.GP(pgm.Matern52(variance=1.0, lengthscale=2.0))
softmax = pgm.Model(logistic_softmax(), pgm.GP(pgm.Matern52(lengthscale=2.0), size=3))
print(pgm.derive(softmax), "\n")
print(pgm.derive(pgm.Model(negative_binomial(), gp)), "\n")

# %%
# Data, and the numerical checks of the derivation.
rng = np.random.default_rng(4)
X = np.sort(rng.uniform(0.0, 10.0, 150))[:, None]
exposure = rng.choice([0.5, 1.0, 4.0], 150)
rate = 4.0 * exposure * np.exp(np.sin(X[:, 0]) - 0.5)
counts = rng.poisson(rng.gamma(4.0, rate / 4.0))
y = np.column_stack([counts, np.log(exposure)])

model = pgm.Model(exposed_counts(), gp)
print(pgm.derive(model).graph, "\n")
# The eight checks; the formula declares no support, so it is given observations to check at.
print(pgm.derive(model).verify(seed=0, y=y[counts < 10][:8]), "\n")

# %%
# Variational inference, its correction and the sampler.
vi = pgm.cavi(model, X, y)
draws = pgm.gibbs(model, X, y, num_samples=1000, num_warmup=200, num_chains=2, seed=0)
comparison = pgm.compare(gibbs=draws, cavi=vi, corrected=pgm.correct(vi))
print(comparison, "\n")

# %%
# exp(-exp(f)) is not a mixture of Gaussians in f: the package says what it looked for and which rules exist.
try:
    pgm.cavi(pgm.Model(log_link_poisson(), gp), X, counts)
except pgm.NoAugmentationError as error:
    print(error)

# %%
# The graph of the softmax model, and the marginals of the counts.
graph = pgm.plot_graph(softmax)
marginals = pgm.plot_marginals(comparison)
