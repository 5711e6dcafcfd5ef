"""Shared set-up: one BLAS thread a process, since the tests run in several processes side by side."""

import os

# Read when NumPy and JAX load the library, hence before any test module is imported.
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")
