"""Where validation writes: found out before any work, each file as it comes, and whole or not at all."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pgmodels as pgm
from pgmodels import workflow as validation
from pgmodels.cli import main
from pgmodels.runtime.io import atomic_write, make_folder


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=20), "y": np.arange(20) % 2})
    frame.to_csv(tmp_path / "small.csv", index=False)
    return tmp_path / "small.csv"


def refused(*args, **kwargs):
    raise PermissionError(13, "Permission denied")


def work(*args, **kwargs):
    raise AssertionError("the folder is to be checked before any work")


BAD = {
    "a file": lambda folder: folder / "file",
    "below a file": lambda folder: folder / "file" / "deep" / "er",
    "no place for files": lambda folder: Path("/proc/pgmodels-results"),
    "a long name": lambda folder: folder / ("x" * 300),
}


@pytest.mark.parametrize("name", BAD)
def test_a_folder_that_cannot_be_written_to_is_refused_before_any_work(name, table, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    path = BAD[name](tmp_path)
    monkeypatch.setattr(validation, "fit", work)
    assert main(["validate", "--data", str(table), "--output", str(path), "--quiet"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "--output must be a writable folder" in message
    assert "Choose another" in message
    with pytest.raises(ValueError, match="checkpoint must be a writable folder"):
        make_folder(path, "checkpoint")


@pytest.mark.parametrize(("owner", "name"), [(Path, "mkdir"), (tempfile, "TemporaryFile")])
def test_a_folder_that_may_not_be_written_to_is_refused(owner, name, tmp_path, monkeypatch):
    monkeypatch.setattr(owner, name, refused)
    with pytest.raises(ValueError, match=r"--output must be a writable folder.*Permission denied"):
        make_folder(tmp_path / "new", "--output")


def test_a_file_is_complete_or_absent(tmp_path):
    path = tmp_path / "report.html"
    with atomic_write(path) as temporary:
        temporary.write_text("first")
        assert not path.exists()

    def fail():
        with atomic_write(path) as temporary:
            temporary.write_text("half of the sec")
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        fail()
    assert path.read_text() == "first"
    make_folder(tmp_path / "a" / "b", "--output")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a", "report.html"]
    assert not os.listdir(tmp_path / "a" / "b")


class Table:
    """A comparison that is quick."""

    def save(self, folder):
        (folder / "comparison.csv").write_text("compared")


@pytest.fixture
def quick(monkeypatch):
    """Validation whose engines are quick."""
    X, y = np.linspace(0.0, 1.0, 6)[:, None], np.array([0.0, 1.0, 0.0, 1.0, 1.0, 0.0])
    result = pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0))), X, y)
    for name in ("fit", "gaussian_vi", "correct", "gibbs", "diagnose"):
        monkeypatch.setattr(validation, name, lambda *args, **kwargs: result)
    monkeypatch.setattr(validation, "compare", lambda **kwargs: Table())
    report = "pgmodels.report.report.write_report"
    monkeypatch.setattr(report, lambda path, *args, **kwargs: path.write_text("reported"))
    return result


RESULTS = {f"{name}.nc" for name in ("cavi", "corrected", "gaussian", "corrected_gaussian", "gibbs")}
ALL = RESULTS | {"comparison.csv", "settings.json", "report.html"}


def test_what_was_found_before_an_interruption_is_there_and_does_not_look_whole(quick, table, tmp_path, monkeypatch):
    output = tmp_path / "out"
    arguments = ["validate", "--data", str(table), "--output", str(output), "--quiet"]

    def names(folder):
        return {path.name for path in (output / folder).iterdir()}

    def interrupted(*args, **kwargs):
        assert names("small.unfinished") == {"cavi.nc", "corrected.nc"}
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(validation, "gaussian_vi", interrupted)
        assert main(arguments) == 130
    assert names("small.unfinished") == {"cavi.nc", "corrected.nc"}
    assert names("small") == set()
    assert main(arguments) == 0
    assert names("small") == ALL
    assert not (output / "small.unfinished").exists()
    # What is whole stays whole until what is new is so too; what the user keeps beside it is left alone.
    (output / "small" / "notes.txt").write_text("mine")
    (output / "small" / "settings.json").write_text("earlier")
    (output / "small.unfinished").mkdir()
    (output / "small.unfinished" / ".gibbs.nc.0123456789abcdef.tmp").write_text("half")
    with monkeypatch.context() as patch:
        patch.setattr(validation, "compare", interrupted_after(RESULTS, names))
        assert main(arguments) == 130
    assert names("small") == ALL | {"notes.txt"}
    assert (output / "small" / "settings.json").read_text() == "earlier"
    # Corrected variances that are not positive are no draws, and an earlier run's draws are not this one's.
    gone = {"corrected.nc", "corrected_gaussian.nc"}
    bad = type("Bad", (), {"variance": -np.ones(2)})()
    monkeypatch.setattr(validation, "correct", lambda result: bad)
    assert main(arguments) == 0
    assert names("small") == ALL - gone | {"notes.txt"}
    assert (output / "small" / "settings.json").read_text() != "earlier"


def interrupted_after(expected, names):
    def interrupted(**kwargs):
        assert names("small.unfinished") == expected
        raise KeyboardInterrupt

    return interrupted
