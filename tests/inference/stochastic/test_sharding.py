"""Rows of batches shared by devices and processes: the same numbers as on one, computed where the rows are."""

import os
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.inference import checkpoint_folder
from pgmodels.inference import svi_convergence as windows

RNG = np.random.default_rng(21)
X = RNG.normal([0.4, -0.2], size=(610, 2))
Y = X[:, 0] - np.sin(2.0 * X[:, 1]) + 0.3 * RNG.standard_t(4.0, 610)
Z = np.array([[-1.5, -1.0], [-0.5, 0.7], [0.4, -0.6], [1.3, 0.9], [0.1, 0.2]])
MODEL = pgm.Model(pgm.StudentT(4.0, 0.5), pgm.GP(pgm.RBF(2.0, 1.2), mean=0.3, form=pgm.Inducing(Z)))
# On four devices three rows fill up each batch, on two one.
SIZE, FILLED = 61, 64
SCRIPT = "import sys; from tests.inference.stochastic import test_sharding as t; getattr(t, sys.argv[1])(*sys.argv[2:])"


def figures(y=Y, checkpoint=None):
    """What two short windows of steps learn on whatever devices there are."""
    options = {
        "batch_size": SIZE,
        "rate": "adaptive",
        "train_hyperparameters": True,
        "max_epochs": 8,
        "checkpoint": checkpoint,
    }
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "_WINDOW", 40)
        warnings.simplefilter("ignore", pgm.ConvergenceWarning)
        result = pgm.svi(MODEL, pgm.ArrayRows(X, y, standardise=True), **options)
    mean, variance = result.predict_latent(X[:7])
    return {"trace": result.elbo_trace, "mean": mean, "variance": variance, **result.fit.values}


def save(path):
    """The figures, and the program of the steps."""
    advance, programs = windows.advance, []

    def compiled(*arguments):
        if not programs:
            programs.append(advance.program(*arguments).lower(*arguments).compile())
        return programs[0](*arguments)

    windows.advance = compiled
    values = figures()
    np.savez(path, program=programs[0].as_text(), **values)


def work(folder, address, process):
    """One of two processes. It saves the figures, is given other rows than the other one, and the second ends early."""
    jax.distributed.initialize(address, 2, int(process))
    np.savez(f"{folder}/{process}.npz", **figures())
    with pytest.raises(ValueError, match="or checkpoint of process 1 differ from"):
        figures(Y + int(process))
    checkpoint_folder._INTERVAL = 0.0
    following, calls = windows._next, []

    def ending(*arguments):
        calls.append(arguments)
        if process == "1" and len(calls) == 2:
            os._exit(3)
        return following(*arguments)

    windows._next = ending
    with pytest.raises(RuntimeError, match="process 0 has lost the others: one of them has ended"):
        figures(checkpoint=f"{folder}/steps")
    # JAX would wait for the other one.
    os._exit(4)


@pytest.fixture(scope="module")
def alone():
    return figures()


def start(name, *arguments, flags=""):
    """A function of this module in a process of its own."""
    environment = dict(os.environ, XLA_FLAGS=f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip())
    command = [sys.executable, "-c", SCRIPT, name, *map(str, arguments)]
    root = Path(__file__).parents[3]
    return subprocess.Popen(command, cwd=root, env=environment, stderr=subprocess.PIPE, encoding="utf-8")


def assert_close(ours, theirs):
    for name, value in theirs.items():
        # Sums in another order, whose rounding 80 steps carry on.
        np.testing.assert_allclose(ours[name], value, rtol=1e-8, atol=1e-8, err_msg=name)


@pytest.mark.slow
def test_four_devices_give_the_numbers_of_one(alone, tmp_path):
    process = start("save", tmp_path / "four.npz", flags="--xla_force_host_platform_device_count=4")
    errors = process.communicate(timeout=600)[1]
    assert process.returncode == 0, errors
    by_four = np.load(tmp_path / "four.npz")
    assert len(alone["trace"]) == 2
    assert_close(by_four, alone)
    program = str(by_four["program"])
    assert "all-reduce" in program
    assert f"f64[{len(Z)},{FILLED // 4}]" in program
    sizes = [size for rows in (SIZE, FILLED) for size in (f"f64[{len(Z)},{rows}]", f"f64[{rows},")]
    for unsharded in ("all-gather", *sizes):
        assert unsharded not in program


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one_and_one_that_ends_is_named(alone, tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    processes = [start("work", tmp_path, address, process) for process in range(2)]
    try:
        errors = [process.communicate(timeout=600)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [4, 3], errors
    for process in range(2):
        assert_close(np.load(tmp_path / f"{process}.npz"), alone)
    # The first window was saved, and is gone on from.
    with np.load(tmp_path / "steps" / "svi.npz") as saved:
        assert len(saved["full_trace"]) == 1
    assert_close(figures(checkpoint=tmp_path / "steps"), alone)
