"""Data frames of pandas, polars and pyarrow: columns by name, text, categories and dates by one coding."""

import re
import warnings
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import pgmodels as pgm
from pgmodels.data.arrays import read_inputs

N = 12
RNG = np.random.default_rng(0)
DAYS = [date(2021, 3, 1) + timedelta(days=3 * i) for i in range(N)]
DATA = {
    "lon": RNG.normal(size=N),
    "lat": RNG.normal(size=N).round(2),
    "herd": ["b", "a", "c"] * 4,
    "day": DAYS,
    "sex": ["m", "f"] * 6,
    "treated": [True, False, False] * 4,
}
Y = np.array([0, 1] * 6)
KERNEL = (
    pgm.On(pgm.RBF(1.0, 1.0), ["lat", "lon"])
    + pgm.On(pgm.White(0.5), ["herd"])
    + pgm.On(pgm.Matern32(1.0, 9.0), ["day"])
    + pgm.On(pgm.Linear(0.3), ["sex", "treated"])
)
CODES = np.column_stack(
    [
        DATA["lon"],
        DATA["lat"],
        [1.0, 0.0, 2.0] * 4,
        3.0 * np.arange(N),
        [1.0, 0.0] * 6,
        [1.0, 0.0, 0.0] * 4,
    ]
)  # fmt: skip
LIBRARIES = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "pyarrow": lambda data: pa.table({key: list(values) for key, values in data.items()}),
}


def dated(data):
    """A frame of pandas whose dates are not Python's."""
    return pd.DataFrame(data).assign(day=pd.to_datetime(pd.Series(data["day"])))


LIBRARIES["pandas, its own dates"] = dated


def model():
    return pgm.Model(pgm.Bernoulli(), pgm.GP(KERNEL)).fixed()


def by_number():
    kernel = (
        pgm.On(pgm.RBF(1.0, 1.0), [1, 0])
        + pgm.On(pgm.White(0.5), [2])
        + pgm.On(pgm.Matern32(1.0, 9.0), [3])
        + pgm.On(pgm.Linear(0.3), [4, 5])
    )
    return pgm.Model(pgm.Bernoulli(), pgm.GP(kernel)).fixed()


def reordered(data):
    return {key: data[key] for key in ("sex", "day", "treated", "herd", "lat", "lon")}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_frame_is_its_codes(library, tmp_path):
    frame = LIBRARIES[library]
    result = pgm.cavi(model(), frame(DATA), Y)
    np.testing.assert_allclose(result.X, CODES)
    herd, sex = "herd: 0 = 'a', 1 = 'b', 2 = 'c'", "sex: 0 = 'f', 1 = 'm'"
    expected = ["lon", "lat", herd, "day: days since 2021-03-01", sex, "treated"]
    assert [str(column) for column in result.columns] == expected
    expected = pgm.cavi(by_number(), CODES, Y)
    np.testing.assert_allclose(result.mean, expected.mean, rtol=1e-12)
    # New data by name, of any library and in any order, with columns that are not read.
    new = {key: values[:5] for key, values in reordered(DATA).items()} | {"other": ["x"] * 5}
    for other in LIBRARIES.values():
        np.testing.assert_allclose(result.predict_latent(other(new)), expected.predict_latent(CODES[:5]), rtol=1e-12)
    loaded = pgm.load(result.save(tmp_path / "fit.npz"))
    assert loaded.columns == result.columns
    assert loaded.model == result.model
    np.testing.assert_allclose(loaded.predict_latent(frame(new)), expected.predict_latent(CODES[:5]), rtol=1e-12)
    assert "['lat', 'lon']" in repr(result.model)


def test_new_levels_are_new_groups_where_only_equality_counts():
    result = pgm.cavi(model(), pd.DataFrame(DATA), Y)
    new = {key: [values[0]] * 4 for key, values in DATA.items()} | {"herd": ["b", "z", "z", "q"]}
    mean, variance = result.predict_latent(pd.DataFrame(new))
    rows = np.repeat(CODES[:1], 4, axis=0)
    rows[:, 2] = [1.0, 4.0, 4.0, 3.0]
    np.testing.assert_allclose([mean, variance], pgm.cavi(by_number(), CODES, Y).predict_latent(rows), rtol=1e-12)
    # Equal ones share their effect, and different ones do not.
    f = result.draw_latents(pd.DataFrame(new), 4000)[:, :, 0]
    np.testing.assert_allclose(f[:, 1], f[:, 2], atol=1e-3)
    assert np.var(f[:, 1] - f[:, 3]) == pytest.approx(2 * 0.5, rel=0.1)


@pytest.mark.parametrize("library", LIBRARIES)
def test_times_keep_their_microseconds(library):
    # Days since 1970 would round a decade later to 0.3 of one.
    microseconds = np.cumsum(np.random.default_rng(0).integers(1, 10**7, 2000)) + 7
    frame = LIBRARIES[library]({"day": [datetime(2031, 5, 1) + timedelta(microseconds=int(m)) for m in microseconds]})
    days = read_inputs(frame, "X")[0][:, 0]
    # The rounding of days up to 0.1, in microseconds.
    np.testing.assert_allclose(np.diff(days) * 86_400e6, np.diff(microseconds), rtol=0, atol=1e-5)


def test_weights_of_zero_leave_out_rows_with_holes():
    holed = pd.DataFrame(DATA)
    holed.loc[0, "herd"], holed.loc[1, "lat"] = None, np.nan
    weights = np.where(np.arange(N) < 2, 0.0, 1.0)
    result = pgm.cavi(model(), holed, Y, weights=weights)
    np.testing.assert_allclose(result.X, CODES[2:])


READ = {
    "ordered categories of pandas": (
        lambda: pd.DataFrame({"a": pd.Categorical(["lo", "hi", "lo"], ["lo", "mid", "hi"], ordered=True)}),
        [0, 2, 0],
        "ordered",
    ),
    "categories of pandas": (lambda: pd.DataFrame({"a": pd.Categorical([7, 3, 7], [7, 3])}), [0, 1, 0], "level"),
    "an enumeration of polars": (
        lambda: pl.DataFrame({"a": pl.Series(["lo", "hi", "lo"], dtype=pl.Enum(["lo", "hi"]))}),
        [0, 1, 0],
        "ordered",
    ),
    "a dictionary of pyarrow": (
        lambda: pa.table({"a": pa.array(["x", "w", "x"]).dictionary_encode()}),
        [0, 1, 0],
        "level",
    ),
    "times with a zone": (
        lambda: pl.DataFrame({"a": [datetime(2020, 1, 1, 18, tzinfo=UTC), datetime(2020, 1, 3, tzinfo=UTC)]}),
        [0.75, 2.0],
        "date with a zone",
    ),
    "durations": (lambda: pl.DataFrame({"a": [timedelta(hours=6), timedelta(days=-2)]}), [0.25, -2.0], "duration"),
    "whole numbers with holes": (
        lambda: pd.DataFrame({"a": pd.array([1, None, 3], dtype="Int64")}),
        [1.0, np.nan, 3.0],
        "number",
    ),
    "text with holes": (lambda: pl.DataFrame({"a": ["u", None, "t"]}), [1.0, np.nan, 0.0], "level"),
}


@pytest.mark.parametrize("name", READ)
def test_columns_are_read(name):
    make, codes, kind = READ[name]
    values, columns = read_inputs(make(), "X")
    np.testing.assert_allclose(values[:, 0], codes)
    assert columns[0].kind == kind


def times(zone, count=6):
    return pd.DataFrame({"t": pd.date_range("2024-03-01", periods=count, tz=zone)})


@pytest.mark.parametrize(("trained", "asked"), [("Europe/Rome", None), (None, "UTC")])
def test_new_times_without_a_zone_for_those_with_one_are_refused(trained, asked):
    q = pgm.cavi(pgm.Model(pgm.Gaussian(0.1), pgm.GP(pgm.On(pgm.RBF(1.0, 3.0), ["t"]))), times(trained), np.arange(6.0))
    with pytest.raises(ValueError, match=r"X_new must have .* with.* a time zone in column 't', as the training X"):
        q.predict_latent(times(asked))
    # The same instants in another zone are the same inputs.
    if trained:
        utc = times(trained)["t"].dt.tz_convert("UTC").to_frame()
        np.testing.assert_array_equal(q.predict_latent(utc)[0], q.predict_latent(times(trained))[0])


BIG = 2**53
IDS = np.repeat(BIG + np.arange(4), 3)
EFFECTS = np.repeat([-3.0, 3.0, -2.0, 2.0], 3)
IDENTIFIERS = {
    "pandas": lambda: pd.DataFrame({"id": IDS}),
    "nullable": lambda: pd.DataFrame({"id": pd.array(IDS, dtype="Int64")}),
    "objects": lambda: pd.DataFrame({"id": IDS.astype(object)}),
    "polars": lambda: pl.DataFrame({"id": IDS}),
    "unsigned": lambda: pd.DataFrame({"id": IDS.astype(np.uint64)}),
    "pyarrow": lambda: pa.table({"id": IDS}),
    "array": lambda: IDS[:, None],
    "objects of an array": lambda: IDS[:, None].astype(object),
    "lists": lambda: IDS[:, None].tolist(),
}


def of_ids(X, kernel=None):
    named = not isinstance(X, np.ndarray | list)
    kernel = pgm.On(pgm.White(4.0) if kernel is None else kernel, ["id"] if named else [0])
    return pgm.cavi(pgm.Model(pgm.Gaussian(0.5), pgm.GP(kernel)), X, EFFECTS)


@pytest.mark.parametrize("name", IDENTIFIERS)
def test_identifiers_beyond_2_to_53_are_exact_where_they_are_compared(name, tmp_path):
    X = IDENTIFIERS[name]()
    q = of_ids(X)
    # The mean of three values of noise 0.5 under a normal prior of variance 4.
    expected = EFFECTS * 4.0 / (4.0 + 0.25 / 3.0)
    np.testing.assert_allclose(q.predict_latent(X)[0][:, 0], expected, rtol=1e-9)
    np.testing.assert_allclose(pgm.load(q.save(tmp_path / "q.npz")).predict_latent(X)[0][:, 0], expected, rtol=1e-9)
    new = np.array([[BIG + 9], [BIG + 9]])
    new = new if isinstance(X, np.ndarray | list) else pd.DataFrame(new, columns=["id"])
    np.testing.assert_array_equal(q.predict_latent(new)[0], 0.0)
    more = pgm.update(q, new, [5.0, 5.0])
    np.testing.assert_allclose(more.predict_latent(new)[0], 5.0 * 4.0 / (4.0 + 0.25 / 2.0), rtol=1e-9)


def test_identifiers_that_float64_has_merged_or_would_are_refused():
    with pytest.raises(ValueError, match=r"X has 9007199254740996 in column 0, which kernels only compare"):
        of_ids(np.column_stack([IDS, EFFECTS]))
    with pytest.raises(ValueError, match=r"2\^53 in column 'id', .* a kernel measures distances in it. Subtract"):
        of_ids(IDENTIFIERS["pandas"](), pgm.RBF(1.0, 1.0))
    with pytest.raises(ValueError, match=r"X_new must have whole numbers in column '0', as .* got Float64"):
        of_ids(IDS[:, None]).predict_latent(IDS[:, None].astype(float))
    with pytest.raises(ValueError, match="X_new has whole numbers beyond 2\\^53 in column '0'"):
        of_ids(IDS[:, None] - BIG).predict_latent(IDS[:, None])
    inducing = pgm.Model(pgm.Gaussian(0.5), pgm.GP(pgm.On(pgm.White(4.0), [0]), form=pgm.Inducing(4)))
    for ids in (IDS[:, None], IDS[:, None].astype(float)):
        with pytest.raises(
            ValueError, match=r"X has .* beyond 2\^53|X has 9007199254740996 in column 0, which kernels"
        ):
            pgm.svi(inducing, pgm.ArrayRows(ids, EFFECTS), max_epochs=1)
    with pytest.raises(ValueError, match="X_new, column 'id', has whole numbers beyond"):
        of_ids(pd.DataFrame({"id": IDS - BIG})).predict_latent(pd.DataFrame({"id": IDS}))


def test_levels_of_another_type_than_in_the_training_data_are_refused():
    q = of_ids(pd.DataFrame({"id": pd.Categorical((IDS - BIG).astype(str))}))
    with pytest.raises(ValueError, match="column 'id', has 0 of type int, and the training data have '0' of type str"):
        q.predict_latent(pd.DataFrame({"id": [0, 1]}))
    assert q.predict_latent(pd.DataFrame({"id": [17]}))[0][0, 0] == 0.0


def frame_without(**changes):
    return pd.DataFrame(DATA).assign(**changes)


REFUSED = {
    "a level that a slope does not know": (
        lambda result: result.predict(frame_without(sex="x")),
        "X_new has 'x' in row 0, column 'sex', which is not a level of the training X ('f', 'm')",
    ),
    "a missing column": (
        lambda result: result.predict(pd.DataFrame(DATA).drop(columns="lat")),
        "missing ['lat'], got ['lon', 'herd', 'day', 'sex', 'treated']",
    ),
    "a hole": (
        lambda result: result.predict(frame_without(lat=[0.0] * 11 + [None])),
        "X_new must be finite; got nan in row 11, column 'lat'",
    ),
    "text among numbers": (
        lambda result: result.predict(frame_without(lat="north")),
        "X_new must have numbers in column 'lat', as the training X",
    ),
    "distances between levels": (
        lambda _: pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF())), pd.DataFrame(DATA), Y),
        "measures distances in column 'herd', which has 3 levels without an order. Use pgm.On(pgm.White(), ['herd'])",
    ),
    "a name that is not there": (
        lambda _: pgm.cavi(model(), pd.DataFrame(DATA).drop(columns="sex"), Y),
        "On reads the columns ['sex'], which X does not have; its columns are ['lon', 'lat', 'herd', 'day', 'treated']",
    ),
    "names of an array": (
        lambda _: pgm.cavi(model(), CODES, Y),
        "On reads the columns ['lat', 'lon'] by name, but X has no column names",
    ),
    "a name twice": (lambda _: pgm.On(pgm.RBF(), ["a", "a"]), "must be a list of different names; got ['a', 'a']"),
    "names and numbers": (lambda _: pgm.On(pgm.RBF(), ["a", 1]), "different column numbers, from 0 on, or of names"),
    "numbers as text": (
        lambda _: pgm.cavi(model(), frame_without(lat=["1.5", "2"] * 6), Y),
        "X must be numeric; got '1.5' of type str in row 0, column 'lat'",
    ),
    "text for an array": (
        lambda _: pgm.cavi(by_number(), CODES, Y).predict(pd.DataFrame(DATA)),
        "X_new has text or categories in column 'herd', and the training X had no column names",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_named(name):
    call, message = REFUSED[name]
    result = pgm.cavi(model(), pd.DataFrame(DATA), Y)
    with pytest.raises(ValueError, match=re.escape(message)):
        call(result)


def test_every_call_takes_names(tmp_path):
    frame = pl.DataFrame(DATA)
    assert pgm.prior_predictive(model(), frame, num_draws=3).latents.shape == (3, N, 1)
    draws = pgm.gibbs(model(), frame, Y, num_samples=4, num_warmup=2, num_chains=1)
    assert draws.predict(frame[:3]).probabilities.shape == (3, 2)
    pd.DataFrame({"a": CODES[:, 0], "b": CODES[:, 1], "y": Y}).to_parquet(tmp_path / "rows.parquet")
    form = pgm.Inducing(4)
    on = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.On(pgm.RBF(1.0, 1.0), ["b"]), form=form))
    rows = pgm.ParquetRows(tmp_path / "rows.parquet", target="y")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pgm.ConvergenceWarning)
        result = pgm.svi(on, rows, max_epochs=2)
    np.testing.assert_allclose(
        result.predict_latent(pd.DataFrame({"b": [0.1], "a": [7.0]})), result.predict_latent([[7.0, 0.1]])
    )
