"""Inducing inputs, rivals and numbers of classes on larger data."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import pgmodels as pgm
from pgmodels import systems
from pgmodels.datasets import Dataset, Split
from pgmodels.plots.style import legend_below, line_handle, new_figure, open_axes, styles
from pgmodels.systems import ard
from validation.papers.claim import Claim, Row, Verdict
from validation.papers.measures import fold
from validation.papers.training import learned, looks

SHARED, APART = "shared", "individual"


class NumInducing(Claim):
    """G4: figure 6."""

    identifier: ClassVar[str] = "G4"
    title: ClassVar[str] = "200 inducing inputs suffice on Shuttle, with hyperparameters shared by the classes"
    statement: ClassVar[str] = (
        "the negative log-likelihood falls and the time rises with the number M of inducing inputs; M = 200 is nearly "
        "optimal; individual hyperparameters are not significantly better, and cost more (figure 6, section 5.3, which "
        "counts 9 classes by mistake for 7)."
    )
    criterion: ClassVar[str] = (
        "NLL with the largest M below that with the least, and that with M = 200 within 0.005 of the best; individual "
        "hyperparameters at M = 200 better by less than 0.005, and at least 1.5 times as long."
    )
    settings: ClassVar[str] = (
        "shuttle, at most 10,000 rows to train and a tenth of all to test (full: all rows, M = 400 too); the published "
        "bound, batches of 200, 600 steps, which are 12 epochs (full: 200 epochs). Milliseconds of a step without "
        "compilation."
    )

    def part_names(self, full: bool) -> Sequence[str]:
        """See Claim."""
        sizes = (5, 10, 25, 50, 100, 200, *((400,) if full else ()))
        return [f"M = {size}, {kind}" for size, kind in product(sizes, (SHARED, APART))]

    def measure(self, part: str, full: bool, seed: int) -> list[Row]:
        """See Claim."""
        size, kind = int(part[4:].split(",")[0]), part.split(", ")[1]
        split = fold("shuttle", 0, seed=seed, rows=None if full else 10_000)
        options: dict[str, Any] = {"num_classes": 7, "shared": kind == SHARED, "num_inducing": size, "seed": seed}
        steps = 200 * (len(split.y) // 200) if full else 600
        look = learned(systems.logistic_softmax, split, steps, 200, compiled_before=True, **options)
        error, nll, _, _ = look.scores
        row = {"M": size, "hyperparameters": kind, "error": error, "NLL": nll}
        return [row | {"ms a step": 1000.0 * look.seconds / look.steps, "steps": look.steps}]

    def judge(self, rows: Sequence[Row]) -> Verdict:
        """See Claim."""
        nll, time = ({(row["M"], row["hyperparameters"]): row[key] for row in rows} for key in ("NLL", "ms a step"))
        sizes = sorted({size for size, _ in nll})
        best = min(nll[size, SHARED] for size in sizes)
        excess, gain = nll[200, SHARED] - best, nll[200, SHARED] - nll[200, APART]
        ratio = time[200, APART] / time[200, SHARED]
        falls = nll[sizes[-1], SHARED] < nll[sizes[0], SHARED]
        return Verdict(
            falls and excess <= 0.005 and gain < 0.005 and ratio >= 1.5,
            f"NLL {nll[sizes[0], SHARED]:.4f} with M = {sizes[0]}, {nll[200, SHARED]:.4f} with 200, {excess:.4f} above "
            f"the best; individual hyperparameters gain {gain:.4f} in {ratio:.1f} times the time.",
        )

    def draw(self, rows: Sequence[Row]) -> Figure:
        """See Claim."""
        figure = new_figure(6.4, 4.6)
        losses = figure.subplots()
        times = losses.twinx()
        handles, sizes = [], []
        for kind, look in styles((SHARED, APART)).items():
            mine = [row for row in rows if row["hyperparameters"] == kind]
            sizes = [row["M"] for row in mine]
            losses.plot(sizes, [row["NLL"] for row in mine], color=look.colour, marker=look.marker)
            times.plot(sizes, [row["ms a step"] for row in mine], color=look.colour, linestyle=":", marker=look.marker)
            handles.append(line_handle(look._replace(line="-"), marker=True))
        losses.set(xlabel="inducing inputs M", ylabel="NLL of a test row (nats), solid", xscale="log")
        losses.set_xticks(sizes, [str(size) for size in sizes])
        losses.minorticks_off()
        times.set(ylabel="milliseconds a step, dotted")
        losses.spines["top"].set_visible(False)
        times.spines["top"].set_visible(False)
        legend_below(figure, handles, [f"hyperparameters {kind}" for kind in (SHARED, APART)])
        return figure


PUBLISHED, TIGHTER, RM = "LSM, published bound", "LSM, tighter bound", "RM"
RIVALS: dict[str, tuple[Callable[[int], pgm.Likelihood], Any]] = {
    PUBLISHED: (pgm.LogisticSoftmax, "factorised"),
    TIGHTER: (pgm.LogisticSoftmax, "augmented"),
    RM: (lambda classes: pgm.RobustMax(classes, pgm.Fixed(1e-3)), "expected"),
}
# Sets, and their separability: the paper has robust-max ahead on MNIST only, of which the last two stand in.
OVERLAPPING, SEPARABLE = ("shuttle", "covtype-10k"), ("pendigits", "digits")
STEPS = (20, 60, 100, 200, 400, 600)


class RobustMaxRace(Claim):
    """G5: figure 7."""

    identifier: ClassVar[str] = "G5"
    title: ClassVar[str] = "Logistic-softmax beats robust-max in NLL but on separable sets, ten times faster"
    statement: ClassVar[str] = (
        "on Combined, CovType, Fashion-MNIST and Shuttle logistic-softmax (LSM) has a better negative log-likelihood "
        "than robust-max (RM), which is slightly better on MNIST only; LSM is about ten times faster (figure 7, "
        "section 5.4)."
    )
    criterion: ClassVar[str] = (
        "the last NLL of LSM is below that of RM on shuttle and covtype-10k, with the published bound and with the "
        "tighter one, and that of RM below on pendigits and digits. Speed is stated and does not decide."
    )
    settings: ClassVar[str] = (
        "at most 4,000 rows to train (digits: nine tenths of 1,797), a tenth to test; 100 inducing inputs held (full: "
        "all rows, 200), batches of 200, RBF with a lengthscale for each column, 600 steps (full: 10,000). RM by "
        "the expected log density in closed form with natural gradients and the error rate 0.001 held, as in GPflow. "
        "pendigits and digits (8 x 8 pixels) stand in for MNIST; Combined and Fashion-MNIST are not at hand, "
        "expectation propagation is left out. Seconds are of steps alone, without compilation; time to the level: to "
        "an NLL within 0.02 of the method's own last one."
    )

    def part_names(self, full: bool) -> Sequence[str]:
        """See Claim."""
        return [f"{data}: {method}" for data, method in product((*OVERLAPPING, *SEPARABLE), RIVALS)]

    def measure(self, part: str, full: bool, seed: int) -> list[Row]:
        """See Claim."""
        data, method = part.split(": ")
        split = _rows_of(data, None if full else 4000, seed)
        likelihood, objective = RIVALS[method]
        classes = int(max(split.y.max(), split.y_test.max())) + 1
        form = pgm.Inducing(200 if full else 100, "kmeans")
        model = pgm.Model(likelihood(classes), pgm.GP(ard(split.X), size=classes, form=form))
        options: dict[str, Any] = {"objective": objective, "train_hyperparameters": True, "seed": seed}
        # Rows as a source, of which svi makes no pass over all at the end.
        call: Any = lambda X, y, **more: pgm.svi(model, pgm.ArrayRows(X, y), **options, **more)  # noqa: E731
        steps = (*STEPS, 2000, 4000, 10_000) if full else STEPS
        return [
            {
                "data": data,
                "method": method,
                "steps": look.steps,
                "seconds": look.seconds,
                "error": look.scores.error,
                "NLL": look.scores.nll,
            }
            for look in looks(call, split, steps, 200, compiled_before=True)
        ]

    def judge(self, rows: Sequence[Row]) -> Verdict:
        """See Claim."""
        curves = {(data, method): _of(rows, data, method) for data, method in {(r["data"], r["method"]) for r in rows}}
        last = {key: curve[-1]["NLL"] for key, curve in curves.items()}
        times = {key: _time_to_level(curve) for key, curve in curves.items()}
        sets = (*OVERLAPPING, *SEPARABLE)
        wins = {data: [last[data, method] < last[data, RM] for method in (PUBLISHED, TIGHTER)] for data in sets}
        reproduced = all(all(wins[data]) for data in OVERLAPPING) and not any(any(wins[data]) for data in SEPARABLE)
        per_step = [
            curves[d, RM][-1]["seconds"] / curves[d, PUBLISHED][-1]["seconds"] for d in (*OVERLAPPING, *SEPARABLE)
        ]
        ratio = np.median([times[data, RM] / times[data, PUBLISHED] for data in sets])
        figures = "; ".join(
            f"{data} {last[data, PUBLISHED]:.3f}, {last[data, TIGHTER]:.3f}, {last[data, RM]:.3f}" for data in sets
        )
        return Verdict(
            reproduced,
            f"last NLL of LSM by the published and by the tighter bound, and of RM: {figures}. RM takes "
            f"{np.median(per_step):.1f} times as long for the same steps and {ratio:.1f} times as long to its level "
            "(medians).",
        )

    def draw(self, rows: Sequence[Row]) -> Figure:
        """See Claim."""
        sets, drawn = (*OVERLAPPING, *SEPARABLE), styles(RIVALS)
        figure = new_figure(3.1 * len(sets), 6.0)
        panels = figure.subplots(2, len(sets), sharex="col")
        for column, data in zip(panels.T, sets, strict=True):
            for name, look in drawn.items():
                curve = _of(rows, data, name)
                for axes, key in zip(column, ("error", "NLL"), strict=True):
                    seconds = [row["seconds"] for row in curve]
                    axes.plot(
                        seconds, [r[key] for r in curve], color=look.colour, linestyle=look.line, marker=look.marker
                    )
            open_axes(column[0], title=data, xscale="log")
            open_axes(column[1], xlabel="seconds of steps")
        panels[0, 0].set_ylabel("error rate")
        panels[1, 0].set_ylabel("NLL of a test row (nats)")
        legend_below(figure, [line_handle(look, marker=True) for look in drawn.values()], list(drawn))
        return figure


class ManyClasses(Claim):
    """G7: steps on some of the classes."""

    identifier: ClassVar[str] = "G7"
    title: ClassVar[str] = "The cost of a step on subsampled classes does not grow with their number"
    statement: ClassVar[str] = (
        "subsampling of classes reduces the complexity of a step to O(M^3), independent of their number (section 4.2, "
        '"Extreme classification"); no figure is printed.'
    )
    criterion: ClassVar[str] = "processor time of a step with 1,000 classes at most 1.3 times that with 50."
    settings: ClassVar[str] = (
        "validation/many_classes.py: 5,000 rows, 50 inducing inputs, batches of 1,000, 10 classes a step, the kernel "
        "held; the fastest window of 200 or more steps after the first."
    )

    def part_names(self, full: bool) -> Sequence[str]:
        """See Claim."""
        return [f"{classes} classes" for classes in (50, 300, 1000)]

    def measure(self, part: str, full: bool, seed: int) -> list[Row]:
        """See Claim."""
        classes = int(part.split()[0])
        script = Path(__file__).parents[2] / "many_classes.py"
        command = [sys.executable, str(script), "steps", json.dumps([classes, 10])]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
        return [{"classes": classes, **json.loads(printed)}]

    def judge(self, rows: Sequence[Row]) -> Verdict:
        """See Claim."""
        first, last = rows[0], rows[-1]
        ratio = last["CPU ms a step"] / first["CPU ms a step"]
        return Verdict(
            ratio <= 1.3,
            f"{first['CPU ms a step']:.1f} ms with {first['classes']} classes and {last['CPU ms a step']:.1f} ms with "
            f"{last['classes']:,}, {ratio:.2f} times as much.",
        )


def _rows_of(data: str, rows: int | None, seed: int) -> Split:
    """A tenth of the rows to test, others to train."""
    if data == "digits":
        X, y = load_digits(return_X_y=True)
        return fold(Dataset("digits", X, y.astype(float)), 0, seed=seed, rows=rows)
    return fold(data, 0, seed=seed, rows=rows)


def _of(rows: Sequence[Row], data: str, method: str) -> list[Row]:
    return [row for row in rows if (row["data"], row["method"]) == (data, method)]


def _time_to_level(curve: Sequence[Row]) -> float:
    return next(row["seconds"] for row in curve if row["NLL"] <= curve[-1]["NLL"] + 0.02)
