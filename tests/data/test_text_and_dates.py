"""Text and dates among what users give: the code that a message prints runs as it stands, and for new data alike."""

import warnings
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest

import pgmodels as pgm
from pgmodels.data.arrays import as_numbers, check_finite

MODEL = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0)))
LABELS = np.array([0.0, 1.0, 1.0])
BERLIN = "Europe/Berlin"


def code_of(call):
    """The code that the message of a call prints: its indented lines."""
    with pytest.raises(ValueError) as caught:
        call()
    lines = str(caught.value).split("\n")
    code = [line[4:] for line in lines if line.startswith("    ")]
    assert code, str(caught.value)
    return "\n".join(code)


def run(code, name, value):
    """What a name is bound to after the code, which imports what it uses."""
    space = {name: value}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(code, space)
    return space[name]


def days(*dates):
    return [[(datetime.fromisoformat(one) - datetime(2000, 1, 1)) / timedelta(days=1)] for one in dates]


OLD, NEW = ["2024-01-01", "2024-03-01", "2021-05-07"], ["1990-07-04", "2024-03-01", "2030-01-01"]


def stamps(dates):
    return [pd.Timestamp(one) for one in dates]


def zoned(dates):
    return [pd.Timestamp(one, tz="UTC").tz_convert(BERLIN) for one in dates]


def mixed(dates):
    first, second, third = stamps(dates)
    entries = np.empty(3, dtype=object)
    entries[:] = [first.date(), second.tz_localize("UTC"), pd.Period(third, "D")]
    return entries


DATES = {
    "datetime64[D]": lambda t: np.array(t, dtype="datetime64[D]"),
    "datetime64[ns]": lambda t: np.array(t, dtype="datetime64[ns]"),
    "a column of datetime64[ns]": lambda t: np.array(t, dtype="datetime64[ns]")[:, None],
    "list of date": lambda t: [date.fromisoformat(one) for one in t],
    "list of datetime": lambda t: [datetime.fromisoformat(one) for one in t],
    "list of datetime with a zone": lambda t: [datetime.fromisoformat(one).replace(tzinfo=UTC) for one in t],
    "list of Timestamp": stamps,
    "list of Timestamp with a zone": zoned,
    "list of Period": lambda t: [pd.Period(one, "D") for one in t],
    "list of np.datetime64": lambda t: [np.datetime64(one) for one in t],
    "rows of date": lambda t: [[date.fromisoformat(one)] for one in t],
    "Series": lambda t: pd.Series(stamps(t), index=[3, 4, 9]),
    "Series with a zone": lambda t: pd.Series(zoned(t)),
    "Series of Period": lambda t: pd.Series(pd.PeriodIndex(t, freq="D")),
    "Series of text": lambda t: pd.Series(t),
    "Series of string": lambda t: pd.Series(t, dtype="string"),
    "Series of date": lambda t: pd.Series([date.fromisoformat(one) for one in t]),
    "DatetimeIndex": lambda t: pd.DatetimeIndex(t),
    "DatetimeIndex with a zone": lambda t: pd.DatetimeIndex(zoned(t)),
    "PeriodIndex": lambda t: pd.PeriodIndex(t, freq="D"),
    "object array that mixes": mixed,
    "text": list,
    "array of text": np.array,
    "text of times": lambda t: [t[0] + "T00:00:00Z", t[1] + " 00:00", t[2]],
    "text without hyphens": lambda t: [one.replace("-", "") for one in t],
    "DataFrame of text": lambda t: pd.DataFrame({"t": t}),
    "polars Series of Date": lambda t: pl.Series([date.fromisoformat(one) for one in t]),
    "polars Series of Datetime": lambda t: pl.Series([datetime.fromisoformat(one) for one in t]),
    "polars Series with a zone": lambda t: pl.Series([datetime.fromisoformat(one) for one in t]).dt.replace_time_zone(
        "UTC"
    ),
    "polars Series of text": lambda t: pl.Series(t),
}


@pytest.mark.parametrize("kind", DATES)
def test_days_are_counted_from_one_day(kind):
    value, new = DATES[kind](OLD), DATES[kind](NEW)
    code = code_of(lambda: MODEL.check_inputs(value))
    np.testing.assert_allclose(MODEL.check_inputs(run(code, "X", value)), days(*OLD), rtol=1e-12)
    np.testing.assert_allclose(MODEL.check_inputs(run(code, "X", new)), days(*NEW), rtol=1e-12)
    # And what is printed for new data by themselves says the same.
    code = code_of(lambda: MODEL.check_inputs(new, "X_new", 1))
    np.testing.assert_allclose(MODEL.check_inputs(run(code, "X_new", new), "X_new", 1), days(*NEW), rtol=1e-12)


@pytest.mark.parametrize("kind", [kind for kind in DATES if "DataFrame" not in kind and "column" not in kind])
def test_days_as_observations(kind):
    value = DATES[kind](OLD)
    if np.ndim(value) != 1:
        return
    model = pgm.Model(pgm.Gaussian(1.0), pgm.GP(pgm.RBF(1.0, 1.0)))
    code = code_of(lambda: model.check_observations(value, 3))
    np.testing.assert_allclose(model.check_observations(run(code, "y", value), 3), np.ravel(days(*OLD)), rtol=1e-12)


def test_predictions_of_another_year_are_of_another_day():
    value, new = pd.Series(stamps(OLD)), pd.Series(stamps(["1990-07-04"]))
    fit = lambda X: pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 300.0))), X, LABELS)  # noqa: E731
    code = code_of(lambda: fit(value))
    vi = fit(run(code, "X", value))
    # Thirty years before all data there is nothing but the prior.
    np.testing.assert_allclose(vi.predict_latent(run(code, "X", new))[1], 1.0, atol=1e-9)


DURATIONS = {
    "timedelta64": lambda t: np.array(t, dtype="timedelta64[h]"),
    "a column of timedelta64": lambda t: np.array(t, dtype="timedelta64[h]")[:, None],
    "list of timedelta": lambda t: [timedelta(hours=one) for one in t],
    "Series": lambda t: pd.Series([pd.Timedelta(one, "h") for one in t]),
    "TimedeltaIndex": lambda t: pd.TimedeltaIndex([pd.Timedelta(one, "h") for one in t]),
    "polars Series": lambda t: pl.Series([timedelta(hours=one) for one in t]),
}


@pytest.mark.parametrize("kind", DURATIONS)
def test_durations_are_counted_in_days(kind):
    for hours in ([12, 36, -6], [48, 1, 2]):
        value = DURATIONS[kind](hours)
        code = code_of(lambda value=value: MODEL.check_inputs(value))
        numbers = MODEL.check_inputs(run(code, "X", value))
        np.testing.assert_allclose(numbers[:, -1], np.array(hours) / 24.0, rtol=1e-12)


def test_times_of_day_are_counted_in_hours():
    value = [time(6, 30), time(0), time(23, 59, 30)]
    code = code_of(lambda: MODEL.check_inputs(value))
    np.testing.assert_allclose(MODEL.check_inputs(run(code, "X", value)), [[6.5], [0.0], [23 + 59.5 / 60]])


ORDERED = ["low", "high", "mid"]
TEXT = {
    "list": (list, False),
    "rows": (lambda v: [[one] for one in v], False),
    "array": (np.array, False),
    "object array": (lambda v: np.array(v, dtype=object), False),
    "bytes": (lambda v: [one.encode() for one in v], False),
    "Series": (lambda v: pd.Series(v, index=[7, 2, 5]), False),
    "Series of string": (lambda v: pd.Series(v, dtype="string"), False),
    "Index": (pd.Index, False),
    "DataFrame with a number for a label": (lambda v: pd.DataFrame({3: v}), False),
    "Categorical": (lambda v: pd.Series(pd.Categorical(v, ["low", "mid", "high"], ordered=True)), True),
    "polars Series": (lambda v: pl.Series(v), False),
    "polars Enum": (lambda v: pl.Series(v, dtype=pl.Enum(["low", "mid", "high"])), True),
    "polars Categorical": (lambda v: pl.Series(v, dtype=pl.Categorical), False),
}


@pytest.mark.parametrize("kind", TEXT)
def test_text_has_one_coding(kind):
    make, is_ordered = TEXT[kind]
    order = ["low", "mid", "high"] if is_ordered else ["high", "low", "mid"]
    value, new = make(ORDERED), make(["mid", "mid", "high"])
    code = code_of(lambda: MODEL.check_inputs(value))
    numbers = MODEL.check_inputs(run(code, "X", value))
    np.testing.assert_array_equal(numbers[:, 0], [order.index(one) for one in ORDERED])
    numbers = MODEL.check_inputs(run(code, "X", new))
    np.testing.assert_array_equal(numbers[:, 0], [order.index(one) for one in ("mid", "mid", "high")])
    if is_ordered:
        return
    # What the training data do not have is refused, with its row.
    with pytest.raises(ValueError, match="nan in row 1"):
        MODEL.check_inputs(run(code, "X", make(["low", "other", "high"])))


def test_new_text_is_coded_by_what_was_learned_from():
    training = code_of(lambda: MODEL.check_inputs(ORDERED))
    new = code_of(lambda: MODEL.check_inputs(["mid", "mid"], "X_new", 1))
    assert "{" not in new
    space = {"X": ORDERED, "X_new": ["mid", "mid"]}
    exec(training, space)
    exec(new, space)
    np.testing.assert_array_equal(space["X_new"], [[2.0], [2.0]])
    vi = pgm.cavi(MODEL, space["X"], LABELS)
    draws = pgm.gibbs(MODEL, space["X"], LABELS, num_samples=4, num_warmup=0, num_chains=1)
    for call in (
        lambda: pgm.compare(draws=draws, vi=vi, X=[[1.0], [0.0]], y=["yes", "yes"]),
        lambda: vi.predict([[1.0], [0.0]]).log_density(["yes", "yes"]),
    ):
        assert "{" not in code_of(call)


def test_text_of_observations_has_one_coding():
    # Of counts, text has no levels that the library may choose.
    y, counts = pd.Series(["no", "yes", "no"]), pgm.Model(pgm.NegativeBinomial(2.0), pgm.GP(pgm.RBF(1.0, 1.0)))
    code = code_of(lambda: counts.check(np.eye(3), y))
    np.testing.assert_array_equal(counts.check(np.eye(3), run(code, "y", y)).y, [0.0, 1.0, 0.0])
    np.testing.assert_array_equal(run(code, "y", ["yes", "yes"]), [1.0, 1.0])


def test_many_levels_are_computed_once():
    value = [f"name {i}" for i in range(70)]
    code = code_of(lambda: MODEL.check_inputs(value))
    assert len(code) < 400
    space = {"X": value}
    exec(code, space)
    np.testing.assert_array_equal(space["X"][:3, 0], [0.0, 1.0, 12.0])
    once, again = code.rsplit("\n", 1)
    assert once.endswith("# once, for training data and new data alike")
    space["X"] = ["name 10"]
    exec(again, space)
    np.testing.assert_array_equal(space["X"], [[2.0]])


@pytest.mark.parametrize(
    "make",
    [
        list,
        np.array,
        lambda v: np.array(v)[:, None],
        pd.Series,
        lambda v: pd.Series(v, dtype="string"),
        lambda v: pd.DataFrame({"a": v}),
        lambda v: pl.Series(v),
        lambda v: pl.DataFrame({"a": v}),
    ],
)
def test_text_of_numbers_is_no_number(make):
    value = make(["1", "2.5", "-3e2"])
    with pytest.raises(ValueError, match=r"X must be numeric; got '1' of type str in row 0.*Text is never converted"):
        as_numbers(value, "X")
    code = code_of(lambda: MODEL.check_inputs(value))
    np.testing.assert_array_equal(MODEL.check_inputs(run(code, "X", value)), [[1.0], [2.5], [-300.0]])


def frames():
    t, c = stamps(OLD), pd.Categorical(ORDERED, ["low", "mid", "high"])
    yield pd.DataFrame({"x": [1.0, 2.0, 3.0], "t": t, "c": c, "n": ["1", "2", "3"]})
    d = [date.fromisoformat(one) for one in OLD]
    rows = [[1.0, 2.0, 3.0], d, ORDERED, ["1", "2", "3"]]
    yield np.array(rows, dtype=object).T
    yield [list(row) for row in zip(*rows, strict=True)]
    enum = pl.Enum(["low", "mid", "high"])
    yield pl.DataFrame({"x": rows[0], "t": d, "c": pl.Series(ORDERED, dtype=enum), "n": rows[3]})


@pytest.mark.parametrize("place", range(4))
def test_columns_of_several_kinds(place):
    value = list(frames())[place]
    code = code_of(lambda: MODEL.check_inputs(value))
    numbers = MODEL.check_inputs(run(code, "X", value))
    codes = [0.0, 2.0, 1.0] if place in (0, 3) else [1.0, 0.0, 2.0]
    np.testing.assert_allclose(numbers, np.column_stack([[1.0, 2.0, 3.0], days(*OLD), codes, [1.0, 2.0, 3.0]]))
    # A frame stays one, with its names, and what was given is as it was.
    assert value[0][1] == date(2024, 1, 1) if place == 2 else True


def test_dates_beside_numbers_in_polars_are_no_numbers():
    # As one array they would be days from 1970, in double precision.
    frame = pl.DataFrame({"x": [0.5, 1.5], "t": [date(2024, 1, 1), date(2024, 3, 1)]})
    with pytest.raises(ValueError, match=r"X holds dates or times.*in row 0, column 't'"):
        as_numbers(frame, "X")


MIXED = {
    "text among numbers": ([1.0, 2.0, "high"], "'high' of type str in row 2. Other entries are of another kind"),
    "dates among numbers": (
        [3.0, date(2024, 1, 1)],
        "holds dates or times.*'2024-01-01' in row 1. Other entries are of",
    ),
    "text among dates": ([date(2024, 1, 1), "soon"], "Other entries are of another kind"),
    "a text": ("high", "'high' of type str. Give numbers"),
    "complex among objects": (np.array([1.0, 2j, None], dtype=object), "numpy.real"),
    "beyond doubles": ([10**400, 1], "must be numeric"),
}


@pytest.mark.parametrize("name", MIXED)
def test_what_needs_a_decision_has_no_code(name):
    value, message = MIXED[name]
    with pytest.raises(ValueError, match=message) as caught:
        as_numbers(value, "X")
    assert "\n" not in str(caught.value)


NUMBERS = {
    "bool": [True, False],
    "Decimal": [Decimal("1.0"), Decimal(0)],
    "objects": np.array([1, 0.0], dtype=object),
    "Int64": pd.Series([1, 0], dtype="Int64"),
    "boolean": pd.Series([True, False], dtype="boolean"),
    "Categorical of numbers": pd.Series(pd.Categorical([1, 0], [1, 0], ordered=True)),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_pass(name):
    np.testing.assert_array_equal(as_numbers(NUMBERS[name], "X"), [1.0, 0.0])


MISSING = {
    "None": [1.0, None],
    "NaN": [1.0, np.nan],
    "Int64": pd.Series([1, None], dtype="Int64"),
    "Float64": pd.Series([1.5, None], dtype="Float64"),
    "boolean": pd.Series([True, None], dtype="boolean"),
    "pandas.NA": np.array([2, pd.NA], dtype=object),
    "Decimal": [Decimal(1), None],
    "NaT among numbers": np.array([2, pd.NaT], dtype=object),
    "frame": pd.DataFrame({"a": pd.Series([1, None], dtype="Int64"), "b": [True, False]}),
}


@pytest.mark.parametrize("name", MISSING)
def test_missing_entries_are_named_by_row(name):
    with pytest.raises(ValueError, match=r"X must be finite; got nan in row 1.*1 such values"):
        check_finite(as_numbers(MISSING[name], "X"), "X")


def test_missing_entries_of_polars_are_named_by_row():
    for value in (pl.Series([1, None]), pl.Series([True, None]), pl.DataFrame({"a": [1, None], "b": [0.5, 1.0]})):
        with pytest.raises(ValueError, match="X must be finite; got nan in row 1"):
            check_finite(as_numbers(value, "X"), "X")
    assert as_numbers(pl.DataFrame(), "X").shape == (0, 0)


@pytest.mark.parametrize(
    ("make", "new"),
    [
        (lambda t: [*t, None], lambda code: code),
        (lambda t: pd.Series([*stamps(t), pd.NaT]), lambda code: code),
        (lambda t: [*stamps(t), pd.NaT], lambda code: code),
        (lambda t: pl.Series([*map(date.fromisoformat, t), None]), lambda code: code),
        (lambda t: ["a", *"bb", None], lambda code: code),
        (lambda t: pd.Series(["1", "2", "3", None]), lambda code: code),
        (lambda t: pd.Series(pd.Categorical(["a", "b", "b", None])), lambda code: code),
    ],
)
def test_missing_dates_and_text_are_named_by_row(make, new):
    value = make(OLD)
    code = code_of(lambda: MODEL.check_inputs(value))
    with pytest.raises(ValueError, match="X must be finite; got nan in row 3, column 0"):
        MODEL.check_inputs(run(code, "X", value))


@pytest.mark.parametrize("make", [list, np.array, pd.Series, lambda v: pl.Series(v)])
def test_labels_have_one_coding(make):
    for model, labels, codes in (
        (MODEL, [2, 1, 2], [1.0, 0.0, 1.0]),
        (pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(pgm.RBF(1.0, 1.0), size=3)), [3, 1, 2], [2.0, 0.0, 1.0]),
    ):
        with pytest.raises(ValueError) as caught:
            model.check_observations(make(labels), 3)
        code = str(caught.value).rpartition(": y = ")[2].rstrip(".")
        names = {"numpy": np, "y": make(labels)}
        np.testing.assert_array_equal(model.check_observations(eval(code, names), 3), codes)
        # A test set without the first label has the same codes.
        names["y"] = make(labels[:1])
        np.testing.assert_array_equal(eval(code, names), codes[:1])


COLUMNS = {
    "array": np.array,
    "list": list,
    "Series": lambda v: pd.Series(v, index=[4, 5, 6]),
    "Index": pd.Index,
    "polars": lambda v: pl.Series(v),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_hints_of_shapes_run(kind):
    value = COLUMNS[kind]([0.5, 1.5, 2.5])
    with pytest.raises(ValueError) as caught:
        MODEL.check_inputs(value)
    hint = str(caught.value).rpartition("Use ")[2].rstrip(".")
    names = {"X": value, "numpy": np}
    np.testing.assert_array_equal(MODEL.check_inputs(eval(hint, names)), [[0.5], [1.5], [2.5]])
    with pytest.raises(ValueError, match="for one row") as caught:
        MODEL.check_inputs(value, "X", 3)
    hint = str(caught.value).rpartition("Use ")[2].removesuffix(" for one row.")
    np.testing.assert_array_equal(MODEL.check_inputs(eval(hint, names), "X", 3), [[0.5, 1.5, 2.5]])
    matrix = {"list": [[0.0], [1.0], [1.0]], "Series": pd.DataFrame({"y": LABELS})}.get(kind, LABELS[:, None])
    if kind == "polars":
        matrix = pl.DataFrame({"y": LABELS})
    with pytest.raises(ValueError) as caught:
        MODEL.check_observations(matrix, 3)
    for hint in str(caught.value).rpartition("Use ")[2].rstrip(".").split(" or "):
        np.testing.assert_array_equal(MODEL.check_observations(eval(hint, {"y": matrix, "numpy": np}), 3), LABELS)
