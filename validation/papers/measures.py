"""Data splits and scores of classifiers."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from pgmodels.datasets import Dataset, Split, load
from pgmodels.diagnostics.compare import expected_calibration_error
from pgmodels.results.predictive import Predictive


class Scores(NamedTuple):
    """Error rate, mean and median negative log density (nats), and expected calibration error of test rows."""

    error: float
    nll: float
    median_nll: float
    calibration_error: float


def scores(predictive: Predictive, y: np.ndarray) -> Scores:
    """The scores of predicted classes 0, 1, ..."""
    probabilities, loss = np.asarray(predictive.probabilities), -np.asarray(predictive.log_density(y))
    return Scores(
        float(np.mean(probabilities.argmax(axis=1) != y)),
        float(np.mean(loss)),
        float(np.median(loss)),
        float(expected_calibration_error(probabilities, y.astype(int))),
    )


def fold(data: Dataset | str, number: int, count: int = 10, seed: int = 0, rows: int | None = None) -> Split:
    """A fold of ``count`` to test, the others (at most ``rows`` of them) to train, standardised by the latter.

    The order of the rows is drawn from ``seed``.
    """
    data = load(data) if isinstance(data, str) else data
    folds = np.array_split(np.random.default_rng(seed).permutation(len(data.X)), count)
    test, train = folds[number], np.concatenate(folds[:number] + folds[number + 1 :])[:rows]
    location, scale = data.X[train].mean(axis=0), data.X[train].std(axis=0)
    X = (data.X - location) / np.where(np.ptp(data.X[train], axis=0) > 0, scale, 1.0)
    return Split(X[train], data.y[train], X[test], data.y[test])


@contextmanager
def silenced(*categories: type[Warning]) -> Iterator[None]:
    """Without warnings of these categories, which are expected."""
    with warnings.catch_warnings():
        for category in categories:
            warnings.simplefilter("ignore", category)
        yield
