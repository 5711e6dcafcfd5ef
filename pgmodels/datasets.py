"""Data for validation: what ships with scikit-learn, files of one's own, and OpenML."""

import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from sklearn import datasets as sklearn_datasets

from pgmodels.seeds import as_seed


class Dataset(NamedTuple):
    """A data set: its name, inputs (n, d), observations (n,) or (n, columns), and the names of classes 0, 1, ..."""

    name: str
    X: np.ndarray
    y: np.ndarray
    class_names: tuple[str, ...] | None = None


class Split(NamedTuple):
    """Training and test rows, standardised with the training rows' statistics."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


# Tables, by what their names end in.
_TABLES = (".csv", ".parquet")
# Text with more values than that is a name or a number of something, and no class.
_MOST_CLASSES = 30
# Names that a message lists.
_SHOWN = 10

_Read: TypeAlias = tuple[np.ndarray, np.ndarray, tuple[str, ...] | None]


def load(name: str, columns: Sequence[int | str] | None = None, target: str | None = None) -> Dataset:
    """Load a data set by name or path.

    ``breast-cancer`` and ``wine`` ship with scikit-learn; a path ends in .npz (arrays X and y, ``trials`` for
    binomial data, ``target_names`` of the classes), .csv or .parquet (a row a datum, columns with names); any other
    name is NAME.npz in the folder PGMODELS_DATA, or else OpenML's. A y of text becomes class indices, in the names'
    alphabetical order. ``columns`` keeps some columns of X, by number or, of a table, by name. ``target`` names the
    column of a table that is y, its last one where it is left out, or several with commas between.
    Raises ValueError where nothing of that name is found, names do not fit y, or a table lacks numbers.
    """
    shipped = {"breast-cancer": sklearn_datasets.load_breast_cancer, "wine": sklearn_datasets.load_wine}
    folder = os.environ.get("PGMODELS_DATA")
    names: tuple[str, ...] | None
    path = Path(name)
    if path.suffix.lower() in (".npz", *_TABLES) and name not in shipped and not path.is_file():
        raise ValueError(f"data: there is no file {name}.")
    if path.suffix.lower() in _TABLES:
        X, y, names = _read_table(path, columns, target)
        return Dataset(path.stem, X, y, names)
    if target is not None:
        raise ValueError(f"target: {target} names a column of a .csv or .parquet file; {name} has y by itself.")
    if name in shipped:
        bunch = shipped[name]()
        X, y, names = bunch.data, bunch.target.astype(float), _names(bunch.target_names)
    elif path.suffix.lower() == ".npz":
        X, y, names = _read_npz(path)
    elif folder and (Path(folder) / f"{name}.npz").is_file():
        X, y, names = _read_npz(Path(folder) / f"{name}.npz")
    else:
        X, y, names = _fetch_openml(name)
    if columns is not None:
        X = X[:, _places(columns, [str(j) for j in range(X.shape[1])], name)]
    return Dataset(path.stem, np.asarray(X, dtype=float), y, names)


def split(data: Dataset, train_size: int | float, seed: int) -> Split:
    """Shuffle the rows, split them, and standardise X with the training rows' mean and standard deviation."""
    seed = as_seed(seed)
    n = len(data.X)
    count = round(train_size * n) if isinstance(train_size, float) else train_size
    if not 0 < count < n:
        raise ValueError(f"train size must leave rows on both sides of {n}; got {train_size}.")
    order = np.random.default_rng(seed).permutation(n)
    train, test = order[:count], order[count:]
    location, scale = data.X[train].mean(axis=0), data.X[train].std(axis=0)
    X = (data.X - location) / np.where(np.ptp(data.X[train], axis=0) > 0, scale, 1.0)
    return Split(X[train], data.y[train], X[test], data.y[test])


def _read_npz(path: Path) -> _Read:
    with np.load(path) as arrays:
        for key in ("X", "y"):
            if key not in arrays:
                raise ValueError(f"data: {path} has no array {key}; it must hold X (n, d) and y (n,).")
        y = arrays["y"]
        if "trials" in arrays:
            y = np.column_stack([y, arrays["trials"]])
        if y.dtype.kind in "SU":
            return arrays["X"], *_encode(y.astype(str), path)
        if "target_names" not in arrays:
            return arrays["X"], y.astype(float), None
        names = _names(arrays["target_names"])
        if not np.isin(y, np.arange(len(names))).all():
            raise ValueError(
                f"data: {path} has {len(names)} target_names, and a y that is not one of 0 to {len(names) - 1}."
            )
        return arrays["X"], y.astype(float), names


def _read_table(path: Path, columns: Sequence[int | str] | None, target: str | None) -> _Read:
    table = _frame(path)
    names = list(map(str, table.columns))
    if len(names) < 2:
        raise ValueError(f"data: {path} has {len(names)} column; it must hold X and y.")
    targets = _targets(target, names, path)
    inputs = [j for j in range(len(names)) if j not in targets]
    if not inputs:
        raise ValueError(f"target: {target} takes every column of {path}, and leaves none for X.")
    if columns is not None:
        chosen = _places(columns, [names[j] for j in inputs], str(path))
        inputs = [inputs[place] for place in chosen]
    X = np.column_stack([_numbers(table.iloc[:, j], names[j], path) for j in inputs])
    y = table.iloc[:, targets[0]]
    if len(targets) == 1 and not pd.api.types.is_numeric_dtype(y):
        return X, *_encode(y.to_numpy(object), path)
    observed = [_numbers(table.iloc[:, j], names[j], path) for j in targets]
    return X, observed[0] if len(observed) == 1 else np.column_stack(observed), None


def _frame(path: Path) -> pd.DataFrame:
    """The table in a file, whatever its columns hold."""
    try:
        return pd.read_csv(path) if path.suffix.lower() == ".csv" else pd.read_parquet(path)
    except ImportError as error:
        raise ValueError(
            f"data: {path} is a Parquet file, which needs the package pyarrow: python -m pip install pyarrow, or save "
            "the table as .csv."
        ) from error
    except (ValueError, OSError) as error:
        raise ValueError(f"data: {path} cannot be read as a table: {error}") from error


def _targets(target: str | None, names: list[str], path: Path) -> list[int]:
    """The columns of y: the last, one of a name, or several with commas between."""
    if target is None:
        return [len(names) - 1]
    wanted = [target] if target in names else target.split(",")
    unknown = [name for name in wanted if name not in names]
    if unknown:
        raise ValueError(f"target: {path} has no column {unknown[0]!r}; it has {_listed(names)}.")
    return [names.index(name) for name in wanted]


def _places(columns: Sequence[int | str], names: list[str], source: str) -> list[int]:
    """The places of columns that are named or numbered."""
    found = []
    for column in columns:
        if str(column) in names:
            found.append(names.index(str(column)))
        elif str(column).isdigit() and int(column) < len(names):
            found.append(int(column))
        else:
            raise ValueError(
                f"columns: X of {source} has columns 0 to {len(names) - 1}, {_listed(names)}; got {column}."
            )
    return found


def _numbers(column: pd.Series, name: str, path: Path) -> np.ndarray:
    """A column as finite numbers, or ValueError."""
    if not pd.api.types.is_numeric_dtype(column):
        raise ValueError(
            f"data: column {name} of {path} is not numeric: encode it as numbers, or say with --columns which are X."
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
    """Some names, and how many more there are."""
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def _names(names: Iterable[Any]) -> tuple[str, ...]:
    return tuple(map(str, names))


def _encode(labels: np.ndarray, path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    """Text as class indices, and the classes' names in order."""
    missing = np.flatnonzero(pd.isna(labels))
    if missing.size:
        raise ValueError(
            f"data: y of {path} is missing in row {missing[0]} ({missing.size} such rows): drop these rows."
        )
    codes, names = pd.factorize(labels.astype(str), sort=True)
    if len(names) > _MOST_CLASSES:
        raise ValueError(
            f"data: y of {path} is text with {len(names)} different values, {_listed(_names(names))}: as classes, each "
            f"with a latent of its own, they are too many (more than {_MOST_CLASSES}). Say with --target which column "
            "is y, or group them."
        )
    return codes.astype(float), _names(names)


def _fetch_openml(name: str) -> _Read:
    try:
        # Retries are announced as warnings; what counts is the error at the end.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            bunch = sklearn_datasets.fetch_openml(name, version=1, as_frame=True, parser="pandas")
    except Exception as error:  # whatever the network or OpenML's client raises
        raise ValueError(
            f"data: no data set {name!r}: it is not one of breast-cancer and wine, not a .npz, .csv or .parquet file, "
            f"not in the folder PGMODELS_DATA, and OpenML gave none ({type(error).__name__}: {error})."
        ) from error
    X = pd.get_dummies(bunch.data).to_numpy(float)
    codes, names = pd.factorize(bunch.target, sort=True)
    return X, codes.astype(float), _names(names)
