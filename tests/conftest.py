"""Shared set-up: one BLAS thread per process, cheap compilation, shape checks, compiled code freed per module."""

import gc
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

# Set before NumPy and JAX load BLAS, hence before any test module is imported: the tests run in parallel.
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Most of the default tests' time is compilation of programs that run for milliseconds. These flags make it four times
# cheaper without changing IEEE arithmetic. Slow tests run long enough to need optimised code.
CHEAP = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
# Source locations of operations in compiled programs cost time and are not used here.
CHEAP_TRACES = {"JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0"}
CACHE = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0"}

# Subpackages whose shape annotations are checked at every call. Public functions validate their arguments themselves.
SHAPED = ["pgmodels.inference.surrogates", "pgmodels.kernels.kernel", "pgmodels.priors", "pgmodels.polya_gamma"]


def pytest_addoption(parser):
    parser.addoption("--compile-as-users", action="store_true", help="compile with JAX's default options")


def pytest_xdist_auto_num_workers(config):
    """Two workers, one per core; none under a debugger."""
    return 0 if sys.gettrace() or "debugpy" in sys.modules else 2


def _with_flags(*flags):
    """The environment with XLA flags prepended to the existing ones."""
    return {**os.environ, "XLA_FLAGS": " ".join([*flags, os.environ.get("XLA_FLAGS", "")]).strip()}


def _is_known(*flags):
    """Whether XLA knows the flags: a process with an unknown one aborts."""
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    return subprocess.run(command, env=_with_flags(*flags), capture_output=True).returncode == 0


def pytest_configure(config):
    """Set the environment before JAX is imported, here, in the workers and in subprocesses of tests."""
    worker = hasattr(config, "workerinput")
    if config.option.markexpr == "not slow" and not config.option.compile_as_users and not worker:
        known = CHEAP if _is_known(*CHEAP) else [flag for flag in CHEAP if _is_known(flag)]
        os.environ |= CHEAP_TRACES | _with_flags(*known)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        # Compiled programs are shared between modules and workers.
        folder = tempfile.mkdtemp(prefix="pgmodels-tests-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        os.environ |= CACHE | {"JAX_COMPILATION_CACHE_DIR": folder}
    install_import_hook(SHAPED, "beartype.beartype")
    # Tracing creates many long-lived small objects; collecting them often would take a tenth of the time.
    gc.set_threshold(50_000, 50, 100)


# The slowest modules first: a worker takes one module at a time.
SLOWEST_FIRST = (
    *("verify", "engines", "moves", "representations", "markov", "kernels", "gibbs", "cli", "predictors", "columns"),
    *("inducing", "damaged_files", "package", "fuzz", "data_forms", "docs"),
)


# Tests and cases that are slow by measurement: more than 0.8 s on an idle core, beyond the first of their file.
SLOW_TESTS = frozenset((Path(__file__).parent / "slow_tests.txt").read_text("utf-8").splitlines())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.nodeid in SLOW_TESTS:
            item.add_marker(pytest.mark.slow)
    ranks = {f"test_{name}": rank for rank, name in enumerate(SLOWEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))


@pytest.fixture
def planting(monkeypatch):
    """``monkeypatch`` for code that is compiled: programs from before the change, and with it, are not used again."""
    import jax

    from pgmodels.runtime.jit import clear_programs

    def forget():
        jax.clear_caches()
        clear_programs()

    forget()
    yield monkeypatch
    forget()


@pytest.fixture
def double_precision():
    """Doubles in the code of a test, which calls functions below the engines."""
    import jax

    with jax.enable_x64(True):
        yield


class _Compilations(logging.Handler):
    """What JAX compiles, by its own log."""

    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        message = record.getMessage()
        if message.startswith("Compiling"):
            self.messages.append(message)


@pytest.fixture
def compilations(monkeypatch):
    """What has been compiled: a list that grows, and that a test may clear."""
    import jax

    # The programs of earlier tests count as well: at the limit all would be cleared in the middle of a test.
    monkeypatch.setattr("pgmodels.runtime.jit.MAX_PROGRAMS", 10_000)
    handler, logger = _Compilations(), logging.getLogger("jax")
    # Not to the terminal: a record for each compilation goes to the handler alone.
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "propagate", False)
    with jax.log_compiles():
        yield handler.messages


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_code():
    """Clear JAX's caches if a module leaves many programs, so that tests of the package's limit start below it."""
    import jax

    from pgmodels.runtime.jit import MAX_PROGRAMS, clear_programs, num_programs

    yield
    if num_programs() > MAX_PROGRAMS // 2:
        jax.clear_caches()
        clear_programs()
