"""Effective draws of f a second: gibbs against NUTS on the whitened latents, side by side, in one process a case.

Usage: python validation/sampler_suite.py fixed|sampled [CASE ...], hyperparameters held or sampled: twenty minutes
(eleven classes take NUTS longer), and forty. Data sets other than scikit-learn's are read from PGMODELS_DATA or OpenML.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
from table import write_table
from threadpoolctl import threadpool_limits

import pgmodels as pgm
from pgmodels.datasets import load
from pgmodels.diagnostics.compare import convergence_by_latent, standard_errors
from pgmodels.interop.numpyro import Program


class Case(NamedTuple):
    """A model with the hyperparameters held, or sampled, and its data."""

    name: str
    sampled: bool
    make: Callable[[], tuple[pgm.Model, np.ndarray, np.ndarray]]


def standardised(name: str, rows: int | None = None, columns: list[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The first rows of a data set in a random order, X standardised."""
    data = load(name, columns)
    order = np.random.default_rng(0).permutation(len(data.X))[:rows]
    X = data.X[order]
    return (X - X.mean(axis=0)) / X.std(axis=0), data.y[order]


def binary(name: str, rows: int | None, columns: list[int] | None = None, sampled: bool = False) -> tuple:
    """Two classes, kernel variance 4 and the median distance, or priors on both."""
    X, y = standardised(name, rows, columns)
    if sampled:
        kernel = pgm.RBF(dist.LogNormal(1.0, 1.0), dist.LogNormal(0.5, 0.7))
    else:
        kernel = pgm.RBF(variance=pgm.Fixed(4.0), lengthscale=None)
    return pgm.Model(pgm.Bernoulli(), pgm.GP(kernel)), X, y


def wine(sampled: bool = False) -> tuple:
    """Three classes, 118 rows, one kernel for all latents."""
    X, y = standardised("wine", 118)
    priors = (dist.LogNormal(0.0, 1.0), dist.LogNormal(1.0, 0.7)) if sampled else (pgm.Fixed(1.0), None)
    return pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(pgm.RBF(*priors), size=3)), X, y


def classes(name: str, number: int, rows: int) -> tuple:
    """The first classes of a data set, one kernel for all latents."""
    data = load(name)
    kept = data.y < number
    order = np.random.default_rng(0).permutation(int(kept.sum()))[:rows]
    X, y = data.X[kept][order], data.y[kept][order]
    spread = X.std(axis=0)
    X = (X - X.mean(axis=0))[:, spread > 0] / spread[spread > 0]
    return pgm.Model(pgm.LogisticSoftmax(number), pgm.GP(pgm.RBF(pgm.Fixed(1.0), None), size=number)), X, y


def counts(likelihood: str, sampled: bool = False) -> tuple:
    """Disasters a year, with a likelihood parameter that is sampled too."""
    X, y = standardised("coal")
    priors = (dist.LogNormal(0.0, 1.0), dist.LogNormal(0.0, 0.7)) if sampled else (1.0, 0.7)
    rate = dist.LogNormal(2.0, 0.5) if sampled else 6.0
    dispersion = dist.LogNormal(1.5, 0.7) if sampled else 5.0
    chosen = pgm.SigmoidPoisson(rate) if likelihood == "Poisson" else pgm.NegativeBinomial(dispersion)
    mean = 0.0 if likelihood == "Poisson" else -1.0
    return pgm.Model(chosen, pgm.GP(pgm.Matern52(*priors), mean=mean)), X, y


def robust(likelihood: str) -> tuple:
    """Accelerations over time, with heavy-tailed noise."""
    X, y = standardised("mcycle")
    y = (y - y.mean()) / y.std()
    chosen = pgm.StudentT(4.0, 0.4) if likelihood == "StudentT" else pgm.Laplace(0.4)
    return pgm.Model(chosen, pgm.GP(pgm.RBF(1.0, 0.4))), X, y


GOALS = {"fixed": "a median of 4, and none below 2", "sampled": "5"}
CASES = [
    Case("breast cancer 2-D, n = 400", False, lambda: binary("breast-cancer", 400, [0, 1])),
    Case("breast cancer 30-D, n = 500", False, lambda: binary("breast-cancer", 500)),
    Case("banana 2-D, n = 400", False, lambda: binary("banana", 400)),
    Case("Pima 8-D, n = 768", False, lambda: binary("pima", None)),
    Case("wine, logistic-softmax, n = 118", False, wine),
    Case("pendigits, 4 classes, n = 200", False, lambda: classes("pendigits", 4, 200)),
    Case("page-blocks, 5 classes, n = 300", False, lambda: classes("page-blocks", 5, 300)),
    Case("satimage, 6 classes, n = 170", False, lambda: classes("satimage", 6, 170)),
    Case("letter, 7 classes, n = 214", False, lambda: classes("letter", 7, 214)),
    Case("letter, 11 classes, n = 264", False, lambda: classes("letter", 11, 264)),
    Case("coal, negative binomial, n = 112", False, lambda: counts("NegativeBinomial")),
    Case("coal, sigmoid-Poisson, n = 112", False, lambda: counts("Poisson")),
    Case("mcycle, Student-t, n = 133", False, lambda: robust("StudentT")),
    Case("mcycle, Laplace, n = 133", False, lambda: robust("Laplace")),
    Case("wine, logistic-softmax, sampled", True, lambda: wine(True)),
    Case("coal, negative binomial, sampled", True, lambda: counts("NegativeBinomial", True)),
    Case("coal, sigmoid-Poisson, sampled", True, lambda: counts("Poisson", True)),
    Case("breast cancer 2-D, n = 400, sampled", True, lambda: binary("breast-cancer", 400, [0, 1], True)),
]


def run_gibbs(model: pgm.Model, X: np.ndarray, y: np.ndarray, num_samples: int) -> tuple[pgm.Draws, float]:
    """Draws and seconds, compilation apart: the programs of a first short run are used again."""
    pgm.gibbs(model, X, y, num_samples=1, num_warmup=200, seed=1)
    start = time.perf_counter()
    draws = pgm.gibbs(model, X, y, num_samples=num_samples, num_warmup=200, seed=0)
    return draws, time.perf_counter() - start


def run_nuts(model: pgm.Model, X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray], float]:
    """Latents, hyperparameters and seconds of 4 x (500 + 1,000), compilation apart.

    Chains run as ``pgm.nuts`` runs them: together where that is safe, else one after the other. Then the time of the
    first, which compiles, is taken to be the mean of the others'; a batch is run twice.
    """
    with jax.enable_x64(True), threadpool_limits(1, user_api="blas"):
        program = Program(model.resolve(X), model.check(X, y))
        together = all(group is not None for group in program.fixed_groups)
        sampler = MCMC(
            NUTS(program, target_accept_prob=0.8),
            num_warmup=500,
            num_samples=1000,
            num_chains=4 if together else 1,
            chain_method="vectorized",
            progress_bar=False,
        )
        keys = [jax.random.key(1), jax.random.key(0)] if together else jax.random.split(jax.random.key(0), 4)
        runs, times = [], []
        for key in keys:
            start = time.perf_counter()
            sampler.run(key)
            runs.append(jax.block_until_ready(sampler.get_samples(group_by_chain=True)))
            times.append(time.perf_counter() - start)
        kept = runs[1:] if together else runs
        draws = {
            name: np.concatenate([np.asarray(run[name]) for run in kept]) for name in ("f", *program.unknowns.names)
        }
        elapsed = times[1] if together else 4 * float(np.mean(times[1:]))
        return draws["f"], {name: draws[name] for name in program.unknowns.names}, elapsed


def largest_score(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference of means or variances (chains, draws, n, latents), in joint standard errors."""
    statistics = [(x.mean(axis=(0, 1)), x.var(axis=(0, 1)), *standard_errors(x)) for x in (one, other)]
    (m, v, dm, dv), (m2, v2, dm2, dv2) = statistics
    return float(max(np.max(np.abs(m - m2) / np.hypot(dm, dm2)), np.max(np.abs(v - v2) / np.hypot(dv, dv2))))


def logs(values: dict[str, np.ndarray]) -> np.ndarray:
    """Positive hyperparameters' logarithms, (chains, draws, number, 1)."""
    return np.stack([np.log(v) for n, v in values.items() if n != "mean"], axis=-1)[..., None]


def measure(case: Case) -> dict[str, object]:
    """One row of the table."""
    model, X, y = case.make()
    draws, ours = run_gibbs(model, X, y, 1000)
    latents, sampled, theirs = run_nuts(model, X, y)
    row: dict[str, object] = {"case": case.name}
    rates = {}
    for label, x, elapsed in (("gibbs", draws.latents, ours), ("NUTS", latents, theirs)):
        bulk, tail, rhat = convergence_by_latent(x)
        row[f"{label} s"] = elapsed
        row[f"{label} bulk ESS/s, min (median)"] = f"{bulk.min() / elapsed:.4g} ({np.median(bulk) / elapsed:.4g})"
        row[f"{label} tail ESS/s, min (median)"] = f"{tail.min() / elapsed:.4g} ({np.median(tail) / elapsed:.4g})"
        row[f"{label} R-hat"] = float(rhat.max())
        rates[label] = np.array([bulk.min(), tail.min()]) / elapsed
    row["ratio of min bulk"], row["ratio of min tail"] = (float(r) for r in rates["gibbs"] / rates["NUTS"])
    row["largest z of f"] = largest_score(draws.latents, latents)
    if case.sampled:
        row["largest z of log hyperparameters"] = largest_score(logs(draws.hyperparameters), logs(sampled))
    print({k: (round(v, 3) if isinstance(v, float) else v) for k, v in row.items()}, flush=True)
    return row


def main(part: str, words: list[str]) -> None:
    """Run the cases of a part, or those that some word is in the name of, and write their table."""
    if part not in ("fixed", "sampled"):
        raise SystemExit(__doc__)
    cases = [case for case in CASES if case.sampled == (part == "sampled")]
    with tempfile.TemporaryDirectory() as folder:
        # NumPyro prepares a second run as it did the first, and would compile for that again.
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
        rows = [measure(case) for case in cases if not words or any(word in case.name for word in words)]
    ratios = [float(row["ratio of min bulk"]) for row in rows]  # type: ignore[arg-type]
    write_table(
        f"Gibbs against NUTS, effective draws a second, {part} hyperparameters",
        rows,
        "Four chains each, one BLAS thread, one process. gibbs: 200 + 1,000 iterations; NUTS: NumPyro, latents "
        "whitened by a dense Cholesky root, target accept 0.8, 500 + 1,000. Seconds include warm-up and set-up, "
        "compilation apart, by a cache of compiled programs. Effective sample sizes are of f at the data, the smallest "
        "and the median. z: differences of posterior means and variances in joint Monte-Carlo standard errors. Ratio "
        "of the least bulk ESS a second: "
        f"median {np.median(ratios):.2f}, least {min(ratios):.2f}; the goal is {GOALS[part]}.",
        seed=0,
        part=part,
    )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "", sys.argv[2:])
