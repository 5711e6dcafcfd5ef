"""
Binary classification
=====================

Learn hyperparameters, correct the variational posterior, and check both against Gibbs.

Data: two measurements of the Wisconsin breast cancer tumours, 200 of them to learn from.
"""

import numpyro.distributions as dist
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import pgmodels as pgm

X, y = load_breast_cancer(return_X_y=True)
X = StandardScaler().fit_transform(X[:, [0, 1]])  # mean radius, mean texture
X_train, X_test, y_train, y_test = train_test_split(X, y, train_size=200, random_state=0, stratify=y)

# %%
# Labels say little about the latent's scale, so its variance has a prior: 0.6 to 4.4 with probability 0.95. The
# lengthscale, a number, starts at 1.5.
kernel = pgm.RBF(variance=dist.LogNormal(0.5, 0.5), lengthscale=1.5)
model = pgm.Model(pgm.Bernoulli(), pgm.GP(kernel))

# %%
# The bound on the marginal likelihood, times the prior, is maximised over both.
# On the bound of CAVI, whose variances it is about; the default is the tighter one of gaussian_vi.
fitted = pgm.fit(model, X_train, y_train, objective="augmented")
print("Learned:", fitted.model.gps[0].kernel)
print(f"ELBO {fitted.elbo:.3f} after {fitted.fit.num_steps} steps, {fitted.seconds:.1f} s\n")

# %%
# q(f) is too narrow, as mean-field posteriors are, and fit has mended its variances by linear response;
# the Gibbs sampler, at the same hyperparameters, says how far that goes.
uncorrected = fitted.uncorrected
draws = pgm.gibbs(fitted.model.fixed(), X_train, y_train, num_samples=500, num_warmup=100, num_chains=4, seed=0)
comparison = pgm.compare(gibbs=draws, cavi=uncorrected, corrected=fitted, X=X_test, y=y_test)
print(comparison)

for name, result in {"cavi": uncorrected, "corrected": fitted}.items():
    ratio = (result.variance / draws.variance).mean()
    print(f"{name}: the latent variance is {ratio:.3f} of the sampler's, on average over the data")

# %%
# Marginals of both approximations against the sampler's.
marginals = pgm.plot_marginals(comparison)

# %%
# Predicted probabilities against observed frequencies on the test data.
reliability = pgm.plot_reliability(comparison)

# %%
# The predictive probability over both inputs.
probability_map = pgm.plot_probability_map(draws)
probability_map.axes[0].set(xlabel="mean radius (standardised)", ylabel="mean texture (standardised)")
