"""Peak memory of long runs of ``gibbs`` at n = 5,000, by what is kept. Each run is a process of its own.

Usage: python validation/memory.py
"""

import json
import resource
import subprocess
import sys
import time

import numpy as np
from table import write_table

import pgmodels as pgm

CASES = [
    {"kernel": "RBF", "keep": "moments", "num_samples": 10_000},
    {"kernel": "RBF", "keep": "100 rows", "num_samples": 10_000},
    {"kernel": "Matern12", "keep": "moments", "num_samples": 20},
]


def run(kernel: str, keep: str, num_samples: int) -> dict[str, object]:
    """One run of 4 chains; the peak is that of the whole process, libraries included."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (5_000, 2))
    y = (rng.random(5_000) < 1.0 / (1.0 + np.exp(-2.0 * np.sin(2.0 * X[:, 0]) * X[:, 1]))).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(getattr(pgm, kernel)(2.0, 1.0)))
    start = time.perf_counter()
    rows = "moments" if keep == "moments" else list(range(100))
    draws = pgm.gibbs(model, X, y, num_samples=num_samples, num_warmup=25, keep=rows, seed=0)
    assert np.isfinite(draws.mean).all()
    return {
        "form": type(draws.prior.groups[0]).__name__,
        "minutes": (time.perf_counter() - start) / 60,
        "peak, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(run(**json.loads(sys.argv[1]))))
    else:
        rows = []
        for case in CASES:
            command = [sys.executable, __file__, json.dumps(case)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
            rows.append(case | json.loads(output))
            print(rows[-1], flush=True)
        write_table(
            "Peak memory of gibbs at n = 5,000, 4 chains",
            rows,
            "Resident memory of the whole process, Python and libraries included. All draws of f would take 1.6 GB for "
            "10,000 draws of 4 chains. The goal is 2 GB.",
            seed=0,
        )
