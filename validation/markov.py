"""Time and memory of engines with a Markov GP, by likelihood and number of rows. Each case is a process of its own.

Usage: python validation/markov.py 10000 100000 1000000
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from table import write_table

import pgmodels as pgm

LIKELIHOODS = {
    "Bernoulli": pgm.Bernoulli(),
    "NegativeBinomial": pgm.NegativeBinomial(4.0),
    "StudentT": pgm.StudentT(4.0, 0.4),
}
ENGINES = {
    "cavi": ("cavi",),
    "gaussian_vi": ("gaussian_vi", "correct", "predict_latent"),
    "fit": ("fit",),
    "gibbs": ("100 sweeps of gibbs",),
}
# With more rows ``gibbs`` is not run.
MOST_OF_GIBBS = 100_000


def simulated(name: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Times, 100 a unit, and observations of two waves."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0.0, count / 100.0, count))
    f = np.sin(x) + 0.5 * np.sin(2.0 * np.pi * x / 7.0)
    probability = 1.0 / (1.0 + np.exp(-f))
    y = {
        "Bernoulli": lambda: rng.random(count) < 1.0 / (1.0 + np.exp(-2.0 * f)),
        "NegativeBinomial": lambda: rng.negative_binomial(4.0, 1.0 - probability),
        "StudentT": lambda: f + 0.4 * rng.standard_t(4.0, count),
    }[name]()
    return x[:, None], y.astype(float)


def run(name: str, calls: list[str], count: int) -> list[dict[str, object]]:
    """The calls in turn, each twice but the last of ``fit``: the first compiles; the peak is that of the process."""
    X, y = simulated(name, count)
    model = pgm.Model(LIKELIHOODS[name], pgm.GP(pgm.Matern32(1.0, 2.0), form=pgm.Markov()))
    result: Any = None
    engines: dict[str, Callable[[], Any]] = {
        "cavi": lambda: pgm.cavi(model, X, y),
        "gaussian_vi": lambda: pgm.gaussian_vi(model, X, y),
        "correct": lambda: pgm.correct(result),
        "predict_latent": lambda: result.predict_latent(X + 0.001),
        "fit": lambda: pgm.fit(model, X, y, correct=False, progress=False),
        "100 sweeps of gibbs": lambda: pgm.gibbs(
            model, X, y, num_samples=50, num_warmup=50, num_chains=1, keep="moments", progress=False
        ),
    }
    rows = []
    for call in calls:
        seconds, cpu = [], []
        for _ in range(1 if call == "fit" else 2):
            start, work = time.perf_counter(), time.process_time()
            made = engines[call]()
            seconds.append(time.perf_counter() - start)
            cpu.append(time.process_time() - work)
        result = made if call == "gaussian_vi" else result
        rows.append(
            {
                "likelihood": name,
                "call": call,
                "rows": count,
                "first, s": seconds[0],
                "first, CPU s": cpu[0],
                "again, CPU s": cpu[-1] if len(cpu) > 1 else None,
                "peak, GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
            }
        )
    return rows


def picture(frame: pd.DataFrame) -> plt.Figure:
    """CPU seconds against the number of rows, beside a line of slope 1."""
    figure, axes = plt.subplots(figsize=(6.0, 5.5), layout="constrained")
    colours = dict(zip(dict.fromkeys(frame["call"]), plt.rcParams["axes.prop_cycle"].by_key()["color"], strict=False))
    styles = dict(zip(LIKELIHOODS, ("-", "--", ":"), strict=True))
    for (name, call), part in frame.groupby(["likelihood", "call"], sort=False):
        work = part["again, CPU s"].astype(float).fillna(part["first, CPU s"])
        axes.loglog(part["rows"], work, styles[name], marker="o", ms=3, color=colours[call], label=f"{call}, {name}")
    ends = np.array([frame["rows"].min(), frame["rows"].max()])
    axes.loglog(ends, 1e-5 * ends, color="0.6", lw=3, zorder=0, label="10 µs a row")
    axes.set(xlabel="rows", ylabel="CPU seconds, compiled (fit: with compilation)")
    figure.legend(loc="outside lower center", fontsize=6, ncols=3)
    return figure


if __name__ == "__main__" and len(sys.argv) > 3 and sys.argv[1] == "--run":
    print(json.dumps(run(sys.argv[2], sys.argv[3].split(","), int(sys.argv[4]))))
elif __name__ == "__main__":
    measured = []
    for count in sys.argv[1:] or ["10000", "100000", "1000000"]:
        for name in LIKELIHOODS:
            for engine, calls in ENGINES.items():
                if engine == "gibbs" and int(count) > MOST_OF_GIBBS:
                    continue
                command = [sys.executable, __file__, "--run", name, ",".join(calls), count]
                printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                measured += json.loads(printed.splitlines()[-1])
    notes = (
        "Matern32 of lengthscale 2, with 200 rows in each; hyperparameters are fixed but in fit, which learns all of "
        "them, of the kernel, the mean and the likelihood. A first call compiles."
    )
    path = write_table("Engines with a Markov GP, by likelihood and number of rows", measured, notes, 0)
    picture(pd.DataFrame(measured)).savefig(path.with_suffix(".png"), dpi=110)
