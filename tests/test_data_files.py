"""Files of data that are not what they should be: each is refused in one line that names the remedy."""

import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from pgmodels import datasets
from pgmodels.cli import main
from pgmodels.datasets import load

X, Y = np.arange(12.0).reshape(6, 2) ** 2, np.array([0, 1, 1, 0, 1, 0])


def saved(folder, **arrays):
    np.savez(folder / "d.npz", **arrays)


ARRAYS = {
    "no X": ({"y": Y}, "has no array X; it has y, but it must hold X"),
    "no y": ({"X": X, "labels": Y}, "has no array y; it has X, labels"),
    "no arrays": ({}, "has no array X; it has none"),
    "y is longer": ({"X": X, "y": np.arange(8) % 2}, r"y of .* must have shape \(n,\).* X of 6 rows; got \(8,\)"),
    "y is shorter": ({"X": X, "y": Y[:4]}, r"X of 6 rows; got \(4,\)"),
    "text is longer": ({"X": X, "y": np.array(list("abababa"))}, r"X of 6 rows; got \(7,\)"),
    "objects in X": ({"X": X.astype(object), "y": Y}, "cannot be read as a .npz file.*Write it by numpy.savez"),
    "objects in y": ({"X": X, "y": Y.astype(object)}, "cannot be read as a .npz file"),
    "X of one axis": ({"X": X[:, 0], "y": Y}, r"X of .* must have shape \(n, d\), one row per datum; got \(6,\)"),
    "X of three": ({"X": X[..., None], "y": Y}, r"must have shape \(n, d\).*got \(6, 2, 1\)"),
    "X without axes": ({"X": np.array(1.0), "y": Y}, r"must have shape \(n, d\).*got \(\)"),
    "X without columns": ({"X": X[:, :0], "y": Y}, r"got \(6, 0\)"),
    "no rows": ({"X": X[:0], "y": Y[:0]}, r"got \(0, 2\)"),
    "text in X": ({"X": X.astype(str), "y": Y}, "X of .* must hold real numbers; got <U32 of shape"),
    "complex X": ({"X": X + 1j, "y": Y}, "must hold real numbers; got complex128"),
    "times in y": ({"X": X, "y": Y.astype("M8[D]")}, "y of .* must hold real numbers; got datetime64"),
    "y of one column": ({"X": X, "y": Y[:, None]}, r"must have shape \(n,\) or, .* got \(6, 1\)"),
    "y of three axes": ({"X": X, "y": np.zeros((6, 2, 2))}, r"got \(6, 2, 2\)"),
    "text of two columns": ({"X": X, "y": np.full((6, 2), "a")}, r"is text; it must have shape \(n,\)"),
    "y is missing": ({"X": X, "y": [0, 1, np.nan, 0, 1, np.nan]}, r"y of .* not finite in row 2 \(2 such rows\)"),
    "X is infinite": ({"X": np.where(X == 9, np.inf, X), "y": Y}, "X of .* is missing or not finite in row 1"),
    "trials of other rows": ({"X": X, "y": Y, "trials": Y[:2]}, r"one shape \(n,\); got \(6,\), \(2,\)|must both have"),
    "trials of text": ({"X": X, "y": Y, "trials": np.full(6, "a")}, "trials of .* must hold real numbers"),
    "y of two columns and trials": ({"X": X, "y": np.ones((6, 2)), "trials": Y}, r"shape \(n,\)"),
    "names are numbers": ({"X": X, "y": Y, "target_names": [3, 4]}, "target_names of .* must be text"),
    "bytes that are no text": ({"X": X, "y": np.array([b"\xff", b"a"] * 3)}, "text of .* is not UTF-8"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_that_do_not_fit_are_refused(name, tmp_path, capsys):
    arrays, words = ARRAYS[name]
    saved(tmp_path, **arrays)
    with pytest.raises(ValueError, match=words) as caught:
        load(str(tmp_path / "d.npz"))
    assert str(caught.value).startswith("data: ")
    assert "\n" not in str(caught.value)
    assert main(["validate", "--data", str(tmp_path / "d.npz"), "--quiet", "--output", str(tmp_path / "out")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_arrays_that_fit_are_read(tmp_path):
    saved(tmp_path, X=X.astype(np.float32), y=Y.astype(bool))
    data = load(str(tmp_path / "d.npz"))
    np.testing.assert_array_equal(data.X, X)
    np.testing.assert_array_equal(data.y, Y)
    saved(tmp_path, X=X.astype(int), y=np.column_stack([np.arange(6) + 0.5, Y]))
    assert load(str(tmp_path / "d.npz")).y.shape == (6, 2)
    saved(tmp_path, X=X, y=np.array(["é".encode(), b"a"] * 3))
    assert load(str(tmp_path / "d.npz")).class_names == ("a", "é")


def as_npy(path):
    with path.open("wb") as file:
        np.save(file, X)


def cut(path):
    np.savez(path, X=X, y=Y)
    path.write_bytes(path.read_bytes()[:-40])


def flipped(path):
    np.savez_compressed(path, X=np.random.default_rng(0).normal(size=(50, 2)), y=np.arange(50) % 2)
    content = bytearray(path.read_bytes())
    content[200:300] = bytes(100)
    path.write_bytes(content)


def other_archive(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("X.npy", "no array")
        archive.writestr("y.npy", "no array")


FILES = {
    "empty.npz": (lambda path: path.write_bytes(b""), "cannot be read as a .npz file"),
    "text.npz": (lambda path: path.write_text("a,y\n1,2\n"), "it is not an archive of arrays.*numpy.savez"),
    "array.npz": (as_npy, "it is not an archive of arrays"),
    "cut.npz": (cut, "cannot be read as a .npz file"),
    "flipped.npz": (flipped, "cannot be read as a .npz file"),
    "archive.npz": (other_archive, "cannot be read as a .npz file"),
    "folder.npz": (Path.mkdir, "folder.npz is a folder. Give the path of a .npz, .csv or .parquet file"),
    "folder.csv": (Path.mkdir, "is a folder"),
    "folder.parquet": (Path.mkdir, "is a folder"),
    "empty.csv": (lambda path: path.write_text(""), "cannot be read as a table: No columns"),
    "blank.csv": (lambda path: path.write_text("\n\n"), "cannot be read as a table"),
    "names.csv": (lambda path: path.write_text("a,b,y\n"), "has column names but no rows"),
    "one.csv": (lambda path: path.write_text("a\n1\n"), "has 1 column; it must hold X and y"),
    "semicolons.csv": (lambda path: path.write_text("a;b;y\n1;2;0\n"), "separated by commas"),
    "headless.csv": (lambda path: path.write_text("1.5,2,0\n0.5,3,1\n"), "begins with numbers, 1.5, 2, 0: .*x0,x1,y"),
    "whole.csv": (lambda path: path.write_text("1,2,0\n2,3,1\n"), "begins with numbers.*Add such a line"),
    "spaced.csv": (lambda path: path.write_text(" -1, 2e3, nan\n2,3,1\n"), "begins with numbers"),
    "quoted.csv": (lambda path: path.write_text('"1","2"\n2,3\n'), "begins with numbers"),
    "iris.csv": (lambda path: path.write_text("5.1,3.5,setosa\n4.9,3.0,virginica\n"), "begins with numbers, 5.1, 3.5"),
    "twice.csv": (lambda path: path.write_text("a,b,a,y\n1,2,3,0\n"), "several columns 'a'"),
    "index.csv": (lambda path: path.write_text(",a,y\n0,1,0\n1,3,1\n"), "column 0 of .* has no name.*index=False"),
    "longer.csv": (lambda path: path.write_text("a,b,y\n1,2,0\n1,2,0,5\n"), "cannot be read as a table.*line 3"),
    "all longer.csv": (lambda path: path.write_text("a,b,y\n1,2,0,5\n1,2,1,5\n"), "rows with more fields"),
    "commas.csv": (lambda path: path.write_text("a,b,y\n1,2,0,\n1,2,1,\n"), "rows with more fields"),
    "shorter.csv": (lambda path: path.write_text("a,b,y\n1,2,0\n1,2\n"), "column y of .* is missing"),
    "latin.csv": (lambda path: path.write_bytes("a,y\n1,été\n".encode("latin-1")), "not UTF-8.*Save it as UTF-8"),
    "latin names.csv": (lambda path: path.write_bytes("été,y\n1,0\n".encode("latin-1")), "not UTF-8.*Save it as UTF-8"),
    "text.csv": (lambda path: path.write_text("a,b,y\n1,two,0\n"), "column b of .* is not numeric: encode it"),
    "text.parquet": (lambda path: path.write_text("a,y\n1,2\n"), "cannot be read as a table"),
    "empty.parquet": (lambda path: path.write_bytes(b""), "cannot be read as a table"),
    "lists.parquet": (
        lambda path: pd.DataFrame({"a": [1, 2], "y": [[0], [1]]}).to_parquet(path),
        "y of .* must hold numbers or text; got",
    ),
    "none.parquet": (lambda path: pd.DataFrame({"a": [], "y": []}).to_parquet(path), "column names but no rows"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_not_what_its_name_says_is_refused(name, tmp_path, capsys):
    make, words = FILES[name]
    make(tmp_path / name)
    with pytest.raises(ValueError, match=words) as caught:
        load(str(tmp_path / name))
    assert str(caught.value).startswith("data: ")
    assert main(["validate", "--data", str(tmp_path / name), "--quiet", "--output", str(tmp_path / "out")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("name", ["d.csv", "d.parquet", "d.npz"])
def test_a_file_that_may_not_be_read_is_refused(name, tmp_path, monkeypatch):
    def refused(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    (tmp_path / name).write_text("a,y\n1,0\n")
    for module, function in ((pd, "read_csv"), (pd, "read_parquet"), (np, "load"), (zipfile, "is_zipfile")):
        monkeypatch.setattr(module, function, refused)
    with pytest.raises(ValueError, match=r"cannot be read as .*Permission denied"):
        load(str(tmp_path / name))


def test_names_may_be_numbers_where_not_all_are(tmp_path):
    (tmp_path / "years.csv").write_text("2019, 2020,y\n1.5,2,0\n0.5,3,1\n")
    data = load(str(tmp_path / "years.csv"), ["2020"], "y")
    assert data.X.tolist() == [[2.0], [3.0]]
    for columns, words in ((["2019", "0"], "columns: 2019,0 names a column of X .* twice"), (None, "target: .* twice")):
        with pytest.raises(ValueError, match=words):
            load(str(tmp_path / "years.csv"), columns, "y" if columns else "y,y")


def test_what_openml_has_is_no_wrong_class(monkeypatch):
    def has(target):
        frame = pd.DataFrame({"a": np.arange(40.0), "b": ["u", "v"] * 20})
        bunch = SimpleNamespace(data=frame, target=target)
        monkeypatch.setattr(datasets.sklearn_datasets, "fetch_openml", lambda *args, **kwargs: bunch)
        return load("somewhere")

    classes = has(pd.Series(["no", "yes"] * 20, dtype="category"))
    assert classes.class_names == ("no", "yes")
    assert classes.y[:3].tolist() == [0.0, 1.0, 0.0]
    assert has(pd.Series(np.tile([1.0, 2.0], 20))).y[:3].tolist() == [0.0, 1.0, 0.0]
    assert has(pd.Series(np.arange(40) + 0.5)).y[:3].tolist() == [0.5, 1.5, 2.5]
    with pytest.raises(ValueError, match="missing in some rows"):
        has(pd.Series(["no", None] * 20))
    with pytest.raises(ValueError, match="has no column of y, or several"):
        has(pd.DataFrame({"p": np.arange(40), "q": np.arange(40)}))
