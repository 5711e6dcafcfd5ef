"""The uncertainty of learned parameters, against fresh runs at other parameters, closed forms and Monte Carlo."""

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy.stats import multivariate_normal, norm

import pgmodels as pgm
from pgmodels.parameters.vector import trainable
from tests.covering import some

N = 24
RNG = np.random.default_rng(5)
X = np.sort(RNG.uniform(-2.0, 2.0, (N, 1)), axis=0)
F = 1.0 + 1.5 * np.sin(2.0 * X[:, 0])
COUNTS = RNG.poisson(np.exp(F)).astype(float)
LABELS = (RNG.random(N) < 1.0 / (1.0 + np.exp(1.0 - F))).astype(float)
CLASSES = np.arange(N) % 3.0
NUMBERS = F + 0.4 * RNG.normal(size=N)
NEW = np.array([[-2.5], [0.3], [1.7]])


def gp(form=None, mean=0.4, size=1):
    kernel = pgm.Matern32(dist.LogNormal(0.0, 1.0), dist.LogNormal(0.0, 0.5))
    return pgm.GP(kernel, mean=mean, size=size, **({} if form is None else {"form": form}))


CASES = {
    "counts": (pgm.NegativeBinomial(pgm.Parameter(4.0, prior=dist.LogNormal(1.0, 1.0))), gp(), COUNTS),
    "Markov": (pgm.Bernoulli(), gp(pgm.Markov()), LABELS),
    "inducing": (pgm.Bernoulli(), gp(pgm.Inducing(6)), LABELS),
    "Hilbert": (pgm.Bernoulli(), gp(pgm.Hilbert(60)), LABELS),
    "classes": (pgm.Softmax(3), gp(size=3), CLASSES),
    "varying noise": (pgm.HeteroscedasticGaussian(pgm.Fixed(8.0)), [gp(), gp(mean=pgm.Fixed(-1.0))], NUMBERS),
}


def differences(result, h=0.01):
    """The derivatives of the means at NEW in each unconstrained parameter, by runs to convergence at other values."""
    learned = trainable(result.model)
    engine = pgm.gaussian_vi if result.objective == "expected" else pgm.cavi
    t, derivatives = learned.start(), []
    for e in h * np.eye(len(t)):
        means = []
        for vector in (t + e, t - e):
            model = learned.with_values([np.asarray(value) for value in learned.constrain(vector)])
            if result.objective == "mean_field":
                run = pgm.vi(model, result.X, result.y, objective="mean_field", tolerance=1e-13, progress=False)
            else:
                run = engine(model, result.X, result.y, tolerance=1e-13, progress=False)
            means.append(run.predict_latent(NEW)[0])
        derivatives.append((means[0] - means[1]) / (2.0 * h))
    return np.array(derivatives)


@pytest.mark.parametrize("name", some(CASES, "counts", "Markov"))
def test_means_move_with_the_parameters_as_fresh_runs_do(name):
    likelihood, gps, y = CASES[name]
    result = pgm.fit(pgm.Model(likelihood, gps), X, y, progress=False)
    assert result.fit.intervals == "by the delta method"
    root = result.uncertainty.root
    expected = np.tensordot(root.T, differences(result), axes=1)
    # Central differences of means: second order in steps of 0.01 and 0.02.
    np.testing.assert_allclose(result.shifts_at(NEW), expected, atol=2e-3 * np.abs(expected).max())
    added = np.einsum("kml,kmj->mlj", expected, expected)
    variance = result.conditional.predict_latent(NEW)[1] + np.diagonal(added, axis1=1, axis2=2)
    np.testing.assert_allclose(result.predict_latent(NEW)[1], variance, rtol=5e-3)


def test_the_curvature_is_that_of_the_exact_evidence_with_priors():
    scale, variance = dist.LogNormal(-1.0, 0.7), dist.Gamma(2.0, 1.0)
    kernel = pgm.RBF(variance, pgm.Parameter(0.8))
    model = pgm.Model(pgm.Gaussian(pgm.Parameter(0.5, prior=scale)), pgm.GP(kernel, mean=0.7))
    result = pgm.fit(model, X, NUMBERS, progress=False)
    learned = trainable(result.model)
    assert learned.names == ["scale", "variance", "lengthscale", "mean"]

    def log_density(t):
        s, v, length = np.exp(t[:3])
        K = v * np.exp(-0.5 * (X - X.T) ** 2 / length**2) + s**2 * np.eye(N)
        # A lengthscale and a mean without a prior have no Jacobian.
        prior = norm.logpdf(t[0], -1.0, 0.7) + np.log(v) - v + t[1]
        return multivariate_normal.logpdf(NUMBERS, np.full(N, t[3]), K) + prior

    t, h = learned.start(), 1e-3
    E = h * np.eye(4)
    signs = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
    H = [[sum(a * b * log_density(t + a * d + b * e) for a, b in signs) / (4 * h**2) for d in E] for e in E]
    root = result.uncertainty.root
    np.testing.assert_allclose(root @ root.T, np.linalg.inv(-np.array(H)), rtol=5e-3, atol=1e-4)
    table = result.summary()
    # A lognormal variable.
    spread = np.linalg.norm(root[1])
    np.testing.assert_allclose(table.loc["variance", "mean"], np.exp(t[1] + 0.5 * spread**2), rtol=1e-2)
    ends = np.exp(t[1] + spread * norm.ppf([0.055, 0.945]))
    np.testing.assert_allclose(table.loc["variance", ["eti89_lb", "eti89_ub"]], ends, rtol=1e-2)


def test_ordered_grades_have_the_width_that_their_cut_points_give():
    x = np.r_[np.zeros(30), np.ones(30)].astype(int)
    grades = np.array(list("abc"))[np.r_[np.repeat([0, 1, 2], 10), np.repeat([0, 1, 2], [4, 8, 18])]]
    result = pgm.formula("y ~ x", pd.DataFrame({"x": x, "y": grades}), family="cumulative").fit(progress=False)
    # By polr's expected information, and by a long run: 0.503 and 0.504; 0.366 with cut-points held.
    np.testing.assert_allclose(result.summary().loc["x", "sd"], 0.503, atol=0.015)
    assert result.result.conditional.predict_latent(np.array([[1.0]]))[1][0, 0] ** 0.5 < 0.4


def test_draws_and_predictions_are_joint_in_parameters_and_latents():
    likelihood, gps, y = CASES["counts"]
    result = pgm.fit(pgm.Model(likelihood, gps), X, y, progress=False)
    nodes = result.joint_nodes(NEW, 20_000, 3)
    mean, variance = result.predict_latent(NEW)
    np.testing.assert_allclose(nodes.draws.var(axis=0), variance, rtol=0.05)
    np.testing.assert_allclose(nodes.draws.mean(axis=0), mean, atol=4.0 * np.sqrt(variance.max() / 20_000))
    f, dispersion = nodes.draws[:, :, 0], nodes.values["dispersion"][:, 0]
    # E y = dispersion exp(f) is correlated: each alone has a wide distribution.
    between = np.corrcoef(np.log(dispersion[:, 0]), f[:, 1])[0, 1]
    assert between < -0.5
    np.testing.assert_allclose(np.median(result.marginal_nodes(NEW, 20_000).draws, axis=0), mean, atol=0.05)
    predicted = result.predict(NEW)
    np.testing.assert_allclose(predicted.mean[1], np.mean(dispersion * np.exp(f), axis=0)[1], rtol=0.03)
    assert predicted.variance[1] > result.conditional.predict(NEW).variance[1]


def test_the_uncertainty_is_left_out_with_its_reason():
    model = pgm.Model(pgm.Bernoulli(), gp())
    uncorrected = pgm.fit(model, X, LABELS, correct=False, progress=False)
    assert uncorrected.fit.intervals == "none, with correct=False"
    assert uncorrected.uncertainty is None
    assert np.isnan(uncorrected.summary()["sd"]).all()
    # A variance of 0 maximises the bound: it stays, and the mean has its interval.
    alternating = pgm.Model(pgm.Gaussian(1.0), pgm.GP(pgm.RBF(1.0, pgm.Fixed(0.7)), mean=0.0))
    with pytest.warns(pgm.FitWarning, match="do not determine variance"):
        flat = pgm.fit(alternating, X, np.tile([1.0, -1.0], N // 2) + 3.0, progress=False)
    assert flat.fit.values["variance"] < 1e-3
    sds = flat.summary()["sd"]
    assert np.isnan(sds["variance"])
    assert np.isclose(sds["mean"], N**-0.5, rtol=0.02)


def test_a_file_and_arviz_have_the_uncertainty(tmp_path):
    result = pgm.fit(pgm.Model(pgm.Bernoulli(), gp()), X, LABELS, progress=False)
    again = pgm.load(result.save(tmp_path / "fit.npz"))
    np.testing.assert_array_equal(again.predict_latent(NEW)[1], result.predict_latent(NEW)[1])
    np.testing.assert_allclose(again.conditional.variance, result.conditional.variance)
    tree = result.to_arviz(4000, seed=2)
    posterior = tree["posterior"]
    np.testing.assert_allclose(posterior["f"].values[0].var(axis=0), result.variance, rtol=0.12)
    root = result.uncertainty.root
    logs = np.log(np.stack([posterior[name].values[0] for name in ("variance", "lengthscale")]))
    np.testing.assert_allclose(np.cov(logs), (root @ root.T)[:2, :2], rtol=0.1, atol=0.02)
    # The correlation of parameters and latents.
    between = np.mean((logs[0] - logs[0].mean())[:, None] * posterior["f"].values[0][:, :, 0], axis=0)
    np.testing.assert_allclose(between, result.uncertainty.shifts[:, :, 0].T @ root[0], atol=0.05)


@pytest.mark.parametrize("added", [0.0, 1e-6, 0.01, 2.0])
def test_a_density_plus_a_normal_variable(added):
    from pgmodels.results.result import GRID, GridDensity

    location, scale = np.array([[1.0], [-2.0]]), np.array([[0.5], [2.0]])
    # An exponential variable, cut off at five.
    logs = np.where(GRID > -2.0, -(GRID + 2.0), -60.0)
    skewed = GridDensity(location, scale, np.broadcast_to(logs, (2, 1, len(GRID))))
    wider = skewed.widened(np.array([[added], [added]]))
    np.testing.assert_allclose(wider.mean, skewed.mean, atol=2e-3)
    np.testing.assert_allclose(wider.variance, skewed.variance + added, rtol=0.01)
    third = skewed.skewness * skewed.variance**1.5
    np.testing.assert_allclose(wider.skewness * wider.variance**1.5, third, rtol=0.03)
