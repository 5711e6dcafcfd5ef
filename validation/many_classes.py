"""Classes subsampled in ``svi``: time and memory of a step as classes grow, and what is predicted beside all of them.

Each run is a process of its own.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from typing import Any

import jax
import numpy as np
from scipy.special import expit, logsumexp
from table import write_table

import pgmodels as pgm
from pgmodels.inference import svi_convergence as windows

ROWS, COLUMNS, INPUTS, BATCH, AT_A_TIME, TEST = 20_000, 3, 50, 1000, 10, 2000
# Rows that steps are timed on: so many are read in a window.
FEW = 5000
STEPS = [{"classes": classes, "of a step": min(classes, AT_A_TIME)} for classes in (10, 50, 100, 300, 1000)]
STEPS += [{"classes": classes, "of a step": classes} for classes in (100, 300)]
LEARNED = [
    {"classes": 100, "of a step": 100, "passes": 10},
    {"classes": 100, "of a step": 20, "passes": 50},
    {"classes": 1000, "of a step": 50, "passes": 20},
]


def data(classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of a softmax over random functions, their classes, and the log density of each by what generated it."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (ROWS + TEST, COLUMNS))
    centres = rng.uniform(-1.0, 1.0, (classes, COLUMNS))
    y, true = np.empty(len(X)), np.empty(len(X))
    for rows in np.array_split(np.arange(len(X)), 20):
        f = -12.0 * ((X[rows, None] - centres) ** 2).sum(axis=-1)
        f = f - logsumexp(f, axis=1, keepdims=True)
        y[rows] = np.argmax(f + rng.gumbel(size=f.shape), axis=1)
        true[rows] = np.take_along_axis(f, y[rows].astype(int)[:, None], axis=1)[:, 0]
    return X, y, true


def model(classes: int) -> pgm.Model:
    """Classes by GPs of one kernel, whose inducing inputs are centres of the rows."""
    kernel = pgm.RBF(variance=9.0, lengthscale=0.6)
    form = pgm.Inducing(INPUTS, "kmeans")
    return pgm.Model(pgm.LogisticSoftmax(classes), pgm.GP(kernel, mean=-4.0, size=classes, form=form))


def peak() -> float:
    """The most resident memory so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def steps(classes: int, together: int) -> dict[str, Any]:
    """CPU time of a step, from windows after the first, which compiles; and memory."""
    X, y, _ = data(classes)
    advance, times, before = windows.advance, [], peak()

    def timed(*arguments: Any) -> Any:
        start = time.process_time()
        result = jax.block_until_ready(advance(*arguments))
        first, last = arguments[4:6]
        times.append((time.process_time() - start) / (last - first))
        return result

    windows.advance = timed
    sweep = -(-classes // together)
    vi = pgm.svi(
        model(classes), X[:FEW], y[:FEW], batch_size=BATCH, class_batch_size=together, max_epochs=max(4, 4 * sweep)
    )
    # q itself, by natural parameters: what a state has of them, and the average of a window.
    state_megabytes = 2 * 8 * classes * INPUTS * (INPUTS + 1) / 2**20
    return {
        "CPU ms a step": 1000.0 * min(times[1:]),
        "peak, MB": peak(),
        "above that of the data, MB": peak() - before,
        "of which q and its average, MB": state_megabytes,
        "windows": len(vi.elbo_trace),
    }


def learned(classes: int, together: int, passes: int) -> dict[str, Any]:
    """What is predicted of held-out rows."""
    X, y, true = data(classes)
    vi = pgm.svi(model(classes), X[:ROWS], y[:ROWS], batch_size=BATCH, class_batch_size=together, max_epochs=passes)
    mean, variance = vi.predict_latent(X[ROWS:])
    rng = np.random.default_rng(1)
    total = np.zeros_like(mean)
    draws = 64
    for _ in range(draws):
        odds = expit(mean + np.sqrt(variance) * rng.standard_normal(mean.shape))
        total += odds / odds.sum(axis=1, keepdims=True) / draws
    labels = y[ROWS:].astype(int)
    return {
        "CPU minutes": time.process_time() / 60.0,
        "peak, MB": peak(),
        "bound a row": float(np.mean(vi.elbo_trace[-3:])) / ROWS,
        "test NLL": -float(np.mean(np.log(total[np.arange(TEST), labels]))),
        "test accuracy": float(np.mean(total.argmax(axis=1) == labels)),
        "NLL of the generator": -float(np.mean(true[ROWS:])),
        "of the shares alone": -float(
            np.mean(np.log(np.bincount(y[:ROWS].astype(int), minlength=classes)[labels] + 1.0))
        )
        + float(np.log(ROWS + classes)),
    }


NOTES = {
    "steps": f"Logistic-softmax, {FEW:,} rows of {COLUMNS} columns, M = {INPUTS}, batches of {BATCH:,}; CPU time of a "
    "step in the fastest window after the first. Where a step has all classes it is the ordinary one. Memory is of the "
    "whole process, with that of compiling; it has the state q, which is of all classes.",
    "learned": f"Logistic-softmax, {ROWS:,} rows, {TEST:,} held out, M = {INPUTS}, batches of {BATCH:,}, the kernel "
    "held. A class has as many steps in both rows of 100 classes. Predictions by 64 draws of each row's latents; the "
    "generator's own figure is what no model can beat on average, that of the shares is of no model at all.",
}
TITLES = {"steps": "A step on some classes, as classes grow", "learned": "What steps on some classes learn"}


def main(kind: str) -> None:
    """Make one of the tables."""
    table = []
    for case in STEPS if kind == "steps" else LEARNED:
        command = [sys.executable, __file__, kind, json.dumps(list(case.values()))]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
        table.append(case | json.loads(output))
        print(table[-1], flush=True)
    write_table(TITLES[kind], table, NOTES[kind], seed=0, part=kind)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["steps", "learned"])
    parser.add_argument("case", nargs="?", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is None:
        main(options.kind)
    else:
        warnings.simplefilter("ignore", pgm.ConvergenceWarning)
        run = {"steps": steps, "learned": learned}[options.kind]
        print(json.dumps(run(*json.loads(options.case))))
