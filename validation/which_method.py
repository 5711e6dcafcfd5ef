"""Which method when: all systems on the same rows, with accuracy, log loss, calibration, latent error and seconds.

Usage: python validation/which_method.py [NAME ...]: sets of these names alone. What is measured is kept in
results/which_method.json set by set, and the table is of all that is there. Data sets other than scikit-learn's are
read from PGMODELS_DATA or OpenML. Two to four minutes a set on two cores, twenty for the waveforms.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpyro.distributions as dist
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter
from table import write_table

import pgmodels as pgm
from pgmodels import systems
from pgmodels.datasets import Split, load
from pgmodels.diagnostics.compare import expected_calibration_error
from pgmodels.plots.style import styles

TWO = (
    *("crabs", "heart", "ionosphere", "banana", "pima", "german", "breast-cancer", "twonorm", "ringnorm"),
    "svmguide1",
)
MORE = ("wine", "waveform", "waveform-noise")
# Rows to learn from at most, and at most two thirds of all; test rows at most; inducing inputs.
ROWS, TESTED, INDUCING = 300, 1000, 60
KEPT = Path(__file__).parent / "results" / "which_method.json"
OPTIONS: dict[str, Any] = {"progress": False}
SCALE = dist.LogNormal(0.0, 1.0)

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("names", nargs="*", default=[*TWO, *MORE], metavar="NAME", help=", ".join([*TWO, *MORE]))
options = parser.parse_args()


def sampled(X: np.ndarray, y: np.ndarray) -> Any:
    """Gibbs draws of latents and hyperparameters, on all rows as inducing inputs."""
    size = len(np.unique(y))
    likelihood = pgm.Bernoulli() if size == 2 else pgm.LogisticSoftmax(size)
    kernel = pgm.RBF(variance=SCALE, lengthscale=dist.LogNormal(np.log(np.sqrt(X.shape[1])), 1.0))
    model = pgm.Model(likelihood, pgm.GP(kernel, size=1 if size == 2 else size))
    return pgm.gibbs(model, X, y, num_samples=500, num_warmup=300, num_chains=2, **OPTIONS)


def fitted(objective: Any, correct: Any) -> Callable[[np.ndarray, np.ndarray], Any]:
    """``fit`` on all rows, with or without its correction."""

    def run(X: np.ndarray, y: np.ndarray) -> Any:
        size = len(np.unique(y))
        likelihood = pgm.Bernoulli() if size == 2 else pgm.LogisticSoftmax(size)
        model = pgm.Model(likelihood, pgm.GP(pgm.RBF(), size=1 if size == 2 else size))
        return pgm.fit(model, X, y, objective=objective, correct=correct, **OPTIONS)

    return run


def system(call: Callable[..., Any], **arguments: Any) -> Callable[[np.ndarray, np.ndarray], Any]:
    """A system with the inducing inputs and options of this table."""
    return lambda X, y: call(X, y, num_inducing=INDUCING, **arguments, **OPTIONS)


EVERY = {
    "gibbs, hyperparameters sampled": sampled,
    "fit, augmented": fitted("augmented", False),
    "fit, augmented, linear response": fitted("augmented", True),
    "fit, expected": fitted("expected", False),
    "fit, expected, linear response": fitted("expected", True),
}
NOISY = {"GPC-I": system(systems.gpc_1), "GPC-II": system(systems.gpc_2), "GPC-III": system(systems.gpc_3)}
BINARY = EVERY | {
    "X-GPC": system(systems.x_gpc),
    "SVGPC": system(systems.svgpc),
    "PGPR, HGV": system(systems.pgpr),
    "SVGP": system(systems.svgp),
    "merged": system(systems.merged),
    "vi-JJ": system(systems.vi_jj),
    "vi-Taylor": system(systems.vi_taylor),
    **NOISY,
}
MULTICLASS = EVERY | {
    "logistic-softmax, mean field": system(systems.logistic_softmax),
    "logistic-softmax, augmented": system(systems.logistic_softmax, bound="augmented"),
    "softmax": system(systems.softmax),
    "robust-max": system(systems.robust_max),
    **NOISY,
    "GPC-sm": system(systems.gpc_sm),
}


def split(name: str) -> Split:
    """Training and test rows, standardised by the former."""
    data = load(name)
    order = np.random.default_rng(0).permutation(len(data.X))
    count = min(ROWS, 2 * len(order) // 3)
    train, test = order[:count], order[count : count + TESTED]
    location, scale = data.X[train].mean(axis=0), data.X[train].std(axis=0)
    X = (data.X - location) / np.where(np.ptp(data.X[train], axis=0) > 0, scale, 1.0)
    return Split(X[train], data.y[train], X[test], data.y[test])


def latent_error(result: Any, rows: Split) -> dict[str, float | None]:
    """Errors of latents at test rows against Gibbs with the same hyperparameters and inducing inputs.

    The root mean square error of means in posterior standard deviations, and the ratio of mean variances less one;
    None where the likelihood has no Gibbs sampler.
    """
    none = {"mean error, sd": None, "variance error": None}
    if isinstance(result, pgm.Draws):
        return none
    model = result.model.fixed()
    for scheme in ("auto", "one_vs_rest"):
        try:
            draws = pgm.gibbs(
                model, rows.X, rows.y, num_samples=1000, num_warmup=500, num_chains=2, scheme=scheme, **OPTIONS
            )
            break
        except (ValueError, NotImplementedError):
            continue
    else:
        return none
    mean, variance = draws.predict_latent(rows.X_test)
    m, v = result.predict_latent(rows.X_test)
    error = float(np.sqrt(np.mean((m - mean) ** 2 / variance)))
    return {"mean error, sd": error, "variance error": float(np.mean(v) / np.mean(variance) - 1.0)}


def measured(name: str, run: Callable[[np.ndarray, np.ndarray], Any], rows: Split) -> dict[str, Any]:
    """The scores of a method."""
    start = time.perf_counter()
    result = run(rows.X, rows.y)
    seconds = time.perf_counter() - start
    predictive = result.predict(rows.X_test)
    probabilities = np.asarray(predictive.probabilities)
    return {
        "method": name,
        "accuracy": float(np.mean(probabilities.argmax(axis=1) == rows.y_test)),
        "NLL, nats": -float(np.mean(predictive.log_density(rows.y_test))),
        "ECE": float(expected_calibration_error(probabilities, rows.y_test.astype(int))),
        **latent_error(result, rows),
        "seconds": seconds,
    }


def picture(frame: pd.DataFrame) -> Figure:
    """Log loss beyond the best method's of each set against seconds; medians over sets, two classes and more."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    for axes, (title, part) in zip(figure.subplots(1, 2), frame.groupby("classes", sort=False), strict=False):
        excess = part["NLL, nats"] - part.groupby("data")["NLL, nats"].transform("min")
        medians = part.assign(excess=excess).groupby("method", sort=False)[["seconds", "excess"]].median()
        for (method, row), style in zip(medians.iterrows(), styles(medians.index).values(), strict=True):
            axes.plot(row["seconds"], row["excess"], style.marker, color=style.colour, label=method)
        axes.set(xscale="log", xlabel="seconds", ylabel="log loss beyond the best method, nats a row", title=title)
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.legend(fontsize="x-small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


kept: dict[str, list[dict[str, Any]]] = json.loads(KEPT.read_text()) if KEPT.is_file() else {}
for name in options.names:
    if name in kept:
        continue
    rows = split(name)
    lines = []
    for method, run in (BINARY if name in TWO else MULTICLASS).items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of values at their limits and of few inducing inputs
            lines.append(measured(method, run, rows))
        print(name, lines[-1], flush=True)
    kept[name] = lines
    KEPT.write_text(json.dumps(kept, indent=1) + "\n")
ordered = [name for name in (*TWO, *MORE) if name in kept]
frame = pd.DataFrame(
    [
        {"data": name, "classes": "two classes" if name in TWO else "more classes", **line}
        for name in ordered
        for line in kept[name]
    ]
)
picture(frame).savefig(KEPT.with_suffix(".png"), dpi=110)
figures = ["accuracy", "NLL, nats", "ECE", "mean error, sd", "variance error", "seconds"]
frame[figures] = frame[figures].astype(float)
means = frame.groupby(["classes", "method"], sort=False)[figures].mean().reset_index()
overall = means.assign(data="mean of " + means["classes"])
table = pd.concat([overall, frame])[["data", "method", *figures]]
write_table(
    "Which method when",
    [{key: None if value != value else value for key, value in row.items()} for row in table.to_dict("records")],
    f"Each set has at most {ROWS} rows to learn from and {TESTED} to test. The kernel is an RBF with one lengthscale, "
    f"and each method learns the hyperparameters. The published systems have {INDUCING} inducing inputs. ECE is the "
    "expected calibration error. Errors of latents are at test rows, against Gibbs at the same hyperparameters and "
    "inducing inputs. They are the root mean square error of means in posterior standard deviations, and the ratio of "
    "mean variances less one. They are empty where there is no Gibbs sampler. Seconds include compilation.",
    seed=0,
)
