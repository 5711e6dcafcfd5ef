"""Export of results to ArviZ."""

import warnings
from functools import cache

import arviz_stats as az
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import numpyro.distributions as dist
import pytest
import xarray as xr
from scipy import stats
from scipy.optimize import minimize
from scipy.special import expit, logsumexp

from pgmodels.inference.correct import correct
from pgmodels.inference.gibbs import gibbs
from pgmodels.inference.prior_predictive import prior_predictive
from pgmodels.inference.vi import cavi, gaussian_vi
from pgmodels.interop.arviz import InteropWarning, to_arviz
from pgmodels.kernels.stationary import RBF
from pgmodels.likelihoods.likelihood import likelihood
from pgmodels.likelihoods.named import Bernoulli, Binomial, LogisticSoftmax, NegativeBinomial, StudentT
from pgmodels.likelihoods.operations import exp
from pgmodels.likelihoods.supports import Real
from pgmodels.model import GP, Model
from pgmodels.results.predictive import PredictionWarning

GROUPS = {
    "posterior", "posterior_predictive", "log_likelihood", "log_prior", "observed_data", "constant_data",
    "sample_stats",
}  # fmt: skip


@cache
def results():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 2))
    y = (rng.random(12) < expit(2.0 * X[:, 0] + 0.8)).astype(float)
    model = Model(Bernoulli(), GP(RBF(2.0, 0.9), mean=0.8))
    vi = cavi(model, X, y)
    mcmc = gibbs(model, X, y, num_samples=150, num_warmup=20, num_chains=2, seed=3)
    return {"cavi": vi, "corrected": correct(vi), "gibbs": mcmc}


@pytest.mark.parametrize("name", ["cavi", "corrected", "gibbs"])
def test_groups_shapes_and_attributes(name):
    result = results()[name]
    tree = to_arviz(result, num_draws=200)
    chains, draws = (2, 150) if name == "gibbs" else (1, 200)
    assert set(tree.children) == GROUPS
    assert tree["posterior"]["f"].dims == ("chain", "draw", "datum", "latent")
    assert tree["posterior"]["f"].shape == (chains, draws, 12, 1)
    for group in ("posterior_predictive", "log_likelihood"):
        assert tree[group]["y"].dims == ("chain", "draw", "datum")
        assert tree[group]["y"].shape == (chains, draws, 12)
    np.testing.assert_array_equal(tree["posterior"]["latent"], [0])
    np.testing.assert_array_equal(tree["log_likelihood"]["datum"], np.arange(12))
    np.testing.assert_array_equal(tree["observed_data"]["y"], result.y)
    assert tree.attrs["method"] == {"corrected": "linear_response"}.get(name, name)
    assert tree["posterior"].attrs["inference_library"] == "pgmodels"
    words = {"cavi": "approximation q", "corrected": "corrected Gaussian, joint", "gibbs": "Gibbs"}[name]
    assert words in tree["posterior"].attrs["draws_of"]


@pytest.mark.parametrize("name", ["cavi", "corrected", "gibbs"])
def test_values_are_those_of_the_result(name):
    result = results()[name]
    tree = to_arviz(result, num_draws=2000)
    f = tree["posterior"]["f"].values
    log_likelihood = stats.bernoulli.logpmf(result.y, expit(f[..., 0]))
    np.testing.assert_allclose(tree["log_likelihood"]["y"], log_likelihood, rtol=1e-9)
    if name == "gibbs":
        np.testing.assert_array_equal(f, result.latents)
    else:
        # Five standard errors of 2,000 independent draws: of a mean, and of a variance sqrt(2 / 2000) of itself.
        assert np.all(np.abs(f.mean(axis=(0, 1)) - result.mean) < 5 * np.sqrt(result.variance / 2000))
        np.testing.assert_allclose(f.var(axis=(0, 1)), result.variance, rtol=5 * np.sqrt(2 / 2000))
    y = tree["posterior_predictive"]["y"].values
    size = y.shape[0] * y.shape[1]
    assert np.all(np.abs(y.mean(axis=(0, 1)) - expit(f[..., 0]).mean(axis=(0, 1))) < 5 * 0.5 / np.sqrt(size))
    sums = tree["sample_stats"]
    # log p(y | f) + log N(f; mean, K) with the dense covariance differs from lp by one constant. K and its factor agree
    # to 1e-10, which the inverse of K magnifies to about 1e-4 of the quadratic form.
    X = result.X
    K = 2.0 * np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(-1) / 0.9**2)
    prior = stats.multivariate_normal(np.full(12, 0.8), K, allow_singular=True).logpdf(f[..., 0])
    difference = sums["lp"].values - log_likelihood.sum(axis=-1) - prior
    assert np.ptp(difference) < 1e-3
    assert np.ptp(tree["log_prior"]["latents"].values[..., 0] - prior) < 1e-3
    if name == "gibbs":
        assert "log_q" not in sums
        return
    # log_q is log q(f) - log p(f), constants included.
    np.testing.assert_allclose(sums["log_p"], log_likelihood.sum(axis=-1), rtol=1e-9)
    S = K - K @ np.linalg.solve(K + np.diag(1.0 / np.asarray(result.sites.precision)[:, 0]), K)
    if name == "corrected":
        with jax.enable_x64(True):
            S = np.asarray(result._covariance_at(jnp.asarray(X)))[0, :, 0]
    q = stats.multivariate_normal(result.mean[:, 0], S, allow_singular=True).logpdf(f[..., 0])
    np.testing.assert_allclose(sums["log_q"][0], q - prior, atol=1e-3)


def test_labels_of_data_latents_and_columns():
    import pandas as pd

    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"age": rng.normal(size=9), "dose": rng.normal(size=9)}, index=list("abcdefghi"))
    y = np.array(["low", "mid", "top"])[np.arange(9) % 3]
    weights = np.array([1.0] * 8 + [0.0])
    model = Model(LogisticSoftmax(3), GP(RBF(1.0, 1.0), size=3))
    result = cavi(model, frame, y, weights=weights)
    prior = prior_predictive(model, frame[:8], num_draws=7)
    tree = to_arviz(result, 20, coords={"datum": frame.index[:8]}, prior=prior)
    for group in ("posterior", "posterior_predictive", "prior", "prior_predictive", "constant_data"):
        assert list(tree[group]["datum"].values) == list("abcdefgh"), group
    for group in ("posterior", "prior", "log_prior"):
        assert list(tree[group]["latent"].values) == ["low", "mid", "top"]
    assert tree["observed_data"].attrs["labels"] == ["low", "mid", "top"]
    np.testing.assert_array_equal(tree["constant_data"]["X"].sel(input="dose"), frame["dose"][:8])
    np.testing.assert_array_equal(tree["prior_predictive"]["y"][0], prior.observations)
    with pytest.raises(ValueError, match=r"coords\['datum'\] must have 8 labels; got 9"):
        to_arviz(result, 20, coords={"datum": frame.index})
    with pytest.raises(ValueError, match="coords may have datum, latent, input; got row"):
        to_arviz(result, 20, coords={"row": frame.index})
    with pytest.raises(ValueError, match=r"prior must be pgm\.prior_predictive"):
        to_arviz(result, 20, prior=prior_predictive(model, frame, num_draws=2))


@pytest.mark.slow
def test_log_prior_of_sampled_hyperparameters():
    X = np.linspace(-1.0, 1.0, 8)[:, None]
    model = Model(Bernoulli(), GP(RBF(dist.LogNormal(0.3, 0.5), 0.8), mean=dist.Normal(0.2, 1.5)))
    draws = gibbs(model, X, (X[:, 0] > 0.1).astype(float), num_samples=30, num_warmup=10, num_chains=2, seed=0)
    tree = to_arviz(draws)
    values, terms = tree["posterior"], tree["log_prior"]
    np.testing.assert_allclose(terms["variance"], stats.lognorm(0.5, scale=np.exp(0.3)).logpdf(values["variance"]))
    np.testing.assert_allclose(terms["mean"], stats.norm(0.2, 1.5).logpdf(values["mean"]))
    total = terms["latents"].sum("latent") + terms["mean"] + terms["variance"]
    np.testing.assert_allclose(tree["sample_stats"]["lp"], total + tree["log_likelihood"]["y"].sum("datum"))


# With 300 draws ArviZ warns of a Pareto k above 0.6; one of these twelve data has 0.64. It also points
# to another plot for binary data.
@pytest.mark.filterwarnings(
    "ignore:Estimated shape parameter:UserWarning", "ignore:The .* data looks binary:UserWarning"
)
def test_arviz_reads_it_as_it_stands():
    matplotlib.use("Agg")
    import arviz_stats

    tree = to_arviz(results()["gibbs"])
    summary = arviz_stats.summary(tree)
    assert len(summary) == 12
    f = results()["gibbs"].latents
    assert float(arviz_stats.rhat(tree)["f"].max()) < 1.1
    ess = arviz_stats.ess(tree)["f"]
    assert ess.shape == (12, 1)
    np.testing.assert_allclose(float(ess[3, 0]), arviz_stats.ess(f[:, :, 3, 0]), rtol=1e-12)
    # Twelve coin-like data: between certainty and guessing at twice the cost of a fair coin.
    assert -12 * 2 * np.log(2) < arviz_stats.loo(tree).elpd < 0
    try:
        from arviz_plots import plot_ppc_dist, plot_rank, plot_trace
    except AttributeError as error:  # of arviz-plots 0.8, the last one for Python 3.11, with matplotlib 3.11
        pytest.skip(f"arviz-plots does not import here: {error}")
    for plot in (plot_trace, plot_rank):
        plot(tree, sample_dims=["chain", "draw"], coords={"datum": [0, 1]}, backend="matplotlib")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*look binary")  # and have a plot of their own
        plot_ppc_dist(tree, num_samples=5, backend="matplotlib")
    import matplotlib.pyplot as plt

    plt.close("all")


def test_netcdf_round_trip(tmp_path):
    tree = to_arviz(results()["cavi"], num_draws=20)
    tree.to_netcdf(tmp_path / "result.nc", engine="h5netcdf")
    with xr.open_datatree(tmp_path / "result.nc", engine="h5netcdf") as again:
        assert set(again.children) == GROUPS
        np.testing.assert_array_equal(again["posterior"]["f"], tree["posterior"]["f"])
        assert again.attrs["draws_of"] == tree.attrs["draws_of"]


def test_columns_of_y_become_covariates():
    X = np.linspace(-1.0, 1.0, 6)[:, None]
    y = np.column_stack([[0, 1, 3, 4, 5, 5], [5, 5, 5, 6, 6, 9]])
    tree = to_arviz(cavi(Model(Binomial(), GP(RBF(1.0, 0.7))), X, y), num_draws=50)
    np.testing.assert_array_equal(tree["observed_data"]["y"], y[:, 0])
    np.testing.assert_array_equal(tree["constant_data"]["covariates"], y[:, 1:])
    assert (tree["posterior_predictive"]["y"].values <= y[:, 1]).all()


@likelihood(support=Real())
def laplace(y, f):
    return exp(-abs(y - f) / 0.4) / 0.8


@pytest.mark.slow
def test_real_values_are_drawn_for_some_of_the_draws():
    X = np.linspace(-1.0, 1.0, 6)[:, None]
    model = Model(laplace(), GP(RBF(1.0, 0.7)))
    mcmc = gibbs(model, X, np.sin(2 * X[:, 0]), num_samples=90, num_warmup=5, num_chains=2, seed=1)
    tree = to_arviz(mcmc, num_draws=60)
    np.testing.assert_array_equal(tree["posterior_predictive"]["draw"], np.arange(0, 90, 3))
    assert tree["log_likelihood"]["y"].shape == (2, 90, 6)
    residual = tree["posterior_predictive"]["y"] - tree["posterior"]["f"].isel(latent=0)
    # xarray aligns the two groups on their common draws: noise of the likelihood is what remains.
    assert residual.shape == (2, 30, 6)
    assert stats.kstest(residual.values.ravel(), stats.laplace(0, 0.4).cdf).pvalue > 1e-4


def test_what_cannot_be_exported():
    from dataclasses import replace

    from pgmodels.likelihoods.operations import sigmoid

    with pytest.raises(ValueError, match="num_draws"):
        to_arviz(results()["cavi"], num_draws=0)
    with pytest.raises(ValueError, match="must be a result of an engine such as cavi"):
        to_arviz("cavi")
    fixed = results()["corrected"]
    negative = np.where(np.arange(12)[:, None] == 4, -0.1, fixed.variance)
    bad = replace(fixed, variance=negative, is_positive=False)
    with pytest.raises(ValueError, match=r"first in row 4.*export the uncorrected"):
        to_arviz(bad)
    with pytest.raises(ValueError, match="no distribution to draw from"):
        bad.draw_at_data(3)
    with pytest.raises(ValueError, match="no joint density"):
        correct(results()["cavi"], method="perturbative").draw_at_data(3)

    @likelihood
    def undeclared(y, f):
        return sigmoid(f) ** y * sigmoid(-f) ** (1 - y)

    vi = results()["cavi"]
    with (
        pytest.warns(InteropWarning, match="posterior_predictive is omitted"),
        pytest.warns(PredictionWarning, match="undeclared is not known to be a normalised density of y"),
    ):
        tree = to_arviz(replace(vi, model=Model(undeclared(), vi.model.gps)), num_draws=5)
    assert set(tree.children) == GROUPS - {"posterior_predictive"}
    assert tree["log_likelihood"].attrs["normalised"].startswith("not known")
    assert to_arviz(vi, num_draws=5)["log_likelihood"].attrs["normalised"] == "yes"


# Leave-one-out of approximations by ArviZ, against refitting without each datum by importance sampling.


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
