"""How long the first call of an engine takes: where nothing is compiled yet, and once more."""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

N, D, REPEATS = 400, 4, 3


def processor_seconds() -> float:
    """What this process has used of its processors, the system's part included."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the clock and of the processors."""
    clock, processor = time.perf_counter(), processor_seconds()
    call()
    return time.perf_counter() - clock, processor_seconds() - processor


def measure(name: str) -> None:
    """Print the times of one call, made twice, as JSON; of the import, made once."""
    first = timed(lambda: __import__("pgmodels"))
    if name == "import":
        print(json.dumps([first, [0.0, 0.0]]))
        return
    import pgmodels as pgm

    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D))
    y = (rng.random(N) < 1.0 / (1.0 + np.exp(-2.0 * np.sin(X[:, 0])))).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.5)))
    calls = {
        "cavi": lambda: pgm.cavi(model, X, y, progress=False),
        "fit and predict": lambda: pgm.fit(model, X, y, progress=False).predict(X).probabilities,
        "fit, uncorrected": lambda: pgm.fit(model, X, y, correct=False, progress=False),
        "svi": lambda: pgm.svi(model.with_form(pgm.Inducing(100)), X, y, progress=False),
        "gibbs": lambda: pgm.gibbs(model, X, y, num_samples=200, num_warmup=100, progress=False),
    }
    if name == "diagnose":
        result = pgm.cavi(model, X, y, progress=False)
        calls["diagnose"] = lambda: pgm.diagnose(result, progress=False)
    print(json.dumps([timed(calls[name]), timed(calls[name])]))


def in_fresh_processes(name: str, folder: str) -> np.ndarray:
    """Medians (2, 2) over processes: of the first and the second call, by the clock and by the processors.

    Of the package in a folder, the installed one where that is empty.
    """
    # A cache of compiled programs would hide what is measured, and an installed package has its bytecode.
    left_out = {"JAX_COMPILATION_CACHE_DIR", "PYTHONDONTWRITEBYTECODE"}
    environment = {key: value for key, value in os.environ.items() if key not in left_out}
    if folder:
        environment["PYTHONPATH"] = folder
    timings = []
    for _ in range(REPEATS):
        command = [sys.executable, __file__, "--call", name]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        timings.append(json.loads(done.stdout))
    return np.median(np.array(timings), axis=0)


def main(folders: list[str]) -> None:
    """Measure all calls, of this package and of those in other folders, and write the table."""
    from table import write_table

    rows = []
    for name in ("import", "cavi", "fit and predict", "fit, uncorrected", "svi", "gibbs", "diagnose"):
        for folder in ("", *folders):
            measured = in_fresh_processes(name, folder)
            row = {"call": name, "package": f"beside it, {os.path.basename(folder)}" if folder else "this"}
            for kind, (clock, processor) in zip(("first", "second call"), measured, strict=True):
                is_known = name != "import" or kind == "first"
                row |= {
                    f"{kind}, s": float(clock) if is_known else "",
                    f"{kind}, processor s": float(processor) if is_known else "",
                }
            rows.append(row)
            print(row, flush=True)
    load = os.getloadavg()[0]
    write_table(
        "First results in a fresh process",
        rows,
        f"Bernoulli, one RBF, {N} rows of {D} columns; gibbs with 100 iterations of warm-up and 200 draws of each of 4 "
        "chains, svi with 100 inducing inputs, diagnose of a result of cavi that was made before the clock. Each call "
        f"in a process of its own, without a cache of compiled programs: medians of {REPEATS}, on the clock and in "
        "seconds of the processors (user and system). "
        "The import is that of the package, once NumPy is there, and comes on top. The second call is the same again "
        f"in the first process, all compiled. The load at the end, these measurements included, was {load:.1f}.",
        seed=0,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--beside", nargs="*", default=[], metavar="FOLDER", help="checkouts to measure in turn with it"
    )
    parser.add_argument("--call", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.call:
        measure(options.call)
    else:
        main(options.beside)
