"""What users give as arrays: data frames, masked and sparse arrays, dates."""

import re
import warnings
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import sparse

import pgmodels as pgm
from pgmodels.data.arrays import as_numbers, read_inputs
from tests.covering import some

X = np.array([[0.3, -1.0], [1.2, 0.4], [-0.7, 2.0], [0.1, 0.1]])
Y = np.array([0.0, 1.0, 1.0, 0.0])
DAYS = np.array(["2024-01-01", "2024-03-01", "2024-05-01", "2024-07-01"], dtype="datetime64[D]")

REFUSED = {
    "None": (None, ["X is None"]),
    "sparse": (sparse.csr_matrix(X), ["X is a sparse matrix", "X.toarray()"]),
    "masked": (np.ma.masked_less(X, -0.8), ["masked array, with 1 masked value(s), the first in row 0", "X.filled"]),
    "dates among numbers": (pd.DataFrame({"day": DAYS, "x": X[:, 0]}), ["X holds dates or times"]),
    "complex": (X + 1j, ["X holds complex numbers", "numpy.real(X)"]),
    "ragged": ([[1.0, 2.0], [3.0]], ["X cannot be read as an array", "all rows of one length"]),
    "objects": ([[object()]], ["X must be numeric", "of type object in row 0"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_arrays_are_refused(name):
    value, words = REFUSED[name]
    with pytest.raises(ValueError) as caught:
        as_numbers(value, "X")
    for word in words:
        assert word in str(caught.value)


def test_frames_and_masked_arrays_are_read():
    frame = pd.DataFrame({"a": [1, 2], "b": [True, False]})
    np.testing.assert_array_equal(as_numbers(frame, "X"), [[1.0, 1.0], [2.0, 0.0]])
    np.testing.assert_array_equal(as_numbers(np.ma.masked_less(X, -5.0), "X"), X)
    sources = [pgm.ArrayRows(inputs, np.zeros(len(inputs))) for inputs in (frame, X, pd.DataFrame(X))]
    assert [source.columns for source in sources] == [("a", "b"), None, None]


@pytest.mark.slow
def test_columns_keep_their_names_and_their_order():
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0)))
    frame = pd.DataFrame(X, columns=["width", "height"])
    vi = pgm.cavi(model, frame, Y)
    for result in (vi, pgm.correct(vi), pgm.gibbs(model, frame, Y, num_samples=4, num_warmup=0, num_chains=1)):
        assert [column.name for column in result.columns] == ["width", "height"]
        expected = result.predict_latent(X)[0]
        np.testing.assert_array_equal(result.predict_latent(frame)[0], expected)
        np.testing.assert_array_equal(result.predict_latent(frame[["height", "width"]])[0], expected)
        with pytest.raises(ValueError, match=r"missing \['height'\], got \['width', 'depth'\]"):
            result.predict_latent(frame.rename(columns={"height": "depth"}))
    without = pgm.cavi(model, X, Y)
    assert without.columns is None
    np.testing.assert_array_equal(without.predict_latent(frame)[0], without.predict_latent(X)[0])


# Data frames of pandas, polars and pyarrow: columns by name, text, categories and dates by one coding.


N = 12
RNG = np.random.default_rng(0)
FRAMES_DAYS = [date(2021, 3, 1) + timedelta(days=3 * i) for i in range(N)]
DATA = {
    "lon": RNG.normal(size=N),
    "lat": RNG.normal(size=N).round(2),
    "herd": ["b", "a", "c"] * 4,
    "day": FRAMES_DAYS,
    "sex": ["m", "f"] * 6,
    "treated": [True, False, False] * 4,
}
FRAMES_Y = np.array([0, 1] * 6)
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


def model(lat="lat", lon="lon", herd="herd", day="day", sex="sex", treated="treated"):
    kernel = pgm.On(pgm.RBF(1.0, 1.0), [lat, lon]) + pgm.On(pgm.White(0.5), [herd])
    kernel = kernel + pgm.On(pgm.Matern32(1.0, 9.0), [day]) + pgm.On(pgm.Linear(0.3), [sex, treated])
    return pgm.Model(pgm.Bernoulli(), pgm.GP(kernel)).fixed()


def by_number():
    return model(1, 0, 2, 3, 4, 5)


def reordered(data):
    return {key: data[key] for key in ("sex", "day", "treated", "herd", "lat", "lon")}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_frame_is_its_codes(library, tmp_path):
    frame = LIBRARIES[library]
    result = pgm.cavi(model(), frame(DATA), FRAMES_Y)
    np.testing.assert_allclose(result.X, CODES)
    herd, sex = "herd: 0 = 'a', 1 = 'b', 2 = 'c'", "sex: 0 = 'f', 1 = 'm'"
    expected = ["lon", "lat", herd, "day: days since 2021-03-01", sex, "treated"]
    assert [str(column) for column in result.columns] == expected
    expected = pgm.cavi(by_number(), CODES, FRAMES_Y)
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
    result = pgm.cavi(model(), pd.DataFrame(DATA), FRAMES_Y)
    new = {key: [values[0]] * 4 for key, values in DATA.items()} | {"herd": ["b", "z", "z", "q"]}
    mean, variance = result.predict_latent(pd.DataFrame(new))
    rows = np.repeat(CODES[:1], 4, axis=0)
    rows[:, 2] = [1.0, 4.0, 4.0, 3.0]
    np.testing.assert_allclose(
        [mean, variance], pgm.cavi(by_number(), CODES, FRAMES_Y).predict_latent(rows), rtol=1e-12
    )
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
    result = pgm.cavi(model(), holed, FRAMES_Y, weights=weights)
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


FRAMES_REFUSED = {
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
        lambda _: pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF())), pd.DataFrame(DATA), FRAMES_Y),
        "measures distances in column 'herd', which has 3 levels without an order. Use pgm.On(pgm.White(), ['herd'])",
    ),
    "a name that is not there": (
        lambda _: pgm.cavi(model(), pd.DataFrame(DATA).drop(columns="sex"), FRAMES_Y),
        "On reads the columns ['sex'], which X does not have; its columns are ['lon', 'lat', 'herd', 'day', 'treated']",
    ),
    "names of an array": (
        lambda _: pgm.cavi(model(), CODES, FRAMES_Y),
        "On reads the columns ['lat', 'lon'] by name, but X has no column names",
    ),
    "a name twice": (lambda _: pgm.On(pgm.RBF(), ["a", "a"]), "must be a list of different names; got ['a', 'a']"),
    "names and numbers": (lambda _: pgm.On(pgm.RBF(), ["a", 1]), "different column numbers, from 0 on, or of names"),
    "text for an array": (
        lambda _: pgm.cavi(by_number(), CODES, FRAMES_Y).predict(pd.DataFrame(DATA)),
        "X_new has text or categories in column 'herd', and the training X had no column names",
    ),
}


@pytest.mark.parametrize("name", FRAMES_REFUSED)
def test_unreadable_inputs_are_refused_by_name(name):
    call, message = FRAMES_REFUSED[name]
    result = pgm.cavi(model(), pd.DataFrame(DATA), FRAMES_Y)
    with pytest.raises(ValueError, match=re.escape(message)):
        call(result)


def test_every_call_reads_columns_by_name(tmp_path):
    frame = pl.DataFrame(DATA)
    assert pgm.prior_predictive(model(), frame, num_draws=3).latents.shape == (3, N, 1)
    draws = pgm.gibbs(model(), frame, FRAMES_Y, num_samples=4, num_warmup=2, num_chains=1)
    assert draws.predict(frame[:3]).probabilities.shape == (3, 2)
    pd.DataFrame({"a": CODES[:, 0], "b": CODES[:, 1], "y": FRAMES_Y}).to_parquet(tmp_path / "rows.parquet")
    form = pgm.Inducing(4)
    on = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.On(pgm.RBF(1.0, 1.0), ["b"]), form=form))
    rows = pgm.ParquetRows(tmp_path / "rows.parquet", target="y")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pgm.ConvergenceWarning)
        result = pgm.svi(on, rows, max_epochs=2)
    np.testing.assert_allclose(
        result.predict_latent(pd.DataFrame({"b": [0.1], "a": [7.0]})), result.predict_latent([[7.0, 0.1]])
    )


# Labels of classes: text, booleans and categories of y have one coding, which results keep.


LABELS_X = np.linspace(0.0, 3.0, 12)[:, None]
LABELS_CODES = np.tile([0.0, 1.0, 1.0, 0.0], 3)
TEXT = np.array(["no", "yes"])[LABELS_CODES.astype(int)]
MODEL = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0), mean=0.3))
SOFTMAX = pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(pgm.RBF(2.0, 1.0), size=3))
LEVELS = np.array(["lo", "mid", "hi"])[[0, 2, 1, 0, 2, 1, 0, 0, 2, 1, 1, 2]]


# y, and the labels that it must have.
KINDS = {
    "array": (TEXT, ("no", "yes")),
    "objects": (TEXT.astype(object), ("no", "yes")),
    "list": (TEXT.tolist(), ("no", "yes")),
    "series": (pd.Series(TEXT), ("no", "yes")),
    "series of strings": (pd.Series(TEXT, dtype="string"), ("no", "yes")),
    "categorical": (pd.Categorical(TEXT, ["no", "yes"]), ("no", "yes")),
    "ordered series": (pd.Series(pd.Categorical(TEXT, ["no", "yes"], ordered=True)), ("no", "yes")),
    "categories of numbers": (pd.Categorical(LABELS_CODES + 1, [1.0, 2.0]), (1.0, 2.0)),
    "polars": (pl.Series(TEXT.tolist()), ("no", "yes")),
    "polars enumeration": (pl.Series(TEXT.tolist(), dtype=pl.Enum(["no", "yes"])), ("no", "yes")),
    "pyarrow": (pa.chunked_array([TEXT.tolist()]), ("no", "yes")),
    "booleans": (LABELS_CODES > 0, (False, True)),
    "list of booleans": ((LABELS_CODES > 0).tolist(), (False, True)),
    "booleans of pandas": (pd.Series(LABELS_CODES > 0, dtype="boolean"), (False, True)),
    "booleans of polars": (pl.Series(LABELS_CODES > 0), (False, True)),
    "numbers": (LABELS_CODES, None),
    "categories 0 and 1": (pd.Categorical(LABELS_CODES.astype(int), [1, 0]), None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_coded(kind):
    y, labels = KINDS[kind]
    data = MODEL.check(LABELS_X, y)
    assert data.labels == labels
    np.testing.assert_array_equal(data.y, LABELS_CODES)
    assert data.y.dtype == np.float64


def test_categories_keep_their_order():
    order = ["hi", "mid", "lo"]
    categorical = pd.Categorical(LEVELS, order)
    for y in (categorical, pd.Series(categorical), pl.Series(LEVELS).cast(pl.Enum(order))):
        data = SOFTMAX.check(LABELS_X, y)
        assert data.labels == ("hi", "mid", "lo")
        np.testing.assert_array_equal(data.y, [order.index(level) for level in LEVELS])
    data = SOFTMAX.check(LABELS_X, LEVELS)
    assert data.labels == ("hi", "lo", "mid")


def test_a_class_without_rows_is_named():
    some = np.where(LEVELS == "hi", "lo", LEVELS)
    with pytest.warns(pgm.DataWarning, match=r"no observation of class 2 \('hi'\) out of 3"):
        data = SOFTMAX.check(LABELS_X, pd.Categorical(some, ["lo", "mid", "hi"]))
    assert set(data.y) == {0.0, 1.0}
    # One class only, of two: the posterior is that of the numbers.
    both = pd.Categorical(np.full(12, "yes"), ["no", "yes"])
    np.testing.assert_array_equal(pgm.cavi(MODEL, LABELS_X, both).mean, pgm.cavi(MODEL, LABELS_X, np.ones(12)).mean)


def test_rows_of_weight_0_have_no_label():
    y, weights = TEXT.astype(object), np.where(np.arange(12) < 2, 0.0, 1.0)
    y[0], y[1] = "unknown", None
    data = MODEL.prepare(LABELS_X, y, weights)[1]
    assert data.labels == ("no", "yes")
    np.testing.assert_array_equal(data.y, LABELS_CODES[2:])


@pytest.fixture(scope="module")
def result():
    return pgm.cavi(MODEL, LABELS_X, TEXT)


def test_predictions_have_labels(result, tmp_path):
    expected = pgm.cavi(MODEL, LABELS_X, LABELS_CODES)
    predictive, plain = result.predict(LABELS_X), expected.predict(LABELS_X)
    np.testing.assert_array_equal(predictive.log_density(TEXT), plain.log_density(LABELS_CODES))
    np.testing.assert_array_equal(predictive.log_density(pl.Series(TEXT.tolist())), plain.log_density(LABELS_CODES))
    np.testing.assert_array_equal(predictive.mode, np.where(plain.probabilities[:, 1] > 0.5, "yes", "no"))
    np.testing.assert_array_equal(plain.mode, plain.probabilities[:, 1] > 0.5)
    loaded = pgm.load(result.save(tmp_path / "fit.npz"))
    assert loaded.labels == ("no", "yes")
    np.testing.assert_array_equal(loaded.predict(LABELS_X).log_density(TEXT), predictive.log_density(TEXT))
    assert pgm.correct(result).labels == ("no", "yes")


@pytest.mark.parametrize("y", [np.where(LABELS_CODES > 0, "yes", "perhaps"), LABELS_CODES])
def test_unknown_labels_are_refused(result, y):
    got = repr(y.tolist()[0])
    with pytest.raises(ValueError, match=rf"y_new has {re.escape(got)} in row 0, which is not a label .*'no', 'yes'"):
        result.predict(LABELS_X).log_density(y)


@pytest.mark.slow
def test_comparisons_read_labels():
    draws = pgm.gibbs(MODEL, LABELS_X, TEXT, num_samples=4, num_warmup=0, num_chains=1)
    assert draws.labels == ("no", "yes")
    table = pgm.compare(draws=draws, cavi=pgm.cavi(MODEL, LABELS_X, LABELS_CODES), X=LABELS_X, y=TEXT).to_dataframe()
    expected = pgm.compare(draws=draws, cavi=pgm.cavi(MODEL, LABELS_X, TEXT), X=LABELS_X, y=TEXT).to_dataframe()
    assert table.loc["cavi", "negative_log_density"] == expected.loc["cavi", "negative_log_density"]
    with pytest.raises(ValueError, match="y has 'perhaps' in row 11, which is not a label"):
        pgm.compare(draws=draws, X=LABELS_X, y=[*TEXT[:-1], "perhaps"])


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (["1", "2"] * 6, "y must be numeric; got '1' of type str in row 0"),
        ([*TEXT[:-1], 3.0], "y must be numeric; got 'no' of type str in row 0"),
        (["2020-01-01", "2021-01-01"] * 6, "y holds dates or times"),
    ],
)
def test_invalid_labels_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        MODEL.check(LABELS_X, y)


# Rows without y: refused, left out, or kept for predictions; against data without them and dense regression.


MISSING_RNG = np.random.default_rng(6)
MISSING_X = MISSING_RNG.uniform(-2.0, 2.0, (N, 1))
HOLES = np.array([2, 5, 11])
REST = np.setdiff1d(np.arange(N), HOLES)
LABELS = np.tile([0.0, 1.0, 1.0], 4)
REAL = np.sin(2.0 * MISSING_X[:, 0]) + MISSING_RNG.normal(0.0, 0.3, N)
MISSING_KERNEL = pgm.RBF(1.7, 0.8)


MISSING_MODEL = pgm.Model(pgm.Bernoulli(), pgm.GP(MISSING_KERNEL, mean=0.4))
BINOMIAL = pgm.Model(pgm.Binomial(), pgm.GP(MISSING_KERNEL, mean=-0.3))
TRIALS = MISSING_RNG.integers(3, 9, N).astype(float)
COUNTS = np.column_stack([MISSING_RNG.binomial(TRIALS.astype(int), 0.4), TRIALS])


def holed(y):
    y = np.array(y, dtype=float)
    y[HOLES] = np.nan
    return y


def holed_counts():
    y = COUNTS.copy()
    y[HOLES, 0] = np.nan
    return y


FEW = {"num_samples": 4, "num_warmup": 2, "num_chains": 1}
INDUCING = pgm.Model(pgm.Bernoulli(), pgm.GP(MISSING_KERNEL, mean=0.4, form=pgm.Inducing(MISSING_X[:3])))
ENGINES = {
    "cavi": (pgm.cavi, MISSING_MODEL, {}),
    "gaussian_vi": (pgm.gaussian_vi, MISSING_MODEL, {}),
    "vi": (pgm.vi, MISSING_MODEL, {}),
    "gibbs": (pgm.gibbs, MISSING_MODEL, FEW),
    "nuts": (pgm.nuts, MISSING_MODEL, FEW),
    "fit": (pgm.fit, MISSING_MODEL.fixed(), {"correct": True}),
    "svi": (pgm.svi, INDUCING, {"objective": "expected", "max_epochs": 1, "batch_size": 9}),
}


@pytest.mark.parametrize("name", some(ENGINES, "cavi", "gibbs"))
def test_rows_without_y_are_as_rows_left_out(name):
    engine, model, options = ENGINES[name]
    with warnings.catch_warnings():
        # Of steps and draws that are too few.
        warnings.simplefilter("ignore")
        kept = engine(model, MISSING_X, holed(LABELS), missing="predict", **options)
        dropped = engine(model, MISSING_X, holed(LABELS), missing="drop", **options)
        expected = engine(model, MISSING_X[REST], LABELS[REST], **options)
    moments = expected.predict_latent(MISSING_X[HOLES])
    for result in (kept, dropped):
        np.testing.assert_array_equal(result.predict_latent(MISSING_X[HOLES]), moments)
    assert dropped.missing is None
    np.testing.assert_array_equal(kept.missing.rows, HOLES)
    np.testing.assert_array_equal(kept.missing.X, MISSING_X[HOLES])
    assert kept.missing.covariates is None


def test_every_engine_has_the_choices_of_missing():
    calls = (pgm.cavi, pgm.gaussian_vi, pgm.vi, pgm.fit, pgm.integrate, pgm.gibbs, pgm.nuts, pgm.svi)
    for engine in calls:
        with pytest.raises(ValueError, match="There is no y in rows 2, 5, 11: leave rows without y out with missing="):
            engine(MISSING_MODEL, MISSING_X, holed(LABELS))
        with pytest.raises(ValueError, match="missing must be one of 'raise', 'drop', 'predict'; got 'impute'"):
            engine(MISSING_MODEL, MISSING_X, LABELS, missing="impute")
        with pytest.raises(ValueError, match=r"y has no value in rows 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more, so"):
            engine(MISSING_MODEL, MISSING_X, np.full(N, np.nan), missing="predict")


def test_predictions_of_missing_rows_are_those_of_dense_regression():
    model = pgm.Model(pgm.Gaussian(0.3), pgm.GP(MISSING_KERNEL, mean=0.2))
    predictive = pgm.cavi(model, MISSING_X, holed(REAL), missing="predict").predict_missing()
    K = 1.7 * np.exp(-0.5 * ((MISSING_X - MISSING_X.T) / 0.8) ** 2)
    across, noisy = K[np.ix_(HOLES, REST)], K[np.ix_(REST, REST)] + 0.09 * np.eye(len(REST))
    mean = 0.2 + across @ np.linalg.solve(noisy, REAL[REST] - 0.2)
    variance = 1.7 + 0.09 - np.sum(across * np.linalg.solve(noisy, across.T).T, axis=1)
    np.testing.assert_allclose((predictive.mean, predictive.variance), (mean, variance), rtol=1e-9)


@pytest.mark.parametrize("gp", [pgm.GP(pgm.RandomWalk(0.8)), pgm.GP(pgm.RBF(1.7, 1.0), form=pgm.Hilbert(40))])
def test_rows_before_and_after_those_with_y_are_predicted(gp):
    x, model = np.linspace(-5.0, 5.0, N)[:, None], pgm.Model(pgm.Gaussian(0.3), gp)
    y = np.where(np.isin(np.arange(N), [4, 5, 6, 8]), REAL, np.nan)
    result = pgm.cavi(model, x, y, missing="predict")
    np.testing.assert_array_equal(result.missing.rows, [0, 1, 2, 3, 7, 9, 10, 11])
    used = np.isfinite(y)
    K, noise = np.asarray(result.prior.groups[0].kernel(x, x)), 0.09 * np.eye(4)
    expected = K[~used][:, used] @ np.linalg.solve(K[used][:, used] + noise, y[used])
    np.testing.assert_allclose(result.predict_missing().mean, expected, atol=1e-8)


def test_lengthscales_from_the_data_are_those_of_rows_with_y():
    model = pgm.Model(pgm.Gaussian(0.3), pgm.GP(pgm.RBF(1.7), form=pgm.Hilbert(40)))
    results = pgm.cavi(model, MISSING_X, holed(REAL), missing="predict"), pgm.cavi(model, MISSING_X[REST], REAL[REST])
    kept, expected = (result.model.gps[0].kernel.lengthscale.value for result in results)
    assert kept == expected


def test_dropped_rows_are_counted():
    with pytest.warns(pgm.DataWarning, match="y has no value in 3 of 12 rows, which are left out"):
        data = MISSING_MODEL.prepare(MISSING_X, holed(LABELS), missing="drop")[1]
    np.testing.assert_array_equal(data.X, MISSING_X[REST])
    # Their inputs may be missing too; those of rows to predict may not.
    inputs = MISSING_X.copy()
    inputs[HOLES[1]] = np.nan
    with pytest.warns(pgm.DataWarning):
        MISSING_MODEL.prepare(inputs, holed(LABELS), missing="drop")
    with pytest.raises(ValueError, match="X must be finite; got nan in row 5, column 0"):
        MISSING_MODEL.prepare(inputs, holed(LABELS), missing="predict")


def test_weights_are_those_of_rows_with_y():
    weights = np.arange(N) % 4.0
    data = MISSING_MODEL.prepare(MISSING_X, holed(LABELS), weights, "predict")[1]
    used = np.setdiff1d(np.flatnonzero(weights), HOLES)
    np.testing.assert_array_equal(data.weights, weights[used])
    np.testing.assert_array_equal(data.y, LABELS[used])
    # A row of weight 0 is ignored, and is not to be predicted.
    np.testing.assert_array_equal(data.missing.rows, HOLES[weights[HOLES] > 0])


def test_covariates_of_missing_rows_are_kept(tmp_path):
    result = pgm.cavi(BINOMIAL, MISSING_X, holed_counts(), missing="predict")
    np.testing.assert_array_equal(result.missing.covariates, TRIALS[HOLES, None])
    expected = pgm.cavi(BINOMIAL, MISSING_X[REST], COUNTS[REST])
    y_new = COUNTS[HOLES]
    others = expected.predict(MISSING_X[HOLES], TRIALS[HOLES])
    densities = [each.log_density(y_new) for each in (result.predict_missing(), others)]
    np.testing.assert_array_equal(*densities)
    loaded = pgm.load(result.save(tmp_path / "fit.npz"))
    np.testing.assert_array_equal(loaded.missing.rows, HOLES)
    np.testing.assert_array_equal(loaded.predict_missing().log_density(y_new), densities[0])


@pytest.mark.parametrize("missing", ["raise", "drop", "predict"])
def test_a_missing_covariate_is_refused(missing):
    y = COUNTS.copy()
    y[7, 1] = np.nan
    with pytest.raises(ValueError, match="y must be finite; got nan in row 7, column 1"):
        BINOMIAL.prepare(MISSING_X, y, missing=missing)
    y = holed_counts()
    y[HOLES[1], 1] = np.nan
    if missing == "predict":
        with pytest.raises(ValueError, match=r"y\[1\] is a covariate.*got nan in row 5, column 1 of y"):
            BINOMIAL.prepare(MISSING_X, y, missing=missing)


def test_labels_may_be_missing():
    text = pd.Series(np.where(LABELS > 0, "yes", "no")).where(~np.isin(np.arange(N), HOLES))
    result = pgm.cavi(MISSING_MODEL, MISSING_X, text, missing="predict")
    expected = pgm.cavi(MISSING_MODEL, MISSING_X[REST], LABELS[REST])
    np.testing.assert_array_equal(result.mean, expected.mean)
    assert set(result.predict_missing().mode) <= {"no", "yes"}
    with pytest.raises(ValueError, match="predict_missing: no rows without y were kept"):
        expected.predict_missing()


def test_infinite_values_are_not_missing():
    y = REAL.copy()
    y[3] = np.inf
    with pytest.raises(ValueError, match="y must be finite; got inf in row 3"):
        pgm.Model(pgm.Gaussian(0.3), pgm.GP(MISSING_KERNEL)).prepare(MISSING_X, y, missing="drop")


def test_rows_that_are_not_in_memory_have_y():
    with pytest.raises(ValueError, match="missing='drop' needs an array X"):
        pgm.svi(INDUCING, pgm.ArrayRows(MISSING_X, LABELS), missing="drop")


@pytest.mark.parametrize("num_levels", [1, 1000])
def test_effects_of_many_levels(num_levels):
    # Each level has a posterior of its own: that of its mean, in closed form.
    rows, variance, noise = 1000, 0.7, 0.4
    names = [f"g{number % num_levels}" for number in range(rows)]
    y = MISSING_RNG.normal(size=rows)
    model = pgm.Model(pgm.Gaussian(noise), pgm.GP(pgm.On(pgm.White(variance), ["group"])))
    result = pgm.cavi(model, pd.DataFrame({"group": names}), y)
    count = rows // num_levels
    totals = pd.Series(y).groupby(names).transform("sum").to_numpy()
    shrunk = variance / (variance * count + noise**2)
    np.testing.assert_allclose(result.mean[:, 0], shrunk * totals, rtol=1e-8)
    np.testing.assert_allclose(result.variance[:, 0], shrunk * noise**2, rtol=1e-8)
    # A new level has the prior.
    mean, spread = result.predict_latent(pd.DataFrame({"group": ["new", names[0]]}))
    np.testing.assert_allclose([mean[0, 0], spread[0, 0]], [0.0, variance], atol=1e-12)
    np.testing.assert_allclose(mean[1], result.mean[0], rtol=1e-8)
