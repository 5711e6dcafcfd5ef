"""Weights of rows: powers of the likelihood, against repeated rows, rows left out, and quadrature."""

import pickle
import warnings
from functools import cache

import numpy as np
import pytest
from scipy.special import expit

import pgmodels as pgm
from pgmodels.diagnostics.diagnose import augmentation_gap
from pgmodels.diagnostics.vsbc import simulate_calibration
from pgmodels.model import with_powers
from tests.covering import some

RNG = np.random.default_rng(2)
N = 10
X = RNG.uniform(-2.0, 2.0, (N, 1))
X_NEW = np.array([[-2.5], [0.3], [1.2]])
WEIGHTS = np.array([1.0, 3.0, 2.0, 1.0, 0.0, 1.0, 2.0, 1.0, 0.0, 1.0])
OFTEN = np.repeat(np.arange(N), WEIGHTS.astype(int))
KEPT = WEIGHTS > 0
CENTRE = np.sin(2.0 * X[:, 0]) + 0.4


@pgm.likelihood(support=pgm.Given(pgm.Counts(), pgm.Positive()))
def exposed(y, f, dispersion=pgm.Parameter(1.0, positive=True)):
    z = f + pgm.log(y[1])
    ways = pgm.gamma(y[0] + dispersion) / (pgm.gamma(dispersion) * pgm.gamma(y[0] + 1))
    return ways * pgm.sigmoid(z) ** y[0] * pgm.sigmoid(-z) ** dispersion


@pgm.likelihood(support=pgm.Binary())
def noisy(y, f):
    return 0.05 + 0.9 * pgm.sigmoid(f) ** y * pgm.sigmoid(-f) ** (1 - y)


def kernel():
    return pgm.RBF(1.7, 0.8)


COUNTS = RNG.poisson(np.exp(CENTRE)).astype(float)
LABELS = (RNG.random(N) < expit(CENTRE)).astype(float)
CASES = {
    "Bernoulli": (pgm.Model(pgm.Bernoulli(), pgm.GP(kernel(), mean=0.4)), LABELS),
    "StudentT": (pgm.Model(pgm.StudentT(4.0, 0.5), pgm.GP(kernel(), mean=0.4)), CENTRE + RNG.normal(0.0, 0.4, N)),
    "LogisticSoftmax": (pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(kernel(), size=3)), np.arange(N) % 3.0),
    "NegativeBinomial": (pgm.Model(pgm.NegativeBinomial(1.5), pgm.GP(kernel(), mean=-0.3)), COUNTS),
    "exposed": (pgm.Model(exposed(), pgm.GP(kernel(), mean=-0.3)), np.column_stack([COUNTS, RNG.uniform(0.5, 2.0, N)])),
    "Gaussian": (pgm.Model(pgm.Gaussian(0.5), pgm.GP(pgm.RBF(1.7, pgm.Fixed(0.8)))), CENTRE + RNG.normal(0.0, 0.4, N)),
    "Probit": (pgm.Model(pgm.Probit(), pgm.GP(kernel(), mean=0.4)), LABELS),
    "mixture": (pgm.Model(noisy(), pgm.GP(kernel(), mean=0.4)), LABELS),
}


@cache
def result_of(name, way, engine="cavi"):
    model, y = CASES[name]
    call, options = getattr(pgm, engine), {"tolerance": 1e-13} if engine != "fit" else {}
    if way == "repeated":
        return call(model, X[OFTEN], y[OFTEN], **options)
    if way == "left out":
        return call(model, X[KEPT], y[KEPT], weights=WEIGHTS[KEPT], **options)
    return call(model, X, y, weights=WEIGHTS, **options)


def predicted(result, name):
    covariates = np.array([0.7, 1.0, 2.0]) if name == "exposed" else None
    predictive = result.predict(X_NEW, covariates)
    y = np.array([1.0, 0.0, 1.0])
    return predictive.log_density(y if covariates is None else np.column_stack([y, covariates]))


@pytest.mark.parametrize("name", some(CASES, "Bernoulli"))
def test_whole_weights_are_repeated_rows(name):
    weighted, repeated = result_of(name, "weighted"), result_of(name, "repeated")
    places = np.unique(OFTEN, return_index=True)[1]
    # The same optimum, by iterations that end within 1e-13 of the bound: means to its root.
    assert weighted.elbo == pytest.approx(repeated.elbo, rel=1e-9)
    np.testing.assert_allclose(weighted.mean, repeated.mean[places], atol=1e-5)
    np.testing.assert_allclose(weighted.variance, repeated.variance[places], atol=1e-5)
    for one, other in zip(weighted.predict_latent(X_NEW), repeated.predict_latent(X_NEW), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    np.testing.assert_allclose(predicted(weighted, name), predicted(repeated, name), atol=1e-5)


def test_a_weight_of_zero_leaves_the_row_out():
    weighted, without = result_of("Bernoulli", "weighted"), result_of("Bernoulli", "left out")
    np.testing.assert_array_equal(weighted.X, X[KEPT])
    np.testing.assert_array_equal(weighted.weights, WEIGHTS[KEPT])
    np.testing.assert_array_equal(weighted.y, LABELS[KEPT])
    assert weighted.elbo == without.elbo
    np.testing.assert_array_equal(weighted.mean, without.mean)


@pgm.likelihood(support=pgm.Given(pgm.Binary(), pgm.Positive()))
def powered(y, f):
    return (pgm.sigmoid(f) ** y[0] * pgm.sigmoid(-f) ** (1 - y[0])) ** y[1]


STEPS = [{}, {"objective": "expected"}, {"rate": "adaptive"}, {"train_hyperparameters": True}]


def test_a_formula_to_the_power_of_its_own_column_says_the_same():
    weights = RNG.uniform(0.3, 2.5, N)
    model, y = CASES["Bernoulli"]
    one = pgm.cavi(model, X, y, weights=weights)
    other = pgm.cavi(pgm.Model(powered(), model.gps), X, np.column_stack([y, weights]))
    assert one.elbo == pytest.approx(other.elbo, rel=1e-12)
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-9)


@pytest.mark.parametrize("options", some(STEPS, {}))
def test_batches_carry_the_weights_of_their_rows(options):
    weights = RNG.uniform(0.3, 2.5, N)
    gp = pgm.GP(kernel(), mean=0.4, form=pgm.Inducing(X[:3]))
    settings = {"batch_size": 4, "max_epochs": 3, "tolerance": 1e9} | options
    with warnings.catch_warnings():
        # Of steps that are too few, and of inducing inputs that are.
        warnings.simplefilter("ignore")
        one = pgm.svi(pgm.Model(pgm.Bernoulli(), gp), X, LABELS, weights=weights, **settings)
        other = pgm.svi(pgm.Model(powered(), gp), X, np.column_stack([LABELS, weights]), **settings)
    assert one.elbo == pytest.approx(other.elbo, rel=1e-12)
    for ours, theirs in zip(one.predict_latent(X_NEW), other.predict_latent(X_NEW), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["StudentT", "mixture"])
def test_the_closest_gaussian_of_whole_weights_is_that_of_repeated_rows(name):
    weighted, repeated = (result_of(name, way, "gaussian_vi") for way in ("weighted", "repeated"))
    assert weighted.elbo == pytest.approx(repeated.elbo, rel=1e-9)
    for one, other in zip(weighted.predict_latent(X_NEW), repeated.predict_latent(X_NEW), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.slow
def test_values_are_learned_as_of_repeated_rows():
    weighted, repeated = (result_of("Gaussian", way, "fit") for way in ("weighted", "repeated"))
    # To the tolerance of the optimiser.
    assert weighted.elbo == pytest.approx(repeated.elbo, abs=1e-5)
    for name, value in repeated.fit.values.items():
        assert weighted.fit.values[name] == pytest.approx(value, rel=1e-3)


@pytest.mark.slow
def test_corrections_and_gaps_are_those_of_repeated_rows():
    weighted, repeated = result_of("Bernoulli", "weighted"), result_of("Bernoulli", "repeated")
    new = [pgm.correct(result).predict_latent(X_NEW) for result in (weighted, repeated)]
    np.testing.assert_allclose(*new, atol=1e-5)
    places = np.unique(OFTEN, return_index=True)[1]
    gaps = augmentation_gap(weighted).value, WEIGHTS[KEPT] * augmentation_gap(repeated).value[places]
    np.testing.assert_allclose(*gaps, atol=1e-5)


# Fractional powers: conditionals and bounds of the derivation itself, at data with weights.
@pytest.mark.parametrize(
    "name", some(["Bernoulli", "StudentT", "LogisticSoftmax", "NegativeBinomial", "exposed"], "exposed")
)
def test_the_derivation_of_a_power_holds(name):
    model, y = CASES[name]
    model, data = with_powers(*model.prepare(X[:4], y[:4], [0.3, 2.0, 1.7, 1.0]))
    assert pgm.derive(model).verify(seed=0, y=data.y).figures


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "effective"), [("gibbs", 1500), ("nuts", 400)])
def test_draws_of_a_fractional_weight_follow_the_power(engine, effective):
    # One row: the posterior is an integral.
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0), mean=-0.5))
    x, y, weight = np.zeros((1, 1)), np.ones(1), 2.6
    f = np.linspace(-9.0, 11.0, 4001)
    p = expit(f) ** weight * np.exp(-0.25 * (f + 0.5) ** 2)
    mean = (f * p).sum() / p.sum()
    variance = ((f - mean) ** 2 * p).sum() / p.sum()
    sizes = {"num_samples": 1000, "num_warmup": 100, "num_chains": 2, "seed": 1, "progress": False}
    draws = getattr(pgm, engine)(model, x, y, weights=[weight], **sizes)
    # Five standard errors at this number of effective draws.
    assert abs(draws.mean[0, 0] - mean) < 5 * np.sqrt(variance / effective)
    assert abs(draws.variance[0, 0] / variance - 1) < 5 * np.sqrt(2 / effective)
    exact = (expit(f) * p).sum() / p.sum()
    assert draws.predict(x).probabilities[0, 1] == pytest.approx(exact, abs=0.03)


@pytest.mark.slow
def test_results_with_weights_travel_and_are_shown(tmp_path):
    result = result_of("exposed", "weighted")
    back = pickle.loads(pickle.dumps(result))
    saved = pgm.load(result.save(tmp_path / "fit.npz"), likelihood=exposed)
    for other in (back, saved):
        assert other.model == result.model
        np.testing.assert_array_equal(predicted(other, "exposed"), predicted(result, "exposed"))
    assert "weights of rows" in result._repr_html_()
    tree = result.to_arviz(num_draws=20)
    np.testing.assert_array_equal(tree.constant_data.weights, WEIGHTS[KEPT])
    np.testing.assert_array_equal(tree.constant_data.covariates[:, 0], CASES["exposed"][1][KEPT, 1])
    np.testing.assert_array_equal(tree.observed_data.y, COUNTS[KEPT])
    f = tree.posterior.f.values[0, :, :, 0]
    likelihood = result.likelihood
    expected = [pgm.likelihoods.density.log_density(likelihood, result.y, row[:, None]) for row in f]
    np.testing.assert_allclose(tree.log_likelihood.y[0], WEIGHTS[KEPT] * np.array(expected), rtol=1e-9)
    assert tree.posterior_predictive.y.shape == (1, 20, KEPT.sum())


WRONG = {
    "negative": (np.where(WEIGHTS == 0, -1.0, 1.0), r"finite and >= 0; got -1 in row 4"),
    "missing": (np.where(WEIGHTS == 3, np.nan, 1.0), r"finite and >= 0; got nan in row 1"),
    "too few": (WEIGHTS[:3], r"weights must have shape \(10,\), one for each row of X; got shape \(3,\)"),
    "all zero": (np.zeros(N), "weights are all 0"),
    "text": (["a"] * N, "weights"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_weights_are_refused(name):
    weights, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        pgm.cavi(*CASES["Bernoulli"][:1], X, LABELS, weights=weights)


def test_what_weights_cannot_do_is_refused():
    for name in ("Probit", "mixture"):
        with pytest.raises(pgm.NoAugmentationError, match=r"gibbs supports only weights 0 and 1 for"):
            pgm.gibbs(CASES[name][0], X, LABELS, weights=WEIGHTS)
    result = result_of("Bernoulli", "weighted")
    with pytest.raises(ValueError, match="rows have weights, and data simulated from the model have none"):
        simulate_calibration(result, 2)


HOLES = np.flatnonzero(~KEPT)


@pytest.mark.parametrize("name", ["Bernoulli", "LogisticSoftmax", "exposed", "StudentT"])
@pytest.mark.parametrize("hole", [np.nan, np.inf, -7.5])
def test_rows_of_weight_0_may_hold_anything(name, hole):
    model, y = CASES[name]
    X_holed, y_holed = X.copy(), y.copy()
    X_holed[HOLES[0]] = hole
    y_holed[HOLES] = hole
    prepared, data = model.prepare(X_holed, y_holed, WEIGHTS)
    assert prepared is model
    np.testing.assert_array_equal(data.weights, WEIGHTS[KEPT])
    expected = model.prepare(X, y, WEIGHTS)[1]
    np.testing.assert_array_equal(data.X, expected.X)
    np.testing.assert_array_equal(data.y, expected.y)
    # Elsewhere they are looked at, and rows are counted as they were given.
    row = int(np.flatnonzero(KEPT)[-1])
    y_holed[row] = np.nan
    count = np.isnan(y_holed[row]).sum()
    with pytest.raises(ValueError, match=rf"y must be finite; got nan in row {row}.*\({count} such"):
        model.prepare(X_holed, y_holed, WEIGHTS)
    X_holed[row] = np.nan
    with pytest.raises(ValueError, match=rf"X must be finite; got nan in row {row}, column 0 \(1 such"):
        model.prepare(X_holed, y_holed, WEIGHTS)
    with pytest.raises(ValueError, match="y must be finite"):
        model.prepare(X, y_holed)


def test_engines_leave_holes_out():
    model, y = CASES["Bernoulli"]
    holed = np.where(KEPT, y, np.nan)
    few = {"num_samples": 3, "num_warmup": 0, "num_chains": 1}
    for engine, options in ((pgm.cavi, {}), (pgm.gibbs, few)):
        result, expected = (engine(model, X, labels, weights=WEIGHTS, **options) for labels in (holed, y))
        np.testing.assert_array_equal(result.mean, expected.mean)


def test_a_class_of_rows_of_weight_0_is_unseen():
    model, y = CASES["LogisticSoftmax"]
    weights = np.where(y == 1, 0.0, 1.0)
    with pytest.warns(pgm.DataWarning, match="y has no observation of class 1 out of 3"):
        model.prepare(X, y, weights)
    # A class with such rows only is unseen.
    model.prepare(X, np.append(y[:-1], 9.0), np.append(np.ones(N - 1), 0.0))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.append(np.ones(N - 1), np.nan), "weights must be finite and >= 0; got nan in row 9"),
        ([*np.ones(N - 1), None], "weights must be finite and >= 0; got nan in row 9"),
        (np.append(np.ones(N - 1), -0.5), "weights must be finite and >= 0; got -0.5 in row 9.*weight 0 is ignored"),
        (np.append(np.ones(N - 1), np.inf), "weights must be finite and >= 0; got inf in row 9"),
        (np.ones(N - 1), r"weights must have shape \(10,\), one for each row of X; got shape \(9,\)\.$"),
        (np.ones((N, 1)), r"weights must have shape \(10,\).*got shape \(10, 1\)\. Use weights.ravel\(\)"),
        (2.0, r"weights must have shape \(10,\).*got shape \(\)"),
        (np.zeros(N), "weights are all 0"),
        (["1"] * N, "weights must be numeric; got '1' of type str in row 0"),
        (np.ones(N, dtype="timedelta64[D]"), "weights holds dates or times"),
    ],
)
def test_weights_that_are_none_say_so(weights, message):
    model, y = CASES["Bernoulli"]
    with pytest.raises(ValueError, match=message):
        model.prepare(X, y, weights)
    for call in (pgm.cavi, pgm.gaussian_vi, pgm.svi, pgm.fit, pgm.integrate, pgm.gibbs, pgm.nuts):
        with pytest.raises(ValueError, match=message):
            call(model, X, y, weights=weights)
