"""Nested variational marginals against quadrature in several dimensions, a dense bound by brute force, and Gibbs."""

import jax
import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize
from scipy.special import logsumexp

import pgmodels as pgm
from pgmodels.inference.nested import Settings, correct_by_nesting
from pgmodels.results.result import GRID
from tests.own_likelihoods import summed

X = np.array([[0.0], [0.7], [1.8]])


@pgm.likelihood(support=pgm.Counts())
def log_counts(y, f):
    return pgm.exp(y * f - pgm.exp(f))


CASES = {
    "counts": (log_counts(), [0.0, 3.0, 0.0]),
    "no counts": (log_counts(), [0.0, 0.0, 0.0]),
    "labels": (pgm.Bernoulli(), [1.0, 1.0, 1.0]),
    "heavy tails": (pgm.StudentT(df=4.0, scale=0.5), [0.0, 3.0, 0.2]),
    "a kink": (pgm.Laplace(scale=0.5), [0.0, 3.0, 0.2]),
    "skewed counts": (pgm.NegativeBinomial(dispersion=1.0), [0.0, 0.0, 4.0]),
}


LOG_DENSITIES = {
    "counts": lambda f, y: y * f - np.exp(f),
    "no counts": lambda f, y: y * f - np.exp(f),
    "labels": lambda f, y: -np.logaddexp(0.0, -(2.0 * y - 1.0) * f),
    "heavy tails": lambda f, y: stats.t(4.0, scale=0.5).logpdf(y - f),
    "a kink": lambda f, y: stats.laplace(scale=0.5).logpdf(y - f),
    "skewed counts": lambda f, y: y * f - (y + 1.0) * np.logaddexp(0.0, f),
}


def model_of(name, variance, mean=0.3, **form):
    return pgm.Model(CASES[name][0], pgm.GP(pgm.RBF(variance=variance, lengthscale=1.0), mean=mean, **form))


def prior_covariance(variance):
    return variance * np.exp(-0.5 * (X - X.T) ** 2)


def truth(name, variance, mean=0.3, count=141):
    """Mean, variance and E exp f of each latent, and log p(y), by quadrature in three dimensions."""
    y, K = CASES[name][1], prior_covariance(variance)
    centre, deviation = np.full(3, mean), np.sqrt(np.diag(K))
    # Over the prior's range, then for kinks over the posterior's: they need nodes closer than the scale of the noise.
    for _ in range(2 if name == "a kink" else 1):
        f = centre[:, None] + deviation[:, None] * np.linspace(-8.0, 8.0, count)
        steps = f[:, 1] - f[:, 0]
        f = np.stack(np.meshgrid(*f, indexing="ij")).reshape(3, -1)
        log_p = -0.5 * np.sum((f - mean) * np.linalg.solve(K, f - mean), axis=0)
        log_p += sum(LOG_DENSITIES[name](f[j], y[j]) for j in range(3))
        log_mass = logsumexp(log_p) + np.log(steps).sum() - 0.5 * np.linalg.slogdet(2.0 * np.pi * K)[1]
        p = np.exp(log_p - logsumexp(log_p))
        centre = f @ p
        variances = (f - centre[:, None]) ** 2 @ p
        deviation = np.sqrt(variances)
    return centre, variances, np.exp(f) @ p, log_mass


def with_settings(gaussian, **settings):
    with jax.enable_x64(True):
        return correct_by_nesting(gaussian, False, Settings(**settings))


def gaussian(name, variance):
    return pgm.gaussian_vi(model_of(name, variance), X, np.array(CASES[name][1]))


def nested(name, variance):
    return pgm.correct(gaussian(name, variance), method="nested")


@pytest.mark.parametrize(
    ("name", "variance"),
    [("no counts", 25.0)]
    + [
        pytest.param(name, variance, marks=pytest.mark.slow)
        for name in CASES
        for variance in (1.0, 9.0, 25.0)
        if (name, variance) != ("no counts", 25.0)
    ],
)
def test_moments_are_those_of_quadrature_in_three_dimensions(name, variance):
    result, (mean, spread, exponential, evidence) = nested(name, variance), truth(name, variance)
    np.testing.assert_allclose(result.mean[:, 0], mean, atol=0.04 * np.sqrt(spread.min()))
    np.testing.assert_allclose(result.variance[:, 0], spread, rtol=0.02)
    z = np.linspace(-8.0, 8.0, 2001)
    weights = np.exp(-0.5 * z**2) / np.sum(np.exp(-0.5 * z**2))
    f = result.marginals.transport(np.broadcast_to(z[:, None, None], (len(z), 3, 1)))[:, :, 0]
    np.testing.assert_allclose(weights @ np.exp(f), exponential, rtol=0.1)
    # Each latent's bound is between the ELBO and log p(y).
    bounds = result.log_evidence_bounds
    assert np.all(bounds >= result.elbo - 1e-6)
    assert np.all(bounds <= evidence + 2e-3)


@pytest.mark.parametrize("name", ["a kink", pytest.param("labels", marks=pytest.mark.slow)])
def test_with_one_row_it_is_exact(name):
    y = CASES[name][1][1]
    result = pgm.correct(pgm.gaussian_vi(model_of(name, 4.0), X[:1], np.array([y])), method="nested")
    f = np.linspace(-20.0, 20.0, 40_001)
    log_p = LOG_DENSITIES[name](f, y) - 0.5 * (f - 0.3) ** 2 / 4.0
    p = np.exp(log_p - logsumexp(log_p))
    mean = f @ p
    assert result.mean[0, 0] == pytest.approx(mean, abs=2e-3)
    assert result.variance[0, 0] == pytest.approx((f - mean) ** 2 @ p, rel=3e-3)
    levels = [0.01, 0.9]
    np.testing.assert_allclose(result.quantiles(levels)[:, 0, 0], f[np.searchsorted(p.cumsum(), levels)], atol=0.02)
    log_mass = logsumexp(log_p) + np.log(f[1] - f[0]) - 0.5 * np.log(2.0 * np.pi * 4.0)
    assert result.log_evidence_bounds[0, 0] == pytest.approx(log_mass, abs=2e-3)


@pytest.mark.slow
def test_copies_of_an_input_are_one_latent_with_their_terms():
    # Each row's term has a kink, and one copy has a weight.
    y, weights = np.array([0.0, 2.0, 0.9]), np.array([1.0, 2.0, 0.5])
    gaussian = pgm.gaussian_vi(model_of("a kink", 4.0), np.zeros((3, 1)), y, weights=weights)
    result = pgm.correct(gaussian, method="nested")
    f = np.linspace(-20.0, 20.0, 40_001)
    log_p = LOG_DENSITIES["a kink"](f[:, None], y) @ weights - 0.5 * (f - 0.3) ** 2 / 4.0
    p = np.exp(log_p - logsumexp(log_p))
    np.testing.assert_allclose(result.mean[:, 0], f @ p, atol=3e-3)
    np.testing.assert_allclose(result.variance[:, 0], (f - f @ p) ** 2 @ p, rtol=6e-3)


@pytest.mark.slow
def test_a_narrow_peak_between_wide_tails():
    # The noise's deviation is uncertain by factors: more nodes and more updates than elsewhere.
    model = pgm.Model(pgm.HeteroscedasticGaussian(4.0), pgm.GP(pgm.RBF(variance=9.0), mean=0.3, size=2))
    result = pgm.correct(pgm.gaussian_vi(model, X[:1], np.array([1.5])), method="nested")
    f = np.linspace(-40.0, 40.0, 4001)
    deviation = 0.5 * np.sqrt(1.0 + np.exp(-f))
    log_p = stats.norm.logpdf(1.5, f[:, None], deviation) + stats.norm.logpdf(f[:, None], 0.3, 3.0)
    p = np.exp(log_p + stats.norm.logpdf(f, 0.3, 3.0))
    evidence = np.log(p.sum()) + 2.0 * np.log(f[1] - f[0])
    for latent, marginal in enumerate((p.sum(axis=1), p.sum(axis=0))):
        marginal = marginal / marginal.sum()
        mean = f @ marginal
        variance = (f - mean) ** 2 @ marginal
        assert result.mean[0, latent] == pytest.approx(mean, abs=0.02 * np.sqrt(variance))
        assert result.variance[0, latent] == pytest.approx(variance, rel=0.05)
    assert np.all(result.log_evidence_bounds <= evidence + 1e-3)
    assert np.all(result.log_evidence_bounds >= result.elbo)


def separated_marginal(y_at_zero, num_at_one, slopes):
    """The marginal of the slope at ``slopes``, and of E[sigmoid(intercept + slope)], by quadrature over both.

    Labels ``y_at_zero`` at x = 0 and ``num_at_one`` zeros at x = 1, with priors of deviation 10.
    """
    intercepts = np.linspace(-4.0, 4.0, 2001)[:, None]
    ones = np.sum(y_at_zero)
    log_p = -ones * np.logaddexp(0.0, -intercepts) - (len(y_at_zero) - ones) * np.logaddexp(0.0, intercepts)
    log_p = log_p - num_at_one * np.logaddexp(0.0, intercepts + slopes) - (intercepts**2 + slopes**2) / 200.0
    p = np.exp(log_p - logsumexp(log_p))
    return p.sum(axis=0), np.sum(p / (1.0 + np.exp(-intercepts - slopes)))


@pytest.mark.slow
def test_a_coefficient_that_separates_many_rows_is_skewed():
    # Linear response has the interval (-20, -1.4), which a Gaussian about the mean extends beyond the steep side.
    x = np.repeat([0.0, 1.0], 200)
    y = np.where(x == 1.0, 0.0, np.random.default_rng(0).random(400) < 0.4)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Linear(variance=[100.0, 100.0]), mean=0.0))
    gaussian = pgm.gaussian_vi(model, np.column_stack([np.ones(400), x]), y, tolerance=1e-12)
    result = pgm.correct(gaussian, method="nested")
    slopes, levels = np.linspace(-70.0, 5.0, 3001), [0.055, 0.945]
    p, probability = separated_marginal(y[:200], 200, slopes)
    mean, marginal = slopes @ p, result.marginals_at([[0.0, 1.0]])
    assert marginal.mean == pytest.approx(mean, abs=0.03)
    assert np.sqrt(marginal.variance) == pytest.approx(np.sqrt((slopes - mean) ** 2 @ p), rel=0.01)
    np.testing.assert_allclose(
        marginal.quantiles(levels)[:, 0, 0], slopes[np.searchsorted(p.cumsum(), levels)], atol=0.1
    )
    assert result.predict([[1.0, 1.0]]).mean[0] == pytest.approx(probability, rel=0.02)


@pytest.mark.slow
def test_rows_of_little_correlation_are_expanded():
    rng = np.random.default_rng(3)
    inputs = rng.uniform(-2.0, 2.0, (60, 1))
    y = (2.0 * inputs[:, 0] + rng.logistic(size=60) > 3.0).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(variance=9.0, lengthscale=1.5), mean=-1.0))
    gaussian = pgm.gaussian_vi(model, inputs, y)
    exact, result = pgm.correct(gaussian, method="nested"), with_settings(gaussian, num_near=48)
    difference = np.max(abs(result.mean - exact.mean) / np.sqrt(exact.variance))
    assert 0.0 < difference < 0.02
    np.testing.assert_allclose(result.variance, exact.variance, rtol=0.015)
    np.testing.assert_allclose(result.skewness, exact.skewness, atol=0.02)


@pytest.mark.slow
def test_where_the_expansion_diverges_all_rows_are_computed():
    # Kinks of dense rows: a row beyond the near ones still has a correlation of almost one. The expansion alone makes a
    # mean err by 26 deviations.
    rng = np.random.default_rng(1)
    inputs = np.sort(rng.uniform(-2.0, 2.0, (300, 1)), axis=0)
    y = np.sin(inputs[:, 0]) + 0.1 * rng.laplace(size=300)
    gaussian = pgm.gaussian_vi(pgm.Model(pgm.Laplace(scale=0.1), pgm.GP(pgm.RBF(lengthscale=1.0))), inputs, y)
    exact, result = (with_settings(gaussian, num_near=near) for near in (300, 34))
    np.testing.assert_allclose(result.mean, exact.mean, atol=0.03 * np.sqrt(exact.variance.min()))
    np.testing.assert_allclose(result.variance, exact.variance, rtol=0.03)


def test_marginals_cut_off_at_their_grid_are_warned_of():
    # One pass, on a grid that is too short.
    gaussian = pgm.gaussian_vi(model_of("a kink", 4.0), X[:1], np.array([3.0]))
    with pytest.warns(pgm.CorrectionWarning, match="1 of 1 nested marginals at the data .* reach beyond the grid"):
        with_settings(gaussian, num_passes=1, first_width=0.5)


@pytest.mark.slow
def test_grids_that_do_not_resolve_a_density_are_warned_of():
    # Without more nodes for the narrow peak of a noise that varies.
    model = pgm.Model(pgm.HeteroscedasticGaussian(4.0), pgm.GP(pgm.RBF(variance=9.0), mean=0.3, size=2))
    gaussian = pgm.gaussian_vi(model, X[:1], np.array([1.5]))
    with pytest.warns(pgm.CorrectionWarning, match="1 of 2 nested marginals at the data .* change too fast"):
        with_settings(gaussian, num_nodes=(17,))


@pytest.mark.slow
def test_comparisons_and_plots_read_their_densities():
    y, approximation, result = np.array(CASES["no counts"][1]), gaussian("no counts", 25.0), nested("no counts", 25.0)
    draws = pgm.nuts(model_of("no counts", 25.0), X, y, num_samples=500, num_chains=2, target_accept=0.95, seed=0)
    table = pgm.compare(nuts=draws, gaussian=approximation, nested=result)
    frame = table.to_dataframe()
    assert frame.loc["nested", "wasserstein"] < 0.6 * frame.loc["gaussian", "wasserstein"]
    f, levels = np.sort(draws.latents.reshape(-1, 3), axis=0), (np.arange(2000) + 0.5) / 2000
    distances = [stats.wasserstein_distance(f[:, row], result.quantiles(levels)[:, row, 0]) for row in range(3)]
    assert frame.loc["nested", "wasserstein"] == pytest.approx(np.mean(distances), rel=0.02)
    curves = pgm.plot_densities(table, num_points=1).axes[0].get_lines()
    skewed = curves[1].get_ydata()
    assert not np.allclose(skewed, skewed[::-1], rtol=0.1)


def test_diagnoses_have_their_bounds_of_the_divergence():
    result, evidence = nested("counts", 9.0), truth("counts", 9.0, count=81)[3]
    diagnosis = pgm.diagnose(result, num_replicates=0, seed=0)
    assert diagnosis.importance.log_evidence == pytest.approx(evidence, abs=0.01)
    text = " ".join(str(diagnosis).split())
    words = text.partition("at most log p(y) less its lower bound: ")[2].split()
    assert float(words[0]) == pytest.approx(np.max(evidence - result.log_evidence_bounds), abs=0.01)
    assert "Importance sampling and calibration are of the linear response" in text


def test_the_bound_is_that_of_a_dense_gaussian_at_its_best():
    # The largest ELBO of the model with one latent pinned, by a general optimiser over means and Cholesky roots.
    y, K, mean = np.array(CASES["labels"][1]), prior_covariance(9.0), 0.3
    result = nested("labels", 9.0)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    others, gain = [1, 2], K[1:, :1] / K[0, 0]
    Kc = K[1:, 1:] - gain @ K[:1, 1:]
    log_density = LOG_DENSITIES["labels"]

    def negative(v, x):
        m, L = v[:2], np.array([[np.exp(v[2]), 0.0], [v[3], np.exp(v[4])]])
        S, d = L @ L.T, v[:2] - mean - gain[:, 0] * (x - mean)
        expected = sum(weights @ log_density(m[i] + np.sqrt(S[i, i]) * nodes, y[row]) for i, row in enumerate(others))
        kl = 0.5 * (np.trace(np.linalg.solve(Kc, S)) + d @ np.linalg.solve(Kc, d) - 2.0)
        kl += 0.5 * np.linalg.slogdet(Kc)[1] - v[2] - v[4]
        pinned = log_density(x, y[0]) + stats.norm(mean, np.sqrt(K[0, 0])).logpdf(x)
        return -(expected - kl + pinned)

    at = np.array([40, 90, 120])
    marginals = result.marginals
    x = marginals.location[0, 0] + marginals.scale[0, 0] * GRID[at]
    best = [-minimize(negative, np.array([0.0, 0.0, 0.0, 0.0, 0.0]), args=(value,), tol=1e-10).fun for value in x]
    np.testing.assert_allclose(marginals.log_density[0, 0, at], best, atol=5e-3)
    assert np.all(marginals.log_density[0, 0, at] <= np.array(best) + 2e-3)


@pytest.mark.slow
def test_new_inputs_files_draws_and_other_objectives(tmp_path):
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-2.0, 2.0, (14, 1))
    y = (np.sin(2.0 * inputs[:, 0]) + rng.logistic(size=14) > 0.0).astype(float)
    new = np.array([[-1.0], [0.3], [2.5]])
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(variance=9.0, lengthscale=0.8), mean=0.5))
    result = pgm.correct(pgm.cavi(model, inputs, y), method="nested")
    again = pgm.correct(pgm.gaussian_vi(model, inputs, y), method="nested")
    np.testing.assert_allclose(result.mean, again.mean, atol=1e-5)
    assert pgm.correct(again, method="nested") is again
    # New inputs at the data are the data.
    mean, variance = result.predict_latent(inputs[:3])
    np.testing.assert_allclose(mean, result.mean[:3], atol=1e-6)
    np.testing.assert_allclose(variance, result.variance[:3], rtol=1e-5)
    draws = pgm.gibbs(model, inputs, y, num_samples=2000, num_chains=4, seed=0)
    expected, spread = draws.predict_latent(new)
    mean, variance = result.predict_latent(new)
    np.testing.assert_allclose(mean, expected, atol=0.06 * np.sqrt(spread.max()))
    np.testing.assert_allclose(variance, spread, rtol=0.08)
    np.testing.assert_allclose(result.predict(new).probabilities, draws.predict(new).probabilities, atol=0.01)
    f = result.draw_latents(new, 4000, seed=1)
    np.testing.assert_allclose(f.mean(axis=0), mean, atol=0.08 * np.sqrt(variance.max()))
    np.testing.assert_allclose(f.var(axis=0), variance, rtol=0.1)
    loaded = pgm.load(result.save(tmp_path / "nested.npz"))
    np.testing.assert_allclose(loaded.quantiles([0.05], new), result.quantiles([0.05], new), rtol=1e-9)
    text = " ".join(str(result).split())
    assert text.startswith("Nested variational marginals of Bernoulli()")
    assert f"largest lower bound of log p(y) {result.log_evidence_bounds.max():.4f} nats" in text


@pytest.mark.slow
def test_bounds_with_inducing_inputs_are_above_the_elbo():
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-2.0, 2.0, (60, 1))
    y = (np.sin(2.0 * inputs[:, 0]) + rng.logistic(size=60) > 0.0).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(variance=9.0, lengthscale=0.5), mean=0.0, form=pgm.Inducing(8)))
    result = pgm.correct(pgm.gaussian_vi(model, inputs, y), method="nested")
    assert np.all(result.log_evidence_bounds >= result.elbo - 1e-5)
    assert np.all(result.log_evidence_bounds <= result.elbo + 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["three classes", "two terms"])
def test_predictors_of_several_latents_agree_with_gibbs(name):
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-2.0, 2.0, (20, 2))
    f = 2.0 * np.sin(2.0 * inputs[:, 0])
    kernel = pgm.RBF(variance=4.0, lengthscale=0.8)
    if name == "three classes":
        y = np.digitize(f + rng.logistic(size=20), [-1.0, 1.0]).astype(float)
        model = pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(kernel, mean=0.0, size=3))
    else:
        y = (f + rng.logistic(size=20) > 0.0).astype(float)
        model = pgm.Model(summed(), [pgm.GP(pgm.On(kernel, [column]), mean=0.0) for column in (0, 1)])
    result = pgm.correct(pgm.gaussian_vi(model, inputs, y), method="nested")
    draws = pgm.gibbs(model, inputs, y, num_samples=10_000, num_chains=4, seed=0)
    deviation = np.sqrt(draws.variance)
    assert np.abs((result.mean - draws.mean) / deviation).max() < 0.06
    assert np.abs(result.variance / draws.variance - 1.0).mean() < 0.02
    probabilities = result.predict(inputs[:5] + 0.1).probabilities
    np.testing.assert_allclose(probabilities, draws.predict(inputs[:5] + 0.1).probabilities, atol=0.02)


# Marginals of linear functionals against quadrature in several dimensions, draws, and the marginals of latents.


@pytest.mark.parametrize(
    ("name", "variance"), [("no counts", 25.0), *(pytest.param(n, 4.0, marks=pytest.mark.slow) for n in CASES)]
)
def test_a_contrast_and_a_mean_are_those_of_quadrature(name, variance):
    A = np.array([[1.0, 0.0, -1.0], [0.2, 0.3, 0.5]])
    u = np.stack(np.meshgrid(*[np.linspace(-8.0, 8.0, 121)] * 3, indexing="ij")).reshape(3, -1)
    f = 0.3 + np.linalg.cholesky(prior_covariance(variance)) @ u
    log_p = -0.5 * np.sum(u**2, axis=0) + sum(LOG_DENSITIES[name](f[j], CASES[name][1][j]) for j in range(3))
    p, sums = np.exp(log_p - logsumexp(log_p)), A @ f
    mean = sums @ p
    spread = (sums - mean[:, None]) ** 2 @ p
    result = pgm.marginals(gaussian(name, variance), A)
    assert result.shape == (2,)
    np.testing.assert_allclose(result.mean, mean, atol=0.04 * np.sqrt(spread.min()))
    np.testing.assert_allclose(result.variance, spread, rtol=0.04)
    np.testing.assert_allclose(result.skewness, (sums - mean[:, None]) ** 3 @ p / spread**1.5, atol=0.06)


@pytest.mark.slow
def test_latents_of_the_data_are_those_of_the_correction():
    corrected, levels = nested("labels", 9.0), [0.02, 0.84]
    result = pgm.marginals(corrected, np.eye(3))
    np.testing.assert_allclose(result.mean, corrected.mean[:, 0], rtol=1e-6)
    np.testing.assert_allclose(result.quantiles(levels), corrected.quantiles(levels)[:, :, 0], rtol=1e-6)
    # Those of cavi's result are of the variational Gaussian.
    again = pgm.marginals(pgm.cavi(model_of("labels", 9.0), X, np.ones(3)), [0.0, 1.0, 0.0])
    assert again.shape == ()
    assert float(again.mean) == pytest.approx(corrected.mean[1, 0], abs=1e-5)
    np.testing.assert_allclose(again.quantiles(levels), corrected.quantiles(levels)[:, 1, 0], atol=1e-4)


@pytest.mark.slow
def test_differences_between_new_inputs_have_their_joint_variance():
    # Where the data say nothing, a difference is the prior's: the residuals of two near inputs are correlated.
    far = np.array([[50.0], [50.5]])
    result = pgm.marginals(gaussian("labels", 9.0), [1.0, -1.0], X_new=far)
    assert float(result.variance) == pytest.approx(18.0 * (1.0 - np.exp(-0.125)), rel=1e-3)
    near = pgm.marginals(gaussian("labels", 9.0), [0.0, 1.0], X_new=np.array([[50.0], [0.7]]))
    assert float(near.mean) == pytest.approx(nested("labels", 9.0).mean[1, 0], rel=1e-5)


@pytest.mark.slow
def test_effects_of_additive_terms_agree_with_gibbs():
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-2.0, 2.0, (25, 2))
    y = (np.sin(2.0 * inputs[:, 0]) + inputs[:, 1] + rng.logistic(size=25) > 0.0).astype(float)
    gps = [pgm.GP(pgm.On(pgm.RBF(variance=4.0), [0])), pgm.GP(pgm.On(pgm.RBF(variance=2.0, lengthscale=2.0), [1]))]
    model = pgm.Model(summed(), gps)
    new = np.array([[-1.0, 0.5], [1.5, -1.0]])
    functional = np.array([[[1.0, 0.0], [-1.0, 0.0]], [[0.0, 1.0], [0.0, -1.0]], [[1.0, 1.0], [0.0, 0.0]]])
    result = pgm.marginals(pgm.gaussian_vi(model, inputs, y), functional, X_new=new)
    draws = pgm.gibbs(model, inputs, y, num_samples=4000, num_chains=4, seed=0).draw_latents(new, 8000, seed=1)
    sums = np.einsum("kml,sml->sk", functional, draws)
    np.testing.assert_allclose(result.mean, sums.mean(axis=0), atol=0.06 * sums.std(axis=0).max())
    np.testing.assert_allclose(result.variance, sums.var(axis=0), rtol=0.08)


def test_one_row_and_no_coefficients():
    one = pgm.gaussian_vi(model_of("labels", 4.0), X[:1], np.ones(1))
    result = pgm.marginals(one, [[2.0], [0.0]])
    latent = pgm.correct(one, method="nested")
    np.testing.assert_allclose(result.mean, [2.0 * latent.mean[0, 0], 0.0], rtol=1e-6)
    np.testing.assert_allclose(result.variance, [4.0 * latent.variance[0, 0], 0.0], rtol=1e-6)


def test_bad_functionals_are_named():
    result = gaussian("labels", 4.0)
    for functional, message in (
        ([1.0, 2.0], r"functional must have shape \(3,\) or \(k, 3\), a coefficient for each input; got shape \(2,\)"),
        (np.ones((1, 2, 3)), r"got shape \(1, 2, 3\)"),
        (np.ones((0, 3)), r"got shape \(0, 3\)"),
        ([1.0, np.nan, 0.0], "functional must be finite"),
        (None, "functional is None"),
    ):
        with pytest.raises(ValueError, match=message):
            pgm.marginals(result, functional)
    with pytest.raises(ValueError, match=r"X_new must have the 1 column"):
        pgm.marginals(result, [1.0], X_new=np.ones((1, 2)))
    draws = pgm.gibbs(model_of("labels", 4.0), X, np.ones(3), num_samples=4, num_warmup=2, num_chains=1, seed=0)
    with pytest.raises(ValueError, match="result must be the result of cavi, gaussian_vi, fit or correct"):
        pgm.marginals(draws, [1.0, 0.0, 0.0])
    model = pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(pgm.RBF(), size=3))
    with pytest.raises(ValueError, match=r"\(3, 3\) or \(k, 3, 3\), a coefficient for each input and latent"):
        pgm.marginals(pgm.cavi(model, X, np.arange(3)), [1.0, 0.0, 0.0])


def test_a_latent_without_variance_is_a_point():
    X, y = np.array([[0.0], [1.0], [-2.0]]), np.array([1.0, 0.0, 1.0])
    gaussian = pgm.gaussian_vi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Linear(2.0), mean=0.5)), X, y)
    result = pgm.correct(gaussian, method="nested")
    assert result.mean[0, 0] == pytest.approx(0.5)
    assert result.variance[0, 0] == 0.0
    np.testing.assert_allclose(result.quantiles([0.05, 0.95])[:, 0, 0], 0.5)
    assert result.log_evidence_bounds[0, 0] == pytest.approx(gaussian.elbo, abs=1e-4)
    # The other two are one latent, and their marginals are exact.
    slopes = np.linspace(-15.0, 15.0, 20_001)
    log_p = -(slopes**2) / 4.0 - np.logaddexp(0.0, 0.5 + slopes) - np.logaddexp(0.0, -0.5 + 2.0 * slopes)
    p = np.exp(log_p) / np.exp(log_p).sum()
    assert result.mean[1, 0] == pytest.approx(0.5 + slopes @ p, abs=2e-3)
    assert result.variance[1, 0] == pytest.approx((slopes - slopes @ p) ** 2 @ p, rel=2e-3)
