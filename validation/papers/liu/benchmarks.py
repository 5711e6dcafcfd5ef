"""Data sets of tables III and IV."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, ClassVar, NamedTuple

import numpy as np

import pgmodels as pgm
from pgmodels import systems
from pgmodels.datasets import Dataset, load
from validation.papers.claim import IN_PART, NOT_HERE, REFUTED, REPRODUCED, Claim, Row, Side, Verdict, reproduced_if
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
    title: ClassVar[str] = "GPCsm provides remarkable performance in terms of NLL (section IV-A, tables II to IV)"
    statement: ClassVar[str] = (
        "The paper has the best average NLL of several classes for GPCsm. Its NLL is 0.2832 on waveform, 0.2999 on "
        "waveform-noise, 0.0896 on page-blocks, 0.0245 on thyroid and 0.9953 on wine-quality-white. GPC-I has 0.41, "
        "0.44, 0.13, 0.030 and 1.28; accuracies are alike."
    )
    ran: ClassVar[str] = (
        "One fold was run, with 100 inducing points for 300 and 600 steps for 10,000. GPC-I to III were run on three "
        "sets. ORTH, GPCep and GPCaug were not run."
    )
    meaning: ClassVar[str] = (
        "For a user, GPCsm is the system of the paper to choose where probabilities matter. The others are as accurate."
    )
    criterion: ClassVar[str] = (
        "the NLL of GPCsm is at least 0.05 below GPC-I to III on waveform, waveform-noise and wine-quality-white. "
        "Two conditions have verdicts of their own. The NLL is within 0.03 of print (wine 0.08). The accuracy is "
        "within 1.5 points of print."
    )
    settings: ClassVar[str] = (
        "start values are the published ones, inducing inputs move, and q has natural gradients. A fifth of the "
        "rows is to test. There are 100 inducing inputs, batches of 256 and 600 steps, with GPC-I to III on three "
        "sets. Full: ten folds of a tenth, 300 inducing inputs, batches of 1,024, 10,000 steps and all sets."
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
        better = ", ".join(f"{gain:.3f} on {data}" for data, gain in gains.items())
        near = [data for data in TABLES if abs(off[data]) <= NEAR[data]]
        alike = [data for data in TABLES if abs(points[data]) <= 1.5]
        word, scope = reproduced_if(
            all(gains[data] >= 0.05 for data in BETTER), "inducing points, steps, folds and sets"
        )
        ways = "100 inducing points, 600 steps and one fold differ from print."
        return Verdict(
            word,
            f"The NLL of GPCsm is below the best of GPC-I to III by {better}. That is enough on "
            f"{sum(gain >= 0.05 for gain in gains.values())} of {len(gains)} sets.",
            scope,
            tuple(
                Side(
                    condition,
                    REPRODUCED if len(sets) == len(TABLES) else IN_PART if sets else NOT_HERE,
                    f"It is so on {', '.join(sets)}. The difference from print is {figures}. {ways}",
                )
                for condition, sets, figures in (
                    ("The printed NLL of GPCsm", near, ", ".join(f"{off[data]:+.3f} on {data}" for data in TABLES)),
                    (
                        "The printed accuracy of GPCsm, in points",
                        alike,
                        ", ".join(f"{points[data]:+.1f} on {data}" for data in TABLES),
                    ),
                )
            ),
        )


class RowNumber(Claim):
    """L5: magic."""

    identifier: ClassVar[str] = "L5"
    title: ClassVar[str] = "Accuracy of 99.9 % on magic (tables III and IV)"
    statement: ClassVar[str] = (
        "The paper prints accuracies of 99.64 (GPCaug) to 99.92 % (GPC-II) on magic, and NLL of 0.0153 and 0.0030. Its "
        "d is 11, where magic has 10 features. ORTH, copied from another paper, has 89.35 % and 0.2658."
    )
    ran: ClassVar[str] = (
        "Both systems were run on the 10 features, and once more with the number of the row as an 11th column. "
        "The paper names its loader, github.com/hughsalimbeni/bayesian_benchmarks. This loader drops only the "
        "last column of `*_R.dat` (`Classification.read_data` in data.py). So R's row number is an input. The "
        "loader lists magic with 11 columns."
    )
    meaning: ClassVar[str] = (
        "For a user, 99.9 % on magic is no target: the rows are sorted by class, and their number reveals it. "
        "Compare with 86 to 89 %. Other sets of the tables have the extra column too."
    )
    criterion: ClassVar[str] = (
        "the accuracy of the 10 columns is at least 0.995. Refuted if only the number of the row in the file, as "
        "an 11th column, leads to it, with an NLL of at most 0.02. That is the published protocol. Without it, "
        "other papers let expect 0.86 to 0.89 and an NLL of 0.30 to 0.34."
    )
    settings: ClassVar[str] = (
        "a tenth of the 19,020 rows is to test. The RBF kernel has the published start values, and 100 inducing "
        "inputs move (full: 300). Batches have 1,024 rows, and 600 steps are made (full: 10,000). The file is "
        "sorted by class. GPCaug is the logistic link with Pólya-Gamma augmentation."
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
        holds = all(row["accuracy, %"] >= 99.5 for row in without)
        return Verdict(
            REPRODUCED if holds else REFUTED if explained else NOT_HERE,
            f"Accuracy and NLL of the 10 features are {figures[0]}. With the number of the row they are {figures[1]}.",
            ""
            if holds
            else "by the published protocol, whose loader has R's row number as an input"
            if explained
            else "inducing points and steps",
            (
                Side(
                    "The 10 features have an accuracy of 86 to 89 % and an NLL of 0.30 to 0.34, as in other papers",
                    REPRODUCED if expected else IN_PART,
                    "Both accuracies are." if not expected else "Both systems are.",
                ),
            ),
        )


class LogisticSoftmaxFailure(Claim):
    """L6: GPCaug on waveform-noise."""

    identifier: ClassVar[str] = "L6"
    title: ClassVar[str] = "GPCaug fails on the waveform-noise dataset (section IV-A, table IV)"
    statement: ClassVar[str] = (
        "The paper has GPCaug at an accuracy of 33.40 % and an NLL of 1.0980, as by chance. It suspects the "
        "optimiser of the GPCaug package."
    )
    ran: ClassVar[str] = (
        "The published bound of GPCaug was run from the start values of the paper and from GPCaug's own, on two folds. "
        "The package behind the printed figure was not run."
    )
    meaning: ClassVar[str] = (
        "For a user, the printed failure is one of a run. The method classifies waveform-noise as well as the others."
    )
    criterion: ClassVar[str] = (
        "the accuracy is below 84 % with the published bound. The claim is about a run of another package, so "
        "that the method cannot refute it."
    )
    settings: ClassVar[str] = (
        "2 folds of 10 (full: 10). The RBF kernel has the published start values (variance 5, lengthscale 0.1 √d) "
        "and is the same for all classes. The 100 inducing inputs are held, with batches of 256 and 600 steps "
        "(full: 300, 1,024, 10,000). Runs end early where they have converged. The table also has the tighter "
        "bound of this package. GPCaug's own default start is the median distance with a lengthscale for each "
        "column."
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
        fails = bool(max(means["factorised", "published"], means["factorised", "median"]) < 84.0)
        word, scope = reproduced_if(
            fails, "the program: the claim is about a run of the GPCaug package, not the method"
        )
        return Verdict(
            word,
            f"The accuracy of the published bound is {means['factorised', 'published']:.1f} % from the paper's start "
            f"and {means['factorised', 'median']:.1f} % from the median distance. The tighter bound has "
            f"{means['augmented', 'published']:.1f} % and {means['augmented', 'median']:.1f} %.",
            scope,
        )
