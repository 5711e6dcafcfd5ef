"""Rows of batches shared by devices: the same numbers as on one, computed where the rows are."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.inference import windows

RNG = np.random.default_rng(21)
X = RNG.normal([0.4, -0.2], size=(610, 2))
Y = X[:, 0] - np.sin(2.0 * X[:, 1]) + 0.3 * RNG.standard_t(4.0, 610)
Z = np.array([[-1.5, -1.0], [-0.5, 0.7], [0.4, -0.6], [1.3, 0.9], [0.1, 0.2]])
MODEL = pgm.Model(pgm.StudentT(4.0, 0.5), pgm.GP(pgm.RBF(2.0, 1.2), mean=0.3, form=pgm.Inducing(Z)))
# On four devices three rows fill up each batch, on two one.
SIZE, FILLED = 61, 64
SCRIPT = "import sys; from tests.test_devices import save; save(sys.argv[1])"


def figures():
    """What two windows of steps learn on whatever devices there are."""
    rows = pgm.ArrayRows(X, Y, standardise=True)
    with pytest.warns(pgm.ConvergenceWarning):
        found = pgm.svi(MODEL, rows, batch_size=SIZE, rate="adaptive", learn=True, max_passes=40)
    mean, variance = found.predict_latent(X[:7])
    return {"trace": found.elbo_trace, "mean": mean, "variance": variance, **found.fit.values}


def save(path):
    """The figures, and the program of the steps."""
    advance, programs = windows.advance, []

    def compiled(*arguments):
        if not programs:
            programs.append(advance.lower(*arguments).compile())
        return programs[0](*arguments)

    windows.advance = compiled
    found = figures()
    np.savez(path, program=programs[0].as_text(), **found)


@pytest.fixture(scope="module")
def alone():
    return figures()


@pytest.mark.turns(3)
def test_four_devices_give_the_numbers_of_one(alone, tmp_path):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    environment = dict(os.environ, XLA_FLAGS=flags)
    command = [sys.executable, "-c", SCRIPT, tmp_path / "four.npz"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], env=environment, capture_output=True, encoding="utf-8", timeout=600
    )
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "four.npz")
    assert len(alone["trace"]) == 2
    for name, value in alone.items():
        # Sums in another order, whose rounding 400 steps carry on.
        np.testing.assert_allclose(found[name], value, rtol=1e-8, atol=1e-8, err_msg=name)
    program = str(found["program"])
    assert "all-reduce" in program
    assert f"f64[{len(Z)},{FILLED // 4}]" in program
    for whole in ("all-gather", f"f64[{len(Z)},{FILLED}]", f"f64[{FILLED},"):
        assert whole not in program
