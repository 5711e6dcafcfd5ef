"""A long series beside peers: seconds of the processors, held-out loss, and variances beside a long run of ``gibbs``.

The peers have environments of their own, and bam is R's, of Debian's packages r-base-core and r-cran-mgcv:

    python3.11 -m venv TINYGP && TINYGP/bin/pip install tinygp==0.3.1 scipy
    python3.11 -m venv NEWTON && NEWTON/bin/pip install bayesnewton==1.3.4 objax==1.7.0 numba six \\
        jax==0.4.13 jaxlib==0.4.13 "numpy<2" "scipy<1.13"
    python validation/markov_peers.py --tinygp TINYGP/bin/python --bayesnewton NEWTON/bin/python [ROWS ...]

Who has no interpreter, or no Rscript, does not take part. Half an hour on two idle cores.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from arviz_stats.base import array_stats
from numpy.polynomial.hermite_e import hermegauss
from table import write_table

import pgmodels as pgm

CONTESTANT = Path(__file__).parent / "markov_contestant.py"
BAM = CONTESTANT.with_suffix(".R")
# The truth is a draw of the prior with these values; learning starts from half and double.
TRUTH = {"lengthscale": 2.0, "variance": 1.0, "noise": 0.5}
ROWS_PER_UNIT, TESTED, WINDOW, LIMIT, SEED = 100, 10, 10, 300, 0
# Rows on which variances are compared, in series of this many.
SHORT, CHAINS = 2000, 4
KINDS = ("Gaussian", "Bernoulli")
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def simulated(kind: str, count: int) -> dict[str, Any]:
    """A series: rows to learn from, and rows of the test between them, every tenth as many."""
    rng = np.random.default_rng([SEED, count])
    total = count + count // TESTED
    x = np.sort(rng.uniform(0.0, count / ROWS_PER_UNIT, total))
    # Matern32 by its state: value and slope, which decays at this rate.
    rate, f = np.sqrt(3.0) / TRUTH["lengthscale"], np.empty(total)
    stationary = TRUTH["variance"] * np.diag([1.0, rate**2])
    state = np.sqrt(stationary) @ rng.normal(size=2)
    for row, gap in enumerate(np.diff(x, prepend=x[0])):
        step = np.exp(-rate * gap) * np.array([[1.0 + rate * gap, gap], [-(rate**2) * gap, 1.0 - rate * gap]])
        values, vectors = np.linalg.eigh(stationary - step @ stationary @ step.T)
        state = step @ state + vectors @ (np.sqrt(np.maximum(values, 0.0)) * rng.normal(size=2))
        f[row] = state[0]
    noisy = f + TRUTH["noise"] * rng.normal(size=total)
    y = noisy if kind == "Gaussian" else (rng.random(total) < 1.0 / (1.0 + np.exp(-f))).astype(float)
    test = np.zeros(total, dtype=bool)
    test[rng.choice(total, count // TESTED, replace=False)] = True
    window = np.arange(WINDOW // 2, count, WINDOW)
    inputs = np.concatenate([x[test], x[~test][window]])
    return {"kind": kind, "x": x[~test], "y": y[~test], "x_test": inputs, "y_test": y[test], "window": window}


def loss(kind: str, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, noise: float) -> float:
    """Minus the log density of the rows of the test, in nats a row."""
    if kind == "Gaussian":
        total = variance + noise**2
        return float(np.mean(0.5 * np.log(2.0 * np.pi * total) + (y - mean) ** 2 / (2.0 * total)))
    nodes, weights = hermegauss(32)
    latent = (2.0 * y - 1.0)[:, None] * (mean[:, None] + np.sqrt(variance)[:, None] * nodes)
    return float(-np.mean(np.log((weights / weights.sum() / (1.0 + np.exp(-latent))).sum(axis=1))))


def reference(case: Mapping[str, Any], draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Variances at the rows of the window by a long run, and their relative standard errors."""
    kernel = pgm.Matern32(TRUTH["variance"], TRUTH["lengthscale"])
    likelihood = pgm.Gaussian(TRUTH["noise"]) if case["kind"] == "Gaussian" else pgm.Bernoulli()
    model = pgm.Model(likelihood, pgm.GP(kernel, form=pgm.Markov())).fixed()
    run = pgm.gibbs(
        model,
        case["x"][:, None],
        case["y"],
        num_samples=draws,
        num_warmup=100,
        num_chains=CHAINS,
        keep=case["window"],
        progress=False,
    )
    kept = run.latents[:, :, :, 0]
    squares = (kept - kept.mean(axis=(0, 1))) ** 2
    variance = squares.mean(axis=(0, 1))
    return variance, array_stats.mcse(squares, chain_axis=0, draw_axis=1, method="mean") / variance


def run_python(name: str, program: str, case: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a contestant printed last, and its moments."""
    start = {key: value * (0.5 if key == "lengthscale" else 2.0) for key, value in TRUTH.items()}
    target, shown = folder / "moments.npz", folder / "shown"
    target.unlink(missing_ok=True)
    np.savez(folder / "case.npz", **case, **TRUTH, **{f"{key}_start": value for key, value in start.items()})
    command = [program, str(CONTESTANT), str(folder / "case.npz"), name, str(target)]
    with shown.open("w") as file:
        try:
            subprocess.run(command, env=ENVIRONMENT, stdout=file, timeout=LIMIT, check=True)
        except (subprocess.SubprocessError, OSError) as error:
            print(name, error, flush=True)
    outcome = json.loads(["{}", *shown.read_text().splitlines()][-1])
    return outcome, dict(np.load(target)) if target.exists() else {}


def run_bam(case: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same of bam, which always learns: a basis function for each half of a unit of time."""
    target = folder / "moments.csv"
    target.unlink(missing_ok=True)
    pd.DataFrame({"x": case["x"], "y": case["y"]}).to_csv(folder / "train.csv", index=False)
    pd.DataFrame({"x": case["x_test"]}).to_csv(folder / "test.csv", index=False)
    rank = max(20, 2 * len(case["x"]) // ROWS_PER_UNIT)
    command = ["Rscript", str(BAM), str(folder), case["kind"], str(rank)]
    try:
        printed = subprocess.run(
            command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, timeout=LIMIT, check=True
        ).stdout
    except (subprocess.SubprocessError, OSError) as error:
        print("bam", error, flush=True)
        return {}, {}
    seconds, scale, *versions = printed.splitlines()[-1].split()
    frame = pd.read_csv(target)
    outcome = {
        "versions": [f"R {versions[0]}.{versions[1]}", f"mgcv {versions[2]}"],
        "learn": [float(seconds), None],
        "values": {"noise": float(scale) ** 0.5},
    }
    return outcome, {"learn_mean": frame["mean"].to_numpy(), "learn_variance": frame["variance"].to_numpy()}


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("rows", nargs="*", type=int, default=[2000, 20_000, 100_000], metavar="ROWS")
parser.add_argument("--tinygp", metavar="PYTHON", help="the interpreter of tinygp's environment")
parser.add_argument("--bayesnewton", metavar="PYTHON", help="the interpreter of BayesNewton's environment")
parser.add_argument("--draws", type=int, default=5000, help="of each chain of gibbs")
options = parser.parse_args()

programs = {"pgmodels": sys.executable, "tinygp": options.tinygp, "BayesNewton": options.bayesnewton}
table: list[dict[str, object]] = []
versions: dict[str, str] = {}
for kind in KINDS:
    names = [name for name, program in programs.items() if program and (name != "tinygp" or kind == "Gaussian")]
    for count in options.rows:
        case = simulated(kind, count)
        tested = len(case["y_test"])
        variance, error = reference(case, options.draws) if count <= SHORT else (None, None)
        for name in [*names, *(["bam"] if shutil.which("Rscript") else [])]:
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch)
                outcome, moments = (
                    run_bam(case, folder) if name == "bam" else run_python(name, programs[name], case, folder)
                )
            if name != "pgmodels" and "versions" in outcome:
                versions[name] = ", ".join(outcome["versions"])
            row: dict[str, object] = {"likelihood": kind, "rows": count, "library": name}
            for call in ("posterior", "learn"):
                first, again = outcome.get(call, (None, None))
                row |= {f"{call}, s": first, f"{call}, again, s": again}
            if "learn_mean" in moments:
                noise = outcome.get("values", {}).get("noise", 0.0)
                test = moments["learn_mean"][:tested], moments["learn_variance"][:tested]
                row["held-out loss"] = f"{loss(kind, case['y_test'], *test, noise):.4f}"
            at_truth = moments.get("posterior_variance", moments.get("learn_variance"))
            if variance is not None and error is not None and at_truth is not None:
                ratio = at_truth[tested:] / variance
                row |= {
                    "mean ratio of variances": f"{ratio.mean():.3f}",
                    "rms error of variances": f"{np.sqrt(np.mean((ratio - 1.0) ** 2)):.3f}",
                    "standard error of gibbs": f"{np.median(error):.3f}",
                }
            table.append(row)
            print(row, outcome.get("values"), flush=True)
write_table(
    "A long series beside peers",
    table,
    f"Series drawn from a GP with a Matern32 kernel of lengthscale {TRUTH['lengthscale']:g} and variance "
    f"{TRUTH['variance']:g}, {ROWS_PER_UNIT} rows a unit of time, with Gaussian noise of {TRUTH['noise']:g} or labels "
    "of a logistic link; a tenth as many rows between them are held out. *posterior* is that at the true values, "
    "`gaussian_vi` and `correct` here, with moments at new rows; *learn* learns the values, from half the lengthscale "
    "and double the others, and predicts. Seconds of the processors, the first with compilation and the second of "
    "the same call again in the same process, without imports. Held-out loss: nats a row, by quadrature over the "
    "mean and variance that each gives its latent at its learned values. Variances: at the true values beside "
    f"{CHAINS} chains of {options.draws:,} draws of `gibbs` on every {WINDOW}th row; root mean square of the relative "
    "error, in which the median standard error of the draws is included. tinygp is quasiseparable and exact, with "
    "L-BFGS, and new rows are rows of hardly any weight; BayesNewton is its MarkovVariationalGP, with the steps that "
    "markov_contestant.py names; bam is a cubic regression spline by fREML with two functions a unit of time, five "
    "bins for each but in predictions, whose prior is another one and whose variances are those at what it learns. "
    "A second call of BayesNewton has its model and compiled functions, and one of pgmodels is the whole public call. "
    f"Empty: not finished in {LIMIT} s, or not to be had. Versions: "
    f"{'; '.join(f'of {name}: {of_name}' for name, of_name in versions.items())}.",
    SEED,
)
