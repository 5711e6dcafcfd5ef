"""Data for validation: data sets of scikit-learn and OpenML, and users' files."""

import os
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from sklearn import datasets as sklearn_datasets

from pgmodels.runtime.seeds import Seed, as_generator


class Dataset(NamedTuple):
    """A data set: name, inputs (n, d), observations (n,) or (n, columns), and the names of classes 0, 1, ..."""

    name: str
    X: np.ndarray
    y: np.ndarray
    class_names: tuple[str, ...] | None = None


class Split(NamedTuple):
    """Training and test rows, with X standardised by the training rows' statistics."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


# File extensions of tables.
_TABLES = (".csv", ".parquet")
# Text with more distinct values than this is an identifier, not a class.
_MAX_CLASSES = 30

# The exceptions that a damaged archive raises when it is read.
_DAMAGED = (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)

_Read: TypeAlias = tuple[np.ndarray, np.ndarray, tuple[str, ...] | None]


def load(name: str, columns: Sequence[int | str] | None = None, target: str | None = None) -> Dataset:
    """Load a data set by name or path.

    ``breast-cancer`` and ``wine`` ship with scikit-learn. A path ends in .npz, .csv or .parquet. An .npz file has
    arrays X and y, ``trials`` for binomial data, and ``target_names`` of the classes. A table has one row per datum,
    and named columns. Any other name is NAME.npz in the folder PGMODELS_DATA, or else a data set of OpenML. Text in y
    becomes class indices, in alphabetical order. ``columns`` selects columns of X, by number or, in a table, by name.
    ``target`` is the name of y's column in a table, by default the last, or several names separated by commas. Raises
    ValueError for unknown names, damaged files, class names that do not match y, and invalid tables.
    """
    shipped = {"breast-cancer": sklearn_datasets.load_breast_cancer, "wine": sklearn_datasets.load_wine}
    folder = os.environ.get("PGMODELS_DATA")
    names: tuple[str, ...] | None
    path = Path(name)
    if path.suffix.lower() in (".npz", *_TABLES) and name not in shipped and not path.is_file():
        fault = f"{name} is a folder" if path.is_dir() else f"there is no file {name}"
        raise ValueError(f"data: {fault}. Give the path of a .npz, .csv or .parquet file.")
    if path.suffix.lower() in _TABLES:
        X, y, names = _read_table(path, columns, target)
        return Dataset(path.stem, X, y, names)
    if target is not None:
        raise ValueError(
            f"target: {target} names a column of a .csv or .parquet file, but {name} is neither: omit target."
        )
    if name in shipped:
        bunch = shipped[name]()
        X, y, names = bunch.data, bunch.target.astype(float), tuple(map(str, bunch.target_names))
    elif path.suffix.lower() == ".npz":
        X, y, names = _read_npz(path)
    elif folder and (Path(folder) / f"{name}.npz").is_file():
        X, y, names = _read_npz(Path(folder) / f"{name}.npz")
    else:
        X, y, names = _fetch_openml(name)
    _check(X, y, name)
    if columns is not None:
        X = X[:, _indices(columns, [str(j) for j in range(X.shape[1])], name)]
    return Dataset(path.stem, np.asarray(X, dtype=float), y, names)


def split(data: Dataset, train_size: int | float, seed: Seed) -> Split:
    """Shuffle the rows, split them, and standardise X with the training rows' mean and standard deviation."""
    rng = as_generator(seed)
    n = len(data.X)
    count = round(train_size * n) if isinstance(train_size, float) else train_size
    if not 0 < count < n:
        raise ValueError(f"train size must leave training and test rows of {n} rows; got {train_size}.")
    order = rng.permutation(n)
    train, test = order[:count], order[count:]
    location, scale = data.X[train].mean(axis=0), data.X[train].std(axis=0)
    X = (data.X - location) / np.where(np.ptp(data.X[train], axis=0) > 0, scale, 1.0)
    return Split(X[train], data.y[train], X[test], data.y[test])


def _read_npz(path: Path) -> _Read:
    arrays = _arrays(path)
    for key in ("X", "y"):
        if key not in arrays:
            contents = f"it has {_listed(list(arrays))}" if arrays else "it has none"
            raise ValueError(f"data: {path} has no array {key}; {contents}, but it must hold X (n, d) and y (n,).")
    X, y, trials, labels = arrays["X"], arrays["y"], arrays.get("trials"), arrays.get("target_names")
    if y.dtype.kind in "SU":
        if y.ndim != 1 or trials is not None:
            raise ValueError(f"data: y of {path} is text; it must have shape (n,), without trials; got {y.shape}.")
        return X, *_encode(y if y.dtype.kind == "U" else _decoded(y, path), path)
    _require_numbers("y", y, path)
    if trials is not None:
        _require_numbers("trials", trials, path)
        if y.ndim != 1 or trials.shape != y.shape:
            raise ValueError(f"data: y and trials of {path} must have one shape (n,); got {y.shape}, {trials.shape}.")
        y = np.column_stack([y, trials])
    if labels is None:
        return X, y.astype(float), None
    if labels.ndim != 1 or labels.dtype.kind not in "SU":
        raise ValueError(f"data: target_names of {path} must be text of shape (classes,); got {_kind(labels)}.")
    names = tuple(map(str, labels if labels.dtype.kind == "U" else _decoded(labels, path)))
    if not np.isin(y, np.arange(len(names))).all():
        raise ValueError(
            f"data: {path} has {len(names)} target_names, but y has values other than 0 to {len(names) - 1}."
        )
    return X, y.astype(float), names


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with open(path, "rb") as file:
            # NumPy would read any other file as a pickle, and an entry that is not an array as bytes.
            is_archive = zipfile.is_zipfile(file)
        if is_archive:
            with np.load(path, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            if all(isinstance(array, np.ndarray) for array in arrays.values()):
                return arrays
        reason = "it is not an archive of arrays"
    except _DAMAGED as error:
        reason = " ".join(str(error).split())
    raise ValueError(f"data: {path} cannot be read as a .npz file: {reason}. Write it by numpy.savez(path, X=X, y=y).")


def _decoded(text: np.ndarray, path: Path) -> np.ndarray:
    try:
        return np.char.decode(text, "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"data: text of {path} is not UTF-8 ({error}). Save it as text, with dtype str.") from error


def _require_numbers(name: str, array: np.ndarray, source: str | Path) -> None:
    if array.dtype.kind not in "fiub":
        raise ValueError(f"data: {name} of {source} must hold real numbers; got {_kind(array)}.")


def _kind(array: np.ndarray) -> str:
    return f"{array.dtype} of shape {array.shape}"


def _check(X: np.ndarray, y: np.ndarray, source: str) -> None:
    """Raise ValueError unless X is (n, d) and y is (n,) or (n, columns), both finite."""
    _require_numbers("X", X, source)
    if X.ndim != 2 or 0 in X.shape:
        raise ValueError(f"data: X of {source} must have shape (n, d), one row per datum; got {X.shape}.")
    if y.ndim not in (1, 2) or len(y) != len(X) or y.shape[1:] in ((0,), (1,)):
        raise ValueError(
            f"data: y of {source} must have shape (n,) or, with several columns, (n, columns), for X of {len(X)} rows; "
            f"got {y.shape}."
        )
    for name, array in (("X", X), ("y", y)):
        bad = np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(axis=1))
        if bad.size:
            raise ValueError(
                f"data: {name} of {source} is missing or not finite in row {bad[0]} ({bad.size} such rows): drop "
                "these rows, or fill them in."
            )


def _read_table(path: Path, columns: Sequence[int | str] | None, target: str | None) -> _Read:
    table = _frame(path)
    names = list(map(str, table.columns))
    _check_names(names, path)
    if len(names) < 2:
        raise ValueError(f"data: {path} has {len(names)} column; it must hold X and y, in columns separated by commas.")
    if not len(table):
        raise ValueError(f"data: {path} has column names but no rows: add rows, or give another file.")
    targets = _targets(target, names, path)
    inputs = [j for j in range(len(names)) if j not in targets]
    if not inputs:
        raise ValueError(f"target: {target} has every column of {path}: leave at least one for X.")
    if columns is not None:
        chosen = _indices(columns, [names[j] for j in inputs], str(path))
        inputs = [inputs[index] for index in chosen]
    X = np.column_stack([_numbers(table.iloc[:, j], names[j], path) for j in inputs])
    y = table.iloc[:, targets[0]]
    if len(targets) == 1 and not pd.api.types.is_numeric_dtype(y):
        return X, *_encode(y.to_numpy(object), path)
    observed = [_numbers(table.iloc[:, j], names[j], path) for j in targets]
    return X, observed[0] if len(observed) == 1 else np.column_stack(observed), None


def _check_names(names: Sequence[str], path: Path) -> None:
    if "" in names:
        raise ValueError(
            f"data: column {names.index('')} of {path} has no name. Name it in the first line, or remove it. If it has "
            "row numbers of pandas, write the table with index=False."
        )
    twice = [name for place, name in enumerate(names) if name in names[:place]]
    if twice:
        raise ValueError(f"data: {path} has several columns {twice[0]!r}: give each a unique name.")


def _frame(path: Path) -> pd.DataFrame:
    try:
        return _read_csv(path) if path.suffix.lower() == ".csv" else pd.read_parquet(path)
    except ImportError as error:
        raise ValueError(
            f"data: {path} is a Parquet file, which needs the package pyarrow: python -m pip install pyarrow, or save "
            "the table as .csv."
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"data: {path} cannot be read as a table: it is not UTF-8 ({error}). Save it as UTF-8."
        ) from error
    except (ValueError, OSError) as error:
        if str(error).startswith("data: "):
            raise
        reason = " ".join(str(error).split())
        raise ValueError(
            f"data: {path} cannot be read as a table: {reason}. Save it again, with one row per datum and one field "
            "per column."
        ) from error


# Before pandas 3.1, numbers are parsed exactly only on request.
_EXACT: Any = {} if tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1) else {"float_precision": "round_trip"}


def _read_csv(path: Path) -> pd.DataFrame:
    """Return a table with the names in the file's first line; pandas would accept numbers as names, and rename."""
    first = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False).iloc[0]
    names = [name.strip() for name in first]
    numbers = [name for name in names if pd.notna(pd.to_numeric(name, errors="coerce"))]
    # Some names may be whole numbers, such as years.
    if len(numbers) == len(names) or not all(name.isdigit() for name in numbers):
        raise ValueError(
            f"data: {path} begins with numbers, {_listed(numbers)}: the first line must have the column names. Add "
            "such a line, as in x0,x1,y."
        )
    # The names are set below, since pandas renames duplicate and missing ones.
    table = pd.read_csv(path, header=0, low_memory=False, **_EXACT)
    if not isinstance(table.index, pd.RangeIndex):
        raise ValueError(f"data: {path} has {len(names)} column names, but rows with more fields: name each column.")
    table.columns = pd.Index(names)
    return table


def _targets(target: str | None, names: list[str], path: Path) -> list[int]:
    """Return the indices of y's columns: the last, a named one, or several names separated by commas."""
    if target is None:
        return [len(names) - 1]
    targets = [target] if target in names else target.split(",")
    unknown = [name for name in targets if name not in names]
    if unknown:
        raise ValueError(f"target: {path} has no column {unknown[0]!r}; it has {_listed(names)}.")
    if len(set(targets)) < len(targets):
        raise ValueError(f"target: {target} names a column of {path} twice.")
    return [names.index(name) for name in targets]


def _indices(columns: Sequence[int | str], names: list[str], source: str) -> list[int]:
    indices = []
    for column in columns:
        if str(column) in names:
            indices.append(names.index(str(column)))
        elif str(column).isdigit() and int(column) < len(names):
            indices.append(int(column))
        else:
            raise ValueError(
                f"columns: X of {source} has columns 0 to {len(names) - 1}, {_listed(names)}; got {column}."
            )
    if len(set(indices)) < len(indices):
        raise ValueError(f"columns: {','.join(map(str, columns))} names a column of X of {source} twice.")
    return indices


def _numbers(column: pd.Series, name: str, path: Path) -> np.ndarray:
    if not pd.api.types.is_numeric_dtype(column):
        raise ValueError(
            f"data: column {name} of {path} is not numeric: encode it as numbers, or select X with --columns."
        )
    values = column.to_numpy(float, na_value=np.nan)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise ValueError(
            f"data: column {name} of {path} is missing or not finite in row {bad[0]} ({bad.size} such rows): drop "
            "these rows, or fill them in."
        )
    return values


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:10])
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"


def _encode(labels: np.ndarray, path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return text as class indices, and the names of the classes in order."""
    missing = np.flatnonzero(pd.isna(labels))
    if missing.size:
        raise ValueError(
            f"data: y of {path} is missing in row {missing[0]} ({missing.size} such rows): drop these rows."
        )
    nested = next((label for label in labels if pd.api.types.is_list_like(label)), None)
    if nested is not None:
        raise ValueError(f"data: y of {path} must hold numbers or text; got {type(nested).__name__}.")
    codes, names = pd.factorize(labels.astype(str), sort=True)
    if len(names) > _MAX_CLASSES:
        raise ValueError(
            f"data: y of {path} is text with {len(names)} distinct values, {_listed(list(map(str, names)))}: too "
            f"many for classes with one latent each (more than {_MAX_CLASSES}). Choose y's column with --target, or "
            "group them."
        )
    return codes.astype(float), tuple(map(str, names))


def _fetch_openml(name: str) -> _Read:
    try:
        # scikit-learn warns of retries; only the final error matters.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            bunch = sklearn_datasets.fetch_openml(name, version=1, as_frame=True, parser="pandas")
    except Exception as error:  # any error of the network or of OpenML's client
        raise ValueError(
            f"data: no data set {name!r}: it is neither breast-cancer nor wine, not a .npz, .csv or .parquet file, "
            f"not in the folder PGMODELS_DATA, and not on OpenML ({type(error).__name__}: {error})."
        ) from error
    if not isinstance(bunch.target, pd.Series):
        raise ValueError(f"data: {name} of OpenML has no column of y, or several: save it as .csv, and use --target.")
    X = pd.get_dummies(bunch.data).to_numpy(float)
    if bunch.target.isna().any():
        raise ValueError(f"data: y of {name} of OpenML is missing in some rows: save it as .csv without these rows.")
    codes, names = pd.factorize(bunch.target, sort=True)
    if len(names) > _MAX_CLASSES and pd.api.types.is_numeric_dtype(bunch.target):
        return X, bunch.target.to_numpy(float), None
    return X, codes.astype(float), tuple(map(str, names))
