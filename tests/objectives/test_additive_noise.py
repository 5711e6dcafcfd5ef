"""The bound with additive noise (Liu et al. 2019): its value, its optimum, and the engines."""

import warnings
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions.constraints import interval
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

import pgmodels as pgm
from pgmodels.inference.objectives import additive_noise_objective, expected_objective
from pgmodels.likelihoods.expression import Constant, Environment, Observation
from pgmodels.objectives.expected import Kink, Quadrature
from pgmodels.priors import collection
from pgmodels.runtime.precision import double_precision
from tests.covering import some
from tests.referees import rbf

DELTA = pgm.Parameter(0.08, constraint=interval(0.0, 0.5))


@pgm.likelihood(support=pgm.Binary())
def without_noise(y, f, delta=DELTA):
    return delta + (1 - 2 * delta) * pgm.step((2 * y - 1) * f)


@pgm.likelihood(support=pgm.Binary())
def with_noise(y, f, delta=DELTA):
    return delta + (1 - 2 * delta) * pgm.normal_cdf((2 * y - 1) * (1.4 * f - 0.3))


@pgm.likelihood(support=pgm.Binary())
def of_a_sum(y, f, delta=DELTA):
    return delta + (1 - 2 * delta) * pgm.normal_cdf((2 * y - 1) * (f[0] + 0.5 * f[1]))


@pgm.likelihood
def noisy_classes(y, f, error=pgm.Parameter(0.1, positive=True), noise=pgm.Parameter(0.5, positive=True)):
    return (1 - error) * pgm.largest(f, y, noise) + error / 2 * (1 - pgm.largest(f, y, noise))


def objective(likelihood, size=1):
    return additive_noise_objective(pgm.Model(likelihood, pgm.GP(pgm.RBF(), size=size)))


def values(likelihood):
    return {name: float(parameter.value) for name, parameter in likelihood.parameters.items()}


def largest_by_differences(m, v, k):
    """P(f_k is the largest) of independent N(m, v), by the distribution function of the differences."""
    others = [c for c in range(len(m)) if c != k]
    covariance = np.diag(v[others]) + v[k]
    return multivariate_normal.cdf(m[k] - m[others], np.zeros(len(others)), covariance, abseps=1e-10, maxpts=10**7)


M = np.array([[0.4, -0.3, 0.9], [-1.2, 0.1, 0.3], [2.0, 1.8, -0.5], [0.0, 0.2, -0.1]])
V = np.array([[0.5, 1.4, 0.1], [0.02, 2.0, 0.7], [1.0, 1e-4, 3.0], [0.3, 0.3, 0.3]])
CLASSES = np.array([0.0, 1.0, 2.0, 1.0])


@double_precision
@pytest.mark.parametrize(
    ("likelihood", "noise", "error"),
    [(pgm.RobustMax(3, 0.1), 0.0, 0.1), (noisy_classes(), 0.5, 0.1)],
    ids=["robust_max", "noise"],
)
def test_the_bound_of_classes(likelihood, noise, error):
    terms = objective(likelihood, 3)
    got = jax.jit(terms.local_bound)(M, V, CLASSES, values(likelihood))
    S = [largest_by_differences(m, v + noise, int(y)) for m, v, y in zip(M, V, CLASSES, strict=True)]
    np.testing.assert_allclose(got, np.log(error / 2) + np.log(2 * (1 - error) / error) * np.array(S), atol=1e-8)
    assert terms.is_exact == (noise == 0)
    # Draws of the latents and the noise.
    g = np.random.default_rng(1).normal(M, np.sqrt(V + noise), (100_000, *M.shape))
    right = np.argmax(g, axis=-1) == CLASSES
    drawn = np.log(np.where(right, 1 - error, error / 2))
    # Four standard errors.
    np.testing.assert_allclose(got, drawn.mean(axis=0), atol=4 * drawn.std() / np.sqrt(len(g)))


@double_precision
@pytest.mark.parametrize("name", ["step", "probit", "sum"])
def test_binary_bounds_and_sites_in_closed_form(name):
    likelihood, scale, shift, noise = {
        "step": (without_noise(), 1.0, 0.0, 0.0),
        "probit": (with_noise(), 1.4, -0.3, 1.0),
        "sum": (of_a_sum(), 1.0, 0.0, 1.0),
    }[name]
    terms = objective(likelihood, 2 if name == "sum" else 1)
    assert terms.size == 1
    m, v, y = np.array([0.5, -1.1, 2.0, 0.1]), np.array([0.4, 1.7, 0.01, 3.0]), np.array([1.0, 1.0, 0.0, 0.0])
    sites = jax.jit(terms.local_bound_and_sites)(m[:, None], v[:, None], y, values(likelihood))
    bound, h, w = (np.asarray(part).reshape(-1) for part in sites)
    # The predictor of a sum of latents includes the sign.
    sign, odds = 1.0 if name == "sum" else 2 * y - 1, np.log(0.92 / 0.08)
    spread = noise + scale**2 * v
    z = sign * (scale * m + shift) / np.sqrt(spread)
    np.testing.assert_allclose(bound, odds * norm.cdf(z) + np.log(0.08), rtol=1e-12)
    precision = odds * norm.pdf(z) * z * scale**2 / spread
    np.testing.assert_allclose(w, precision, atol=1e-12)
    np.testing.assert_allclose(h, odds * norm.pdf(z) * sign * scale / np.sqrt(spread) + precision * m, atol=1e-12)
    assert w.min() < 0 < w.max()


@double_precision
def test_sites_of_classes_are_derivatives():
    likelihood = noisy_classes()
    terms = objective(likelihood, 3)
    h, w = jax.jit(terms.local_sites)(M, V, CLASSES, values(likelihood))

    def bound(m, v, row):
        S = largest_by_differences(m, v + 0.5, int(CLASSES[row]))
        return np.log(0.05) + np.log(18) * S

    for row, c in np.ndindex(M.shape):
        unit, step = np.eye(3)[c], 1e-3
        by_m = (bound(M[row] + step * unit, V[row], row) - bound(M[row] - step * unit, V[row], row)) / (2 * step)
        small = 0.1 * V[row, c]
        by_v = (bound(M[row], V[row] + small * unit, row) - bound(M[row], V[row] - small * unit, row)) / (2 * small)
        # Central differences of steps of a thousandth, and of a tenth of the variance beside the noise.
        np.testing.assert_allclose(h[row, c] - w[row, c] * M[row, c], by_m, atol=2e-5)
        np.testing.assert_allclose(w[row, c], -2 * by_v, atol=2e-3)
    # In rows where the class is not on top.
    assert np.min(w) < -0.1


@double_precision
def test_it_is_below_the_expected_log_density_and_not_tight_without_variance():
    # The value of a = 1, m = 0.7, v = 0.5 and an error rate of 0.05.
    m, v, y = np.array([[0.7]]), np.array([[0.5]]), np.ones(1)
    likelihood = pgm.likelihood(lambda y, f: 0.05 + 0.9 * pgm.normal_cdf((2 * y - 1) * f), support=pgm.Binary())()
    model = pgm.Model(likelihood, pgm.GP(pgm.RBF()))
    got, expected = (
        float(jax.jit(make(model).local_bound)(m, v, y, {})[0])
        for make in (additive_noise_objective, expected_objective)
    )
    assert got == pytest.approx(np.log(0.05) + np.log(19) * norm.cdf(0.7 / np.sqrt(1.5)), abs=1e-12)
    assert expected - got > 0.4


def inputs(n=24):
    return np.linspace(-2.0, 2.0, n)[:, None]


def labels():
    """The sign of a smooth function, two of them wrong."""
    y = (np.sin(2.2 * inputs()[:, 0] + 0.4) > 0).astype(float)
    y[[4, 17]] = 1 - y[[4, 17]]
    return y


def classes():
    y = np.digitize(inputs()[:, 0], [-0.6, 0.8]).astype(float)
    y[[3, 12, 20]] = [2, 0, 1]
    return y


def binary(likelihood=None, **options):
    return pgm.Model(likelihood or without_noise(), pgm.GP(pgm.RBF(2.0, 0.7), mean=0.1, **options))


def of_classes(likelihood=None, **options):
    kernels = [pgm.RBF(2.0, 0.7), pgm.RBF(1.5, 0.9), pgm.RBF(2.5, 0.8)]
    return pgm.Model(likelihood or pgm.RobustMax(3, 0.1), [pgm.GP(kernel, **options) for kernel in kernels])


@cache
def result():
    return pgm.vi(of_classes(), inputs(), classes(), objective="additive_noise")


class OneByOne(Quadrature):
    """The expected log density between kinks, whose precisions have any sign from the start."""

    takes_covariances = False


@pytest.mark.slow
def test_without_noise_it_is_the_expected_log_density_by_quadrature():
    model = binary()
    kink = Kink(2 * Observation() - 1, Constant(0.0))
    quadrature = OneByOne(model.likelihood.formula(1), 1, None, (kink,))
    options = {"tolerance": 1e-14, "max_iterations": 3000}
    closed, expected, numerical = (
        pgm.vi(model, inputs(), labels(), objective=name, **options)
        for name in ("additive_noise", "expected", quadrature)
    )
    for other in (expected, numerical):
        assert closed.elbo == pytest.approx(other.elbo, abs=1e-8)
        np.testing.assert_allclose((closed.mean, closed.variance), (other.mean, other.variance), atol=1e-8)


def log_evidence_by_draws(model, y, log_p, num_draws=400_000):
    """log p(y) and its standard error, by draws of the prior at the inputs."""
    rng, X, latents = np.random.default_rng(2), inputs()[: len(y)], []
    for gp in model.gps:
        root = np.linalg.cholesky(rbf(X, float(gp.kernel.variance.value), float(gp.kernel.lengthscale.value)))
        latents.append(float(gp.mean.value) + rng.normal(size=(num_draws, len(y))) @ root.T)
    total = log_p(np.stack(latents, axis=-1)).sum(axis=1)
    weights = np.exp(total - total.max())
    return logsumexp(total) - np.log(num_draws), weights.std() / weights.mean() / np.sqrt(num_draws)


@pytest.mark.slow
@pytest.mark.parametrize("name", some(["step", "probit", "classes"], "step"))
def test_the_elbo_is_below_the_evidence(name):
    """Of the likelihood with the same error rate."""
    n = 7
    y = (classes() if name == "classes" else labels())[:n]
    model = {"step": binary(), "probit": binary(with_noise()), "classes": of_classes()}[name]

    def log_p(f):
        if name == "classes":
            return np.log(np.where(np.argmax(f, axis=-1) == y, 0.9, 0.05))
        chance = f[..., 0] > 0 if name == "step" else norm.cdf(1.4 * f[..., 0] - 0.3)
        return np.log(0.08 + 0.84 * np.where(y == 1, chance, 1 - chance))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pgm.DataWarning)
        approximation = pgm.vi(model, inputs()[:n], y, objective="additive_noise")
    exact, error = log_evidence_by_draws(model, y, log_p)
    assert error < 0.02
    assert approximation.elbo < exact - 4 * error
    # Far below only with noise, where the bound is loose.
    assert approximation.elbo > exact - (8.0 if name == "probit" else 3.0)


def sites_at(approximation):
    with jax.enable_x64(True):
        arrays = map(jnp.asarray, (approximation.mean, approximation.variance, approximation.y))
        terms = additive_noise_objective(approximation.model)
        return terms.local_sites(*arrays, values(approximation.likelihood))


@pytest.mark.slow
def test_latents_are_independent_with_precisions_of_any_sign():
    h, w = sites_at(result())
    assert result().posterior.blocks == ((0,), (1,), (2,))
    sites = result().posterior.sites
    n = len(inputs())
    precision = np.diagonal(sites.precision, axis1=1, axis2=2)[:n]
    assert precision.min() < -0.1
    # A fixed point: by the ELBO's tolerance of 1e-9.
    np.testing.assert_allclose(precision, w, atol=1e-3)
    np.testing.assert_allclose(sites.potential[:n], h, atol=1e-3)


@pytest.mark.slow
def test_one_latent_at_a_time_is_factorised(monkeypatch):
    """Where all latents together are too many for one factorisation."""
    monkeypatch.setattr(collection, "MAX_BLOCK", 40)
    again = pgm.vi(of_classes(), inputs(), classes(), objective="additive_noise")
    assert again.posterior.blocks == ((0,), (1,), (2,))
    assert again.elbo == pytest.approx(result().elbo, abs=1e-7)


@pytest.mark.slow
def test_gaussian_vi_of_robust_max_is_the_same_optimum(tmp_path):
    expected = pgm.gaussian_vi(of_classes(), inputs(), classes())
    assert expected.objective == "expected"
    assert expected.elbo == pytest.approx(result().elbo, abs=1e-10)
    loaded = pgm.load(expected.save(tmp_path / "expected.npz"))
    assert loaded.custom_objective is None
    np.testing.assert_allclose(pgm.correct(loaded).variance, pgm.correct(result()).variance, rtol=1e-8)


@pytest.mark.slow
def test_multinomial_probit_of_two_classes_is_probit_of_the_difference():
    X, y = inputs()[:8], labels()[:8]
    pair = pgm.Model(pgm.MultinomialProbit(2), pgm.GP(pgm.RBF(2.0, 0.7), size=2))
    both, one = pgm.gaussian_vi(pair, X, y), pgm.gaussian_vi(pgm.Model(pgm.Probit(), pgm.GP(pgm.RBF(2.0, 0.7))), X, y)
    # A grid of 24 by 24 nodes against 129 in one dimension.
    assert both.elbo == pytest.approx(one.elbo, abs=1e-5)
    np.testing.assert_allclose((both.mean[:, 1] - both.mean[:, 0]) / np.sqrt(2), one.mean[:, 0], atol=1e-4)


def mean_probability(learned):
    """The mean over the data of S at the optimum."""
    terms = additive_noise_objective(learned.model)
    with jax.enable_x64(True):
        m, v, y = map(jnp.asarray, (learned.mean, learned.variance, learned.y))
        return float(jnp.mean(terms.event.probability(m, v, Environment(y, m, values(learned.likelihood)))))


@pytest.mark.slow
@pytest.mark.parametrize("size", some([1, 3], 1))
def test_the_error_rate_that_fit_learns_is_one_minus_the_mean_probability(size):
    kernel = pgm.RBF(pgm.Fixed(2.0), pgm.Fixed(0.7))
    gp = pgm.GP(kernel, mean=pgm.Fixed(0.0), size=size)
    likelihood, y = (with_noise(), labels()) if size == 1 else (pgm.RobustMax(3, 0.05), classes())
    learned = pgm.fit(
        pgm.Model(likelihood, gp), inputs(), y, objective="additive_noise", tolerance=1e-12, num_starts=1, correct=False
    )
    ((_, error),) = learned.fit.values.items()
    assert error == pytest.approx(1 - mean_probability(learned), abs=1e-5)
    assert learned.objective == "additive_noise"
    assert "Variational inference with additive noise at learned hyperparameters" in " ".join(str(learned).split())


@pytest.mark.slow
def test_svi_agrees_with_vi():
    form = pgm.Inducing(inputs()[::4])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pgm.InducingWarning)
        # Longer steps than by default: the optimum is flat, and precisions of both signs almost cancel.
        steps = pgm.svi(
            of_classes(form=form), inputs(), classes(), objective="additive_noise", batch_size=8, rate=(10.0, 0.501),
            tolerance=1e-3, max_epochs=1000,
        )  # fmt: skip
        at_once = pgm.vi(of_classes(form=form), inputs(), classes(), objective="additive_noise")
    mean, variance = steps.predict_latent(inputs())
    np.testing.assert_allclose(mean, at_once.mean, atol=0.05)
    np.testing.assert_allclose(variance, at_once.variance, rtol=0.1)


@pytest.mark.slow
def test_corrections_diagnoses_and_files_accept_it(tmp_path):
    corrected = pgm.correct(result())
    assert np.all(corrected.variance > 0)
    diagnosis = pgm.diagnose(result(), num_replicates=0, num_draws=500)
    # Without noise the bound is the expected log density.
    np.testing.assert_array_equal(diagnosis.gap, 0.0)
    loaded = pgm.load(result().save(tmp_path / "robust.npz"))
    assert loaded.objective == "additive_noise"
    np.testing.assert_allclose(pgm.correct(loaded).variance, corrected.variance, rtol=1e-9)


@pytest.mark.slow
def test_the_gap_of_the_bound_with_noise_is_positive():
    noisy = pgm.vi(binary(with_noise()), inputs(), labels(), objective="additive_noise")
    diagnosis = pgm.diagnose(noisy, num_replicates=0, num_draws=500)
    assert np.all(diagnosis.gap > 0)
    expected = expected_objective(noisy.model)
    with jax.enable_x64(True):
        arrays = map(jnp.asarray, (noisy.mean, noisy.variance, noisy.y))
        exact = jax.jit(expected.local_bound)(*arrays, values(noisy.likelihood)).sum()
        arrays = map(jnp.asarray, (noisy.mean, noisy.variance, noisy.y))
        bound = additive_noise_objective(noisy.model).local_bound(*arrays, values(noisy.likelihood)).sum()
    np.testing.assert_allclose(diagnosis.gap.sum(), exact - bound, rtol=1e-6)


def test_predictions_are_exact():
    new = np.array([[-1.3], [0.15], [2.6]])
    mean, variance = result().predict_latent(new)
    exact = np.array([[largest_by_differences(m, v, k) for k in range(3)] for m, v in zip(mean, variance, strict=True)])
    expected = 0.05 + 0.85 * exact
    np.testing.assert_allclose(result().predict(new).probabilities, expected, atol=1e-8)
    y = np.array([0.0, 2.0, 1.0])
    np.testing.assert_allclose(
        result().predict(new).log_density(y), np.log(expected[np.arange(3), y.astype(int)]), atol=1e-7
    )
    noisy = pgm.vi(binary(with_noise()), inputs(), labels(), objective="additive_noise")
    mean, variance = (part[:, 0] for part in noisy.predict_latent(new))
    z = (1.4 * mean - 0.3) / np.sqrt(1 + 1.4**2 * variance)
    np.testing.assert_allclose(noisy.predict(new).probabilities[:, 1], 0.08 + 0.84 * norm.cdf(z), atol=1e-10)


@pytest.mark.parametrize(
    ("likelihood", "size", "message"),
    [
        (pgm.Probit(), 1, r"needs a formula that is affine in one pgm.step\(z\), .*; got Φ\(f\)\^y Φ\(-f\)\^\(1 - y\)"),
        (pgm.Bernoulli(), 1, "needs a formula that is affine in one pgm.step"),
        (pgm.MultinomialProbit(3), 3, "and both outcomes possible; got largest.* 0 in one case"),
        (pgm.likelihood(lambda y, f: 0.1 + 0.8 * pgm.step(f**2 - y), support=pgm.Binary())(), 1, "z affine in the lat"),
        (pgm.likelihood(lambda y, f: 0.1 + 0.8 * pgm.step(f) * f, support=pgm.Binary())(), 1, "coefficients free of f"),
        (pgm.likelihood(lambda y, f: 0.1 + 0.8 * pgm.step(f) ** 2, support=pgm.Binary())(), 1, "affine in one pgm.ste"),
    ],
    ids=["probit", "logit", "no_error", "square", "coefficient", "power"],
)
def test_other_formulas_are_refused(likelihood, size, message):
    model = pgm.Model(likelihood, pgm.GP(pgm.RBF(), size=size))
    y = np.array([0.0, 1.0, 1.0 if size == 1 else 2.0])
    with pytest.raises(ValueError, match=f"objective='additive_noise' {message}" if "takes" in message else message):
        pgm.vi(model, inputs(3), y, objective="additive_noise")
