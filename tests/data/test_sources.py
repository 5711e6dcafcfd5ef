"""Rows that need not fit into memory: the same batches from every source, checks that name the row, results."""

import pickle

import numpy as np
import pytest
from pyarrow import parquet, table

import pgmodels as pgm
from pgmodels.data.sources import Scaling, batches, survey
from pgmodels.inference.checkpoint_folder import EngineCheckpoint
from pgmodels.inference.svi_convergence import advance
from pgmodels.runtime.io import read_arrays
from tests.inference.test_checkpoint import interrupted
from tests.processes import kill_when
from tests.registry import CASES

RNG = np.random.default_rng(12)
ROWS = 200_000
X = RNG.normal(size=(ROWS, 2)) * [3.0, 0.5] + [10.0, -2.0]
LABELS = (RNG.random(ROWS) < 1.0 / (1.0 + np.exp(10.0 - X[:, 0]))).astype(float)
FEW = slice(0, 5000)
Z = np.array([[-1.5, -1.0], [-0.5, 0.7], [0.4, -0.6], [1.3, 0.9]])
MODEL = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.2), mean=0.3, form=pgm.Inducing(Z)))


def taken(rows, count, size=1000, first=0, num_rows=ROWS):
    """Some batches of rows."""
    stream = batches(rows, Scaling(np.zeros(1), np.ones(1)), num_rows, size, [3], first)
    return [next(stream) for _ in range(count)]


def assert_same(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    """The data in files."""
    folder = tmp_path_factory.mktemp("rows")
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", LABELS.astype(np.int8))
    return np.load(folder / "X.npy", mmap_mode="r"), np.load(folder / "y.npy", mmap_mode="r")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The first rows in five row groups of a Parquet file, with a column that nobody asks for."""
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    columns = {"a": X[FEW, 0], "name": ["x"] * 5000, "b": X[FEW, 1], "y": LABELS[FEW].astype(int)}
    parquet.write_table(table(columns), path, row_group_size=1024)
    return path


class Parts:
    """Batches of the first rows, whenever it is iterated."""

    def __init__(self, X=X[FEW], y=LABELS[FEW], length=1024):
        self.X, self.y, self.length = X, y, length

    def __iter__(self):
        for start in range(0, len(self.X), self.length):
            yield self.X[start : start + self.length], self.y[start : start + self.length]


def test_every_pass_has_every_row_once_in_another_order():
    rows = pgm.ArrayRows(X, np.arange(ROWS))
    order = np.concatenate([y for _, y in taken(rows, 400)])
    for one in (order[:ROWS], order[ROWS:]):
        np.testing.assert_array_equal(np.sort(one), np.arange(ROWS))
    assert np.mean(order[:ROWS] == order[ROWS:]) < 0.001
    # A batch has rows from everywhere: the mean of 1,000 uniform numbers has a standard error of 0.9 % of the range,
    # and that of runs of neighbours, 128 at a time, one of 2.6 %.
    assert abs(order[:1000].mean() / ROWS - 0.5) < 0.1
    # What is taken up later goes on with the same batches.
    assert_same(taken(rows, 3, first=198), taken(rows, 201)[198:])
    # A pass that all rows do not fill leaves some out, others each time.
    assert len({y.tobytes() for _, y in taken(rows, 2, size=150_000)}) == 2


def test_mapped_files_give_the_batches_of_arrays(mapped):
    assert_same(taken(pgm.ArrayRows(*mapped), 201), taken(pgm.ArrayRows(X, LABELS), 201))


def test_parquet_files_give_the_batches_of_arrays(file):
    ours = pgm.ParquetRows(file, "y", ["a", "b"])
    assert ours.columns == ("a", "b")
    # Groups of as many rows as arrays are read by.
    arrays = pgm.ArrayRows(X[FEW], LABELS[FEW])
    assert_same(taken(ours, 12, 500, num_rows=5000), taken(arrays, 12, 500, num_rows=5000))
    both = pgm.ParquetRows([file, file], ("y", "b"), "a")
    ((inputs, observations),) = taken(both, 1, 10_000, num_rows=10_000)
    np.testing.assert_array_equal(inputs, np.tile(X[FEW, :1], (2, 1)))
    np.testing.assert_array_equal(observations, np.tile(np.column_stack([LABELS, X[:, 1]])[FEW], (2, 1)))


def test_what_is_iterated_gives_all_rows_in_every_pass():
    batches = taken(pgm.IterableRows(Parts(y=np.arange(5000))), 20, 500, num_rows=5000)
    for one in (batches[:10], batches[10:]):
        np.testing.assert_array_equal(np.sort(np.concatenate([y for _, y in one])), np.arange(5000))


@pytest.mark.parametrize("standardise", [False, True])
def test_one_pass_finds_what_standardises_rows_and_a_sample(standardise):
    # Blocks of different lengths, far from zero.
    inputs = X[:30_000] + 1e4
    rows = pgm.IterableRows(Parts(inputs, np.arange(30_000), 7001), standardise=standardise)
    summary = survey(rows, lambda X, y: (X, y))
    assert summary.num_rows == 30_000
    location, scale = (inputs.mean(axis=0), inputs.std(axis=0)) if standardise else (np.zeros(2), np.ones(2))
    np.testing.assert_allclose(summary.scaling.location, location, rtol=1e-13)
    np.testing.assert_allclose(summary.scaling.scale, scale, rtol=1e-10)
    assert len(summary.y) == 20_000 == len(set(summary.y))
    # Uniform: the standard error of the mean place is 0.2 % of the range, as two thirds are taken even less.
    assert abs(summary.y.mean() / 30_000 - 0.5) < 0.01
    np.testing.assert_allclose(summary.X, (inputs[summary.y.astype(int)] - location) / scale, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("value", [7.0, 0.1])
def test_a_column_that_does_not_vary_is_only_moved(value):
    """The mean of many 0.1 is another number."""
    inputs = np.column_stack([X[FEW, 0], np.full(5000, value)])
    summary = survey(pgm.ArrayRows(inputs, LABELS[FEW], standardise=True), lambda X, y: (X, y))
    assert summary.scaling.scale[1] == 1.0
    np.testing.assert_array_equal(summary.X[:, 1], 0.0)


def assert_kept(result, X_new, path, likelihood=None):
    """The same after it was saved and loaded."""
    loaded = pgm.load(result.save(path), likelihood=likelihood)
    assert type(loaded) is pgm.SparseApproximation
    assert repr(loaded) == repr(result)
    assert loaded.columns == result.columns
    np.testing.assert_array_equal(loaded.elbo_trace, result.elbo_trace)
    np.testing.assert_array_equal(loaded.predict_latent(X_new), result.predict_latent(X_new))
    np.testing.assert_array_equal(loaded.draw_latents(X_new, 5), result.draw_latents(X_new, 5))


@pytest.mark.slow
def test_mapped_files_are_learned_from_as_arrays_are(mapped, tmp_path):
    before = advance.cache_size()
    with pytest.warns(pgm.ConvergenceWarning, match="after 1 passes"):
        ours = pgm.svi(MODEL, pgm.ArrayRows(*mapped, standardise=True), max_epochs=1)
    with pytest.warns(pgm.ConvergenceWarning):
        theirs = pgm.svi(MODEL, pgm.ArrayRows(X, LABELS, standardise=True), max_epochs=1)
    # One program for the windows of both.
    assert advance.cache_size() == before + 1
    assert ours.num_rows == ROWS
    assert ours.elbo == theirs.elbo
    assert_kept(ours, X[:7], tmp_path / "svi.npz")
    np.testing.assert_array_equal(ours.predict_latent(X[:7]), theirs.predict_latent(X[:7]))
    # Raw inputs: where most rows are, means are those of the truth but for what four inducing inputs cannot say.
    near = X[:200][np.all(np.abs(X[:200] - X.mean(axis=0)) < X.std(axis=0), axis=1)]
    np.testing.assert_allclose(ours.predict_latent(near)[0][:, 0], near[:, 0] - 10.0, atol=1.0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the inducing inputs, 4 in all, are too few")
def test_all_rows_at_once_give_the_predictions_of_cavi():
    inputs, labels = (X[:300] - X.mean(axis=0)) / X.std(axis=0), LABELS[:300]
    sparse = pgm.svi(MODEL, pgm.ArrayRows(inputs, labels), tolerance=1e-9)
    exact = pgm.cavi(MODEL, inputs, labels, tolerance=1e-12)
    assert sparse.converged
    assert sparse.elbo == pytest.approx(exact.elbo, abs=1e-6)
    new = inputs[:5] + 0.3
    np.testing.assert_allclose(sparse.predict_latent(new), exact.predict_latent(new), atol=1e-5)
    ours, theirs = (result.predict(new).log_density(np.ones(5)) for result in (sparse, exact))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    draws = sparse.draw_latents(new, 4000, seed=1)
    mean, variance = exact.predict_latent(new)
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=4.0 * np.sqrt(variance.max() / 4000))
    travelled = pickle.loads(pickle.dumps(sparse))
    np.testing.assert_array_equal(travelled.predict_latent(new)[0], sparse.predict_latent(new)[0])


@pytest.mark.filterwarnings("ignore:the inducing inputs, 4 in all, are too few")
def test_a_result_without_rows_shows_itself_and_says_what_needs_them():
    source = pgm.ArrayRows(X[:200], LABELS[:200], standardise=True)
    with pytest.warns(pgm.ConvergenceWarning):
        sparse = pgm.svi(MODEL, source, batch_size=50, max_epochs=1)
    assert repr(sparse).startswith("<SparseApproximation Stochastic CAVI of Bernoulli(), 200 rows, 1 latent, ")
    text = " ".join(str(sparse).split())
    assert f"ELBO {sparse.elbo:.4f} nats; windows of steps and passes 1, not converged" in text
    assert "<caption>Stochastic CAVI of Bernoulli()</caption>" in sparse._repr_html_()
    assert sparse.likelihood is sparse.model.likelihood
    assert sparse.prior is sparse.posterior.prior
    assert sparse.jitter
    # What the messages recommend.
    exact = pgm.cavi(sparse.model, sparse.scaling(X[:200]), LABELS[:200])
    exports = (pgm.to_arviz, pgm.SparseApproximation.to_arviz, pgm.plot_latent)
    compared = lambda result: pgm.compare(one=result, other=exact)  # noqa: E731
    for call in (pgm.correct, pgm.diagnose, pgm.log_evidence, *exports, compared):
        with pytest.raises(ValueError, match=r"pgm\.vi\(result\.model, X, y, .*\) .* scaled by result\.scaling"):
            call(sparse)


@pytest.mark.slow
def test_predictors_that_combine_latents_are_predicted_jointly(tmp_path):
    case = CASES["varying"]
    rows, y = case.data(24, seed=3)
    gps = [pgm.GP(pgm.RBF(2.0 - 0.5 * i, 1.2 + i), mean=0.3 * i, form=pgm.Inducing(rows[: 8 - i])) for i in range(3)]
    model = pgm.Model(case.likelihood(), gps[: case.num_latents])
    result, exact = pgm.svi(model, pgm.ArrayRows(rows, y), tolerance=1e-8), pgm.cavi(model, rows, y, tolerance=1e-12)
    np.testing.assert_allclose(result.predict_latent(rows[:4]), exact.predict_latent(rows[:4]), atol=1e-5)
    y_new = y[:4]
    ours, theirs = (r.predict(rows[:4], y_new[:, 1:]).log_density(y_new) for r in (result, exact))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert_kept(result, rows[:4], tmp_path / "svi.npz", case.likelihood())


@pytest.mark.parametrize(
    ("row", "column", "value", "complaint"),
    [
        (41_234, 1, np.nan, "X must be finite; got nan in row 41234, column 1"),
        (0, 0, np.inf, "X must be finite; got inf in row 0, column 0"),
        (49_999, None, np.nan, "y must be finite; got nan in row 49999"),
        (33_000, None, 3.0, "row 33000"),
    ],
)
def test_what_is_wrong_with_a_row_names_it(row, column, value, complaint):
    inputs, labels = X[:50_000].copy(), LABELS[:50_000].copy()
    if column is None:
        labels[row] = value
    else:
        inputs[row, column] = value
    for rows in (pgm.ArrayRows(inputs, labels), pgm.IterableRows(Parts(inputs, labels, 13_001))):
        with pytest.raises(ValueError, match=complaint):
            pgm.svi(MODEL, rows)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda file: pgm.ArrayRows(X[:5, 0], LABELS[:5]), r"X must have shape \(n, d\)"),
        (lambda file: pgm.ArrayRows(X[:5], LABELS[:4]), "must have the same length"),
        (lambda file: pgm.IterableRows(iter(Parts())), "can be iterated repeatedly"),
        (lambda file: pgm.IterableRows(3), "can be iterated repeatedly"),
        (lambda file: pgm.ParquetRows(file, "z"), "has no column 'z'; it has a, name, b, y"),
        (lambda file: pgm.ParquetRows(file, "y", ["a", "y"]), "column 'y' cannot be in both X and y"),
        (lambda file: pgm.ParquetRows(file, "y", "ab"), "has no column 'ab'"),
        (lambda file: pgm.ParquetRows(file, "y", ["a", "a"]), "column 'a' twice"),
        (lambda file: pgm.ParquetRows(file, "y", []), "at least one column of X"),
        (lambda file: pgm.ParquetRows([], "y"), "empty list"),
        (lambda file: pgm.ParquetRows(file.with_name("none.parquet"), "y"), "there is no file"),
        (lambda file: pgm.ParquetRows(__file__, "y"), "not a Parquet file"),
        (lambda file: pgm.svi(MODEL, pgm.ParquetRows(file, "y")), "column name must be numeric"),
        (lambda file: pgm.svi(MODEL, pgm.IterableRows([X[:5]])), r"must be pairs \(X, y\)"),
        (lambda file: pgm.svi(MODEL, pgm.IterableRows([(X[:5, 0], LABELS[:5])])), r"got shapes \(5,\) and \(5,\)"),
        (lambda file: pgm.svi(MODEL, pgm.IterableRows([(X[:5], LABELS[:4])])), "must have the same length"),
        (lambda file: pgm.svi(MODEL, pgm.IterableRows([])), "the data have no rows"),
        (
            lambda file: pgm.svi(MODEL, pgm.IterableRows([(X[:5], LABELS[:5]), (X[:5, :1], LABELS[:5])])),
            r"X must have 2 column\(s\), as the first rows",
        ),
        (lambda file: pgm.svi(MODEL, pgm.ArrayRows(X[:5], LABELS[:5]), LABELS[:5]), "y needs an array X"),
        (lambda file: pgm.svi(MODEL, pgm.ArrayRows(X[:5], LABELS[:5]), weights=np.ones(5)), "weights needs an array X"),
        (lambda file: pgm.svi(MODEL, X[:5]), "y is missing"),
        (
            lambda file: pgm.svi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF())), pgm.ArrayRows(X[:5], LABELS[:5])),
            "rows that are not in memory needs GPs with inducing inputs",
        ),
    ],
)
def test_wrong_rows_are_refused(file, make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make(file)


def test_rows_that_are_gone_in_a_later_pass_are_noticed():
    class Shrinking(Parts):
        passes = 0

        def __iter__(self):
            self.passes += 1
            yield from list(super().__iter__())[: 6 - self.passes]

    stream = batches(pgm.IterableRows(Shrinking()), Scaling(np.zeros(2), np.ones(2)), 5000, 1000, [0])
    with pytest.raises(ValueError, match="pass 1 over the data has 4 batches of 1000 rows, and the first had 5"):
        [next(stream) for _ in range(12)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the inducing inputs, 4 in all, are too few")
def test_classes_that_no_row_has_are_warned_of():
    model = pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(pgm.RBF(2.0, 1.2), size=3, form=pgm.Inducing(Z)))
    with pytest.warns(pgm.DataWarning, match="no observation of class 2 out of 3"):
        pgm.svi(model, pgm.ArrayRows(X[:30], LABELS[:30]), tolerance=1e-3)


SCRIPT = """
import sys, pgmodels as pgm
from tests.data.test_sources import LABELS, MODEL, X
options = {"train_hyperparameters": True, "tolerance": 1e-9, "checkpoint": sys.argv[1]}
pgm.svi(MODEL, pgm.ArrayRows(X, LABELS, standardise=True), **options)
"""
SAVED = {"batch_size": 100, "train_hyperparameters": True, "tolerance": 1e-9, "max_epochs": 24}


def learned_from(folder, **options):
    """What a few windows of steps learn from the first rows."""
    with pytest.warns(pgm.ConvergenceWarning):
        return pgm.svi(
            MODEL, pgm.ArrayRows(X[FEW], LABELS[FEW], standardise=True), checkpoint=folder, **SAVED | options
        )


def assert_same_result(ours, theirs):
    np.testing.assert_array_equal(ours.elbo_trace, theirs.elbo_trace)
    np.testing.assert_array_equal(ours.predict_latent(X[:5]), theirs.predict_latent(X[:5]))
    for name, value in theirs.fit.values.items():
        np.testing.assert_array_equal(ours.fit.values[name], value)
    assert ours.fit.start_elbos == theirs.fit.start_elbos


@pytest.mark.slow
@pytest.mark.parametrize(("failing", "at"), [("replace", 2), ("fsync", 4)])
def test_an_interrupted_run_is_taken_up_bit_for_bit(tmp_path, monkeypatch, failing, at):
    monkeypatch.setattr(EngineCheckpoint, "interval", 0.0)
    uninterrupted = learned_from(None)
    assert len(uninterrupted.elbo_trace) == 6
    assert_kept(uninterrupted, X[:5], tmp_path / "result.npz")
    with interrupted(failing, at):
        learned_from(tmp_path)
    resumed = learned_from(tmp_path)
    assert_same_result(resumed, uninterrupted)
    # At its end it is read, and goes on with more passes.
    assert_same_result(learned_from(tmp_path), uninterrupted)
    assert_same_result(learned_from(tmp_path, max_epochs=32), learned_from(None, max_epochs=32))
    with pytest.raises(ValueError, match="contains another run of svi, which differs in"):
        pgm.svi(MODEL, pgm.ArrayRows(X[FEW], 1.0 - LABELS[FEW], standardise=True), checkpoint=tmp_path, **SAVED)
    with pytest.raises(ValueError, match="checkpoint must be a writable folder"):
        pgm.svi(MODEL, pgm.ArrayRows(X[FEW], LABELS[FEW]), checkpoint=__file__, **SAVED)


@pytest.mark.slow
def test_a_killed_process_is_taken_up_bit_for_bit(tmp_path):
    kill_when((tmp_path / "svi.npz").exists, "-c", SCRIPT, tmp_path)
    done = len(read_arrays(tmp_path / "svi.npz")[1]["states.full.leaves.0"])
    rows, options = pgm.ArrayRows(X, LABELS, standardise=True), {"train_hyperparameters": True, "tolerance": 1e-9}
    # A pass is a window: one more than there were.
    with pytest.warns(pgm.ConvergenceWarning):
        resumed = pgm.svi(MODEL, rows, max_epochs=done + 1, checkpoint=tmp_path, **options)
    with pytest.warns(pgm.ConvergenceWarning):
        uninterrupted = pgm.svi(MODEL, rows, max_epochs=done + 1, **options)
    assert len(resumed.elbo_trace) == done + 1
    assert_same_result(resumed, uninterrupted)
