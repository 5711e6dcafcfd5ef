"""Odd data in public calls: each call ends in finite numbers, or in an error that names an argument."""

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import pgmodels as pgm

# Every run draws the same examples.
FUZZ = settings(
    derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)
COUNTS = [150, pytest.param(1500, marks=pytest.mark.slow)]
ROWS = 6
# Sizes from the least to the largest double, and numbers that arithmetic does not return to.
NUMBERS = [0.0, -0.0, 1.0, -1.0, 0.5, 3.0, 1e-300, 5e-324, 1e-9, 40.0, -40.0, 1e8, -1e8, 2.0**53 + 2.0, 1e154, 1e300]
HOLES = [np.nan, np.inf, -np.inf]
LIKELIHOODS = {
    "bernoulli": pgm.Bernoulli(),
    "gaussian": pgm.Gaussian(pgm.Fixed(1.0)),
    "student": pgm.StudentT(4.0, 1.0),
    "negative binomial": pgm.NegativeBinomial(2.0),
}
KERNELS = {"rbf": pgm.RBF(1.0, 1.0), "linear": pgm.Linear(1.0)}
KINDS = ["f8", "f4", "f2", "i8", "i1", "u2", "bool", "O", "list", "U", "frame", "Int64", "complex", "masked"]


def numbers(holes=True):
    """A pool of few numbers, so that rows repeat, or of ordinary ones."""
    pool = st.lists(st.sampled_from(NUMBERS + HOLES * holes), min_size=1, max_size=3)
    return st.one_of(
        pool.flatmap(st.sampled_from), st.floats(-3.0, 3.0), st.sampled_from([0.0, 1.0]), st.integers(0, 5).map(float)
    )


def arrays(columns):
    """Rows of numbers, in one of the forms in which users have them."""
    shape = (ROWS, columns) if columns else (ROWS,)
    values = st.lists(numbers(), min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))
    return st.builds(lambda entries, kind: _as(np.reshape(entries, shape), kind), values, st.sampled_from(KINDS))


def _as(values, kind):
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        match kind:
            case "list":
                return values.tolist()
            case "masked":
                return np.ma.masked_invalid(values)
            case "frame":
                return pd.DataFrame(values) if values.ndim == 2 else pd.Series(values, index=range(5, 5 + len(values)))
            case "Int64":
                rounded = pd.DataFrame(np.where(np.isfinite(values), np.clip(values, -1e9, 1e9), 0.0).astype("i8"))
                frame = rounded.astype("Int64").rename(columns=str)
                return frame if values.ndim == 2 else frame["0"]
            case _:
                return values.astype(kind)


@st.composite
def calls(draw):
    """A model and data for it."""
    model = pgm.Model(
        LIKELIHOODS[draw(st.sampled_from(list(LIKELIHOODS)))], pgm.GP(KERNELS[draw(st.sampled_from(list(KERNELS)))])
    )
    labels = st.lists(st.sampled_from([0, 1]), min_size=ROWS, max_size=ROWS)
    powers = st.lists(st.sampled_from([0, 0.5, 1, 2, 1e8]), min_size=ROWS, max_size=ROWS)
    y = draw(st.one_of(labels, labels, arrays(0)))
    weights = draw(st.one_of(st.none(), st.none(), st.none(), powers, arrays(0)))
    return model, draw(arrays(2)), y, weights, draw(arrays(2)), draw(st.sampled_from([pgm.cavi, pgm.gaussian_vi]))


def check_call(call):
    model, X, y, weights, X_new, engine = call
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pgm.PgmodelsWarning)
        names = ("X", "y", "weights", "kernel")
        try:
            result = engine(model, X, y, weights=weights, max_iterations=20)
            assert np.isfinite([result.elbo, *result.mean.ravel(), *result.variance.ravel()]).all()
            assert (result.variance >= 0.0).all()
            names = ("X_new",)
            predicted = result.predict_latent(X_new)
            response = result.predict(X_new)
            assert all(np.isfinite(part).all() for part in predicted)
            # A mean of counts such as exp(1e4) is beyond the largest double.
            assert not np.isnan([response.mean, response.variance]).any()
        except (ValueError, TypeError) as error:
            message = str(error)
            assert any(name in message for name in names), message
            assert len(message) < 1000, message[:1000]


@pytest.mark.parametrize("count", COUNTS)
def test_calls_with_odd_data_are_finite_or_name_an_argument(count):
    settings(FUZZ, max_examples=count)(given(calls())(check_call))()


# Columns of data frames, each of eight rows.
LENGTH = 8
DAYS = pd.date_range("2024-02-27", periods=LENGTH)
COLUMNS = {
    "numbers": st.lists(numbers(holes=False), min_size=LENGTH, max_size=LENGTH).map(np.array),
    "holes": st.lists(numbers(), min_size=LENGTH, max_size=LENGTH).map(np.array),
    "whole": st.lists(st.integers(-3, 3), min_size=LENGTH, max_size=LENGTH).map(np.array),
    "ids": st.just(2**53 + np.arange(LENGTH)),
    "constant": st.sampled_from([np.zeros(LENGTH), np.full(LENGTH, 7.5)]),
    "truth": st.lists(st.booleans(), min_size=LENGTH, max_size=LENGTH),
    "text": st.lists(st.sampled_from(["a", "b", "c d", ""]), min_size=LENGTH, max_size=LENGTH),
    "digits": st.lists(st.sampled_from(["1", "2", "10"]), min_size=LENGTH, max_size=LENGTH),
    "category": st.lists(st.sampled_from("ab"), min_size=LENGTH, max_size=LENGTH).map(
        lambda labels: pd.Categorical(labels, categories=list("cab"), ordered=True)
    ),
    "nullable": st.just(pd.array([1, 2, 3, 4, 1, 2, 3, None], dtype="Int64")),
    "string": st.just(pd.array(list("ababacac"), dtype="string")),
    "object": st.sampled_from([[1.5, None, 2.0, 3.0] * 2, [1, "a", 2.0, None] * 2, [[1], [2]] * 4, [1j] * LENGTH]),
    "date": st.sampled_from([DAYS, DAYS.tz_localize("UTC"), DAYS.astype(object), DAYS - DAYS[0]]),
    "empty": st.just([None] * LENGTH),
}
TERMS = ["{a}", "C({a})", "s({a})", "gp({a})", "gp({a}, {b})", "gp({a}, by={b})", "(1|{a})", "({a}|{b})", "({a}||{b})"]
TERMS += ["(1|{a}/{b})", "{a}:{b}", "{a}*{b}", "ar1({a})", "offset({a})", "I({a}**2)", "log({a})", "poly({a}, 2)", "0"]
TERMS += ["standardize({a})", "-1", "{a}^2", "s({a}, k=3)", "te({a}, {b})", "factor({a})", "np.sqrt({a})", "{a} > 0"]
FAMILIES = ["gaussian", "student", "bernoulli", "poisson", "negbinomial", "cumulative", "categorical", "gamma", "nb"]


@st.composite
def regressions(draw):
    """A data frame, a formula of its columns, a family and weights."""
    counts = st.lists(st.integers(0, 3), min_size=LENGTH, max_size=LENGTH)
    frame = pd.DataFrame({name: draw(COLUMNS[draw(st.sampled_from(list(COLUMNS)))]) for name in "xzg"})
    frame["y"] = draw(st.one_of(counts, counts, counts, *COLUMNS.values()))
    terms = draw(st.lists(st.sampled_from(TERMS), min_size=1, max_size=3))
    named = [term.format(a=draw(st.sampled_from("xyzg")), b=draw(st.sampled_from("xyzg"))) for term in terms]
    response = draw(st.sampled_from(["y"] * 6 + ["log(y)", "p(y, x)", "Surv(y, x)", "y | se(x)", "c(y, x)"]))
    text = f"{response} ~ {' + '.join(named)}"
    if draw(st.integers(0, 9)) == 9:
        text += draw(st.text("xyzg~+-*/|:()[]{},.^0123 '\"=_<I", min_size=1, max_size=12))
    return (
        text,
        frame,
        draw(st.sampled_from(FAMILIES)),
        draw(st.one_of(st.none(), st.none(), st.sampled_from(["x", "z"]))),
        draw(st.sampled_from(["drop", "drop", "drop", "raise", "predict"])),
    )


def check_regression(call):
    text, frame, family, weights, missing = call
    before = frame.copy(deep=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pgm.PgmodelsWarning)
        try:
            regression = pgm.formula(text, frame, family=family, weights=weights, missing=missing)
        except (ValueError, TypeError) as error:
            message = str(error)
            assert any(name in message for name in ("formula", "data", "family", "weights", "column")), message
            assert len(message) < 1000, message[:1000]
            return
    pd.testing.assert_frame_equal(frame, before)
    assert np.isfinite(regression.X).all()
    assert missing == "predict" or np.isfinite(regression.y).all()
    # New data are read as the data were.
    X, _ = regression.read(regression.data)
    np.testing.assert_array_equal(X, regression.X)


@pytest.mark.parametrize("count", COUNTS)
def test_formulas_of_odd_columns_are_models_or_name_an_argument(count):
    settings(FUZZ, max_examples=count)(given(regressions())(check_regression))()
