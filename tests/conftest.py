"""Shared set-up: one BLAS thread a process, and compiled code freed after each module."""

import os

import pytest

# Read when NumPy and JAX load the library, hence before any test module is imported: the tests run side by side.
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_code():
    """Thousands of formulas and shapes would fill the memory."""
    import jax

    yield
    jax.clear_caches()
