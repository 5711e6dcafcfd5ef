"""Data sets of tables III and IV."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, ClassVar, NamedTuple

import numpy as np

import pgmodels as pgm
from pgmodels import systems
from pgmodels.datasets import Dataset, load
from validation.papers.claim import Claim, Row, Verdict
from validation.papers.liu.noise import SYSTEMS
from validation.papers.measures import fold
from validation.papers.training import learned

SOFTMAX = "GPCsm"
ALL = {**SYSTEMS, SOFTMAX: systems.gpc_sm}


class Published(NamedTuple):
    """Accuracy in percent and negative log-likelihood."""

    accuracy: float
    nll: float


# Of GPC-I, II, III and GPCsm, tables III and IV.
TABLES = {
    "waveform": ((86.86, 0.4097), (87.02, 0.3987), (87.34, 0.3948), (87.84, 0.2832)),
    "waveform-noise": ((85.16, 0.4437), (85.30, 0.4295), (85.54, 0.4223), (86.24, 0.2999)),
    "wine-quality-white": ((61.22, 1.2806), (60.65, 1.2684), (60.51, 1.2748), (57.24, 0.9953)),
    "thyroid": ((99.29, 0.0296), (99.39, 0.0285), (99.39, 0.0293), (99.21, 0.0245)),
    "page-blocks": ((97.06, 0.1314), (97.26, 0.1165), (97.03, 0.1226), (97.10, 0.0896)),
}
# Where GPCsm is to be better than the others, and how near to print it is to be.
BETTER = ("waveform", "waveform-noise", "wine-quality-white")
NEAR = {"waveform": 0.03, "waveform-noise": 0.03, "wine-quality-white": 0.08, "thyroid": 0.03, "page-blocks": 0.03}


def published(data: str, system: str) -> Published:
    """What the tables have."""
    return Published(*TABLES[data][list(ALL).index(system)])


class SoftmaxNll(Claim):
    """L4: tables III and IV."""

    identifier: ClassVar[str] = "L4"
    title: ClassVar[str] = "GPCsm has the best NLL of several classes"
    statement: ClassVar[str] = (
        "NLL of GPCsm on waveform 0.2832, waveform-noise 0.2999, page-blocks 0.0896, thyroid 0.0245, "
        "wine-quality-white 0.9953, of GPC-I 0.41, 0.44, 0.13, 0.030, 1.28; accuracies alike (tables III and IV)."
    )
    criterion: ClassVar[str] = (
        "NLL of GPCsm below those of GPC-I to III by at least 0.05 on waveform, waveform-noise and wine-quality-white; "
        "within 0.03 of print (wine 0.08), and its accuracy within 1.5 points of print."
    )
    settings: ClassVar[str] = (
        "published start values and inducing inputs that move, natural gradients for q; a fifth of the rows to test, "
        "100 inducing inputs, batches of 256, 600 steps, GPC-I to III on three sets (full: ten folds of a tenth, 300, "
        "1,024, 10,000, all sets)."
    )

    def part_names(self, full: bool) -> Sequence[str]:
        """See Claim."""
        return [f"{data}: {name}" for data, name in product(TABLES, ALL) if full or data in BETTER or name == SOFTMAX]

    def measure(self, part: str, full: bool, seed: int) -> list[Row]:
        """See Claim."""
        data, system = part.split(": ")
        count, printed = len(np.unique(load(data).y)), published(data, system)
        options: dict[str, Any] = {"num_classes": count, "num_inducing": 300 if full else 100, "seed": seed}
        steps, batch_size, folds = (10_000, 1024, 10) if full else (600, 256, 5)
        runs = [
            learned(ALL[system], fold(data, number, folds, seed), steps, batch_size, **options).scores
            for number in range(folds if full else 1)
        ]
        accuracy = 100.0 * (1.0 - np.mean([run.error for run in runs]))
        nll = np.mean([run.nll for run in runs])
        return [
            {
                "data": data,
                "system": system,
                "accuracy, %": float(accuracy),
                "published accuracy": printed.accuracy,
                "NLL": float(nll),
                "published NLL": printed.nll,
                "difference": float(nll - printed.nll),
            }
        ]

    def judge(self, rows: Sequence[Row]) -> Verdict:
        """See Claim."""
        nll = {(row["data"], row["system"]): row["NLL"] for row in rows}
        accuracy = {(row["data"], row["system"]): row["accuracy, %"] for row in rows}
        gains = {data: min(nll[data, name] for name in SYSTEMS) - nll[data, SOFTMAX] for data in BETTER}
        off = {data: nll[data, SOFTMAX] - published(data, SOFTMAX).nll for data in TABLES}
        points = {data: accuracy[data, SOFTMAX] - published(data, SOFTMAX).accuracy for data in TABLES}
        reproduced = (
            all(gains[data] >= 0.05 for data in BETTER)
            and all(abs(off[data]) <= NEAR[data] for data in TABLES)
            and all(abs(point) <= 1.5 for point in points.values())
        )
        better = ", ".join(f"{data} {gain:.3f}" for data, gain in gains.items())
        printed = ", ".join(f"{data} {off[data]:+.3f} and {points[data]:+.1f}" for data in TABLES)
        return Verdict(
            reproduced,
            f"NLL of GPCsm is below the best of the others by: {better}; its NLL and its accuracy in points are from "
            f"print by: {printed}.",
        )


class RowNumber(Claim):
    """L5: magic."""

    identifier: ClassVar[str] = "L5"
    title: ClassVar[str] = "99.9 % of magic are classified correctly"
    statement: ClassVar[str] = (
        "accuracy 99.64 (GPCaug) to 99.92 % (GPC-II) and NLL 0.0153 and 0.0030 on magic, with d = 11; ORTH, copied "
        "from another paper, 89.35 % and 0.2658 (tables III and IV)."
    )
    criterion: ClassVar[str] = (
        "accuracy of the 10 columns at least 0.995. If it is not, but is with the number of the row in the file as an "
        "11th column, at least 0.995 with an NLL of at most 0.02, the printed figures are of that column. Without it "
        "other papers let expect 0.86 to 0.89 and an NLL of 0.30 to 0.34."
    )
    settings: ClassVar[str] = (
        "a tenth of the 19,020 rows to test; RBF with the published start values, 100 inducing inputs that move (full: "
        "300), batches of 1,024, 600 steps (full: 10,000). The file is sorted by class. GPCaug is the logistic link "
        "with Pólya-Gamma augmentation."
    )

    def part_names(self, full: bool) -> Sequence[str]:
        """See Claim."""
        return [f"{columns} columns: {system}" for columns, system in product((10, 11), ("GPC-II", "GPCaug"))]

    def measure(self, part: str, full: bool, seed: int) -> list[Row]:
        """See Claim."""
        columns, system = part.split(" columns: ")
        data = load("magic")
        if columns == "11":
            data = Dataset(data.name, np.column_stack([data.X, np.arange(len(data.X))]), data.y)
        split = fold(data, 0, seed=seed)
        start = pgm.RBF(variance=5.0, lengthscale=0.1 * np.sqrt(split.X.shape[1]))
        call: Callable[..., Any] = systems.gpc_2 if system == "GPC-II" else systems.x_gpc
        options: dict[str, Any] = {"kernel": start, "num_inducing": 300 if full else 100, "seed": seed}
        (error, nll, _, _) = learned(call, split, 10_000 if full else 600, 1024, **options).scores
        printed = Published(99.92, 0.0030) if system == "GPC-II" else Published(99.64, 0.0153)
        row = {"columns": int(columns), "system": system, "accuracy, %": 100.0 * (1.0 - error), "NLL": nll}
        return [row | {"published accuracy": printed.accuracy, "published NLL": printed.nll}]

    def judge(self, rows: Sequence[Row]) -> Verdict:
        """See Claim."""
        without, beside = ([row for row in rows if row["columns"] == columns] for columns in (10, 11))
        explained = all(row["accuracy, %"] >= 99.5 and row["NLL"] <= 0.02 for row in beside)
        expected = all(0.3 <= row["NLL"] <= 0.34 and 86.0 <= row["accuracy, %"] <= 89.0 for row in without)
        figures = [
            " and ".join(f"{row['accuracy, %']:.2f} % and {row['NLL']:.4f} ({row['system']})" for row in group)
            for group in (without, beside)
        ]
        return Verdict(
            all(row["accuracy, %"] >= 99.5 for row in without),
            f"accuracy and NLL are {figures[0]}, {'all' if expected else 'not all'} in the expected range; with the "
            f"number of the row as a column {figures[1]}, which {'explains' if explained else 'does not explain'} the "
            "printed figures.",
        )


class LogisticSoftmaxFailure(Claim):
    """L6: GPCaug on waveform-noise."""

    identifier: ClassVar[str] = "L6"
    title: ClassVar[str] = "Augmented logistic-softmax fails on waveform-noise"
    statement: ClassVar[str] = (
        "accuracy of GPCaug 33.40 % and NLL 1.0980, which are those of chance (tables III and IV)."
    )
    criterion: ClassVar[str] = (
        "accuracy below 84 % with the published bound; otherwise the failure is of the run and not of the method."
    )
    settings: ClassVar[str] = (
        "2 folds of 10 (full: 10); RBF with the published start values (variance 5, lengthscale 0.1 √d), one kernel "
        "for all classes, 100 inducing inputs held, batches of 256, 600 steps (full: 300, 1,024, 10,000), which end "
        "early where they have converged. Beside it the tighter bound of this package, and GPCaug's own default start, "
        "the median distance with a lengthscale for each column."
    )

    def part_names(self, full: bool) -> Sequence[str]:
        """See Claim."""
        return [f"{bound}, {start}" for bound, start in product(("factorised", "augmented"), ("published", "median"))]

    def measure(self, part: str, full: bool, seed: int) -> list[Row]:
        """See Claim."""
        bound, start = part.split(", ")
        rows = []
        for number in range(10 if full else 2):
            split = fold("waveform-noise", number, seed=seed)
            kernel = pgm.RBF(variance=5.0, lengthscale=0.1 * np.sqrt(split.X.shape[1]))
            options: dict[str, Any] = {"bound": bound, "num_inducing": 300 if full else 100, "seed": seed}
            options |= {"kernel": kernel} if start == "published" else {}
            steps, batch_size = (10_000, 1024) if full else (600, 256)
            look = learned(systems.logistic_softmax, split, steps, batch_size, **options)
            error, nll, _, _ = look.scores
            row = {"bound": bound, "start": start, "fold": number, "accuracy, %": 100.0 * (1.0 - error), "NLL": nll}
            learnt = look.result.model.gps[0].kernel.variance
            rows.append(row | {"published accuracy": 33.4, "kernel variance": float(learnt.value)})
        return rows

    def judge(self, rows: Sequence[Row]) -> Verdict:
        """See Claim."""
        means = {
            (bound, start): np.mean([r["accuracy, %"] for r in rows if (r["bound"], r["start"]) == (bound, start)])
            for bound, start in product(("factorised", "augmented"), ("published", "median"))
        }
        return Verdict(
            bool(max(means["factorised", "published"], means["factorised", "median"]) < 84.0),
            f"accuracy of the published bound {means['factorised', 'published']:.1f} % from the published start and "
            f"{means['factorised', 'median']:.1f} % from the median distance; of the tighter bound "
            f"{means['augmented', 'published']:.1f} % and {means['augmented', 'median']:.1f} %.",
        )
