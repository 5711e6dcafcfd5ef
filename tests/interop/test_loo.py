"""Leave-one-out of approximations by ArviZ, against refitting without each datum by importance sampling."""

from functools import cache

import arviz_stats as az
import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize
from scipy.special import expit, logsumexp

from pgmodels.inference.correct import correct
from pgmodels.inference.prior_predictive import prior_predictive
from pgmodels.inference.vi import cavi, gaussian_vi
from pgmodels.kernels.stationary import RBF
from pgmodels.likelihoods.named import Bernoulli, NegativeBinomial, StudentT
from pgmodels.model import GP, Model

X = np.sort(np.random.default_rng(4).normal(0.0, 1.2, 22))[:, None]
MEAN, VARIANCE, LENGTHSCALE = 0.4, 1.5, 0.8
DRAWS = 50_000


def data(name):
    """The likelihood, y, and its log density by SciPy."""
    rng, f = np.random.default_rng(8), 0.4 + 1.2 * np.sin(1.7 * X[:, 0])
    if name == "binary":
        return Bernoulli(), (rng.random(22) < expit(f)).astype(float), lambda y, f: stats.bernoulli.logpmf(y, expit(f))
    if name == "counts":
        log_p = lambda y, f: stats.nbinom.logpmf(y, 3.0, expit(-f))  # noqa: E731
        return NegativeBinomial(3.0), rng.negative_binomial(3.0, expit(-f)).astype(float), log_p
    log_p = lambda y, f: stats.t.logpdf(y, 8.0, f, 1.0)  # noqa: E731
    return StudentT(8.0, 1.0), f + rng.standard_t(8.0, 22), log_p


@cache
def exact(name):
    """The elpd of leave-one-out and its standard error: without each datum, importance sampling of the posterior."""
    _, y, log_p = data(name)
    K = VARIANCE * np.exp(-0.5 * (X - X.T) ** 2 / LENGTHSCALE**2) + 1e-10 * np.eye(22)
    root, rng = np.linalg.cholesky(K), np.random.default_rng(1)
    elpd = variance = 0.0
    for i in range(22):
        rows = np.delete(np.arange(22), i)

        def log_joint(v, rows=rows):
            return log_p(y[rows], MEAN + v @ root[rows].T).sum(axis=-1) - 0.5 * (v**2).sum(axis=-1)

        mode = minimize(lambda v: -log_joint(v), np.zeros(22), method="BFGS")
        # Multivariate t about the mode, with tails wider than the posterior's.
        noise = rng.standard_normal((DRAWS, 22)) / np.sqrt(rng.chisquare(8.0, (DRAWS, 1)) / 8.0)
        v = mode.x + noise @ np.linalg.cholesky(mode.hess_inv).T
        ratios = log_joint(v) - stats.multivariate_t(np.zeros(22), df=8.0).logpdf(noise)
        weights = np.exp(ratios - logsumexp(ratios))
        density = np.exp(log_p(y[i], MEAN + v @ root[i]))
        predictive = weights @ density
        elpd += np.log(predictive)
        variance += np.sum((weights * (density / predictive - 1.0)) ** 2)
    return elpd, np.sqrt(variance)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Estimated shape parameter:UserWarning")
@pytest.mark.parametrize("name", ["binary", "counts", "student"])
def test_leave_one_out_of_approximations_is_that_of_refitting(name):
    likelihood, y, _ = data(name)
    model = Model(likelihood, GP(RBF(VARIANCE, LENGTHSCALE), mean=MEAN))
    narrow, gaussian = cavi(model, X, y), gaussian_vi(model, X, y)
    truth, error = exact(name)
    for result in (narrow, gaussian, correct(narrow), correct(gaussian)):
        weighted, plain = [], []
        for seed in range(5):
            tree = result.to_arviz(4000, seed)
            stats_of = tree["sample_stats"]
            weighted.append(az.loo_approximate_posterior(tree, stats_of["log_p"], stats_of["log_q"]).elpd)
            plain.append(az.loo(tree).elpd)
        # The scatter of one run is the Monte-Carlo error; smoothed weights add a bias of up to its size.
        spread = np.std(weighted, ddof=1)
        assert spread < 0.2
        assert abs(np.mean(weighted) - truth) < 2.5 * spread + 2 * error, result.method
        if result is narrow:
            # Draws of q taken for the posterior's are wrong by more.
            assert abs(np.mean(plain) - truth) > 3 * spread + 2 * error


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Estimated shape parameter:UserWarning")
def test_randomised_leave_one_out_ranks_of_counts_are_uniform():
    inputs = np.sort(np.random.default_rng(5).normal(size=(150, 1)), axis=0)
    model = Model(NegativeBinomial(3.0), GP(RBF(VARIANCE, LENGTHSCALE), mean=-1.0))
    y = prior_predictive(model, inputs, num_draws=1, seed=2).observations[0]
    tree = gaussian_vi(model, inputs, y).to_arviz(2000)
    ranks = az.loo_pit(tree)["y"].values
    assert stats.kstest(ranks, "uniform").pvalue > 1e-3
    # Without breaking ties at random, half of such small counts would have the largest rank of their value.
    below = (tree["posterior_predictive"]["y"].values <= y).mean(axis=(0, 1))
    assert stats.kstest(below, "uniform").pvalue < 1e-6
