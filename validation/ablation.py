"""What each acceleration and special path is worth: switched off in turn, on the cases that it is there for.

Usage: python validation/ablation.py [MECHANISM ...]. Every run is a process of its own, on one thread; about an hour.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np
from table import write_table

import pgmodels as pgm

SEED = 0
INFERENCE = "pgmodels.inference"
LIMIT = 1200


def labels(rows: int, columns: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Classes that overlap, of a smooth function of inputs on a square."""
    rng = np.random.default_rng(SEED)
    X = rng.uniform(-2.0, 2.0, (rows, columns))
    p = 1.0 / (1.0 + np.exp(-2.0 * np.sin(2.0 * X[:, 0]) * X[:, 1]))
    return X, (rng.random(rows) < p).astype(float)


def blobs(rows: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Classes that can be told apart."""
    rng = np.random.default_rng(SEED)
    y = np.arange(rows) % classes
    angles = 2.0 * np.pi * y / classes
    return np.stack([np.cos(angles), np.sin(angles)], axis=1) * 3.0 + 0.4 * rng.normal(size=(rows, 2)), y.astype(float)


def outliers(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A smooth function of one input, with noise of heavy tails."""
    rng = np.random.default_rng(SEED)
    X = rng.uniform(-3.0, 3.0, (rows, 1))
    return X, np.sin(2.0 * X[:, 0]) + 0.2 * rng.standard_t(3.0, rows)


def cavi_labels() -> dict[str, float]:
    """300 rows, dense."""
    X, y = labels(300)
    return {"ELBO": pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(9.0, 0.5))), X, y).elbo}


def cavi_blobs() -> dict[str, float]:
    """2,000 rows, three classes that can be told apart, 50 inducing inputs."""
    X, y = blobs(2000, 3)
    gp = pgm.GP(pgm.RBF(25.0, 1.0), size=3, form=pgm.Inducing(50))
    return {"ELBO": pgm.cavi(pgm.Model(pgm.LogisticSoftmax(3), gp), X, y).elbo}


def fit_labels(rows: int = 400, form: Any = None) -> dict[str, float]:
    """The hyperparameters of a classifier."""
    X, y = labels(rows)
    options = {} if form is None else {"form": form}
    return {"ELBO": _uncorrected(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(), **options)), X, y)}


def fit_outliers(rows: int = 400) -> dict[str, float]:
    """Those of a robust regression, and its scale."""
    X, y = outliers(rows)
    return {"ELBO": _uncorrected(pgm.Model(pgm.StudentT(4.0, 0.5), pgm.GP(pgm.Matern32())), X, y)}


def fit_rough(rows: int) -> dict[str, float]:
    """The same for a rough function of two inputs, whose covariance has no low rank."""
    rng = np.random.default_rng(SEED)
    X = rng.uniform(-3.0, 3.0, (rows, 2))
    y = np.sin(2.0 * X[:, 0]) * X[:, 1] + 0.2 * rng.standard_t(3.0, rows)
    return {"ELBO": _uncorrected(pgm.Model(pgm.StudentT(4.0, 0.5), pgm.GP(pgm.Matern12())), X, y)}


def _uncorrected(model: pgm.Model, X: np.ndarray, y: np.ndarray) -> float:
    result = pgm.fit(model, X, y, objective="augmented", correct=False)
    return result.elbo


def gibbs(model: pgm.Model, X: np.ndarray, y: np.ndarray, draws: int = 1000) -> dict[str, float]:
    """The least effective number of draws of a latent or a hyperparameter."""
    from arviz_stats import ess

    begin = time.process_time()
    result = pgm.gibbs(model, X, y, num_samples=draws, num_warmup=300, num_chains=2, seed=SEED)
    seconds = time.process_time() - begin
    data = result.to_arviz()
    least = min(float(np.min(values)) for values in ess(data.posterior.to_dataset()).data_vars.values())
    return {"least ESS": least, "ESS a second": least / seconds}


def gibbs_sampled() -> dict[str, float]:
    """A classifier of 100 rows whose variance and lengthscale are sampled."""
    X, y = labels(100)
    kernel = pgm.RBF(_log_normal(1.0), _log_normal(0.0))
    return gibbs(pgm.Model(pgm.Bernoulli(), pgm.GP(kernel)), X, y)


def gibbs_classes() -> dict[str, float]:
    """Three classes, 90 rows, hyperparameters sampled."""
    X, y = blobs(90, 3)
    kernel = pgm.RBF(_log_normal(1.0), _log_normal(0.0))
    return gibbs(pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(kernel, size=3)), X, y, 500)


def gibbs_fixed() -> dict[str, float]:
    """A classifier of 300 rows with known hyperparameters."""
    X, y = labels(300)
    return gibbs(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(9.0, 0.5))), X, y)


def gibbs_few() -> dict[str, float]:
    """A negative binomial of 40 rows whose hyperparameters the data hardly determine."""
    rng = np.random.default_rng(SEED)
    X = np.linspace(-2.0, 2.0, 40)[:, None]
    y = rng.poisson(np.exp(0.5 * np.sin(X[:, 0]))).astype(float)
    kernel = pgm.RBF(_log_normal(0.0), _log_normal(0.0))
    return gibbs(pgm.Model(pgm.NegativeBinomial(2.0), pgm.GP(kernel)), X, y)


def _log_normal(mean: float) -> Any:
    import numpyro.distributions as dist

    return dist.LogNormal(mean, 1.0)


def svi_classes(subset: bool = True) -> dict[str, float]:
    """A hundred classes, 20,000 rows, 50 inducing inputs, with 20 classes a step or all."""
    X, y = blobs(20_000, 100)
    model = pgm.Model(pgm.LogisticSoftmax(100), pgm.GP(pgm.RBF(9.0, 1.0), size=100, form=pgm.Inducing(50)))
    options = {"class_batch_size": 20} if subset and not os.environ.get("ALL_CLASSES") else {}
    result = pgm.svi(model, X, y, batch_size=200, max_epochs=10, seed=SEED, **options)
    mean_log = float(np.mean(np.log(result.predict(X[:500]).probabilities[np.arange(500), y[:500].astype(int)])))
    return {"mean log p(y)": mean_log}


def without_curvature(warm_start: Callable[..., Any]) -> Callable[..., Any]:
    """A warm start that knows the optimum of the subset, but no inverse Hessian there."""

    def plain(name: str, start: Any, inverse_hessian: np.ndarray, *others: Any) -> Any:
        return warm_start(name, start, np.eye(len(inverse_hessian)), *others)

    return plain


# A mechanism: what stands in for it, by module and name, and the cases that it is there for.
Case = Callable[[], dict[str, float]]
MECHANISMS: dict[str, tuple[dict[str, Any], dict[str, Case]]] = {
    "Anderson acceleration": (
        {"pgmodels.numerics.iteration:History.extrapolated": lambda self, image: image},
        {"cavi, 300 rows": cavi_labels, "fit, 400 rows": fit_labels, "fit, Student-t": fit_outliers},
    ),
    "Newton's method for the mean": (
        {f"{INFERENCE}.cavi:can_ascend": lambda problem: False},
        {"cavi, separable classes": cavi_blobs},
    ),
    "subset warm start": (
        {f"{INFERENCE}.search:num_subset_rows": lambda model, rows, terms: None},
        {
            "fit, 1,500 rows": lambda: fit_labels(1500),
            "fit, 12,000 rows, 50 inducing inputs": lambda: fit_labels(12_000, pgm.Inducing(50)),
        },
    ),
    "low-rank pivots while learning": (
        {f"{INFERENCE}.bound:MANY_ROWS": 10**9},
        {"fit, 1,500 rows": lambda: fit_labels(1500), "fit, Student-t, 1,000 rows": lambda: fit_outliers(1000)},
    ),
    "carried inverse Hessian": (
        {f"{INFERENCE}.search:warm_start": without_curvature},
        {"fit, 1,500 rows": lambda: fit_labels(1500)},
    ),
    "Hamiltonian move": (
        {f"{INFERENCE}.gibbs_schedule:MOVES": "Hamiltonian"},
        {"gibbs, three classes": gibbs_classes, "gibbs, Bernoulli": gibbs_sampled},
    ),
    "adaptive tuning": (
        {f"{INFERENCE}.gibbs_schedule:tune": lambda prior, sampled, statistics, schedule: schedule},
        {
            "gibbs, three classes": gibbs_classes,
            "gibbs, fixed hyperparameters": gibbs_fixed,
            "gibbs, Bernoulli": gibbs_sampled,
            "gibbs, weak data": gibbs_few,
        },
    ),
    "class subsampling": ({"ALL_CLASSES": "1"}, {"svi, 100 classes": svi_classes}),
}


def switched_off(patches: dict[str, Any]) -> ExitStack:
    """The patches in force."""
    stack = ExitStack()
    for place, value in patches.items():
        if ":" not in place:
            os.environ[place] = value
            continue
        module, path = place.split(":")
        owner: Any = import_module(module)
        *within, name = path.split(".")
        for part in within:
            owner = getattr(owner, part)
        if name == "MOVES":
            value = tuple(move for move in owner.MOVES if type(move).__name__ != value)
            # The process ends with the run.
            object.__setattr__(owner.AUTO, "moves", value)
            continue
        value = value(getattr(owner, name)) if value is without_curvature else value
        stack.enter_context(patch.object(owner, name, value))
    return stack


def run(mechanism: str, case: str, off: bool) -> dict[str, float]:
    """CPU seconds of a first call, of a second one, and what came of it."""
    patches, cases = MECHANISMS[mechanism]
    with switched_off(patches if off else {}):
        begin = time.process_time()
        cases[case]()
        first = time.process_time() - begin
        figures = cases[case]()
        second = time.process_time() - begin - first
    return {"first call": first, "second call": second, **figures}


def measured(mechanism: str, case: str, off: bool) -> dict[str, Any]:
    """``run`` in a process of its own."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    environment |= {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    command = [sys.executable, __file__, "--one", json.dumps([mechanism, case, off])]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return {"first call": float("nan"), "result": f"no end in {LIMIT} s"}
    if done.returncode:
        return {"first call": float("nan"), "result": done.stderr.strip().splitlines()[-1][:100]}
    return json.loads(done.stdout.splitlines()[-1])


def main(chosen: list[str]) -> None:
    """Every mechanism, or those that are named, with and without."""
    rows: list[dict[str, object]] = []
    for mechanism in chosen or MECHANISMS:
        for case in MECHANISMS[mechanism][1]:
            pair = [measured(mechanism, case, off) for off in (False, True)]
            by = "ESS a second" if "ESS a second" in pair[0] else ""
            row: dict[str, object] = {"mechanism": mechanism, "case": case}
            for name, figures in zip(("with", "without"), pair, strict=True):
                row[f"{name}, first call"] = figures.pop("first call")
                row[f"{name}, second"] = figures.pop("second call", 0)
            if by:
                row["gain"] = pair[0][by] / pair[1].get(by, float("nan"))
            else:
                row["gain"] = row["without, first call"] / row["with, first call"]  # type: ignore[operator]
            for name, figures in zip(("with", "without"), pair, strict=True):
                texts = [f"{key} {x:.6g}" if isinstance(x, float) else str(x) for key, x in figures.items()]
                row[f"result {name}"] = ", ".join(texts)
            rows.append(row)
            print(json.dumps(row), flush=True)
    write_table(
        "What each mechanism is worth",
        rows,
        "CPU seconds on one thread, compilation included in a first call. Gain: first call without it over "
        "those with it; for the sampler effective draws per second with it over those without.",
        SEED,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        mechanism, case, off = json.loads(sys.argv[2])
        print(json.dumps(run(mechanism, case, off)))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
    else:
        main(sys.argv[1:])
