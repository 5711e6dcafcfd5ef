"""Progress bars: where they are shown."""

import importlib.machinery
import io
import sys
from importlib.metadata import version

import pytest

from pgmodels.runtime.messages import progress_bar, shows_progress


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
