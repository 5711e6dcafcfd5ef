"""Columns of data frames in formulas: every term reads every kind of column, or names the one that it cannot read."""

import datetime as dt
from decimal import Decimal
from itertools import product

import numpy as np
import pandas as pd
import polars as pl
import pytest

import pgmodels as pgm
from tests.covering import some

N = 12
RNG = np.random.default_rng(11)
DATA = pd.DataFrame(
    {
        "y": RNG.normal(3.0, 1.0, N),
        "x": RNG.normal(size=N),
        "k": np.arange(N) % 3 + 1,
        "g": [f"g{number % 3}" for number in range(N)],
        "b": np.arange(N) % 2 == 0,
        "t": pd.date_range("2024-03-01", periods=N, freq="D"),
        "d": [Decimal(number) / 4 for number in range(N)],
    }
)
DATA["d"] = DATA["d"].astype(float)
# Of each term the formula, with the column in place of the braces.
TERMS = {
    "linear": "y ~ {0} + x", "C": "y ~ C({0})", "s": "y ~ s({0})", "gp": "y ~ gp({0})", "group": "y ~ (1|{0})",
    "by": "y ~ gp(x, by=C({0}))", "offset": "y ~ x + offset({0})", "response": "{0} ~ x", "weights": "y ~ x",
}  # fmt: skip
# The column that is plain, and how it is written in another way.
WAYS = {
    "integers of 8 bits": ("k", lambda frame: frame.assign(k=frame["k"].astype("int8"))),
    "integers without a sign": ("k", lambda frame: frame.assign(k=frame["k"].astype("uint64"))),
    "nullable integers": ("k", lambda frame: frame.assign(k=frame["k"].astype("Int64"))),
    "integers of Arrow": ("k", lambda frame: frame.assign(k=frame["k"].astype("int32[pyarrow]"))),
    "integers as objects": ("k", lambda frame: frame.assign(k=frame["k"].astype(object))),
    "floats of 32 bits": ("d", lambda frame: frame.assign(d=frame["d"].astype("float32"))),
    "nullable floats": ("d", lambda frame: frame.assign(d=frame["d"].astype("Float64"))),
    "decimals": ("d", lambda frame: frame.assign(d=[Decimal(value) for value in frame["d"]])),
    "decimals of Arrow": (
        "d",
        lambda frame: frame.assign(
            d=pd.Series([Decimal(value) for value in frame["d"]]).convert_dtypes(dtype_backend="pyarrow").to_numpy()
        ),
    ),
    "text of pandas": ("g", lambda frame: frame.assign(g=frame["g"].astype("string"))),
    "text of Arrow": ("g", lambda frame: frame.assign(g=frame["g"].astype("string[pyarrow]"))),
    "text as objects": ("g", lambda frame: frame.assign(g=frame["g"].astype(object))),
    "categories": ("g", lambda frame: frame.assign(g=frame["g"].astype("category"))),
    "an unused category": ("g", lambda frame: frame.assign(g=pd.Categorical(frame["g"], ["g0", "g1", "g2", "g3"]))),
    "ordered categories": ("g", lambda frame: frame.assign(g=pd.Categorical(frame["g"], ordered=True))),
    "booleans as objects": ("b", lambda frame: frame.assign(b=frame["b"].astype(object))),
    "nullable booleans": ("b", lambda frame: frame.assign(b=frame["b"].astype("boolean"))),
    "booleans of Arrow": ("b", lambda frame: frame.assign(b=frame["b"].astype("bool[pyarrow]"))),
    "dates of Python": ("t", lambda frame: frame.assign(t=[time.date() for time in frame["t"]])),
    "dates of Arrow": ("t", lambda frame: frame.assign(t=frame["t"].astype("date32[pyarrow]"))),
    "times as objects": ("t", lambda frame: frame.assign(t=frame["t"].astype(object))),
    "seconds": ("t", lambda frame: frame.assign(t=frame["t"].astype("datetime64[s]"))),
    "polars, numbers": ("d", pl.from_pandas),
    "polars, text": ("g", pl.from_pandas),
    "polars, times": ("t", pl.from_pandas),
    "polars, categories": ("g", lambda frame: pl.from_pandas(frame).with_columns(pl.col("g").cast(pl.Categorical))),
    "a shifted index": ("d", lambda frame: frame.set_axis(range(5, 5 + N))),
    "an index of text": ("g", lambda frame: frame.set_axis([f"row {number}" for number in range(N)])),
    "several indices": ("k", lambda frame: frame.set_axis(pd.MultiIndex.from_product([range(4), list("uvw")]))),
    "other places": ("k", lambda frame: frame[frame.columns[::-1]]),
}


# What a column cannot be: text is no number, and times are neither a response nor weights.
REFUSED = {(term, "g") for term in ("s", "gp", "offset", "response", "weights")} | {("response", "t"), ("weights", "t")}


def arrays(term, column, data):
    regression = pgm.formula(TERMS[term].format(column), data, weights=column if term == "weights" else None)
    weights = np.ones(len(regression.X)) if regression.weights is None else regression.weights
    names = [name for part in regression.terms for name in part.columns[0].names]
    return regression.X, regression.y, weights, names


# By default every way with one term and every term with three ways, and what is not the plain column.
DEFAULT = [
    *(([*TERMS][number % len(TERMS)], way) for number, way in enumerate(WAYS)),
    *(("s", "ordered categories"), ("gp", "ordered categories"), ("s", "text of pandas"), ("response", "seconds")),
]


@pytest.mark.parametrize(("term", "way"), some(product(TERMS, WAYS), *DEFAULT))
def test_a_column_in_another_way_is_the_plain_one_or_named(term, way):
    column, written = WAYS[way]
    if way == "ordered categories" and term in ("s", "gp", "offset"):
        # These are numbers, their places in the order.
        expected = arrays(term, column, DATA.assign(g=DATA["k"] - 1))[:3]
        values = arrays(term, column, written(DATA))[:3]
        for one, other in zip(expected, values, strict=True):
            np.testing.assert_array_equal(one, other)
        return
    if (term, column) in REFUSED:
        # What the plain column cannot be is refused of the other too, by its name.
        for data in (DATA, written(DATA)):
            with pytest.raises((ValueError, TypeError), match=rf"\b{column}\b"):
                arrays(term, column, data)
        return
    *expected, names = arrays(term, column, DATA)
    *values, others = arrays(term, column, written(DATA))
    for one, other in zip(expected, values, strict=True):
        np.testing.assert_array_equal(one, other)
    if "decimals" not in way:
        assert others == names


@pytest.mark.parametrize("way", [way for way in WAYS if "objects" in way or "nullable" in way or "Arrow" in way])
def test_a_hole_in_a_column_leaves_the_others_as_they_are(way):
    column, written = WAYS[way]
    holed = written(DATA)
    holed[column] = holed[column].where(holed.index != 4, None)
    formulas = [f"y ~ C({column})"] if column in ("g", "b") else [f"y ~ {column}", f"y ~ s({column})"]
    for text in formulas:
        with pytest.warns(pgm.FormulaWarning, match=rf"1 of 12 rows .* row 4, column '{column}'"):
            regression = pgm.formula(text, holed, missing="drop")
        plain = pgm.formula(text, DATA.drop(index=4))
        np.testing.assert_array_equal(regression.X, plain.X)
        assert [term.columns[0].names for term in regression.terms] == [term.columns[0].names for term in plain.terms]


UNREADABLE = {
    "kinds that are mixed": ([1, "a"] * 6, "has 1 of type int in row 0 and 'a' in row 1: give entries of one kind"),
    "times with and without a zone": (
        [dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 2, tzinfo=dt.UTC)] * 6,
        "give entries of one kind",
    ),
    "lists": ([[1], [2]] * 6, "of type list in row 0: give numbers, booleans, text, categories, dates or durations"),
    "complex numbers": ([1j, 2j] * 6, "of type complex in row 0"),
    "times of a day": ([dt.time(3), None] * 6, "of type time in row 0: give hours, as numbers"),
    "whole numbers beyond 64 bits": ([2**70, 1] * 6, "has whole numbers beyond 64 bits: convert them to text"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_column_of_no_kind_is_named_where_a_formula_reads_it(name):
    entries, message = UNREADABLE[name]
    data = DATA.assign(odd=pd.Series(entries, dtype=object))
    for text in ("y ~ odd", "y ~ (1|odd)", "odd ~ x"):
        with pytest.raises(ValueError, match=f"data, column 'odd', .*{message}"):
            pgm.formula(text, data)
    assert len(pgm.formula("y ~ x", data).gaussian_vi().predictions(data)) == N


@pytest.mark.parametrize("names", [[0, 1], pd.MultiIndex.from_product([["a"], ["b", "c"]])])
def test_column_names_that_are_no_text_are_named(names):
    frame = pd.DataFrame([[1.0, 2.0], [3.0, 4.0]], columns=names)
    with pytest.raises(ValueError, match=r"data: names of columns must be text, as in .*; got (0|\('a')"):
        pgm.formula("y ~ x", frame)


def test_durations_are_days_in_every_term():
    waits = pd.to_timedelta(np.arange(N) * 6, unit="h")
    data, days = DATA.assign(w=waits), DATA.assign(w=np.arange(N) / 4.0)
    for text in ("y ~ w", "y ~ s(w)", "y ~ gp(w)", "y ~ log(1 + w)", "y ~ x + offset(w)", "w ~ x"):
        ours, theirs = (pgm.formula(text, frame) for frame in (data, days))
        np.testing.assert_allclose(ours.X, theirs.X, rtol=1e-15)
        np.testing.assert_allclose(ours.y, theirs.y, rtol=1e-15)
    result = pgm.formula("y ~ w + s(w)", data).gaussian_vi()
    assert list(result.predictions(conditional="w")["w"]) == list(waits)
    with pytest.raises(ValueError, match="newdata has numbers in column 'w', and the training data have durations"):
        result.predictions(days)


@pytest.fixture(scope="module")
def zoned():
    data = DATA.assign(t=DATA["t"].dt.tz_localize("Europe/Rome"))
    priors = {"s(t)": {"variance": 0.5, "lengthscale": 4.0}}
    return pgm.formula("y ~ s(t)", data, priors=priors).gaussian_vi()


def test_times_without_a_zone_for_times_with_one_are_refused(zoned):
    with pytest.raises(ValueError, match="newdata has dates or times without a time zone in column 't', and the trai"):
        zoned.predictions(DATA)
    plain = pgm.formula("y ~ t", DATA).gaussian_vi()
    with pytest.raises(ValueError, match="newdata has times with a time zone in column 't', and the"):
        plain.predictions(zoned.regression.data)
    instants = zoned.regression.data.assign(t=zoned.regression.data["t"].dt.tz_convert("Asia/Tokyo"))
    np.testing.assert_array_equal(zoned.predictions(instants)["mean"], zoned.predictions()["mean"])


@pytest.mark.parametrize("zone", ["Europe/Rome", "UTC", dt.timezone(dt.timedelta(hours=-3))])
def test_a_file_holds_times_with_their_zone_and_durations(zone, tmp_path):
    data = DATA.assign(t=DATA["t"].dt.tz_localize(zone), w=pd.to_timedelta(np.arange(N), unit="h"))
    result = pgm.formula("y ~ t + w", data).gaussian_vi()
    loaded = pgm.load_formula(result.save(tmp_path / "q.npz"))
    pd.testing.assert_frame_equal(loaded.regression.data, result.regression.data[["y", "t", "w"]])
    pd.testing.assert_frame_equal(loaded.predictions(data), result.predictions(data))


YEARS = DATA.assign(year=np.repeat([2018, 2019, 2020], [5, 4, 3]))
UNSEEN = {
    "a number": ("y ~ C(year)", {"year": 2021}, "2021 in row 0, column 'year'"),
    "text of numbers": ("y ~ C(year)", {"year": "2018"}, "'2018' in row 0, column 'year'"),
    "of an interaction": ("y ~ x:C(year) + x", {"year": 2021}, "2021 in row 0, column 'year'"),
    "with contrasts": ("y ~ C(year, contr.sum)", {"year": 2021}, "2021 in row 0, column 'year'"),
    "of a function": ("y ~ C(year - 2000)", {"year": 2021}, "21.0 in row 0, C(year - 2000)"),
    "text": ("y ~ g", {"g": "g7"}, "'g7' in row 0, column 'g'"),
    "a number for text": ("y ~ g", {"g": 7}, "7 in row 0, column 'g'"),
    "text for a boolean": ("y ~ b", {"b": "True"}, "column 'b', must have booleans"),
    "text for C of a boolean": ("y ~ C(b)", {"b": "True"}, "'True' in row 0, column 'b'"),
    "another number for a boolean": ("y ~ b", {"b": 2}, "column 'b', must have booleans"),
    "text for a number": ("y ~ k", {"k": "1"}, "column 'k', must have numbers"),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_a_level_that_a_fixed_effect_does_not_have_is_refused(name):
    text, changes, message = UNSEEN[name]
    result = pgm.formula(text, YEARS).gaussian_vi()
    with pytest.raises(ValueError) as raised:
        result.predictions(YEARS.assign(**changes))
    assert f"newdata has {message}" in str(raised.value) or f"newdata, {message}" in str(raised.value)
    ((column, value),) = changes.items()
    for call in (
        lambda: result.comparisons({column: [YEARS[column][0], value]}),
        lambda: result.predictions(conditional={column: [value]}),
    ):
        with pytest.raises(ValueError, match=column):
            call()


def test_levels_that_a_factor_leaves_out_of_the_data_are_refused():
    with pytest.raises(ValueError, match=r"data has 2020 in row 9, column 'year', which is not a level"):
        pgm.formula("y ~ C(year, levels=[2018, 2019])", YEARS)


def test_groups_of_another_type_than_in_the_data_are_refused():
    result = pgm.formula("y ~ (1|year)", YEARS).gaussian_vi()
    with pytest.raises(ValueError, match="column 'year', has '2018' of type str, and the training data have 2018 of"):
        result.predictions(YEARS.assign(year=YEARS["year"].astype(str)))
    text = pgm.formula("y ~ (1|year/g)", YEARS.assign(year=YEARS["year"].astype(str))).gaussian_vi()
    with pytest.raises(ValueError, match=r"column 'year', has 2018\.0 of type float, and the training data have '"):
        text.predictions(YEARS.assign(year=YEARS["year"].astype(float)))
    # Those that are new in both types are new groups, with the prior's mean.
    new = result.predictions(YEARS.assign(year="another"), target="linear")
    excluded = result.predictions(exclude=["(1|year)"], target="linear")
    np.testing.assert_allclose(new["mean"], excluded["mean"], atol=0.1)
    np.testing.assert_array_equal(
        result.predictions(YEARS.assign(year=YEARS["year"].astype(float)))["mean"], result.predictions()["mean"]
    )


def test_unused_categories_have_no_coefficient_and_no_row_of_a_grid():
    data = DATA.assign(g=pd.Categorical(DATA["g"], ["g3", "g0", "g1", "g2"]))
    result = pgm.formula("y ~ g", data).gaussian_vi()
    plain = pgm.formula("y ~ g", DATA).gaussian_vi()
    pd.testing.assert_frame_equal(result.summary(), plain.summary())
    assert list(result.predictions(conditional=["g"])["g"]) == ["g0", "g1", "g2"]
    assert len(result.plot_predictions(["g"]).axes[0].get_xticklabels()) == 3


def test_a_grid_keeps_numbers_that_are_levels_at_one_of_them():
    result = pgm.formula("y ~ C(year) + x + (1|k)", YEARS).gaussian_vi()
    table = result.predictions(conditional={"x": [0.0]}, target="linear")
    direct = result.predictions(YEARS.head(1).assign(x=0.0, year=2018), exclude=["(1|k)"], target="linear")
    np.testing.assert_allclose(table["mean"], direct["mean"], rtol=1e-12)
    assert list(result.predictions(conditional="year")["year"]) == [2018, 2019, 2020]


BIG = 2**53


@pytest.mark.parametrize("as_ids", [lambda ids: ids, lambda ids: ids.astype(object), lambda ids: ids.astype("uint64")])
def test_groups_and_levels_beyond_2_to_53_are_those_of_small_numbers(as_ids):
    ids = np.arange(N) % 4
    data, small = DATA.assign(id=as_ids(BIG + ids)), DATA.assign(id=ids)
    for text in ("y ~ (1|id)", "y ~ C(id)", "y ~ gp(x, by=C(id))", "y ~ (1|id/g)"):
        np.testing.assert_array_equal(pgm.formula(text, data).X, pgm.formula(text, small).X)
    for text in ("y ~ id", "y ~ gp(id)", "y ~ log(id)", "y ~ x + offset(id)", "id ~ x"):
        with pytest.raises(ValueError, match=r"id.* has whole numbers beyond 2\^53"):
            pgm.formula(text, data)
    with pytest.raises(ValueError, match=r"data, column 'id', has floats beyond 2\^53"):
        pgm.formula("y ~ (1|id)", DATA.assign(id=(BIG + 4 * ids).astype(float)))


@pytest.mark.parametrize("family", ["cumulative", pytest.param("categorical", marks=pytest.mark.slow)])
def test_whole_numbers_are_the_levels_that_occur_unless_a_categorical_has_more(family):
    data = YEARS.assign(x=YEARS["x"] - YEARS["x"].mean())
    named = pgm.formula("g ~ x", data, family=family).gaussian_vi()
    # The same three classes as text, as 1, 2, 3 and as 2, 5, 9.
    for codes in ([1, 2, 3], [2, 5, 9], [-1, 0, 4]):
        numbered = data.assign(g=data["g"].map(dict(zip(["g0", "g1", "g2"], codes, strict=True))))
        result = pgm.formula("g ~ x", numbered, family=family).gaussian_vi()
        assert result.regression.response.levels == tuple(codes)
        table, expected = (one.predictions(data.head(3)) for one in (result, named))
        assert list(table["level"]) == codes * 3
        np.testing.assert_allclose(table["mean"], expected["mean"], rtol=1e-9)
    more = data.assign(k=pd.Categorical(data["k"], [1, 2, 3, 4]))
    assert pgm.formula("k ~ x", more, family=family).response.levels == (1, 2, 3, 4)
    with pytest.raises(ValueError, match="the response x must have labels or whole numbers; got"):
        pgm.formula("x ~ y", data, family=family)


def test_a_row_of_weight_0_is_left_out_of_a_formula():
    data = pd.DataFrame({"x": [0.0, 1, 2, 50], "y": [1.0, 2, 3, 200], "g": list("abad"), "w": [1, 1, 1, 0]})
    text = "y ~ x + scale(x) + s(x) + (1 + x|g) + offset(x)"
    expected = pgm.formula(text, data[:3])
    for frame in (data, data.assign(y=[1.0, 2, 3, np.nan]), data.assign(x=[0.0, 1, 2, None], g=["a", "b", "a", None])):
        for weights in ("w", [1, 1, 1, 0]):
            regression = pgm.formula(text, frame, weights=weights)
            assert regression.model == expected.model
            np.testing.assert_array_equal(regression.X, expected.X)
            np.testing.assert_array_equal(regression.y, expected.y)
    # The prior mean of the intercept is that of 1, 2 and 3.
    assert pgm.formula("y ~ x", data, weights="w").terms[0].mean == 2.0
    with pytest.raises(ValueError, match=r"weights must have shape \(4,\)"):
        pgm.formula("y ~ x", data, weights=[1, 1])
    with pytest.raises(ValueError, match="weights must be finite and >= 0; got -1 in row 0"):
        pgm.formula("y ~ x", data.assign(w=-1), weights="w")
    with pytest.raises(ValueError, match="weights: column 'g' must have numbers; it has 'a' in row 0"):
        pgm.formula("y ~ x", data, weights="g")


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("y ~ x + poly(d, 2) + scale(d) + (1 + x|g)", "gaussian"),
        pytest.param("k ~ s(d) + C(b) + offset(x)", "poisson", marks=pytest.mark.slow),
        pytest.param("k ~ d", "cumulative", marks=pytest.mark.slow),
    ],
)
def test_weights_are_repeated_rows(text, family):
    weights = np.array([1, 3, 2] * 4)
    weighted = pgm.formula(text, DATA, family=family, weights=weights).gaussian_vi()
    repeated = pgm.formula(text, DATA.loc[DATA.index.repeat(weights)], family=family).gaussian_vi()
    # To the tolerance at which the iterations end.
    pd.testing.assert_frame_equal(weighted.summary(), repeated.summary(), rtol=1e-6, atol=1e-6)
    assert weighted.result.elbo == pytest.approx(repeated.result.elbo, rel=1e-6)


def test_averages_are_of_rows_that_count_as_often_as_they_have_weight():
    weights = np.array([1, 3, 2] * 4)
    result = pgm.formula("y ~ x + d + b", DATA, weights=weights).gaussian_vi()
    rows = DATA.loc[DATA.index.repeat(weights)]
    for options in ({"average_by": "b"}, {"average_by": "b", "target": "linear"}):
        ours, theirs = (result.predictions(data, **options)["mean"].astype(float) for data in (None, rows))
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)
    ours, theirs = (result.comparisons({"x": [0.0, 1.0]}, data)["mean"] for data in (None, rows))
    np.testing.assert_allclose(ours.astype(float), theirs.astype(float), rtol=1e-10)
    slopes, expected = (result.slopes("x", data)["mean"] for data in (None, rows))
    np.testing.assert_allclose(slopes.astype(float), expected.astype(float), rtol=1e-10)
    effects = result.effects("linear")["mean"].astype(float)
    assert np.average(effects, weights=weights) == pytest.approx(0.0, abs=1e-12)
    grid = result.predictions(conditional={"x": [0.0]}, target="linear")["mean"]
    middle = pd.DataFrame({"x": [0.0], "d": np.average(DATA["d"], weights=weights), "b": [rows["b"].mode()[0]]})
    np.testing.assert_allclose(grid, result.predictions(middle, target="linear")["mean"], rtol=1e-10)


def test_a_file_holds_the_weights_that_made_the_priors(tmp_path):
    weights = np.array([0, 3, 2] * 4)
    result = pgm.formula("y ~ x + (1|g)", DATA, weights=weights).gaussian_vi()
    loaded = pgm.load_formula(result.save(tmp_path / "q.npz"))
    pd.testing.assert_frame_equal(loaded.summary(), result.summary())
    np.testing.assert_array_equal(loaded.regression.weights, weights[weights > 0])
    assert loaded.regression.terms[0].mean == np.average(DATA["y"], weights=weights)
