"""Seconds and memory of ``cavi``, ``gaussian_vi`` and ``correct`` with a Markov GP, by the number of rows.

python validation/markov.py 100000 1000000
"""

import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import pgmodels as pgm


def measure(count: int) -> None:
    """One size: the first call compiles, the second does not."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0.0, count / 100.0, count))
    f = np.sin(x) + 0.5 * np.sin(2.0 * np.pi * x / 7.0)
    y = (rng.random(count) < 1.0 / (1.0 + np.exp(-2.0 * f))).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Matern32(1.0, 2.0), form=pgm.Markov()))

    def timed(name: str, call: Callable[[], Any]) -> Any:
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            result = call()
            seconds.append(time.perf_counter() - start)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(f"{count:>9,} rows  {name:14}  first {seconds[0]:7.2f} s  again {seconds[1]:7.2f} s  peak {peak:.2f} GB")
        return result

    timed("cavi", lambda: pgm.cavi(model, x[:, None], y))
    q = timed("gaussian_vi", lambda: pgm.gaussian_vi(model, x[:, None], y))
    timed("correct", lambda: pgm.correct(q))
    timed("predict_latent", lambda: q.predict_latent(x[:, None] + 0.001))


for size in sys.argv[1:] or ["100000", "1000000"]:
    measure(int(size))
