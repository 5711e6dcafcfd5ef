"""Progress bars: sent by one process, shown by another."""

import importlib.machinery
import io
import sys
from importlib.metadata import version

import pytest
from rich.console import Console
from rich.progress import Progress

from pgmodels.runtime.progress import ProgressBoard, progress_bar, progress_board, redirect_progress, shows_progress


def shown(progress):
    return [(task.description, task.completed, task.total) for task in progress.tasks if task.visible]


def test_bars_that_are_told_of_are_rows_of_a_board():
    progress = Progress(console=Console(file=io.StringIO()))
    board = ProgressBoard(["one", "other"], progress)
    assert shown(progress) == [("one", 0, None), ("other", 0, None)]
    with redirect_progress(lambda *message: board.update(1, *message)):
        for title, length in (("fit", 5), ("gibbs", 7)):
            with progress_bar(title, length, True) as bar:
                assert bar.visible
                bar.advance(2, "a note")
                bar.advance()
                assert shown(progress) == [("one", 0, None), (f"other: {title}", 3, length)]
            assert shown(progress) == [("one", 0, None), ("other", 0, None)]
        with progress_bar("silent", 5, False) as bar:
            assert not bar.visible
    with board.closing(1):
        assert shown(progress) == [("one", 0, None)]


def test_a_board_that_nobody_sees_is_silent(capsys):
    with progress_board(["one"], False) as board:
        board.update(0, "fit", 5, 0, "")
        with board.closing(0):
            print("said")
    assert capsys.readouterr() == ("said\n", "")


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
    monkeypatch.setattr("pgmodels.runtime.progress.find_spec", lambda name: spec)
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
