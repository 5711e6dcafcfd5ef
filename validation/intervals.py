"""Standard deviations of coefficients and parameters: fit and integrate against R's values and published posteriors.

Usage: python validation/intervals.py [sets], with R's data sets in PGMODELS_DATA/r; an hour on two cores.
       python validation/intervals.py coverage [--count 500]: coverage of 90 % intervals by simulation; hours.
       python validation/intervals.py predictions: losses of held-out rows with parameters uncertain and held.
"""

import argparse
import os
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import arviz_base as az
import numpy as np
import numpyro.distributions as dist
import pandas as pd
from table import write_table

import pgmodels as pgm
from pgmodels.datasets import load

# Crowder 1978: germinated and sown seeds on 21 plates.
GERMINATED = [10, 23, 23, 26, 17, 5, 53, 55, 32, 46, 10, 8, 10, 8, 23, 0, 3, 22, 15, 32, 3]
SOWN = [39, 62, 81, 51, 39, 6, 74, 72, 51, 79, 13, 16, 30, 28, 45, 4, 12, 41, 30, 51, 7]
# Deaths in cardiac surgery of infants in 12 hospitals (Spiegelhalter et al. 1996).
DEATHS = [0, 18, 8, 46, 8, 13, 9, 31, 14, 8, 29, 24]
OPERATIONS = [47, 148, 119, 810, 211, 196, 148, 215, 207, 97, 256, 360]
# Rubin 1981: effects of coaching in eight schools and their standard errors.
EFFECTS, ERRORS = [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]
# Numbers of matched pairs by the outcomes before and after.
PAIRS = {(1, 1): 20, (0, 0): 20, (0, 1): 9, (1, 0): 4}


class Case(NamedTuple):
    """A formula, its data and options, and reference deviations of coefficients by row, from a source."""

    formula: str
    data: Callable[[], pd.DataFrame]
    options: Mapping[str, Any]
    deviations: Mapping[str, float]
    source: str


def _r(name: str, **types: Any) -> Callable[[], pd.DataFrame]:
    def read() -> pd.DataFrame:
        folder = os.environ.get("PGMODELS_DATA")
        if folder is None:
            raise FileNotFoundError("PGMODELS_DATA is not set: name the folder whose folder r has R's data sets.")
        return pd.read_csv(Path(folder) / "r" / f"{name}.csv", dtype=types)

    return read


def _seeds() -> pd.DataFrame:
    frame = pd.DataFrame({"r": GERMINATED, "n": SOWN, "x1": [0] * 11 + [1] * 10})
    frame["x2"] = [0] * 5 + [1] * 6 + [0] * 5 + [1] * 5
    return frame.assign(plate=[f"p{i:02d}" for i in range(21)])


def _pairs() -> pd.DataFrame:
    both = [outcomes for outcomes, count in PAIRS.items() for _ in range(count)]
    rows = [(f"p{i:02d}", x, y) for i, outcomes in enumerate(both) for x, y in enumerate(outcomes)]
    return pd.DataFrame(rows, columns=["pair", "x", "y"])


def _schools() -> pd.DataFrame:
    return pd.DataFrame({"y": EFFECTS, "s": ERRORS, "school": list("ABCDEFGH")})


CASES = {
    "seeds": Case("p(r, n) ~ x1*x2 + (1|plate)", _seeds, {"family": "binomial"}, {}, "integrate"),
    "surgical": Case(
        "p(r, n) ~ 1 + (1|hospital)",
        lambda: pd.DataFrame({"r": DEATHS, "n": OPERATIONS, "hospital": list("ABCDEFGHIJKL")}),
        {"family": "binomial"}, {}, "integrate",
    ),
    "sleepstudy": Case(
        "Reaction ~ Days + (1 + Days|Subject)", _r("sleepstudy", Subject=str), {},
        {"Intercept": 6.825, "Days": 1.546}, "lme4, REML",
    ),
    "Penicillin": Case(
        "diameter ~ 1 + (1|plate) + (1|sample)", _r("penicillin"), {}, {"Intercept": 0.809}, "lme4, REML"
    ),
    "BodyWeight": Case(
        "weight ~ Time*Diet + (1 + Time|Rat)", _r("BodyWeight", Rat=str, Diet=str), {},
        {"Time": 0.0911, "Time:Diet[T.2]": 0.158}, "nlme, REML",
    ),
    "Gasoline": Case(
        "y ~ temp + (1|Sample)", _r("gasbeta", Sample=str), {"family": "beta"}, {"temp": 0.0494},
        "glmmTMB, ML",
    ),
    "InstEval": Case(
        "y ~ service + (1|s) + (1|d) + (1|dept)", _r("insteval", s=str, d=str, dept=str), {},
        {"Intercept": 0.074}, "lme4, REML",
    ),
    "soup": Case(
        "SURENESS ~ PROD + (1|RESP)", _r("soup", RESP=str), {"family": "cumulative"}, {"PROD[T.Test]": 0.0918},
        "ordinal, ML",
    ),
    "eight schools": Case("y | se(s) ~ 1 + (1|school)", _schools, {}, {}, "integrate"),
    "matched pairs": Case("y ~ x + (1|pair)", _pairs, {"family": "bernoulli"}, {}, "integrate"),
}  # fmt: skip


def compared(name: str, case: Case) -> list[dict[str, object]]:
    """Rows of one set: coefficients and parameters by fit, with parameters uncertain and held, and by integrate."""
    regression = pgm.formula(case.formula, case.data(), **case.options)
    start = time.perf_counter()
    learned = regression.fit(progress=False)
    seconds = time.perf_counter() - start
    conditional = type(learned)(regression, learned.result.conditional).summary()
    table, start = learned.summary(), time.perf_counter()
    integrated = regression.integrate(progress=False).summary()
    others = time.perf_counter() - start
    rows = []
    for row in table.index:
        reference = case.deviations.get(row, integrated.loc[row, "sd"])
        low, high = (float(table.loc[row, column]) for column in table.columns[2:4])
        width = float(integrated[table.columns[3]][row] - integrated[table.columns[2]][row])
        rows.append({
            "set": name, "row": row, "mean": float(table.loc[row, "mean"]),
            "mean, integrate": float(integrated.loc[row, "mean"]), "sd": float(table.loc[row, "sd"]),
            "sd, parameters held": float(conditional.loc[row, "sd"]), "sd, integrate": float(integrated.loc[row, "sd"]),
            "reference": reference, "from": case.source if row in case.deviations else "integrate",
            "ratio": float(table.loc[row, "sd"]) / reference,
            "ratio, parameters held": float(conditional.loc[row, "sd"]) / reference,
            "width over integrate's": (high - low) / width, "seconds": seconds, "seconds, integrate": others,
        })  # fmt: skip
    return rows


# Coverage: the truth of all families, rows of each group, and the limits of the coverage of 90 % intervals. An ordered
# model has cut-points in place of the intercept.
INTERCEPT, SLOPE, SPREAD, CUTS, EACH = 0.3, 0.8, 0.7, (-0.5, 1.0), 12
SCALE, DISPERSION, PRECISION = 1.0, 3.0, 8.0
LOW, HIGH = 0.87, 0.93
FAMILIES = ("gaussian", "bernoulli", "poisson", "negbinomial", "cumulative", "beta")
TRUTHS = {
    "slope": {"x": SLOPE},
    "sd of groups": {"sd(Intercept | g)": SPREAD},
    "intercept or cut-points": {"Intercept": INTERCEPT, "cuts[0]": CUTS[0] - INTERCEPT, "cuts[1]": CUTS[1] - INTERCEPT},
    "sigma, dispersion or precision": {"sigma": SCALE, "dispersion": DISPERSION, "precision": PRECISION},
}


def simulated(family: str, groups: int, rng: np.random.Generator) -> pd.DataFrame:
    """Data of a family with known parameters: an intercept, a slope and groups."""
    count = groups * EACH
    frame = pd.DataFrame({"x": rng.normal(size=count), "g": np.repeat([f"g{i:02d}" for i in range(groups)], EACH)})
    f = INTERCEPT + SLOPE * frame["x"] + np.repeat(SPREAD * rng.normal(size=groups), EACH)
    mean = 1.0 / (1.0 + np.exp(-f))
    draws = {
        "gaussian": lambda: f + SCALE * rng.normal(size=count),
        "bernoulli": lambda: (rng.random(count) < mean).astype(int),
        "poisson": lambda: rng.poisson(np.exp(f)),
        "negbinomial": lambda: rng.negative_binomial(DISPERSION, DISPERSION / (DISPERSION + np.exp(f))),
        "cumulative": lambda: np.array(list("abc"))[np.digitize(f + rng.logistic(size=count), CUTS)],
        "beta": lambda: np.clip(rng.beta(PRECISION * mean, PRECISION * (1.0 - mean)), 1e-6, 1.0 - 1e-6),
    }
    return frame.assign(y=draws[family]())


def coverage(family: str, groups: int, count: int) -> dict[str, object]:
    """How often 90 % intervals of the coefficients and parameters contain the truth."""
    tables, start = [], time.perf_counter()
    for seed in range(count):
        frame = simulated(family, groups, np.random.default_rng([seed, groups]))
        try:
            with az.rc_context({"stats.ci_prob": 0.9}):
                tables.append(pgm.formula("y ~ x + (1|g)", frame, family=family).fit(progress=False).summary())
        except ValueError:
            continue
    shares: dict[str, float | None] = {}
    for label, truths in TRUTHS.items():
        inside = [
            table.iloc[table.index.get_loc(row), 2] < truth < table.iloc[table.index.get_loc(row), 3]
            for table in tables
            for row, truth in truths.items()
            if row in table.index
        ]
        shares[label] = float(np.mean(inside)) if inside else None
    outside = [label for label, share in shares.items() if share is not None and not LOW <= share <= HIGH]
    return {"family": family, "groups": groups, "data sets": len(tables), "failed": count - len(tables)} | shares | {
        f"outside {LOW} to {HIGH}": ", ".join(outside) or "none", "standard error": (0.09 / len(tables)) ** 0.5,
        "seconds": time.perf_counter() - start,
    }  # fmt: skip


# Sets of pgmodels.datasets, and whether y is a class of two; rows to learn from and rows to predict.
PREDICTED = {
    "breast-cancer": True, "heart": True, "pima": True, "german": True, "banana": True, "ionosphere": True,
    "twonorm": True, "crabs": True, "ringnorm": True, "mcycle": False, "wine-quality-white": False, "nmes1988": None,
}  # fmt: skip
LEARNED, TESTED = 100, 500


def predicted(name: str, is_class: bool | None) -> dict[str, object]:
    """Mean negative log densities of held-out rows by fit, with parameters held and uncertain, and by integrate."""
    data = load(name)
    order = np.random.default_rng(1).permutation(len(data.X))
    train, test = order[: min(LEARNED, len(order) // 2)], order[LEARNED : LEARNED + TESTED]
    spread = data.X[train].std(axis=0)
    X = (data.X - data.X[train].mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)
    y = data.y.astype(float)
    kernel = pgm.RBF(pgm.sd(dist.HalfNormal(2.5)), dist.LogNormal(np.log(X.shape[1]) / 2.0 + 0.5, 0.7))
    if is_class:
        likelihood: Any = pgm.Bernoulli()
    elif is_class is None:
        likelihood = pgm.NegativeBinomial(pgm.Parameter(1.0, prior=dist.LogNormal(0.0, 1.0)))
    else:
        y = (y - y[train].mean()) / y[train].std()
        likelihood = pgm.Gaussian(dist.HalfNormal(1.0))
    model = pgm.Model(likelihood, pgm.GP(kernel, mean=dist.Normal(0.0, 2.0)))
    learned = pgm.fit(model, X[train], y[train], progress=False)
    integrated = pgm.integrate(model, X[train], y[train], progress=False)
    results = {"fit, parameters held": learned.conditional, "fit": learned, "integrate": integrated}
    return {"set": name, "rows": len(test)} | {
        label: float(-result.predict(X[test]).log_density(y[test]).mean()) for label, result in results.items()
    }


def main() -> None:
    """Write the table of the sets, of the coverage or of predictions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", help="sets, coverage or predictions; by default all sets")
    parser.add_argument("--count", type=int, default=500, help="simulated data sets of each family")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[dict[str, object]] = []
    if arguments.what == ["coverage"]:
        for groups in (8, 30):
            for family in FAMILIES:
                rows.append(coverage(family, groups, arguments.count))
                write_table(
                    "Coverage of 90 % intervals", rows,
                    f"`formula('y ~ x + (1|g)').fit()` on simulated data: {EACH} rows a group, an intercept of "
                    f"{INTERCEPT}, a slope of {SLOPE}, a deviation of groups of {SPREAD}, cut-points {CUTS}, sigma "
                    f"{SCALE}, dispersion {DISPERSION}, precision {PRECISION}.", 0, "coverage",
                )  # fmt: skip
        return
    if arguments.what == ["predictions"]:
        for name, is_class in PREDICTED.items():
            rows.append(predicted(name, is_class))
            write_table(
                "Predictions of fit and integrate", rows,
                f"Mean negative log densities of held-out rows, in nats, after {LEARNED} rows.", 0, "predictions",
            )  # fmt: skip
        return
    for name in arguments.what or CASES:
        rows += compared(name, CASES[name])
        write_table(
            "Intervals of fit", rows,
            "Deviations of coefficients and parameters by `fit`, with the delta method and with parameters held, over "
            "R's (REML where there is one) or over those of `integrate`.", 0,
        )  # fmt: skip


if __name__ == "__main__":
    main()
