"""Mixed models of many groups: time and estimates beside lme4, where R has it, else statsmodels.

Usage: python validation/groups.py [CASE ...]. Every fit is a process of its own; the largest takes some minutes.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

SEED = 0
R = Path(__file__).with_suffix(".R")
# Formula, family, rows, levels of g and of h.
CASES: dict[str, tuple[str, str, int, int, int]] = {
    "4,000 rows, 400 groups": ("y ~ x + (1|g)", "gaussian", 4_000, 400, 0),
    "20,000 rows, 2,000 groups": ("y ~ x + (1|g)", "gaussian", 20_000, 2_000, 0),
    "20,000 rows, 2,000 groups, slopes": ("y ~ x + (1 + x|g)", "gaussian", 20_000, 2_000, 0),
    "20,000 rows, 2,000 x 50 groups": ("y ~ x + (1|g) + (1|h)", "gaussian", 20_000, 2_000, 50),
    "20,000 rows, 2,000 groups, binary": ("y ~ x + (1|g)", "bernoulli", 20_000, 2_000, 0),
    "20,000 rows, 2,000 groups, counts": ("y ~ x + (1|g)", "poisson", 20_000, 2_000, 0),
    "1,000,000 rows, 100,000 groups": ("y ~ x + (1|g)", "gaussian", 1_000_000, 100_000, 0),
    "InstEval": ("y ~ service + (1|s) + (1|d) + (1|dept)", "gaussian", 0, 0, 0),
}


def simulated(formula: str, family: str, rows: int, groups: int, others: int) -> pd.DataFrame:
    """Effects of groups with standard deviation .7 (slopes .3, the other groups .5) and noise of .8."""
    rng = np.random.default_rng(SEED)
    g, x = rng.integers(0, groups, rows), rng.normal(size=rows)
    eta = 0.3 + 0.5 * x + 0.7 * rng.normal(size=groups)[g]
    frame = {"x": x, "g": [f"level {one}" for one in g]}
    if "x|g" in formula:
        eta = eta + 0.3 * rng.normal(size=groups)[g] * x
    if others:
        h = rng.integers(0, others, rows)
        eta, frame["h"] = eta + 0.5 * rng.normal(size=others)[h], [f"level {one}" for one in h]
    if family == "gaussian":
        y = eta + 0.8 * rng.normal(size=rows)
    elif family == "poisson":
        y = rng.poisson(np.exp(eta)).astype(float)
    else:
        y = (rng.random(rows) < 1.0 / (1.0 + np.exp(-eta))).astype(float)
    return pd.DataFrame({"y": y, **frame})


def data_of(case: str) -> pd.DataFrame:
    """The data of a case; those of InstEval come from R."""
    if case != "InstEval":
        return simulated(*CASES[case])
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/data.csv"
        code = f"suppressMessages(library(lme4)); write.csv(InstEval, '{path}', row.names = FALSE)"
        subprocess.run(["Rscript", "-e", code], check=True)
        return pd.read_csv(path, dtype=dict.fromkeys(("s", "d", "service", "dept"), str))


def ours(case: str) -> None:
    """Fit, summary and first predictions, twice in one process, as JSON."""
    frame, (formula, family, *_) = data_of(case), CASES[case]
    start = time.perf_counter()
    import pgmodels as pgm

    seconds = [time.perf_counter() - start]
    for _ in range(2):
        start = time.perf_counter()
        result = pgm.formula(formula, frame, family=family).fit(progress=False)
        summary, _ = result.summary(), result.predictions(frame.iloc[:100])
        seconds.append(time.perf_counter() - start)
    is_sd = summary.index.str.startswith("sd(")
    # The coefficients come before the noise and the deviations of groups.
    is_coefficient = ~is_sd & ~summary.index.isin(["sigma"]) & ~summary.index.str.startswith("cor(")
    sds = [*summary["mean"][is_sd], *summary["mean"][summary.index == "sigma"]]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    answer = {"seconds": seconds, "sds": sds, "peak": peak}
    columns = {"estimates": "mean", "errors": "sd"}
    print(json.dumps(answer | {name: list(summary[column][is_coefficient]) for name, column in columns.items()}))


def by_lme4(case: str) -> dict[str, object]:
    """The fit of lme4, from R."""
    formula, family, *_ = CASES[case]
    with tempfile.TemporaryDirectory() as folder:
        path = "InstEval"
        if case != "InstEval":
            path = f"{folder}/data.csv"
            data_of(case).to_csv(path, index=False)
        family = {"bernoulli": "binomial"}.get(family, family)
        done = subprocess.run(["Rscript", R, path, formula, family], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def by_statsmodels(case: str) -> dict[str, object] | None:
    """The fit of statsmodels, of one group of a Gaussian."""
    formula, family, rows, _, others = CASES[case]
    if family != "gaussian" or others or not rows or rows > 100_000:
        return None
    import statsmodels.formula.api as smf

    frame, slopes = data_of(case), "~x" if "x|g" in formula else None
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = smf.mixedlm("y ~ x", frame, groups=frame["g"], re_formula=slopes).fit()
    sds = [*np.sqrt(np.diag(fit.cov_re)), np.sqrt(fit.scale)]
    estimates, errors = list(fit.fe_params), list(fit.bse_fe)
    return {"seconds": time.perf_counter() - start, "sds": sds, "estimates": estimates, "errors": errors}


def main(cases: list[str]) -> None:
    """Fit the cases and write the table."""
    from table import write_table

    has_lme4 = (
        shutil.which("Rscript")
        and not subprocess.run(["Rscript", "-e", "library(lme4)"], capture_output=True, check=False).returncode
    )
    rows: list[dict[str, object]] = []
    for case in cases or CASES:
        command = [sys.executable, __file__, "--fit", case]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            rows.append({"case": case, "of": "pgmodels", "deviations": done.stderr.strip().splitlines()[-1][:120]})
            continue
        fits = {"pgmodels": json.loads(done.stdout.splitlines()[-1])}
        if has_lme4:
            fits["lme4"] = by_lme4(case)
        elif (other := by_statsmodels(case)) is not None:
            fits["statsmodels"] = other
        for name, fit in fits.items():
            seconds = fit["seconds"] if isinstance(fit["seconds"], list) else [None, fit["seconds"], None]
            numbers = {key: ", ".join(f"{one:.4g}" for one in fit[key]) for key in ("sds", "estimates", "errors")}
            rows.append({
                "case": case, "of": name, "import, s": seconds[0], "first fit, s": seconds[1], "again, s": seconds[2],
                "peak, MB": fit.get("peak"), "deviations, noise last": numbers["sds"],
                "coefficients": numbers["estimates"], "their errors": numbers["errors"],
            })  # fmt: skip
    write_table(
        "Mixed models of many groups",
        rows,
        "`formula(...).fit()`, `summary()` and `predictions` of 100 rows together, first and again in one process; "
        f"lme4 and statsmodels only fit. Load of the machine before: {os.getloadavg()[0]:.1f}.",
        SEED,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--fit"]:
        ours(sys.argv[2])
    else:
        main(sys.argv[1:])
