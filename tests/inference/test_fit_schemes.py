"""The learning schemes of Izmailov and Kropotov 2017: their bound, its gradient, and the optimum they share."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import numpyro.distributions as dist
import pytest
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

import pgmodels as pgm
from pgmodels.inference import fit_schemes as local_parameters
from pgmodels.inference import fit_schemes as schemes
from pgmodels.inference.bound import MarginalBound, Selection, choose_again
from pgmodels.inference.fit_schemes import (
    NUM_EVALUATIONS,
    SCHEMES,
    Alternating,
    LocalParameters,
    sweep,
    value_and_slopes,
)
from pgmodels.inference.objectives import objective_of
from pgmodels.inference.prepare import nearly_converged
from pgmodels.model import Data
from pgmodels.parameters.vector import trainable
from pgmodels.priors.base import pad_rows
from pgmodels.runtime.precision import as_array
from tests.covering import some
from tests.own_likelihoods import log_poisson
from tests.referees import log_normal

pytestmark = pytest.mark.usefixtures("double_precision")

RNG = np.random.default_rng(11)
N = 70
X = RNG.normal(size=(N, 2)) * np.array([1.0, 2.0])
F = 2.0 * np.sin(1.5 * X[:, 0]) + 1.5 * np.cos(1.2 * X[:, 1]) - 1.0
LABELS = (RNG.random(N) < 1.0 / (1.0 + np.exp(-F))).astype(float)
LOGITS = np.stack([F, -F, 2.0 * np.cos(1.5 * X[:, 0] + X[:, 1])], axis=1)
CLASSES = np.argmax(LOGITS + RNG.gumbel(size=(N, 3)), axis=1).astype(float)
COUNTS = RNG.poisson(10.0 / (1.0 + np.exp(-F)))


def gp(size=1, form=None):
    # Lengthscales, mean and variance are far from equal or zero, where wrong formulas might agree.
    return pgm.GP(pgm.RBF(1.5, [0.8, 1.3]), mean=-0.4, size=size, **({} if form is None else {"form": form}))


CASES = {
    "bernoulli": (pgm.Model(pgm.Bernoulli(), gp()), LABELS),
    "inducing": (pgm.Model(pgm.Bernoulli(), gp(form=pgm.Inducing(X[:40]))), LABELS),
    "logistic_softmax": (pgm.Model(pgm.LogisticSoftmax(3), gp(3)), CLASSES),
    "negative_binomial": (pgm.Model(pgm.NegativeBinomial(2.0), gp()), COUNTS),
}


def bound_of(name):
    model, y = CASES[name]
    return MarginalBound.of(trainable(model), Data(X, np.asarray(y, float)), model.augmentation)


def at(bound, vector, local):
    value, (slope, slopes) = value_and_slopes(
        bound.family, as_array(vector), bound.points(vector, bound.inputs), LocalParameters(*map(as_array, local))
    )
    return float(value), np.asarray(slope), [np.asarray(part) for part in slopes]


def some_local(bound):
    rng, shape = np.random.default_rng(2), (len(bound.family.y), bound.family.objective.size)
    return LocalParameters(rng.normal(0.5, 1.0, shape), rng.normal(-0.3, 0.5, shape))


def test_the_bound_is_that_of_jaakkola_and_jordan():
    """Against a dense matrix and the inequality written out (Izmailov and Kropotov 2017, section 4.1)."""
    bound = bound_of("bernoulli")
    local = some_local(bound)
    value, *_ = at(bound, bound.learnable.start(), local)
    c = np.sqrt(np.exp(local.log_variance[:N, 0]) + local.mean[:N, 0] ** 2)
    w = np.tanh(0.5 * c) / (2.0 * c)
    d2 = np.sum(((X[:, None] - X[None]) / np.array([0.8, 1.3])) ** 2, axis=-1)
    # sigma(y f) >= sigma(c) exp((y f - c) / 2 - w (f^2 - c^2) / 2): a Gaussian in f at pseudo-observations y / (2 w).
    C = 1.5 * np.exp(-0.5 * d2) + np.diag(1.0 / w)
    z = (LABELS - 0.5) / w
    terms = -np.log1p(np.exp(-c)) - 0.5 * c + 0.5 * w * c**2 + 0.5 * np.log(2.0 * np.pi / w) + 0.5 * w * z**2
    np.testing.assert_allclose(value, log_normal(z + 0.4, C) + np.sum(terms), rtol=1e-10)


@pytest.mark.parametrize("name", some(["logistic_softmax", "negative_binomial"], "negative_binomial"))
def test_gradients_of_the_bound_are_finite_differences(name):
    bound = bound_of(name)
    local, vector, step = some_local(bound), bound.learnable.start() + 0.1, 1e-5
    _, slope, slopes = at(bound, vector, local)
    for i in range(len(vector)):
        e = step * np.eye(len(vector))[i]
        difference = (at(bound, vector + e, local)[0] - at(bound, vector - e, local)[0]) / (2.0 * step)
        # Rounding of the bound, about 1e-13 of 100 nats, over 2e-5, and the third derivative times 1e-10.
        np.testing.assert_allclose(slope[i], difference, rtol=1e-6, atol=1e-6)
    for part in range(2):
        for row, column in [(0, 0), (N - 1, bound.family.objective.size - 1)]:
            values = []
            for sign in (1.0, -1.0):
                moved = [np.array(each) for each in local]
                moved[part][row, column] += sign * step
                values.append(at(bound, vector, moved)[0])
            np.testing.assert_allclose(slopes[part][row, column], np.diff(values[::-1]) / (2.0 * step), atol=1e-6)


@pytest.mark.parametrize("name", some(["inducing", "logistic_softmax", "negative_binomial"], "logistic_softmax"))
def test_plain_sweeps_end_at_the_optimum_of_cavi_where_the_bound_touches_the_elbo(name):
    bound = bound_of(name)
    vector = bound.learnable.start()
    points = bound.points(vector, bound.inputs)
    state, elbo = sweep(bound.family, as_array(vector), points, bound.initial(vector, points), 300)
    model, y = CASES[name]
    np.testing.assert_allclose(float(elbo), pgm.cavi(model.fixed(), X, y, tolerance=1e-12).elbo, rtol=1e-8)
    best = LocalParameters.of(state)
    np.testing.assert_allclose(at(bound, vector, best)[0], float(elbo), rtol=1e-9)
    rng = np.random.default_rng(5)
    for scale in (0.1, 1.0, 3.0):
        # Below the ELBO elsewhere.
        elsewhere = LocalParameters(*(part + scale * rng.normal(size=part.shape) for part in best))
        assert at(bound, vector, elsewhere)[0] < float(elbo)


@pytest.mark.slow
@pytest.mark.parametrize("name", some(list(CASES), "bernoulli"))
def test_all_schemes_reach_the_optimum_of_fit(name):
    model, y = CASES[name]
    best = pgm.fit(model, X, y, objective="augmented", correct=False)
    for scheme in SCHEMES:
        fitted = pgm.fit(model, X, y, scheme=scheme, correct=False, max_iterations=2000)
        assert fitted.converged
        assert fitted.objective == "augmented"
        np.testing.assert_allclose(fitted.elbo, best.elbo, rtol=1e-4)
        for value, other in zip(fitted.fit.values.values(), best.fit.values.values(), strict=True):
            # The bound is flat to the tolerance within about a hundredth of a posterior deviation.
            np.testing.assert_allclose(value, other, rtol=0.02, atol=0.01)


@pytest.mark.slow
def test_schemes_do_not_depend_on_the_units_of_y():
    y = F + 0.3 * np.random.default_rng(3).standard_t(4, N)
    elbos = []
    for unit in (1.0, 1000.0):
        scale, kernel = pgm.Parameter(0.5 * unit, positive=True), pgm.RBF(1.5 * unit**2, [0.8, 1.3])
        model = pgm.Model(pgm.StudentT(pgm.Fixed(4.0), scale), pgm.GP(kernel, mean=-0.4 * unit))
        for scheme in ("alternating", "hybrid"):
            fitted = pgm.fit(model, X, unit * y, scheme=scheme, correct=False, max_iterations=2000)
            elbos.append(fitted.elbo + N * np.log(unit))
    np.testing.assert_allclose(elbos, elbos[0], rtol=1e-6)


@pytest.mark.slow
def test_alternating_learns_a_likelihood_that_multiplies_latents():
    y = F + RNG.normal(size=N) * np.exp(0.6 * np.sin(X[:, 0]))
    model = pgm.Model(pgm.HeteroscedasticGaussian(1.0), [gp(), pgm.GP(pgm.RBF(pgm.Fixed(1.0), pgm.Fixed(1.5)))])
    one, other = (
        pgm.fit(model, X, y, objective="augmented", scheme=scheme, correct=False, max_iterations=2000)
        for scheme in ("auto", "alternating")
    )
    np.testing.assert_allclose(one.elbo, other.elbo, rtol=1e-4)
    with pytest.raises(ValueError, match=r"scheme='hybrid' .*2 blocks.*'alternating'"):
        pgm.fit(model, X, y, scheme="hybrid")


def test_the_trace_of_alternations_rises_and_the_result_is_as_any_other(tmp_path):
    model, y = CASES["bernoulli"]
    elbos, seconds, means = [], [], []

    def record(state, info):
        elbos.append(info.elbo)
        seconds.append(info.seconds)
        means.append(np.asarray(state.mean)[:N])
        assert set(info.values) == set(trainable(model).names)

    fitted = pgm.fit(model, X, y, scheme="alternating", correct=True, callback=record)
    # Sweeps and steps never lower the bound.
    assert np.all(np.diff(elbos) > -1e-9)
    assert np.all(np.diff(seconds) > 0.0)
    assert fitted.uncorrected.elbo >= elbos[-1] - 1e-9
    np.testing.assert_allclose(means[-1], fitted.uncorrected.mean, atol=1e-3)
    fitted.save(tmp_path / "fit.npz")
    np.testing.assert_array_equal(
        pgm.load(tmp_path / "fit.npz").predict(X[:3]).probabilities, fitted.predict(X[:3]).probabilities
    )


def test_a_step_evaluates_the_bound_at_most_five_times(monkeypatch):
    counts, move = [], Alternating._moved

    def counted(scheme, point):
        before = scheme.num_evaluations
        vector = move(scheme, point)
        counts.append(scheme.num_evaluations - before)
        return vector

    monkeypatch.setattr(Alternating, "_moved", counted)
    with pytest.warns(pgm.ConvergenceWarning, match="all iterations after 3 steps"):
        pgm.fit(CASES["bernoulli"][0], X, LABELS, scheme="alternating", max_iterations=3)
    assert len(counts) == 3
    assert 1 < max(counts) <= NUM_EVALUATIONS


@pytest.mark.parametrize("scheme", ["joint", pytest.param("alternating", marks=pytest.mark.slow)])
def test_other_labels_do_not_compile_again(scheme):
    model, y = CASES["bernoulli"]
    pgm.fit(model, X, y, scheme=scheme, correct=False, max_iterations=500)
    programs = local_parameters.value_and_slopes.cache_size() + local_parameters.sweep.cache_size()
    pgm.fit(model, X[::-1], 1.0 - y[::-1], scheme=scheme, correct=False, max_iterations=500)
    assert local_parameters.value_and_slopes.cache_size() + local_parameters.sweep.cache_size() == programs


def test_wrong_calls_name_the_argument_and_the_remedy():
    model, y = CASES["bernoulli"]
    with pytest.raises(
        ValueError, match=r"scheme must be one of 'auto', 'alternating', 'hybrid', 'joint'; got 'vi-JJ'"
    ):
        pgm.fit(model, X, y, scheme="vi-JJ")
    with pytest.raises(ValueError, match=r"num_starts=3 has no effect with scheme='joint'"):
        pgm.fit(model, X, y, scheme="joint", num_starts=3)
    with pytest.raises(ValueError, match=r"scheme='joint' needs .* got 'expected'.*objective='augmented'"):
        pgm.fit(model, X, y, scheme="joint", objective="expected")


# vi-Taylor: its approximate bound against dense algebra, and the hyperparameters where it ends.


TAYLOR_RNG = deepcopy(RNG)
TAYLOR_COUNTS = TAYLOR_RNG.poisson(np.exp(0.5 * F)).astype(float)
NOISY = F + 0.3 * TAYLOR_RNG.standard_t(4, N) + np.where(np.arange(N) % 30 == 3, 5.0, 0.0)
WEIGHTS = np.where(np.arange(N) % 3 == 0, 2.0, 0.5)


def taylor_gp(mean, lengthscale=0.8, **options):
    return pgm.GP(pgm.RBF(1.5, lengthscale), mean=mean, **options)


def bernoulli(mean):
    return pgm.Model(pgm.Bernoulli(), taylor_gp(pgm.Fixed(mean)))


# Means are not zero, where wrong formulas might agree.
TAYLOR_CASES = {
    "bernoulli": (bernoulli(-0.4), LABELS, None),
    "softmax": (pgm.Model(pgm.Softmax(3), taylor_gp(-0.4, [0.8, 1.3], size=3)), CLASSES, None),
    "poisson": (pgm.Model(log_poisson(), taylor_gp(0.7, [0.8, 1.3])), TAYLOR_COUNTS, WEIGHTS),
    "student_t": (
        pgm.Model(pgm.StudentT(pgm.Fixed(4.0), pgm.Parameter(0.5, positive=True)), taylor_gp(0.3)),
        NOISY,
        None,
    ),
}


def taylor_bound_of(name):
    model, y, weights = TAYLOR_CASES[name]
    _, data = model.prepare(X, y, weights)
    return MarginalBound.of(trainable(model), data, objective_of(model, "taylor"))


def taylor_at(bound, vector, points):
    """The approximate bound and its gradient in the hyperparameters, at expansion points."""
    padded = as_array(pad_rows(points, len(bound.family.y)))
    local = LocalParameters(padded, np.full_like(padded, -0.7))
    value, (slope, _) = value_and_slopes(bound.family, as_array(vector), bound.points(vector, bound.inputs), local)
    return float(value), np.asarray(slope)


def expansion(name, f, scale):
    """log p(y | f), gradients and negative Hessians (n, C, C) at latents (n, C), by hand."""
    if name == "bernoulli":
        p, signs = 1.0 / (1.0 + np.exp(-f)), 2.0 * LABELS - 1.0
        return -np.log1p(np.exp(-signs * f[:, 0])), LABELS[:, None] - p, (p * (1.0 - p))[:, :, None]
    if name == "poisson":
        rate = np.exp(f)
        factorials = np.array([np.sum(np.log(np.arange(1, count + 1))) for count in TAYLOR_COUNTS])
        return (TAYLOR_COUNTS * f[:, 0] - rate[:, 0] - factorials, TAYLOR_COUNTS[:, None] - rate, rate[:, :, None])
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
    mean, weights = values.get("mean", -0.4), TAYLOR_CASES[name][2]
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


@pytest.mark.parametrize("name", some(list(TAYLOR_CASES), "bernoulli"))
def test_the_approximate_bound_and_its_slope(name):
    bound, points = taylor_bound_of(name), some_points(name)
    vector = bound.learnable.start() + 0.1
    value, slope = taylor_at(bound, vector, points)
    np.testing.assert_allclose(value, by_hand(name, bound, vector, points), rtol=1e-9)
    # Rounding of 1e-13 of 100 nats over 2e-5.
    np.testing.assert_allclose(slope, slope_by_hand(name, bound, vector, points), rtol=1e-6, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("coupled", [None, False])
@pytest.mark.parametrize("name", ["softmax", "student_t"])
def test_at_its_own_moments_it_is_the_evidence(name, coupled):
    """Also for independent latents, whose precisions are clipped at zero."""
    bound = taylor_bound_of(name)
    family, start = replace(bound.family, coupled=coupled), bound.learnable.start()
    vector, points = as_array(start), bound.points(start, bound.inputs)
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
    bound = MarginalBound.of(trainable(bernoulli(0.0)), Data(X, LABELS), objective_of(fitted.model, "taylor"))
    vector = np.log([values["variance"], values["lengthscale"]])
    value, slope = taylor_at(bound, vector, np.asarray(fitted.mean))
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


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TAYLOR_CASES, "inducing"])
def test_every_form_of_model_ends_where_the_slope_is_zero(name):
    if name == "inducing":
        kernel = pgm.RBF(dist.LogNormal(0.0, 1.0), dist.LogNormal(0.0, 0.5))
        model, y, weights = pgm.Model(pgm.Bernoulli(), pgm.GP(kernel, 0.3, form=pgm.Inducing(20))), LABELS, WEIGHTS
    else:
        model, y, weights = TAYLOR_CASES[name]
    result = pgm.fit(model, X, y, weights=weights, objective="taylor", scheme="alternating", tolerance=1e-12)
    assert result.converged
    bound = MarginalBound.of(trainable(result.model), result.data, objective_of(result.model, "taylor"))
    vector = bound.learnable.start()
    value, slope = taylor_at(bound, vector, np.asarray(result.mean))
    log_prior = float(bound.learnable.log_prior_unconstrained(as_array(vector)))
    assert value == pytest.approx(result.elbo + log_prior, abs=1e-6)
    np.testing.assert_allclose(slope, 0.0, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"objective='taylor' is learned by scheme='alternating' only, .*; got scheme='auto'"),
        ({"scheme": "hybrid"}, r"by scheme='alternating' only, .*; got scheme='hybrid'"),
        ({"scheme": "joint"}, r"by scheme='alternating' only, .*; got scheme='joint'"),
        ({"scheme": "alternating", "correct": True}, "fit with correct=True needs an objective that q maximises"),
        ({"scheme": "alternating", "train_inducing": True}, "train_inducing=True needs an objective that q maximises"),
    ],
)
def test_what_it_cannot_do_is_refused(options, message):
    model = bernoulli(0.0).with_form(pgm.Inducing(X[:20])) if "train_inducing" in options else bernoulli(0.0)
    with pytest.raises(ValueError, match=message):
        pgm.fit(model, X, LABELS, objective="taylor", **options)


def test_a_value_that_is_not_finite_is_an_error(monkeypatch):
    calls = []

    def failing(*arguments):
        calls.append(arguments)
        state, evidence = sweep(*arguments)
        return state, evidence if len(calls) < 3 else -np.inf

    monkeypatch.setattr(schemes, "sweep", failing)
    with pytest.raises(ValueError, match=r"Laplace's evidence is not finite after 2 steps .*objective='expected'"):
        pgm.fit(bernoulli(0.0), X, LABELS, objective="taylor", scheme="alternating")


# Inducing inputs moved by gradient in fit, and selected by the sites of another objective.


MOVING_RNG = np.random.default_rng(4)
MOVING_N = 100
MOVING_X = MOVING_RNG.normal(size=(MOVING_N, 2)) * np.array([1.0, 2.0])
MOVING_F = 2.5 * np.sin(1.2 * MOVING_X[:, 0]) + 2.0 * np.cos(0.7 * MOVING_X[:, 1]) - 1.0
MOVING_LABELS = (MOVING_RNG.random(MOVING_N) < 1.0 / (1.0 + np.exp(-MOVING_F))).astype(float)


def model(form, likelihood=None, mean=-0.4):
    return pgm.Model(likelihood or pgm.Bernoulli(), pgm.GP(pgm.RBF(1.5, [0.8, 1.3]), mean=mean, form=form))


def elbo_at(learned, Z, y, objective):
    moved = learned.fixed().with_form(pgm.Inducing(Z))
    return pgm.vi(moved, MOVING_X, y, objective=objective, tolerance=1e-12).elbo


MOVING_CASES = [
    pytest.param("bernoulli", "augmented", marks=pytest.mark.slow),
    pytest.param("bernoulli", "expected", marks=pytest.mark.slow),
    ("gaussian", "augmented"),
]


@pytest.mark.filterwarnings("ignore::pgmodels.InducingWarning")
@pytest.mark.parametrize(("name", "objective"), MOVING_CASES)
def test_moved_inputs_raise_the_elbo_to_where_its_gradient_is_zero(name, objective):
    likelihood, y = (
        (pgm.Bernoulli(), MOVING_LABELS)
        if name == "bernoulli"
        else (pgm.Gaussian(0.5), MOVING_F + 0.3 * np.cos(np.arange(MOVING_N) ** 2))
    )
    start = model(pgm.Inducing(8, "kmeans"), likelihood)
    kept, moved = (
        pgm.fit(start, MOVING_X, y, objective=objective, train_inducing=each, correct=False) for each in (False, True)
    )
    assert moved.converged
    assert moved.elbo > kept.elbo + 0.1
    assert moved.elbo <= pgm.fit(model(pgm.Dense(), likelihood), MOVING_X, y, objective=objective, correct=False).elbo
    Z = np.asarray(moved.model.gps[0].form.inputs)
    before = np.asarray(kept.model.gps[0].form.inputs)
    assert Z.shape == before.shape

    def gradient(result, Z, entry):
        step = np.zeros_like(Z)
        step[entry] = 1e-3
        return (elbo_at(result.model, Z + step, y, objective) - elbo_at(result.model, Z - step, y, objective)) / 2e-3

    for entry in [(0, 0), (3, 1), (7, 0)]:
        # The search ends at a relative gain of 1e-9 a step: a gradient g with curvature c leaves g^2 / 2c.
        assert abs(gradient(moved, Z, entry)) < 5e-3
    assert max(abs(gradient(kept, before, entry)) for entry in [(0, 0), (3, 1), (7, 0)]) > 0.05


def test_gradients_in_the_inducing_inputs_are_finite_differences():
    bound = MarginalBound.of(trainable(model(pgm.Inducing(MOVING_X[:7]))), Data(MOVING_X, MOVING_LABELS))
    Z, step = MOVING_X[:7] + 0.1, 1e-4
    start = bound.learnable.start()
    (of_inputs,) = bound.at(start, inputs=(Z,), moves=True).of_inputs
    for entry in [(0, 0), (4, 1), (6, 1)]:
        e = np.zeros_like(Z)
        e[entry] = step
        up, down = (bound.at(start, inputs=(Z + sign * e,)).value for sign in (1.0, -1.0))
        # The bound is optimal to 1e-11 of 30 nats, over twice the step.
        assert of_inputs[entry] == pytest.approx((up - down) / (2.0 * step), abs=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pgmodels.InducingWarning")
def test_inputs_move_after_a_scheme_and_stay_in_constant_columns():
    wide = np.column_stack([MOVING_X, np.full(MOVING_N, 3.0)])
    start = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.5, 1.0), mean=-0.4, form=pgm.Inducing(8, "HGV")))
    kept, moved = (
        pgm.fit(start, wide, MOVING_LABELS, scheme="hybrid", train_inducing=each, correct=False, max_iterations=1000)
        for each in (False, True)
    )
    assert moved.elbo > kept.elbo
    np.testing.assert_array_equal(np.asarray(moved.model.gps[0].form.inputs)[:, 2], 3.0)


def test_inputs_that_do_not_exist_are_not_moved():
    with pytest.raises(ValueError, match=r"train_inducing=True needs inducing inputs.*form=pgm.Inducing"):
        pgm.fit(model(pgm.Dense()), MOVING_X, MOVING_LABELS, train_inducing=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pgmodels.InducingWarning")
def test_the_merged_selection_is_by_the_sites_of_the_augmented_bound(monkeypatch):
    selected = []
    near = nearly_converged

    def recorded(*arguments, **options):
        elbo, precisions = near(*arguments, **options)
        selected.append(precisions)
        return elbo, precisions

    monkeypatch.setattr("pgmodels.inference.bound.nearly_converged", recorded)
    start = model(pgm.Inducing(12, "merged"))
    bound = MarginalBound.of(trainable(start), Data(MOVING_X, MOVING_LABELS), objective_of(start, "expected"))
    point = bound.at(bound.learnable.start())
    first = point.inputs[0]
    best, _, _ = choose_again(bound, point, Selection())
    augmented = pgm.cavi(start.fixed().with_form(pgm.Inducing(first)), MOVING_X, MOVING_LABELS)
    np.testing.assert_allclose(selected[0][:MOVING_N], augmented.sites.precision, rtol=1e-2)
    gauss = pgm.gaussian_vi(start.fixed().with_form(pgm.Inducing(first)), MOVING_X, MOVING_LABELS)
    assert not np.allclose(gauss.sites.precision, augmented.sites.precision, rtol=0.02)
    assert best.value <= point.value
    with pytest.raises(pgm.NoAugmentationError):
        pgm.fit(pgm.Model(_loglog(), pgm.GP(pgm.RBF(), form=pgm.Inducing(5, "merged"))), MOVING_X, MOVING_LABELS)


def _loglog():
    @pgm.likelihood
    def cloglog(y, f):
        return (1.0 - pgm.exp(-pgm.exp(f))) ** y * pgm.exp(-pgm.exp(f)) ** (1 - y)

    return cloglog()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pgmodels.InducingWarning")
def test_the_merged_model_is_no_worse_than_its_parts():
    # With one lengthscale k-means' centres do not depend on the hyperparameters, and merged selection starts there.
    def fitted(select, objective):
        gp = pgm.GP(pgm.RBF(1.5, 0.9), mean=-0.4, form=pgm.Inducing(10, select))
        return pgm.fit(pgm.Model(pgm.Bernoulli(), gp), MOVING_X, MOVING_LABELS, objective=objective, correct=False)

    merged = fitted("merged", "expected")
    assert merged.elbo >= fitted("kmeans", "expected").elbo - 1e-3
    assert merged.elbo > fitted("HGV", "augmented").elbo
