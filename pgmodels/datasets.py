"""Data for validation: what ships with scikit-learn, files of one's own, and OpenML."""

import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from sklearn import datasets as sklearn_datasets


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


_Read: TypeAlias = tuple[np.ndarray, np.ndarray, tuple[str, ...] | None]


def load(name: str, columns: Sequence[int] | None = None) -> Dataset:
    """Load a data set by name or path.

    ``breast-cancer`` and ``wine`` ship with scikit-learn; a path ends in .npz (arrays X and y, ``trials`` for binomial
    data, ``target_names`` of the classes) or .csv (a header, y in its last column); any other name is NAME.npz in the
    folder PGMODELS_DATA, or else OpenML's. A y of text becomes class indices, in the names' alphabetical order.
    ``columns`` keeps some columns of X.
    Raises ValueError where nothing of that name is found, or names do not fit y.
    """
    shipped = {"breast-cancer": sklearn_datasets.load_breast_cancer, "wine": sklearn_datasets.load_wine}
    folder = os.environ.get("PGMODELS_DATA")
    names: tuple[str, ...] | None
    if name in shipped:
        bunch = shipped[name]()
        X, y, names = bunch.data, bunch.target.astype(float), _names(bunch.target_names)
    elif name.endswith((".npz", ".csv")):
        if not Path(name).is_file():
            raise ValueError(f"data: there is no file {name}.")
        X, y, names = _read_npz(Path(name)) if name.endswith(".npz") else _read_csv(Path(name))
    elif folder and (Path(folder) / f"{name}.npz").is_file():
        X, y, names = _read_npz(Path(folder) / f"{name}.npz")
    else:
        X, y, names = _fetch_openml(name)
    if columns is not None:
        outside = [column for column in columns if not 0 <= column < X.shape[1]]
        if outside:
            raise ValueError(f"columns: X of {name} has columns 0 to {X.shape[1] - 1}; got {outside[0]}.")
        X = X[:, list(columns)]
    return Dataset(Path(name).stem, np.asarray(X, dtype=float), y, names)


def split(data: Dataset, train_size: int | float, seed: int) -> Split:
    """Shuffle the rows, split them, and standardise X with the training rows' mean and standard deviation."""
    n = len(data.X)
    count = round(train_size * n) if isinstance(train_size, float) else train_size
    if not 0 < count < n:
        raise ValueError(f"train size must leave rows on both sides of {n}; got {train_size}.")
    order = np.random.default_rng(seed).permutation(n)
    train, test = order[:count], order[count:]
    location, scale = data.X[train].mean(axis=0), data.X[train].std(axis=0)
    X = (data.X - location) / np.where(scale > 0, scale, 1.0)
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


def _read_csv(path: Path) -> _Read:
    table = pd.read_csv(path)
    if table.shape[1] < 2:
        raise ValueError(f"data: {path} has {table.shape[1]} column; it must hold X and, in its last column, y.")
    X = table.iloc[:, :-1]
    text = [str(name) for name in X.columns if not pd.api.types.is_numeric_dtype(X[name])]
    if text:
        raise ValueError(f"data: column {text[0]} of {path} is not numeric; encode it as numbers.")
    y = table.iloc[:, -1]
    if pd.api.types.is_numeric_dtype(y):
        return X.to_numpy(float), y.to_numpy(float), None
    return X.to_numpy(float), *_encode(y.to_numpy(object), path)


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
    return codes.astype(float), _names(names)


def _fetch_openml(name: str) -> _Read:
    try:
        # Retries are announced as warnings; what counts is the error at the end.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            bunch = sklearn_datasets.fetch_openml(name, version=1, as_frame=True, parser="pandas")
    except Exception as error:  # whatever the network or OpenML's client raises
        raise ValueError(
            f"data: no data set {name!r}: it is not one of breast-cancer and wine, not a .npz or .csv file, not in the "
            f"folder PGMODELS_DATA, and OpenML gave none ({type(error).__name__}: {error})."
        ) from error
    X = pd.get_dummies(bunch.data).to_numpy(float)
    codes, names = pd.factorize(bunch.target, sort=True)
    return X, codes.astype(float), _names(names)
