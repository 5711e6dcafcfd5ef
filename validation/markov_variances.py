"""Variances of a long series by ``gaussian_vi`` and ``correct`` beside a long run of ``gibbs``, for three likelihoods.

Usage: python validation/markov_variances.py [draws of each chain]. Ten minutes on two idle cores.
"""

import sys
import time

import numpy as np
from arviz_stats.base import array_stats
from table import write_table

import pgmodels as pgm

ROWS, EVERY, CHAINS = 20_000, 50, 4
SIGNIFICANT, CLOSE = 4.0, 0.02
DRAWS = int(sys.argv[1]) if len(sys.argv) > 1 else 2000

rng = np.random.default_rng(0)
times = np.sort(rng.uniform(0.0, ROWS / 10.0, ROWS))
f = np.sin(times) + 0.5 * np.sin(2.0 * np.pi * times / 7.0)
SERIES = {
    "Bernoulli": (pgm.Bernoulli(), (rng.random(ROWS) < 1.0 / (1.0 + np.exp(-f))).astype(float)),
    "NegativeBinomial": (pgm.NegativeBinomial(2.0), rng.negative_binomial(2.0, 1.0 / (1.0 + np.exp(f)))),
    "StudentT": (pgm.StudentT(4.0, 0.7), f + 0.7 * rng.standard_t(4.0, ROWS)),
}


def measured(name: str) -> dict[str, object]:
    """Ratios of the variances to those of the draws, and how many rows are off."""
    likelihood, y = SERIES[name]
    model = pgm.Model(likelihood, pgm.GP(pgm.Matern32(1.0, 2.0), form=pgm.Markov()))
    rows = np.arange(EVERY // 2, ROWS, EVERY)
    begin = time.perf_counter()
    draws = pgm.gibbs(
        model, times[:, None], y, num_samples=DRAWS, num_warmup=100, num_chains=CHAINS, keep=rows, progress=False
    )
    seconds = time.perf_counter() - begin
    kept = draws.latents[:, :, :, 0]
    squares = (kept - kept.mean(axis=(0, 1))) ** 2
    variance = squares.mean(axis=(0, 1))
    error = array_stats.mcse(squares, chain_axis=0, draw_axis=1, method="mean") / variance
    q = pgm.gaussian_vi(model, times[:, None], y)
    corrected = pgm.correct(q)
    row: dict[str, object] = {"likelihood": name}
    for label, result in (("gaussian_vi", q), ("corrected", corrected)):
        ratios = result.variance[rows, 0] / variance
        off = np.abs(ratios - 1.0) > np.maximum(CLOSE, SIGNIFICANT * error)
        row[f"mean ratio, {label}"] = f"{np.mean(result.variance[:, 0] / draws.variance[:, 0]):.4f}"
        row[f"rows off, {label}"] = f"{int(off.sum())} of {len(rows)}"
    row |= {
        "standard error of a ratio": float(np.median(error)),
        "largest z score, corrected": float(np.max(np.abs(corrected.variance[rows, 0] / variance - 1.0) / error)),
        "seconds, gibbs": seconds,
        "milliseconds a sweep": 1e3 * seconds / (CHAINS * (DRAWS + 100)),
        "seconds, correct": corrected.seconds - q.seconds,
    }
    print(row, flush=True)
    return row


write_table(
    "Variances of a long series",
    [measured(name) for name in SERIES],
    f"{ROWS:,} rows, ten to a unit of time; Matern32(1, 2), hyperparameters fixed. {CHAINS} chains of {DRAWS:,} draws. "
    f"Mean ratio: of the variance to that of the draws, over all rows. Rows off: of every {EVERY}th row, those whose "
    f"ratio is off one by more than {CLOSE:.0%} and by more than {SIGNIFICANT:.0f} standard errors of the draws. "
    "Seconds with compilation.",
    0,
)
