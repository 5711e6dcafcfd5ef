"""Hyperparameters integrated out against Gibbs draws of them: the cases of the sampled suite, in one process a case.

Usage: python validation/integrated.py [CASE ...]: cases whose name has one of the words. Data sets other than
scikit-learn's are read from PGMODELS_DATA or OpenML. Twenty minutes.
"""

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sampler_suite import CASES, Case
from table import write_table

import pgmodels as pgm
from pgmodels.diagnostics.compare import standard_errors


def seconds_of(work: Callable[[], Any]) -> tuple[Any, float]:
    """A result, and the processor's seconds, all threads together."""
    start = time.process_time()
    return work(), time.process_time() - start


def worst(errors: dict[str, float]) -> str:
    """The largest error, and whose it is."""
    name = max(errors, key=lambda label: abs(errors[label]))
    return f"{errors[name]:+.3f} ({name})"


def measure(case: Case) -> dict[str, object]:
    """One row of the table."""
    model, X, y = case.make()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", pgm.EvidenceWarning)
        pgm.integrate(model, X, y)
        result, ours = seconds_of(lambda: pgm.integrate(model, X, y))
    pgm.gibbs(model, X, y, num_samples=1, num_warmup=200, seed=1)
    draws, theirs = seconds_of(lambda: pgm.gibbs(model, X, y, num_samples=1000, num_warmup=200, seed=0))
    means, deviations, noise = {}, {}, 0.0
    for name, marginal in result.hyperparameters.items():
        log = np.log(draws.hyperparameters[name])
        deviation = float(log.std())
        means[name] = float((marginal.logarithm.mean - log.mean()) / deviation)
        deviations[name] = float(marginal.logarithm.deviation / deviation - 1.0)
        noise = max(noise, float(standard_errors(log[..., None, None])[0].max()) / deviation)
    deviation = np.sqrt(draws.variance)
    mean_error, variance_error = standard_errors(draws.latents)
    figures: dict[str, object] = {
        "case": case.name,
        "points": len(result.shares),
        "log hyperparameters: means, worst [deviations]": worst(means),
        "their s.e.": noise,
        "deviations, worst [relative]": worst(deviations),
        "latents: means [deviations]": float(np.mean(np.abs(result.mean - draws.mean) / deviation)),
        "s.e. of means": float(np.mean(mean_error / deviation)),
        "variances [relative]": float(np.mean(np.abs(result.variance - draws.variance)) / draws.variance.mean()),
        "s.e. of variances": float(np.mean(variance_error) / draws.variance.mean()),
        "variances, sum [relative]": float(result.variance.sum() / draws.variance.sum() - 1.0),
        "largest k-hat": float(result.k_hats.max()),
        "mass at unreliable points": result.unreliable,
        "warned": "yes" if said else "no",
        "integrate s": ours,
        "gibbs s": theirs,
        "ratio": theirs / ours,
    }
    print({k: (round(v, 3) if isinstance(v, float) else v) for k, v in figures.items()}, flush=True)
    return figures


def main(words: list[str]) -> None:
    """Run the sampled cases, or those that some word is in the name of, and write their table."""
    cases = [case for case in CASES if case.sampled and (not words or any(word in case.name for word in words))]
    write_table(
        "Hyperparameters integrated out, against Gibbs draws of them",
        [measure(case) for case in cases],
        "gibbs: 4 chains of 200 + 1,000; its Monte-Carlo standard errors beside the errors. Latents' errors are mean "
        "absolute ones over the data, in posterior deviations or relative to the mean variance; the last is that of "
        "the sum of the variances, in which noise averages out. Goals: 0.1 deviations and 10 % for hyperparameters, "
        "5 % for latents' variances, a ratio of 10. Seconds are the processor's, of a second call, compilation apart.",
        seed=0,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
