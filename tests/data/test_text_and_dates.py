"""Text and dates where numbers are needed: errors whose remedies work, and what is read as numbers."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest

import pgmodels as pgm
from pgmodels.data.arrays import as_numbers, check_finite, read_inputs

MODEL = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0)))
LABELS = np.array([0.0, 1.0, 1.0])
BERLIN = "Europe/Berlin"


def refused(call, remedy):
    """Check that a call is refused with a remedy."""
    with pytest.raises(ValueError, match=remedy):
        call()


def days(*dates):
    """Days from the first of the training data, OLD."""
    return [[(datetime.fromisoformat(one) - datetime(2021, 5, 7)) / timedelta(days=1)] for one in dates]


LEVELS = ["low", "high", "mid"]
OLD, NEW = ["2024-01-01", "2024-03-01", "2021-05-07"], ["1990-07-04", "2024-03-01", "2030-01-01"]


def stamps(dates):
    return [pd.Timestamp(one) for one in dates]


def to_datetime(entries):
    return pd.to_datetime([getattr(t, "start_time", t) for t in entries], utc=True, format="ISO8601")


def zoned(dates):
    return [pd.Timestamp(one, tz="UTC").tz_convert(BERLIN) for one in dates]


def mixed(dates):
    first, second, third = stamps(dates)
    entries = np.empty(3, dtype=object)
    entries[:] = [first.date(), second.tz_localize("UTC"), pd.Period(third, "D")]
    return entries


DATES = {
    "datetime64[D]": lambda t: np.array(t, dtype="datetime64[D]"),
    "list of date": lambda t: [date.fromisoformat(one) for one in t],
    "list of datetime with a zone": lambda t: [datetime.fromisoformat(one).replace(tzinfo=UTC) for one in t],
    "list of Timestamp with a zone": zoned,
    "list of Period": lambda t: [pd.Period(one, "D") for one in t],
    "Series": lambda t: pd.Series(stamps(t), index=[3, 4, 9]),
    "Series with a zone": lambda t: pd.Series(zoned(t)),
    "PeriodIndex": lambda t: pd.PeriodIndex(t, freq="D"),
    "object array that mixes": mixed,
    "text": list,
    "text of times": lambda t: [t[0] + "T00:00:00Z", t[1] + " 00:00", t[2]],
    "DataFrame of text": lambda t: pd.DataFrame({"t": t}),
    "polars Series of Date": lambda t: pl.Series([date.fromisoformat(one) for one in t]),
    "polars Series of Datetime": lambda t: pl.Series([datetime.fromisoformat(one) for one in t]),
    "polars Series with a zone": lambda t: pl.Series([datetime.fromisoformat(one) for one in t]).dt.replace_time_zone(
        "UTC"
    ),
}


@pytest.mark.parametrize("kind", DATES)
def test_dates_of_inputs_need_a_frame(kind):
    value, new = DATES[kind](OLD), DATES[kind](NEW)
    refused(
        lambda: MODEL.check_inputs(value),
        "X holds dates or times, and their unit is ambiguous; got '2024.*in"
        " row 0.* Give a pandas.DataFrame: its columns of dates become days",
    )
    if "DataFrame" not in kind:
        refused(lambda: MODEL.check_inputs(new, "X_new", 1), "The training X was an array of numbers: .* fit the model")
    # The remedies work: a frame, and pandas.to_datetime for text and dates of several zones.
    old, new = (pd.DataFrame({"t": np.ravel(np.asarray(one))}) for one in (value, new))
    if "text" in kind or "mixes" in kind:
        old, new = (pd.DataFrame({"t": to_datetime(frame["t"])}) for frame in (old, new))
    X, columns = read_inputs(old, "X")
    np.testing.assert_allclose(X, days(*OLD), rtol=1e-12)
    np.testing.assert_allclose(read_inputs(new, "X_new", columns)[0], days(*NEW), rtol=1e-12)


# Entries are told apart as those of inputs are.
@pytest.mark.parametrize("kind", ["datetime64[D]", "list of date", "text", "polars Series of Date"])
def test_dates_of_observations_are_refused(kind):
    value = DATES[kind](OLD)
    model = pgm.Model(pgm.Gaussian(1.0), pgm.GP(pgm.RBF(1.0, 1.0)))
    refused(lambda: model.check_observations(value, 3), "y holds dates or times.* Give days from a fixed day, the same")


@pytest.mark.parametrize("make", [list, pd.Series, lambda v: pl.Series(v)])
def test_durations_and_times_of_day_are_refused(make):
    hours = make([timedelta(hours=one) for one in (6, 30, -12)])
    refused(lambda: MODEL.check_inputs(hours), "X holds dates or times.* its columns of durations become days")
    refused(lambda: as_numbers(hours, "weights"), "weights holds dates or times.* Give days, as numbers")
    np.testing.assert_allclose(read_inputs(pd.DataFrame({"t": hours}), "X")[0], [[0.25], [1.25], [-0.5]], rtol=1e-12)
    times = make([time(6, 30), time(0), time(23, 59, 30)])
    for value in (times, pd.DataFrame({"t": times})):
        refused(lambda value=value: MODEL.check_inputs(value), "got '06:30:00'.* Give hours from midnight, as numbers")


TEXT = {
    "list": list,
    "array": np.array,
    "Series": lambda v: pd.Series(v, index=[7, 2, 5]),
    "Series of string": lambda v: pd.Series(v, dtype="string"),
    "DataFrame with a number for a label": lambda v: pd.DataFrame({3: v}),
    "Categorical": lambda v: pd.Series(pd.Categorical(v, ["low", "mid", "high"], ordered=True)),
    "polars Series": lambda v: pl.Series(v),
    "polars Enum": lambda v: pl.Series(v, dtype=pl.Enum(["low", "mid", "high"])),
    "polars Categorical": lambda v: pl.Series(v, dtype=pl.Categorical),
}


@pytest.mark.parametrize("kind", TEXT)
def test_text_of_inputs_needs_a_frame(kind):
    value = TEXT[kind](LEVELS)
    refused(
        lambda: MODEL.check_inputs(value),
        "X must be numeric; got 'low' of type str in row 0.* Text is never "
        "converted to numbers implicitly. Give a pandas.DataFrame: its columns of text and categories become codes",
    )
    refused(lambda: MODEL.check_inputs(value, "X_new", 1), "The training X was an array of numbers: give numbers, or")
    frame = pd.DataFrame({"level": value if isinstance(value, pd.Series) else np.ravel(np.asarray(value))})
    X, columns = read_inputs(frame, "X")
    order = ["low", "mid", "high"] if kind == "Categorical" else ["high", "low", "mid"]
    np.testing.assert_array_equal(X[:, 0], [order.index(one) for one in LEVELS])
    np.testing.assert_array_equal(read_inputs(frame[1:], "X_new", columns)[0], X[1:])


def test_text_of_observations_has_no_codes():
    # Of counts, text has no levels that the library may choose.
    counts = pgm.Model(pgm.NegativeBinomial(2.0), pgm.GP(pgm.RBF(1.0, 1.0)))
    refused(
        lambda: counts.check(np.eye(3), ["no", "yes", "no"]),
        "y must be numeric; got 'no'.* Give numbers, with the same",
    )


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
    message = "must be numeric; got '1' of type str in row 0.*Text is never converted.* Convert it by pandas.to_numeric"
    refused(lambda: as_numbers(value, "y"), f"y {message}")
    refused(lambda: MODEL.check_inputs(value), f"X {message}.* in which it is a pandas.Categorical")


def test_the_column_that_has_no_numbers_is_named():
    # Text and dates are read in a frame: the column to change is another one.
    columns = {"x": [1.0, 2.0, 3.0], "t": [date.fromisoformat(one) for one in OLD], "c": LEVELS, "n": ["1", "2", "3"]}
    for value in (pd.DataFrame(columns), pl.DataFrame(columns)):
        refused(
            lambda value=value: MODEL.check_inputs(value), "X must be numeric; got '1' of type str in row 0, column 'n'"
        )
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    for value in (rows, np.array(rows, dtype=object)):
        refused(
            lambda value=value: MODEL.check_inputs(value), "X holds dates or times.*'2024-01-01' in row 0, column 1"
        )


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
    "a text": ("high", "'high' of type str. Text is never converted to numbers implicitly. Give numbers"),
    "complex among objects": (np.array([1.0, 2j, None], dtype=object), "numpy.real"),
    "beyond doubles": ([10**400, 1], "must be numeric"),
}


@pytest.mark.parametrize("name", MIXED)
def test_entries_of_several_kinds_are_refused(name):
    value, message = MIXED[name]
    refused(lambda: as_numbers(value, "X"), message)


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
    "column",
    [
        pd.Series([*stamps(OLD), pd.NaT]),
        pl.Series([*map(date.fromisoformat, OLD), None]),
        ["a", *"bb", None],
        pd.Categorical(["a", "b", "b", None]),
    ],
)
def test_missing_dates_and_text_are_named_by_row(column):
    frame = pl.DataFrame if isinstance(column, pl.Series) else pd.DataFrame
    with pytest.raises(ValueError, match="X must be finite; got nan in row 3, column 'a'"):
        MODEL.check_inputs(frame({"a": column}))


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
