"""Covariates of predictions are checked like columns of y, by every result."""

import warnings
from functools import cache

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import polars as pl
import pytest

import pgmodels as pgm
from tests import own_likelihoods
from tests.covering import some
from tests.made_results import integrated
from tests.own_likelihoods import exposed, varying

N = 10
RNG = np.random.default_rng(5)
X = RNG.uniform(-2.0, 2.0, (N, 1))
X_NEW = np.array([[-0.5], [0.3], [1.7]])


@pgm.likelihood(support=pgm.Given(pgm.SuccessesOfTrials(), pgm.Real(), pgm.Binary()), num_latents=1)
def shifted(y, f):
    z = f + y[2] + y[3]
    ways = pgm.gamma(y[1] + 1) / (pgm.gamma(y[0] + 1) * pgm.gamma(y[1] - y[0] + 1))
    return ways * pgm.sigmoid(z) ** y[0] * pgm.sigmoid(-z) ** (y[1] - y[0])


@pgm.likelihood(support=pgm.Given(pgm.Censored(), pgm.Positive()), num_latents=1)
def paced(y, f, shape=pgm.Parameter(1.5, positive=True)):
    z = shape * (pgm.log(y[0]) - f - pgm.log(y[2]))
    return (shape / y[0] * pgm.sigmoid(z)) ** y[1] * pgm.sigmoid(-z)


@pgm.likelihood(support=pgm.Given(pgm.Real(), pgm.Real()), num_latents=1)
def grouped(y, f, shifts=pgm.Parameter([0.3, -0.7], positive=False)):
    return pgm.normal_pdf(y[0], f + shifts[y[1]], 0.5)


@pgm.likelihood
def undeclared(y, f):
    z = f + pgm.log(y[1])
    return pgm.sigmoid(z) ** y[0] * pgm.sigmoid(-z) ** (1 - y[0])


class Tries(pgm.Support):
    """Successes of tries, a custom support that checks all columns at once."""

    num_columns = 2

    def check(self, y):
        if ((y[:, 0] < 0) | (y[:, 1] < 1) | (y[:, 0] > y[:, 1]) | (y != y.round()).any(axis=1)).any():
            raise ValueError("y must hold successes of 1 or more tries.")

    def pieces(self, y):
        return [pgm.Piece(0, y[:, 1], is_discrete=True)]

    def examples(self, rng, n):
        tries = rng.integers(1, 6, n)
        return np.stack([rng.binomial(tries, 0.4), tries], axis=1).astype(float)


tried = pgm.likelihood(pgm.Binomial.function, support=Tries(), num_latents=1)


TRIALS = RNG.integers(2, 6, N).astype(float)
COUNTS = RNG.binomial(TRIALS.astype(int), 0.6).astype(float)
# A likelihood, its data, covariates of X_NEW, and what they cannot be in the row named first, with what is said of it.
CASES = {
    "Binomial": (
        pgm.Binomial,
        np.column_stack([COUNTS, TRIALS]),
        [[3.0], [1.0], [0.0]],
        {
            "negative": (1, [-3.0], "covariates must hold trials, whole numbers >= 0; got -3 in row 1"),
            "fraction": (2, [2.5], "covariates must hold trials, whole numbers >= 0; got 2.5 in row 2"),
        },
    ),
    "exposed": (
        exposed,
        np.column_stack([COUNTS, RNG.uniform(0.5, 2.0, N)]),
        [[3.0], [1.0], [0.2]],
        {
            "negative": (
                0,
                [-1.0],
                r"covariates must hold in column 0 valid values of y\[1\]: y must hold real numbers > 0; got -1 in row",
            ),
            "zero": (2, [0.0], "real numbers > 0; got 0 in row 2"),
        },
    ),
    "shifted": (
        shifted,
        np.column_stack([COUNTS, TRIALS, RNG.normal(size=N), np.arange(N) % 2]),
        [[3.0, -1.0, 0.0], [1.0, 0.3, 1.0], [2.0, 0.7, 1.0]],
        {
            "trials": (1, [1.5, 0.3, 1.0], "covariates must hold trials, whole numbers >= 0; got 1.5 in row 1"),
            "label": (2, [1.0, 0.3, 7.0], r"covariates must hold in column 2 valid values of y\[3\]: .* the labels 0"),
        },
    ),
    "paced": (
        paced,
        np.column_stack([RNG.gamma(2.0, 1.0, N), np.arange(N) % 2, RNG.uniform(0.5, 2.0, N)]),
        [[3.0], [1.0], [0.2]],
        {"zero": (1, [0.0], r"covariates must hold in column 0 valid values of y\[2\]: .* > 0; got 0 in row 1")},
    ),
    "grouped": (
        grouped,
        np.column_stack([RNG.normal(size=N), np.arange(N) % 2]),
        [[1.0], [0.0], [1.0]],
        {
            "beyond": (
                2,
                [2.0],
                r"covariates are outside .*: shifts\[y\[1\]\] needs an index .* out of range in row 2",
            ),
            "between": (1, [0.5], r"covariates are outside .* out of range in row 1"),
        },
    ),
    "undeclared": (
        undeclared,
        np.column_stack([COUNTS > 2, RNG.uniform(0.5, 2.0, N)]).astype(float),
        [[3.0], [1.0], [0.2]],
        {"negative": (2, [-1.0], r"covariates are outside .* log\(y\[1\]\), which multiplies a latent, .* in row 2")},
    ),
    "custom support": (
        tried,
        np.column_stack([COUNTS, TRIALS]),
        [[3.0], [1.0], [2.0]],
        {"none": (1, [0.0], "covariates must be valid values of y.*: y must hold successes of 1 or more tries")},
    ),
}


def model(name, **gp):
    return pgm.Model(CASES[name][0](), pgm.GP(pgm.RBF(pgm.Fixed(1.3), pgm.Fixed(0.8)), mean=0.2, **gp))


def rows(y):
    return pgm.ArrayRows(X, y)


FEW = {"num_samples": 4, "num_warmup": 0, "num_chains": 1}
ENGINES = {
    "cavi": pgm.cavi,
    "gaussian_vi": pgm.gaussian_vi,
    "linear response": lambda model, X, y: pgm.correct(pgm.cavi(model, X, y)),
    "perturbative": lambda model, X, y: pgm.correct(pgm.cavi(model, X, y), method="perturbative"),
    "gibbs": lambda model, X, y: pgm.gibbs(model, X, y, **FEW),
    "nuts": lambda model, X, y: pgm.nuts(model, X, y, **FEW),
    "svi": lambda model, X, y: pgm.svi(model, X, y, max_epochs=1),
}


@cache
def learned(engine, name):
    with warnings.catch_warnings():
        # Results need not be good to predict.
        warnings.simplefilter("ignore")
        if engine == "rows":
            sparse = model(name, form=pgm.Inducing(4))
            return pgm.svi(sparse, rows(CASES[name][1]), batch_size=5, max_epochs=1, train_hyperparameters=False)
        if engine == "integrate":
            free = pgm.Model(CASES[name][0](), pgm.GP(pgm.RBF(dist.LogNormal(0.0, 0.5), 0.8)))
            return pgm.integrate(free, X, CASES[name][1])
        return ENGINES[engine](model(name), X, CASES[name][1])


def wrong(name):
    """Covariates that y cannot have, each with a message: those of the case, shapes, text and what is missing."""
    _, _, good, bad = CASES[name]
    good = np.array(good)
    for row, value, message in bad.values():
        changed = good.copy()
        changed[row] = value
        yield changed, message
    columns = good.shape[1]
    missing = good.copy()
    missing[1, -1] = np.nan
    yield missing, "covariates must be finite; got nan in row 1"
    yield good[:2], rf"covariates must have shape \(3, {columns}\): one row for each row of X.*got \(2, {columns}\)"
    yield np.hstack([good, good]), rf"covariates must have shape \(3, {columns}\).*got \(3, {2 * columns}\)"
    yield good.astype(str), "covariates must be numeric; got '.*' of type str"


def check_all(predict, name):
    for covariates, message in wrong(name):
        with pytest.raises(ValueError, match=message):
            predict(covariates)
    predict(np.array(CASES[name][2]))


@pytest.mark.parametrize("name", CASES)
def test_draws_before_data_are_given_what_can_be(name):
    if name in ("undeclared", "grouped"):
        # Nothing is drawn where it is not known what y can be; what is given is looked at first.
        with pytest.raises(ValueError, match="covariates are outside what the formula allows"):
            pgm.prior_predictive(model(name), X_NEW, [1.0, 1.0, -1.0], num_draws=2)
        return
    check_all(lambda covariates: pgm.prior_predictive(model(name), X_NEW, covariates, num_draws=2), name)


@pytest.mark.parametrize("name", CASES)
def test_predictions_are_given_what_can_be(name):
    check_all(lambda covariates: learned("cavi", name).predict(X_NEW, covariates), name)


@pytest.mark.parametrize("engine", some([*ENGINES, "rows"], *(engine for engine in ENGINES if engine != "nuts")))
def test_every_result_checks_what_it_is_given(engine):
    check_all(lambda covariates: learned(engine, "Binomial").predict(X_NEW, covariates), "Binomial")


@pytest.mark.slow
@pytest.mark.parametrize("engine", [*ENGINES, "rows", "integrate"])
@pytest.mark.parametrize("name", CASES)
def test_every_result_of_every_likelihood_checks_what_it_is_given(engine, name):
    if engine == "integrate" and name in ("undeclared", "grouped"):
        pytest.skip("no evidence of a formula that is not known to be normalised")
    check_all(lambda covariates: learned(engine, name).predict(X_NEW, covariates), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", some(["Binomial", "exposed", "grouped"], "exposed"))
def test_comparisons_are_given_what_can_be(name):
    draws, y = learned("gibbs", name), CASES[name][1][:3, 0]

    def compare(covariates):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            good = np.array(CASES[name][2])
            first = np.zeros(3) if np.shape(covariates) == good.shape else y
            pgm.compare(gibbs=draws, X=X_NEW, y=first, covariates=covariates)

    check_all(compare, name)
    with pytest.raises(ValueError, match="y must be finite; got nan in row 1"):
        pgm.compare(gibbs=draws, X=X_NEW, y=np.column_stack([[0.0, np.nan, 0.0], np.ones(3)]))
    with pytest.raises(ValueError, match="X must be finite; got nan in row 2"):
        pgm.compare(gibbs=draws, X=[[0.0], [0.0], [np.nan]], y=np.ones((3, 2)))


def test_predictors_are_made_of_what_can_be():
    # Predictions integrate over Φ f, which is computed from covariates first.
    gps = [pgm.GP(pgm.RBF(1.0, 1.0)), pgm.GP(pgm.RBF(0.5, 1.0))]
    vi = pgm.cavi(pgm.Model(varying(), gps), X, np.column_stack([COUNTS > 2, TRIALS / 5.0]).astype(float))
    for covariates, message in (
        ([[1.0], [2.0]], r"covariates must have shape \(3, 1\)"),
        ([1.0, np.nan, 2.0], "covariates must be finite; got nan in row 1"),
        (["1", "2", "3"], "covariates must be numeric; got '1'"),
    ):
        with pytest.raises(ValueError, match=message):
            vi.predict(X_NEW, covariates)
    assert vi.predict(X_NEW, [0.5, 1.0, -1.0]).probabilities.shape == (3, 2)


def test_mixtures_check_before_their_parts():
    # Nothing is computed of the posterior before the check.
    result = integrated(model("Binomial"), X, CASES["Binomial"][1])
    with pytest.raises(ValueError, match="covariates must hold trials, whole numbers >= 0; got -3 in row 1"):
        result.predict(X_NEW, [3.0, -3.0, 1.0])


@pytest.mark.parametrize("name", CASES)
def test_new_observations_are_checked_with_their_columns(name):
    good, bad = np.array(CASES[name][2]), CASES[name][3]
    observed = CASES[name][1].shape[1] - good.shape[1]
    first = np.ones((3, observed))
    predictive = learned("cavi", name).predict(X_NEW)
    for row, value, _ in bad.values():
        changed = good.copy()
        changed[row] = value
        with pytest.raises(ValueError, match="y"):
            predictive.log_density(np.column_stack([first, changed]))


def test_new_observations_that_a_formula_does_not_allow_are_refused():
    vi = pgm.cavi(pgm.Model(own_likelihoods.undeclared(), pgm.GP(pgm.RBF(1.0, 1.0))), X, (COUNTS > 2).astype(float))
    with pytest.raises(ValueError, match=r"y_new is outside what the formula allows.*in row 1"):
        vi.predict(X_NEW).log_density([1.0, 2.0, 0.0])


def test_covariates_of_no_columns_are_refused():
    with pytest.raises(ValueError, match="covariates: y of Bernoulli has no covariates"):
        pgm.prior_predictive(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0))), X_NEW, [1.0, 1.0, 1.0])


@pytest.mark.parametrize("make", [list, pd.Series, lambda v: pd.DataFrame({"n": v}), lambda v: pl.Series(v)])
def test_text_of_covariates_is_refused(make):
    with pytest.raises(ValueError, match=r"covariates must be numeric; got '3' of type str.*by pandas.to_numeric"):
        learned("cavi", "Binomial").predict(X_NEW, make(["3", "1", "0"]))
