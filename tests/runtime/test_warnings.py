import importlib.machinery
import io
import sys
import threading
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.priors.inducing import centres
from pgmodels.runtime.messages import progress_bar, shows_progress, suppress_warnings, warn


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


def test_suppressed_warnings_are_of_one_thread_and_change_no_filters():
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
    assert users == {"datasets.py", "workflow.py"}


# Progress bars: where they are shown.


class Screen(io.StringIO):
    """A terminal, or a file."""

    def __init__(self, is_terminal):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal


PLAIN = {"TERM": "xterm"}
NAMES = ("FORCE_COLOR", "NO_COLOR", "TERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM")
# Each environment, and whether bars are shown in a terminal.
ENVIRONMENTS = [
    ({}, True),
    ({"FORCE_COLOR": "1"}, True),
    ({"FORCE_COLOR": "3", "TTY_INTERACTIVE": "1"}, True),
    ({"NO_COLOR": "1"}, True),
    ({"TTY_COMPATIBLE": "1"}, True),
    ({"TTY_COMPATIBLE": "1", "TTY_INTERACTIVE": "1"}, True),
    ({"TERM": "dumb"}, False),
    ({"TERM": "dumb", "FORCE_COLOR": "1"}, False),
]
if tuple(map(int, version("rich").split(".")[:2])) >= (14, 1):  # the first release that reads both
    ENVIRONMENTS += [({"TTY_COMPATIBLE": "0"}, False), ({"TTY_INTERACTIVE": "0"}, False)]


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize(("environment", "shown"), ENVIRONMENTS, ids=str)
def test_bars_are_shown_in_what_is_a_terminal_and_nowhere_else(environment, shown, is_terminal, monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in (PLAIN | environment).items():
        monkeypatch.setenv(name, value)
    screen = Screen(is_terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    for enabled in (None, True, False):
        visible = shown and is_terminal and enabled is not False
        assert shows_progress(enabled) == visible
        with progress_bar("fit", 5, enabled) as bar:
            assert bar.visible == visible
            bar.advance(2)
        assert ("fit" in screen.getvalue()) == visible
        screen.seek(0)
        screen.truncate()


@pytest.mark.parametrize("has_widgets", [False, True])
def test_a_notebook_without_widgets_has_no_bars_and_no_warning(has_widgets, monkeypatch):
    spec = importlib.machinery.ModuleSpec("ipywidgets", None) if has_widgets else None
    monkeypatch.setattr("pgmodels.runtime.messages.find_spec", lambda name: spec)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert shows_progress(None) == shows_progress(True) == has_widgets
    assert not shows_progress(False)
    if not has_widgets:
        with progress_bar("fit", 5, True) as bar:
            bar.advance()


def test_there_may_be_no_standard_error(monkeypatch):
    closed = io.StringIO()
    closed.close()
    for stderr in (None, closed):
        monkeypatch.setattr(sys, "stderr", stderr)
        with progress_bar("fit", 5, None) as bar:
            bar.advance()
            assert not bar.visible
