"""Hyperparameters integrated out, against brute force over them: exact marginal likelihoods, and draws of the prior."""

import importlib
import pickle
from functools import cache, partial

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.special import expit, logsumexp

import pgmodels as pgm
from pgmodels.inference import integrate as engine
from pgmodels.interop.arviz import as_draws
from pgmodels.likelihoods.likelihood import log_density
from pgmodels.numerics import quadrature as design
from pgmodels.numerics.elementary import smoothed
from pgmodels.numerics.quadrature import sobol_normals
from pgmodels.results import result as intervals
from tests.covering import some
from tests.referees import GP_REGRESSION, cdf_of, gp_regression_marginals, hermite_grid, rbf
from tests.registry import CASES

NEW = np.array([[-2.5], [0.4], [3.0]])


@cache
def regression():
    """A lengthscale and a noise scale with priors; the variance and the mean are held."""
    rng = np.random.default_rng(4)
    X = np.sort(rng.uniform(-2.0, 2.0, 12))[:, None]
    y = 0.4 + np.sin(1.5 * X[:, 0]) + 0.3 * rng.normal(size=12)
    kernel = pgm.RBF(pgm.Fixed(1.2), dist.LogNormal(0.0, 0.6))
    model = pgm.Model(pgm.Gaussian(dist.LogNormal(-1.0, 0.5)), pgm.GP(kernel, mean=pgm.Fixed(0.4)))
    return model, X, y, pgm.integrate(model, X, y)


def exact_regression(X, y, log_lengthscale, log_scale, at):
    """log p(y | θ), and mean and covariance of the latent at new inputs."""
    noise = np.exp(2.0 * log_scale)
    both = rbf(np.concatenate([X, at]), 1.2, np.exp(log_lengthscale))
    n = len(X)
    S = both[:n, :n] + noise * np.eye(n)
    half = np.linalg.solve(S, both[:n, n:])
    return (
        stats.multivariate_normal(np.full(n, 0.4), S).logpdf(y),
        0.4 + half.T @ (y - 0.4),
        both[n:, n:] - both[n:, :n] @ half,
    )


@cache
def regression_by_quadrature():
    """Points (31², 2) of logarithms of scale and lengthscale, their shares, log p(y), and moments at data and NEW.

    Means (31², 15) and covariances (31², 15, 15).
    """
    _, X, y, _ = regression()
    scale = -1.0 + 0.5 * np.linspace(-4.0, 4.0, 31)
    lengthscale = 0.6 * np.linspace(-4.0, 4.0, 31)
    points = np.stack(np.meshgrid(scale, lengthscale, indexing="ij"), axis=-1).reshape(-1, 2)
    regressions = [exact_regression(X, y, longer, noise, np.concatenate([X, NEW])) for noise, longer in points]
    log_p = np.array([value for value, _, _ in regressions])
    log_p = log_p + stats.norm(-1.0, 0.5).logpdf(points[:, 0]) + stats.norm(0.0, 0.6).logpdf(points[:, 1])
    total = np.logaddexp.reduce(log_p)
    volume = (scale[1] - scale[0]) * (lengthscale[1] - lengthscale[0])
    means, covariances = (np.array([part[k] for part in regressions]) for k in (1, 2))
    return points, np.exp(log_p - total), total + np.log(volume), means, covariances


def mixed(shares, means, variances):
    mean = shares @ means
    return mean, shares @ (variances + (means - mean) ** 2)


def test_hyperparameters_of_a_regression_are_those_of_quadrature():
    _, _, _, result = regression()
    points, shares, log_evidence, _, _ = regression_by_quadrature()
    assert list(result.hyperparameters) == ["scale", "lengthscale"]
    for logs, marginal in zip(points.T, result.hyperparameters.values(), strict=True):
        mean = shares @ logs
        deviation = np.sqrt(shares @ (logs - mean) ** 2)
        log_marginal = marginal.logarithm
        # What the grid leaves out is in the tails.
        assert abs(log_marginal.mean - mean) < 0.03 * deviation
        np.testing.assert_allclose(log_marginal.deviation, deviation, rtol=0.03)
        values = np.unique(logs)
        each = np.array([shares[logs == value].sum() for value in values])
        levels = [0.05, 0.5, 0.95]
        expected = np.interp(levels, np.cumsum(each) - 0.5 * each, values)
        # Half a per cent of the mass is cut at each end.
        np.testing.assert_allclose(log_marginal.quantiles(levels), expected, atol=0.1 * deviation)
        np.testing.assert_allclose(marginal.quantiles(levels), np.exp(log_marginal.quantiles(levels)), rtol=1e-4)
        np.testing.assert_allclose(marginal.mean, shares @ np.exp(logs), rtol=0.02)
    np.testing.assert_allclose(result.log_evidence, log_evidence, atol=0.02)
    assert result.converged
    assert result.holds_mass
    assert result.num_failed == result.unreliable == 0


def test_points_of_a_gaussian_likelihood_are_exact():
    _, X, y, result = regression()
    for point, value, means, covariances in zip(
        result.vectors[::9], result.log_densities[::9], result.means[::9], result.covariances[::9], strict=True
    ):
        log_p, mean, covariance = exact_regression(X, y, point[1], point[0], X)
        np.testing.assert_allclose(value, log_p + _log_priors(point[None])[0], atol=1e-7)
        np.testing.assert_allclose(means[:, 0], mean, atol=1e-7)
        np.testing.assert_allclose(covariances[:, 0, 0], np.diagonal(covariance), atol=1e-7)
    np.testing.assert_allclose(result.elbos, result.log_densities - _log_priors(result.vectors), atol=1e-9)
    assert np.isnan(result.k_hats).all()


def _log_priors(vectors):
    return stats.norm(-1.0, 0.5).logpdf(vectors[:, 0]) + stats.norm(0.0, 0.6).logpdf(vectors[:, 1])


def test_a_gaussian_likelihood_needs_one_program_for_all_points():
    model, X, y, _ = regression()
    # Seven rows have no program yet.
    before = {engine._evaluate_exactly: engine._evaluate_exactly.cache_size()}
    before |= {function: function.cache_size() for function in (engine._ascend, engine._evaluate, engine._marginals)}
    pgm.integrate(model, X[:7], y[:7])
    pgm.integrate(model, X[2:9], y[1:8])
    assert [function.cache_size() - count for function, count in before.items()] == [1, 0, 0, 0]


def test_draws_of_hyperparameters_have_their_smoothed_marginals():
    _, _, _, result = regression()
    values = result.draw_at_data(20_000, seed=3)[1]
    levels = [0.05, 0.3, 0.5, 0.7, 0.95]
    for name, marginal in result.hyperparameters.items():
        # Four standard errors of a share of 20,000 draws.
        below = [np.mean(values[name] < end) for end in marginal.quantiles(levels)]
        np.testing.assert_allclose(below, levels, atol=4.0 * np.sqrt(0.25 / 20_000))
        # No draw repeats a point.
        assert len(np.unique(values[name])) == 20_000
        low, high = marginal.quantiles(intervals.bounds())
        np.testing.assert_array_equal(result.summary().loc[name].iloc[2:], [low, high])
    correlation, expected = (np.corrcoef(np.log(list(v)))[0, 1] for v in (values.values(), _weighted(result)))
    assert abs(correlation - expected) < 0.03


def _weighted(result):
    """Draws of the points themselves."""
    chosen = np.random.default_rng(1).choice(len(result.mass), 20_000, p=result.mass)
    return [marginal.values[chosen] for marginal in result.hyperparameters.values()]


def test_a_weak_inverse_gamma_prior_is_integrated_as_by_quadrature():
    # Levels with one row each: y has the variance v + 1/4.
    y = 2.0 * np.random.default_rng(6).normal(size=14)
    model = pgm.Model(
        pgm.Gaussian(pgm.Fixed(0.5)), pgm.GP(pgm.White(dist.InverseGamma(1e-3, 1e-3)), mean=pgm.Fixed(0.0))
    )
    result = pgm.integrate(model, np.arange(14.0)[:, None], y)
    logs = np.linspace(-3.0, 7.0, 2001)
    log_p = stats.norm(0.0, np.sqrt(np.exp(logs) + 0.25)[:, None]).logpdf(y).sum(axis=1)
    log_p += stats.invgamma(1e-3, scale=1e-3).logpdf(np.exp(logs)) + logs
    shares = np.exp(log_p - np.logaddexp.reduce(log_p))
    levels = np.array([0.025, 0.05, 0.25, 0.5, 0.75, 0.95, 0.975])
    quantiles = np.log(result.hyperparameters["variance"].quantiles(levels))
    np.testing.assert_allclose(cdf_of(logs, shares)(quantiles), levels, atol=0.006)
    np.testing.assert_allclose(result.log_evidence, np.logaddexp.reduce(log_p) + np.log(0.005), atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine", [pgm.fit, pgm.gibbs, partial(pgm.nuts, target_accept=0.95)], ids=["fit", "gibbs", "nuts"]
)
def test_other_engines_start_at_the_mode_of_a_weak_inverse_gamma_prior(engine):
    X, y = np.repeat(np.arange(8.0), 5)[:, None], np.repeat(np.random.default_rng(2).normal(size=8), 5)
    y = y + 0.5 * np.random.default_rng(3).normal(size=40)
    model = pgm.Model(pgm.Gaussian(0.5), pgm.GP(pgm.White(dist.InverseGamma(1e-3, 1e-3)), mean=pgm.Fixed(0.0)))
    result = engine(model, X, y)
    assert 0.2 < result.summary().loc["variance", "mean"] < 5.0


@pytest.mark.slow
def test_quantiles_of_three_hyperparameters_are_those_of_quadrature():
    x, y = GP_REGRESSION
    square, root = (dist.transforms.PowerTransform(power) for power in (2.0, 0.5))
    amplitude = dist.TransformedDistribution(dist.HalfNormal(2.0), square)
    noise = dist.TransformedDistribution(dist.HalfNormal(1.0), root)
    kernel = pgm.RBF(pgm.Parameter(4.0, prior=amplitude), dist.Gamma(25.0, 4.0))
    model = pgm.Model(pgm.Gaussian(pgm.Parameter(1.0, prior=noise)), pgm.GP(kernel, mean=pgm.Fixed(0.0)))
    result = pgm.integrate(model, x[:, None], y)
    levels = np.array([0.025, 0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975])
    powers = {"lengthscale": 1.0, "variance": 0.5, "scale": 2.0}
    for (name, power), (values, shares) in zip(powers.items(), gp_regression_marginals(), strict=True):
        quantiles = power * np.log(result.hyperparameters[name].quantiles(levels))
        np.testing.assert_allclose(cdf_of(values, shares)(quantiles), levels, atol=0.007)


def test_densities_are_those_of_quadrature():
    _, _, _, result = regression()
    points, shares, _, _, _ = regression_by_quadrature()
    marginal = result.hyperparameters["scale"]
    values = np.unique(points[:, 0])
    by_value = np.array([shares[points[:, 0] == value].sum() for value in values]) / (values[1] - values[0])
    # Of the logarithm, over the value.
    np.testing.assert_allclose(marginal.density(np.exp(values)) * np.exp(values), by_value, atol=0.03 * by_value.max())
    np.testing.assert_array_equal(marginal.density([-1.0, 0.0]), 0.0)
    with pytest.raises(ValueError, match=r"density needs a scalar hyperparameter; this one has shape \(2,\)"):
        pgm.Marginal(np.ones((3, 2)), np.full(3, 1.0 / 3.0)).density(1.0)


def test_latents_of_a_regression_are_those_of_quadrature():
    _, X, _, result = regression()
    _, shares, _, means, covariances = regression_by_quadrature()
    variances = np.diagonal(covariances, axis1=1, axis2=2)
    mean, variance = mixed(shares, means, variances)
    moments = result.predict_latent(np.concatenate([X, NEW]))
    for moment, expected in zip(moments, (mean, variance), strict=True):
        np.testing.assert_allclose(moment[:, 0], expected, atol=0.02 * np.sqrt(variance).max(), rtol=0.02)
    np.testing.assert_allclose(result.mean, moments[0][:12], atol=1e-6)
    np.testing.assert_allclose(result.variance, moments[1][:12], atol=1e-6)
    # A quantile of the mixture leaves so much below it.
    levels = np.array([0.05, 0.5, 0.9])
    quantiles = result.quantiles(levels, NEW)
    for level, at in zip(levels, quantiles[:, :, 0], strict=True):
        below = shares @ stats.norm.cdf(at, means[:, 12:], np.sqrt(variances[:, 12:]))
        np.testing.assert_allclose(below, level, atol=0.01)
    marginals = result.marginals
    np.testing.assert_allclose(marginals.mean, result.mean, atol=1e-3 * np.sqrt(result.variance.min()))
    np.testing.assert_allclose(marginals.variance, result.variance, rtol=1e-3)
    near = 0.02 * np.sqrt(result.variance.min())
    np.testing.assert_allclose(marginals.quantiles(levels), result.quantiles(levels), atol=near)
    assert result.quantiles(0.5).shape == (1, 12, 1)


def test_joint_draws_of_a_regression_are_those_of_quadrature():
    _, _, _, result = regression()
    _, shares, _, means, covariances = regression_by_quadrature()
    means, covariances = means[:, 12:], covariances[:, 12:, 12:]
    away = means - shares @ means
    covariance = np.einsum("k,kab->ab", shares, covariances + away[:, :, None] * away[:, None, :])
    drawn = result.draw_latents(np.vstack([NEW, NEW[1] + 0.05]), 4000, seed=2)[..., 0]
    # Neighbours go together: were each row drawn by itself, they would not.
    assert np.corrcoef(drawn[:, 1], drawn[:, 3])[0, 1] > 0.9
    drawn = drawn[:, :3]
    deviation = np.sqrt(np.diag(covariance))
    # 4.5 standard errors of 4,000 draws of tails twice those of a normal, and the 2 % of the grid.
    np.testing.assert_allclose(drawn.mean(axis=0), shares @ means, atol=0.09 * deviation.max())
    np.testing.assert_allclose(np.cov(drawn.T), covariance, atol=0.16 * deviation.max() ** 2)


def test_predictions_of_a_regression_are_those_of_quadrature():
    _, _, _, result = regression()
    points, shares, _, means, covariances = regression_by_quadrature()
    variances = np.diagonal(covariances, axis1=1, axis2=2)
    means, variances = means[:, 12:], variances[:, 12:] + np.exp(2.0 * points[:, :1])
    predictive = result.predict(NEW)
    mean, variance = mixed(shares, means, variances)
    np.testing.assert_allclose(predictive.mean, mean, atol=0.02)
    np.testing.assert_allclose(predictive.variance, variance, rtol=0.03)
    y = np.array([0.1, 1.2, -0.8])
    np.testing.assert_allclose(
        predictive.log_density(y), np.log(shares @ stats.norm.pdf(y, means, np.sqrt(variances))), atol=0.02
    )


@cache
def labels():
    rng = np.random.default_rng(2)
    X = np.sort(rng.uniform(-3.0, 3.0, 12))[:, None]
    y = (np.sin(1.2 * X[:, 0]) + 0.4 * rng.normal(size=12) > 0).astype(float)
    kernel = pgm.RBF(dist.LogNormal(1.0, 0.8), dist.LogNormal(0.3, 0.5))
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(kernel, mean=pgm.Fixed(-0.3)))
    return model, X, y, pgm.integrate(model, X, y)


@pytest.mark.slow
def test_labels_are_those_of_draws_of_the_prior_over_a_fine_grid():
    """At each of 17² hyperparameters 2^13 points of the prior, the same ones, weighed by the likelihood."""
    _, X, y, result = labels()
    standard = sobol_normals(12, 1 << 13)
    variance, lengthscale = 1.0 + 0.8 * np.linspace(-3.5, 3.5, 17), 0.3 + 0.5 * np.linspace(-3.5, 3.5, 17)
    points = np.stack(np.meshgrid(variance, lengthscale, indexing="ij"), axis=-1).reshape(-1, 2)
    evidences = []
    for values in np.exp(points):
        f = -0.3 + standard @ np.linalg.cholesky(rbf(X, *values) + 1e-8 * np.eye(12)).T
        p = np.prod(expit(np.where(y == 1, f, -f)), axis=1)
        mean = p @ f / p.sum()
        evidences.append((np.log(p.mean()), mean, p @ (f - mean) ** 2 / p.sum()))
    log_p = np.array([value for value, _, _ in evidences])
    log_p = log_p + stats.norm(1.0, 0.8).logpdf(points[:, 0]) + stats.norm(0.3, 0.5).logpdf(points[:, 1])
    total = np.logaddexp.reduce(log_p)
    shares = np.exp(log_p - total)
    for logs, marginal in zip(points.T, result.hyperparameters.values(), strict=True):
        mean = shares @ logs
        deviation = np.sqrt(shares @ (logs - mean) ** 2)
        assert abs(marginal.logarithm.mean - mean) < 0.05 * deviation
        np.testing.assert_allclose(marginal.logarithm.deviation, deviation, rtol=0.05)
    volume = (variance[1] - variance[0]) * (lengthscale[1] - lengthscale[0])
    np.testing.assert_allclose(result.log_evidence, total + np.log(volume), atol=0.04)
    # A skew posterior of twelve labels: what is left is the Gaussian's, at the widest hyperparameters.
    mean, variance = mixed(shares, *(np.array([part[k] for part in evidences]) for k in (1, 2)))
    np.testing.assert_allclose(result.mean[:, 0], mean, atol=0.06 * np.sqrt(variance).max())
    np.testing.assert_allclose(result.variance[:, 0], variance, rtol=0.08)


@pytest.mark.slow
def test_one_program_serves_all_points_and_other_data():
    model, X, y, _ = labels()
    sizes = engine._evaluate.cache_size(), engine._ascend.cache_size()
    again = pgm.integrate(model, X + 0.05, np.roll(y, 1), seed=3)
    assert len(again.shares) > 10
    assert (engine._evaluate.cache_size(), engine._ascend.cache_size()) == sizes
    alone = engine._evaluate.cache_size()
    again.predict_latent(NEW)
    first = engine._predict.cache_size()
    again.predict_latent(NEW + 0.1)
    assert (engine._evaluate.cache_size(), engine._predict.cache_size()) == (alone, first)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pgmodels.PredictionWarning")
def test_it_is_a_result_like_the_others(tmp_path):
    _, _, _, result = labels()
    predictive = result.predict(NEW)
    probabilities = predictive.probabilities
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-9)
    np.testing.assert_allclose(predictive.probabilities_of([1.0])[:, 0], probabilities[:, 1], atol=1e-9)
    drawn = predictive.draw(2000, seed=3)
    assert drawn.shape == (2000, 3)
    error = np.sqrt(probabilities.prod(axis=1) / 2000)
    np.testing.assert_array_less(np.abs(drawn.mean(axis=0) - probabilities[:, 1]), 4.5 * error)
    # Its text says what was integrated out.
    assert "Hyperparameters integrated out of Bernoulli()" in str(result)
    assert "variance" in str(result)
    tree = result.to_arviz(num_draws=2000)
    assert "nested approximation" in tree["posterior"].attrs["draws_of"]
    logs = np.log(tree["posterior"]["variance"].to_numpy())
    log_marginal = result.hyperparameters["variance"].logarithm
    np.testing.assert_allclose(logs.mean(), log_marginal.mean, atol=4.5 * log_marginal.deviation / np.sqrt(2000))
    f = tree["posterior"]["f"].to_numpy()[0]
    # The nearest point stands for each draw: a twentieth of the spread between points is lost or gained.
    np.testing.assert_allclose(f.mean(axis=0), result.mean, atol=0.1 * np.sqrt(result.variance).max())
    np.testing.assert_allclose(f.var(axis=0), result.variance, rtol=0.2)
    for other in (pickle.loads(pickle.dumps(result)), pgm.load(result.save(tmp_path / "integrated.npz"))):
        np.testing.assert_array_equal(other.mean, result.mean)
        np.testing.assert_allclose(other.predict(NEW).probabilities, probabilities, rtol=1e-12)
        np.testing.assert_array_equal(
            other.hyperparameters["lengthscale"].values, result.hyperparameters["lengthscale"].values
        )


@pytest.mark.slow
def test_it_is_compared_with_draws():
    """Its own, which have what its mixture has."""
    _, _, _, result = labels()
    table = pgm.compare(gibbs=as_draws(result, *result.draw_at_data(2000)), integrated=result)
    row = table.to_dataframe().loc["integrated"]
    assert row["mean_error"] < 0.15
    assert np.isfinite(row["wasserstein"])
    assert not table.notes
    assert "integrated" in str(table)
    assert "hyperparameters" not in str(pgm.verdicts(table)["integrated"])


@pytest.mark.slow
def test_four_hyperparameters_by_a_composite_design():
    """Against 40,000 draws of the prior, weighed by the exact marginal likelihood."""
    rng = np.random.default_rng(8)
    X = rng.uniform(-2.0, 2.0, (25, 2))
    y = np.sin(1.5 * X[:, 0]) + 0.3 * X[:, 1] + 0.3 * rng.normal(size=25)
    kernel = pgm.RBF(dist.LogNormal(0.0, 0.6), pgm.Parameter([1.0, 1.0], prior=dist.LogNormal(0.3, 0.5)))
    model = pgm.Model(pgm.Gaussian(dist.LogNormal(-1.0, 0.5)), pgm.GP(kernel))
    result = pgm.integrate(model, X, y)
    assert len(result.shares) == 25
    centre, scale = np.array([-1.0, 0.0, 0.3, 0.3]), np.array([0.5, 0.6, 0.5, 0.5])
    logs = centre + scale * rng.standard_normal((40_000, 4))
    noise, variance, lengthscales = np.exp(2.0 * logs[:, 0]), np.exp(logs[:, 1]), np.exp(logs[:, 2:])
    squares = np.zeros((len(logs), 25, 25))
    for k in range(2):
        squares += ((X[:, None, k] - X[:, k]) / lengthscales[:, k, None, None]) ** 2
    S = variance[:, None, None] * np.exp(-0.5 * squares) + noise[:, None, None] * np.eye(25)
    solved = np.linalg.solve(S, np.broadcast_to(y[:, None], (len(S), 25, 1)))[..., 0]
    log_p = -0.5 * (solved @ y + np.linalg.slogdet(2.0 * np.pi * S)[1])
    shares = np.exp(log_p - np.logaddexp.reduce(log_p))
    truth = shares @ logs, np.sqrt(shares @ (logs - shares @ logs) ** 2)
    marginals = [marginal.logarithm for marginal in result.hyperparameters.values()]
    mean, deviation = (np.concatenate([np.ravel(getattr(part, name)) for part in marginals])
                       for name in ("mean", "deviation"))  # fmt: skip
    # The design knows one scale a side: a tenth or two of a deviation (Rue, Martino and Chopin 2009).
    np.testing.assert_allclose((mean - truth[0]) / truth[1], 0.0, atol=0.2)
    np.testing.assert_allclose(deviation, truth[1], rtol=0.15)
    np.testing.assert_allclose(result.log_evidence, np.logaddexp.reduce(log_p) - np.log(len(logs)), atol=0.15)


@pytest.mark.slow
def test_what_is_not_to_be_trusted_is_said(monkeypatch):
    model, X, y, reference = labels()
    with monkeypatch.context() as patch:
        patch.setattr(engine, "smoothed", lambda log_ratios: smoothed(log_ratios)._replace(k=1.2))
        with pytest.warns(pgm.EvidenceWarning, match=r"k-hat of the evidence's weights is above .* 100% of the mass"):
            result = pgm.integrate(model, X, y)
    np.testing.assert_allclose(result.unreliable, 1.0)
    assert "Pareto k-hat above its limit 100%" in " ".join(str(result).split())
    with monkeypatch.context() as patch:
        patch.setitem(design._MAX_POINTS, 2, 12)
        with pytest.warns(pgm.EvidenceWarning, match="extends beyond the points"):
            assert not pgm.integrate(model, X, y).holds_mass
    evaluate = engine._evaluate

    def failing(family, vector, *others):
        point = evaluate(family, vector, *others)
        return point._replace(log_ratios=point.log_ratios + np.where(vector[0] > 2.5, np.nan, 0.0))

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_evaluate", failing)
        with pytest.warns(pgm.EvidenceWarning, match="have no finite evidence and are left out"):
            result = pgm.integrate(model, X, y)
    assert 0 < result.num_failed < len(reference.shares)
    assert (result.vectors[:, 0] < 2.5).all()
    assert "that failed" in str(result)


@pytest.mark.slow
def test_wrong_calls_are_refused():
    model, X, y, _ = labels()
    with pytest.raises(ValueError, match=r"integrate: nothing in the model has a prior.*pgm\.correct"):
        pgm.integrate(model.fixed(), X, y)
    with pytest.raises(ValueError, match=r"num_draws must be a whole number >= 256; got 10\."):
        pgm.integrate(model, X, y, num_draws=10)
    with pytest.raises(ValueError, match=r"model must be a pgm\.Model"):
        pgm.integrate(model.likelihood, X, y)
    _, _, _, result = labels()
    with pytest.raises(ValueError, match="levels must be numbers between 0 and 1"):
        result.quantiles([0.0, 0.5])


@pytest.mark.slow
def test_few_groups_at_many_rows_are_integrated_through_their_rank(monkeypatch):
    """Additive effects of two factors in 24 cells: rank 9 of 24, the figures those of the dense form."""
    monkeypatch.setattr("pgmodels.inference.bound.MANY_ROWS", 1)
    cells = np.stack(np.meshgrid(np.arange(4.0), np.arange(6.0), indexing="ij"), axis=-1).reshape(-1, 2)
    X, trials = cells[[*range(24), 3, 17, 17]], np.array([3.0, 5.0, 0.0] * 9)
    y = np.column_stack([np.minimum((7 * np.arange(27)) % 4, trials), trials])

    def integrated(**form):
        kernel = pgm.On(pgm.White(dist.LogNormal(-1.0, 0.7)), [0]) + pgm.On(pgm.White(pgm.Fixed(0.6)), [1])
        return pgm.integrate(pgm.Model(pgm.Binomial(), pgm.GP(kernel, mean=-0.4, **form)), X, y)

    result, dense = integrated(), integrated(form=pgm.Dense())
    assert result.log_evidence == pytest.approx(dense.log_evidence, abs=0.02)
    np.testing.assert_allclose(result.mean, dense.mean, atol=0.01)
    np.testing.assert_allclose(result.variance, dense.variance, rtol=0.03)
    new = np.array([[0.0, 5.0], [2.0, 9.0], [0.0, 5.0]])
    np.testing.assert_allclose(result.predict_latent(new), dense.predict_latent(new), rtol=0.03, atol=0.01)
    drawn = result.draw_latents(new, 4000, seed=2)[..., 0]
    mean, variance = (part[:, 0] for part in result.predict_latent(new))
    assert (np.abs(drawn.mean(axis=0) - mean) < 5 * np.sqrt(variance / 4000)).all()
    np.testing.assert_allclose(drawn.var(axis=0), variance, rtol=0.15)
    np.testing.assert_allclose(drawn[:, 0], drawn[:, 2], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "scale", "variance", "log_evidence"),
    [(6, (-8.0, 2.0), dist.LogNormal(0.0, 1.0), -6.2548), (4, (-4.0, 1.0), pgm.Fixed(1.0), -4.8469)],
)
def test_sines_without_noise(count, scale, variance, log_evidence):
    """+215.63 and -3.18 before; the right values are of tests/numerics/test_quadrature.py."""
    X = np.linspace(-np.pi, np.pi, count)[:, None]
    kernel = pgm.RBF(variance, dist.LogNormal(0.0, 1.0))
    model = pgm.Model(pgm.Gaussian(dist.LogNormal(*scale)), pgm.GP(kernel))
    result = pgm.integrate(model, X, np.sin(X[:, 0]), progress=False)
    assert abs(result.log_evidence - log_evidence) < 0.05
    assert result.holds_mass
    assert abs(result.hyperparameters["scale"].logarithm.mean - scale[0]) < 0.05
    # Of the latents at the data nothing is left open, whatever points are mixed.
    np.testing.assert_allclose(result.mean[:, 0], np.sin(X[:, 0]), atol=0.05)


@pytest.mark.slow
def test_what_cannot_be_interpolated_is_an_error(monkeypatch):
    module = importlib.import_module("pgmodels.inference.integrate")
    X = np.linspace(-np.pi, np.pi, 4)[:, None]
    model = pgm.Model(pgm.Gaussian(dist.LogNormal(-2.0, 0.5)), pgm.GP(pgm.RBF(1.0, 1.0)))

    def off_by(error):
        monkeypatch.setattr(module, "refined", lambda density, design: design._replace(error=error))
        return pgm.integrate(model, X, np.sin(X[:, 0]), progress=False)

    with pytest.warns(pgm.EvidenceWarning, match=r"may be off by 0\.2 nats"):
        off_by(0.2)
    with pytest.raises(ValueError, match=r"the error is 3 nats near its mass"):
        off_by(3.0)


# The log evidence against closed forms, quadrature, and averages of the likelihood over the prior.


ENGINES = {
    "cavi": pgm.cavi,
    "gaussian": pgm.gaussian_vi,
    "perturbative": lambda *problem: pgm.correct(pgm.cavi(*problem), method="perturbative"),
}


def log_evidence_labels(n):
    """A wide prior with a nonzero mean."""
    X, y = np.array([[0.0], [0.8], [-0.5]])[:n], np.array([1.0, 0.0, 1.0])[:n]
    return pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(9.0, 1.2), mean=0.7)), X, y


def by_quadrature(X, y):
    """log p(y) of labels, by 60 Gauss-Hermite nodes along each dimension of the whitened prior."""
    grid, each = hermite_grid(60, len(y))
    f = 0.7 + grid @ np.linalg.cholesky(rbf(X, 9.0, 1.2)).T
    return np.log(each @ np.prod(np.where(y == 1, expit(f), expit(-f)), axis=-1))


@pytest.mark.parametrize(
    ("engine", "n"),
    some([("cavi", 1), ("cavi", 2), ("cavi", 3), ("gaussian", 3), ("perturbative", 3)], ("gaussian", 3)),
)
def test_labels_against_quadrature(engine, n):
    model, X, y = log_evidence_labels(n)
    result = ENGINES[engine](model, X, y)
    evidence = pgm.log_evidence(result, num_draws=20_000, seed=2)
    assert evidence.is_reliable
    assert abs(evidence.value - by_quadrature(X, y)) < 4 * evidence.standard_error
    # There is something to find: the bound is further off than the error.
    assert evidence.value - result.elbo > 6 * evidence.standard_error
    assert evidence.elbo == result.elbo
    assert evidence.standard_error < 0.002
    if engine == "gaussian":
        assert pgm.log_evidence(pgm.correct(result), num_draws=20_000, seed=2) == evidence


@pytest.mark.parametrize("engine", some(["cavi", "gaussian"], "cavi"))
def test_of_gaussian_noise_it_is_exact(engine):
    X, y = np.array([-2.0, -1.1, 0.2, 0.9, 1.4, 2.6])[:, None], np.array([0.3, 1.2, -0.4, 0.1, 0.9, 2.0])
    result = ENGINES[engine](pgm.Model(pgm.Gaussian(0.5), pgm.GP(pgm.RBF(1.5, 0.9), mean=0.4)), X, y)
    truth = stats.multivariate_normal(np.full(6, 0.4), rbf(X, 1.5, 0.9) + 0.25 * np.eye(6)).logpdf(y)
    evidence = pgm.log_evidence(result, num_draws=400)
    # The optimum is found to 1e-9 of the ELBO, and jitter is 1e-8.
    np.testing.assert_allclose(evidence.value, truth, rtol=1e-6)
    assert evidence.standard_error < 1e-4


def by_the_prior(model, X, y, num_draws=100_000):
    """log p(y) as the average likelihood over draws of the prior, and its standard error."""
    rng = np.random.default_rng(11)
    f = np.empty((num_draws, len(X), model.num_latents))
    for latent, gp in enumerate(model.gps):
        root = np.linalg.cholesky(rbf(X, float(gp.kernel.variance.value), float(gp.kernel.lengthscale.value)))
        f[..., latent] = float(gp.mean.value) + rng.standard_normal((num_draws, len(X))) @ root.T
    total = log_density(model.likelihood, y, f).sum(axis=-1)
    value = logsumexp(total) - np.log(num_draws)
    return value, np.exp(total - value).std() / np.sqrt(num_draws)


@cache
def case(name):
    X, y = CASES[name].data(6, seed=3)
    size = CASES[name].num_latents
    gps = [pgm.GP(pgm.RBF(1.5 + 0.5 * k, 0.8 + 0.4 * k), mean=0.3 - 0.2 * k) for k in range(size)]
    return pgm.Model(CASES[name].likelihood(), gps), X, y


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bernoulli", "additive", "heteroscedastic"])
def test_against_the_average_over_the_prior(name):
    """One latent, predictors that combine latents, and latents that multiply: q of one, of joint and of two blocks."""
    model, X, y = case(name)
    truth, error = by_the_prior(model, X, y)
    result = pgm.cavi(model, X, y)
    evidence = pgm.log_evidence(result, seed=1)
    assert evidence.is_reliable
    assert abs(evidence.value - truth) < 4 * np.hypot(error, evidence.standard_error)
    # There is something to find.
    assert evidence.value - result.elbo > 4 * np.hypot(error, evidence.standard_error)


@pytest.mark.slow
def test_of_latents_that_the_gaussian_couples():
    model, X, y = case("heteroscedastic")
    both = [pgm.log_evidence(engine(model, X, y), seed=1) for engine in (pgm.cavi, pgm.gaussian_vi)]
    assert abs(both[0].value - both[1].value) < 4 * np.hypot(*(evidence.standard_error for evidence in both))
    # The closer Gaussian leaves more of the draws.
    assert both[1].standard_error < both[0].standard_error


def test_what_it_says():
    model, X, y = log_evidence_labels(3)
    result = pgm.cavi(model, X, y)
    evidence = pgm.log_evidence(result, num_draws=100)
    assert evidence.limit == 0.5
    assert "log p(y) = " in str(evidence)
    assert "100 draws of the corrected Gaussian" in str(evidence)
    assert pgm.log_evidence(result, num_draws=100) == evidence != pgm.log_evidence(result, num_draws=100, seed=1)


@pytest.mark.slow
def test_what_a_gaussian_misses_is_reported():
    # Neighbours that contradict each other under noise of heavy tails: two modes, and q between them.
    X, y = np.array([[0.0], [0.1]]), np.array([-8.0, 8.0])
    result = pgm.cavi(pgm.Model(pgm.StudentT(2.0, 0.2), pgm.GP(pgm.RBF(20.0, 1.0))), X, y)
    with (
        pytest.warns(pgm.CorrectionWarning, match="not positive definite"),
        pytest.warns(pgm.EvidenceWarning, match=r"k-hat of the weights is .* above 0\.70"),
    ):
        evidence = pgm.log_evidence(result)
    assert not evidence.is_reliable
    assert "not reliable (4000 draws of q, whose linear response is not a covariance)" in str(evidence)


def test_wrong_calls_are_refused_log_evidence():
    model, X, y = log_evidence_labels(2)
    result = pgm.cavi(model, X, y)
    with pytest.raises(ValueError, match=r"result must be a result of cavi, gaussian_vi, fit or correct; got Model"):
        pgm.log_evidence(model)
    with pytest.raises(ValueError, match=r"num_draws must be a whole number >= 100; got 10\."):
        pgm.log_evidence(result, num_draws=10)
