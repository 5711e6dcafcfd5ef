"""Gibbs against NUTS, for every likelihood: means and variances of every latent. Run with ``python -m pytest -m slow``.

The criterion is four joint Monte-Carlo standard errors at every point. A test makes 80 comparisons (one latent) to 240
(three): were all independent and both samplers exact, one in 200 to one in 65 would fail by chance. The seeds are
fixed, so that a failure is not chance twice.
"""

from functools import cache

import jax
import numpy as np
import pytest

import pgmodels as pgm
from tests.referees import rbf
from tests.registry import CASES, NAMES
from tests.statistical.reference import assert_agree, nuts

N = 40

# Kernel variance, latent mean, scale and shift of the truth. In "far" it reaches from -10 to 6 under a prior with a
# standard deviation of 4, which makes binary labels mostly zero.
SETTINGS = {
    "balanced": {"variance": 2.0, "mean": 0.3, "scale": 1.5, "shift": 0.3},
    "far": {"variance": 16.0, "mean": -1.0, "scale": 8.0, "shift": -2.0},
}


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", NAMES)
def test_gibbs_agrees_with_nuts(name, setting):
    case, options = CASES[name], SETTINGS[setting]
    X, y = case.data(N, seed=7, scale=options["scale"], shift=options["shift"])
    model = case.model(variance=options["variance"], mean=options["mean"])
    # 4 x 10,000 sweeps and 4 x 3,000 draws put standard errors at 1 to 3 % of a posterior standard deviation.
    draws = pgm.gibbs(model, X, y, num_samples=10_000, num_warmup=500, num_chains=4, seed=1)
    K = rbf(X, options["variance"], 1.2) + 1e-8 * np.eye(N)
    referee = nuts(case, K, options["mean"], y, num_samples=3_000, seed=2)
    assert_agree(f"{name} {setting}", draws.latents, referee)


# Means, kernel variances and lengthscales of three latents, which make a label rare.
MEANS, VARIANCES, LENGTHSCALES = np.array([2.0, -1.5, 0.0]), (6.0, 1.0, 2.5), (0.8, 1.8, 1.2)


@cache
def unequal(name):
    """A model whose latents differ a priori, data, and draws by NUTS."""
    case = CASES[name]
    X, y = case.data(N, seed=5, scale=np.sqrt(VARIANCES), shift=MEANS)
    priors = zip(VARIANCES, LENGTHSCALES, MEANS, strict=True)
    gps = [pgm.GP(pgm.RBF(variance, lengthscale), mean=mean) for variance, lengthscale, mean in priors]
    model = pgm.Model(case.likelihood(), gps)
    return model, X, y, pgm.nuts(model, X, y, num_samples=800, target_accept=0.9, seed=2)


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "num_samples"), [("auto", 2_500), ("sweep", 10_000)])
@pytest.mark.parametrize("name", ["logistic_softmax", "stick_breaking", "multinomial_probit"])
def test_gibbs_agrees_with_nuts_where_latents_differ_a_priori(name, scheme, num_samples):
    model, X, y, referee = unequal(name)
    draws = pgm.gibbs(model, X, y, num_samples=num_samples, num_warmup=500, scheme=scheme, seed=1)
    assert np.bincount(y.astype(int)).min() <= 0.1 * N
    # The density that NUTS draws from is the case's.
    with jax.enable_x64(True):
        expected = [CASES[name].log_density(y, f).sum() for f in referee.latents[0, ::80]]
    np.testing.assert_allclose(referee.log_likelihood_trace[0, ::80], expected, rtol=1e-8)
    assert_agree(f"{name} {scheme}", draws.latents, referee.latents)
