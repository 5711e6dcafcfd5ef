"""The learning schemes of Izmailov and Kropotov 2017: their bound, its gradient, and the optimum they share."""

import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.inference import fit_schemes as local_parameters
from pgmodels.inference.bound import MarginalBound
from pgmodels.inference.fit_schemes import (
    NUM_EVALUATIONS,
    SCHEMES,
    Alternating,
    LocalParameters,
    sweep,
    value_and_slopes,
)
from pgmodels.model import Data
from pgmodels.parameters.vector import trainable
from pgmodels.runtime.precision import as_array
from tests.covering import some

pytestmark = pytest.mark.usefixtures("double_precision")

RNG = np.random.default_rng(11)
N = 70
X = RNG.normal(size=(N, 2)) * np.array([1.0, 2.0])
F = 2.0 * np.sin(1.5 * X[:, 0]) + 1.5 * np.cos(1.2 * X[:, 1]) - 1.0
LABELS = (RNG.random(N) < 1.0 / (1.0 + np.exp(-F))).astype(float)
LOGITS = np.stack([F, -F, 2.0 * np.cos(1.5 * X[:, 0] + X[:, 1])], axis=1)
CLASSES = np.argmax(LOGITS + RNG.gumbel(size=(N, 3)), axis=1)
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
    return MarginalBound(trainable(model), Data(X, np.asarray(y, float)), model.augmentation)


def at(bound, vector, local):
    value, (slope, slopes) = value_and_slopes(
        bound.family, as_array(vector), bound.points(vector), LocalParameters(*map(as_array, local))
    )
    return float(value), np.asarray(slope), [np.asarray(part) for part in slopes]


def some_local(bound):
    rng, shape = np.random.default_rng(2), (len(bound.family.y), bound.family.objective.size)
    return LocalParameters(rng.normal(0.5, 1.0, shape), rng.normal(-0.3, 0.5, shape))


def test_the_bound_is_that_of_jaakkola_and_jordan():
    """Against a dense matrix and the inequality written out (Izmailov and Kropotov 2017, section 4.1)."""
    bound = bound_of("bernoulli")
    local = some_local(bound)
    value, *_ = at(bound, bound.vector, local)
    c = np.sqrt(np.exp(local.log_variance[:N, 0]) + local.mean[:N, 0] ** 2)
    w = np.tanh(0.5 * c) / (2.0 * c)
    d2 = np.sum(((X[:, None] - X[None]) / np.array([0.8, 1.3])) ** 2, axis=-1)
    # sigma(y f) >= sigma(c) exp((y f - c) / 2 - w (f^2 - c^2) / 2): a Gaussian in f at pseudo-observations y / (2 w).
    C = 1.5 * np.exp(-0.5 * d2) + np.diag(1.0 / w)
    z = (LABELS - 0.5) / w
    r = z + 0.4
    log_normal = -0.5 * (r @ np.linalg.solve(C, r) + np.linalg.slogdet(2.0 * np.pi * C)[1])
    terms = -np.log1p(np.exp(-c)) - 0.5 * c + 0.5 * w * c**2 + 0.5 * np.log(2.0 * np.pi / w) + 0.5 * w * z**2
    np.testing.assert_allclose(value, log_normal + np.sum(terms), rtol=1e-10)


@pytest.mark.parametrize("name", some(["logistic_softmax", "negative_binomial"], "negative_binomial"))
def test_gradients_of_the_bound_are_finite_differences(name):
    bound = bound_of(name)
    local, vector, step = some_local(bound), bound.vector + 0.1, 1e-5
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
    points = bound.points(bound.vector)
    state, elbo = sweep(bound.family, as_array(bound.vector), points, bound.start(bound.vector, points), 300)
    model, y = CASES[name]
    np.testing.assert_allclose(float(elbo), pgm.cavi(model.fixed(), X, y, tolerance=1e-12).elbo, rtol=1e-8)
    best = LocalParameters.of(state)
    np.testing.assert_allclose(at(bound, bound.vector, best)[0], float(elbo), rtol=1e-9)
    rng = np.random.default_rng(5)
    for scale in (0.1, 1.0, 3.0):
        # Below the ELBO elsewhere.
        elsewhere = LocalParameters(*(part + scale * rng.normal(size=part.shape) for part in best))
        assert at(bound, bound.vector, elsewhere)[0] < float(elbo)


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
        before = scheme.bound.evaluations
        vector = move(scheme, point)
        counts.append(scheme.bound.evaluations - before)
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
