"""Shared set-up: one BLAS thread per process, cheap compilation, shape checks, and programs freed after each module."""

import gc
import os
import shutil
import subprocess
import sys
import tempfile

import pytest
from jaxtyping import install_import_hook

# Set before NumPy and JAX load BLAS, hence before any test module is imported: the tests run in parallel.
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Most of the default tests' time is compilation of programs that run for milliseconds. These flags make it four times
# cheaper, with IEEE double arithmetic unchanged. The slow tests run long enough to need optimised code.
CHEAP = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
# Source locations in compiled programs cost time and are not needed here.
CHEAP_TRACES = {"JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0"}
CACHE = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0"}

# Modules with shape annotations: every call of their functions is checked. Public functions check their arguments.
SHAPED = [
    "pgmodels.inference.mcmc.gibbs.preconditioner",
    "pgmodels.inference.mcmc.gibbs.surrogate_path",
    "pgmodels.kernels.distance",
    "pgmodels.priors",
    "pgmodels.polya_gamma",
]


def pytest_addoption(parser):
    parser.addoption("--compile-as-users", action="store_true", help="compile with JAX's default options")


def pytest_xdist_auto_num_workers(config):
    """Two workers, one per core; none under a debugger."""
    return 0 if sys.gettrace() or "debugpy" in sys.modules else 2


def _with_flags(*flags):
    """The environment with XLA flags put before the existing ones."""
    return {**os.environ, "XLA_FLAGS": " ".join([*flags, os.environ.get("XLA_FLAGS", "")]).strip()}


def _is_known(*flags):
    """Whether XLA accepts flags: a process with an unknown one is aborted."""
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    return subprocess.run(command, env=_with_flags(*flags), capture_output=True).returncode == 0


def pytest_configure(config):
    """Set flags before JAX is imported, here and (by the environment) in workers and subprocesses of tests."""
    worker = hasattr(config, "workerinput")
    if config.option.markexpr == "not slow" and not config.option.compile_as_users and not worker:
        known = CHEAP if _is_known(*CHEAP) else [flag for flag in CHEAP if _is_known(flag)]
        os.environ |= CHEAP_TRACES | _with_flags(*known)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        # Modules and workers share compiled programs.
        folder = tempfile.mkdtemp(prefix="pgmodels-tests-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        os.environ |= CACHE | {"JAX_COMPILATION_CACHE_DIR": folder}
    install_import_hook(SHAPED, "beartype.beartype")
    # Tracing makes many small long-lived objects; repeated garbage collection would take a tenth of the time.
    gc.set_threshold(50_000, 50, 100)


# The slowest modules, which run first: a worker runs one module at a time.
SLOWEST = (
    "examples",
    "polya_gamma_draws",
    "engines",
    "inducing",
    "pickling",
    "padding",
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
    "representations",
    "extension_representation",
    "verdict",
    "without_augmentation",
    "anderson",
)


def pytest_collection_modifyitems(items):
    places = {f"test_{name}": place for place, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_code():
    """Clear programs between modules, so that no test reaches the package's limit of programs."""
    import jax

    from pgmodels.runtime.jit import MAX_PROGRAMS, num_programs

    yield
    if num_programs() > MAX_PROGRAMS // 2:
        jax.clear_caches()
