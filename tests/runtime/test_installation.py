"""A warning, once per process, of an installation that computes wrong numbers."""

import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.cli import main
from pgmodels.runtime import jit
from pgmodels.runtime.jit import compiled

right = jit._squared_lengths


def wrong(rows):
    """As jaxlib 0.10.2 computes."""
    lengths = right(rows).copy()
    lengths[-1] = 266342400.0
    return lengths


@pytest.fixture
def not_tried(monkeypatch):
    """A release that came after those that were tried."""
    jit.check_installation.cache_clear()
    monkeypatch.setattr(jit, "__version_info__", (0, 10, 2))
    yield
    jit.check_installation.cache_clear()


def test_this_installation_computes_correctly():
    assert jit.computes_correctly()


@pytest.mark.usefixtures("not_tried")
def test_wrong_numbers_warn_once_at_the_first_computation(monkeypatch):
    monkeypatch.setattr(jit, "_squared_lengths", wrong)
    add = compiled(lambda x: x + 1.0)
    with pytest.warns(pgm.InstallationWarning, match="issue 39103") as caught:
        add(np.ones(2))
    assert [warning.filename for warning in caught] == [__file__]
    add(np.ones(3))


@pytest.mark.usefixtures("not_tried")
def test_right_numbers_do_not_warn(monkeypatch):
    runs = []
    monkeypatch.setattr(jit, "_squared_lengths", lambda rows: runs.append(rows) or rows[:, 0] ** 2)
    add = compiled(lambda x: x + 1.0)
    add(np.ones(2))
    add(np.ones(3))
    assert len(runs) == 1


def test_a_release_that_was_tried_costs_no_time(monkeypatch):
    jit.check_installation.cache_clear()
    monkeypatch.setattr(jit, "__version_info__", (0, 10, 1))
    monkeypatch.setattr(jit, "_squared_lengths", None)
    compiled(lambda x: x + 1.0)(np.ones(2))


def test_version_shows_wrong_numbers(monkeypatch, capsys):
    monkeypatch.setattr(jit, "_squared_lengths", wrong)
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    shown = capsys.readouterr()
    assert ended.value.code == 0
    assert shown.out.startswith("pgmodels ")
    assert shown.err.count("\n") == 1
    assert "wrong numbers" in shown.err
