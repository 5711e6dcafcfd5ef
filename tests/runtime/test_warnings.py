import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.priors.inducing import centres
from pgmodels.runtime.messages import suppress_warnings, warn


def called_within(depth, category=UserWarning):
    """A function of the package that warns ``depth`` calls deep."""
    inside = {"__name__": "pgmodels.deep", "warn": warn, "category": category}
    exec("def call(n): return warn('deep', category) if n == 0 else call(n - 1)", inside)
    return inside["call"](depth)


@pytest.mark.parametrize("depth", [0, 1, 7])
def test_a_warning_has_the_line_outside_however_deep(depth):
    with pytest.warns(UserWarning, match="deep") as caught:
        called_within(depth)
    assert caught[0].filename == __file__


def test_a_warning_of_an_engine_and_of_a_prediction_has_the_callers_line():
    X, y = np.linspace(0.0, 1.0, 5)[:, None], np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(4.0, 0.5)))
    with pytest.warns(pgm.ConvergenceWarning) as caught:
        pgm.cavi(model, X, y, max_iterations=1)
    assert caught[0].filename == __file__

    @pgm.likelihood(support=pgm.Binary())
    def unnormalised(y, f):
        return 2.0 * pgm.sigmoid(f) ** y * pgm.sigmoid(-f) ** (1 - y)

    vi = pgm.cavi(pgm.Model(unnormalised(), pgm.GP(pgm.RBF(4.0, 0.5))), X, y)
    with pytest.warns(pgm.PredictionWarning) as caught:
        vi.predict(X).log_density(y)
    assert caught[0].filename == __file__


def test_what_is_left_unsaid_is_so_in_one_thread_and_changes_no_filters():
    before, inside, over = list(warnings.filters), threading.Event(), threading.Event()

    def leave_unsaid():
        with suppress_warnings(pgm.FitWarning):
            inside.set()
            assert over.wait(30.0)

    thread = threading.Thread(target=leave_unsaid)
    thread.start()
    assert inside.wait(30.0)
    with suppress_warnings(pgm.ConvergenceWarning):
        assert warnings.filters == before
        called_within(1, pgm.ConvergenceWarning)
        with pytest.warns(pgm.FitWarning, match="deep"):
            called_within(1, pgm.FitWarning)
        with suppress_warnings(UserWarning):
            called_within(1, pgm.FitWarning)
    over.set()
    thread.join()
    with pytest.warns(pgm.ConvergenceWarning, match="deep"):
        called_within(1, pgm.ConvergenceWarning)


def test_of_few_rows_that_differ_there_are_fewer_centres_without_a_warning():
    rng = np.random.default_rng(1)
    # Four rows that differ, and noise too small for a squared distance: scikit-learn warns of nine centres of these.
    rows = rng.integers(0, 2, (60, 2)) + 1e-10 * rng.normal(size=(60, 2)) + 7.0
    points = centres(pgm.RBF(1.0, 1.0), rows, 9)
    points = points[np.lexsort(np.round(points.T, 6))]
    np.testing.assert_allclose(points - 7.0, [[0, 0], [1, 0], [0, 1], [1, 1]], atol=1e-9)


def test_only_the_command_line_changes_the_filters_of_the_process():
    package = Path(pgm.__file__).parent
    users = {path.name for path in package.rglob("*.py") if "warnings.catch_warnings(" in path.read_text()}
    assert users == {"datasets.py", "study.py"}
