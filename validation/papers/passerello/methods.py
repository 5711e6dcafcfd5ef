"""The methods of tables D.1 and D.2, as the package runs them."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pgmodels import (
    GP,
    RBF,
    Bernoulli,
    ConvergenceWarning,
    CorrectionWarning,
    Dense,
    FitWarning,
    InducingWarning,
    Model,
    fit,
    systems,
)
from pgmodels.datasets import load

# Few inducing inputs, hyperparameters at their limits on separable classes, all iterations used by learned inputs, and
# the narrow variances of the Pólya-Gamma bound.
_EXPECTED = (InducingWarning, FitWarning, ConvergenceWarning, CorrectionWarning)


def _dense(X: ArrayLike, y: ArrayLike, *, num_inducing: int, **options: Any) -> Any:
    del num_inducing
    model = Model(Bernoulli(), GP(RBF(), form=Dense()))
    return fit(model, X, y, objective="augmented", correct=False, **options)


METHODS: dict[str, Callable[..., Any]] = {
    "SVGP K-means": systems.svgp,
    "PGPR Uniform": partial(systems.pgpr, select="uniform"),
    "PGPR K-means": partial(systems.pgpr, select="kmeans"),
    "PGPR GV": partial(systems.pgpr, select="GV"),
    "PGPR HGV": partial(systems.pgpr, select="HGV"),
    "SVGP GO": partial(systems.svgp, train_inducing=True),
    "PGPR GO": partial(systems.pgpr, select="kmeans", train_inducing=True),
    "PGPR HGV GO": partial(systems.pgpr, select="HGV", train_inducing=True),
    "SVGP Uniform": partial(systems.svgp, select="uniform"),
    "merged": systems.merged,
    "PGPR dense": _dense,
}


@contextmanager
def expected_warnings() -> Iterator[None]:
    """A context without the warnings that the published settings deserve."""
    with warnings.catch_warnings():
        for category in _EXPECTED:
            warnings.simplefilter("ignore", category)
        yield


def learned(method: str, X: np.ndarray, y: np.ndarray, num_inducing: int, seed: int = 0) -> Any:
    """The result of a method, with its hyperparameters learned."""
    with expected_warnings():
        return METHODS[method](X, y, num_inducing=num_inducing, seed=seed, progress=False)


def standardised(name: str, limit: int | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a data set in random order, at most ``limit`` of them, with standardised columns."""
    data = load(name)
    rows = np.random.default_rng(seed).permutation(len(data.X))[:limit]
    X, scale = data.X[rows], data.X[rows].std(axis=0)
    return (X - X.mean(axis=0)) / np.where(scale > 0, scale, 1.0), data.y[rows]
