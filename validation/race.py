"""Seconds to the test loss of the best peer: `fit` and `svi` beside GPflow, GPyTorch and scikit-learn.

The peers have an environment of their own:

    python3.11 -m venv PEERS && PEERS/bin/pip install -r validation/race_requirements.txt
    python validation/race.py --peers PEERS/bin/python [NAME ...]

NAMEs are those of CASES. Data are read from PGMODELS_DATA. What was found is kept in results/race.json, the losses
along the peers' steps included; the tables are of all that is there. An hour on two cores.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from race_contestant import DENSE, FEW, LIMIT, NATURAL, OURS, PEERS, WINDOW
from scipy.cluster.vq import kmeans2
from table import write_table

from pgmodels.datasets import Dataset, load

CONTESTANT = Path(__file__).parent / "race_contestant.py"
KEPT = Path(__file__).parent / "results" / "race.json"
# Adam's rates, of which the better is kept for each set.
RATES = (0.01, 0.05)
# How far above the best peer's last loss is near enough, in nats a row.
NEAR = 0.005


class Case(NamedTuple):
    """A set's rows to train on at most (of two thirds of all), inducing inputs, rows of a batch, seconds a peer has."""

    rows: int
    inducing: int
    batch: int
    seconds: float


SMALL, LARGE = Case(2000, 100, 2000, 8.0), Case(4000, 100, 500, 12.0)
# Sets, and rows where they are fewer than the set has.
CASES = {
    **dict.fromkeys(("banana", "pima", "german"), SMALL),
    **dict.fromkeys(("magic:400", "magic:2000"), SMALL),
    **dict.fromkeys(("magic", "electricity", "cod-rna", "skin", "ijcnn1"), LARGE),
    "pendigits": LARGE._replace(rows=2500),
    # Of Galy-Fajou 2019, figure 7, what is at hand.
    **dict.fromkeys(("shuttle", "covtype-10k"), LARGE),
    **dict.fromkeys(("heart", "ionosphere", "twonorm:1000", "ringnorm:1000", "svmguide1:1000"), SMALL),
    "bank": LARGE,
    **dict.fromkeys(("waveform:200", "satimage:200"), SMALL),
    # One set in four sizes.
    **dict.fromkeys(("electricity:200", "electricity:1000"), SMALL),
    **dict.fromkeys(("electricity:5000", "electricity:20000"), LARGE),
}
SIZES = ("electricity:200", "electricity:1000", "electricity:5000", "electricity:20000")
TESTED = 5000


def first_time(curve: list[list[float]], level: float) -> list[float] | None:
    """Seconds on the clock and of the processors at the first point of a curve with no larger loss than this."""
    return next((point[:2] for point in curve if point[2] <= level), None)


def splits(data: Dataset, case: Case) -> dict[str, Any]:
    """Two splits of the rows, standardised by the training rows, with the centres of k-means in them."""
    arrays: dict[str, Any] = {}
    for seed, name in enumerate(("first", "second")):
        order = np.random.default_rng(seed).permutation(len(data.X))
        count = min(case.rows, 2 * len(order) // 3)
        train, test = order[:count], order[count : count + TESTED]
        location, scale = data.X[train].mean(axis=0), data.X[train].std(axis=0)
        X = (data.X - location) / np.where(scale > 0, scale, 1.0)
        centres = kmeans2(X[train], case.inducing, minit="++", seed=seed)[0]
        fields = (X[train], data.y[train], X[test], data.y[test], centres)
        arrays |= {
            f"{name}_{field}": part for field, part in zip(("X", "y", "X_test", "y_test", "Z"), fields, strict=True)
        }
    return arrays


def contestants(rows: int, classes: int) -> list[tuple[str, float]]:
    """Who takes part on so many rows of so many classes, and with which rates."""
    names = ["scikit-learn"] if rows <= DENSE else []
    names += ["GPBoost"] if classes == 2 else []
    names += [name for name in OURS if rows <= DENSE or name != "fit, dense"]
    return [*((name, rate) for name in ("GPflow", "GPyTorch") for rate in RATES), *((name, 0.0) for name in names)]


def race(name: str, python: str) -> dict[str, Any]:
    """All contestants on a set, as many at a time as there are cores."""
    kind, _, most = name.partition(":")
    data = load(kind)
    case = CASES[name]._replace(rows=int(most)) if most else CASES[name]
    arrays, classes = splits(data, case), len(np.unique(data.y))
    rows, columns = arrays["first_X"].shape
    cores: SimpleQueue[int] = SimpleQueue()
    for core in os.sched_getaffinity(0):
        cores.put(core)
    # A cache of compiled programs would hide what is measured.
    environment = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
    environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "3"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.npz"
        np.savez(path, **arrays, lengthscale=math.sqrt(columns), batch=min(case.batch, rows), classes=classes)

        def run(contestant: tuple[str, float]) -> dict[str, Any]:
            method, rate = contestant
            core = cores.get()
            program = python if method in PEERS else sys.executable

            command = [program, str(CONTESTANT), str(path), str(core), method, str(rate), str(case.seconds)]
            with tempfile.TemporaryFile("w+", dir=folder) as shown:
                # Who fails, or is stopped, has what it printed before; its error is shown.
                ended = subprocess.run([*command, str(time.time())], env=environment, stdout=shown).returncode
                shown.seek(0)
                outcome = json.loads(["{}", *shown][-1])
            cores.put(core)
            print(
                name, method, rate or "", outcome.get("curve", [None])[-1], outcome.get("again", ""), ended, flush=True
            )
            return {"contestant": method, "rate": rate, "curve": [], **_rounded(outcome)}

        with ThreadPoolExecutor(cores.qsize()) as pool:
            runs = list(pool.map(run, contestants(rows, classes)))
    inducing, batch = case.inducing, min(case.batch, rows)
    setting = f"{name.partition(':')[0]}, {rows} x {columns}, M {inducing}, batches of {batch}"
    setting += f", {classes} classes" if classes > 2 else ""
    return {"data": setting, "runs": runs, "load": round(os.getloadavg()[0], 1)}


def _rounded(value: object) -> object:
    """Numbers of five digits."""
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_rounded(entry) for entry in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


class Standing(NamedTuple):
    """A contestant's run, and its seconds to the level.

    On the clock; of the processor; without compilation; and of the whole process, imports included.
    """

    run: dict[str, Any]
    clock: float
    total: float
    compiled: float
    process: float

    @property
    def last(self) -> float:
        """The loss in the end; infinite where the run was stopped before it had any."""
        return self.run["curve"][-1][2] if self.run["curve"] else math.inf


def standing(run: dict[str, Any], level: float) -> Standing:
    """Where a run stands. What is compiled is known from a peer's first step, or from the same call on other rows."""
    clock, total = first_time(run["curve"], level) or (math.inf, math.inf)
    process = total + run.get("before", (math.inf, math.inf))[1]
    return Standing(run, clock, total, total - max(0.0, run.get("compile", (0.0, 0.0))[1]), process)


def level_of(runs: list[dict[str, Any]]) -> float:
    """The loss that counts as near the best peer's last."""
    return NEAR + min(run["curve"][-1][2] for run in runs if run["contestant"] in PEERS and run["curve"])


def standings(runs: list[dict[str, Any]]) -> dict[str, Standing]:
    """Each contestant's better run: the first at the level, or else that with the smaller loss in the end."""
    level = level_of(runs)
    ranked = sorted((standing(run, level) for run in runs), key=lambda one: (-one.total, -one.last))
    return {one.run["contestant"]: one for one in ranked}


def ratio(standings: dict[str, Standing], part: str) -> float:
    """Seconds of the fastest peer by those of the fastest call of the package; 0 where that is not there in the end."""
    peers = [getattr(one, part) for name, one in standings.items() if name in PEERS]
    if not any(math.isfinite(seconds) for seconds in peers):
        return math.nan
    return min(peers) / min(getattr(one, part) for name, one in standings.items() if name not in PEERS)


def cell(one: Standing | None) -> str:
    """Seconds with and without compilation, or the loss of who did not get there."""
    if one is None:
        return ""
    if math.isinf(one.last):
        return "no result"
    if math.isinf(one.total):
        return f"never ({one.last:.4f})"
    return f"{one.total:.3g}, {one.compiled:.3g}" if one.total != one.compiled else f"{one.total:.3g}"


def write_tables(kept: dict[str, dict[str, Any]]) -> None:
    """The table of the race, a row a set, and that of all runs."""
    rows, runs, versions = [], [], set()
    for name in (name for name in CASES if name in kept):
        data, level = kept[name]["data"], level_of(kept[name]["runs"])
        standing_by_name = standings(kept[name]["runs"])
        row: dict[str, Any] = {"data": data, "level": f"{level:.4f}"}
        row |= {who: cell(standing_by_name.get(who)) for who in (*PEERS, *OURS)}
        rows.append(
            row
            | {
                "ratio": ratio(standing_by_name, "total"),
                "compiled": ratio(standing_by_name, "compiled"),
                "process": ratio(standing_by_name, "process"),
                "load": kept[name]["load"],
            }
        )
        for run in kept[name]["runs"]:
            one, end = standing(run, level), run["curve"][-1] if run["curve"] else [math.inf, math.inf, math.inf]
            versions |= set(run.get("versions", ()))
            runs.append(
                {
                    "data": data.partition(",")[0],
                    "contestant": run["contestant"] + (f", rate {run['rate']}" if run["rate"] else ""),
                    "steps": run.get("steps", ""),
                    "loss": f"{end[2]:.4f}",
                    "clock, s": end[0],
                    "processor, s": end[1],
                    "to the level, clock, s": one.clock,
                    "to the level, processor, s": one.total,
                    "to the level, compiled, s": one.compiled,
                    "whole process, s": one.process,
                }
            )
    kinds = ("process", "ratio", "compiled")
    medians = np.nanmedian([[row[part] for part in kinds] for row in rows], axis=0)
    figures = "; ".join(
        f"{part} {median:.2g}, {sum(row[part] < 1.0 for row in rows)}"
        for part, median in zip(kinds, medians, strict=True)
    )
    notes = (
        "Seconds of the processor until the loss on held-out rows, in nats a row, is at most the level: the smallest "
        f"last loss of a peer + {NEAR}; first with compilation, then without. The clock, in race_runs.md, has the "
        "other work of the machine in it, of which the load average tells (two cores; two contestants are part of "
        "it). Who did not get there is 'never', with the loss in the end; who failed, or was stopped, has 'no "
        "result'. A peer's seconds are those of the first look at the test rows that shows the level, looks not "
        "counted, at whichever of two rates of Adam gets there first; what it compiles is what its first step took "
        "beyond a usual one. Those of `fit` are of the whole call, its stopping included. Those of `svi` are of whole "
        f"calls too, each from the start, for {', '.join(map(str, FEW))} steps, or as many as fill passes, then of one "
        f"that is called again from its checkpoint, a window of {WINDOW} steps more each time. What `fit` compiles is "
        "what the same call on another split takes less in the same process, and `svi` what the same call takes less "
        "when it is made once more. Ratios: the fastest peer by the package's fastest, 0 where that is not there in "
        "the end; `process` is of whole processes from the start of Python; nan where a set was last measured without "
        "these, with older code. Medians, and on how many sets the ratio is below 1: "
        f"{figures}. In all of "
        "them one RBF kernel with one lengthscale, variance 1 and lengthscale sqrt(d) to start from, mean 0, a "
        "logistic link; of classes a LogisticSoftmax here, robust maximum in GPflow and softmax in GPyTorch. The same "
        "split, standardised, the same batches, the same M centres of k-means to start from, which the peers move "
        f"and `svi` does, `fit` does not; `svi` with either bound; on up to {DENSE} rows scikit-learn, and `fit` dense "
        "too, with the objective that it chooses; of two classes GPBoost by Laplace's method, dense on as many rows "
        "and with M inducing inputs of its own beyond, from its own start values. Cells without an entry: not "
        "measured with that contestant. "
        f"Natural gradients of length {NATURAL} and Adam with rates of {' and '.join(map(str, RATES))} in both peers, "
        "but of classes Adam alone in GPflow, whose natural gradients end in NaN there; its step compiled; double "
        "precision, in GPyTorch its own single one. Sets and rows are such that a "
        f"contestant takes a minute or two; at {LIMIT} s it is stopped. Each contestant is a process bound to one "
        f"core, two of them at a time. Peers: {', '.join(sorted(versions))}."
    )
    write_table("Race to the best peer's loss", rows, notes, 0)
    write_table(
        "Race to the best peer's loss: every run", runs, "What race.md is made of, and says more of.", 0, "runs"
    )


def picture(kept: dict[str, dict[str, Any]]) -> plt.Figure:
    """Losses against the seconds of whole processes, an axis a set; points of the package are calls of their own."""
    names = [name for name in CASES if any("before" in run for run in kept.get(name, {}).get("runs", ()))]
    columns = min(4, len(names))
    figure, grid = plt.subplots(
        -(-len(names) // columns), columns, figsize=(3.4 * columns, 2.6 * -(-len(names) // columns)),
        layout="constrained", squeeze=False,
    )  # fmt: skip
    colours = dict(zip((*PEERS, *OURS), plt.rcParams["axes.prop_cycle"].by_key()["color"], strict=False))
    for axes, name in zip(grid.flat, names, strict=False):
        level = level_of(kept[name]["runs"])
        axes.axhline(level, color="0.6", lw=1, zorder=0)
        for run in kept[name]["runs"]:
            who = run["contestant"]
            # A single call is a point.
            marker = "o" if who in OURS else "D" if len(run["curve"]) == 1 else None
            if run["curve"] and "before" in run and who in colours:
                curve = np.array(run["curve"], dtype=float)
                seconds, loss = run["before"][1] + curve[:, 1], np.minimum.accumulate(curve[:, 2])
                axes.plot(seconds, loss, marker=marker, ms=3, lw=1, color=colours[who])
        axes.set(title=name, xscale="log", xlim=(1.0, 30.0), ylim=(level - 0.02, level + 0.15))
        axes.set_xticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
        axes.set_xticks([], minor=True)
        axes.title.set_fontsize(9)
    for axes in list(grid.flat)[len(names) :]:
        axes.axis("off")
    lines = [plt.Line2D([], [], color=colour, label=who) for who, colour in colours.items()]
    figure.legend(handles=lines, loc="outside upper center", ncols=4, fontsize=8)
    figure.supxlabel("processor seconds from the start of Python", fontsize=9)
    figure.supylabel("least loss on held-out rows so far, nats", fontsize=9)
    return figure


def picture_by_size(kept: dict[str, dict[str, Any]]) -> plt.Figure:
    """Seconds of whole processes to the level against rows."""
    figure, axes = plt.subplots(figsize=(5.5, 3.8), layout="constrained")
    names = [name for name in SIZES if name in kept]
    rows = [int(name.partition(":")[2]) for name in names]
    standings_by_size = [standings(kept[name]["runs"]) for name in names]
    for who, colour in zip((*PEERS, *OURS), plt.rcParams["axes.prop_cycle"].by_key()["color"], strict=False):
        seconds = [one[who].process if who in one else math.nan for one in standings_by_size]
        finite = np.where(np.isfinite(seconds), seconds, np.nan)
        axes.plot(rows, finite, "-o" if who in OURS else "-s", ms=4, lw=1.2, color=colour, label=who)
    axes.set(xscale="log", yscale="log", xlabel="rows", ylabel="processor seconds to the level")
    axes.set_xticks(rows, [f"{count:,}" for count in rows])
    axes.set_xticks([], minor=True)
    axes.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    axes.set_yticks([], minor=True)
    axes.legend(fontsize=7, ncols=2)
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--peers", required=True, metavar="PYTHON", help="the interpreter of the peers' environment")
    options = parser.parse_args()
    if unknown := set(options.names) - set(CASES):
        parser.error(f"unknown names: {', '.join(sorted(unknown))}; choose from {', '.join(CASES)}")
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for name in options.names or CASES:
        kept[name] = race(name, options.peers)
        KEPT.write_text(json.dumps(kept) + "\n")
    write_tables(kept)
    picture(kept).savefig(KEPT.with_suffix(".png"), dpi=80)
    picture_by_size(kept).savefig(KEPT.with_name("race_by_size.png"), dpi=110)
