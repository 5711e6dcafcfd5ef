"""Claims of tables D.1 and D.2: all methods, SVGP's failures, and the merged model."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from validation.papers.claim import IN_PART, NOT_HERE, REPRODUCED, Claim, Row, Side, Verdict
from validation.papers.measures import fold, scores
from validation.papers.passerello.methods import learned
from validation.papers.passerello.published import INPUTS, PUBLISHED, SMALL, Spread

# Methods that take less than a second on a small set: on all ten splits by default. The others on three.
_QUICK = ("PGPR Uniform", "PGPR K-means", "PGPR GV", "PGPR HGV", "PGPR dense")
_SPLITS, _FEW = 10, 3
_METHODS = tuple(PUBLISHED["crabs"])
# Rows to learn from and inducing inputs, of sets with more.
_ROWS, _INPUTS = 1500, 100
# Digits of the tables.
_DIGITS = {"ELBO": 2, "accuracy": 4, "log loss": 4}


class Tables(Claim):
    """P4: all figures of tables D.1 and D.2."""

    identifier: ClassVar[str] = "P4"
    title: ClassVar[str] = "ELBO, accuracy and test log-likelihood of seven methods on ten sets (tables D.1 and D.2)"
    statement: ClassVar[str] = (
        "The paper prints medians, least and largest values over ten splits. The table has them with the medians "
        "of this package. Two misprints are corrected: the sign of twonorm's K-means ELBO, and a digit of "
        "electricity's PGPR GO."
    )
    ran: ClassVar[str] = (
        "The six small sets were run. PGPR has ten folds. SVGP and learned points (GO) have three of them, so "
        "that their medians depend on the folds."
    )
    meaning: ClassVar[str] = (
        "For a user, PGPR with held points has the published values on five of the six sets. The published values "
        "of crabs are above the dense bound here, which is unexplained. SVGP ends higher than in print, since its "
        "q is brought to its optimum."
    )
    criterion: ClassVar[str] = (
        "for every method and each of the three figures, our median is between the published least and largest "
        "values. This must hold on at least eight of ten sets. In part if most medians are in that range."
    )
    settings: ClassVar[str] = (
        "the RBF kernel has one lengthscale. Folds are of one random order, with a tenth of the rows to test. The "
        "numbers M of inducing inputs are the published ones. By default the six small sets have ten folds. SVGP "
        "and learned inputs (GO, at most 200 iterations) have three. Full: ten folds of all sets. GV and HGV "
        "replace their inputs up to ten times, whether the ELBO rises or not, as published. PGPR dense has no "
        "inducing inputs: its ELBO bounds the ELBO of all PGPR with its hyperparameters. On crabs it is below the "
        "published values. Another kernel or other columns could explain this. On ringnorm and magic, earlier "
        "runs of all rows were above print by more than the spread (k-means -824.5 and -5788). So the published "
        "search stopped early."
    )
    digits: ClassVar[int] = 6

    def part_names(self, full: bool) -> Sequence[str]:
        """See Claim."""
        dense = [f"{name}, PGPR dense" for name in SMALL]
        return [*(f"{name}, {method}" for name in (INPUTS if full else SMALL) for method in _METHODS), *dense]

    def measure(self, part: str, full: bool, seed: int) -> list[Row]:
        """See Claim."""
        name, method = part.split(", ")
        count = _SPLITS if full or method in _QUICK else _FEW
        figures = np.array([_figures(name, number, method, seed) for number in range(count)])
        row: Row = {"data": name, "M": INPUTS[name], "method": method, "splits": count}
        published = PUBLISHED[name].get(method)
        outside = []
        for figure, values, spread in zip(_DIGITS, figures.T, published or (None,) * 3, strict=True):
            row[figure] = float(np.median(values))
            if figure == "ELBO":
                row |= {"least ELBO": float(values.min()), "largest ELBO": float(values.max())}
            if spread is not None:
                row[f"published: {figure}"] = spread.median
                if figure == "ELBO":
                    row |= {"published: least ELBO": spread.least, "published: largest ELBO": spread.largest}
                if not _within(row[figure], spread, _DIGITS[figure]):
                    outside.append(figure)
        return [row if published is None else row | {"outside": ", ".join(outside)}]

    def judge(self, rows: Sequence[Row]) -> Verdict:
        """See Claim."""
        rows = [row for row in rows if "outside" in row]
        sets = {row["data"] for row in rows}
        within = {
            (method, figure): sum(figure not in row["outside"] for row in rows if row["method"] == method)
            for method in _METHODS
            for figure in _DIGITS
        }
        few = [f"{figure} of {method} {count}" for (method, figure), count in within.items() if count < 0.8 * len(sets)]
        outside: dict[str, list[str]] = {}
        for row in rows:
            if "ELBO" in row["outside"]:
                difference = row["ELBO"] - row["published: ELBO"]
                outside.setdefault(row["data"], []).append(f"{row['method']} {difference:+.1f}")
        inside, count = sum(within.values()), len(rows) * len(_DIGITS)
        differs = " ".join(f"On {name}: {', '.join(methods)}." for name, methods in outside.items())
        word = REPRODUCED if not few else IN_PART if inside > count / 2 else NOT_HERE
        return Verdict(
            word,
            f"{inside} of {count} medians are in the published range. Medians of the ELBO outside of it differ from "
            f"print by these nats. {differs}",
            f"{inside} of {count} medians, of {len(sets)} sets; SVGP and GO from three of ten folds" if few else "",
            (
                Side(
                    "Every method agrees on eight of ten sets in every figure",
                    REPRODUCED if not few else NOT_HERE,
                    f"Too few of the {len(sets)} sets agree: {', '.join(few)}. Folds differ from print."
                    if few
                    else "All do.",
                ),
            ),
        )


class Unreliable(Claim):
    """P5: failures of SVGP, against the optimum of its bound."""

    identifier: ClassVar[str] = "P5"
    title: ClassVar[str] = "SVGP is extremely unreliable and frequently performs the worst (section 5.7.1, table D.1)"
    statement: ClassVar[str] = (
        "The paper has SVGP's median ELBO at -4454.9 on twonorm and -2597.3 on ringnorm, where PGPR has -452 and -953. "
        "Its standard deviation on breast cancer is 88. The paper blames the gradient-based optimisation of q(u)."
    )
    ran: ClassVar[str] = (
        "Here q is at its optimum at all hyperparameters, which is another optimiser. The published one, L-BFGS over q "
        "and hyperparameters jointly, was not run. An earlier verdict, refuted, is withdrawn for that reason."
    )
    meaning: ClassVar[str] = (
        'For a user, the failures are no property of the model. With `fit(objective="expected")` SVGP\'s bound is '
        "above PGPR's on all sets."
    )
    criterion: ClassVar[str] = "the ELBO of SVGP is below PGPR's, of k-means or HGV, on any set and split."
    settings: ClassVar[str] = (
        "q is at its optimum at all hyperparameters. Three folds of the six small sets were run, with M as "
        f"published. The four others have one fold, {_ROWS:,} rows and M = {_INPUTS}. Full: ten folds of all rows, "
        "with M as published. The difference is of SVGP to the better PGPR of the same fold."
    )
    digits: ClassVar[int] = 6

    def part_names(self, full: bool) -> Sequence[str]:
        """See Claim."""
        return list(INPUTS)

    def measure(self, part: str, full: bool, seed: int) -> list[Row]:
        """See Claim."""
        all_rows = full or part in SMALL
        count = _SPLITS if full else _FEW if part in SMALL else 1
        methods = ("SVGP K-means", "PGPR K-means", "PGPR HGV")
        num_inducing = INPUTS[part] if all_rows else _INPUTS
        elbos = np.array(
            [_elbos(part, number, methods, num_inducing, None if all_rows else _ROWS, seed) for number in range(count)]
        )
        published = PUBLISHED[part]
        difference = elbos[:, 0] - elbos[:, 1:].max(axis=1)
        return [
            {
                "data": part,
                "M": num_inducing,
                "splits": count,
                **dict(zip(methods, np.median(elbos, axis=0).tolist(), strict=True)),
                "least SVGP ELBO": float(elbos[:, 0].min()),
                "largest SVGP ELBO": float(elbos[:, 0].max()),
                "least difference": float(difference.min()),
                **{f"published: {method}": published[method].elbo.median for method in methods},
                "published: least SVGP ELBO": published["SVGP K-means"].elbo.least,
            }
        ]

    def judge(self, rows: Sequence[Row]) -> Verdict:
        """See Claim."""
        below = [row["data"] for row in rows if row["least difference"] < 0.0]
        least = min(rows, key=lambda row: row["least difference"])
        return Verdict(
            REPRODUCED if below else NOT_HERE,
            f"SVGP's ELBO is above PGPR's on {len(rows) - len(below)} of {len(rows)} sets in every split. The least "
            f"difference is {least['least difference']:.2f} nats, on {least['data']}.",
            "" if below else "the optimiser: q is at its optimum here; rows and folds of the large sets",
        )


class Merged(Claim):
    """P8: PGPR's inputs with SVGP's bound."""

    identifier: ClassVar[str] = "P8"
    title: ClassVar[str] = (
        "The merged model: minor improvements over PGPR HGV, and at its optimum a superior ELBO (section 7.1.2)"
    )
    statement: ClassVar[str] = (
        "The paper hands inducing points selected by PGPR to SVGP, and interleaves the two. It finds minor "
        "improvements over PGPR HGV, and a superior ELBO if SVGP converges."
    )
    ran: ClassVar[str] = (
        "The interleaved scheme was not run. The scheme here starts at SVGP K-means and accepts inputs of PGPR "
        "only where they raise SVGP's ELBO. So it cannot end below SVGP K-means: the test cannot fail."
    )
    meaning: ClassVar[str] = (
        "For a user, the scheme here is a safe way to better inducing points for SVGP, which gains little. It is "
        "no evidence about the published scheme."
    )
    criterion: ClassVar[str] = (
        "the ELBO of the interleaved scheme is at least the larger ELBO of SVGP K-means and PGPR HGV, minus 0.1 "
        "nats. This must hold on all six small sets and folds. With the scheme here it cannot be otherwise."
    )
    settings: ClassVar[str] = (
        "three folds of each set, ten with --full; M as published. The merged model keeps inputs only if they raise "
        "the ELBO of SVGP, where the published one replaces them."
    )
    digits: ClassVar[int] = 6

    def part_names(self, full: bool) -> Sequence[str]:
        """See Claim."""
        return SMALL

    def measure(self, part: str, full: bool, seed: int) -> list[Row]:
        """See Claim."""
        methods = ("SVGP K-means", "PGPR HGV", "merged")
        rows: list[Row] = []
        for number in range(_SPLITS if full else _FEW):
            elbos = _elbos(part, number, methods, INPUTS[part], None, seed)
            rows.append({"data": part, "M": INPUTS[part], "split": number, **dict(zip(methods, elbos, strict=True))})
            rows[-1]["difference to the better"] = elbos[2] - max(elbos[:2])
        return rows

    def judge(self, rows: Sequence[Row]) -> Verdict:
        """See Claim."""
        differences = [row["difference to the better"] for row in rows]
        least = rows[int(np.argmin(differences))]
        over = [row["merged"] - row["PGPR HGV"] for row in rows]
        return Verdict(
            NOT_HERE,
            f"The scheme here is {min(over):.1f} to {max(over):.1f} nats above PGPR HGV, and {min(differences):.2f} to "
            f"{max(differences):.2f} above SVGP K-means, least on {least['data']}.",
            "the scheme: it keeps what rises and cannot fail, where the published one replaces its inputs",
        )


def _figures(name: str, number: int, method: str, seed: int) -> tuple[float, float, float]:
    """ELBO, accuracy and test log loss of a method on a fold."""
    data = fold(name, number, seed=seed)
    result = learned(method, data.X, data.y, INPUTS[name], seed)
    scored = scores(result.predict(data.X_test), data.y_test)
    return result.elbo, 1.0 - scored.error, scored.nll


def _elbos(
    name: str, number: int, methods: Sequence[str], num_inducing: int, rows: int | None, seed: int
) -> list[float]:
    """ELBOs of methods on a fold."""
    data = fold(name, number, seed=seed, rows=rows)
    return [float(learned(method, data.X, data.y, num_inducing, seed).elbo) for method in methods]


def _within(value: float, spread: Spread, digits: int) -> bool:
    return spread.least <= round(value, digits) <= spread.largest
