"""Seconds of nested marginals after compilation."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import pgmodels as pgm
from validation.nested.measures import write


def labels(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of two columns and labels."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (count, 2))
    f = 2.0 * np.sin(2.0 * X[:, 0]) + X[:, 1]
    return X, (f + rng.logistic(size=count) > 0.5).astype(float)


def seconds(call: Callable[[], Any]) -> float:
    """The seconds of the faster one of two calls, after one that compiles."""
    call()
    times = []
    for _ in range(2):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def run(again: bool) -> None:
    """Time both calls, and write the table."""
    kernel = pgm.RBF(variance=4.0, lengthscale=0.8)
    X, y = labels(1000)
    dense = pgm.gaussian_vi(pgm.Model(pgm.Bernoulli(), pgm.GP(kernel, mean=0.0)), X, y, progress=False)
    every = seconds(lambda: pgm.correct(dense, method="nested", progress=False))
    X, y = labels(10_000)
    form = pgm.Inducing(200, "kmeans")
    sparse = pgm.gaussian_vi(pgm.Model(pgm.Bernoulli(), pgm.GP(kernel, mean=0.0, form=form)), X, y, progress=False)
    new = labels(200)[0] + 0.01
    identity = np.eye(200)
    some = seconds(lambda: pgm.marginals(sparse, identity, X_new=new, progress=False))
    rows = [
        {"call": "correct: 1,000 latents of 1,000 rows", "seconds": every, "at most": 15.0},
        {"call": "marginals: 200 new inputs, 10,000 rows, 200 inducing inputs", "seconds": some, "at most": 5.0},
    ]
    print(rows, flush=True)
    write("cost", "Seconds of nested marginals", "Labels in two columns, after compilation; all cores.", [rows])
