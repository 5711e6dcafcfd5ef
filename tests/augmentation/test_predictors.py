"""Formulas that combine latents, against dense twins: explicit matrices, and one GP with the sum of the kernels."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import LogNormal

import pgmodels as pgm
from pgmodels.diagnostics.compare import pareto_k
from pgmodels.diagnostics.diagnose import augmentation_gap
from pgmodels.diagnostics.vsbc import auxiliary_means
from pgmodels.inference.bound import MarginalBound
from pgmodels.parameters.vector import trainable
from tests.covering import some
from tests.referees import sigma

RNG = np.random.default_rng(0)
N = 14
X = np.column_stack([RNG.uniform(-2.0, 2.0, N), RNG.uniform(-1.0, 1.0, N), RNG.integers(0, 3, N)])
X_NEW = np.column_stack([RNG.uniform(-2.0, 2.0, 5), RNG.uniform(-1.0, 1.0, 5), RNG.integers(0, 3, 5)])
LABELS = (RNG.random(N) < sigma(0.4 + np.sin(2 * X[:, 0]) + X[:, 2] - 1.0)).astype(float)
SLOPES = RNG.normal(0.5, 1.0, N)


@pgm.likelihood(support=pgm.Binary())
def additive(y, f):
    z = f[0] + f[1] + f[2]
    return pgm.sigmoid(z) ** y * pgm.sigmoid(-z) ** (1 - y)


@pgm.likelihood(support=pgm.Binary())
def single(y, f):
    return pgm.sigmoid(f) ** y * pgm.sigmoid(-f) ** (1 - y)


@pgm.likelihood
def varying(y, f):
    z = f[0] + y[1] * f[1] - 0.3
    return pgm.sigmoid(z) ** y[0] * pgm.sigmoid(-z) ** (1 - y[0])


@pgm.likelihood
def shared(y, f):
    return (
        pgm.sigmoid(f[0] + f[1]) ** y[0] * pgm.sigmoid(-f[0] - f[1]) ** (1 - y[0]) * pgm.exp(-0.5 * (y[1] - f[0]) ** 2)
    )


KERNELS = [pgm.On(pgm.RBF(1.5, 0.8), [0]), pgm.On(pgm.Matern32(1.0, 0.6), [1]), pgm.On(pgm.White(0.5), [2])]
SUM = KERNELS[0] + KERNELS[1] + KERNELS[2]
MEANS = (0.2, -0.5, 0.0)


def model_of(name):
    gps = [pgm.GP(kernel, mean=mean) for kernel, mean in zip(KERNELS, MEANS, strict=True)]
    return {
        "additive": lambda: pgm.Model(additive(), gps),
        "single": lambda: pgm.Model(single(), pgm.GP(SUM, mean=sum(MEANS))),
        "varying": lambda: pgm.Model(varying(), gps[:2]),
        "shared": lambda: pgm.Model(shared(), gps[:2]),
    }[name]()


def observed(name):
    return LABELS if name in ("additive", "single") else np.column_stack([LABELS, SLOPES])


@cache
def fitted(name):
    return pgm.cavi(model_of(name), X, observed(name), tolerance=1e-13)


def design(name):
    """Φ of each datum, (n, P, L)."""
    if name == "additive":
        return np.ones((N, 1, 3))
    if name == "varying":
        return np.stack([np.ones(N), SLOPES], axis=1)[:, None]
    return np.broadcast_to(np.array([[1.0, 1.0], [1.0, 0.0]]), (N, 2, 2))


def joint(name, inputs):
    """The prior mean and covariance of all latents at inputs, ordered by latent."""
    size = design(name).shape[2]
    K = np.zeros((size * len(inputs),) * 2)
    for latent, kernel in enumerate(KERNELS[:size]):
        block = slice(latent * len(inputs), (latent + 1) * len(inputs))
        K[block, block] = kernel(inputs, inputs)
    return np.repeat(MEANS[:size], len(inputs)), K


def sites_of(name, m, v):
    """Polya-Gamma sites, and the Gaussian site of the second predictor, independent of the package."""
    z, s = m[:, 0], v[:, 0] + m[:, 0] ** 2
    shift = -0.3 if name == "varying" else 0.0
    c = np.sqrt(s + 2 * shift * z + shift**2)
    w = np.tanh(c / 2) / (2 * c)
    h = LABELS - 0.5 - w * shift
    if name != "shared":
        return h[:, None], w[:, None]
    return np.stack([h, SLOPES], axis=1), np.stack([w, np.ones(N)], axis=1)


@pytest.mark.parametrize("name", some(["additive", "varying", "shared"], "varying"))
def test_cavi_is_the_fixed_point_of_dense_matrices(name):
    vi, Phi = fitted(name), design(name)
    mu, K = joint(name, np.concatenate([X, X_NEW]))
    size, rows = Phi.shape[2], N + len(X_NEW)
    at_data = (np.arange(size)[:, None] * rows + np.arange(N)).ravel()
    # F maps all latents to the predictors at the data, datum after datum.
    F = np.zeros((N, Phi.shape[1], size, rows))
    F[np.arange(N), :, :, np.arange(N)] = Phi
    F = F.reshape(-1, size * rows)
    m, v = np.zeros((N, Phi.shape[1])), np.ones((N, Phi.shape[1]))
    for _ in range(300):
        h, w = (part.ravel() for part in sites_of(name, m, v))
        S = K - K @ F.T @ np.linalg.solve(np.diag(1 / w) + F @ K @ F.T, F @ K)
        mean = mu + S @ F.T @ (h - w * (F @ mu))
        m, v = (F @ mean).reshape(m.shape), np.einsum("ia,ab,ib->i", F, S, F).reshape(m.shape)
    # The iteration by explicit matrices, to rounding over the smallest 1 / w.
    np.testing.assert_allclose(vi.mean, mean[at_data].reshape(size, N).T, atol=1e-6)
    np.testing.assert_allclose(vi.variance, np.diag(S)[at_data].reshape(size, N).T, atol=1e-6)
    mean_new, variance_new = vi.predict_latent(X_NEW)
    new = (np.arange(size)[:, None] * rows + N + np.arange(len(X_NEW))).ravel()
    np.testing.assert_allclose(mean_new, mean[new].reshape(size, -1).T, atol=1e-6)
    np.testing.assert_allclose(variance_new, np.diag(S)[new].reshape(size, -1).T, atol=1e-6)
    assert np.all(np.diff(vi.elbo_trace) > -1e-10)


def test_an_additive_predictor_is_one_gp_with_the_sum_of_the_kernels():
    vi, twin = fitted("additive"), fitted("single")
    np.testing.assert_allclose(vi.elbo, twin.elbo, rtol=1e-10)
    np.testing.assert_allclose(vi.mean.sum(axis=1), twin.mean[:, 0], atol=1e-8)
    np.testing.assert_allclose(vi.predict(X_NEW).probabilities, twin.predict(X_NEW).probabilities, atol=1e-8)
    y = np.array([1.0, 0.0, 0.0, 1.0, 1.0])
    np.testing.assert_allclose(vi.predict(X_NEW).log_density(y), twin.predict(X_NEW).log_density(y), atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["linear_response", "perturbative"])
def test_the_correction_of_a_sum_is_the_sum_of_the_corrections(method):
    fixed, twin = (pgm.correct(fitted(name), method=method) for name in ("additive", "single"))
    np.testing.assert_allclose(fixed.mean.sum(axis=1), twin.mean[:, 0], atol=1e-8)
    new, other = fixed.predict_latent(X_NEW)[0], twin.predict_latent(X_NEW)[0]
    np.testing.assert_allclose(new.sum(axis=1), other[:, 0], atol=1e-8)
    # Variances of the latents by themselves add up to more or less than that of their sum; its predictions do not.
    np.testing.assert_allclose(fixed.predict(X_NEW).probabilities, twin.predict(X_NEW).probabilities, atol=1e-8)


@pytest.mark.slow
def test_the_learned_bound_and_its_gradient_are_those_of_one_gp():
    with jax.enable_x64(True):
        values, gradients = [], []
        for name in ("additive", "single"):
            objective = MarginalBound.of(trainable(model_of(name).resolve(X)), pgm.model.Data(X, LABELS))
            point = objective.at(objective.learnable.start())
            values.append(point.value)
            gradients.append(dict(zip(objective.learnable.names, point.slope, strict=True)))
    separate, summed = gradients
    twins = ("RBF", "Matern32", "White")
    # The jitter of the roots, 1e-8 of the variance, and the tolerance of the inner ascent, 1e-11.
    np.testing.assert_allclose(values[0], values[1], rtol=1e-7)
    assert len(separate) == 8
    for name, gradient in separate.items():
        twin = "mean" if name.endswith("mean") else name.replace(name[:4], twins[int(name[2])])
        np.testing.assert_allclose(gradient, summed[twin], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_predictions_of_a_varying_coefficient_integrate_over_its_predictor():
    vi, slopes = fitted("varying"), np.array([0.3, -1.0, 2.0, 0.0, 1.1])
    y = np.column_stack([[1.0, 0.0, 1.0, 1.0, 0.0], slopes])
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        mean, V = map(np.asarray, vi.posterior.marginals_at(jnp.asarray(X_NEW)))
    f = mean + np.einsum("mlk,smk->sml", np.linalg.cholesky(V), rng.normal(size=(40_000, 5, 2)))
    p = sigma(f[..., 0] + slopes * f[..., 1] - 0.3)
    p = np.where(y[:, 0] == 1, p, 1 - p)
    with pytest.warns(pgm.PredictionWarning, match="not known to be a normalised"):
        got = np.exp(vi.predict(X_NEW, covariates=slopes).log_density(y))
    # 4.5 standard errors of 40,000 draws.
    np.testing.assert_array_less(np.abs(got - p.mean(axis=0)), 4.5 * p.std(axis=0) / 200.0)
    with pytest.warns(pgm.PredictionWarning):
        without = np.exp(vi.predict(X_NEW).log_density(y))
    # By quasi-random points in two dimensions, to the 1e-3 at which they are taken as the integral.
    np.testing.assert_allclose(without, got, rtol=3e-3)


@pytest.mark.slow
def test_gibbs_of_a_sum_of_latents_is_that_of_one_gp():
    sizes = {"num_samples": 1500, "num_warmup": 100, "num_chains": 2, "seed": 3, "progress": False}
    draws, twin = (pgm.gibbs(model_of(name), X, LABELS, **sizes) for name in ("additive", "single"))
    total = draws.latents.sum(axis=-1)
    # Nearly independent draws: five standard errors of a difference of 3,000 draws each, of the 1.3 times that is left.
    error = 1.3 * np.sqrt(2 * twin.variance[:, 0] / 3000)
    assert (np.abs(total.mean(axis=(0, 1)) - twin.mean[:, 0]) < 5 * error).all()
    assert (np.abs(total.var(axis=(0, 1)) / twin.variance[:, 0] - 1) < 5 * 1.3 * np.sqrt(4 / 3000)).all()


@pytest.mark.slow
def test_sampled_hyperparameters_of_a_combined_predictor():
    gps = [pgm.GP(pgm.On(pgm.RBF(LogNormal(0.0, 0.5), 0.8), [0])), pgm.GP(pgm.On(pgm.White(0.5), [2]))]
    model = pgm.Model(varying(), gps)
    draws = pgm.gibbs(model, X, observed("varying"), num_samples=20, num_warmup=10, num_chains=1, progress=False)
    assert np.isfinite(draws.latents).all()
    assert list(draws.hyperparameters) == ["f[0].variance"]


def test_what_multiplies_must_not_share_latents():
    @pgm.likelihood
    def crossed(y, f):
        z = f[0] + f[1]
        return pgm.sigmoid(f[0]) ** 0.5 * pgm.exp(-0.5 * pgm.sigmoid(f[0]) * (y - z) ** 2)

    model = pgm.Model(crossed(), [pgm.GP(pgm.RBF(1.0, 1.0)), pgm.GP(pgm.RBF(1.0, 1.0))])
    with pytest.raises(pgm.NoAugmentationError, match=r"share f\[0\]"):
        pgm.cavi(model, X, LABELS)


def test_a_vector_of_latents_beside_a_combination_is_refused():
    @pgm.likelihood
    def mixed(y, f):
        return pgm.sigmoid(f[0] + f[1]) * pgm.prod(pgm.sigmoid(f))

    with pytest.raises(pgm.NoAugmentationError, match="by their number"):
        pgm.cavi(pgm.Model(mixed(), pgm.GP(pgm.RBF(1.0, 1.0), size=2)), X, LABELS)


@pytest.mark.slow
def test_diagnostics_see_the_predictor():
    vi, twin = fitted("additive"), fitted("single")
    for ours, theirs in zip(augmentation_gap(vi), augmentation_gap(twin), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-7)
    np.testing.assert_allclose(auxiliary_means(vi)["ω"], auxiliary_means(twin)["ω"], atol=1e-8)
    np.testing.assert_allclose(pareto_k(vi), 0.2, atol=0.5)
    both = augmentation_gap(fitted("shared"))
    # The Gaussian factor loses nothing: the gap is that of the first predictor alone, by one-dimensional quadrature.
    m, v = fitted("shared").predictor_moments()
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    z = m[:, :1] + np.sqrt(v[:, :1]) * nodes
    log_p = LABELS[:, None] * np.log(sigma(z)) + (1 - LABELS[:, None]) * np.log(sigma(-z))
    c = np.sqrt(m[:, 0] ** 2 + v[:, 0])
    bound = (LABELS - 0.5) * m[:, 0] - np.log(2 * np.cosh(c / 2))
    expected = log_p @ weights / np.sqrt(2 * np.pi) - bound
    np.testing.assert_array_less(np.abs(both.value - expected), 5 * both.error + 1e-6)


def test_the_derivation_names_the_predictors():
    derivation = pgm.derive(model_of("varying"))
    text = str(derivation)
    assert "where z = f[0] + y[1] f[1]" in text
    assert "ω | f, y ~ PG(1, z - 0.3)" in text
    edges = str(derivation.graph).split("Edges")[1]
    assert edges.count("→ z") == 2
    derivation.verify(seed=0, y=np.array([[1.0, 0.7], [0.0, -1.2]]))


def test_predictors_that_share_latents_are_not_gaussian_one_by_one():
    text = str(pgm.derive(model_of("shared")))
    # The arithmetic of the dense twin above.
    assert "f[0], f[1] | ω, y ~ N(V (Φ^T h + K^-1 μ), V),  V = (K^-1 + Φ^T diag(w) Φ)^-1" in text
    assert "q(f) = N(M, V),  m = Φ M,  v = diag(Φ V Φ^T)" in text
    assert "ELBO = Σ_i B_i - KL(N(M, V) ‖ N(μ, K))" in text
