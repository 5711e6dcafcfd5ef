"""Many runs: at 50 hyperparameter values or for resampled y, each from the last result, and of 1,000 small sets."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from table import write_table

import pgmodels as pgm
from pgmodels.runtime.jit import num_programs
from pgmodels.runtime.messages import PgmodelsWarning, suppress_warnings

N, COUNT, CLASSES = 300, 50, 6
rng = np.random.default_rng(0)
X = np.sort(rng.uniform(0.0, 10.0, N))[:, None]
F = 4.0 * np.sin(X + np.arange(CLASSES))

Make = Callable[[float], pgm.Model]
MODELS: dict[str, tuple[Make, Callable[[], np.ndarray]]] = {
    "Bernoulli": (
        lambda length: pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(9.0, length))),
        lambda: (rng.logistic(size=N) < F[:, 0]).astype(float),
    ),
    "Bernoulli, separable": (
        lambda length: pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1000.0, length))),
        lambda: (rng.normal(0.0, 0.1, N) < F[:, 0]).astype(float),
    ),
    f"LogisticSoftmax, {CLASSES} classes": (
        lambda length: pgm.Model(pgm.LogisticSoftmax(CLASSES), pgm.GP(pgm.RBF(100.0, length), size=CLASSES)),
        lambda: np.argmax(F + 0.1 * rng.gumbel(size=F.shape), axis=1).astype(float),
    ),
}


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """The value of a call and its seconds."""
    start = time.perf_counter()
    return call(), time.perf_counter() - start


def measured(
    name: str, what: str, engine: str, models: Sequence[pgm.Model], targets: Sequence[np.ndarray]
) -> dict[str, Any]:
    """Seconds and iterations of runs without a start and of runs from the last result, after both have compiled."""
    run = getattr(pgm, engine)
    last = first = run(models[0], X, targets[0], progress=False)
    for start in (None, first):
        run(models[1], X, targets[1], start=start, progress=False)
    seconds, iterations, before = np.zeros(2), np.zeros(2), num_programs()
    for model, y in zip(models, targets, strict=True):
        results = []
        for kind, start in enumerate((None, last)):
            result, taken = timed(lambda m=model, y=y, s=start: run(m, X, y, start=s, progress=False))
            seconds[kind] += taken
            iterations[kind] += result.fit.num_evaluations if engine == "fit" else result.num_iterations
            results.append(result)
        last = results[1]
    row = {
        "model": name,
        "engine": engine,
        "runs": f"{len(models)}, {what}",
        "seconds": seconds[0],
        "from the last": seconds[1],
        "ratio of seconds": seconds[1] / seconds[0],
        "iterations of each": iterations[0] / len(models),
        "from the last ": iterations[1] / len(models),
        "ratio of iterations": iterations[1] / iterations[0],
        "compiled": num_programs() - before,
    }
    print(row, flush=True)
    return row


def many_sets(engine: str) -> dict[str, Any]:
    """Seconds of a batch of 1,000 sets of 20 rows, and of the engine on each of the first 100 times ten."""
    X = rng.uniform(0.0, 6.0, (1000, 20, 1))
    y = (rng.logistic(size=X.shape[:2]) < 3.0 * np.sin(X[..., 0])).astype(float)
    model, run = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0))), getattr(pgm, engine)
    together = getattr(pgm.batch(model), engine)
    together(X, y)
    run(model, X[0], y[0], progress=False)
    results, seconds = timed(lambda: together(X, y))
    alone, each = timed(lambda: [run(model, X[k], y[k], progress=False) for k in range(100)])
    assert np.allclose(results.elbo[:100], [result.elbo for result in alone], atol=1e-5)
    row = {"model": "Bernoulli", "engine": engine, "runs": "1000 sets of 20 rows, pgm.batch", "seconds": 10.0 * each}
    return row | {"from the last": seconds, "ratio of seconds": 0.1 * seconds / each}


rows = []
with suppress_warnings(PgmodelsWarning):
    for name, (make, draw) in MODELS.items():
        y = draw()
        for top in (1.02, 1.2, 2.0):
            models = [make(length) for length in np.geomspace(1.0, top, COUNT)]
            rows.append(measured(name, f"lengthscales 1 to {top:g}", "cavi", models, [y] * COUNT))
        rows.append(measured(name, "resampled y", "cavi", [make(1.0)] * COUNT, [draw() for _ in range(COUNT)]))
    model = pgm.Model(pgm.StudentT(3.0, pgm.Parameter(0.5)), pgm.GP(pgm.RBF(1.0, 1.0), mean=0.0))
    targets = [F[:, 0] + 0.5 * rng.standard_t(3.0, N) for _ in range(10)]
    rows.append(measured("StudentT", "resampled y", "fit", [model] * 10, targets))
    rows += [many_sets(engine) for engine in ("cavi", "gaussian_vi")]
write_table(
    "Many runs",
    rows,
    f"{N} rows of one column. Seconds of all runs, without a start and from the last result, after one of each for "
    "compilation, and the mean number of iterations of a run, of ``fit`` evaluations of the bound; tolerance 1e-9. "
    "'compiled' counts programs compiled during the runs. Of 1,000 small sets, seconds of the engine on each, and in "
    "place of 'from the last' those of ``pgm.batch``.",
    seed=0,
)
