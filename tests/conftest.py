"""Shared set-up: one BLAS thread a process, cheap compilation, shapes checked, and code freed after each module."""

import gc
import os
import shutil
import subprocess
import sys
import tempfile

import pytest
from jaxtyping import install_import_hook

# Read when NumPy and JAX load the library, hence before any test module is imported: the tests run side by side.
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Most of the default tests' time is compilation of programs that run for milliseconds. These make it four times
# cheaper; the arithmetic stays that of IEEE doubles. The slow batteries run long enough to want the optimised code.
CHEAP = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
# Where in the package an operation comes from is written into each program, at a cost, and read by nobody here.
CHEAP_TRACES = {"JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0"}
CACHE = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0"}

# Rooms whose annotations say shapes: every call of their functions is checked. What users call refuses by itself.
SHAPED = [
    "pgmodels.inference.mcmc.gibbs.preconditioner",
    "pgmodels.inference.mcmc.gibbs.surrogate_path",
    "pgmodels.kernels.distance",
    "pgmodels.priors",
    "pgmodels.polya_gamma",
]


def pytest_addoption(parser):
    parser.addoption("--compile-as-users", action="store_true", help="compile as JAX does unless told otherwise")


def pytest_xdist_auto_num_workers(config):
    """Two, each with a core and its memory; none where a debugger looks at this process."""
    return 0 if sys.gettrace() or "debugpy" in sys.modules else 2


def _with_flags(*flags):
    """An environment with flags of XLA before those that are there."""
    return {**os.environ, "XLA_FLAGS": " ".join([*flags, os.environ.get("XLA_FLAGS", "")]).strip()}


def _is_known(*flags):
    """Whether JAX takes flags of XLA: a process with one that it does not know is aborted."""
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    return subprocess.run(command, env=_with_flags(*flags), capture_output=True).returncode == 0


def pytest_configure(config):
    """Before JAX is imported, here and (through the environment) in the workers and in subprocesses of tests."""
    worker = hasattr(config, "workerinput")
    if config.option.markexpr == "not slow" and not config.option.compile_as_users and not worker:
        known = CHEAP if _is_known(*CHEAP) else [flag for flag in CHEAP if _is_known(flag)]
        os.environ |= CHEAP_TRACES | _with_flags(*known)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        # What one module compiles is there for the next, in whichever worker.
        folder = tempfile.mkdtemp(prefix="pgmodels-tests-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        os.environ |= CACHE | {"JAX_COMPILATION_CACHE_DIR": folder}
    install_import_hook(SHAPED, "beartype.beartype")
    # Tracing makes many small objects that live; looking through all of them again and again takes a tenth of the time.
    gc.set_threshold(50_000, 50, 100)


# A worker takes a module at a time: begun last, one of these would be waited for.
DEAREST = (
    "examples",
    "polya_gamma_draws",
    "engines",
    "inducing",
    "travel",
    "rows",
    "svi",
    "svi_gaussian",
    "extremes",
    "nuts",
    "verify",
    "gaussian_vi",
    "cli",
    "integrate",
    "predictors",
    "gibbs",
    "checkpoint",
    "diagnose",
    "public_calls",
    "forms",
    "extension_form",
    "verdict",
    "without_augmentation",
    "acceleration",
)


def pytest_collection_modifyitems(items):
    places = {f"test_{name}": place for place, name in enumerate(DEAREST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_code():
    """Neighbours share programs; a module that counts its own must not reach the number that the package keeps."""
    import jax

    from pgmodels.runtime.jit import MAX_PROGRAMS, num_programs

    yield
    if num_programs() > MAX_PROGRAMS // 2:
        jax.clear_caches()
