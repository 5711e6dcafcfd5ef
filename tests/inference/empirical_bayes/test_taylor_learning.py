"""vi-Taylor: its approximate bound against dense algebra, and the hyperparameters where it ends."""

from dataclasses import replace

import numpy as np
import numpyro.distributions as dist
import pytest
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

import pgmodels as pgm
from pgmodels.inference import fit_schemes as local_parameters
from pgmodels.inference import fit_schemes as schemes
from pgmodels.inference.bound import MarginalBound
from pgmodels.inference.fit_schemes import LocalParameters, sweep, value_and_slopes
from pgmodels.inference.objectives import objective_of
from pgmodels.model import Data
from pgmodels.parameters.vector import trainable
from pgmodels.priors.base import pad_rows
from pgmodels.runtime.precision import as_array
from tests.covering import some

pytestmark = pytest.mark.usefixtures("double_precision")

RNG = np.random.default_rng(11)
N = 70
X = RNG.normal(size=(N, 2)) * np.array([1.0, 2.0])
F = 2.0 * np.sin(1.5 * X[:, 0]) + 1.5 * np.cos(1.2 * X[:, 1]) - 1.0
LABELS = (RNG.random(N) < 1.0 / (1.0 + np.exp(-F))).astype(float)
LOGITS = np.stack([F, -F, 2.0 * np.cos(1.5 * X[:, 0] + X[:, 1])], axis=1)
CLASSES = np.argmax(LOGITS + RNG.gumbel(size=(N, 3)), axis=1).astype(float)
COUNTS = RNG.poisson(np.exp(0.5 * F)).astype(float)
NOISY = F + 0.3 * RNG.standard_t(4, N) + np.where(np.arange(N) % 30 == 3, 5.0, 0.0)
WEIGHTS = np.where(np.arange(N) % 3 == 0, 2.0, 0.5)


@pgm.likelihood(support=pgm.Counts(), num_latents=1)
def poisson(y, f):
    return pgm.exp(y * f - pgm.exp(f)) / pgm.gamma(y + 1)


def gp(mean, lengthscale=0.8, **options):
    return pgm.GP(pgm.RBF(1.5, lengthscale), mean=mean, **options)


def bernoulli(mean):
    return pgm.Model(pgm.Bernoulli(), gp(pgm.Fixed(mean)))


# Means are not zero, where wrong formulas might agree.
CASES = {
    "bernoulli": (bernoulli(-0.4), LABELS, None),
    "softmax": (pgm.Model(pgm.Softmax(3), gp(-0.4, [0.8, 1.3], size=3)), CLASSES, None),
    "poisson": (pgm.Model(poisson(), gp(0.7, [0.8, 1.3])), COUNTS, WEIGHTS),
    "student_t": (pgm.Model(pgm.StudentT(pgm.Fixed(4.0), pgm.Parameter(0.5, positive=True)), gp(0.3)), NOISY, None),
}


def bound_of(name):
    model, y, weights = CASES[name]
    _, data = model.prepare(X, y, weights)
    return MarginalBound(trainable(model), data, objective_of(model, "taylor"))


def at(bound, vector, points):
    """The approximate bound and its gradient in the hyperparameters, at expansion points."""
    padded = as_array(pad_rows(points, len(bound.family.y)))
    local = LocalParameters(padded, np.full_like(padded, -0.7))
    value, (slope, _) = value_and_slopes(bound.family, as_array(vector), bound.points(vector), local)
    return float(value), np.asarray(slope)


def expansion(name, f, scale):
    """log p(y | f), gradients and negative Hessians (n, C, C) at latents (n, C), by hand."""
    if name == "bernoulli":
        p, signs = 1.0 / (1.0 + np.exp(-f)), 2.0 * LABELS - 1.0
        return -np.log1p(np.exp(-signs * f[:, 0])), LABELS[:, None] - p, (p * (1.0 - p))[:, :, None]
    if name == "poisson":
        rate = np.exp(f)
        factorials = np.array([np.sum(np.log(np.arange(1, count + 1))) for count in COUNTS])
        return COUNTS * f[:, 0] - rate[:, 0] - factorials, COUNTS[:, None] - rate, rate[:, :, None]
    if name == "softmax":
        p = np.exp(f - f.max(axis=1, keepdims=True))
        p = p / p.sum(axis=1, keepdims=True)
        chosen = np.eye(3)[CLASSES.astype(int)]
        return np.log(np.sum(p * chosen, axis=1)), chosen - p, p[:, :, None] * np.eye(3) - p[:, :, None] * p[:, None, :]
    r, spread = NOISY[:, None] - f, 4.0 * scale**2
    constant = np.log(0.75) - np.log(2.0 * scale)  # Γ(5/2) / (Γ(2) √(4 π)) = 3 / 8
    value = constant - 2.5 * np.log1p(r[:, 0] ** 2 / spread)
    return value, 5.0 * r / (spread + r**2), (5.0 * (spread - r**2) / (spread + r**2) ** 2)[:, :, None]


def by_hand(name, bound, vector, points):
    """log Z + Σ (l - g ξ - ξ w ξ / 2) with dense matrices of all latents."""
    values = dict(zip(bound.learnable.names, map(np.asarray, bound.learnable.constrain(vector)), strict=True))
    mean, weights = values.get("mean", -0.4), CASES[name][2]
    weights, C = np.ones(N) if weights is None else weights, points.shape[1]
    d2 = np.sum(((X[:, None] - X[None]) / values["lengthscale"]) ** 2, axis=-1)
    K = np.kron(np.eye(C), values["variance"] * np.exp(-0.5 * d2) + 1e-12 * np.eye(N))
    value, g, w = expansion(name, points, values.get("scale"))
    value, g, w = weights * value, weights[:, None] * g, weights[:, None, None] * w
    W = np.zeros((C * N, C * N))
    for a in range(C):
        for b in range(C):
            W[a * N : (a + 1) * N, b * N : (b + 1) * N] = np.diag(w[:, a, b])
    xi = points.T.ravel()
    h = g.T.ravel() + W @ xi
    pull = h - W @ np.full(C * N, mean)
    # E exp(h f - f W f / 2) under f ~ N(mean, K).
    log_z = mean * np.sum(h) - 0.5 * mean**2 * np.sum(W) - 0.5 * np.linalg.slogdet(np.eye(C * N) + K @ W)[1]
    log_z += 0.5 * pull @ K @ np.linalg.solve(np.eye(C * N) + W @ K, pull)
    return log_z + np.sum(value) - np.sum(g.T.ravel() * xi) - 0.5 * xi @ W @ xi


def slope_by_hand(name, bound, vector, points, step=1e-5):
    moves = step * np.eye(len(vector))
    return np.array(
        [np.subtract(*(by_hand(name, bound, vector + sign * e, points) for sign in (1, -1))) for e in moves]
    ) / (2 * step)


def some_points(name):
    points = np.random.default_rng(2).normal(0.5, 1.0, (N, 3 if name == "softmax" else 1))
    if name in ("bernoulli", "softmax"):
        points[[2, 5], 0] = [40.0, -40.0]
    return NOISY[:, None] + 0.4 * points if name == "student_t" else points


@pytest.mark.parametrize("name", some(list(CASES), "bernoulli"))
def test_the_approximate_bound_and_its_slope(name):
    bound, points = bound_of(name), some_points(name)
    vector = bound.vector + 0.1
    value, slope = at(bound, vector, points)
    np.testing.assert_allclose(value, by_hand(name, bound, vector, points), rtol=1e-9)
    # Rounding of 1e-13 of 100 nats over 2e-5.
    np.testing.assert_allclose(slope, slope_by_hand(name, bound, vector, points), rtol=1e-6, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("coupled", [None, False])
@pytest.mark.parametrize("name", ["softmax", "student_t"])
def test_at_its_own_moments_it_is_the_evidence(name, coupled):
    """Also for independent latents, whose precisions are clipped at zero."""
    bound = bound_of(name)
    family, vector = replace(bound.family, coupled=coupled), as_array(bound.vector)
    points = bound.points(bound.vector)
    start = local_parameters.engine_of(family.objective).init(family.problem(vector, points))
    state, evidence = sweep(family, vector, points, start, 200)
    value, _ = value_and_slopes(family, vector, points, LocalParameters(*map(as_array, LocalParameters.of(state))))
    np.testing.assert_allclose(float(value), float(evidence), rtol=1e-8)


@pytest.fixture(scope="module")
def fitted():
    return pgm.fit(bernoulli(0.0), X, LABELS, objective="taylor", scheme="alternating")


def laplace(values, optimizer=None):
    kernel = ConstantKernel(float(values["variance"])) * RBF(float(values["lengthscale"]))
    return GaussianProcessClassifier(kernel, optimizer=optimizer).fit(X, LABELS).base_estimator_


def test_it_ends_where_the_explicit_slope_is_zero_and_not_at_the_maximum_of_the_evidence(fitted):
    values = fitted.fit.values
    assert fitted.converged
    assert fitted.elbo == pytest.approx(laplace(values).log_marginal_likelihood_value_, abs=1e-6)
    bound = MarginalBound(trainable(bernoulli(0.0)), Data(X, LABELS), objective_of(fitted.model, "taylor"))
    vector = np.log([values["variance"], values["lengthscale"]])
    value, slope = at(bound, vector, np.asarray(fitted.mean))
    assert value == pytest.approx(fitted.elbo, abs=1e-8)
    # A step of 1e-4 in a logarithm changes the evidence by about the tolerance.
    np.testing.assert_allclose(slope, 0.0, atol=1e-3)
    best = laplace(values, "fmin_l_bfgs_b")
    assert best.log_marginal_likelihood_value_ > fitted.elbo + 0.1
    assert best.kernel_.k2.length_scale > 1.1 * values["lengthscale"]


def test_its_result_is_as_any_other(fitted, tmp_path):
    text = " ".join(str(fitted).split())
    assert f"approximate log evidence {fitted.elbo:.4f} nats" in text
    assert "learned on Laplace's evidence, which is no bound" in text
    assert "correction none" in text
    loaded = pgm.load(fitted.save(tmp_path / "fit.npz"))
    assert str(loaded) == str(fitted)
    np.testing.assert_array_equal(loaded.predict(X[:3]).probabilities, fitted.predict(X[:3]).probabilities)


@pytest.mark.slow
def test_its_result_is_compared_with_draws(fitted):
    draws = pgm.gibbs(fitted.model.fixed(), X, LABELS, num_samples=500, num_warmup=200)
    compared = pgm.compare(taylor=fitted, gibbs=draws)
    assert "taylor" in str(compared)


def test_other_labels_do_not_compile_again(fitted):
    programs = local_parameters.value_and_slopes.cache_size() + local_parameters.sweep.cache_size()
    pgm.fit(bernoulli(-0.2), X[::-1], 1.0 - LABELS[::-1], objective="taylor", scheme="alternating")
    assert local_parameters.value_and_slopes.cache_size() + local_parameters.sweep.cache_size() == programs


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES, "inducing"])
def test_every_form_of_model_ends_where_the_slope_is_zero(name):
    if name == "inducing":
        kernel = pgm.RBF(dist.LogNormal(0.0, 1.0), dist.LogNormal(0.0, 0.5))
        model, y, weights = pgm.Model(pgm.Bernoulli(), pgm.GP(kernel, mean=0.3, form=pgm.Inducing(20))), LABELS, WEIGHTS
    else:
        model, y, weights = CASES[name]
    result = pgm.fit(model, X, y, weights=weights, objective="taylor", scheme="alternating", tolerance=1e-12)
    assert result.converged
    bound = MarginalBound(trainable(result.model), result.data, objective_of(result.model, "taylor"))
    value, slope = at(bound, bound.vector, np.asarray(result.mean))
    log_prior = float(bound.learnable.log_prior(bound.learnable.constrain(as_array(bound.vector))))
    assert value == pytest.approx(result.elbo + log_prior, abs=1e-6)
    np.testing.assert_allclose(slope, 0.0, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"objective='taylor' is learned by scheme='alternating' only, .*; got scheme='auto'"),
        ({"scheme": "hybrid"}, r"by scheme='alternating' only, .*; got scheme='hybrid'"),
        ({"scheme": "joint"}, r"by scheme='alternating' only, .*; got scheme='joint'"),
        ({"scheme": "alternating", "correct": True}, "fit with correct=True needs an objective that q maximises"),
    ],
)
def test_what_it_cannot_do_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        pgm.fit(bernoulli(0.0), X, LABELS, objective="taylor", **options)


def test_a_value_that_is_not_finite_is_an_error(monkeypatch):
    calls = []

    def failing(*arguments):
        calls.append(arguments)
        state, evidence = sweep(*arguments)
        return state, evidence if len(calls) < 3 else -np.inf

    monkeypatch.setattr(schemes, "sweep", failing)
    with pytest.raises(ValueError, match=r"Laplace's evidence is not finite after 2 steps .*objective='expected'"):
        pgm.fit(bernoulli(0.0), X, LABELS, objective="taylor", scheme="alternating")


def test_inducing_inputs_are_not_trained():
    model = pgm.Model(pgm.Bernoulli(), gp(0.0, form=pgm.Inducing(X[:20])))
    with pytest.raises(ValueError, match="fit with train_inducing=True needs an objective that q maximises"):
        pgm.fit(model, X, LABELS, objective="taylor", scheme="alternating", train_inducing=True)
